//! Finds what a call wrote: contents, and the names, links and attributes that it created.

use std::io;
use std::path::{Path, PathBuf};

use super::kept::ProvenanceLine;
use super::reach::FileWrites;
use super::walk::{FolderEntry, FolderWalk};
use super::{FileProvenanceStore, TICK_NS, TrackedWrite, prints, text_of};
use crate::undo::RecordedPath;

/// How many changed entries and bytes are checked one by one. Above this, changes are recognized by time.
pub(super) const MAX_CHANGED: usize = 5_000;
const MAX_CHANGED_BYTES: u64 = 256 << 20;

/// The resolution of file system time stamps, in nanoseconds.
const COARSE_NS: i64 = 1_000_000_000;

/// Permission bits that allow writing to users other than the owner.
const WRITABLE_BY_OTHERS: u32 = 0o022;

impl FileProvenanceStore {
    /// The lines to record for what the call wrote. `None`: it can't be determined entry by entry.
    pub(super) fn lines_after_call(
        &self,
        open: &TrackedWrite,
        walk: &FolderWalk,
    ) -> io::Result<Option<Vec<ProvenanceLine>>> {
        match &open.writes {
            FileWrites::File { place, whole } => self.left_in_file(open, place, *whole).map(Some),
            FileWrites::Trees(trees) if !open.blind => match walk.entries_below(trees) {
                Some(entries) => self.left_in_trees(open, entries, trees),
                None => Ok(None),
            },
            FileWrites::Trees(_) | FileWrites::Everything | FileWrites::Nothing => Ok(None),
        }
    }

    fn left_in_file(
        &self,
        open: &TrackedWrite,
        place: &Path,
        whole: bool,
    ) -> io::Result<Vec<ProvenanceLine>> {
        let mut lines = Vec::new();
        if !open.origins.is_empty() {
            let made = open.missing.iter().filter(|path| path.exists());
            lines.extend(made.map(|path| name_line(path, open)));
        }
        let Some(entry) =
            FolderEntry::from_path(place)?.filter(|entry| entry.is_file() && is_changed(entry, open))
        else {
            return Ok(lines);
        };
        if !open.origins.is_empty() {
            if entry.seen.size() > 0 {
                lines.push(self.content_line(&entry, open)?);
            }
        } else if whole {
            let place = RecordedPath::new(place);
            lines.push(ProvenanceLine::Clean { place });
        }
        Ok(lines)
    }

    fn left_in_trees<'a>(
        &self,
        open: &TrackedWrite,
        entries: impl Iterator<Item = &'a FolderEntry>,
        trees: &[PathBuf],
    ) -> io::Result<Option<Vec<ProvenanceLine>>> {
        let entries: Vec<&FolderEntry> = entries.collect();
        // The sandbox shows each folder with its real owner.
        let roots = entries.iter().filter(|entry| trees.contains(&entry.path));
        let owners: Vec<u32> = roots.map(|root| root.seen.owner()).collect();
        let own = rustix::process::geteuid().as_raw();
        let is_owned = |owner: u32| owner == own || owners.contains(&owner);
        let changed = entries.into_iter().filter(|entry| is_changed(entry, open));
        let changed: Vec<&FolderEntry> = changed
            .filter(|entry| is_owned(entry.seen.owner()) || may_be_the_boxs(entry, open))
            .collect();
        let files = changed.iter().filter(|entry| entry.is_file());
        let bytes = files.map(|entry| entry.seen.size()).sum::<u64>();
        if changed.len() > MAX_CHANGED || bytes > MAX_CHANGED_BYTES {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for entry in changed {
            if is_named(entry, open) {
                lines.push(name_line(&entry.path, open));
            }
            if entry.is_file() && entry.seen.size() > 0 {
                lines.push(self.content_line(entry, open)?);
            }
        }
        Ok(Some(lines))
    }

    fn content_line(&self, entry: &FolderEntry, open: &TrackedWrite) -> io::Result<ProvenanceLine> {
        let mut origins = open.origins.clone();
        let mut new = text_of(entry).and_then(|bytes| prints::text_fingerprints(&bytes));
        if let Some(new) = &mut new {
            new.retain(|print| !open.wording.contains(print));
        }
        // Content that the marked file had before and still has stays marked.
        if let Some(held) = self.lock_log().known.file_at(&entry.path) {
            origins.extend(held.origins.iter().cloned());
            if let (Some(new), Some(old)) = (&mut new, &held.prints) {
                new.extend(old);
            }
        }
        Ok(ProvenanceLine::Holds {
            place: Some(RecordedPath::new(&entry.path)),
            digest: self.file_digest(&entry.path, &entry.seen)?,
            size: entry.seen.size(),
            origins,
            prints: new,
        })
    }
}

fn name_line(path: &Path, open: &TrackedWrite) -> ProvenanceLine {
    ProvenanceLine::Named {
        place: RecordedPath::new(path),
        origins: open.origins.clone(),
    }
}

fn is_changed(entry: &FolderEntry, open: &TrackedWrite) -> bool {
    let same = open.before.get(&entry.path) == Some(&entry.seen);
    !(same && entry.seen.changed_ns() < open.since_ns.saturating_sub(TICK_NS))
}

/// Whether the sandbox could have changed an entry that another user owns. It could not if the entry existed before and only its
/// owner could write it, then and now: only the owner can change the permissions.
fn may_be_the_boxs(entry: &FolderEntry, open: &TrackedWrite) -> bool {
    let Some(before) = open.before.get(&entry.path) else {
        return true;
    };
    let is_same = before.file_id() == entry.seen.file_id() && before.owner() == entry.seen.owner();
    let is_closed = (before.mode() | entry.seen.mode()) & WRITABLE_BY_OTHERS == 0;
    !(is_same && is_closed)
}

/// Whether the call chose this entry's name, link target or attributes. Writing a file's content changes its times and size; these
/// alone are not marked.
fn is_named(entry: &FolderEntry, open: &TrackedWrite) -> bool {
    let Some(before) = open.before.get(&entry.path) else {
        return true;
    };
    if before == &entry.seen {
        return false;
    }
    let modified = entry.seen.modified_ns();
    let was_written = before.modified_ns() != modified
        && modified >= open.since_ns.saturating_sub(COARSE_NS)
        && modified <= super::now_ns().saturating_add(COARSE_NS);
    before.mode() != entry.seen.mode()
        || entry.is_link()
        // The last change was not to its content: attributes were changed, or a time was set.
        || !was_written
}
