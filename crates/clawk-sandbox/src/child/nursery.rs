//! The fork server: the process that forks supervisors. It does the work once that every supervisor would do first, so that all
//! sandboxes share the result. It never reads an order: each supervisor reads its own, from a separate socket.
//!
//! If prewarming is enabled, one supervisor with a prewarmed sandbox waits beside it, and takes the next order from the same
//! socket.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{cell, limits, supervise_on, sys};
use crate::launch::wire::ForkRequest;
use crate::passing;

/// The last argument of the fork server's command line.
pub(crate) const WORD: &str = "nursery";

/// How long after an order a new prewarmed sandbox is made, so that a short call is not slowed down.
const SETTLE: Duration = Duration::from_millis(5);

/// How long after the first order the parts for later sandboxes are made. The first order is the probe of the host. The agent's
/// start waits for it and needs the CPUs.
const START: Duration = Duration::from_millis(25);

/// Messages from the prewarmed sandbox to the fork server: it is ready; it has taken an order.
const WAITS: u8 = b'w';
const TAKEN: u8 = b't';

/// Serves until the launcher is gone. Each message carries the socket of one supervisor.
pub(super) fn run(socket: OwnedFd) -> ExitCode {
    // Reset whatever clawk inherited: here children are waited for, and later ignored.
    let ready = sys::reset_signals()
        .and_then(|()| limits::detach_stdin())
        .and_then(|()| sys::forget_children());
    if ready.is_err() {
        return ExitCode::from(2);
    }
    let mut nursery = ForkServer {
        ready: cell::CellPrerequisites::create_minimal(),
        spare: None,
        idle: Duration::ZERO,
        due: None,
        rest: DeferredSetup::Missing,
    };
    let socket = UnixStream::from(socket);
    loop {
        match nursery.run_step(&socket) {
            ForkServerStep::Done => {}
            ForkServerStep::Gone => return ExitCode::SUCCESS,
            ForkServerStep::Supervisor(theirs) => {
                let ForkServer { ready, .. } = nursery;
                drop(socket);
                // silent-ok: the closed socket reports it
                let code = init_supervisor().map_or(2, |()| supervise_on(&theirs, &ready, None));
                sys::exit_now(i32::from(code));
            }
            ForkServerStep::Spare(channel, groups) => {
                sys::exit_now(i32::from(wait_blank(socket, channel, &nursery.ready, groups)))
            }
        }
    }
}

/// The result of one step of the fork server.
enum ForkServerStep {
    Done,
    /// The launcher is gone.
    Gone,
    /// Forked: this process is a supervisor.
    Supervisor(UnixStream),
    /// Forked: this process makes a prewarmed sandbox with control groups of this name. The socket leads to the fork server.
    Spare(UnixStream, cell::GroupName),
}

struct ForkServer {
    ready: cell::CellPrerequisites,
    spare: Option<SpareSupervisor>,
    /// How long a prewarmed sandbox may wait; zero: none is made.
    idle: Duration,
    /// When the next one is to be made.
    due: Option<Instant>,
    rest: DeferredSetup,
}

/// Parts that sandboxes share and that the first one does not wait for.
#[derive(Clone, Copy)]
enum DeferredSetup {
    /// No order has come yet.
    Missing,
    /// They are made at this time.
    Due(Instant),
    Made,
}

impl DeferredSetup {
    fn due_time(self) -> Option<Instant> {
        match self {
            Self::Due(due) => Some(due),
            Self::Missing | Self::Made => None,
        }
    }
}

/// A supervisor with a prewarmed sandbox.
struct SpareSupervisor {
    /// The name of its control groups.
    groups: cell::GroupName,
    socket: UnixStream,
    /// Since when it is ready and reads orders instead of the fork server.
    since: Option<Instant>,
}

impl ForkServer {
    fn run_step(&mut self, socket: &UnixStream) -> ForkServerStep {
        let waits = self.spare.as_ref().and_then(|spare| spare.since);
        let next = match (&self.spare, waits) {
            (Some(_), Some(since)) => since.checked_add(self.idle),
            (Some(_), None) => None,
            (None, _) => self.due,
        };
        self.make_rest_in_time();
        let [called, told] =
            self.wait_for_events(socket, [next, self.rest.due_time()].into_iter().flatten().min());
        if called.intersects(PollFlags::HUP | PollFlags::ERR) && waits.is_some() {
            return ForkServerStep::Gone;
        }
        if !told.is_empty() {
            self.read_prewarmed_report();
        } else if !called.is_empty() && waits.is_none() {
            return self.serve_order(socket);
        }
        if next.is_some_and(|next| next <= Instant::now()) {
            match self.spare.take() {
                Some(_) => {} // Its socket is closed: it ends by itself.
                None => return self.make_spare(),
            }
        }
        ForkServerStep::Done
    }

    fn wait_for_events(&self, socket: &UnixStream, until: Option<Instant>) -> [PollFlags; 2] {
        let wanted = match self.spare.as_ref().and_then(|spare| spare.since) {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let mut fds = vec![PollFd::new(socket, wanted)];
        let spare = self.spare.as_ref();
        fds.extend(spare.map(|spare| PollFd::new(&spare.socket, PollFlags::IN)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let _ = rustix::event::poll(&mut fds, timeout.as_ref()); // silent-ok: an interruption
        let mut found = fds.iter().map(PollFd::revents);
        let nothing = PollFlags::empty();
        [found.next().unwrap_or(nothing), found.next().unwrap_or(nothing)]
    }

    /// Handles a message of the prewarmed sandbox.
    fn read_prewarmed_report(&mut self) {
        let Some(mut spare) = self.spare.take() else {
            return;
        };
        let mut word = [0_u8; 1];
        match spare.socket.read(&mut word) {
            Ok(1) if word == [WAITS] => {
                spare.since = Some(Instant::now());
                self.spare = Some(spare);
            }
            Ok(1) if word == [TAKEN] => self.due = Instant::now().checked_add(SETTLE),
            // It could not be made, the host's mounts have changed, or somebody killed it. The next order makes a new one.
            Ok(_) | Err(_) => cell::remove_left(&spare.groups),
        }
    }

    /// Forks a supervisor for one order.
    fn serve_order(&mut self, socket: &UnixStream) -> ForkServerStep {
        let (birth, theirs) = match next(socket) {
            Ok(Some(called)) => called,
            Err(Errno::AGAIN) => return ForkServerStep::Done, // the blank box was quicker
            Ok(None) | Err(_) => return ForkServerStep::Gone, // silent-ok: said by that
        };
        self.ready.refresh();
        match sys::fork_into(0) {
            Ok(Some(_)) => {
                drop(theirs);
                self.after_order();
            }
            Ok(None) => return ForkServerStep::Supervisor(theirs),
            Err(_) => drop(theirs), // silent-ok: the closed socket says it
        }
        self.idle = Duration::from_millis(birth.blank_idle_ms());
        if !self.idle.is_zero() {
            let settle = Instant::now().checked_add(SETTLE);
            self.due = self.due.or_else(|| settle.max(self.rest.due_time()));
        }
        ForkServerStep::Done
    }

    fn after_order(&mut self) {
        match self.rest {
            DeferredSetup::Missing => {
                self.rest = Instant::now()
                    .checked_add(START)
                    .map_or(DeferredSetup::Made, DeferredSetup::Due)
            }
            DeferredSetup::Due(_) => {}
            DeferredSetup::Made => self.ready.create_next_network(),
        }
    }

    fn make_rest_in_time(&mut self) {
        if self.rest.due_time().is_some_and(|due| due <= Instant::now()) {
            self.ready.prepare_remaining();
            self.rest = DeferredSetup::Made;
        }
    }

    fn make_spare(&mut self) -> ForkServerStep {
        self.make_rest_in_time();
        self.due = None;
        self.ready.refresh();
        self.ready.prepare_if_none();
        let (Ok((ours, theirs)), Ok(groups)) = (UnixStream::pair(), cell::GroupName::random()) else {
            return ForkServerStep::Done; // silent-ok: without one, an order's box is made for it
        };
        match sys::fork_into(0) {
            Ok(Some(_)) => {
                self.ready.give_away();
                self.spare = Some(SpareSupervisor {
                    groups,
                    socket: ours,
                    since: None,
                });
            }
            Ok(None) => return ForkServerStep::Spare(theirs, groups),
            Err(_) => {} // silent-ok: as above
        }
        ForkServerStep::Done
    }
}

/// The first steps of every supervisor.
fn init_supervisor() -> std::io::Result<()> {
    sys::reap_children()?;
    Ok(rustix::process::setsid().map(drop)?)
}

/// Runs a supervisor that makes a prewarmed sandbox and then takes the next order.
fn wait_blank(
    socket: UnixStream,
    nursery: UnixStream,
    ready: &cell::CellPrerequisites,
    groups: cell::GroupName,
) -> u8 {
    let made = init_supervisor()
        .and_then(|()| cell::PrewarmedSandbox::create_named(ready, groups, (socket, nursery)));
    let Ok((blank, (socket, mut nursery))) = made else {
        return 2; // silent-ok: an order's box is made for it, and tells what is wrong
    };
    let _ = nursery.write_all(&[WAITS]); // silent-ok: its end is seen below
    let _ = rustix::thread::set_name(c"clawk-blank"); // silent-ok: for people who look
    let theirs = loop {
        let [first, table] = blank.watched_fds();
        let mut fds = [
            PollFd::new(&socket, PollFlags::IN),
            PollFd::new(&nursery, PollFlags::IN),
            first,
            table,
        ];
        let _ = rustix::event::poll(&mut fds, None); // silent-ok: an interruption
        let [called, others @ ..] = fds.map(|fd| fd.revents());
        if others.iter().any(|one| !one.is_empty()) {
            break None;
        }
        if !called.is_empty() {
            match next(&socket) {
                Ok(Some((_, theirs))) => break Some(theirs),
                Err(Errno::AGAIN) => {}          // the nursery was quicker
                Ok(None) | Err(_) => break None, // silent-ok: the launcher is gone
            }
        }
    };
    let Some(theirs) = theirs else {
        return 0; // and the blank box ends
    };
    let _ = rustix::thread::set_name(c"clawk-box"); // silent-ok: as above
    let _ = nursery.write_all(&[TAKEN]); // silent-ok: it is gone
    drop((nursery, socket));
    supervise_on(&theirs, ready, Some(blank))
}

/// The socket of the next order, if there is one now; `None`: no more orders will come.
fn next(socket: &UnixStream) -> Result<Option<(ForkRequest, UnixStream)>, Errno> {
    let mut birth = ForkRequest::default();
    let (bytes, fds) = loop {
        match passing::receive_with_fds(socket, &mut birth.0, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let fd = fds.into_iter().next().filter(|_| bytes > 0);
    Ok(fd.map(|fd| (birth, UnixStream::from(fd))))
}
