//! Records which parts of the host a sandbox was made from, so that they can be compared later. A waiting sandbox is used only
//! while the host would still give an identical one. Files that the sandbox opened itself are recorded from its descriptors. The
//! real places of `denied_paths` are recorded as one digest, which the same function computes inside and outside the sandbox.

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
use clawk_plan::place::{PathTrail, trace_path};
use clawk_plan::plan::Denied;
use clawk_plan::preflight::path::lexical_path;

/// How many entries are checked for `denied_paths`. A sandbox that needs more is not prepared in advance.
const MAX_ENTRIES: usize = 50_000;

/// One observation of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostObservation {
    /// A path and the file behind it, links followed; `None`: it could not be opened.
    Place {
        path: PathBuf,
        at: Option<HostFileIdentity>,
        /// The real path, if the sandbox shows the file under that name.
        real: Option<PathBuf>,
    },
    /// The target of a link; `None`: it is not a link.
    Link { path: PathBuf, target: Option<PathBuf> },
    /// A digest of all real places of `denied_paths`.
    Denied(String),
    /// A digest of the agent's own files.
    Own(String),
    /// More than can be compared again.
    TooMuch,
}

/// Identifies a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostFileIdentity {
    dev: u64,
    ino: u64,
    kind: u32,
    /// User and group, if the sandbox shows the file as the tool's. `None` in a user namespace, where ids have other values.
    owner: Option<(u32, u32)>,
}

impl HostFileIdentity {
    fn from_stat(stat: &rustix::fs::Stat, owned: bool) -> Self {
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            kind: FileType::from_raw_mode(stat.st_mode).as_raw_mode(),
            owner: owned.then_some((stat.st_uid, stat.st_gid)),
        }
    }
}

/// The observations that a sandbox records while it is made; none if the sandbox does not wait.
#[derive(Debug, Default)]
pub(super) struct ObservationLog {
    pub(super) taken: bool,
    /// Whether owners are recorded.
    pub(super) owned: bool,
    pub(super) seen: Vec<HostObservation>,
}

impl ObservationLog {
    /// Records an opened path.
    pub(super) fn record_opened(
        &mut self,
        path: &Path,
        fd: impl AsFd,
        real: Option<&Path>,
    ) -> io::Result<()> {
        if self.taken {
            let at = HostFileIdentity::from_stat(&rustix::fs::fstat(fd)?, self.owned && real.is_some());
            self.seen.push(HostObservation::Place {
                path: path.to_path_buf(),
                at: Some(at),
                real: real.map(Path::to_path_buf),
            });
        }
        Ok(())
    }

    /// Records a path that does not exist.
    pub(super) fn record_absent(&mut self, path: &Path) {
        if self.taken {
            self.seen.push(HostObservation::Place {
                path: path.to_path_buf(),
                at: None,
                real: None,
            });
        }
    }

    /// Records a link, or that there is none.
    pub(super) fn record_link(&mut self, path: &Path, target: Option<&Path>) {
        if self.taken {
            self.seen.push(HostObservation::Link {
                path: path.to_path_buf(),
                target: target.map(Path::to_path_buf),
            });
        }
    }

    /// Records the agent's own files at present.
    pub(super) fn record_own_files(&mut self, order: &SandboxEnclosure) {
        if self.taken && !order.filesystem.own.is_empty() {
            self.seen.push(observe_own_files(order));
        }
    }

    /// Records the present places of the rules.
    pub(super) fn record_denied_paths(&mut self, order: &SandboxEnclosure) {
        if self.taken {
            self.seen.push(observe_denied_paths(order));
        }
    }
}

/// Whether the host is still as observed.
pub(crate) fn is_host_unchanged(seen: &[HostObservation], order: &SandboxEnclosure) -> bool {
    !seen.is_empty() && seen.iter().all(|one| is_observation_current(one, order))
}

fn is_observation_current(seen: &HostObservation, order: &SandboxEnclosure) -> bool {
    match seen {
        HostObservation::Place { path, at, real } => {
            let owned = at.is_some_and(|at| at.owner.is_some());
            let now = rustix::fs::stat(path)
                .map(|stat| HostFileIdentity::from_stat(&stat, owned))
                .ok(); // silent-ok: not there
            now == *at
                && real
                    .as_ref()
                    .is_none_or(|real| std::fs::canonicalize(path).is_ok_and(|now| now == *real))
        }
        HostObservation::Link { path, target } => std::fs::read_link(path).ok() == *target, // silent-ok: no link
        HostObservation::Denied(_) => observe_denied_paths(order) == *seen,
        HostObservation::Own(_) => observe_own_files(order) == *seen,
        HostObservation::TooMuch => false,
    }
}

/// The digest of everything that the rules lead to: covers, pinned folders, other hard links of denied files, real names behind
/// links.
fn observe_denied_paths(order: &SandboxEnclosure) -> HostObservation {
    let mut sum = DeniedPathsDigest {
        hash: Sha256::new(),
        left: MAX_ENTRIES,
    };
    match sum.add_order_rules(order) {
        Some(()) => HostObservation::Denied(hex::encode(sum.hash.finalize())),
        None => HostObservation::TooMuch,
    }
}

/// The digest of the agent's own files: those that a sandbox covers, and those whose other hard links it knows.
fn observe_own_files(order: &SandboxEnclosure) -> HostObservation {
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
        } = trace_path(path);
        for link in links.into_iter().chain(names) {
            sum.add_labelled_bytes(b"link", link.as_os_str().as_bytes());
            let target = std::fs::read_link(&link).unwrap_or_default(); // silent-ok: gone, which is another way
            sum.add_labelled_bytes(b"to", target.as_os_str().as_bytes());
        }
        sum.add_labelled_bytes(b"own", place.as_os_str().as_bytes());
        sum.add_path_aliases(&place)
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
    /// Adds all rules. `None`: there is too much to check.
    fn add_order_rules(&mut self, order: &SandboxEnclosure) -> Option<()> {
        let rules = &order.filesystem.denied;
        for rule in rules {
            let place = lexical_path(&order.base, Path::new(rule.fixed_part()));
            self.add_labelled_bytes(b"rule", rule.text().as_bytes());
            // Each folder on the path may be a link or have been replaced.
            for part in place.ancestors().skip(1) {
                self.add_path_identity(part);
            }
            match rule.is_pattern() {
                true => drop(self.add_path_identity(&place)),
                false => self.add_path_aliases(&place)?,
            }
        }
        if rules.iter().any(Denied::is_pattern) {
            let mut found = BTreeSet::new();
            for bind in order.host_binds() {
                self.collect_matching_paths(bind.path, order, &mut found)?;
            }
            for path in found {
                self.add_path_aliases(&path)?;
            }
        }
        Some(())
    }

    fn add_labelled_bytes(&mut self, what: &[u8], bytes: &[u8]) {
        for part in [what, bytes] {
            self.hash
                .update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            self.hash.update(part);
        }
    }

    /// Adds the identity and the real path of a file or folder.
    fn add_path_identity(&mut self, path: &Path) -> Option<std::fs::Metadata> {
        self.add_labelled_bytes(b"path", path.as_os_str().as_bytes());
        let Ok(about) = std::fs::metadata(path) else {
            self.add_labelled_bytes(b"none", b"");
            return None;
        };
        let real = std::fs::canonicalize(path).unwrap_or_default();
        self.add_labelled_bytes(b"real", real.as_os_str().as_bytes());
        for number in [
            about.dev(),
            about.ino(),
            u64::from(FileType::from_raw_mode(about.mode()).as_raw_mode()),
        ] {
            self.hash.update(number.to_le_bytes());
        }
        Some(about)
    }

    /// As [`Self::add_path_identity`]; also adds other hard links of it and of the files below it.
    fn add_path_aliases(&mut self, path: &Path) -> Option<()> {
        let Some(about) = self.add_path_identity(path) else {
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

    /// Existing files and folders below `root` that match a pattern.
    fn collect_matching_paths(
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
                if order.filesystem.denies_path(&path, &order.base) {
                    found.insert(path);
                } else if kind.is_dir() {
                    open.push(path);
                }
            }
        }
        Some(())
    }
}
