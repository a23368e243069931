//! What a call left: the contents that it wrote, and the names, links and attributes that it made.

use std::io;
use std::path::{Path, PathBuf};

use super::kept::ProvenanceLine;
use super::reach::FileWrites;
use super::walk::{FolderEntry, FolderWalk};
use super::{FileProvenanceStore, TICK_NS, TrackedWrite, prints, text_of};
use crate::undo::RecordedPath;

/// Entries and bytes that a call changed and that are looked at one by one; more of them are known by the time of their change.
pub(super) const MAX_CHANGED: usize = 5_000;
const MAX_CHANGED_BYTES: u64 = 256 << 20;

/// Times of file systems are coarse, nanoseconds.
const COARSE_NS: i64 = 1_000_000_000;

/// Permission bits by which others than the owner may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

impl FileProvenanceStore {
    /// What the call left; none: that can't be told entry by entry.
    pub(super) fn left(
        &self,
        open: &TrackedWrite,
        walk: &FolderWalk,
    ) -> io::Result<Option<Vec<ProvenanceLine>>> {
        match &open.writes {
            FileWrites::File { place, whole } => self.left_in_file(open, place, *whole).map(Some),
            FileWrites::Trees(trees) if !open.blind => match walk.below(trees) {
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
            lines.extend(made.map(|path| named(path, open)));
        }
        let Some(entry) = FolderEntry::at(place)?.filter(|entry| entry.is_file() && is_changed(entry, open))
        else {
            return Ok(lines);
        };
        if !open.origins.is_empty() {
            if entry.seen.size() > 0 {
                lines.push(self.holds(&entry, open)?);
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
        // The box shows each folder as its owner's.
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
                lines.push(named(&entry.path, open));
            }
            if entry.is_file() && entry.seen.size() > 0 {
                lines.push(self.holds(entry, open)?);
            }
        }
        Ok(Some(lines))
    }

    fn holds(&self, entry: &FolderEntry, open: &TrackedWrite) -> io::Result<ProvenanceLine> {
        let mut origins = open.origins.clone();
        let mut new = text_of(entry).and_then(|bytes| prints::of(&bytes));
        if let Some(new) = &mut new {
            new.retain(|print| !open.wording.contains(print));
        }
        // What a marked file held before, and still holds, stays marked.
        if let Some(held) = self.record().known.at(&entry.path) {
            origins.extend(held.origins.iter().cloned());
            if let (Some(new), Some(old)) = (&mut new, &held.prints) {
                new.extend(old);
            }
        }
        Ok(ProvenanceLine::Holds {
            place: Some(RecordedPath::new(&entry.path)),
            digest: self.digest(&entry.path, &entry.seen)?,
            size: entry.seen.size(),
            origins,
            prints: new,
        })
    }
}

fn named(path: &Path, open: &TrackedWrite) -> ProvenanceLine {
    ProvenanceLine::Named {
        place: RecordedPath::new(path),
        origins: open.origins.clone(),
    }
}

fn is_changed(entry: &FolderEntry, open: &TrackedWrite) -> bool {
    let same = open.before.get(&entry.path) == Some(&entry.seen);
    !(same && entry.seen.changed_ns() < open.since_ns.saturating_sub(TICK_NS))
}

/// Whether the box could have changed an entry of another owner than it has. Not if it was there before, is nobody's to write but
/// its owner's, and was so before: only that owner can change the permissions.
fn may_be_the_boxs(entry: &FolderEntry, open: &TrackedWrite) -> bool {
    let Some(before) = open.before.get(&entry.path) else {
        return true;
    };
    let is_same = before.file() == entry.seen.file() && before.owner() == entry.seen.owner();
    let is_closed = (before.mode() | entry.seen.mode()) & WRITABLE_BY_OTHERS == 0;
    !(is_same && is_closed)
}

/// Whether the call chose this entry's name, its link's target or its attributes. A file whose content was written has new times
/// and another size as well; these alone are not marked.
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
        // Its last change was none of its content: attributes, or a time that was set.
        || !was_written
}
