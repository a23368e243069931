//! One guest from its start to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, Store};
use wasmtime_wasi::filesystem::WasiFilesystemCtxView;
use wasmtime_wasi::p2::bindings::CommandPre;
use wasmtime_wasi::p2::pipe::MemoryInputPipe;
use wasmtime_wasi::{FsPerms, I32Exit, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::files::{Guarded, Walls};
use super::http::Requests;
use super::output::Output;
use super::{Backend, refusal};
use crate::launch::streams::Budget;
use crate::launch::{Input, LaunchError, LimitHit, Outcome, Spec};
use crate::level::{Level, Obtained, Place};
use crate::plan::{FsMode, NetworkMode};
use crate::preflight::path::lexical;

/// What `wasmtime run` ends with when a guest traps.
const TRAP_CODE: i32 = 134;

/// Elements of all tables of a guest together.
const MAX_TABLE_ELEMENTS: usize = 1 << 20;

/// How long after its deadline a guest is waited for that is stuck in a call to the host, milliseconds.
const STUCK_MS: u64 = 2_000;

/// Handles of a guest beside those of its open files and their streams.
const MAX_RESOURCES: usize = 1024;

/// Largest headers of one message that a guest makes, bytes, as they lie in memory.
const MAX_FIELDS_BYTES: usize = 32 << 10;

/// Most random bytes that a guest gets at once.
const MAX_RANDOM_BYTES: u64 = 1 << 20;

/// What a guest's host functions see.
pub(crate) struct State {
    ctx: WasiCtx,
    table: ResourceTable,
    pub(super) walls: Walls,
    http: WasiHttpCtx,
    requests: Requests,
    meter: Meter,
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
    /// The guest's files behind their guard.
    pub(super) fn guarded(&mut self) -> Guarded<'_> {
        let inner = WasiFilesystemCtxView {
            ctx: self.ctx.filesystem(),
            table: &mut self.table,
        };
        Guarded {
            inner,
            walls: &mut self.walls,
        }
    }
}

/// Counts linear memory over all of a guest's memories.
#[derive(Debug)]
struct Meter {
    bytes: usize,
    limit: usize,
    elements: usize,
    hit: bool,
}

impl ResourceLimiter for Meter {
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
struct Ended {
    exit_code: Option<i32>,
    timed_out: bool,
    memory_hit: bool,
    refused: Option<String>,
}

/// Runs a guest to its end. Dropping the future ends it within a tick.
pub(crate) async fn launch(backend: &Arc<Backend>, spec: &Spec) -> Result<Outcome, LaunchError> {
    let started = Instant::now();
    let backend = Arc::clone(backend);
    let work = Work::new(spec)?;
    let (stdout, stderr) = (work.stdout.clone(), work.stderr.clone());
    let (limit, budget) = (work.timeout_ms, Arc::clone(&work.budget));
    // Dropped with this future: what runs on the other thread then sees that nobody waits.
    let (waits, mut gone) = tokio::sync::oneshot::channel::<()>();
    // Compiling is no part of its time: the guest says when that begins.
    let (begin, begun) = tokio::sync::oneshot::channel::<()>();
    let handle = tokio::runtime::Handle::current();
    let running = tokio::task::spawn_blocking(move || {
        handle.block_on(async {
            tokio::select! {
                ended = work.run(&backend, begin) => ended,
                _ = &mut gone => Err(refusal("nobody waits for it", "ask again").into()),
            }
        })
    });
    // The deadline is kept inside, where the guest gives way. A host call that the kernel does not come back from keeps its thread,
    // and nobody waits for it.
    let stuck = async {
        if begun.await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(limit.saturating_add(STUCK_MS))).await;
    };
    let ended = tokio::select! {
        ended = running => ended.map_err(|error| spec.setup(&format!("its host failed: {error}")))??,
        () = stuck => Ended {
            exit_code: None,
            timed_out: true,
            memory_hit: false,
            refused: None,
        },
    };
    drop(waits);
    if let Some(reason) = &ended.refused {
        return Err(spec.setup(reason));
    }
    let (stdout, stderr) = (stdout.take(), stderr.take());
    let truncated = stdout.1 || stderr.1;
    let failed = ended.exit_code != Some(0);
    let limit = match &ended {
        Ended { timed_out: true, .. } => Some(LimitHit::Time(limit)),
        Ended { memory_hit: true, .. } if failed => Some(LimitHit::Memory(spec.plan.limits().memory_mb)),
        _ if truncated => Some(LimitHit::Output(budget.limit())),
        _ => None,
    };
    Ok(Outcome {
        exit_code: ended.exit_code.filter(|_| !ended.timed_out),
        signal: None,
        stdout: stdout.0,
        stderr: stderr.0,
        truncated,
        duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        obtained: obtained(spec),
        limit,
        swept: 0,
    })
}

fn obtained(spec: &Spec) -> Obtained {
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
    Obtained {
        level: Level::Wasm,
        place: Place::Local,
        mechanisms: mechanisms.into_iter().map(str::to_owned).collect(),
        missing,
    }
}

/// Everything of a run that the other thread needs.
struct Work {
    path: PathBuf,
    ctx: WasiCtx,
    walls: Walls,
    http: WasiHttpCtx,
    requests: Requests,
    memory: usize,
    resources: usize,
    timeout_ms: u64,
    budget: Arc<Budget>,
    stdout: Output,
    stderr: Output,
}

impl Work {
    fn new(spec: &Spec) -> Result<Self, LaunchError> {
        let budget = Arc::new(Budget::new(spec.effective_output_bytes()));
        let (stdout, stderr) = (Output::new(&budget), Output::new(&budget));
        let base = spec.anchor();
        let path = lexical(&base, Path::new(&spec.program));
        let mut ctx = WasiCtxBuilder::new();
        ctx.allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .max_random_size(MAX_RANDOM_BYTES)
            .allow_blocking_current_thread(true);
        ctx.arg(path.file_name().unwrap_or_default().to_string_lossy())
            .args(&spec.args)
            .envs(&spec.env);
        if let Input::Bytes(bytes) = &spec.stdin {
            ctx.stdin(MemoryInputPipe::new(bytes.clone()));
        }
        ctx.stdout(stdout.clone()).stderr(stderr.clone());
        let roots = preopens(spec, &base, &mut ctx)?;
        let limits = spec.plan.limits();
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(MAX_FIELDS_BYTES);
        Ok(Self {
            path,
            http,
            requests: Requests::new(spec.gate.clone()),
            ctx: ctx.build(),
            walls: Walls::new(spec.plan.filesystem(), base, roots, limits.max_open_files),
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

    async fn run(
        self,
        backend: &Backend,
        begin: tokio::sync::oneshot::Sender<()>,
    ) -> Result<Ended, LaunchError> {
        let engine = backend.engine()?;
        let hint = "bind a WebAssembly file by `[tools.NAME] wasm = \"…\"`, or set the Sandbox's `level` to `process`";
        let guest = engine
            .guest(&self.path)
            .map_err(|missing| refusal(&missing, hint))?;
        let meter = Meter {
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
        let _ticking = engine.tick();
        let deadline = Duration::from_millis(self.timeout_ms);
        let _ = begin.send(()); // silent-ok: nobody waits any more, and it ends at once
        let result = tokio::time::timeout(deadline, call(&guest, &mut store)).await;
        let memory_hit = store.data().meter.hit;
        Ok(match result {
            Err(_elapsed) => Ended {
                exit_code: None,
                timed_out: true,
                memory_hit,
                refused: None,
            },
            Ok(Ok(exit_code)) => Ended {
                exit_code: Some(exit_code),
                timed_out: false,
                memory_hit,
                refused: None,
            },
            Ok(Err(Failed::Start(reason))) if !memory_hit => Ended {
                exit_code: None,
                timed_out: false,
                memory_hit,
                refused: Some(reason),
            },
            Ok(Err(Failed::Start(reason) | Failed::Trap(reason))) => {
                self.stderr.push(format!("{reason}\n").as_bytes());
                Ended {
                    exit_code: Some(TRAP_CODE),
                    timed_out: false,
                    memory_hit,
                    refused: None,
                }
            }
        })
    }
}

enum Failed {
    /// Nothing of it ran.
    Start(String),
    /// It ran into something.
    Trap(String),
}

async fn call(guest: &CommandPre<State>, store: &mut Store<State>) -> Result<i32, Failed> {
    let command = guest
        .instantiate_async(&mut *store)
        .await
        .map_err(|error| Failed::Start(format!("{error:#}")))?;
    match command.wasi_cli_run().call_run(&mut *store).await {
        Ok(Ok(())) => Ok(0),
        Ok(Err(())) => Ok(1),
        Err(error) => match error.downcast_ref::<I32Exit>() {
            Some(I32Exit(code)) => Ok(*code),
            None => Err(Failed::Trap(format!("{:#}", error.root_cause()))),
        },
    }
}

/// Gives the guest the folders of the plan; their places on the host.
fn preopens(
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
            .map(|mount| (lexical(base, &mount.path), false))
            .collect(),
        FsMode::Scoped => fs
            .mounts
            .iter()
            .map(|mount| (lexical(base, &mount.path), mount.writable))
            .collect(),
        FsMode::Full => vec![(PathBuf::from("/"), true)],
    };
    let owned = crate::place::writable(fs, base);
    let mut roots = Vec::new();
    for (path, writable) in mounts {
        let perms = if writable {
            FsPerms::ReadWrite
        } else {
            FsPerms::ReadOnly
        };
        let fault =
            |error: &dyn std::fmt::Display| spec.setup(&format!("the mount `{}`: {error}", path.display()));
        let real = crate::place::resolve(&path, &owned).map_err(|error| fault(&error))?;
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
