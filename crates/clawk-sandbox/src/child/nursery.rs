//! The process that supervisors are forked from: it has done once what every supervisor would do first, so that a box
//! shares it instead of having it for itself. It never sees an order: each supervisor reads its own, from a socket of its own.
//!
//! Where boxes may wait, one supervisor with a blank box waits beside it, and takes the next order by itself, off the same socket.

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

/// The last argument of such a process.
pub(crate) const WORD: &str = "nursery";

/// A blank box is made so much later than the order that took the last one, that a short call is not slowed by it.
const SETTLE: Duration = Duration::from_millis(5);

/// What later boxes share is made so much later than the first order: that one is the look at the host's walls, for which an agent's
/// start waits, and the start needs the processors.
const START: Duration = Duration::from_millis(25);

/// Blank box to nursery: it waits; an order has come.
const WAITS: u8 = b'w';
const TAKEN: u8 = b't';

/// Serves until the launcher is gone: each message brings the socket of one supervisor.
pub(super) fn run(socket: OwnedFd) -> ExitCode {
    // Whatever clawk was started with: here children are waited for, and later forgotten.
    let ready = sys::reset_signals()
        .and_then(|()| limits::detach_stdin())
        .and_then(|()| sys::forget_children());
    if ready.is_err() {
        return ExitCode::from(2);
    }
    let mut nursery = ForkServer {
        ready: cell::CellPrerequisites::make(),
        spare: None,
        idle: Duration::ZERO,
        due: None,
        rest: DeferredSetup::Missing,
    };
    let socket = UnixStream::from(socket);
    loop {
        match nursery.step(&socket) {
            ForkServerStep::Done => {}
            ForkServerStep::Gone => return ExitCode::SUCCESS,
            ForkServerStep::Supervisor(theirs) => {
                let ForkServer { ready, .. } = nursery;
                drop(socket);
                // silent-ok: the closed socket says it
                let code = born().map_or(2, |()| supervise_on(&theirs, &ready, None));
                sys::end(i32::from(code));
            }
            ForkServerStep::Spare(channel, groups) => {
                sys::end(i32::from(wait_blank(socket, channel, &nursery.ready, groups)))
            }
        }
    }
}

/// What has come to pass.
enum ForkServerStep {
    Done,
    /// The launcher is gone.
    Gone,
    /// Forked: this process is a supervisor.
    Supervisor(UnixStream),
    /// Forked: this process is to have a blank box, with control groups of this name. The socket leads to the nursery.
    Spare(UnixStream, cell::GroupName),
}

struct ForkServer {
    ready: cell::CellPrerequisites,
    spare: Option<SpareSupervisor>,
    /// How long a blank box may wait; none is made where this is nothing.
    idle: Duration,
    /// When one is to be made.
    due: Option<Instant>,
    rest: DeferredSetup,
}

/// What boxes share that the first one does not wait for.
#[derive(Clone, Copy)]
enum DeferredSetup {
    /// No order has come.
    Missing,
    /// It is made then.
    Due(Instant),
    Made,
}

impl DeferredSetup {
    fn due(self) -> Option<Instant> {
        match self {
            Self::Due(due) => Some(due),
            Self::Missing | Self::Made => None,
        }
    }
}

/// A supervisor with a blank box.
struct SpareSupervisor {
    /// The name of its control groups.
    groups: cell::GroupName,
    socket: UnixStream,
    /// Since when it waits, and reads orders in our place.
    since: Option<Instant>,
}

impl ForkServer {
    fn step(&mut self, socket: &UnixStream) -> ForkServerStep {
        let waits = self.spare.as_ref().and_then(|spare| spare.since);
        let next = match (&self.spare, waits) {
            (Some(_), Some(since)) => since.checked_add(self.idle),
            (Some(_), None) => None,
            (None, _) => self.due,
        };
        self.make_rest_in_time();
        let [called, told] = self.wait(socket, [next, self.rest.due()].into_iter().flatten().min());
        if called.intersects(PollFlags::HUP | PollFlags::ERR) && waits.is_some() {
            return ForkServerStep::Gone;
        }
        if !told.is_empty() {
            self.listen();
        } else if !called.is_empty() && waits.is_none() {
            return self.serve(socket);
        }
        if next.is_some_and(|next| next <= Instant::now()) {
            match self.spare.take() {
                Some(_) => {} // Its socket is closed: it ends by itself.
                None => return self.make_spare(),
            }
        }
        ForkServerStep::Done
    }

    fn wait(&self, socket: &UnixStream, until: Option<Instant>) -> [PollFlags; 2] {
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

    /// What the blank box says.
    fn listen(&mut self) {
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
            // It could not be made, or the host's mounts have changed, or somebody killed it: the next order asks again.
            Ok(_) | Err(_) => cell::remove_left(&spare.groups),
        }
    }

    /// Has a supervisor for one order.
    fn serve(&mut self, socket: &UnixStream) -> ForkServerStep {
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
            self.due = self.due.or_else(|| settle.max(self.rest.due()));
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
            DeferredSetup::Made => self.ready.prepare(),
        }
    }

    fn make_rest_in_time(&mut self) {
        if self.rest.due().is_some_and(|due| due <= Instant::now()) {
            self.ready.complete();
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

/// What every supervisor begins with.
fn born() -> std::io::Result<()> {
    sys::reap_children()?;
    Ok(rustix::process::setsid().map(drop)?)
}

/// The life of a supervisor that makes a blank box, and then takes the order that comes first.
fn wait_blank(
    socket: UnixStream,
    nursery: UnixStream,
    ready: &cell::CellPrerequisites,
    groups: cell::GroupName,
) -> u8 {
    let made = born().and_then(|()| cell::PrewarmedSandbox::make(ready, groups, (socket, nursery)));
    let Ok((blank, (socket, mut nursery))) = made else {
        return 2; // silent-ok: an order's box is made for it, and tells what is wrong
    };
    let _ = nursery.write_all(&[WAITS]); // silent-ok: its end is seen below
    let _ = rustix::thread::set_name(c"clawk-blank"); // silent-ok: for people who look
    let theirs = loop {
        let [first, table] = blank.quiet();
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

/// The next order's socket, if there is one now; `None`: none will come any more.
fn next(socket: &UnixStream) -> Result<Option<(ForkRequest, UnixStream)>, Errno> {
    let mut birth = ForkRequest::default();
    let (bytes, fds) = loop {
        match passing::receive(socket, &mut birth.0, RecvFlags::DONTWAIT) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let fd = fds.into_iter().next().filter(|_| bytes > 0);
    Ok(fd.map(|fd| (birth, UnixStream::from(fd))))
}
