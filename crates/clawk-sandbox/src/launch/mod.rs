//! Starts programs: one run to its end ([`Launcher::launch`]), or a service that keeps running ([`Launcher::start_service`]).

pub mod door;
mod install;
mod levels;
mod nursery;
mod pool;
mod probe;
mod room;
mod run;
mod service;
pub(crate) mod streams;
mod warm;
pub(crate) mod wire;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

pub use door::{EgressGate, EgressServerHandle, InMemoryFile, PORT, SandboxListener};
pub use room::MinFree;
#[cfg(feature = "vm")]
pub(crate) use run::send_with;
pub use service::{SandboxedService, ServiceEnd};
pub use streams::{OutputTee, ToolOutputStream};

use levels::LevelBackends;
pub use levels::{LevelSettings, VmSettings};
pub use pool::WarmPoolLimits;

use crate::child::cell::order::{SandboxEnclosure, is_system};
use clawk_plan::level::{Level, ObtainedEnforcement, SandboxRefusal};
use clawk_plan::plan::{Limits, MINIMAL_PATH, NetworkMode, Plan, ShellMode};
use clawk_plan::preflight::path::lexical_path;

/// The path of this program, for a [`Launcher`] or a [`Spec`]. It is the `/proc` link and not the file name, because an upgrade may
/// replace the file while clawk runs.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

/// Starts sandboxed programs. It knows the program that runs as the supervisor.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    levels: Arc<LevelBackends>,
    nursery: Arc<nursery::ForkServerClient>,
    pool: Option<Arc<pool::Pool>>,
    min_free: MinFree,
}

impl Default for Launcher {
    /// Uses this program with `__sandbox`. Its `main` must then call [`crate::child::main`].
    fn default() -> Self {
        Self::new(OWN_PROGRAM, vec![OsString::from("__sandbox")])
    }
}

impl Launcher {
    /// Uses another program whose `main` calls [`crate::child::main`].
    pub fn new(program: impl Into<PathBuf>, args: Vec<OsString>) -> Self {
        let program = program.into();
        Self {
            nursery: Arc::new(nursery::ForkServerClient::new(program.clone(), args)),
            program,
            levels: Arc::default(),
            pool: None,
            min_free: MinFree::default(),
        }
    }

    /// Starts the fork server, so that the first sandbox need not wait for it. If this fails, the first sandbox reports the error.
    pub fn start_fork_server(&self) {
        self.nursery.start_process();
    }

    /// Ends the fork server if it has forked nothing yet, because no sandbox is expected. If one is needed later, it starts again.
    pub fn end_unused(&self) {
        self.nursery.end_unused();
    }

    /// Removes control groups of an earlier clawk that was killed together with its sandboxes. Call it at start. Returns how many
    /// were removed.
    #[must_use]
    pub fn remove_stale_groups(&self) -> usize {
        crate::child::cell::remove_stale()
    }

    /// Returns this launcher with a pool of prepared sandboxes of level `process`: for configurations that were used, and a
    /// prewarmed one for any other. The launcher and its clones share them. They end with the last clone, and with this process in
    /// any case.
    #[must_use]
    pub fn with_warm(mut self, limits: WarmPoolLimits) -> Self {
        self.pool = match limits.boxes.min(limits.boxes_total) {
            0 => None,
            _ => {
                self.nursery.keep_blank(limits.idle_ms);
                Some(Arc::new(pool::Pool::new(limits, Arc::clone(&self.nursery))))
            }
        };
        self
    }

    /// The number of sandboxes that wait now.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.pool.as_ref().map_or(0, |pool| pool.len())
    }

    /// The number of calls that a waiting sandbox has served so far.
    #[must_use]
    pub fn served_warm(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.served_count())
    }
}

/// An open descriptor that becomes the standard input.
#[derive(Debug, Clone)]
pub struct InputDescriptor(Arc<OwnedFd>);

impl From<OwnedFd> for InputDescriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }
}

impl PartialEq for InputDescriptor {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for InputDescriptor {}

/// A program's standard input.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum LaunchInput {
    /// Empty: end of file at once.
    #[default]
    Null,
    /// These bytes, then end of file.
    Bytes(Vec<u8>),
    /// The data of this descriptor.
    Given(InputDescriptor),
}

/// What to run: program, arguments, environment, input, limits.
#[derive(Clone)]
pub struct Spec {
    /// A path, or a name that is looked up in the `PATH` of [`Spec::env`] (or in [`MINIMAL_PATH`]).
    pub program: String,
    /// The program's arguments.
    pub args: Vec<String>,
    /// The complete environment; nothing is inherited.
    pub env: Vec<(String, String)>,
    /// The start folder. Absent: clawk's own folder, or `/` in a sandbox.
    pub workdir: Option<PathBuf>,
    /// The agent's working directory, absolute; the plan's relative paths start here. Absent: [`Spec::workdir`].
    pub base: Option<PathBuf>,
    /// Standard input. Services always get a pipe instead.
    pub stdin: LaunchInput,
    /// The plan that describes the isolation.
    pub plan: Arc<Plan>,
    /// The time limit in milliseconds. Absent: the plan's. It can't exceed the plan's.
    pub timeout_ms: Option<u64>,
    /// How many bytes of output are kept. Absent: the plan's limit. It can't exceed the plan's.
    pub max_output_bytes: Option<u64>,
    /// Serves the network access that the plan allows. Without a gate, a sandbox has no network, whatever the plan says.
    pub gate: Option<EgressGate>,
    /// Files in memory, mode 0400, that only this run sees (R37).
    pub files: Vec<InMemoryFile>,
    /// Further host paths that the sandbox shows read-only, because the program needs them (`read_paths` of its configuration).
    pub read_paths: Vec<PathBuf>,
    /// Receives the output while the program runs.
    pub tee: Option<OutputTee>,
    /// Whether the sandbox shows `/dev/kvm`, for a machine inside it.
    pub(crate) kvm: bool,
}

impl Spec {
    /// Creates a spec for `program` with an empty environment, no arguments and no input.
    pub fn new(program: impl Into<String>, plan: Arc<Plan>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            workdir: None,
            base: None,
            stdin: LaunchInput::Null,
            plan,
            timeout_ms: None,
            max_output_bytes: None,
            gate: None,
            files: Vec::new(),
            read_paths: Vec::new(),
            tee: None,
            kvm: false,
        }
    }

    /// The folder for the plan's relative paths. If the agent's own folder is known, a call can't choose another one.
    pub(crate) fn path_base(&self) -> PathBuf {
        let base = self.base.as_ref().or(self.workdir.as_ref());
        base.cloned().unwrap_or_else(|| PathBuf::from("/"))
    }

    /// Returns the spec with `denied_paths` resolved again, because links may have been made since the plan was resolved. `None`:
    /// nothing changes.
    fn with_resolved_denials(&self) -> Option<Self> {
        let plan = Arc::new(self.plan.resolved_anew(&self.path_base())?);
        Some(Self { plan, ..self.clone() })
    }

    /// The effective time limit, in milliseconds.
    #[must_use]
    pub fn effective_timeout_ms(&self) -> u64 {
        let ceiling = self.plan.limits().timeout_ms;
        self.timeout_ms.map_or(ceiling, |ms| ms.min(ceiling))
    }

    pub(crate) fn effective_output_bytes(&self) -> u64 {
        let ceiling = self.plan.limits().max_output_bytes;
        self.max_output_bytes.map_or(ceiling, |bytes| bytes.min(ceiling))
    }

    fn sandbox_order(&self, timeout_ms: Option<u64>) -> Result<wire::SandboxOrder, LaunchError> {
        let limits = self.plan.limits();
        let workdir = match &self.workdir {
            None => None,
            Some(path) => Some(
                path.to_str()
                    .map(str::to_owned)
                    .ok_or_else(|| self.setup_error("the folder's name is not UTF-8"))?,
            ),
        };
        let program = self.resolve_program()?;
        let enclosure = match self.plan.level() {
            Level::None => None,
            Level::Process | Level::Wasm | Level::Container | Level::Vm => {
                Some(self.sandbox_enclosure(&program))
            }
        };
        let mut env = self.env_inside(enclosure.as_ref().map_or(&[], |enclosure| &enclosure.read_paths));
        if enclosure.as_ref().is_some_and(|enclosure| enclosure.door) {
            let proxy = format!("http://127.0.0.1:{PORT}");
            for name in [
                "HTTP_PROXY",
                "HTTPS_PROXY",
                "ALL_PROXY",
                "http_proxy",
                "https_proxy",
                "all_proxy",
            ] {
                env.retain(|(given, _)| given != name);
                env.push((name.to_owned(), proxy.clone()));
            }
        }
        Ok(wire::SandboxOrder {
            call: Some(wire::SandboxCall {
                program,
                args: self.args.clone(),
                env,
                timeout_ms,
            }),
            timed: timeout_ms.is_some(),
            workdir,
            level: self.plan.level(),
            memory_mb: limits.memory_mb,
            cpu_shares: limits.cpu_shares,
            max_processes: limits.max_processes,
            max_open_files: limits.max_open_files,
            enclosure,
        })
    }

    /// The program's environment. Its search path contains only folders that it can see. `further` are paths that it sees in
    /// addition to the plan's mounts.
    pub(crate) fn env_inside(&self, further: &[PathBuf]) -> Vec<(String, String)> {
        let base = self.path_base();
        let one = |(name, value): &(String, String)| match name.as_str() {
            "PATH" => (name.clone(), self.plan.search_path(value, further, &base)),
            _ => (name.clone(), value.clone()),
        };
        self.env.iter().map(one).collect()
    }

    /// The isolation of level `process`.
    fn sandbox_enclosure(&self, program: &str) -> SandboxEnclosure {
        let own = self.program == OWN_PROGRAM;
        let mut read_paths = self.read_paths.clone();
        if !own {
            read_paths.extend(self.installation_paths(program));
        }
        let base = self.path_base();
        // Drop paths that the system view shows anyway, so that both configurations can use the same sandbox.
        read_paths.retain(|path| !is_system(&lexical_path(&base, path)));
        SandboxEnclosure {
            filesystem: self.plan.filesystem().clone(),
            base,
            read_paths,
            files: self
                .files
                .iter()
                .map(|file| (file.name.clone(), file.bytes.clone()))
                .collect(),
            strict: self.plan.shell_mode() != ShellMode::Full,
            own,
            door: self.way_out().is_some(),
            probe: false,
            kvm: self.kvm,
        }
    }

    /// The program's file, and the host paths of its installation.
    pub(crate) fn resolve_installation(&self) -> Result<(String, Vec<PathBuf>), LaunchError> {
        let program = self.resolve_program()?;
        let paths = match self.program == OWN_PROGRAM {
            true => Vec::new(),
            false => self.installation_paths(&program),
        };
        Ok((program, paths))
    }

    fn installation_paths(&self, program: &str) -> Vec<PathBuf> {
        let writable = clawk_plan::place::writable_places(self.plan.filesystem(), &self.path_base());
        install::installation_paths(std::path::Path::new(program), self.search_path(), &writable)
    }

    /// The gate for the sandbox's listening socket, if the plan allows any host.
    fn way_out(&self) -> Option<&EgressGate> {
        match self.plan.network().mode {
            NetworkMode::Deny => None,
            NetworkMode::Allowlist | NetworkMode::AllowAll if self.plan.level() == Level::None => None,
            NetworkMode::Allowlist | NetworkMode::AllowAll => self.gate.as_ref(),
        }
    }

    fn search_path(&self) -> &str {
        self.env
            .iter()
            .find(|(name, _)| name == "PATH")
            .map_or(MINIMAL_PATH, |(_, value)| value.as_str())
    }

    /// The program's file. A relative path with a slash is relative to the working directory.
    fn resolve_program(&self) -> Result<String, LaunchError> {
        let mut texts = self
            .args
            .iter()
            .chain(self.env.iter().flat_map(|(name, value)| [name, value]));
        if self.program.is_empty() || self.program.contains('\0') || texts.any(|text| text.contains('\0')) {
            return Err(self.setup_error("program, arguments and environment must hold no null byte"));
        }
        if self.program.contains('/') {
            let path = match &self.workdir {
                Some(workdir) => workdir.join(&self.program),
                None => PathBuf::from(&self.program),
            };
            return path
                .to_str()
                .map(str::to_owned)
                .ok_or_else(|| self.setup_error("the program's name is not UTF-8"));
        }
        let path = self.search_path();
        find_program(&self.program, path).ok_or_else(|| {
            self.setup_error(&format!(
                "no such program in `{path}`; install it or give its full path"
            ))
        })
    }

    /// Converts the sandbox's report of a failed start: a mechanism that this host lacks (R32), or a failure of this run only.
    fn not_started(&self, reason: &str) -> LaunchError {
        match probe::wall_refusal(reason) {
            Some(refusal) if self.plan.level() == Level::Process => LaunchError::Refused(refusal),
            Some(_) | None => self.setup_error(reason),
        }
    }

    pub(crate) fn setup_error(&self, reason: &str) -> LaunchError {
        let program = self.program.chars().take(200).collect();
        LaunchError::Refused(SandboxRefusal::Setup {
            program,
            reason: reason.to_owned(),
        })
    }
}

/// Finds a program in a search path.
fn find_program(program: &str, path: &str) -> Option<String> {
    path.split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| format!("{folder}/{program}"))
        .find(|candidate| rustix::fs::access(candidate.as_str(), rustix::fs::Access::EXEC_OK).is_ok())
}

impl fmt::Debug for Spec {
    /// Leaves out arguments, input and environment values, because they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("program", &self.program)
            .field("args", &self.args.len())
            .field("env", &self.env.iter().map(|(name, _)| name).collect::<Vec<_>>())
            .field("workdir", &self.workdir)
            .field("timeout_ms", &self.timeout_ms)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LaunchInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Given(_) => f.write_str("Given"),
        }
    }
}

/// The limit that a run exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitHit {
    /// Ended after this many milliseconds.
    Time(u64),
    /// Killed because it used more than this many MiB.
    Memory(u64),
    /// Killed because it had more than this many processes and threads.
    Processes(u64),
    /// Not ended; output beyond this many bytes was discarded.
    Output(u64),
    /// Ended because a disk that it may write to had less than this many MiB free.
    Disk(u64),
    /// Ended because a disk that it may write to had space for fewer than this many files.
    Files(u64),
}

impl LimitHit {
    fn from_report(hit: wire::ReportedLimit, limits: &Limits, timeout_ms: u64) -> Self {
        match hit {
            wire::ReportedLimit::Time => Self::Time(timeout_ms),
            wire::ReportedLimit::Memory => Self::Memory(limits.memory_mb),
            wire::ReportedLimit::Processes => Self::Processes(limits.max_processes),
        }
    }
}

impl fmt::Display for LimitHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Time(ms) => write!(f, "ended after {ms} ms (`timeout_ms`)"),
            Self::Memory(mb) => write!(f, "killed for using more than {mb} MiB (`memory_mb`)"),
            Self::Processes(n) => write!(
                f,
                "killed for starting more than {n} processes and threads (`max_processes`)"
            ),
            Self::Output(bytes) => write!(f, "output cut at {bytes} bytes (`max_output_bytes`)"),
            Self::Disk(mb) => write!(
                f,
                "ended because a disk that it may write to has less than {mb} MiB left (`[sandbox] min_free_disk_mb`)"
            ),
            Self::Files(n) => write!(
                f,
                "ended because a disk that it may write to has room for fewer than {n} files left (`[sandbox] min_free_files`)"
            ),
        }
    }
}

/// The result of a run. All of its processes have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchOutcome {
    /// The program's exit code, if it ended by itself.
    pub exit_code: Option<i32>,
    /// The signal that ended it, if any.
    pub signal: Option<i32>,
    /// The kept part of standard output.
    pub stdout: Vec<u8>,
    /// The kept part of standard error.
    pub stderr: Vec<u8>,
    /// Whether output was discarded.
    pub truncated: bool,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The mechanisms that really isolated the run.
    pub obtained: ObtainedEnforcement,
    /// The limit that ended the run or cut its output.
    pub limit: Option<LimitHit>,
    /// How many processes it had left behind. They were killed at its end.
    pub swept: u64,
}

impl LaunchOutcome {
    /// Whether the run ended by itself with exit code 0 and exceeded no limit.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.exit_code == Some(0) && self.limit.is_none()
    }
}

/// The reason why a run has no [`LaunchOutcome`].
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Nothing was run.
    #[error(transparent)]
    Refused(#[from] SandboxRefusal),
    /// The supervisor was lost during the run. The outcome of the program is unknown.
    #[error("the supervisor of `{program}` was lost: {reason}")]
    Lost {
        /// The program.
        program: String,
        /// The cause.
        reason: String,
    },
}
