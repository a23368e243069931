//! The first process of a sandbox. It isolates itself, drops its privileges, starts the tool, and reaps processes. When it ends,
//! everything in the sandbox ends, because the kernel kills a process namespace with its first process.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::blank::OrderMessage;
use super::cgroup::RunCgroups;
use super::guard::Guard;
use super::hand::{self, ToolStreams};
use super::hull::SandboxTemplate;
use super::identity::ToolIdentity;
use super::order::SandboxEnclosure;
use super::world::HostObservation;
use super::{filter, inside, landlock, rlimits, view, wall_error};
use crate::child::{send_report, sys, tree};
use crate::launch::PORT;
use crate::launch::wire::{SandboxCall, SandboxOrder, SupervisorId, SupervisorReport};
use clawk_plan::plan::Filesystem;

/// Messages from the supervisor to the first process: groups and id maps are in place; start the tool; ask the tool to end.
pub(super) const BUILD: u8 = b'b';
pub(super) const RUN: u8 = b'r';
pub(super) const END: u8 = b't';

/// Descriptor numbers in the tool's process before it executes the program: the streams, then these.
const FAULT_FD: i32 = 3;
const HAND_FD: i32 = 4;
const PROGRAM_FD: i32 = 5;
const CALLS_FD: i32 = 6;

/// The input of the first process.
pub(super) struct SandboxInit<'a> {
    pub(super) order: &'a SandboxOrder,
    pub(super) enclosure: &'a SandboxEnclosure,
    pub(super) identity: ToolIdentity,
    pub(super) idmaps: HashMap<(u32, u32), OwnedFd>,
    pub(super) control: UnixStream,
    /// The tool's standard input, or the socket for its call.
    pub(super) input: OwnedFd,
    /// The tool's output, unless it comes with the call.
    pub(super) output: Option<[OwnedFd; 2]>,
    pub(super) door: Option<OwnedFd>,
    pub(super) groups: RunCgroups,
    /// The sandbox's network namespace, if one was made in advance.
    pub(super) network: Option<OwnedFd>,
    /// The template; only in a prewarmed sandbox.
    pub(super) hull: Option<SandboxTemplate>,
}

/// The first process of a prewarmed sandbox: makes the parts that no order changes, waits for an order, and continues like any
/// other.
pub(super) fn wait_for_order(
    control: UnixStream,
    identity: ToolIdentity,
    groups: RunCgroups,
    network: Option<OwnedFd>,
) -> ! {
    crate::child::set_box_umask();
    let parcel = expect_word(&control, BUILD)
        .and_then(|()| SandboxTemplate::without_order(&groups, identity, network))
        .and_then(|hull| Ok((receive_order(&control, &hull)?, hull)));
    let ((parcel, fds), hull) = match parcel {
        Ok(parcel) => parcel,
        // Nobody waits for a prewarmed sandbox, so its absence is enough of a report.
        Err(_) => sys::exit_now(1),
    };
    let mut fds = fds.into_iter();
    let (input, output, door) = match (fds.next(), parcel.outputs) {
        (Some(input), true) => (
            input,
            fds.next().zip(fds.next()).map(<[OwnedFd; 2]>::from),
            parcel.door,
        ),
        (Some(input), false) => (input, None, parcel.door),
        (None, _) => sys::exit_now(1),
    };
    let door = door.then(|| fds.next()).flatten();
    let (Some(enclosure), true) = (&parcel.order.enclosure, output.is_some() == parcel.outputs) else {
        sys::exit_now(1)
    };
    let init = SandboxInit {
        order: &parcel.order,
        enclosure,
        identity,
        idmaps: parcel.owners.iter().copied().zip(fds).collect(),
        control,
        input,
        output,
        door,
        groups,
        network: None,
        hull: Some(hull),
    };
    init.run_to_end()
}

/// Reports what the prewarmed sandbox was made from, and waits for its order.
fn receive_order(
    control: &UnixStream,
    hull: &SandboxTemplate,
) -> io::Result<(OrderMessage<SandboxOrder>, Vec<OwnedFd>)> {
    if let Some((seen, host)) = hull.prewarmed_state() {
        super::send_descriptor(control, host.as_fd())?;
        let seen = seen.to_vec();
        send_report(control, &waiting_report(seen))?;
    }
    match hand::read_whole(control)? {
        Some((text, fds)) => Ok((serde_json::from_slice(&text)?, fds)),
        None => sys::exit_now(0), // it was never needed
    }
}

fn waiting_report(seen: Vec<HostObservation>) -> SupervisorReport {
    let supervisor = SupervisorId::default();
    SupervisorReport::Waiting { supervisor, seen }
}

fn expect_word(control: &UnixStream, wanted: u8) -> io::Result<()> {
    let mut byte = [0_u8; 1];
    match rustix::io::read(control, &mut byte) {
        Ok(1) if byte == [wanted] => Ok(()),
        Ok(_) => sys::exit_now(1), // the supervisor has given up
        Err(error) => Err(error.into()),
    }
}

/// How the future tool process gets its call.
enum CallSource<'a> {
    Order(&'a SandboxCall, ToolStreams),
    /// The call comes over this socket.
    Socket(OwnedFd),
}

/// The process that becomes the tool.
struct ToolProcess {
    main: Pid,
    /// The guard's listener, if there is a guard.
    listener: Option<OwnedFd>,
    /// A pipe that closes when the program runs, or carries the reason why it does not.
    started: OwnedFd,
}

impl ToolProcess {
    /// Reads the reason of a failed start and reaps the process; `None`: the program runs.
    fn read_start_error(&self) -> io::Result<Option<io::Error>> {
        let mut fault = String::new();
        io::Read::read_to_string(&mut std::fs::File::from(self.started.try_clone()?), &mut fault)?;
        if fault.is_empty() {
            return Ok(None);
        }
        let _ = rustix::process::waitpid(Some(self.main), WaitOptions::empty()); // silent-ok: its fault is told
        Ok(Some(io::Error::other(fault)))
    }
}

/// The view, the filter, the program's descriptor, and the descriptor that reports ended children.
type BuiltEnclosure = (view::BuiltView, &'static filter::Filter, Option<OwnedFd>, OwnedFd);

impl SandboxInit<'_> {
    /// Runs the first process. Never returns: the process ends with the sandbox.
    pub(super) fn run_to_end(mut self) -> ! {
        let code = match self.run() {
            Ok(()) => 0,
            Err(error) => {
                let reason = error.to_string();
                let _ = send_report(&self.control, &SupervisorReport::Refused { reason }); // silent-ok: the supervisor is gone
                1
            }
        };
        sys::exit_now(code)
    }

    fn run(&mut self) -> io::Result<()> {
        let (mut built, filter, own, children) = self.build_enclosure()?;
        let source = match &self.order.call {
            Some(call) => {
                expect_word(&self.control, RUN)?;
                let (input, output) = (self.input.try_clone()?, self.output.take());
                CallSource::Order(call, ToolStreams { input, output })
            }
            None => CallSource::Socket(self.input.try_clone()?),
        };
        let waits = self.order.call.is_none();
        let tool = self.fork_tool(source, own, filter)?;
        if waits {
            // Everything that does not depend on the call is done.
            let seen = std::mem::take(&mut built.seen);
            send_report(&self.control, &waiting_report(seen))?;
        }
        self.until_started(&tool, waits)?;
        let ToolProcess { main, listener, .. } = tool;
        send_report(&self.control, &SupervisorReport::Started)?;
        let guard = listener.map(|listener| Guard {
            listener,
            itself: 1,
            filesystem: Filesystem {
                denied: built.denied,
                ..self.enclosure.filesystem.clone()
            },
            base: self.enclosure.base.clone(),
            aliases: built.aliases,
            kept: built.kept,
        });
        let status = self.wait_for_tool(main, &children, guard.as_ref())?;
        let swept = kill_descendants();
        send_report(
            &self.control,
            &SupervisorReport::Ended {
                exit_code: status.exit_status(),
                signal: status.terminating_signal(),
                hit: None,
                swept,
            },
        )
    }

    /// Applies all isolation except the filter, which the tool's process installs last.
    fn build_enclosure(&mut self) -> io::Result<BuiltEnclosure> {
        let both = (self.order, self.enclosure);
        let hull = match self.hull.take() {
            Some(hull) => hull,
            None => {
                expect_word(&self.control, BUILD)?;
                SandboxTemplate::for_order(
                    &self.groups,
                    self.identity,
                    self.network.take(),
                    both,
                    &self.idmaps,
                )?
            }
        };
        let door = self.open_door()?.to_owned();
        let own = match self.enclosure.own {
            true => Some(rustix::fs::open(
                crate::launch::OWN_PROGRAM,
                OFlags::PATH | OFlags::CLOEXEC,
                Mode::empty(),
            )?),
            false => None,
        };
        let (built, mut held) = hull.finish_view(both, self.identity, &self.idmaps)?;
        held.push(door);
        // After joining all groups: they become the root of the groups that it sees.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWCGROUP)
            .map_err(|error| wall_error("namespaces")(error.into()))?;
        let children = children_signal()?;
        held.extend(rlimits::apply_rlimits(self.order).map_err(wall_error("rlimits"))?);
        self.identity
            .drop_privileges()
            .map_err(wall_error("privileges"))?;
        // Changing ids clears the parent-death signal, so set it again.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        held.push(format!("uid:{}", self.identity.uid));
        held.extend(
            [
                "capabilities:none",
                "no_new_privs",
                "session",
                "environment:explicit",
            ]
            .map(str::to_owned),
        );
        held.push(landlock::restrict_process(&built, own.as_ref())?);
        let judged = self.enclosure.guarded_calls();
        held.extend(judged.trace_names(!built.kept.is_empty()));
        let filter = filter::shared_filter(self.enclosure.strict, self.enclosure.own, judged)?;
        held.push(
            if self.enclosure.strict {
                "seccomp:allow-list"
            } else {
                "seccomp:deny-list"
            }
            .to_owned(),
        );
        send_report(
            &self.control,
            &SupervisorReport::Enclosed {
                mechanisms: held,
                missing: Vec::new(),
                supervisor: SupervisorId::default(),
            },
        )?;
        Ok((built, filter, own, children))
    }

    /// Binds the proxy's listening socket here and passes it out.
    fn open_door(&self) -> io::Result<&'static str> {
        let Some(door) = &self.door else {
            return Ok("network:empty");
        };
        let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, PORT))?;
        listener.set_nonblocking(true)?;
        super::send_descriptor(door, listener.as_fd())?;
        Ok("network:proxy-only")
    }

    /// Forks the process that becomes the tool. In a waiting sandbox this happens before the call, which the process reads itself.
    /// Returns when it is fully isolated and is about to execute the program or to wait for its call.
    fn fork_tool(
        &self,
        source: CallSource<'_>,
        own: Option<OwnedFd>,
        filter: &filter::Filter,
    ) -> io::Result<ToolProcess> {
        let (hand_in, hand_out) = UnixStream::pair()?;
        let (started, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let Some(main) = sys::fork_into(0)? else {
            drop((started, hand_in));
            let hands = [writer.as_fd(), hand_out.as_fd()];
            let moved = Cell::new(false);
            let Err(error) = self.become_tool(source, hands, &moved, own.as_ref(), filter);
            let text = error.to_string();
            // After the descriptor was moved, its old number may belong to another one, for example to the closed end of the
            // message socket.
            if moved.get() {
                sys::write_raw(FAULT_FD, text.as_bytes());
            } else {
                let _ = rustix::io::write(&writer, text.as_bytes()); // silent-ok: the exit code says it
            }
            sys::exit_now(127);
        };
        // End of file on the output must mean that the tool's processes have ended.
        drop((writer, hand_out, source));
        let mut tool = ToolProcess {
            main,
            listener: None,
            started,
        };
        if filter.notifies || self.order.call.is_none() {
            let mut fds = [PollFd::new(&hand_in, PollFlags::IN)];
            while rustix::event::poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
            // If the tool failed before its filter, no message comes; the fault has the reason.
            tool.listener = match hand::receive_listener(&hand_in) {
                Some(listener) => listener,
                None => return Err(tool.read_start_error()?.unwrap_or_else(nothing_said)),
            };
            if filter.notifies && tool.listener.is_none() {
                return Err(io::Error::other("seccomp: the guard has no listener"));
            }
        }
        Ok(tool)
    }

    /// Waits until the tool's program runs. A waiting sandbox also waits for its call, and for the supervisor, which then only
    /// reports that it is over.
    fn until_started(&self, tool: &ToolProcess, waits: bool) -> io::Result<()> {
        loop {
            // Without a guard or a possible call, poll the same descriptor again in their places.
            let asked = tool.listener.as_ref().unwrap_or(&tool.started).as_fd();
            let control = match waits {
                true => self.control.as_fd(),
                false => tool.started.as_fd(),
            };
            let looked_at = [tool.started.as_fd(), asked, control];
            let mut fds = looked_at.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [started, asks, said] = fds.map(|fd| fd.revents());
            if !started.is_empty() {
                return tool.read_start_error()?.map_or(Ok(()), Err);
            }
            // This is the program itself, which the plan names and the view contains. The guard does not work yet.
            if asks.contains(PollFlags::IN)
                && let Some(listener) = &tool.listener
                && let Some(notice) = sys::next_notice(listener)?
            {
                sys::let_through(listener, notice.id);
            }
            if waits && !said.is_empty() {
                sys::exit_now(1);
            }
        }
    }

    /// Becomes the tool. Returns the reason if this fails.
    fn become_tool(
        &self,
        source: CallSource<'_>,
        [fault, hand]: [BorrowedFd<'_>; 2],
        moved: &Cell<bool>,
        own: Option<&OwnedFd>,
        filter: &filter::Filter,
    ) -> io::Result<std::convert::Infallible> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        crate::child::set_box_umask();
        // The parent process ignores no signals and has no handlers.
        sys::unblock_signals()?;
        if let Some(workdir) = &self.order.workdir {
            rustix::process::chdir(workdir.as_str()).map_err(|error| {
                io::Error::other(format!(
                    "the working directory `{workdir}` is not a folder of the box: {error}"
                ))
            })?;
        }
        // Move the descriptors to high numbers first, so that no target number is in use.
        let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, 16);
        let (fault, hand) = (high(fault)?, high(hand)?);
        let own = own.map(|own| high(own.as_fd())).transpose()?;
        let (given, calls) = match source {
            CallSource::Order(call, streams) => {
                streams.take_places()?;
                (Some(call), None)
            }
            CallSource::Socket(calls) => (None, Some(high(calls.as_fd())?)),
        };
        sys::move_to(&fault, FAULT_FD)?;
        moved.set(true);
        sys::move_to(&hand, HAND_FD)?;
        // Without a program descriptor or a future call, put a harmless descriptor in its place.
        sys::move_to(own.as_ref().unwrap_or(&fault), PROGRAM_FD)?;
        sys::move_to(calls.as_ref().unwrap_or(&fault), CALLS_FD)?;
        // They are closed by number below. An owner must not close them a second time if an error returns.
        std::mem::forget((fault, hand, own, calls));
        sys::close_from((CALLS_FD + 1).unsigned_abs())?;
        let waits = given.is_none();
        install_tool_filter(filter, waits).map_err(wall_error("seccomp"))?;
        if self.enclosure.probe {
            return inside::verify_walls(self.identity);
        }
        let waited;
        let call = match given {
            Some(call) => call,
            None => {
                let (call, streams) = hand::receive_call(&sys::take_socket(CALLS_FD))?;
                streams.take_places()?;
                waited = call;
                &waited
            }
        };
        if let Some(timeout_ms) = call.timeout_ms {
            rlimits::limit_cpu_time(timeout_ms)?;
        }
        let error = execute_program(call, self.enclosure.own)?;
        Err(io::Error::new(
            error.kind(),
            format!("{error}{}", start_error_hint(&error)),
        ))
    }

    /// Waits for the tool's end, and passes on a request to end.
    fn wait_for_tool(&self, main: Pid, children: &OwnedFd, guard: Option<&Guard>) -> io::Result<WaitStatus> {
        loop {
            if let Some(status) = tree::reap_processes(main) {
                return Ok(status);
            }
            // Without a guard, poll the same descriptor again in the third place.
            let asked = guard.map_or(children, |guard| &guard.listener);
            let mut fds = [
                PollFd::new(children, PollFlags::IN),
                PollFd::new(&self.control, PollFlags::IN),
                PollFd::new(asked, PollFlags::IN),
            ];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [child, said, asks] = fds.map(|fd| fd.revents());
            if asks.contains(PollFlags::IN)
                && let Some(guard) = guard
            {
                guard.answer_next_notification()?;
            }
            let [child, said] = [child, said].map(|events| !events.is_empty());
            if child {
                let mut information = [0_u8; 1024];
                let _ = rustix::io::read(children, &mut information); // silent-ok: the loop reaps whoever ended
            }
            if said {
                let mut byte = [0_u8; 1];
                match rustix::io::read(&self.control, &mut byte) {
                    Ok(1) if byte == [END] => signal_everybody(Signal::TERM),
                    Ok(1) => {}
                    Ok(_) | Err(_) => sys::exit_now(1), // without a supervisor nothing may go on
                }
            }
        }
    }
}

/// Installs the filter. In a waiting sandbox, and if there is a guard, tells the first process, together with the guard's listener.
fn install_tool_filter(filter: &filter::Filter, waits: bool) -> io::Result<()> {
    let listener = sys::install_filter(&filter.program, filter.notifies)?;
    if waits || listener.is_some() {
        hand::send_listener(sys::borrow_fd(HAND_FD), listener.as_ref())?;
    }
    Ok(())
}

/// Executes the program. Returns only the reason why this failed.
fn execute_program(call: &SandboxCall, own: bool) -> io::Result<io::Error> {
    let args = c_strings(std::iter::once(call.program.as_str()).chain(call.args.iter().map(String::as_str)))?;
    let env: Vec<String> = call
        .env
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let env = c_strings(env.iter().map(String::as_str))?;
    let program = CString::new(call.program.as_str())?;
    if own {
        return Ok(sys::execute_descriptor(PROGRAM_FD, &args, &env));
    }
    match nix::unistd::execve(&program, &args, &env) {
        Ok(never) => match never {},
        Err(errno) => Ok(io::Error::from(errno)),
    }
}

fn nothing_said() -> io::Error {
    io::Error::other("the tool's process ended before its program was started")
}

/// A hint for the most common reasons.
fn start_error_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            " (in the box: is the program, or the interpreter that it names, below a mount or a `read_paths` entry?)"
        }
        io::ErrorKind::PermissionDenied => " (in the box: may the tool's user execute it?)",
        _ => "",
    }
}

fn c_strings<'a>(all: impl Iterator<Item = &'a str>) -> io::Result<Vec<CString>> {
    all.map(|text| CString::new(text).map_err(io::Error::from))
        .collect()
}

/// A descriptor that reports ended children.
fn children_signal() -> io::Result<OwnedFd> {
    use nix::sys::signal::{SigSet, Signal as Number};
    let mut set = SigSet::empty();
    set.add(Number::SIGCHLD);
    set.thread_block()?;
    let flags = nix::sys::signalfd::SfdFlags::SFD_CLOEXEC | nix::sys::signalfd::SfdFlags::SFD_NONBLOCK;
    Ok(nix::sys::signalfd::SignalFd::with_flags(&set, flags)?.into())
}

/// Sends a signal to every process of the sandbox except this one.
fn signal_everybody(signal: Signal) {
    sys::kill_all(signal.as_raw());
}

/// Kills and reaps processes that the tool left behind; returns how many there were.
fn kill_descendants() -> u64 {
    let mut swept = 0;
    loop {
        signal_everybody(Signal::KILL);
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some(_)) => swept += 1,
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return swept, // nobody is left
        }
    }
}
