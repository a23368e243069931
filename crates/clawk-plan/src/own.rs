//! The agent's own files: all that a start reads to know what the agent may do. Tools may read them where a mount shows them,
//! and never change, replace, move or make one: they would give themselves other rights at the next start (ADR 0025).
//! What a plan keeps is decided here, once, by names; each level judges by what it really reaches.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::level::SandboxRefusal;
use crate::place::trail;
use crate::plan::{Filesystem, FsMode};
use crate::preflight::path::lexical;

/// Entries of own folders that are looked through for files of further names.
const MAX_ENTRIES: usize = 50_000;

/// Files of this machine that belong to the runtime and not to the tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeFiles {
    /// The state directory: no tool sees it, whatever is mounted.
    pub state: Option<PathBuf>,
    /// Files and folders that a start reads, absolute, also those that it would read if they were there. A folder stands for
    /// all that is in it.
    pub files: Vec<PathBuf>,
}

impl RuntimeFiles {
    /// Nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self::default()
    }
}

impl Filesystem {
    /// Takes over what of `files` a writable mount shows, under every name that it has there; of links on the way to one, the
    /// links, and not what else lies behind them. A mount that lies in an own folder, or is an own file, is read-only from now on.
    pub(crate) fn keep(&mut self, files: &[PathBuf], base: &Path) {
        let all = files.iter().map(|file| {
            let given = base.join(file);
            let way = trail(&given);
            // As it is given, it says what it passes.
            let given = if way.left.is_empty() {
                lexical(base, file)
            } else {
                given
            };
            let names = [way.names, vec![lexical(base, file), given, way.place]].concat();
            (names, [way.links, way.left].concat())
        });
        let all: Vec<(Vec<PathBuf>, Vec<PathBuf>)> = all.collect();
        let mut own: BTreeSet<PathBuf> = BTreeSet::new();
        match self.mode {
            FsMode::Deny | FsMode::ReadOnly => {}
            FsMode::Full => own.extend(all.into_iter().flat_map(|(names, _)| names)),
            FsMode::Scoped => {
                for mount in self.mounts.iter_mut().filter(|mount| mount.writable) {
                    let root = lexical(base, &mount.path);
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

    /// Tells whether this path is one of the agent's own files or lies in an own folder. Compares names only.
    #[must_use]
    pub fn keeps(&self, absolute: &Path) -> bool {
        self.own.iter().any(|own| absolute.starts_with(own))
    }

    /// The own folder that a writable mount lies in: nothing of such a mount can be written, so that it should not say `rw`.
    #[must_use]
    pub fn contradicts(&self, own: &RuntimeFiles, base: &Path) -> Option<(PathBuf, PathBuf)> {
        let mounts = self.shown_mounts().into_iter();
        let mut writable = mounts.filter(|(_, writable)| *writable);
        writable.find_map(|(path, _)| {
            let root = lexical(base, &path);
            let real = root.canonicalize().unwrap_or(root); // silent-ok: refused when it is mounted
            let holds = |own: &&PathBuf| trail(&base.join(own)).all().any(|name| real.starts_with(name));
            own.files.iter().find(holds).map(|own| (path, own.clone()))
        })
    }

    /// Why the file at `path` is not changed.
    pub(crate) fn kept_refusal(&self, subject: String, absolute: &Path, base: &Path) -> SandboxRefusal {
        let roots = self.shown_mounts().into_iter();
        let holder = roots
            .filter(|(root, writable)| *writable && absolute.starts_with(lexical(base, root)))
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

/// Judges changes of files by their real names and by their identity.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RuntimeFileGuard {
    /// Sorted, those above before those below.
    names: Vec<PathBuf>,
    /// Folders that lead to one.
    above: HashSet<PathBuf>,
    /// Own files, and files in own folders that have further names: device and inode.
    files: HashSet<(u64, u64)>,
    /// The folder of each, and its name there: a folder may be seen in two places.
    entries: HashSet<(u64, u64, OsString)>,
    above_files: HashSet<(u64, u64)>,
}

impl RuntimeFileGuard {
    /// Takes the current state of these paths.
    pub fn of(own: &[PathBuf]) -> Self {
        let mut kept = Self::default();
        for mut way in own.iter().map(|path| trail(path)) {
            for folder in std::mem::take(&mut way.left) {
                kept.lead(&folder);
            }
            way.all().for_each(|name| kept.name(name));
        }
        kept.names
            .sort_by_key(|name| (name.components().count(), name.clone()));
        kept.names.dedup();
        kept
    }

    /// A folder that leads to one, and all above it.
    fn lead(&mut self, folder: &Path) {
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
            self.lead(folder);
        }
        if let (Some(Ok(folder)), Some(last)) = (name.parent().map(Path::metadata), name.file_name()) {
            self.entries.insert((folder.dev(), folder.ino(), last.to_owned()));
        }
        self.remember(&name);
        self.names.push(name);
    }

    fn remember(&mut self, name: &Path) {
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

    /// The same by the name that `source` has where a tool sees it.
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

    /// Their real names, those above before those below.
    pub fn names(&self) -> impl Iterator<Item = &Path> {
        self.names.iter().map(PathBuf::as_path)
    }

    /// The files that it knows: device and inode.
    pub fn files(&self) -> impl Iterator<Item = (u64, u64)> {
        self.files.iter().copied()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The name leads to an own file, or into an own folder.
    pub fn holds(&self, real: &Path) -> bool {
        self.names.iter().any(|name| lies_in(real, name))
    }

    /// The name is a folder above an own file.
    pub fn leads(&self, real: &Path) -> bool {
        self.above.contains(real)
    }

    /// The name is the same file under another name.
    pub fn is(&self, dev: u64, ino: u64) -> bool {
        self.files.contains(&(dev, ino))
    }

    /// The name is the folder above an own file, under another name.
    pub fn is_above(&self, dev: u64, ino: u64) -> bool {
        self.above_files.contains(&(dev, ino))
    }

    /// The name is the place of an own file, in a folder under another name.
    pub fn is_entry(&self, dev: u64, ino: u64, last: &OsStr) -> bool {
        self.entries.contains(&(dev, ino, last.to_owned()))
    }
}

/// `real` is `name`, or below it; both without `.` and `..`. By bytes: it is asked at every change that a tool makes.
fn lies_in(real: &Path, name: &Path) -> bool {
    let rest = real
        .as_os_str()
        .as_bytes()
        .strip_prefix(name.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || name == Path::new("/"))
}

#[cfg(test)]
mod tests;
