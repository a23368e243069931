//! The plan of a Sandbox primitive, with every default filled in. Pure.

mod denied;
mod inside;
mod manifest;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clawk_proto::place::{HostAllowList, HostPattern};
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::level::{Level, SandboxRefusal};
use crate::own::RuntimeFiles;
use crate::preflight::{self, Request, shell::CommandPattern};

pub use denied::Denied;
pub use inside::MINIMAL_PATH;

/// Where the system view of level `process` has the host's programs and libraries.
const SYSTEM: [&str; 8] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/gnu/store",
];

/// Entries beside the open places of a denied folder that are denied one by one; a folder of more is denied whole.
const MAX_AROUND: usize = 256;

/// What a state directory holds.
const OWN: [&str; 9] = [
    "state.db",
    "state.db-wal",
    "state.db-shm",
    "blobs",
    "keys",
    "control.sock",
    "lock",
    "cache",
    "history",
];

/// Limits of one run. Each has a unit in its name; all hold for the whole tree of processes of a call unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Resident memory of the tree, MiB. Default 1024.
    pub memory_mb: u64,
    /// Weight of the processor; 1024 is one core's weight (R36). Default 1024.
    pub cpu_shares: u64,
    /// Processes and threads together (R36). Default 256.
    pub max_processes: u64,
    /// Open files per process. Default 1024.
    pub max_open_files: u64,
    /// Wall time of one call, milliseconds. Default 300,000. Services have no such limit.
    pub timeout_ms: u64,
    /// Bytes of standard output and standard error together that clawk keeps. Default 1 MiB.
    pub max_output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mb: 1024,
            cpu_shares: 1024,
            max_processes: 256,
            max_open_files: 1024,
            timeout_ms: 300_000,
            max_output_bytes: 1 << 20,
        }
    }
}

/// Adds what of `place` leads to none of `open`. False: it can't be told, or is too much.
fn around(place: &Path, open: &BTreeSet<PathBuf>, all: &mut Vec<PathBuf>) -> bool {
    if open.contains(place) {
        return true;
    }
    if !open.iter().any(|inner| inner.starts_with(place)) {
        all.push(place.to_owned());
        return true;
    }
    let Ok(entries) = place.read_dir() else {
        return false;
    };
    let mut left = MAX_AROUND;
    for entry in entries {
        let Some(rest) = left.checked_sub(1) else {
            return false;
        };
        left = rest;
        if !entry.is_ok_and(|entry| around(&entry.path(), open, all)) {
            return false;
        }
    }
    true
}

/// `capabilities.network.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// No network.
    #[default]
    Deny,
    /// Only [`Network::allowed_hosts`].
    Allowlist,
    /// Everything that the SSRF guard lets through.
    AllowAll,
}

/// `capabilities.network`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The mode.
    pub mode: NetworkMode,
    /// Hosts, or `*.example.com` for a host's subdomains; optionally `:port`. Lower case.
    pub allowed_hosts: Vec<String>,
    /// Refuse private, loopback and link-local addresses.
    pub block_private_ips: bool,
    /// Connect only to the address that was checked.
    pub dns_pinning: bool,
}

impl Network {
    /// The allow-list as rules for every judge of a host. An entry that can't be read admits nothing.
    #[must_use]
    pub fn rules(&self) -> HostAllowList {
        let read = |text: &String| HostPattern::try_from(text.clone()).ok(); // silent-ok: it admits nothing
        let hosts = match self.mode {
            NetworkMode::Deny => Vec::new(),
            NetworkMode::AllowAll => read(&"*".to_owned()).into_iter().collect(),
            NetworkMode::Allowlist => self.allowed_hosts.iter().filter_map(read).collect(),
        };
        HostAllowList {
            hosts,
            any_private: !self.block_private_ips,
            any_port: self.mode == NetworkMode::AllowAll,
            ..HostAllowList::default()
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            mode: NetworkMode::Deny,
            allowed_hosts: Vec::new(),
            block_private_ips: true,
            dns_pinning: true,
        }
    }
}

/// `capabilities.filesystem.mode` (R33).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsMode {
    /// A system view only: no file of the agent or the user.
    #[default]
    Deny,
    /// Mounts, all read-only.
    ReadOnly,
    /// Mounts with their own permissions.
    Scoped,
    /// The host's view without the denied paths.
    Full,
}

/// One of `mount_paths`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute, or relative to the agent's working directory.
    pub path: PathBuf,
    /// `rw`.
    pub writable: bool,
}

/// `capabilities.filesystem`. Serialisable, for a process of our own that judges paths.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Filesystem {
    /// The mode.
    pub mode: FsMode,
    /// The mounts.
    pub mounts: Vec<Mount>,
    /// Wins over mounts at any depth.
    pub denied: Vec<Denied>,
    /// The agent's own files and folders that a writable mount shows: read, never changed. Of [`Plan::keeping`], not of a
    /// manifest.
    #[serde(default)]
    pub own: Vec<PathBuf>,
}

/// `capabilities.shell.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShellMode {
    /// No command line at all.
    #[default]
    Deny,
    /// All but the blocked ones (R35).
    Restricted,
    /// Everything.
    Full,
}

/// `capabilities.shell`.
#[derive(Debug, Clone, Default)]
pub struct Shell {
    /// The mode.
    pub mode: ShellMode,
    pub(crate) commands: Vec<CommandPattern>,
    pub(crate) patterns: Vec<Regex>,
}

/// `capabilities.secrets.injection` (R37).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecretInjectionMode {
    /// The tool sees a placeholder.
    #[default]
    HostBoundary,
    /// A variable of the tool's environment.
    Environment,
    /// A file, mode 0400, in memory.
    FileMount,
}

/// The plan for a manifest without a Sandbox.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct PlanDefaults {
    /// `clawk.toml` lets tools without a declared sandbox run at level `none`.
    pub allow_none: bool,
    /// Limits that the manifest does not give.
    pub limits: Limits,
    /// The shell's mode when no sandbox is declared.
    pub shell: ShellMode,
    /// The network's mode when no sandbox is declared.
    pub network: NetworkMode,
    /// The files' mode when no sandbox is declared; `read-only` and `scoped` then mean the working directory.
    pub filesystem: FsMode,
}

/// A Sandbox, compiled: every default filled in, every pattern ready.
#[derive(Debug, Clone)]
pub struct Plan {
    pub(crate) name: Option<String>,
    pub(crate) level: Level,
    pub(crate) runtime: Option<String>,
    pub(crate) limits: Limits,
    pub(crate) network: Network,
    pub(crate) filesystem: Filesystem,
    pub(crate) shell: Shell,
    pub(crate) injection: SecretInjectionMode,
    pub(crate) defect: Option<SandboxRefusal>,
}

impl Plan {
    /// The plan of a call whose agent declares no sandbox: the most restrictive one (CKP §3).
    #[must_use]
    pub fn undeclared(defaults: &PlanDefaults) -> Self {
        Self {
            name: None,
            level: if defaults.allow_none {
                Level::None
            } else {
                Level::Process
            },
            runtime: None,
            limits: defaults.limits,
            network: Network {
                mode: defaults.network,
                ..Network::default()
            },
            filesystem: match defaults.filesystem {
                FsMode::Deny => Filesystem {
                    mode: FsMode::Deny,
                    ..Filesystem::default()
                },
                mode @ (FsMode::ReadOnly | FsMode::Scoped | FsMode::Full) => Filesystem {
                    mode,
                    ..Filesystem::workdir_only()
                },
            },
            shell: Shell {
                mode: defaults.shell,
                ..Shell::default()
            },
            injection: SecretInjectionMode::HostBoundary,
            defect: None,
        }
    }

    /// The Sandbox's `metadata.name`.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// This plan at another level.
    #[must_use]
    pub fn at_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// This plan with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// This plan for other files.
    #[must_use]
    pub fn with_filesystem(self, filesystem: Filesystem) -> Self {
        Self { filesystem, ..self }
    }

    /// The runtime that makes the level, if the manifest names one.
    #[must_use]
    pub fn runtime(&self) -> Option<&str> {
        self.runtime.as_deref()
    }

    /// The level asked for.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The network's part.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The files' part.
    #[must_use]
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// The shell's mode.
    #[must_use]
    pub fn shell_mode(&self) -> ShellMode {
        self.shell.mode
    }

    /// How secrets reach the tool.
    #[must_use]
    pub fn injection(&self) -> SecretInjectionMode {
        self.injection
    }

    /// Whether this version can serve the plan on this host.
    ///
    /// # Errors
    /// The level has no back end here (it is never served weaker, R32), or a pattern of the Sandbox can't be read.
    pub fn available(&self) -> Result<(), SandboxRefusal> {
        if let Some(defect) = &self.defect {
            return Err(defect.clone());
        }
        if self.level == Level::Vm {
            crate::machine::servable(self)?;
        }
        // What counts is what a probe really found (R32, `Launcher::probe`); without one, the run itself finds out.
        if self.level == Level::Process
            && let Some(Err(refusal)) = crate::probed::found()
        {
            return Err(refusal.clone());
        }
        if cfg!(target_os = "linux") {
            return Ok(());
        }
        Err(SandboxRefusal::Unavailable {
            level: self.level,
            mechanism: "linux".to_owned(),
            missing: "sandboxes are made of what Linux offers".to_owned(),
            hint: "run clawk on Linux".to_owned(),
        })
    }

    /// This plan for a WebAssembly guest, which is kept as level `wasm` keeps it, also where less is asked for.
    ///
    /// # Errors
    /// More is asked for.
    pub fn for_guest(&self) -> Result<Self, SandboxRefusal> {
        if self.level > Level::Wasm {
            return Err(SandboxRefusal::Unavailable {
                level: self.level,
                mechanism: "wasmtime".to_owned(),
                missing: format!(
                    "a WebAssembly guest has level `wasm`, and `{}` is asked for",
                    self.level
                ),
                hint: "bind the tool by `command`, or set the Sandbox's `level` to `wasm`".to_owned(),
            });
        }
        Ok(Self {
            level: Level::Wasm,
            ..self.clone()
        })
    }

    /// This plan with what is the runtime's and not the tools': its state is denied wherever a mount would show it, and its own
    /// files are read-only wherever one would make them writable. `base` is the agent's working directory.
    #[must_use]
    pub fn keeping(mut self, own: &RuntimeFiles, base: &Path) -> Self {
        self.filesystem.keep(&own.files, base);
        let plan = match &own.state {
            Some(state) => self.hiding(state, base),
            None => self,
        };
        plan.resolved(base)
    }

    /// This plan with `denied_paths` also under the names that the places really have now, links followed. One that can't be
    /// followed makes a plan that refuses every call ([`Plan::available`] says which). `base` is the agent's working directory.
    #[must_use]
    pub fn resolved(mut self, base: &Path) -> Self {
        if let Err(missing) = self.filesystem.resolve_denied(base) {
            self.defect.get_or_insert(SandboxRefusal::Unavailable {
                level: self.level,
                mechanism: "denied_paths".to_owned(),
                missing,
                hint: "name the places in the Sandbox's `denied_paths` more exactly".to_owned(),
            });
        }
        self
    }

    /// The same, where that adds a rule to this plan, or finds that it can't be held.
    #[must_use]
    pub fn resolved_anew(&self, base: &Path) -> Option<Self> {
        let mut filesystem = self.filesystem.clone();
        let same = filesystem.resolve_denied(base).is_ok()
            && filesystem.denied.len() == self.filesystem.denied.len();
        (!same).then(|| self.clone().resolved(base))
    }

    /// This plan without places that a policy closes: `denied`, absolute, with all below them but `open`. What of a denied
    /// folder is not on the way to an open one is denied by its name; what is made beside them later is not.
    #[must_use]
    pub fn denying(mut self, denied: &BTreeSet<PathBuf>, open: &BTreeSet<PathBuf>) -> Self {
        let mut rules = Vec::new();
        for place in denied {
            let mut all = Vec::new();
            // What can't be told apart is denied whole.
            if !around(place, open, &mut all) {
                all = vec![place.clone()];
            }
            rules.append(&mut all);
        }
        self.filesystem.denied.extend(rules.iter().map(Denied::place));
        self
    }

    /// This plan without `hidden`: denied wherever a mount would show it.
    fn hiding(mut self, hidden: &Path, base: &Path) -> Self {
        let hidden = hidden.canonicalize().unwrap_or_else(|_| hidden.to_owned()); // silent-ok: not made yet
        let filesystem = &mut self.filesystem;
        let mut rules = Vec::new();
        if filesystem.mode == FsMode::Full {
            rules.push(hidden.clone());
        }
        for (path, _) in filesystem.shown_mounts() {
            let named = crate::preflight::path::lexical(base, &path);
            for place in [named.canonicalize().unwrap_or_else(|_| named.clone()), named] {
                if hidden.starts_with(&place) && hidden != place {
                    rules.push(hidden.clone());
                } else if place.starts_with(&hidden) {
                    // The operator mounts a part of it, or all: then only what the runtime writes there.
                    rules.extend(OWN.iter().map(|name| hidden.join(name)));
                }
            }
        }
        rules.sort();
        rules.dedup();
        filesystem.denied.extend(rules.iter().map(Denied::place));
        self
    }

    /// Static checks of one part of a call against this plan.
    ///
    /// # Errors
    /// [`SandboxRefusal::Blocked`] naming the rule and what would be allowed; [`SandboxRefusal::Unavailable`] as [`Self::available`].
    pub fn preflight(&self, request: &Request<'_>) -> Result<(), SandboxRefusal> {
        self.available()?;
        preflight::check(self, request)
    }

    /// Whether what runs under this plan finds the host's file `absolute` under that name, as far as names tell: R33's
    /// system view and the mounts, less `denied_paths`. In a container or a guest, the mounts alone are surely the host's.
    /// `base`: the agent's working directory.
    #[must_use]
    pub fn shows(&self, absolute: &Path, base: &Path) -> bool {
        let files = &self.filesystem;
        let mut mounts = files.shown_mounts().into_iter();
        let mounted = mounts.any(|(root, _)| absolute.starts_with(preflight::path::lexical(base, &root)));
        let seen = match self.level {
            Level::None => return true,
            Level::Wasm | Level::Container => mounted,
            Level::Process | Level::Vm => {
                mounted || files.mode == FsMode::Full || SYSTEM.iter().any(|root| absolute.starts_with(root))
            }
        };
        seen && !files.denies(absolute, base)
    }
}

impl Filesystem {
    /// The agent's working directory, writable, and nothing else.
    #[must_use]
    pub fn workdir_only() -> Self {
        Self {
            mode: FsMode::Scoped,
            mounts: vec![Mount {
                path: PathBuf::from("."),
                writable: true,
            }],
            denied: Vec::new(),
            own: Vec::new(),
        }
    }

    /// The mounts that a view of this mode holds, with what may really be written (R33).
    #[must_use]
    pub fn shown_mounts(&self) -> Vec<(PathBuf, bool)> {
        let all = |writable: fn(&Mount) -> bool| {
            let mounts = self.mounts.iter();
            mounts
                .map(|mount| (mount.path.clone(), writable(mount)))
                .collect()
        };
        match self.mode {
            FsMode::Deny | FsMode::Full => Vec::new(),
            FsMode::ReadOnly => all(|_| false),
            FsMode::Scoped => all(|mount| mount.writable),
        }
    }

    /// Whether `denied_paths` deny this absolute path.
    #[must_use]
    pub fn denies(&self, absolute: &Path, base: &Path) -> bool {
        self.denied.iter().any(|denied| denied.covers(absolute, base))
    }
}

#[cfg(test)]
mod tests;
