//! What of the host a box was made from, in words by which it can be looked at again: a box that waits is used only while
//! the host would still give the very same one. What the box opened itself is told from its own descriptors; what
//! `denied_paths` lead to is summed up in a digest, by the same function in the box and outside.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::order::SandboxEnclosure;
use clawk_plan::place::{PathTrail, trail};
use clawk_plan::plan::Denied;
use clawk_plan::preflight::path::lexical;

/// Entries that are looked through for what `denied_paths` say; a box of more does not wait.
const MAX_ENTRIES: usize = 50_000;

/// One thing that was found on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostObservation {
    /// What stands there, links followed; `None`: nothing that could be opened.
    Place {
        path: PathBuf,
        at: Option<HostFileIdentity>,
        /// Where it really is, if the box shows it by that name.
        real: Option<PathBuf>,
    },
    /// Where a link leads; `None`: no link.
    Link { path: PathBuf, target: Option<PathBuf> },
    /// All that `denied_paths` lead to.
    Denied(String),
    /// The agent's own files.
    Own(String),
    /// More than can be looked at again.
    TooMuch,
}

/// Which file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFileIdentity {
    dev: u64,
    ino: u64,
    kind: u32,
    /// User and group, where the box shows it as the tool's: not in a user namespace, which has other words for them.
    owner: Option<(u32, u32)>,
}

impl HostFileIdentity {
    fn of(stat: &rustix::fs::Stat, owned: bool) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            kind: FileType::from_raw_mode(stat.st_mode).as_raw_mode(),
            owner: owned.then_some((stat.st_uid, stat.st_gid)),
        }
    }
}

/// What a box notes while it is made; nothing, if it does not wait.
#[derive(Debug, Default)]
pub(super) struct ObservationLog {
    pub(super) taken: bool,
    /// Owners count.
    pub(super) owned: bool,
    pub(super) seen: Vec<HostObservation>,
}

impl ObservationLog {
    /// What was opened.
    pub(super) fn place(&mut self, path: &Path, fd: impl AsFd, real: Option<&Path>) -> io::Result<()> {
        if self.taken {
            let at = HostFileIdentity::of(&rustix::fs::fstat(fd)?, self.owned && real.is_some());
            self.seen.push(HostObservation::Place {
                path: path.to_path_buf(),
                at: Some(at),
                real: real.map(Path::to_path_buf),
            });
        }
        Ok(())
    }

    /// What was not there.
    pub(super) fn absent(&mut self, path: &Path) {
        if self.taken {
            self.seen.push(HostObservation::Place {
                path: path.to_path_buf(),
                at: None,
                real: None,
            });
        }
    }

    /// A link, or that there was none.
    pub(super) fn link(&mut self, path: &Path, target: Option<&Path>) {
        if self.taken {
            self.seen.push(HostObservation::Link {
                path: path.to_path_buf(),
                target: target.map(Path::to_path_buf),
            });
        }
    }

    /// Which files the agent's own are now.
    pub(super) fn own(&mut self, order: &SandboxEnclosure) {
        if self.taken && !order.filesystem.own.is_empty() {
            self.seen.push(own(order));
        }
    }

    /// What the rules lead to now.
    pub(super) fn denied(&mut self, order: &SandboxEnclosure) {
        if self.taken {
            self.seen.push(denied(order));
        }
    }
}

/// Whether the host still is what a box found.
pub(crate) fn still(seen: &[HostObservation], order: &SandboxEnclosure) -> bool {
    !seen.is_empty() && seen.iter().all(|one| holds(one, order))
}

fn holds(seen: &HostObservation, order: &SandboxEnclosure) -> bool {
    match seen {
        HostObservation::Place { path, at, real } => {
            let owned = at.is_some_and(|at| at.owner.is_some());
            let now = rustix::fs::stat(path)
                .map(|stat| HostFileIdentity::of(&stat, owned))
                .ok(); // silent-ok: not there
            now == *at
                && real
                    .as_ref()
                    .is_none_or(|real| std::fs::canonicalize(path).is_ok_and(|now| now == *real))
        }
        HostObservation::Link { path, target } => std::fs::read_link(path).ok() == *target, // silent-ok: no link
        HostObservation::Denied(_) => denied(order) == *seen,
        HostObservation::Own(_) => own(order) == *seen,
        HostObservation::TooMuch => false,
    }
}

/// What all rules lead to: covers, pinned folders, further names of denied files, real names behind links.
fn denied(order: &SandboxEnclosure) -> HostObservation {
    let mut sum = DeniedPathsDigest {
        hash: Sha256::new(),
        left: MAX_ENTRIES,
    };
    match sum.all(order) {
        Some(()) => HostObservation::Denied(hex::encode(sum.hash.finalize())),
        None => HostObservation::TooMuch,
    }
}

/// Which files the agent's own are: those that a box covers, and those whose further names it knows.
fn own(order: &SandboxEnclosure) -> HostObservation {
    let mut sum = DeniedPathsDigest {
        hash: Sha256::new(),
        left: MAX_ENTRIES,
    };
    let all = order.filesystem.own.iter().map(|path| {
        let PathTrail {
            links,
            names,
            place,
            left: _,
        } = trail(path);
        for link in links.into_iter().chain(names) {
            sum.text(b"link", link.as_os_str().as_bytes());
            let target = std::fs::read_link(&link).unwrap_or_default(); // silent-ok: gone, which is another way
            sum.text(b"to", target.as_os_str().as_bytes());
        }
        sum.text(b"own", place.as_os_str().as_bytes());
        sum.what(&place)
    });
    match all.collect::<Option<()>>() {
        Some(()) => HostObservation::Own(hex::encode(sum.hash.finalize())),
        None => HostObservation::TooMuch,
    }
}

struct DeniedPathsDigest {
    hash: Sha256,
    left: usize,
}

impl DeniedPathsDigest {
    /// `None`: too much to look at.
    fn all(&mut self, order: &SandboxEnclosure) -> Option<()> {
        let rules = &order.filesystem.denied;
        for rule in rules {
            let place = lexical(&order.base, Path::new(rule.fixed_part()));
            self.text(b"rule", rule.text().as_bytes());
            // Each folder on the way may be a link, or be another one by now.
            for part in place.ancestors().skip(1) {
                self.which(part);
            }
            match rule.is_pattern() {
                true => drop(self.which(&place)),
                false => self.what(&place)?,
            }
        }
        if rules.iter().any(Denied::is_pattern) {
            let mut found = BTreeSet::new();
            for bind in order.binds() {
                self.fitting(bind.path, order, &mut found)?;
            }
            for path in found {
                self.what(&path)?;
            }
        }
        Some(())
    }

    fn text(&mut self, what: &[u8], bytes: &[u8]) {
        for part in [what, bytes] {
            self.hash
                .update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            self.hash.update(part);
        }
    }

    /// Which file or folder stands there, and where it really is.
    fn which(&mut self, path: &Path) -> Option<std::fs::Metadata> {
        self.text(b"path", path.as_os_str().as_bytes());
        let Ok(about) = std::fs::metadata(path) else {
            self.text(b"none", b"");
            return None;
        };
        let real = std::fs::canonicalize(path).unwrap_or_default();
        self.text(b"real", real.as_os_str().as_bytes());
        for number in [
            about.dev(),
            about.ino(),
            u64::from(FileType::from_raw_mode(about.mode()).as_raw_mode()),
        ] {
            self.hash.update(number.to_le_bytes());
        }
        Some(about)
    }

    /// The same, and what is known by further names of it or below it.
    fn what(&mut self, path: &Path) -> Option<()> {
        let Some(about) = self.which(path) else {
            return Some(());
        };
        if !about.is_dir() {
            self.hash.update(about.nlink().to_le_bytes());
            return Some(());
        }
        let mut named = BTreeSet::new();
        let mut open = vec![path.to_path_buf()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                self.left = self.left.checked_sub(1)?;
                let Ok(about) = entry.metadata() else { continue };
                if about.is_dir() {
                    open.push(entry.path());
                } else if about.nlink() > 1 {
                    named.insert((about.dev(), about.ino()));
                }
            }
        }
        for (dev, ino) in named {
            self.hash.update(dev.to_le_bytes());
            self.hash.update(ino.to_le_bytes());
        }
        Some(())
    }

    /// Existing files and folders below `root` that fit a pattern.
    fn fitting(
        &mut self,
        root: PathBuf,
        order: &SandboxEnclosure,
        found: &mut BTreeSet<PathBuf>,
    ) -> Option<()> {
        let mut open = vec![root];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                self.left = self.left.checked_sub(1)?;
                let path = folder.join(entry.file_name());
                let Ok(kind) = entry.file_type() else { continue };
                if order.filesystem.denies(&path, &order.base) {
                    found.insert(path);
                } else if kind.is_dir() {
                    open.push(path);
                }
            }
        }
        Some(())
    }
}
