//! Provenance of text in files (R46). If the context of a call held text from the web, another agent or an untrusted memory entry,
//! the files that the call writes are marked as untrusted. So a file can't make untrusted text trusted.
//!
//! Names, link targets and attributes that such a call chose are marked by path. Contents are marked by digest, under any file
//! name. If somebody edits a file outside the agent, the part of the call's wording that is left is recognized. The record is in
//! the state directory, where no tool can change it.

mod around;
mod kept;
mod left;
mod prints;
mod reach;
mod walk;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use clawk_kernel::call::Permit;
use clawk_kernel::ports::{MarkedContent, ProvenanceCollector, TaintedFiles};
use clawk_kernel::taint::{bare, lasts};
use clawk_plan::Plan;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::runner::ExecutorBinding;
use crate::undo::RecordedPath;
use crate::undo::look::{self, FileFingerprint};
pub(crate) use around::{after_call, before_call, content_origins, mark_content};
use kept::{ProvenanceLine, ProvenanceLog, WriteScope};
use reach::{FileReach, FileReads, FileWrites, outermost_paths};
use walk::{FolderEntry, FolderWalk, HashBudget, missing_of};

/// The maximum size of a file whose wording is recognized, in bytes.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// How many digests are cached between calls.
const MAX_HASHED: usize = 50_000;
/// A change within this time before a scan may leave the same time stamp, in nanoseconds.
const TICK_NS: i64 = 50_000_000;
/// Stands for a file whose name is unknown.
const SOMEWHERE: &str = "a file";

/// Records which files contain untrusted text, and its origins. Stored in a folder of the state.
#[derive(Debug)]
pub struct FileProvenanceStore {
    /// The state directory. Tools can't change anything below it.
    state: PathBuf,
    record: Mutex<ProvenanceLog>,
    hashed: Mutex<HashMap<FileFingerprint, String>>,
}

/// A running call that may write files.
#[derive(Debug)]
pub(crate) struct TrackedWrite {
    call: String,
    origins: BTreeSet<String>,
    writes: FileWrites,
    since_ns: i64,
    before: BTreeMap<PathBuf, FileFingerprint>,
    /// The one file that the call writes and its parent folders, as far as they did not exist before.
    missing: Vec<PathBuf>,
    /// The fingerprints of the wording that was there before the call.
    wording: BTreeSet<u32>,
    /// Whether the scan before the call failed. Changes are then recognized by time.
    blind: bool,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time is compared with the file system's own stamps, which no port gives"
)]
fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default(); // silent-ok: a clock before 1970 orders nothing
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

impl FileProvenanceStore {
    /// Reads the record in `folder` of the state. The folder is created at the first write.
    ///
    /// # Errors
    /// The record can't be read or rewritten.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        let state = folder.parent().unwrap_or(&folder).to_owned();
        Ok(Self {
            state,
            record: Mutex::new(ProvenanceLog::open(folder, now_ns())?),
            hashed: Mutex::default(),
        })
    }

    fn lock_log(&self) -> MutexGuard<'_, ProvenanceLog> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.lock_log().known.is_empty()
    }

    /// Before a call: finds the untrusted text that it could read, and scans what it could write. Blocking.
    ///
    /// # Errors
    /// The start of the call can't be recorded, so the call must not run.
    fn before_call(
        &self,
        binding: &ExecutorBinding,
        asked: &TrackedCall,
    ) -> io::Result<Option<TrackedWrite>> {
        let reach = FileReach::for_call(binding, asked);
        let mut origins = asked.origins.clone();
        let walk = FolderWalk::from_trees(&self.walked_folders(&reach, !origins.is_empty()), &self.state);
        let read = self.readable_of(&reach.reads, &walk, &asked.workdir);
        origins.extend(read.values().flatten().cloned());
        asked.sources.add_files(read);
        self.begin_write(&asked.call, reach.writes, origins, &walk)
    }

    /// The folders to scan, once for both reading and writing.
    fn walked_folders(&self, reach: &FileReach, writes: bool) -> Vec<PathBuf> {
        let mut trees = Vec::new();
        if let (FileReads::Trees(reads), false) = (&reach.reads, self.is_empty()) {
            trees.extend(reads.iter().cloned());
        }
        // If any mark exists, marked text may be read and written again.
        if let (FileWrites::Trees(written), true) = (&reach.writes, writes || !self.is_empty()) {
            trees.extend(written.iter().cloned());
        }
        outermost_paths(trees)
    }

    fn begin_write(
        &self,
        call: &str,
        writes: FileWrites,
        origins: BTreeSet<String>,
        walk: &FolderWalk,
    ) -> io::Result<Option<TrackedWrite>> {
        let clean = origins.is_empty();
        match &writes {
            FileWrites::Nothing => return Ok(None),
            // Only a marked file can become clean.
            FileWrites::File { place, .. } if clean && self.lock_log().known.file_at(place).is_none() => {
                return Ok(None);
            }
            FileWrites::Trees(_) | FileWrites::Everything if clean => return Ok(None),
            FileWrites::File { .. } | FileWrites::Trees(_) | FileWrites::Everything => {}
        }
        let mut open = TrackedWrite {
            call: call.to_owned(),
            origins,
            since_ns: now_ns(),
            before: BTreeMap::new(),
            missing: Vec::new(),
            wording: BTreeSet::new(),
            blind: false,
            writes,
        };
        match &open.writes {
            FileWrites::File { place, .. } => {
                open.missing = missing_of(place);
                if let Some(entry) = FolderEntry::from_path(place)? {
                    // Content that the marked file had already stays marked.
                    let fresh = self.of_entry(&entry, &mut HashBudget::default())?.is_empty();
                    if let Some(bytes) = fresh.then(|| text_of(&entry)).flatten() {
                        open.wording = prints::text_fingerprints(&bytes).unwrap_or_default();
                    }
                    open.before.insert(place.clone(), entry.seen);
                }
            }
            FileWrites::Trees(trees) => match walk.entries_below(trees) {
                Some(entries) => {
                    open.before = entries.map(|entry| (entry.path.clone(), entry.seen)).collect();
                }
                None => open.blind = true,
            },
            FileWrites::Nothing | FileWrites::Everything => open.blind = true,
        }
        if !clean {
            let begun = ProvenanceLine::Begun {
                call: open.call.clone(),
                at: place_of(&open.writes),
                origins: open.origins.clone(),
                since_ns: open.since_ns,
            };
            self.lock_log().add_lines(vec![begun])?;
        }
        Ok(Some(open))
    }

    /// After a call: finds what it could have read by now, and what it wrote. Blocking.
    ///
    /// # Errors
    /// The marks can't be recorded. Until the next start, all changes there count as the call's.
    fn after_call(
        &self,
        binding: &ExecutorBinding,
        asked: &TrackedCall,
        open: Option<TrackedWrite>,
    ) -> io::Result<()> {
        let reach = FileReach::for_call(binding, asked);
        let walk = FolderWalk::from_trees(&self.walked_folders(&reach, open.is_some()), &self.state);
        // First record what the call wrote: while it is running, all changes in its time count as its work.
        let ended = open.map_or(Ok(()), |open| self.end_write(open, &walk));
        asked
            .sources
            .add_files(self.readable_of(&reach.reads, &walk, &asked.workdir));
        ended
    }

    fn end_write(&self, open: TrackedWrite, walk: &FolderWalk) -> io::Result<()> {
        let until_ns = now_ns();
        let mut lines = match self.lines_after_call(&open, walk)? {
            Some(lines) => lines,
            None => vec![ProvenanceLine::Within {
                at: place_of(&open.writes),
                origins: open.origins.clone(),
                since_ns: open.since_ns,
                until_ns,
            }],
        };
        if !open.origins.is_empty() {
            lines.push(ProvenanceLine::Ended { call: open.call });
        }
        self.lock_log().add_lines(lines)
    }

    /// The untrusted files and names among what may be read, by the paths that people use.
    fn readable_tainted_files(&self, reads: &FileReads, workdir: &Path) -> TaintedFiles {
        let walk = match reads {
            FileReads::Trees(trees) if !self.is_empty() => FolderWalk::from_trees(trees, &self.state),
            FileReads::Trees(_) | FileReads::Nothing | FileReads::Everything => FolderWalk::default(),
        };
        self.readable_of(reads, &walk, workdir)
    }

    /// As `readable`, for folders that were scanned already.
    fn readable_of(&self, reads: &FileReads, walk: &FolderWalk, workdir: &Path) -> TaintedFiles {
        let mut found = TaintedFiles::new();
        if self.is_empty() {
            return found;
        }
        let mut tell = |path: &Path, origins: BTreeSet<String>| {
            if !origins.is_empty() {
                found
                    .entry(display_path(path, workdir))
                    .or_default()
                    .extend(origins);
            }
        };
        match reads {
            FileReads::Nothing => {}
            FileReads::Everything => tell(Path::new(SOMEWHERE), self.lock_log().known.all_origins()),
            FileReads::Trees(trees) => match walk.entries_below(trees) {
                Some(entries) => {
                    let mut budget = HashBudget::default();
                    for entry in entries {
                        // If a file can't be checked, it counts as having the worst origins.
                        let mut origins = self
                            .of_entry(entry, &mut budget)
                            .unwrap_or_else(|_| self.lock_log().known.all_origins());
                        // A reader who gave this path learns nothing from its name.
                        if !trees.contains(&entry.path) {
                            origins.extend(self.of_name(entry));
                        }
                        tell(&entry.path, origins);
                    }
                }
                None => tell(Path::new(SOMEWHERE), self.lock_log().known.all_origins()),
            },
        }
        found
    }

    /// The origins of an entry's name, link target and attributes.
    fn of_name(&self, entry: &FolderEntry) -> BTreeSet<String> {
        let record = self.lock_log();
        let mut origins = record.known.by_time(&entry.path, entry.seen.changed_ns());
        origins.extend(record.known.of_name(&entry.path).into_iter().flatten().cloned());
        origins
    }

    /// The origins of the untrusted text in a file.
    fn of_entry(&self, entry: &FolderEntry, budget: &mut HashBudget) -> io::Result<BTreeSet<String>> {
        let (path, size) = (&*entry.path, entry.seen.size());
        if !entry.is_file() || size == 0 {
            return Ok(BTreeSet::new());
        }
        let (mut origins, held, has_size) = {
            let record = self.lock_log();
            let known = &record.known;
            let by_time = known.by_time(path, entry.seen.changed_ns());
            (by_time, known.file_at(path).cloned(), known.has_size(size))
        };
        if held.is_none() && !has_size {
            return Ok(origins);
        }
        if held.is_none() && !self.is_hashed(&entry.seen) && !budget.spend(size) {
            // Too many files have the size of a known content, so each of them may be that content.
            origins.extend(self.lock_log().known.of_size(size));
            return Ok(origins);
        }
        let digest = self.file_digest(path, &entry.seen)?;
        let by_content = self.lock_log().known.of_content(&digest).cloned();
        match (by_content, held) {
            (Some(known), None) => {
                // Found under another name: mark that name, too, so that later edits are recognized there.
                let line = ProvenanceLine::Holds {
                    place: Some(RecordedPath::new(path)),
                    digest,
                    size,
                    origins: known.clone(),
                    prints: text_of(entry).and_then(|bytes| prints::text_fingerprints(&bytes)),
                };
                self.lock_log().add_lines(vec![line])?;
                origins.extend(known);
            }
            (Some(known), Some(_)) => origins.extend(known),
            // Changed outside the agent: check how much of the wording is left.
            (None, Some(held)) => {
                let left = match (
                    &held.prints,
                    text_of(entry).as_deref().map(prints::text_fingerprints),
                ) {
                    (Some(old), Some(Some(now))) => !old.is_disjoint(&now),
                    // The file was not text before or is not text now, so its wording can't be compared.
                    (None, _) | (_, None | Some(None)) => true,
                };
                if left {
                    origins.extend(held.origins);
                }
            }
            (None, None) => {}
        }
        Ok(origins)
    }

    /// Whether its digest is cached.
    fn is_hashed(&self, seen: &FileFingerprint) -> bool {
        let hashed = self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        hashed.contains_key(seen)
    }

    fn file_digest(&self, path: &Path, seen: &FileFingerprint) -> io::Result<String> {
        let lock = || self.hashed.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = seen.changed_ns() < now_ns().saturating_sub(TICK_NS);
        if settled && let Some(known) = lock().get(seen) {
            return Ok(known.clone());
        }
        let digest = look::digest_of(look::open_regular(path)?)?;
        if settled {
            let mut hashed = lock();
            if hashed.len() >= MAX_HASHED {
                hashed.clear();
            }
            hashed.insert(*seen, digest.clone());
        }
        Ok(digest)
    }

    /// The origins of untrusted text in these contents. Blocking.
    fn content_origins(&self, contents: Vec<MarkedContent>, workdir: &Path) -> TaintedFiles {
        let mut found = TaintedFiles::new();
        for content in contents {
            match content {
                MarkedContent::File(path) => {
                    // silent-ok: a file that does not exist contains nothing
                    if let Ok(path) = workdir.join(path).canonicalize() {
                        found.extend(self.readable_tainted_files(&FileReads::Trees(vec![path]), workdir));
                    }
                }
                MarkedContent::Text { name, text } => {
                    let origins = self.of_text(&name, text.as_bytes());
                    if !origins.is_empty() {
                        found.insert(
                            if name.is_empty() {
                                SOMEWHERE.to_owned()
                            } else {
                                name
                            },
                            origins,
                        );
                    }
                }
            }
        }
        found
    }

    fn of_text(&self, name: &str, text: &[u8]) -> BTreeSet<String> {
        let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
        let record = self.lock_log();
        let known = &record.known;
        if size == 0 || known.is_empty() {
            return BTreeSet::new();
        }
        let content = known.has_size(size).then(|| known.of_content(&encode_hex(text)));
        if let Some(origins) = content.flatten() {
            return origins.clone();
        }
        let mut now = None;
        let mut origins = BTreeSet::new();
        for held in known.files_ending_with(name) {
            let now = now.get_or_insert_with(|| prints::text_fingerprints(text));
            let left = match (&held.prints, now) {
                (Some(old), Some(now)) => !old.is_disjoint(now),
                (None, _) | (_, None) => true,
            };
            if left {
                origins.extend(held.origins.iter().cloned());
            }
        }
        origins
    }

    /// Marks these bytes as made from these origins. Blocking.
    fn mark_content(&self, content: &[u8], origins: BTreeSet<String>) -> io::Result<()> {
        let origins: BTreeSet<String> = origins
            .iter()
            .filter(|origin| lasts(origin))
            .map(|origin| bare(origin).to_owned())
            .collect();
        if origins.is_empty() || content.is_empty() {
            return Ok(());
        }
        self.lock_log().add_lines(vec![ProvenanceLine::Holds {
            place: None,
            digest: encode_hex(content),
            size: u64::try_from(content.len()).unwrap_or(u64::MAX),
            origins,
            prints: None,
        }])
    }
}

/// The data of a call that is needed before and after it.
#[derive(Debug, Clone)]
pub(crate) struct TrackedCall {
    call: String,
    arguments: Map<String, Value>,
    plan: Arc<Plan>,
    workdir: PathBuf,
    origins: BTreeSet<String>,
    sources: ProvenanceCollector,
}

impl TrackedCall {
    pub(crate) fn from_permit(permit: &Permit) -> Self {
        let lasting = permit.made_from().iter().filter(|origin| lasts(origin));
        Self {
            call: permit.request_id().as_str().to_owned(),
            arguments: permit.arguments().clone(),
            plan: Arc::clone(permit.sandbox_plan()),
            workdir: permit.workdir().to_owned(),
            origins: lasting.map(|origin| bare(origin).to_owned()).collect(),
            sources: permit.sources().clone(),
        }
    }
}

/// A path as people write it, relative to the agent's folder.
fn display_path(path: &Path, workdir: &Path) -> String {
    let real = workdir.canonicalize();
    let below = path
        .strip_prefix(workdir)
        .ok()
        .or_else(|| path.strip_prefix(real.as_deref().ok()?).ok());
    below.unwrap_or(path).display().to_string()
}

fn place_of(writes: &FileWrites) -> WriteScope {
    let trees = |all: &[PathBuf]| all.iter().map(|path| RecordedPath::new(path)).collect();
    match writes {
        FileWrites::Nothing => WriteScope::default(),
        FileWrites::File { place, .. } => WriteScope {
            places: trees(std::slice::from_ref(place)),
            trees: Vec::new(),
        },
        FileWrites::Trees(all) => WriteScope {
            places: Vec::new(),
            trees: trees(all),
        },
        FileWrites::Everything => WriteScope {
            places: Vec::new(),
            trees: vec![RecordedPath::new(Path::new("/"))],
        },
    }
}

/// The content of a file that is small enough to be compared by words.
fn text_of(entry: &FolderEntry) -> Option<Vec<u8>> {
    if !entry.is_file() || entry.seen.size() > MAX_TEXT_BYTES {
        return None;
    }
    let mut bytes = Vec::new();
    let file = look::open_regular(&entry.path).ok()?; // silent-ok: what can't be read has no wording, which counts as the worst
    file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes).ok()?; // silent-ok: as above
    Some(bytes)
}

fn encode_hex(bytes: &[u8]) -> String {
    clawk_proto::Digest(Sha256::digest(bytes).into()).to_hex()
}

#[cfg(test)]
mod tests;
