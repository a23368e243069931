//! Checks a backup and restores it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_proto::Digest;
use clawk_recall::seal::SealKeyring;
use sha2::{Digest as _, Sha256};
use tar::Archive;

use super::sealed::{MAGIC, SealedReader};
use super::write::remove_tree;
use super::{
    BackupFile, BackupHeader, BackupInventory, BackupReport, FORMAT, HEADER, INVENTORY, MAX_JSON_BYTES, STATE,
};
use crate::state::kept::{self, SqliteReader, public_key};

/// What to do with the signing key of a backup that holds none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SigningKey {
    /// It comes back by itself.
    Kept,
    /// A new one signs from here on; earlier signatures lie beside it.
    Renewed,
}

/// An opened backup.
pub(crate) struct BackupReader {
    from: Box<dyn Read>,
    encrypted: bool,
}

impl BackupReader {
    /// Opens the file. `find_key` is asked for the key only if the file is sealed.
    ///
    /// # Errors
    /// It can't be read, or is sealed and there is no key.
    pub(crate) fn open(file: &Path, find_key: impl FnOnce() -> Result<SealKeyring>) -> Result<Self> {
        let about = || format!("can't read `{}`", file.display());
        let mut from = BufReader::new(File::open(file).with_context(about)?);
        let mut first = vec![0; MAGIC.len()];
        let is_sealed = match from.read_exact(&mut first) {
            Ok(()) => first == MAGIC,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => false,
            Err(error) => return Err(error).with_context(about),
        };
        if is_sealed {
            return Ok(Self {
                from: Box::new(SealedReader::begin(from, find_key()?).with_context(about)?),
                encrypted: true,
            });
        }
        Ok(Self {
            from: Box::new(BufReader::new(File::open(file).with_context(about)?)),
            encrypted: false,
        })
    }

    /// Unpacks the backup into an empty folder and verifies it: every file by its digest, every chain from its first event, every
    /// content, and the signed heads.
    ///
    /// # Errors
    /// It is damaged, was cut off, or is of a later version.
    pub(crate) fn unpack_to(self, folder: &Path) -> Result<BackupReport> {
        let encrypted = self.encrypted;
        let unpacked =
            unpack_archive(self.from, folder).context("this is not a whole backup; nothing was restored")?;
        let (header, inventory) = (unpacked.header, unpacked.inventory);
        if unpacked.files != inventory.files {
            bail!("the files of the backup are not those that its inventory lists; nothing was restored");
        }
        verify_state(folder, &inventory)?;
        Ok(BackupReport {
            files: u64::try_from(inventory.files.len()).unwrap_or(u64::MAX),
            bytes: inventory.files.values().map(|file| file.bytes).sum(),
            events: inventory.events,
            lost: inventory.lost,
            header,
            encrypted,
        })
    }
}

struct UnpackedBackup {
    header: BackupHeader,
    inventory: BackupInventory,
    files: BTreeMap<String, BackupFile>,
}

fn unpack_archive(from: Box<dyn Read>, folder: &Path) -> Result<UnpackedBackup> {
    let mut archive = Archive::new(from);
    let (mut header, mut inventory, mut files) = (None, None, BTreeMap::new());
    for entry in archive.entries()? {
        let mut entry = entry?;
        if !entry.header().entry_type().is_file() {
            bail!("the backup holds something that is not a file");
        }
        if inventory.is_some() {
            bail!("the backup goes on behind its inventory");
        }
        let path = entry.path()?.into_owned();
        if path == Path::new(HEADER) {
            header = Some(serde_json::from_reader(entry.take(MAX_JSON_BYTES))?);
        } else if path == Path::new(INVENTORY) {
            inventory = Some(serde_json::from_reader(entry.take(MAX_JSON_BYTES))?);
        } else {
            let (name, file) = unpack_file(&path, &mut entry, folder)?;
            files.insert(name, file);
        }
    }
    let header: BackupHeader = header.context("it has no header")?;
    if header.format != FORMAT {
        bail!(
            "it has the format {}, and this program reads {FORMAT}: clawk {} wrote it",
            header.format,
            header.clawk
        );
    }
    Ok(UnpackedBackup {
        header,
        inventory: inventory.context("it has no inventory: it was cut off")?,
        files,
    })
}

fn unpack_file(path: &Path, from: &mut impl Read, folder: &Path) -> Result<(String, BackupFile)> {
    let inside = path
        .strip_prefix(STATE)
        .ok()
        .filter(|inside| {
            inside
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
        })
        .filter(|inside| inside.file_name().is_some())
        .with_context(|| {
            format!(
                "the backup names the file `{}`, which is not in a state",
                path.display()
            )
        })?;
    let to = folder.join(inside);
    let about = || format!("can't write `{}`", to.display());
    if let Some(parent) = to.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .with_context(about)?;
    }
    let mut open = fs::OpenOptions::new();
    let out = open
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&to)
        .with_context(about)?;
    let mut written = HashedWriter {
        out,
        hasher: Sha256::new(),
    };
    let bytes = io::copy(from, &mut written).with_context(about)?;
    written.out.sync_all().with_context(about)?;
    let name = inside
        .to_str()
        .context("the backup names a file that is no text")?;
    let sha256 = Digest(written.hasher.finalize().into());
    Ok((name.to_owned(), BackupFile { bytes, sha256 }))
}

struct HashedWriter {
    out: File,
    hasher: Sha256,
}

impl io::Write for HashedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn verify_state(folder: &Path, inventory: &BackupInventory) -> Result<()> {
    let reader = SqliteReader::open(folder)?;
    let report = reader.verify(None)?;
    if let Some(fault) = report.fault.filter(|_| !report.valid) {
        bail!(
            "the record in the backup is not valid: {}; nothing was restored",
            fault.detail
        );
    }
    if reader.last_row()? != inventory.events {
        bail!("the backup has another number of events than its inventory says; nothing was restored");
    }
    if let Some(key) = public_key(folder)? {
        reader.check_heads(&key)?;
    }
    // Without the key of encrypted stores, the digests of the files above must do.
    if reader.lacks_key().is_none() {
        let contents = reader.contents(None)?;
        if contents.corrupt > 0 || contents.missing > inventory.lost {
            bail!(
                "{} contents of the backup are damaged and {} are missing; nothing was restored",
                contents.corrupt,
                contents.missing
            );
        }
    }
    Ok(())
}

/// Where a backup is restored to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestoreTarget<'a> {
    /// The state directory.
    pub(crate) dir: &'a Path,
    /// A state that is there is set aside.
    pub(crate) replace: bool,
    pub(crate) signing_key: SigningKey,
}

impl RestoreTarget<'_> {
    /// Restores the backup. The directory appears whole and verified, or not at all. Also returns where the earlier state is.
    ///
    /// # Errors
    /// The directory is not empty, its agent runs, or the backup is not whole.
    pub(crate) fn restore_backup(&self, backup: BackupReader) -> Result<(BackupReport, Option<PathBuf>)> {
        let dir = std::path::absolute(self.dir)?;
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
            bail!("`{}` is no place for a state", dir.display());
        };
        let is_taken = is_filled(&dir)?;
        if is_taken && !self.replace {
            bail!(
                "`{}` is not empty; `--replace` sets it aside, or name another place with `--state DIR`",
                dir.display()
            );
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let part = parent.join(format!(".{}.restoring", name.to_string_lossy()));
        remove_tree(&part)?;
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&part)
            .with_context(|| format!("can't make `{}`", part.display()))?;
        let restored = backup.unpack_to(&part).and_then(|report| {
            self.settle_key(&part, &report)?;
            Ok(report)
        });
        let report = match restored {
            Ok(report) => report,
            Err(error) => {
                remove_tree(&part)?;
                return Err(error);
            }
        };
        let aside = match is_taken {
            true => Some(set_aside(&dir)?),
            false => None,
        };
        fs::rename(&part, &dir).with_context(|| format!("can't write `{}`", dir.display()))?;
        File::open(parent).and_then(|folder| folder.sync_all())?;
        Ok((report, aside))
    }

    /// A journal with signed heads goes on only with the key that signed them.
    fn settle_key(&self, part: &Path, report: &BackupReport) -> Result<()> {
        let signed = !SqliteReader::open(part)?.heads()?.is_empty();
        if !signed || report.header.keys || self.signing_key == SigningKey::Kept {
            return Ok(());
        }
        let keys = part.join("keys");
        let heads = kept::detach_heads(part)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&keys)?;
        fs::write(keys.join("earlier-heads.jsonl"), heads)?;
        if keys.join("checkpoint.pub").is_file() {
            fs::rename(keys.join("checkpoint.pub"), keys.join("earlier.pub"))?;
        }
        Ok(())
    }
}

/// Whether the directory has anything in it.
fn is_filled(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("can't look at `{}`", dir.display())),
    }
}

/// Renames the state that is there, so that nothing is lost.
fn set_aside(dir: &Path) -> Result<PathBuf> {
    crate::state::identity::refuse_running(dir)?;
    let stamp: String = SystemClock::default()
        .now()
        .to_string()
        .chars()
        .filter(char::is_ascii_digit)
        .take(14)
        .collect();
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let aside = dir.with_file_name(format!(".{name}.replaced-{stamp}"));
    if aside.exists() {
        bail!(
            "`{}` is in the way; remove it, and do this again",
            aside.display()
        );
    }
    fs::rename(dir, &aside).with_context(|| format!("can't set `{}` aside", dir.display()))?;
    Ok(aside)
}
