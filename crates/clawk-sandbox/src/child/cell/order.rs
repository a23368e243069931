//! The launcher's order for a box: everything that the box is made of.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use clawk_plan::plan::{Filesystem, FsMode};
use clawk_plan::preflight::path::lexical;

/// The enclosing part of an order. Its files may hold secrets: no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SandboxEnclosure {
    /// What of the host's files is visible.
    pub(crate) filesystem: Filesystem,
    /// The agent's working directory, absolute: relative paths of the plan start here.
    pub(crate) base: PathBuf,
    /// Further host paths, read-only: where the program is installed.
    pub(crate) read_paths: Vec<PathBuf>,
    /// Files in memory: name and content.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// The allow-list of system calls on top of the deny-list.
    pub(crate) strict: bool,
    /// The tool is this very program: executed by descriptor, in a view that need not hold it.
    pub(crate) own: bool,
    /// Bind the proxy's listening socket.
    pub(crate) door: bool,
    /// Look from inside whether the walls stand, instead of starting a program.
    pub(crate) probe: bool,
    /// Show `/dev/kvm`.
    pub(crate) kvm: bool,
}

/// One piece of the host in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostBind {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
}

impl SandboxEnclosure {
    /// Which calls the guard answers: all that name a file, where something is denied that a mount could show; where the agent's
    /// own files could be written, those that change something.
    pub(super) fn judged(&self) -> GuardedCalls {
        let files = &self.filesystem;
        let shows = files.mode == FsMode::Full || !self.binds().is_empty();
        match (shows && !self.own, files.denied.is_empty(), files.own.is_empty()) {
            (true, false, _) => GuardedCalls::All,
            (true, true, false) => GuardedCalls::Changes,
            (false, _, _) | (true, true, true) => GuardedCalls::Nothing,
        }
    }

    /// What is bound beyond the system view, shallow ones first. A path that a mount covers already is not repeated.
    pub(super) fn binds(&self) -> Vec<HostBind> {
        let mut binds: Vec<HostBind> = Vec::new();
        let mounts = self.filesystem.shown_mounts();
        for (path, writable) in mounts {
            let path = lexical(&self.base, &path);
            match binds.iter_mut().find(|bind| bind.path == path) {
                // Said twice: the narrower word counts.
                Some(bind) => bind.writable &= writable,
                None => binds.push(HostBind { path, writable }),
            }
        }
        for path in &self.read_paths {
            let path = lexical(&self.base, path);
            if !binds.iter().any(|bind| path.starts_with(&bind.path)) && !is_system(&path) {
                binds.push(HostBind {
                    path,
                    writable: false,
                });
            }
        }
        binds.sort_by_key(|bind| bind.path.components().count());
        binds
    }
}

/// The calls that the guard answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardedCalls {
    Nothing,
    Changes,
    All,
}

impl GuardedCalls {
    /// For the trace; `keeps`: there are own files.
    pub(super) fn names(self, keeps: bool) -> impl Iterator<Item = String> {
        let denied = (self == Self::All).then_some("guard:denied_paths");
        let own = (self != Self::Nothing && keeps).then_some("guard:own_files");
        denied.into_iter().chain(own).map(str::to_owned)
    }
}

/// In the system view anyway.
pub(crate) fn is_system(path: &Path) -> bool {
    [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/nix/store",
        "/gnu/store",
    ]
    .iter()
    .any(|root| path.starts_with(root))
}
