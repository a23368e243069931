//! Stores content that is too large for a row: one file per digest, `blobs/ab/cdef…`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_proto::Digest;

use clawk_recall::keys::{StateSealer, place_of};

use crate::seal::ResealError;

/// Content up to this size is stored in its event's row, bytes.
pub(crate) const INLINE_BYTES: usize = 16 * 1024;

/// The directory of content files.
#[derive(Debug, Clone)]
pub(crate) struct BlobStore {
    root: PathBuf,
    seals: Arc<StateSealer>,
}

impl BlobStore {
    pub(crate) fn new(state: &Path) -> Self {
        Self {
            root: state.join("blobs"),
            seals: Arc::default(),
        }
    }

    /// Seals later writes and opens later reads with `seals`.
    pub(crate) fn sealed_by(self, seals: Arc<StateSealer>) -> Self {
        Self { seals, ..self }
    }

    pub(crate) fn state_sealer(&self) -> &Arc<StateSealer> {
        &self.seals
    }

    fn blob_path(&self, digest: Digest) -> (PathBuf, PathBuf) {
        let hex = digest.to_hex();
        let (front, rest) = hex.split_at_checked(2).unwrap_or((hex.as_str(), ""));
        let folder = self.root.join(front);
        let file = folder.join(rest);
        (folder, file)
    }

    /// Writes the content if it does not exist. With `durable`, the file and its directories are on the disk when this returns.
    pub(crate) fn write(&self, digest: Digest, bytes: &[u8], durable: bool) -> io::Result<()> {
        let (folder, file) = self.blob_path(digest);
        let added = self.seals.vault().map_or(0, |_| clawk_recall::seal::OVERHEAD);
        let length = u64::try_from(bytes.len() + added).unwrap_or(u64::MAX);
        if fs::metadata(&file).is_ok_and(|meta| meta.len() == length) {
            return Ok(());
        }
        let sealed = self.seals.seal_content(digest, bytes).map_err(io::Error::other)?;
        self.write_file((&folder, &file), sealed.as_deref().unwrap_or(bytes), durable)
    }

    fn write_file(&self, (folder, file): (&Path, &Path), bytes: &[u8], durable: bool) -> io::Result<()> {
        let new_folder = !folder.is_dir();
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Only the writer thread writes, so one temporary name is enough.
        let partial = self.root.join("partial");
        let mut open = OpenOptions::new();
        let mut out = open
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        out.write_all(bytes)?;
        if durable {
            out.sync_data()?;
        }
        drop(out);
        fs::rename(&partial, file)?;
        if durable {
            File::open(folder)?.sync_all()?;
            if new_folder {
                File::open(&self.root)?.sync_all()?;
            }
        }
        Ok(())
    }

    /// Reads the content; `None` if it was erased or never stored here.
    pub(crate) fn read(&self, digest: Digest) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.blob_path(digest).1) {
            Ok(bytes) => self
                .seals
                .open_content(digest, bytes)
                .map(Some)
                .map_err(io::Error::other),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Deletes the file if it exists.
    pub(crate) fn erase_file(&self, digest: Digest) -> io::Result<()> {
        match fs::remove_file(self.blob_path(digest).1) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The digests of all content files.
    pub(crate) fn all_digests(&self) -> io::Result<Vec<Digest>> {
        let mut found = Vec::new();
        for folder in fs::read_dir(&self.root)? {
            let folder = folder?;
            if !folder.file_type()?.is_dir() {
                continue; // a file on its way
            }
            for file in fs::read_dir(folder.path())? {
                let (front, rest) = (folder.file_name(), file?.file_name());
                let mut bytes = [0; 32];
                let name = format!("{}{}", front.to_string_lossy(), rest.to_string_lossy());
                if hex::decode_to_slice(name, &mut bytes).is_ok() {
                    found.push(Digest(bytes));
                }
            }
        }
        Ok(found)
    }

    /// Seals a content with the current key, whatever it was before.
    ///
    /// # Errors
    /// It can't be read or written, or no key opens it.
    pub(crate) fn seal_anew(&self, digest: Digest) -> Result<(), ResealError> {
        let Some(vault) = self.seals.vault() else {
            return Ok(());
        };
        let (folder, file) = self.blob_path(digest);
        let stored = fs::read(&file)?;
        // What somebody said may look sealed.
        let opened = match clawk_trace::chain::digest_of(&stored) == digest {
            true => None,
            false => vault.open(&place_of(digest), &stored)?,
        };
        if opened.is_some() && vault.is_current(&stored) {
            return Ok(());
        }
        let sealed = vault.seal(&place_of(digest), opened.as_deref().unwrap_or(&stored))?;
        Ok(self.write_file((&folder, &file), &sealed, true)?)
    }
}
