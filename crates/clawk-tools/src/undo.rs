//! Saves what calls overwrite, so that `clawk undo` can restore it: contents by digest, modes and modification times.
//!
//! A file tool saves the file that it names. A program saves its sandbox's writable mounts, up to a limit. The record of a call is
//! written before the call begins. After the call, a second scan finds the changes.

mod back;
pub(crate) mod look;
mod record;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use clawk_plan::plan::{Filesystem, FsMode};
use clawk_proto::SessionId;
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::SealKeyring;

pub use back::{UndoConflict, UndoPlan, UndoStep, apply_undo, plan_undo};
use look::{FileFingerprint, FileObservation};
pub use look::{HardLink, State};
pub use record::{RecordedChange, RecordedPath, UndoRecord};

/// How many entries of writable mounts are scanned before a call.
const MAX_ENTRIES: usize = 20_000;
/// How many digests of files are cached between calls.
const MAX_KNOWN: usize = 50_000;

/// The limits of `[undo]`.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How many bytes are saved for one call: of the file that it overwrites, or of its sandbox's writable mounts.
    pub call_bytes: u64,
    /// How many bytes all records may use. Above this, the oldest calls are deleted first.
    pub total_bytes: u64,
}

/// Saves what calls overwrite, in a folder of the state.
#[derive(Debug)]
pub struct UndoStore {
    root: PathBuf,
    limits: Limits,
    vault: Option<SealKeyring>,
    /// Digests of files that were saved and have not changed since.
    known: Mutex<HashMap<FileFingerprint, String>>,
    running: Arc<AtomicU64>,
    begun: AtomicU64,
}

/// What a call may change.
#[derive(Debug, Clone)]
pub(crate) enum UndoReach {
    /// Only these places, and other hard links to the same files below `around`.
    Places {
        places: Vec<PathBuf>,
        around: Vec<PathBuf>,
    },
    /// Everything below these folders.
    Trees(Vec<PathBuf>),
}

/// The record of a running call.
#[derive(Debug)]
pub(crate) struct OpenUndoRecord {
    record: UndoRecord,
    before: BTreeMap<PathBuf, FileObservation>,
    reach: UndoReach,
    since: SystemTime,
    begun: u64,
    alone: bool,
    running: RunningCallGuard,
}

/// Counts a running call. Dropping this ends the count.
#[derive(Debug)]
struct RunningCallGuard(Arc<AtomicU64>);

impl Drop for RunningCallGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl UndoStore {
    /// Creates a store in this folder; the folder is created at the first save. Deletes the oldest calls if the limit is exceeded.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn new(root: PathBuf, limits: Limits) -> io::Result<Self> {
        record::prune_records(&root, limits.total_bytes)?;
        Ok(Self {
            root,
            limits,
            vault: None,
            known: Mutex::default(),
            running: Arc::default(),
            begun: AtomicU64::new(0),
        })
    }

    /// What is kept is sealed, now and from now on. A content that can't be sealed is logged, and stays as it was.
    #[must_use]
    pub fn sealed_by(mut self, vault: Option<SealKeyring>) -> Self {
        if let Some(vault) = &vault {
            for fault in record::seal_anew(&self.root, vault).faults() {
                tracing::error!(
                    file = fault.value,
                    why = fault.why,
                    "what a call overwrote can't be sealed"
                );
            }
        }
        self.vault = vault;
        self
    }

    /// The reason why a program in this sandbox could not be undone, for people to read. Checks sizes only.
    pub(crate) fn too_much(&self, filesystem: &Filesystem, workdir: &Path) -> Option<String> {
        let megabytes = self.limits.call_bytes >> 20;
        match writable_folders(filesystem, workdir) {
            Err(why) => Some(format!("no undo: {why}")),
            Ok(trees) => {
                let fits = look::fits_limits(&trees, &self.root, self.limits.call_bytes, MAX_ENTRIES);
                let why = format!(
                    "no undo: its writable folders hold more than {megabytes} MB (`[undo] max_mb` of clawk.toml) or {MAX_ENTRIES} entries"
                );
                (!fits).then_some(why)
            }
        }
    }

    /// Saves what the call may overwrite. Blocking.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time is compared with the file system's own stamps, which no port gives"
    )]
    pub(crate) fn begin_record(
        &self,
        call: UndoRecord,
        reach: Result<UndoReach, String>,
    ) -> io::Result<OpenUndoRecord> {
        let since = SystemTime::now();
        let alone = self.running.fetch_add(1, Ordering::SeqCst) == 0;
        let begun = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let mut call = call;
        if call.at_ns == 0 {
            let at = since.duration_since(UNIX_EPOCH).unwrap_or_default(); // silent-ok: a clock before 1970 orders nothing
            call.at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        }
        let mut open = OpenUndoRecord {
            record: call,
            before: BTreeMap::new(),
            reach: UndoReach::Trees(Vec::new()),
            since,
            begun,
            alone,
            running: RunningCallGuard(Arc::clone(&self.running)),
        };
        match reach.and_then(|reach| Ok((self.observe_reach(&reach, since)?, reach))) {
            Ok((before, reach)) => (open.before, open.reach) = (before, reach),
            Err(why) => open.record.why = Some(why),
        }
        // Written before the call begins, so that an interrupted call is known.
        record::write(&self.root, &open.record)?;
        Ok(open)
    }

    /// Scans everything that the call may change, and saves the contents.
    fn observe_reach(
        &self,
        reach: &UndoReach,
        now: SystemTime,
    ) -> Result<BTreeMap<PathBuf, FileObservation>, String> {
        let found = match reach {
            UndoReach::Places { places, around } => {
                look::observe_places(places, (around, &self.root), MAX_ENTRIES)
            }
            UndoReach::Trees(trees) => {
                look::observe_trees(trees, &self.root, self.limits.call_bytes, MAX_ENTRIES)?
            }
        };
        let mut looks = found.map_err(|error| format!("it can't be looked at: {error}"))?;
        let mut left = self.limits.call_bytes;
        for (path, look) in &mut looks {
            let State::File { digest, size, .. } = &mut look.state else {
                continue;
            };
            let rest = left.checked_sub(*size);
            left = rest.ok_or_else(|| {
                format!(
                    "more than {} MB would have to be kept (`[undo] max_mb`)",
                    self.limits.call_bytes >> 20
                )
            })?;
            *digest = self
                .keep_content(path, &look.seen, now)
                .map_err(|error| format!("`{}` can't be kept: {error}", path.display()))?;
        }
        Ok(looks)
    }

    /// Saves a file's content and returns its digest.
    fn keep_content(&self, path: &Path, seen: &FileFingerprint, now: SystemTime) -> io::Result<String> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_settled(now)
            && let Some(digest) = lock().get(seen)
            && record::blob_path(&self.root, digest).is_file()
        {
            return Ok(digest.clone());
        }
        let digest = record::keep_content(&self.root, &look::open_regular(path)?, self.vault.as_ref())?;
        if seen.is_settled(now) {
            let mut known = lock();
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(*seen, digest.clone());
        }
        Ok(digest)
    }

    /// Records what the call changed. Blocking.
    pub(crate) fn end_record(&self, open: OpenUndoRecord) -> io::Result<()> {
        let alone = open.alone && self.begun.load(Ordering::SeqCst) == open.begun;
        let OpenUndoRecord {
            mut record,
            before,
            reach,
            since,
            running,
            ..
        } = open;
        drop(running);
        record.ended = true;
        record.alone = alone;
        if record.why.is_none() {
            let after = match &reach {
                UndoReach::Places { .. } => look::observe_again(before.keys())?,
                UndoReach::Trees(trees) => {
                    let all = look::observe_trees(trees, &self.root, u64::MAX, usize::MAX);
                    all.map_err(io::Error::other)??
                }
            };
            record.changes = recorded_changes(before, after, since)?;
        }
        record::write(&self.root, &record)
    }
}

/// Seals what is kept in `root` with the vault's current key. A content that can't be sealed stops no other; the report names it.
#[must_use]
pub fn seal_anew(root: &Path, vault: &SealKeyring) -> ResealReport {
    record::seal_anew(root, vault)
}

/// Erases saved contents; returns how many. An undo names the places that it can no longer restore.
///
/// # Errors
/// A content can't be read, decrypted or removed.
pub fn erase_contents(
    root: &Path,
    vault: Option<&SealKeyring>,
    goes: impl FnMut(&[u8]) -> bool,
) -> io::Result<u64> {
    record::erase_contents(root, vault, goes)
}

/// The recorded calls of a session, newest first.
///
/// # Errors
/// A record can't be read.
pub fn session_records(root: &Path, session: SessionId) -> io::Result<Vec<UndoRecord>> {
    record::of_session(root, session)
}

/// The ids of a session's calls that were already undone.
///
/// # Errors
/// An I/O error.
pub fn undone_before(root: &Path, session: SessionId) -> io::Result<Vec<String>> {
    record::undone_before(root, session)
}

/// Records that a call was undone, so that it is not undone again.
///
/// # Errors
/// An I/O error.
pub fn mark_undone(root: &Path, record: &UndoRecord) -> io::Result<()> {
    record::mark_undone(root, record)
}

fn recorded_changes(
    before: BTreeMap<PathBuf, FileObservation>,
    after: BTreeMap<PathBuf, FileObservation>,
    since: SystemTime,
) -> io::Result<Vec<RecordedChange>> {
    let mut after = after;
    let mut found = Vec::new();
    for (path, was) in before {
        let now = after.remove(&path).unwrap_or_default();
        // Time stamps of file systems are coarse, so a file that was changed recently is compared by its content.
        if was.seen == now.seen
            && was.state.hard_link() == now.state.hard_link()
            && (was.seen.is_settled(since) || !was.state.is_file())
        {
            continue;
        }
        let now = now.state.with_digest(&path)?;
        if was.state != now {
            found.push(RecordedChange::new(path, was.state, now));
        }
    }
    for (path, now) in after {
        if now.state != State::Absent {
            let now = now.state.with_digest(&path)?;
            found.push(RecordedChange::new(path, State::Absent, now));
        }
    }
    Ok(found)
}

/// The folders that a program in this sandbox may write to, as real paths.
///
/// # Errors
/// The folders are not limited.
pub(crate) fn writable_folders(filesystem: &Filesystem, workdir: &Path) -> Result<Vec<PathBuf>, String> {
    match filesystem.mode {
        FsMode::Deny | FsMode::ReadOnly => return Ok(Vec::new()),
        FsMode::Full => return Err("its sandbox shows the whole machine writable".to_owned()),
        FsMode::Scoped => {}
    }
    let mut all: Vec<PathBuf> = filesystem
        .mounts
        .iter()
        .filter(|mount| mount.writable)
        // silent-ok: a folder that does not exist is not mounted
        .filter_map(|mount| workdir.join(&mount.path).canonicalize().ok())
        .collect();
    all.sort();
    let mut roots: Vec<PathBuf> = Vec::new();
    for path in all {
        if !roots.iter().any(|root| path.starts_with(root)) {
            roots.push(path);
        }
    }
    Ok(roots)
}

#[cfg(test)]
mod tests;
