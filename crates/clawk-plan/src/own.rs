//! The agent's own files: every file that decides at start what the agent may do. A tool may read such a file through a mount, but
//! never create, change, move or replace one. Otherwise the tool could give itself other rights at the next start (ADR 0025). This
//! module computes the protected paths of a plan once, by name. Each level then checks the files that a path really reaches.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::level::SandboxRefusal;
use crate::place::trace_path;
use crate::plan::{Filesystem, FsMode};
use crate::preflight::path::lexical_path;

/// How many entries of own folders are checked for files with more than one hard link.
const MAX_ENTRIES: usize = 50_000;

/// Files of this machine that belong to the runtime. Tools must not change them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFiles {
    /// The state directory. No tool can see it, whatever the mounts are.
    pub state: Option<PathBuf>,
    /// Absolute paths of files and folders that the agent reads at start. Paths that do not exist yet are included. A folder
    /// includes everything below it.
    pub files: Vec<PathBuf>,
}

impl RuntimeFiles {
    /// No files.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }
}

impl Filesystem {
    /// Protects those of `files` that a writable mount shows, under every name that they have in the mount. If a path goes through
    /// a link, the link is protected, but not the other files behind it. A mount inside one of the agent's own folders, and a mount
    /// that is one of the agent's own files, become read-only.
    pub(crate) fn protect_files(&mut self, files: &[PathBuf], base: &Path) {
        let all = files.iter().map(|file| {
            let given = base.join(file);
            let way = trace_path(&given);
            // Keep the path as given: it names the folders that it passes through.
            let given = if way.left.is_empty() {
                lexical_path(base, file)
            } else {
                given
            };
            let names = [way.names, vec![lexical_path(base, file), given, way.place]].concat();
            (names, [way.links, way.left].concat())
        });
        let all: Vec<(Vec<PathBuf>, Vec<PathBuf>)> = all.collect();
        let mut own: BTreeSet<PathBuf> = BTreeSet::new();
        match self.mode {
            FsMode::Deny | FsMode::ReadOnly => {}
            FsMode::Full => own.extend(all.into_iter().flat_map(|(names, _)| names)),
            FsMode::Scoped => {
                for mount in self.mounts.iter_mut().filter(|mount| mount.writable) {
                    let root = lexical_path(base, &mount.path);
                    let real = root.canonicalize().unwrap_or_else(|_| root.clone()); // silent-ok: refused when it is mounted
                    let within = |name: &PathBuf| real.starts_with(name) || root.starts_with(name);
                    if all.iter().any(|(names, _)| names.iter().any(within)) {
                        mount.writable = false;
                        continue;
                    }
                    let shows = |name: &PathBuf| name.starts_with(&real) || name.starts_with(&root);
                    for (names, way) in &all {
                        if !names.iter().chain(way).any(shows) {
                            continue;
                        }
                        let moved = names.iter().filter_map(|name| name.strip_prefix(&real).ok());
                        own.extend(moved.map(|below| root.join(below)));
                        own.extend(names.iter().cloned());
                    }
                }
            }
        }
        self.own = own.into_iter().collect();
    }

    /// Whether this path is one of the agent's own files or is inside one of the agent's own folders. Compares names only.
    #[must_use]
    pub fn is_protected(&self, absolute: &Path) -> bool {
        self.own.iter().any(|own| absolute.starts_with(own))
    }

    /// Finds a writable mount that is inside one of the agent's own folders. Nothing in such a mount can be written, so the
    /// manifest should not say `rw`. Returns the mount and the own folder.
    #[must_use]
    pub fn find_contradiction(&self, own: &RuntimeFiles, base: &Path) -> Option<(PathBuf, PathBuf)> {
        let mounts = self.shown_mounts().into_iter();
        let mut writable = mounts.filter(|(_, writable)| *writable);
        writable.find_map(|(path, _)| {
            let root = lexical_path(base, &path);
            let real = root.canonicalize().unwrap_or(root); // silent-ok: refused when it is mounted
            let holds = |own: &&PathBuf| {
                trace_path(&base.join(own))
                    .into_paths()
                    .any(|name| real.starts_with(name))
            };
            own.files.iter().find(holds).map(|own| (path, own.clone()))
        })
    }

    /// Builds the refusal of a change to the agent's own file at `path`.
    pub(crate) fn kept_refusal(&self, subject: String, absolute: &Path, base: &Path) -> SandboxRefusal {
        let roots = self.shown_mounts().into_iter();
        let holder = roots
            .filter(|(root, writable)| *writable && absolute.starts_with(lexical_path(base, root)))
            .max_by_key(|(root, _)| root.components().count());
        let shows = match holder {
            Some((root, _)) => format!("the mount `{}` (rw) shows it", root.display()),
            None => "the mode `full` shows it".to_owned(),
        };
        SandboxRefusal::Blocked {
            rule: "own files".to_owned(),
            subject,
            allowed: format!(
                "reading it. It is one of the agent's own files: what a start reads decides what tools may do, so that no tool \
                 changes it, though {shows}. Whoever runs the agent can change it by hand"
            ),
        }
    }
}

/// Checks changes of files against the agent's own files, by real name and by identity (device and inode).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RuntimeFileGuard {
    /// Names of the agent's own files, sorted: parents before children.
    names: Vec<PathBuf>,
    /// Folders on the path to one of the agent's own files.
    above: HashSet<PathBuf>,
    /// Device and inode of the agent's own files, and of files in the agent's own folders that have more than one hard link.
    files: HashSet<(u64, u64)>,
    /// Device and inode of the folder of each of these files, and the file's name in it. A folder may be mounted at two paths.
    entries: HashSet<(u64, u64, OsString)>,
    above_files: HashSet<(u64, u64)>,
}

impl RuntimeFileGuard {
    /// Reads the current state of these paths.
    pub fn from_paths(own: &[PathBuf]) -> Self {
        let mut kept = Self::default();
        for mut way in own.iter().map(|path| trace_path(path)) {
            for folder in std::mem::take(&mut way.left) {
                kept.add_leading_folder(&folder);
            }
            way.into_paths().for_each(|name| kept.name(name));
        }
        kept.names
            .sort_by_key(|name| (name.components().count(), name.clone()));
        kept.names.dedup();
        kept
    }

    /// Adds a folder on the path to one of the agent's own files, and all its parents.
    fn add_leading_folder(&mut self, folder: &Path) {
        for folder in folder.ancestors() {
            if !self.above.insert(folder.to_path_buf()) {
                continue;
            }
            if let Ok(about) = folder.symlink_metadata() {
                self.above_files.insert((about.dev(), about.ino()));
            }
        }
    }

    fn name(&mut self, name: PathBuf) {
        if let Some(folder) = name.parent() {
            self.add_leading_folder(folder);
        }
        if let (Some(Ok(folder)), Some(last)) = (name.parent().map(Path::metadata), name.file_name()) {
            self.entries.insert((folder.dev(), folder.ino(), last.to_owned()));
        }
        self.remember_file_ids(&name);
        self.names.push(name);
    }

    fn remember_file_ids(&mut self, name: &Path) {
        let mut open = vec![(name.to_path_buf(), true)];
        let mut left = MAX_ENTRIES;
        while let (Some((path, itself)), Some(rest)) = (open.pop(), left.checked_sub(1)) {
            left = rest;
            let Ok(about) = path.symlink_metadata() else {
                continue; // not there yet, or gone: its name is kept
            };
            if about.is_dir() {
                let listing = std::fs::read_dir(&path).into_iter().flatten().flatten();
                open.extend(listing.map(|entry| (entry.path(), false)));
            } else if about.is_file() && (itself || about.nlink() > 1) {
                self.files.insert((about.dev(), about.ino()));
            }
        }
    }

    /// Adds the names that these files have where `source` is mounted at `target`.
    pub fn also_at(&mut self, source: &Path, target: &Path) {
        let moved = |path: &Path| match path.strip_prefix(source) {
            Ok(below) if below.as_os_str().is_empty() => Some(target.to_owned()),
            Ok(below) => Some(target.join(below)),
            Err(_) => None, // silent-ok: it lies elsewhere
        };
        let names: Vec<PathBuf> = self.names.iter().filter_map(|name| moved(name)).collect();
        let above: Vec<PathBuf> = self.above.iter().filter_map(|folder| moved(folder)).collect();
        self.above.extend(
            names
                .iter()
                .flat_map(|name| name.ancestors().skip(1))
                .map(Path::to_path_buf),
        );
        self.above.extend(above);
        self.names.extend(names);
        self.names
            .sort_by_key(|name| (name.components().count(), name.clone()));
        self.names.dedup();
    }

    /// The real names of the agent's own files, parents before children.
    pub fn names(&self) -> impl Iterator<Item = &Path> {
        self.names.iter().map(PathBuf::as_path)
    }

    /// Device and inode of the known files.
    pub fn file_ids(&self) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().copied()
    }

    /// Whether there are no files to protect.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether this name is one of the agent's own files or is inside one of the agent's own folders.
    pub fn contains_path(&self, real: &Path) -> bool {
        self.names.iter().any(|name| lies_in(real, name))
    }

    /// Whether this name is a folder above one of the agent's own files.
    pub fn leads_to_own(&self, real: &Path) -> bool {
        self.above.contains(real)
    }

    /// Whether this device and inode belong to one of the agent's own files, perhaps under another name.
    pub fn is_same_file(&self, dev: u64, ino: u64) -> bool {
        self.files.contains(&(dev, ino))
    }

    /// Whether this device and inode belong to a folder above one of the agent's own files, perhaps under another name.
    pub fn is_above(&self, dev: u64, ino: u64) -> bool {
        self.above_files.contains(&(dev, ino))
    }

    /// Whether the entry `last` of this folder is one of the agent's own files. The folder is identified by device and inode.
    pub fn is_entry(&self, dev: u64, ino: u64, last: &OsStr) -> bool {
        self.entries.contains(&(dev, ino, last.to_owned()))
    }
}

/// Whether `real` is `name` or is below it. Both must be without `.` and `..`. Compares bytes, because every file change calls it.
fn lies_in(real: &Path, name: &Path) -> bool {
    let rest = real
        .as_os_str()
        .as_bytes()
        .strip_prefix(name.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || name == Path::new("/"))
}

#[cfg(test)]
mod tests;
