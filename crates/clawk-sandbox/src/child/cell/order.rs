//! The launcher's order for a sandbox: everything from which the sandbox is made.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use clawk_plan::plan::{Filesystem, FsMode};
use clawk_plan::preflight::path::lexical_path;

/// The isolation part of an order. It has no `Debug`, because its files may contain secrets.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SandboxEnclosure {
    /// Which of the host's files are visible.
    pub(crate) filesystem: Filesystem,
    /// The agent's working directory, absolute. Relative paths of the plan start here.
    pub(crate) base: PathBuf,
    /// Further host paths, read-only: the program's installation.
    pub(crate) read_paths: Vec<PathBuf>,
    /// Files in memory: name and content.
    pub(crate) files: Vec<(String, Vec<u8>)>,
    /// Whether the allow-list of system calls applies in addition to the deny-list.
    pub(crate) strict: bool,
    /// Whether the tool is clawk itself: it is then executed by descriptor, and the view need not contain it.
    pub(crate) own: bool,
    /// Whether to bind the proxy's listening socket.
    pub(crate) door: bool,
    /// Whether to check the isolation from inside instead of starting a program.
    pub(crate) probe: bool,
    /// Whether to show `/dev/kvm`.
    pub(crate) kvm: bool,
}

/// One host path in the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostBind {
    pub(super) path: PathBuf,
    pub(super) writable: bool,
}

impl SandboxEnclosure {
    /// Which calls the guard answers. If a mount could show something denied: all calls that name a file. If the agent's own files
    /// could be written: only calls that change something.
    pub(super) fn guarded_calls(&self) -> GuardedCalls {
        let files = &self.filesystem;
        let shows = files.mode == FsMode::Full || !self.host_binds().is_empty();
        match (shows && !self.own, files.denied.is_empty(), files.own.is_empty()) {
            (true, false, _) => GuardedCalls::All,
            (true, true, false) => GuardedCalls::Changes,
            (false, _, _) | (true, true, true) => GuardedCalls::Nothing,
        }
    }

    /// The host paths that are mounted in addition to the system view, parents first. Paths that another mount already contains are
    /// left out.
    pub(super) fn host_binds(&self) -> Vec<HostBind> {
        let mut binds: Vec<HostBind> = Vec::new();
        let mounts = self.filesystem.shown_mounts();
        for (path, writable) in mounts {
            let path = lexical_path(&self.base, &path);
            match binds.iter_mut().find(|bind| bind.path == path) {
                // Listed twice: the stricter permission counts.
                Some(bind) => bind.writable &= writable,
                None => binds.push(HostBind { path, writable }),
            }
        }
        for path in &self.read_paths {
            let path = lexical_path(&self.base, path);
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

/// Which calls the guard answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GuardedCalls {
    Nothing,
    Changes,
    All,
}

impl GuardedCalls {
    /// Names for the trace. `keeps`: the agent's own files are protected.
    pub(super) fn trace_names(self, keeps: bool) -> impl Iterator<Item = String> {
        let denied = (self == Self::All).then_some("guard:denied_paths");
        let own = (self != Self::Nothing && keeps).then_some("guard:own_files");
        denied.into_iter().chain(own).map(str::to_owned)
    }
}

/// Whether the system view shows this path anyway.
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
