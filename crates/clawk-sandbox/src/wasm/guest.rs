//! Runs one guest from its start to its end.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, Store};
use wasmtime_wasi::filesystem::WasiFilesystemCtxView;
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::files::{GuardedFilesystem, GuestFileAccess};
use super::http::GuestRequests;
use super::output::Output;
use super::{Backend, wasm_refusal};
use crate::launch::streams::OutputBudget;
use crate::launch::{LaunchError, LaunchInput, LaunchOutcome, LimitHit, Spec};
use clawk_plan::level::{CodeOrigin, Level, ObtainedEnforcement};
use clawk_plan::plan::{FsMode, NetworkMode};
use clawk_plan::preflight::path::lexical_path;

/// The exit code after a trap, the same as that of `wasmtime run`.
const TRAP_CODE: i32 = 134;

/// The maximum number of elements of all tables of a guest together.
const MAX_TABLE_ELEMENTS: usize = 1 << 20;

/// How long after its deadline to wait for a guest that is blocked in a host call.
const STUCK: Duration = Duration::from_secs(2);

/// The time limit for compiling a guest and getting a free thread. It does not count as the guest's time.
const COMPILING: Duration = Duration::from_secs(600);

/// The maximum number of a guest's handles, in addition to open files and their streams.
const MAX_RESOURCES: usize = 1024;

/// The maximum size of the headers of one message that a guest makes, in bytes of memory.
const MAX_FIELDS_BYTES: usize = 32 << 10;

/// How many random bytes a guest can get in one call.
const MAX_RANDOM_BYTES: u64 = 1 << 20;

/// The state that a guest's host functions use.
pub(crate) struct State {
    ctx: WasiCtx,
    table: ResourceTable,
    pub(super) walls: GuestFileAccess,
    http: WasiHttpCtx,
    requests: GuestRequests,
    meter: GuestMemoryMeter,
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.requests,
            table: &mut self.table,
            ctx: &mut self.http,
        }
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.ctx,
            table: &mut self.table,
        }
    }
}

impl State {
    /// The guest's files with their checks.
    pub(super) fn guarded_filesystem(&mut self) -> GuardedFilesystem<'_> {
        let inner = WasiFilesystemCtxView {
            ctx: self.ctx.filesystem(),
            table: &mut self.table,
        };
        GuardedFilesystem {
            inner,
            walls: &mut self.walls,
        }
    }
}

/// Counts the linear memory of all of a guest's memories together.
#[derive(Debug)]
struct GuestMemoryMeter {
    bytes: usize,
    limit: usize,
    elements: usize,
    hit: bool,
}

impl ResourceLimiter for GuestMemoryMeter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.bytes.saturating_sub(current).saturating_add(desired);
        let fits = wanted <= self.limit;
        match fits {
            true => self.bytes = wanted,
            false => self.hit = true,
        }
        Ok(fits)
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.elements.saturating_sub(current).saturating_add(desired);
        let fits = wanted <= MAX_TABLE_ELEMENTS;
        if fits {
            self.elements = wanted;
        }
        Ok(fits)
    }
}

/// How a guest ended.
struct GuestExit {
    exit_code: Option<i32>,
    timed_out: bool,
    memory_hit: bool,
    refused: Option<String>,
}

/// Runs a guest to its end. Dropping the future ends the guest, even while it computes or waits.
pub(crate) async fn launch_guest(backend: &Arc<Backend>, spec: &Spec) -> Result<LaunchOutcome, LaunchError> {
    let started = Instant::now();
    let work = GuestJob::new(spec)?;
    let (stdout, stderr) = (work.stdout.clone(), work.stderr.clone());
    let (limit, budget) = (work.timeout_ms, Arc::clone(&work.budget));
    let begun = Arc::<OnceLock<Instant>>::default();
    let (lives, over) = oneshot::channel();
    let life = GuestLifeline {
        backend: Arc::clone(backend),
        lives: Some(lives),
    };
    let mut running = {
        let (backend, begun) = (Arc::clone(backend), Arc::clone(&begun));
        let handle = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || handle.block_on(work.run(&backend, &begun, over)))
    };
    let ended = tokio::select! {
        biased;
        ended = &mut running => Some(ended),
        () = wait_for_deadline(&begun, Duration::from_millis(limit)) => {
            drop(life);
            // A host call that never returns from the kernel keeps its thread, and nobody waits for it.
            tokio::time::timeout(STUCK, running).await.ok() // silent-ok: told as a deadline, below
        }
    };
    let ended = match ended {
        Some(ended) => ended.map_err(|error| spec.setup_error(&format!("its host failed: {error}")))??,
        // When the guest gets a thread, it sees before its first step that nobody waits.
        None if begun.get().is_none() => {
            return Err(spec.setup_error(&format!("it was not compiled within {} s", COMPILING.as_secs())));
        }
        None => GuestExit {
            exit_code: None,
            timed_out: true,
            memory_hit: false,
            refused: None,
        },
    };
    if let Some(reason) = &ended.refused {
        return Err(spec.setup_error(reason));
    }
    let (stdout, stderr) = (stdout.take_output(), stderr.take_output());
    let truncated = stdout.1 || stderr.1;
    let failed = ended.exit_code != Some(0);
    let limit = match &ended {
        GuestExit { timed_out: true, .. } => Some(LimitHit::Time(limit)),
        GuestExit { memory_hit: true, .. } if failed => Some(LimitHit::Memory(spec.plan.limits().memory_mb)),
        _ if truncated => Some(LimitHit::Output(budget.limit())),
        _ => None,
    };
    Ok(LaunchOutcome {
        exit_code: ended.exit_code.filter(|_| !ended.timed_out),
        signal: None,
        stdout: stdout.0,
        stderr: stderr.0,
        truncated,
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        obtained: obtained_enforcement(spec),
        limit,
        swept: 0,
    })
}

/// Held by a guest's caller. When it is dropped, the guest ends.
struct GuestLifeline {
    backend: Arc<Backend>,
    lives: Option<oneshot::Sender<Infallible>>,
}

impl Drop for GuestLifeline {
    fn drop(&mut self) {
        // First drop what the guest checks, then wake the guest to check it.
        drop(self.lives.take());
        self.backend.interrupt_guests();
    }
}

/// Completes when the guest's time limit expires. The limit starts after compilation. Also completes if compilation takes too long.
/// The guest only stores its start time, because a notification would wake this thread.
async fn wait_for_deadline(begun: &OnceLock<Instant>, limit: Duration) {
    let asked = Instant::now();
    loop {
        let left = match begun.get() {
            Some(begun) => limit.saturating_sub(begun.elapsed()),
            None => limit.min(COMPILING.saturating_sub(asked.elapsed())),
        };
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

fn obtained_enforcement(spec: &Spec) -> ObtainedEnforcement {
    let mut mechanisms = vec![
        "wasmtime",
        "epoch:time",
        "meter:memory",
        "imports:files-and-http",
        "netns:none",
        "no-processes",
    ];
    let mut missing = Vec::new();
    if spec.plan.network().mode != NetworkMode::Deny && spec.gate.is_some() {
        mechanisms.push("egress:wasi-http");
    }
    if spec.plan.limits().cpu_shares != 1024 {
        missing.push("cpu_shares".to_owned());
    }
    if !spec.plan.filesystem().denied.is_empty() {
        mechanisms.push("guard:denied_paths");
    }
    ObtainedEnforcement {
        level: Level::Wasm,
        place: CodeOrigin::Local,
        mechanisms: mechanisms.into_iter().map(str::to_owned).collect(),
        missing,
    }
}

/// Everything that the guest's thread needs for a run.
struct GuestJob {
    path: PathBuf,
    ctx: WasiCtx,
    walls: GuestFileAccess,
    http: WasiHttpCtx,
    requests: GuestRequests,
    memory: usize,
    resources: usize,
    timeout_ms: u64,
    budget: Arc<OutputBudget>,
    stdout: Output,
    stderr: Output,
}

impl GuestJob {
    fn new(spec: &Spec) -> Result<Self, LaunchError> {
        let budget = Arc::new(OutputBudget::new(spec.effective_output_bytes()));
        let (stdout, stderr) = (Output::new(&budget), Output::new(&budget));
        let base = spec.path_base();
        let path = lexical_path(&base, Path::new(&spec.program));
        let mut ctx = WasiCtxBuilder::new();
        ctx.allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(MAX_RANDOM_BYTES)
            .allow_blocking_current_thread(true);
        ctx.arg(path.file_name().unwrap_or_default().to_string_lossy())
            .args(&spec.args)
            .envs(&spec.env);
        if let LaunchInput::Bytes(bytes) = &spec.stdin {
            ctx.stdin(MemoryInputPipe::new(bytes.clone()));
        }
        ctx.stdout(stdout.clone()).stderr(stderr.clone());
        let roots = preopen_folders(spec, &base, &mut ctx)?;
        let limits = spec.plan.limits();
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(MAX_FIELDS_BYTES);
        Ok(Self {
            path,
            http,
            requests: GuestRequests::new(spec.gate.clone()),
            ctx: ctx.build(),
            walls: GuestFileAccess::new(spec.plan.filesystem(), base, roots, limits.max_open_files),
            resources: usize::try_from(limits.max_open_files)
                .unwrap_or(usize::MAX)
                .saturating_mul(2)
                .saturating_add(MAX_RESOURCES),
            memory: usize::try_from(limits.memory_mb << 20).unwrap_or(usize::MAX),
            timeout_ms: spec.effective_timeout_ms(),
            budget,
            stdout,
            stderr,
        })
    }

    /// Runs the guest on its own thread, until it ends or its [`GuestLifeline`] is dropped.
    async fn run(
        self,
        backend: &Backend,
        begun: &OnceLock<Instant>,
        over: oneshot::Receiver<Infallible>,
    ) -> Result<GuestExit, LaunchError> {
        let engine = backend.engine()?;
        let hint = "bind a WebAssembly file by `[tools.NAME] wasm = \"…\"`, or set the Sandbox's `level` to `process`";
        let guest = engine
            .load_guest(&self.path)
            .map_err(|missing| wasm_refusal(&missing, hint))?;
        let meter = GuestMemoryMeter {
            bytes: 0,
            limit: self.memory,
            elements: 0,
            hit: false,
        };
        let mut table = ResourceTable::new();
        table.set_max_capacity(self.resources);
        let state = State {
            ctx: self.ctx,
            table,
            walls: self.walls,
            http: self.http,
            requests: self.requests,
            meter,
        };
        let mut store = Store::new(engine.raw(), state);
        store.limiter(|state| &mut state.meter);
        store.set_epoch_deadline(1);
        store.epoch_deadline_async_yield_and_update(1);
        let _ = begun.set(Instant::now()); // silent-ok: set once
        // `over` is checked after the epoch deadline is set. A lifeline that is dropped before the check is seen by it; one that is
        // dropped later moves the epoch past the deadline.
        let result = tokio::select! {
            biased;
            _ = over => None,
            result = call(&guest, &mut store) => Some(result),
        };
        let memory_hit = store.data().meter.hit;
        Ok(match result {
            None => GuestExit {
                exit_code: None,
                timed_out: true,
                memory_hit,
                refused: None,
            },
            Some(Ok(exit_code)) => GuestExit {
                exit_code: Some(exit_code),
                timed_out: false,
                memory_hit,
                refused: None,
            },
            Some(Err(GuestFailure::Start(reason))) if !memory_hit => GuestExit {
                exit_code: None,
                timed_out: false,
                memory_hit,
                refused: Some(reason),
            },
            Some(Err(GuestFailure::Start(reason) | GuestFailure::Trap(reason))) => {
                self.stderr.push(format!("{reason}\n").as_bytes());
                GuestExit {
                    exit_code: Some(TRAP_CODE),
                    timed_out: false,
                    memory_hit,
                    refused: None,
                }
            }
        })
    }
}

enum GuestFailure {
    /// The guest could not be started; nothing of it ran.
    Start(String),
    /// The guest trapped.
    Trap(String),
}

async fn call(guest: &CommandPre<State>, store: &mut Store<State>) -> Result<i32, GuestFailure> {
    let command = guest
        .instantiate_async(&mut *store)
        .await
        .map_err(|error| GuestFailure::Start(format!("{error:#}")))?;
    match command.wasi_cli_run().call_run(&mut *store).await {
        Ok(Ok(())) => Ok(0),
        Ok(Err(())) => Ok(1),
        Err(error) => match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(code)) => Ok(*code),
            None => Err(GuestFailure::Trap(format!("{:#}", error.root_cause()))),
        },
    }
}

/// Gives the guest the folders of the plan. Returns their paths on the host.
fn preopen_folders(
    spec: &Spec,
    base: &Path,
    ctx: &mut WasiCtxBuilder,
) -> Result<Vec<(PathBuf, PathBuf)>, LaunchError> {
    let fs = spec.plan.filesystem();
    let mounts: Vec<(PathBuf, bool)> = match fs.mode {
        FsMode::Deny => Vec::new(),
        FsMode::ReadOnly => fs
            .mounts
            .iter()
            .map(|mount| (lexical_path(base, &mount.path), false))
            .collect(),
        FsMode::Scoped => fs
            .mounts
            .iter()
            .map(|mount| (lexical_path(base, &mount.path), mount.writable))
            .collect(),
        FsMode::Full => vec![(PathBuf::from("/"), true)],
    };
    let owned = clawk_plan::place::writable_places(fs, base);
    let mut roots = Vec::new();
    for (path, writable) in mounts {
        let perms = if writable {
            FsPerms::ReadWrite
        } else {
            FsPerms::ReadOnly
        };
        let fault = |error: &dyn std::fmt::Display| {
            spec.setup_error(&format!("the mount `{}`: {error}", path.display()))
        };
        let real = clawk_plan::place::resolve_path(&path, &owned).map_err(|error| fault(&error))?;
        if !real.is_dir() {
            return Err(fault(&"a guest is given folders, not single files"));
        }
        ctx.preopened_dir(&real, path.to_string_lossy(), perms)
            .map_err(|error| fault(&error))?;
        if path == base {
            ctx.preopened_dir(&real, ".", perms)
                .map_err(|error| fault(&error))?;
        }
        roots.push((real, path));
    }
    Ok(roots)
}
