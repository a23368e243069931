//! Scans the folders that a call can read or write. Reads metadata only; opens no file.

use std::io;
use std::path::{Path, PathBuf};

use crate::undo::look::FileFingerprint;

/// How many entries are scanned for one call. Above this, every known mark counts.
const MAX_ENTRIES: usize = 50_000;

/// How many files and bytes are read for one call to check contents of a known size.
const MAX_READ_FILES: u32 = 2_000;
const MAX_READ_BYTES: u64 = 64 << 20;

/// One entry of a folder.
#[derive(Debug, Clone)]
pub(super) struct FolderEntry {
    pub(super) path: PathBuf,
    pub(super) seen: FileFingerprint,
    kind: std::fs::FileType,
}

impl FolderEntry {
    /// Reads the metadata of this path; `None`: nothing is there.
    pub(super) fn from_path(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(Self::new(path.to_owned(), &meta))),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn new(path: PathBuf, meta: &std::fs::Metadata) -> Self {
        Self {
            path,
            seen: FileFingerprint::from_metadata(meta),
            kind: meta.file_type(),
        }
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind.is_file()
    }

    pub(super) fn is_link(&self) -> bool {
        self.kind.is_symlink()
    }

    pub(super) fn is_folder(&self) -> bool {
        self.kind.is_dir()
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Whether this user has no permission. Then tools have none either.
fn is_hidden(error: &io::Error) -> bool {
    is_absent(error) || error.kind() == io::ErrorKind::PermissionDenied
}

/// The entries of some folders, including the folders.
#[derive(Debug)]
pub(super) struct FolderWalk {
    /// `None`: there are too many entries, or they can't be read.
    entries: Option<Vec<FolderEntry>>,
}

impl Default for FolderWalk {
    fn default() -> Self {
        Self {
            entries: Some(Vec::new()),
        }
    }
}

impl FolderWalk {
    /// Scans these folders and files, but not the state directory.
    pub(super) fn from_trees(trees: &[PathBuf], state: &Path) -> Self {
        let mut entries = Vec::new();
        let complete = trees
            .iter()
            .all(|tree| walk_tree(tree, state, &mut entries).is_some());
        Self {
            entries: complete.then_some(entries),
        }
    }

    /// The scanned entries at or below these paths.
    pub(super) fn entries_below<'a>(
        &'a self,
        trees: &'a [PathBuf],
    ) -> Option<impl Iterator<Item = &'a FolderEntry>> {
        let entries = self.entries.as_ref()?;
        let is_below = |entry: &&FolderEntry| trees.iter().any(|tree| entry.path.starts_with(tree));
        Some(entries.iter().filter(is_below))
    }
}

fn walk_tree(tree: &Path, state: &Path, found: &mut Vec<FolderEntry>) -> Option<()> {
    let root = match FolderEntry::from_path(tree) {
        Ok(Some(root)) => root,
        Ok(None) => return Some(()),
        Err(error) => return is_hidden(&error).then_some(()),
    };
    let mut todo = Vec::new();
    let mut add = |entry: FolderEntry, todo: &mut Vec<PathBuf>| {
        if entry.path == state {
            return Some(());
        }
        if entry.is_folder() {
            todo.push(entry.path.clone());
        }
        found.push(entry);
        (found.len() <= MAX_ENTRIES).then_some(())
    };
    add(root, &mut todo)?;
    while let Some(folder) = todo.pop() {
        let below = match std::fs::read_dir(&folder) {
            Ok(below) => below,
            Err(error) if is_hidden(&error) => continue,
            Err(_) => return None,
        };
        for entry in below {
            let entry = entry.ok()?; // silent-ok: what can't be looked at counts as the worst
            match entry.metadata() {
                Ok(meta) => add(FolderEntry::new(entry.path(), &meta), &mut todo)?,
                Err(error) if is_hidden(&error) => {}
                Err(_) => return None,
            }
        }
    }
    Some(())
}

/// `place` and its parent folders, as far as they do not exist.
pub(super) fn missing_of(place: &Path) -> Vec<PathBuf> {
    let is_missing = |path: &&Path| std::fs::symlink_metadata(path).is_err();
    place
        .ancestors()
        .take_while(is_missing)
        .map(Path::to_owned)
        .collect()
}

/// How much may still be read for one call.
#[derive(Debug)]
pub(super) struct HashBudget {
    files: u32,
    bytes: u64,
}

impl Default for HashBudget {
    fn default() -> Self {
        Self {
            files: MAX_READ_FILES,
            bytes: MAX_READ_BYTES,
        }
    }
}

impl HashBudget {
    /// Takes `size` from the budget. Returns true if a file of this size may be read.
    pub(super) fn spend(&mut self, size: u64) -> bool {
        match (self.files.checked_sub(1), self.bytes.checked_sub(size)) {
            (Some(files), Some(bytes)) => {
                *self = Self { files, bytes };
                true
            }
            (None, _) | (_, None) => false,
        }
    }
}
