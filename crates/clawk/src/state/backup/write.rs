//! Writes a backup while the agent runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_proto::Digest;
use clawk_recall::seal::SealKeyring;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::sealed::SealedWriter;
use super::{BackupFile, BackupHeader, BackupInventory, BackupReport, FORMAT, HEADER, INVENTORY, STATE};
use crate::state::identity::StateIdentity;
use crate::state::kept;
use crate::state::places::{BackupMethod, StatePlace};
use crate::state::server::StateServer;

/// First bytes of an SQLite database.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Folder in a state directory for copies on their way into a backup; the next backup removes what a crash left in it.
pub(crate) const WORK: &str = ".backup";
/// The lock of that folder.
const WORK_LOCK: &str = ".backup.lock";
/// How often a backup begins again because contents expired under it.
const TRIES: u32 = 3;
/// The public half of the signing key, which is no secret.
const PUBLIC_KEY: &str = "keys/checkpoint.pub";

/// What to back up, and where to.
#[derive(Debug)]
pub(crate) struct BackupRequest<'a> {
    /// The state directory.
    pub(crate) dir: &'a Path,
    /// The file to write; it must not exist.
    pub(crate) file: &'a Path,
    /// The agent's keys go along.
    pub(crate) keys: bool,
    /// Seals the file.
    pub(crate) vault: Option<SealKeyring>,
}

/// Writes the backup. The file appears whole or not at all.
///
/// # Errors
/// There is no state, the file exists, another backup runs, or something can't be read or written.
pub(crate) fn write_backup(request: &BackupRequest<'_>) -> Result<BackupReport> {
    let dir = request.dir;
    if !kept::holds_state(dir) {
        bail!("there is no agent's state in `{}`", dir.display());
    }
    let file = std::path::absolute(request.file)?;
    if file.symlink_metadata().is_ok() {
        bail!("`{}` exists; name a file that is not there", file.display());
    }
    if file.starts_with(dir.canonicalize()?) {
        bail!(
            "`{}` lies in the state itself; name a file elsewhere",
            file.display()
        );
    }
    let work = WorkFolder::lock_folder(dir)?;
    for attempt in 1..=TRIES {
        let source = StateSnapshot::take_snapshot(dir, work.make_empty()?)?;
        if let Some(report) = source.write_file(request, &file, attempt == TRIES)? {
            return Ok(report);
        }
    }
    bail!("contents of the state vanish while they are read; do it again")
}

/// The folder for copies, held by a lock.
struct WorkFolder {
    path: PathBuf,
    _lock: File,
}

impl WorkFolder {
    fn lock_folder(dir: &Path) -> Result<Self> {
        let path = dir.join(WORK_LOCK);
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).truncate(false).mode(0o600);
        let lock = open
            .open(&path)
            .with_context(|| format!("can't write `{}`", path.display()))?;
        if lock.try_lock().is_err() {
            bail!("another backup of `{}` runs", dir.display());
        }
        Ok(Self {
            path: dir.join(WORK),
            _lock: lock,
        })
    }

    /// Returns the folder, empty.
    fn make_empty(&self) -> Result<&Path> {
        remove_tree(&self.path)?;
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&self.path)
            .with_context(|| format!("can't make `{}`", self.path.display()))?;
        Ok(&self.path)
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = remove_tree(&self.path) {
            tracing::warn!(%error, "the copies of a backup are left behind");
        }
    }
}

pub(super) fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove `{}`", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The database as of one moment, and where the other files are.
struct StateSnapshot<'a> {
    dir: &'a Path,
    work: &'a Path,
    /// The directory with the database.
    database: PathBuf,
    /// The directory with the large contents.
    contents: PathBuf,
    on_server: bool,
}

impl<'a> StateSnapshot<'a> {
    fn take_snapshot(dir: &'a Path, work: &'a Path) -> Result<Self> {
        let database = work.join("database");
        if let Some(server) = StateServer::from_dir(dir)? {
            kept::copy_of_server(&server, &database, u64::MAX)?;
            if !kept::holds_state(&database) {
                bail!("the server holds no state yet: no agent has run with it");
            }
            return Ok(Self {
                dir,
                work,
                contents: database.clone(),
                database,
                on_server: true,
            });
        }
        fs::create_dir(&database)?;
        kept::snapshot_database(&dir.join("state.db"), &database.join("state.db"))?;
        Ok(Self {
            dir,
            work,
            database,
            contents: dir.to_owned(),
            on_server: false,
        })
    }

    /// Writes the whole file; `None`: a content vanished meanwhile, and the backup must begin again.
    fn write_file(
        &self,
        request: &BackupRequest<'_>,
        file: &Path,
        last_try: bool,
    ) -> Result<Option<BackupReport>> {
        let name = file
            .file_name()
            .context("the backup has no file name")?
            .to_string_lossy();
        let part = file.with_file_name(format!(".{name}.part"));
        let about = || format!("can't write `{}`", part.display());
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(0o600);
        let out = open.open(&part).with_context(about)?;
        let header = self.build_header(request)?;
        let written = match &request.vault {
            None => {
                let (out, written) = self.write_archive(&header, BufWriter::new(out), last_try)?;
                (out.into_inner().map_err(io::IntoInnerError::into_error)?, written)
            }
            Some(vault) => {
                let sealed = SealedWriter::begin(BufWriter::new(out), vault.clone(), header.backup)?;
                let (sealed, written) = self.write_archive(&header, sealed, last_try)?;
                let out = sealed.finish().with_context(about)?;
                (out.into_inner().map_err(io::IntoInnerError::into_error)?, written)
            }
        };
        let (out, Some(inventory)) = written else {
            fs::remove_file(&part)?;
            return Ok(None);
        };
        out.sync_all().with_context(about)?;
        fs::rename(&part, file).with_context(|| format!("can't write `{}`", file.display()))?;
        if let Some(folder) = file.parent() {
            File::open(folder)
                .and_then(|folder| folder.sync_all())
                .with_context(about)?;
        }
        Ok(Some(BackupReport {
            header,
            files: u64::try_from(inventory.files.len()).unwrap_or(u64::MAX),
            bytes: inventory.files.values().map(|file| file.bytes).sum(),
            events: inventory.events,
            lost: inventory.lost,
            encrypted: request.vault.is_some(),
        }))
    }

    fn build_header(&self, request: &BackupRequest<'_>) -> Result<BackupHeader> {
        let clock = SystemClock::default();
        let name = self.dir.file_name().unwrap_or_default().to_string_lossy();
        let identity = StateIdentity::ensure_in(self.dir, &name)?;
        Ok(BackupHeader {
            format: FORMAT,
            backup: clock.new_uuid(),
            id: identity.id,
            agent: identity.agent,
            at: clock.now().to_string(),
            clawk: env!("CARGO_PKG_VERSION").to_owned(),
            keys: request.keys,
            source: if self.on_server { "postgres" } else { "directory" }.to_owned(),
        })
    }

    fn write_archive<W: Write>(
        &self,
        header: &BackupHeader,
        out: W,
        last_try: bool,
    ) -> Result<(W, Option<BackupInventory>)> {
        let mut archive = ArchiveWriter::new(out);
        archive.add_json(HEADER, header)?;
        let reader = kept::SqliteReader::open(&self.database)?;
        archive.add_file(Path::new("state.db"), &self.database.join("state.db"))?;
        let mut lost = 0;
        for content in reader.filed_contents()? {
            let path = kept::content_file(content.digest);
            match archive.add_file(&path, &self.contents.join(&path)) {
                Ok(()) => {}
                Err(error) if is_missing(&error) && (content.erased || last_try) => {
                    lost += u64::from(!content.erased);
                }
                Err(error) if is_missing(&error) => return Ok((archive.into_inner()?, None)),
                Err(error) => return Err(error),
            }
        }
        self.add_files(&mut archive, Path::new(""), header.keys)?;
        let inventory = BackupInventory {
            files: std::mem::take(&mut archive.files),
            events: reader.last_row()?,
            lost,
        };
        archive.add_json(INVENTORY, &inventory)?;
        Ok((archive.into_inner()?, Some(inventory)))
    }

    /// Adds the files beside the database, as the inventory of places says.
    fn add_files<W: Write>(&self, archive: &mut ArchiveWriter<W>, below: &Path, keys: bool) -> Result<()> {
        let folder = self.dir.join(below);
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("can't look at `{}`", folder.display()))? {
            let entry = entry?;
            names.push((entry.file_name(), entry.file_type()?));
        }
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in names {
            let path = below.join(&name);
            let taken = match StatePlace::of_entry(&path).backup_method() {
                // A member's own database is a file like any other.
                BackupMethod::State => below.components().next().is_some(),
                BackupMethod::Files => true,
                BackupMethod::Secret => keys || path == Path::new("keys") || path == Path::new(PUBLIC_KEY),
                BackupMethod::LeftOut => false,
            };
            let text = name.to_string_lossy();
            if !taken || text.ends_with("-wal") || text.ends_with("-shm") {
                continue;
            }
            if kind.is_dir() {
                self.add_files(archive, &path, keys)?;
            } else if kind.is_file() {
                match self.add_other(archive, &path) {
                    Err(error) if is_missing(&error) => {
                        tracing::debug!(path = %path.display(), "gone meanwhile")
                    }
                    other => other?,
                }
            }
        }
        Ok(())
    }

    fn add_other<W: Write>(&self, archive: &mut ArchiveWriter<W>, path: &Path) -> Result<()> {
        let from = self.dir.join(path);
        let mut first = Vec::new();
        File::open(&from)?
            .take(u64::try_from(SQLITE.len()).unwrap_or(u64::MAX))
            .read_to_end(&mut first)?;
        if first != SQLITE {
            return archive.add_file(path, &from);
        }
        let copy = self.work.join("copy.db");
        if copy.exists() {
            fs::remove_file(&copy)?;
        }
        kept::snapshot_database(&from, &copy)?;
        archive.add_file(path, &copy)
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let missing = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    error.chain().any(missing)
}

/// Writes entries, and knows their digests.
struct ArchiveWriter<W: Write> {
    out: Builder<W>,
    files: BTreeMap<String, BackupFile>,
}

impl<W: Write> ArchiveWriter<W> {
    fn new(out: W) -> Self {
        Self {
            out: Builder::new(out),
            files: BTreeMap::new(),
        }
    }

    fn into_inner(self) -> Result<W> {
        Ok(self.out.into_inner()?)
    }

    fn add_json(&mut self, name: &str, value: &impl serde::Serialize) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(value)?;
        let length = u64::try_from(bytes.len())?;
        self.out
            .append_data(&mut entry_header(length), name, bytes.as_slice())?;
        Ok(())
    }

    /// Adds the bytes that the file has now. What is appended to it meanwhile is left out.
    fn add_file(&mut self, path: &Path, from: &Path) -> Result<()> {
        let file = File::open(from).with_context(|| format!("can't read `{}`", from.display()))?;
        let length = file.metadata()?.len();
        let mut counted = HashedReader {
            from: file.take(length),
            hasher: Sha256::new(),
            bytes: 0,
        };
        let name = Path::new(STATE).join(path);
        self.out
            .append_data(&mut entry_header(length), &name, &mut counted)
            .with_context(|| format!("can't copy `{}`", from.display()))?;
        if counted.bytes != length {
            bail!(
                "`{}` became shorter while it was copied; do it again",
                from.display()
            );
        }
        let name = path
            .to_str()
            .with_context(|| format!("`{}` is no text", path.display()))?;
        let sha256 = Digest(counted.hasher.finalize().into());
        self.files.insert(
            name.to_owned(),
            BackupFile {
                bytes: length,
                sha256,
            },
        );
        Ok(())
    }
}

fn entry_header(length: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(length);
    header.set_mode(0o600);
    header
}

struct HashedReader<R> {
    from: R,
    hasher: Sha256,
    bytes: u64,
}

impl<R: Read> Read for HashedReader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(to)?;
        self.hasher.update(to.get(..count).unwrap_or_default());
        self.bytes += u64::try_from(count).unwrap_or(0);
        Ok(count)
    }
}
