//! The plan of a Sandbox primitive, with every default filled in. Mostly pure: only some methods read file metadata.

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

/// Host folders with programs and libraries that level `process` always shows.
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

/// The maximum number of entries in one denied folder that are denied one by one, beside the open ones. A folder with more entries
/// is denied as a whole.
const MAX_AROUND: usize = 256;

/// Entries of a state directory.
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

/// Limits of one run. Names contain the unit. A limit applies to the whole process tree of a call, unless its field says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Resident memory of the tree, MiB. Default 1024.
    pub memory_mb: u64,
    /// CPU weight; 1024 is the weight of one core (R36). Default 1024.
    pub cpu_shares: u64,
    /// Maximum number of processes and threads together (R36). Default 256.
    pub max_processes: u64,
    /// Maximum number of open files per process. Default 1024.
    pub max_open_files: u64,
    /// Wall time of one call, milliseconds. Default 300,000. Services have no such limit.
    pub timeout_ms: u64,
    /// How many bytes of standard output and standard error together clawk keeps. Default 1 MiB.
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

/// Adds to `all` every path at or below `place` that does not lead to a path in `open`. Returns false if a folder can't be read or
/// has more than [`MAX_AROUND`] entries.
fn collect_closed_places(place: &Path, open: &BTreeSet<PathBuf>, all: &mut Vec<PathBuf>) -> bool {
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
        if !entry.is_ok_and(|entry| collect_closed_places(&entry.path(), open, all)) {
            return false;
        }
    }
    true
}

/// `capabilities.network.mode`: to which hosts a tool may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkMode {
    /// No network.
    #[default]
    Deny,
    /// Only hosts in [`Network::allowed_hosts`].
    Allowlist,
    /// All hosts that the SSRF guard admits.
    AllowAll,
}

/// `capabilities.network`: which hosts a tool may connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// Whether the network is denied, limited to the allow-list, or open.
    pub mode: NetworkMode,
    /// Host names, or `*.example.com` for subdomains, with an optional `:port`. Lower case.
    pub allowed_hosts: Vec<String>,
    /// Refuse private, loopback and link-local addresses.
    pub block_private_ips: bool,
    /// Connect only to the address that was checked.
    pub dns_pinning: bool,
}

impl Network {
    /// The allow-list as parsed rules. Every component that checks a host uses them. An entry that can't be parsed admits no host.
    #[must_use]
    pub fn host_rules(&self) -> HostAllowList {
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

/// `capabilities.filesystem.mode` (R33): which files a tool sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsMode {
    /// Only the system's programs and libraries; no files of the agent or the user.
    #[default]
    Deny,
    /// The mounts, all of them read-only.
    ReadOnly,
    /// The mounts, each with its own permission.
    Scoped,
    /// All files of the host except the denied paths.
    Full,
}

/// One entry of `mount_paths`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The path to mount: absolute, or relative to the agent's working directory.
    pub path: PathBuf,
    /// Whether the manifest says `rw` for this mount.
    pub writable: bool,
}

/// `capabilities.filesystem`. Serializable, because it is sent to the guard process that checks paths.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Filesystem {
    /// Which part of the host's files the tool sees.
    pub mode: FsMode,
    /// The mounts of `mount_paths`.
    pub mounts: Vec<Mount>,
    /// Denied paths. They override mounts at any depth.
    pub denied: Vec<Denied>,
    /// The agent's own files and folders that a writable mount shows. Tools may read them, but never change them. Set by
    /// [`Plan::with_runtime_files`], not by the manifest.
    #[serde(default)]
    pub own: Vec<PathBuf>,
}

/// `capabilities.shell.mode`: which command lines a tool may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShellMode {
    /// No command lines.
    #[default]
    Deny,
    /// Every command line that no pattern blocks (R35).
    Restricted,
    /// Every command line.
    Full,
}

/// `capabilities.shell`: the rules for command lines.
#[derive(Debug, Clone, Default)]
pub struct Shell {
    /// Which command lines a tool may run.
    pub mode: ShellMode,
    pub(crate) commands: Vec<CommandPattern>,
    pub(crate) patterns: Vec<Regex>,
}

/// `capabilities.secrets.injection` (R37): how secrets are passed to a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecretInjectionMode {
    /// The tool gets a placeholder. The proxy replaces it on the way out.
    #[default]
    HostBoundary,
    /// The secret is in an environment variable of the tool.
    Environment,
    /// The secret is in a file in memory, mode 0400.
    FileMount,
}

/// Defaults for an agent whose manifest has no Sandbox.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct PlanDefaults {
    /// Whether `clawk.toml` lets tools without a declared sandbox run at level `none`.
    pub allow_none: bool,
    /// Limits that apply where the manifest gives none.
    pub limits: Limits,
    /// The shell mode if no sandbox is declared.
    pub shell: ShellMode,
    /// The network mode if no sandbox is declared.
    pub network: NetworkMode,
    /// The filesystem mode if no sandbox is declared. `read-only` and `scoped` then apply to the working directory.
    pub filesystem: FsMode,
}

/// A compiled Sandbox: all defaults are filled in and all patterns are compiled.
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
    /// The plan for an agent that declares no sandbox: the most restrictive one (CKP §3).
    #[must_use]
    pub fn for_undeclared(defaults: &PlanDefaults) -> Self {
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

    /// Returns this plan with another level.
    #[must_use]
    pub fn at_level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Returns this plan with other limits.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Returns this plan with another filesystem part.
    #[must_use]
    pub fn with_filesystem(self, filesystem: Filesystem) -> Self {
        Self { filesystem, ..self }
    }

    /// The runtime that provides the level (for example `docker`), if the manifest names one.
    #[must_use]
    pub fn runtime(&self) -> Option<&str> {
        self.runtime.as_deref()
    }

    /// The level that the manifest asks for.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The resource limits of one run.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The network part of the plan.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The filesystem part of the plan.
    #[must_use]
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Which command lines a tool may run.
    #[must_use]
    pub fn shell_mode(&self) -> ShellMode {
        self.shell.mode
    }

    /// How secrets are passed to the tool.
    #[must_use]
    pub fn injection(&self) -> SecretInjectionMode {
        self.injection
    }

    /// Checks whether this version of clawk can serve the plan on this host.
    ///
    /// # Errors
    /// The level has no back end on this host (a weaker level is never used instead, R32), or a pattern of the Sandbox can't be
    /// compiled.
    pub fn check_available(&self) -> Result<(), SandboxRefusal> {
        if let Some(defect) = &self.defect {
            return Err(defect.clone());
        }
        if self.level == Level::Vm {
            crate::machine::check_servable(self)?;
        }
        // Only a probe of the host decides this (R32, `Launcher::probe_level`). Without a probe, the run itself finds out.
        if self.level == Level::Process
            && let Some(Err(refusal)) = crate::probed::probe_result()
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

    /// Returns this plan for a WebAssembly guest. The guest gets the isolation of level `wasm`, even if the manifest asks for less.
    ///
    /// # Errors
    /// The manifest asks for a stronger level.
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

    /// Returns this plan with the runtime's files protected: the state directory is denied in every mount, and the agent's own
    /// files are read-only in every writable mount. `base` is the agent's working directory.
    #[must_use]
    pub fn with_runtime_files(mut self, own: &RuntimeFiles, base: &Path) -> Self {
        self.filesystem.protect_files(&own.files, base);
        let plan = match &own.state {
            Some(state) => self.with_hidden(state, base),
            None => self,
        };
        plan.with_resolved_denials(base)
    }

    /// Returns this plan with the real paths of `denied_paths` added: links are followed. If an entry can't be resolved, the plan
    /// refuses every call ([`Plan::check_available`] names the entry). `base` is the agent's working directory.
    #[must_use]
    pub fn with_resolved_denials(mut self, base: &Path) -> Self {
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

    /// As [`Plan::with_resolved_denials`], but returns `None` if nothing changes: no rule is added, and no entry fails to resolve.
    #[must_use]
    pub fn resolved_anew(&self, base: &Path) -> Option<Self> {
        let mut filesystem = self.filesystem.clone();
        let same = filesystem.resolve_denied(base).is_ok()
            && filesystem.denied.len() == self.filesystem.denied.len();
        (!same).then(|| self.clone().with_resolved_denials(base))
    }

    /// Returns this plan without the places that a policy denies: `denied` (absolute paths, with everything below), except `open`.
    /// Inside a denied folder, every existing entry that does not lead to an open place is denied by name. Entries that are created
    /// there later are not denied.
    #[must_use]
    pub fn with_denied(mut self, denied: &BTreeSet<PathBuf>, open: &BTreeSet<PathBuf>) -> Self {
        let mut rules = Vec::new();
        for place in denied {
            let mut all = Vec::new();
            // If the entries can't be listed, the whole folder is denied.
            if !collect_closed_places(place, open, &mut all) {
                all = vec![place.clone()];
            }
            rules.append(&mut all);
        }
        self.filesystem.denied.extend(rules.iter().map(Denied::from_path));
        self
    }

    /// Returns this plan with `hidden` denied in every mount.
    fn with_hidden(mut self, hidden: &Path, base: &Path) -> Self {
        let hidden = hidden.canonicalize().unwrap_or_else(|_| hidden.to_owned()); // silent-ok: not made yet
        let filesystem = &mut self.filesystem;
        let mut rules = Vec::new();
        if filesystem.mode == FsMode::Full {
            rules.push(hidden.clone());
        }
        for (path, _) in filesystem.shown_mounts() {
            let named = crate::preflight::path::lexical_path(base, &path);
            for place in [named.canonicalize().unwrap_or_else(|_| named.clone()), named] {
                if hidden.starts_with(&place) && hidden != place {
                    rules.push(hidden.clone());
                } else if place.starts_with(&hidden) {
                    // The operator mounts `hidden` or a part of it: deny only the entries that the runtime writes there.
                    rules.extend(OWN.iter().map(|name| hidden.join(name)));
                }
            }
        }
        rules.sort();
        rules.dedup();
        filesystem.denied.extend(rules.iter().map(Denied::from_path));
        self
    }

    /// Checks one part of a call against this plan, without touching the host.
    ///
    /// # Errors
    /// [`SandboxRefusal::Blocked`] names the rule and what would be allowed; [`SandboxRefusal::Unavailable`] as
    /// [`Self::check_available`].
    pub fn preflight(&self, request: &Request<'_>) -> Result<(), SandboxRefusal> {
        self.check_available()?;
        preflight::check_request(self, request)
    }

    /// Whether a program under this plan finds the host's file `absolute` under the same name. Checks names only: R33's system view
    /// and the mounts, minus `denied_paths`. In a container or a virtual machine, only the mounts are surely the host's files.
    /// `base` is the agent's working directory.
    #[must_use]
    pub fn shows_path(&self, absolute: &Path, base: &Path) -> bool {
        let files = &self.filesystem;
        let mut mounts = files.shown_mounts().into_iter();
        let mounted =
            mounts.any(|(root, _)| absolute.starts_with(preflight::path::lexical_path(base, &root)));
        let seen = match self.level {
            Level::None => return true,
            Level::Wasm | Level::Container => mounted,
            Level::Process | Level::Vm => {
                mounted || files.mode == FsMode::Full || SYSTEM.iter().any(|root| absolute.starts_with(root))
            }
        };
        seen && !files.denies_path(absolute, base)
    }
}

impl Filesystem {
    /// A filesystem part that shows only the agent's working directory, writable.
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

    /// The mounts that this mode shows, each with whether it is really writable (R33).
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
    pub fn denies_path(&self, absolute: &Path, base: &Path) -> bool {
        self.denied
            .iter()
            .any(|denied| denied.covers_path(absolute, base))
    }
}

#[cfg(test)]
mod tests;
