//! Starts the tool at level `none`, watches it, and makes sure that no process is left.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

use super::{OrderStreams, cell, limits, send_report, sys, tree};
use crate::container::stage;
use crate::launch::OWN_PROGRAM;
use crate::launch::wire::{
    DEADLINE_GRACE_MS, GRACE_MS, ReportedLimit, SandboxCall, SandboxOrder, SupervisorId, SupervisorReport,
    TERMINATE,
};

/// The shortest and the longest pause between two full checks of the process tree.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A full check may use at most this share of the time: 1/20.
const LOOK_SHARE: u32 = 20;

/// The shortest and the longest pause between two quick checks of the system's number of threads. If a tool starts many, a full
/// check follows at once, whatever it costs.
const GLANCE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(64));

/// Runs the order to its end. Returns when no process of it is left.
pub(super) fn run(
    socket: &UnixStream,
    order: &SandboxOrder,
    streams: OrderStreams,
    ready: Option<&cell::CellPrerequisites>,
) -> std::io::Result<()> {
    let call = order
        .call
        .as_ref()
        .ok_or_else(|| std::io::Error::other("nothing to run"))?;
    let (mechanisms, missing) = limits::apply_limits(order)?;
    let supervisor = SupervisorId {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        ..SupervisorId::default()
    };
    send_report(
        socket,
        &SupervisorReport::Enclosed {
            mechanisms,
            missing,
            supervisor,
        },
    )?;
    let stage = stage_of(call);
    let main = match stage {
        Some((folder, _)) => start_stage(folder, streams, ready)?,
        None => start_tool(order, call, streams)?,
    };
    // If a tool starts a thousand processes, the supervisor that ends them must still get CPU time. Only root may raise the
    // priority; for others RLIMIT_NPROC limits the tool.
    let _ = rustix::process::setpriority_process(None, -10); // silent-ok: see above
    // From here on the tool has run: an own failure must be reported as an end without a status, never as a refusal.
    let told = send_report(socket, &SupervisorReport::Started);
    let mut hit = None;
    let status = match rustix::process::pidfd_open(main, PidfdFlags::empty()) {
        Ok(handle) if told.is_ok() => {
            let mut run = SupervisedRun::new(main, handle, order);
            if stage.is_some_and(|(_, held)| held) {
                // The tool's groups enforce its limits; this watches only the runtime.
                run.look_at = Instant::now() + LOOK.1;
                (run.glance, run.glance_at) = (GLANCE.1, Instant::now() + GLANCE.1);
            }
            let status = run.watch_tool(socket);
            hit = run.hit;
            status
        }
        Ok(_) | Err(_) => None, // silent-ok: everything is killed below, and the missing status is told
    };
    let swept = kill_descendants();
    let (exit_code, signal) = match status {
        Some(status) => (status.exit_status(), status.terminating_signal()),
        None => (None, Some(Signal::KILL.as_raw())),
    };
    send_report(
        socket,
        &SupervisorReport::Ended {
            exit_code,
            signal,
            hit,
            swept,
        },
    )
}

/// The folder of a container's run, if this program itself becomes its stage; and whether groups enforce its limits.
fn stage_of(call: &SandboxCall) -> Option<(&Path, bool)> {
    let (mode, folder, held) = match call.args.as_slice() {
        [mode, folder] => (mode, folder, false),
        [mode, folder, word] => (mode, folder, word == stage::HELD),
        _ => return None,
    };
    let same = |path: &str| {
        std::fs::metadata(path)
            .map(|about| (about.dev(), about.ino()))
            .ok()
    }; // silent-ok: it is another
    let ours = mode == stage::MODE && same(&call.program).is_some_and(|it| same(OWN_PROGRAM) == Some(it));
    ours.then(|| (Path::new(folder), held))
}

/// Starts the stage. It needs no other program than this one, so it is forked, with only its streams open.
fn start_stage(
    folder: &Path,
    streams: OrderStreams,
    ready: Option<&cell::CellPrerequisites>,
) -> std::io::Result<Pid> {
    if let Some(pid) = sys::fork_into(0)? {
        return Ok(pid);
    }
    let become_it = || -> std::io::Result<u8> {
        rustix::process::setpgid(None, None)?;
        rustix::stdio::dup2_stdin(&streams.input)?;
        if let Some([out, err]) = &streams.output {
            rustix::stdio::dup2_stdout(out)?;
            rustix::stdio::dup2_stderr(err)?;
        }
        let network = ready
            .map(cell::CellPrerequisites::prepared_network)
            .transpose()?
            .flatten();
        let kept = network.map(sys::keep_only).transpose()?;
        if kept.is_none() {
            sys::close_from(3)?;
        }
        Ok(stage::run(folder, kept))
    };
    sys::exit_now(i32::from(become_it().unwrap_or(2)))
}

#[expect(
    clippy::disallowed_methods,
    reason = "clawk-sandbox is the only process spawner"
)]
fn start_tool(order: &SandboxOrder, call: &SandboxCall, streams: OrderStreams) -> std::io::Result<Pid> {
    let mut command = Command::new(&call.program);
    command
        .args(&call.args)
        .env_clear()
        .envs(call.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::from(streams.input)).process_group(0);
    if let Some([out, err]) = streams.output {
        command.stdout(Stdio::from(out)).stderr(Stdio::from(err));
    }
    if let Some(workdir) = &order.workdir {
        if !std::path::Path::new(workdir).is_dir() {
            return Err(std::io::Error::other(format!(
                "the working directory `{workdir}` is not a folder"
            )));
        }
        command.current_dir(workdir);
    }
    // `reap` reaps it like every other process of the run, so the handle is not kept.
    let child = command.spawn()?;
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| std::io::Error::other("no process id"))
}

struct SupervisedRun {
    main: Pid,
    handle: OwnedFd,
    deadline: Option<Instant>,
    kill_at: Option<Instant>,
    look_at: Instant,
    glance_at: Instant,
    /// The pause until the next quick check; grows while nothing happens.
    glance: Duration,
    /// The number of threads in the system at the last full check.
    threads_then: u64,
    max_pages: u64,
    max_threads: u64,
    hit: Option<ReportedLimit>,
}

impl SupervisedRun {
    fn new(main: Pid, handle: OwnedFd, order: &SandboxOrder) -> Self {
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096).max(1);
        Self {
            main,
            handle,
            deadline: order
                .timeout_ms()
                .and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms))),
            kill_at: None,
            look_at: Instant::now() + LOOK.0,
            glance_at: Instant::now() + GLANCE.0,
            glance: GLANCE.0,
            threads_then: tree::threads_in_system().unwrap_or(0),
            max_pages: order.memory_mb.saturating_mul(1 << 20) / page,
            max_threads: order.max_processes,
            hit: None,
        }
    }

    /// Waits for the tool's end, or forces it. `None`: it is left to [`kill_descendants`].
    fn watch_tool(&mut self, socket: &UnixStream) -> Option<WaitStatus> {
        loop {
            let now = Instant::now();
            if self.kill_at.is_some_and(|at| at <= now) {
                return self.kill_now();
            }
            if self.deadline.is_some_and(|at| at <= now) {
                self.deadline = None;
                self.hit = Some(ReportedLimit::Time);
                self.terminate_tree(now, DEADLINE_GRACE_MS);
            }
            if (self.look_at <= now || self.has_thread_growth(now)) && self.check_limits(now) {
                return self.kill_now();
            }
            let next = [
                self.deadline,
                self.kill_at,
                Some(self.look_at.min(self.glance_at)),
            ]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(now);
            let (ended, said) = wait_for_tool(&self.handle, socket, next.saturating_duration_since(now));
            if ended && let Some(status) = tree::reap_processes(self.main) {
                return Some(status);
            }
            match said {
                LauncherSignal::Nothing => {}
                LauncherSignal::Terminate => self.terminate_tree(Instant::now(), GRACE_MS),
                LauncherSignal::Gone => return self.kill_now(),
            }
        }
    }

    /// Sends SIGTERM to all processes, and SIGKILL when the grace period is over.
    fn terminate_tree(&mut self, now: Instant, grace_ms: u64) {
        if self.kill_at.is_none() {
            // Only once to each process: a handler that is called twice may do its final work twice.
            tree::signal_all(Signal::TERM);
            self.kill_at = Some(now + Duration::from_millis(grace_ms));
        }
    }

    fn kill_now(&mut self) -> Option<WaitStatus> {
        let _ = rustix::process::kill_process_group(self.main, Signal::KILL); // silent-ok: it ended meanwhile
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            if let Some(status) = tree::reap_processes(self.main) {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Whether the system has so many new threads that some may belong to the run.
    fn has_thread_growth(&mut self, now: Instant) -> bool {
        if self.glance_at > now {
            return false;
        }
        let more = tree::threads_in_system()
            .unwrap_or(0)
            .saturating_sub(self.threads_then);
        self.glance = if more > 4 {
            GLANCE.0
        } else {
            (self.glance * 2).min(GLANCE.1)
        };
        self.glance_at = now + self.glance;
        more > self.max_threads
    }

    /// Checks the process tree. Returns true if a limit is exceeded.
    fn check_limits(&mut self, now: Instant) -> bool {
        self.threads_then = tree::threads_in_system().unwrap_or(0);
        let (pids, usage) = tree::scan_descendants();
        let cost = now.elapsed();
        self.look_at = Instant::now() + (cost * LOOK_SHARE).clamp(LOOK.0, LOOK.1);
        // Count shared pages only once before killing anybody for their size.
        let too_large = usage.pages > self.max_pages && tree::distinct_pages(&pids) > self.max_pages;
        self.hit = match (usage.threads > self.max_threads, too_large) {
            (true, _) => Some(ReportedLimit::Processes),
            (_, true) => Some(ReportedLimit::Memory),
            (false, false) => return false,
        };
        true
    }
}

enum LauncherSignal {
    Nothing,
    Terminate,
    Gone,
}

/// Waits until the tool ends, the launcher sends something, or the time is over.
fn wait_for_tool(handle: &OwnedFd, socket: &UnixStream, at_most: Duration) -> (bool, LauncherSignal) {
    let mut fds = [
        PollFd::new(handle, PollFlags::IN),
        PollFd::new(socket, PollFlags::IN),
    ];
    let timeout = Timespec {
        tv_sec: i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(at_most.subsec_nanos()),
    };
    if rustix::event::poll(&mut fds, Some(&timeout)).is_err() {
        return (true, LauncherSignal::Nothing); // an interruption: the loop looks at everything again
    }
    let [ended, spoke] = fds.map(|fd| !fd.revents().is_empty());
    let mut byte = [0_u8; 1];
    let said = match spoke {
        false => LauncherSignal::Nothing,
        true => match rustix::io::read(socket.as_fd(), &mut byte) {
            Ok(1) if byte == [TERMINATE] => LauncherSignal::Terminate,
            Ok(0) | Err(_) => LauncherSignal::Gone, // silent-ok: a broken socket is a launcher that is gone
            Ok(_) => LauncherSignal::Nothing,
        },
    };
    (ended, said)
}

/// Kills and reaps until the kernel reports that no child is left. As this process is the subreaper, that includes all processes of
/// the run. Returns how many were left.
fn kill_descendants() -> u64 {
    let mut swept = 0;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => swept += 1,
            Ok(None) => {
                tree::signal_all(Signal::KILL);
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => return swept, // no child is left
        }
    }
}
