//! One run in a machine: the sandbox around it, the messages to the agent, and the tool's result.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream as StdUnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};

use super::host::{Engine, MachineRuntime};
use super::wire::{self, FileServerRules, Job, MachineSetup, MachineToolExit};
use super::{judge, stage};
use crate::container::image::create_private_folder;
use crate::launch::{
    InputDescriptor, LaunchError, LaunchInput, LaunchOutcome, Launcher, LimitHit, OWN_PROGRAM,
    SandboxedService, Spec, send_with,
};
use clawk_plan::level::{CodeOrigin, Level, ObtainedEnforcement};
use clawk_plan::machine::KERNEL_MB;
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::{Limits, Plan};

/// Memory for qemu and the file server, in addition to the machine's memory, in MiB.
const QEMU_MB: u64 = 320;

/// The number of threads of the stage, qemu and the file server.
const THREADS: u64 = 96;

/// The file server keeps a descriptor open for every name that the machine remembers.
const OPEN_FILES: u64 = 65_536;

/// A machine that is ready to be started.
struct PreparedMachine {
    inner: Spec,
    /// The launcher's end of the stage's socket.
    socket: UnixStream,
    setup: Vec<u8>,
    job: Vec<u8>,
}

async fn prepare_machine(found: &MachineRuntime, spec: &Spec) -> Result<PreparedMachine, LaunchError> {
    let failed = |error: std::io::Error| spec.setup_error(&format!("its machine: {error}"));
    let unsaid = |error: serde_json::Error| spec.setup_error(&error.to_string());
    let (program, installed) = spec.resolve_installation()?;
    let program = match spec.program == OWN_PROGRAM {
        true => found.program.to_string_lossy().into_owned(),
        false => program,
    };
    let (ours, theirs) = StdUnixStream::pair().map_err(failed)?;
    let aliases = find_aliases(spec).await?;
    let setup = serde_json::to_vec(&machine_setup(found, spec, aliases)).map_err(unsaid)?;
    let job = serde_json::to_vec(&machine_job(spec, program, &installed)).map_err(unsaid)?;
    let inner = box_spec(found, spec, installed, theirs.into());
    if job.len() > wire::MAX_JOB_BYTES {
        return Err(spec.setup_error("arguments and environment exceed 8 MiB"));
    }
    let length = u32::try_from(setup.len()).map_err(|_large| spec.setup_error("the plan is too long"))?;
    let sockets = file_sockets().map_err(failed)?;
    let [server, machine] = sockets.each_ref().map(AsFd::as_fd);
    send_with(ours.as_fd(), &length.to_le_bytes(), &[server, machine]).map_err(failed)?;
    ours.set_nonblocking(true).map_err(failed)?;
    Ok(PreparedMachine {
        inner,
        socket: UnixStream::from_std(ours).map_err(failed)?,
        setup,
        job,
    })
}

/// Runs the program in a new machine.
pub(super) async fn run(
    launcher: &Launcher,
    found: &MachineRuntime,
    spec: &Spec,
) -> Result<LaunchOutcome, LaunchError> {
    let PreparedMachine {
        inner,
        socket,
        setup,
        job,
    } = prepare_machine(found, spec).await?;
    let running = async move {
        // The sandbox's end of the socket is dropped with the run, so that the reader ends.
        Box::pin(launcher.launch(&inner)).await
    };
    let mut said = MachineReport::default();
    let (outcome, ()) = tokio::join!(
        running,
        exchange_messages(socket, &setup, &job, &spec.stdin, &mut said)
    );
    finish_outcome(found, spec, outcome?, said)
}

/// How long after its boot a machine may take until its service runs, in milliseconds.
const START_MS: u64 = 10_000;

/// Starts the program as a service in a new machine.
pub(super) async fn start_service(
    launcher: &Launcher,
    found: &MachineRuntime,
    spec: &Spec,
) -> Result<SandboxedService, LaunchError> {
    let PreparedMachine {
        inner,
        socket,
        setup,
        job,
    } = prepare_machine(found, spec).await?;
    let failed = |error: std::io::Error| spec.setup_error(&format!("its machine: {error}"));
    let mut service = Box::pin(launcher.start_service(&inner)).await?;
    drop(inner);
    let (mut reader, mut writer) = socket.into_split();
    let starting = async {
        writer.write_all(&setup).await?;
        writer.write_all(&wire::encode_frame(wire::JOB, &job)).await?;
        loop {
            match next(&mut reader).await? {
                Some((wire::STARTED, _)) => return Ok(()),
                Some((wire::HELLO, _)) => {}
                Some((_, body)) => return Err(std::io::Error::other(failure_text(&body))),
                None => return Err(std::io::Error::other("it stopped")),
            }
        }
    };
    let patience = Duration::from_millis(found.boot_ms + START_MS);
    match tokio::time::timeout(patience, starting).await {
        Ok(started) => started.map_err(failed)?,
        Err(_elapsed) => return Err(spec.setup_error("its machine does not answer")),
    }
    let (stdin, mut input) = pipe::pipe().map_err(failed)?;
    let feeding = async move {
        let mut buffer = vec![0; wire::CHUNK];
        while let Ok(read @ 1..) = input.read(&mut buffer).await {
            let part = buffer.get(..read).unwrap_or_default();
            if writer
                .write_all(&wire::encode_frame(wire::INPUT, part))
                .await
                .is_err()
            {
                return; // the machine is gone
            }
        }
        let _ = writer.write_all(&wire::encode_frame(wire::INPUT, &[])).await; // silent-ok: as above
        // Keep the socket open until the other side closes it.
        while let Ok(Some(_)) = next(&mut reader).await {}
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "ends with the service, which its `Service` handle owns"
    )]
    let task = AbortOnDropTask(tokio::spawn(feeding));
    service.stdin = Some(stdin);
    let obtained = obtained_enforcement(found, spec, service.obtained_enforcement().clone());
    Ok(service.with_enclosure(obtained, vec![Box::new(task)]))
}

/// A task that is aborted when this is dropped.
struct AbortOnDropTask(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDropTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The next frame from the stage; `None` at the end.
async fn next(reader: &mut OwnedReadHalf) -> std::io::Result<Option<(u8, Vec<u8>)>> {
    let mut first = [0_u8; 5];
    if reader.read_exact(&mut first).await.is_err() {
        return Ok(None); // cut short or not: what came before counts
    }
    let (kind, length) = wire::parse_header(first, wire::MAX_ANSWER_BYTES)?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    Ok(Some((kind, body)))
}

/// The text of a failure, limited in length.
fn failure_text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().take(600).collect()
}

async fn find_aliases(spec: &Spec) -> Result<Vec<(u64, u64)>, LaunchError> {
    let filesystem = spec.plan.filesystem().clone();
    if filesystem.denied.is_empty() {
        return Ok(Vec::new());
    }
    let base = spec.path_base();
    tokio::task::spawn_blocking(move || judge::find_aliases(&filesystem, &base))
        .await
        .map_err(|error| spec.setup_error(&error.to_string()))
}

/// The machine's messages about its tool.
#[derive(Debug, Default)]
struct MachineReport {
    started: bool,
    end: Option<MachineToolExit>,
    fault: Option<String>,
}

/// Sends everything, and reads until the other side closes the socket.
async fn exchange_messages(
    socket: UnixStream,
    setup: &[u8],
    job: &[u8],
    input: &LaunchInput,
    said: &mut MachineReport,
) {
    let (mut reader, mut writer) = socket.into_split();
    let speaking = async {
        writer.write_all(setup).await?;
        writer.write_all(&wire::encode_frame(wire::JOB, job)).await?;
        if let LaunchInput::Bytes(bytes) = input {
            for part in bytes.chunks(wire::CHUNK) {
                writer.write_all(&wire::encode_frame(wire::INPUT, part)).await?;
            }
        }
        writer.write_all(&wire::encode_frame(wire::INPUT, &[])).await?;
        // Keep it open: closing it would end the run.
        std::future::pending::<std::io::Result<()>>().await
    };
    let listening = async {
        while let Ok(Some((kind, body))) = next(&mut reader).await {
            match kind {
                wire::STARTED => said.started = true,
                wire::END => said.end = serde_json::from_slice(&body).ok(), // silent-ok: no end is no end
                wire::FAULT | wire::BROKEN => said.fault = Some(failure_text(&body)),
                _ => {}
            }
        }
    };
    let mut listening = std::pin::pin!(listening);
    tokio::select! {
        biased;
        () = &mut listening => return,
        _ = speaking => {} // it never ends well: the other side has gone
    }
    listening.await;
}

fn finish_outcome(
    found: &MachineRuntime,
    spec: &Spec,
    outcome: LaunchOutcome,
    said: MachineReport,
) -> Result<LaunchOutcome, LaunchError> {
    let limits = spec.plan.limits();
    let obtained = obtained_enforcement(found, spec, outcome.obtained.clone());
    if let Some(end) = said.end {
        let felt = match (end.memory, end.processes) {
            (true, _) => Some(LimitHit::Memory(limits.memory_mb)),
            (false, true) => Some(LimitHit::Processes(limits.max_processes)),
            (false, false) => None,
        };
        return Ok(LaunchOutcome {
            exit_code: end.exit_code,
            signal: end.signal,
            limit: felt.or(outcome.limit),
            swept: end.swept,
            obtained,
            ..outcome
        });
    }
    match outcome.limit {
        Some(LimitHit::Time(_) | LimitHit::Disk(_) | LimitHit::Files(_)) => Ok(LaunchOutcome {
            exit_code: None,
            obtained,
            ..outcome
        }),
        // The sandbox around the machine hit a limit: the machine's memory and its files in `/tmp`.
        Some(LimitHit::Memory(_)) if said.started => Ok(LaunchOutcome {
            exit_code: None,
            limit: Some(LimitHit::Memory(limits.memory_mb)),
            obtained,
            ..outcome
        }),
        _ if said.started => Err(LaunchError::Lost {
            program: spec.program.chars().take(200).collect(),
            reason: said.fault.unwrap_or_else(|| "its machine stopped".to_owned()),
        }),
        limit => {
            let text = String::from_utf8_lossy(&outcome.stderr);
            let because = said
                .fault
                .or_else(|| limit.map(|limit| format!("the box around it was {limit}")))
                .unwrap_or_else(|| text.trim().chars().take(600).collect());
            Err(spec.setup_error(&format!("its machine: {because}")))
        }
    }
}

/// The mechanisms that really isolated the tool: the machine, and the sandbox around it.
fn obtained_enforcement(
    found: &MachineRuntime,
    spec: &Spec,
    around: ObtainedEnforcement,
) -> ObtainedEnforcement {
    let mut mechanisms = vec![
        format!("qemu:{}", found.engine.as_str()),
        format!("kernel:{}", found.version),
    ];
    mechanisms.extend(
        [
            "virtiofs",
            "network-card:none",
            "machine:cgroup-v2:memory,pids",
            "machine:no_new_privs",
        ]
        .map(str::to_owned),
    );
    if !spec.plan.filesystem().denied.is_empty() {
        mechanisms.push("file-server:denied_paths".to_owned());
    }
    if !spec.plan.filesystem().own.is_empty() {
        mechanisms.push("file-server:own_files".to_owned());
    }
    mechanisms.extend(around.mechanisms.into_iter().map(|name| format!("box:{name}")));
    ObtainedEnforcement {
        level: Level::Vm,
        place: CodeOrigin::Local,
        mechanisms,
        missing: around.missing,
    }
}

/// The spec of the sandbox: the view and limits of level `process`, with a reserve for qemu, and the stage as its program.
fn box_spec(
    found: &MachineRuntime,
    spec: &Spec,
    installed: Vec<std::path::PathBuf>,
    theirs: OwnedFd,
) -> Spec {
    let limits = spec.plan.limits();
    let plan = Plan::clone(&spec.plan)
        .at_level(Level::Process)
        .with_limits(Limits {
            memory_mb: machine_mb(limits) + QEMU_MB,
            max_processes: THREADS,
            max_open_files: OPEN_FILES,
            ..*limits
        });
    let mut inner = Spec::new(OWN_PROGRAM, Arc::new(plan));
    inner.args = vec![stage::MODE.to_owned()];
    inner.base = Some(spec.path_base());
    inner.workdir.clone_from(&spec.workdir);
    inner.files.clone_from(&spec.files);
    inner.read_paths.clone_from(&spec.read_paths);
    inner.read_paths.extend(installed);
    inner
        .read_paths
        .extend([found.program.clone(), found.kernel.clone(), found.initrd.clone()]);
    inner.stdin = LaunchInput::Given(InputDescriptor::from(theirs));
    inner.timeout_ms = spec.timeout_ms;
    inner.max_output_bytes = spec.max_output_bytes;
    inner.tee.clone_from(&spec.tee);
    inner.kvm = found.engine == Engine::Kvm;
    inner
}

fn machine_mb(limits: &Limits) -> u64 {
    limits.memory_mb.saturating_add(KERNEL_MB)
}

fn machine_setup(found: &MachineRuntime, spec: &Spec, aliases: Vec<(u64, u64)>) -> MachineSetup {
    let memory = machine_mb(spec.plan.limits());
    let engine = match found.engine {
        Engine::Kvm => ["-accel", "kvm", "-cpu", "host"],
        // A code cache of this many MiB: qemu's own default depends on the machine's whole memory.
        Engine::Tcg => ["-accel", "tcg,tb-size=64", "-cpu", "max"],
    };
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut args = texts(&["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    args.extend(texts(&engine));
    args.extend([
        "-machine".to_owned(),
        "q35,memory-backend=ram,usb=off,vmport=off,hpet=off".to_owned(),
        "-m".to_owned(),
        format!("{memory}M"),
        "-object".to_owned(),
        format!("memory-backend-memfd,id=ram,size={memory}M,share=on"),
    ]);
    args.extend(texts(&["-smp", "1", "-serial", "stdio"]));
    args.extend(texts(&["-device", "vhost-user-fs-pci,chardev=files,tag=files"]));
    args.extend(texts(&[
        "-device",
        "virtio-serial-pci",
        "-device",
        "virtserialport,chardev=agent,name=clawk",
    ]));
    args.extend([
        "-kernel".to_owned(),
        found.kernel.to_string_lossy().into_owned(),
        "-initrd".to_owned(),
        found.initrd.to_string_lossy().into_owned(),
        "-append".to_owned(),
        "console=ttyS0 quiet panic=-1 audit=0 cryptomgr.notests lsm=capability nokaslr no_timer_check"
            .to_owned(),
    ]);
    MachineSetup {
        qemu: found.qemu.clone(),
        args,
        rules: FileServerRules {
            filesystem: spec.plan.filesystem().clone(),
            base: spec.path_base(),
            aliases,
            kept: RuntimeFileGuard::from_paths(&spec.plan.filesystem().own),
        },
        boot_ms: found.boot_ms,
    }
}

fn machine_job(spec: &Spec, program: String, installed: &[PathBuf]) -> Job {
    let limits = spec.plan.limits();
    Job {
        program,
        args: spec.args.clone(),
        env: spec.env_inside(&[spec.read_paths.as_slice(), installed].concat()),
        workdir: spec
            .workdir
            .as_ref()
            .map_or("/".to_owned(), |path| path.to_string_lossy().into_owned()),
        memory_mb: limits.memory_mb,
        max_processes: limits.max_processes,
        max_open_files: limits.max_open_files,
    }
}

/// A listening socket and one connected to it, for the file server and qemu, because a sandbox can't create socket files.
fn file_sockets() -> std::io::Result<[OwnedFd; 2]> {
    let folder = std::env::temp_dir().join(format!(".clawk-{}", crate::container::fresh_name()));
    create_private_folder(&folder).map_err(std::io::Error::other)?;
    // By descriptor, because the name of a socket file has at most 108 bytes.
    let opened = std::fs::File::open(&folder);
    let made = opened.and_then(|opened| {
        let path = format!("/proc/self/fd/{}/s", opened.as_raw_fd());
        let listener = UnixListener::bind(&path)?;
        Ok([listener.into(), StdUnixStream::connect(&path)?.into()])
    });
    let _ = std::fs::remove_dir_all(&folder); // silent-ok: an empty folder in /tmp
    made
}
