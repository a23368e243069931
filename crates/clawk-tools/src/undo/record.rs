//! Stores records of calls and saved contents as files: `SESSION/REQUEST.json`, `blobs/ab/HEX`.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use clawk_proto::{RequestId, SessionId};
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::{SealKeyring, is_sealed};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::look::{self, State};

/// A path in a record: text, or bytes if it is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RecordedPath {
    /// A path that is valid UTF-8.
    Text(String),
    /// Any other path.
    Bytes(Vec<u8>),
}

impl RecordedPath {
    /// Converts a path.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        path.to_str().map_or_else(
            || Self::Bytes(look::bytes_of(path).to_vec()),
            |text| Self::Text(text.to_owned()),
        )
    }

    /// The path as a `PathBuf`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Text(text) => PathBuf::from(text),
            Self::Bytes(bytes) => look::path_of(bytes.clone()),
        }
    }
}

/// One path that a call changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedChange {
    /// The absolute path.
    pub place: RecordedPath,
    /// The state before the call.
    pub before: State,
    /// The state after the call.
    pub after: State,
}

impl RecordedChange {
    pub(super) fn new(path: PathBuf, before: State, after: State) -> Self {
        Self {
            place: RecordedPath::new(&path),
            before,
            after,
        }
    }

    /// Whether it changed a file that has a hard link outside the call's reach.
    pub(super) fn reaches_beyond(&self) -> bool {
        let beyond = |state: &State| state.hard_link().is_some_and(|linked| linked.beyond);
        beyond(&self.before) && beyond(&self.after) && !self.before.is_like(&self.after)
    }
}

/// The record of one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndoRecord {
    /// The call's session.
    pub session: SessionId,
    /// The call's id.
    pub request_id: RequestId,
    /// The tool's name.
    pub tool: String,
    /// When the call began, nanoseconds since 1970.
    pub at_ns: u64,
    /// Whether the call ended normally. Then `changes` is complete for everything within its reach.
    pub ended: bool,
    /// Whether no other recorded call ran at the same time.
    pub alone: bool,
    /// The reason why nothing is saved.
    pub why: Option<String>,
    /// The changes that the call made.
    pub changes: Vec<RecordedChange>,
}

impl UndoRecord {
    /// A record for a call that is about to begin.
    pub(crate) fn new(session: SessionId, request_id: RequestId, tool: &str) -> Self {
        Self {
            session,
            request_id,
            tool: tool.to_owned(),
            at_ns: 0,
            ended: false,
            alone: false,
            why: None,
            changes: Vec::new(),
        }
    }

    /// How many bytes this record uses. Contents shared by several records count in each of them.
    fn kept_bytes(&self) -> u64 {
        let size = |change: &RecordedChange| match &change.before {
            State::File { size, .. } => *size,
            State::Absent | State::Folder { .. } | State::Link { .. } | State::Other => 0,
        };
        self.changes.iter().map(size).sum()
    }

    fn digests(&self) -> impl Iterator<Item = &str> {
        self.changes.iter().filter_map(|change| match &change.before {
            State::File { digest, .. } => Some(digest.as_str()),
            State::Absent | State::Folder { .. } | State::Link { .. } | State::Other => None,
        })
    }
}

fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn file_of(root: &Path, record: &UndoRecord) -> PathBuf {
    let (session, id) = (record.session.to_string(), record.request_id.as_str());
    root.join(session).join(format!("{id}.json"))
}

/// The path of the content with this digest.
pub(super) fn blob_path(root: &Path, digest: &str) -> PathBuf {
    let shelf = digest.get(..2).unwrap_or("00");
    root.join("blobs").join(shelf).join(digest)
}

/// Creates a temporary file in the same folder, to be renamed later.
fn create_part_file(root: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!(
        "part.{}.{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    create_folder(root)?;
    let path = root.join(name);
    let mut open = OpenOptions::new();
    let file = open
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    Ok((path, file))
}

/// Saves a file's content, encrypted if there is a key. Returns its digest.
pub(super) fn keep_content(root: &Path, mut file: &File, vault: Option<&SealKeyring>) -> io::Result<String> {
    if let Some(vault) = vault {
        // The file's size is within the limit of a call.
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let digest = clawk_proto::Digest(Sha256::digest(&bytes).into()).to_hex();
        let sealed = vault
            .seal(&seal_place(&digest), &bytes)
            .map_err(io::Error::other)?;
        put_content(root, &digest, &sealed)?;
        return Ok(digest);
    }

    let (path, mut copy) = create_part_file(root)?;
    let mut hash = Sha256::new();
    let mut piece = vec![0_u8; 64 << 10];
    loop {
        let read = file.read(&mut piece)?;
        let Some(bytes) = piece.get(..read).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        hash.update(bytes);
        copy.write_all(bytes)?;
    }
    let digest = clawk_proto::Digest(hash.finalize().into()).to_hex();
    let target = blob_path(root, &digest);
    if let Some(shelf) = target.parent() {
        create_folder(shelf)?;
    }
    fs::rename(&path, &target)?;
    Ok(digest)
}

fn seal_place(digest: &str) -> String {
    format!("undo/{digest}")
}

fn put_content(root: &Path, digest: &str, bytes: &[u8]) -> io::Result<()> {
    let (path, mut copy) = create_part_file(root)?;
    copy.write_all(bytes)?;
    let target = blob_path(root, digest);
    if let Some(shelf) = target.parent() {
        create_folder(shelf)?;
    }
    fs::rename(&path, &target)
}

/// Reads the saved content with this digest.
pub(super) fn read_content(root: &Path, digest: &str, vault: Option<&SealKeyring>) -> io::Result<Vec<u8>> {
    let bytes = fs::read(blob_path(root, digest))?;
    // Plain content may look encrypted: if the digest fits, it is plain.
    if !is_sealed(&bytes) || clawk_proto::Digest(Sha256::digest(&bytes).into()).to_hex() == digest {
        return Ok(bytes);
    }
    let vault =
        vault.ok_or_else(|| io::Error::other("what was kept is encrypted, and its key is not given"))?;
    let opened = vault
        .open(&seal_place(digest), &bytes)
        .map_err(io::Error::other)?;
    Ok(opened.unwrap_or(bytes))
}

/// The digests of all saved contents.
pub(super) fn list_contents(root: &Path) -> io::Result<Vec<String>> {
    let shelves = match fs::read_dir(root.join("blobs")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for shelf in shelves {
        for content in fs::read_dir(shelf?.path())? {
            found.extend(content?.file_name().into_string());
        }
    }
    Ok(found)
}

/// Seals every kept content with the vault's current key. One that can't be sealed stops no other; the report names it.
pub(super) fn seal_anew(root: &Path, vault: &SealKeyring) -> ResealReport {
    let mut report = ResealReport::default();
    match list_contents(root) {
        Ok(digests) => {
            for digest in digests {
                let outcome = seal_content(root, &digest, vault);
                report.add_outcome(blob_path(root, &digest).display(), outcome);
            }
        }
        Err(error) => report.add_fault(root.display(), error),
    }
    report
}

fn seal_content(root: &Path, digest: &str, vault: &SealKeyring) -> io::Result<()> {
    let stored = fs::read(blob_path(root, digest))?;
    let plain = read_content(root, digest, Some(vault))?;
    // What somebody wrote may look sealed.
    if vault.is_current(&stored) && stored != plain {
        return Ok(());
    }
    let sealed = vault
        .seal(&seal_place(digest), &plain)
        .map_err(io::Error::other)?;
    let (path, mut copy) = create_part_file(root)?;
    copy.write_all(&sealed)?;
    copy.sync_all()?;
    let target = blob_path(root, digest);
    fs::rename(&path, &target)?;
    match target.parent() {
        Some(shelf) => File::open(shelf)?.sync_all(),
        None => Ok(()),
    }
}

/// Erases saved contents; returns how many. The calls can no longer be undone in these places, and an undo says so.
pub(super) fn erase_contents(
    root: &Path,
    vault: Option<&SealKeyring>,
    mut goes: impl FnMut(&[u8]) -> bool,
) -> io::Result<u64> {
    let mut erased = 0;
    for digest in list_contents(root)? {
        if goes(&read_content(root, &digest, vault)?) {
            fs::remove_file(blob_path(root, &digest))?;
            erased += 1;
        }
    }
    Ok(erased)
}

/// Writes a record atomically and durably.
pub(super) fn write(root: &Path, record: &UndoRecord) -> io::Result<()> {
    let target = file_of(root, record);
    if let Some(shelf) = target.parent() {
        create_folder(shelf)?;
    }
    let (path, mut file) = create_part_file(root)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_data()?;
    fs::rename(&path, &target)
}

/// Records that the call was undone.
pub(super) fn mark_undone(root: &Path, record: &UndoRecord) -> io::Result<()> {
    let file = file_of(root, record);
    fs::rename(&file, file.with_extension("undone"))
}

fn read(path: &Path) -> io::Result<UndoRecord> {
    serde_json::from_slice(&fs::read(path)?)
        .map_err(|error| io::Error::other(format!("`{}` is not a record of a call: {error}", path.display())))
}

fn files_with(folder: &Path, wanted: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == wanted) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Records of a session that were not undone, newest first.
pub(super) fn of_session(root: &Path, session: SessionId) -> io::Result<Vec<UndoRecord>> {
    let files = files_with(&root.join(session.to_string()), "json")?;
    let mut records = files
        .iter()
        .map(|file| read(file))
        .collect::<io::Result<Vec<_>>>()?;
    records.sort_by_key(|record| Reverse(record.at_ns));
    Ok(records)
}

/// The ids of the calls that were undone.
pub(super) fn undone_before(root: &Path, session: SessionId) -> io::Result<Vec<String>> {
    let files = files_with(&root.join(session.to_string()), "undone")?;
    let id = |file: &PathBuf| Some(file.file_stem()?.to_str()?.to_owned());
    Ok(files.iter().filter_map(id).collect())
}

/// Deletes the oldest records until the rest uses at most `max_bytes`, and then contents that no record names.
pub(super) fn prune_records(root: &Path, max_bytes: u64) -> io::Result<()> {
    if !root.is_dir() {
        return Ok(());
    }
    let mut records = Vec::new();
    for entry in fs::read_dir(root)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "blobs") {
            for file in files_with(&path, "json")? {
                records.push((read(&file)?, file));
            }
        } else if path.is_file() {
            fs::remove_file(&path)?; // a part of something that was cut off
        }
    }
    records.sort_by_key(|(record, _)| Reverse(record.at_ns));
    let (mut kept, mut named) = (0_u64, BTreeSet::new());
    for (record, file) in &records {
        kept = kept.saturating_add(record.kept_bytes());
        if kept > max_bytes {
            fs::remove_file(file)?;
        } else {
            named.extend(record.digests().map(str::to_owned));
        }
    }
    let Ok(shelves) = fs::read_dir(root.join("blobs")) else {
        return Ok(()); // silent-ok: nothing is kept
    };
    for shelf in shelves {
        for content in fs::read_dir(shelf?.path())? {
            let content = content?;
            if !content
                .file_name()
                .to_str()
                .is_some_and(|name| named.contains(name))
            {
                fs::remove_file(content.path())?;
            }
        }
    }
    Ok(())
}
