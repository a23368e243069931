//! The supervisor: one small process per run, between clawk and the tool, forked from `clawk __sandbox nursery`.
//!
//! It leads a session of its own, is the subreaper of everything the tool starts (so a double-forked daemon comes back
//! to it), holds the limits, and ends only when no process of the run is left. When clawk dies, its socket closes and
//! the whole tree is killed at once; a parent-death signal would be bound to a thread of clawk's, which may end earlier.

pub(crate) mod cell;
mod limits;
pub(crate) mod nursery;
mod supervise;
pub(crate) mod sys;
pub(crate) mod tree;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use crate::launch::wire::{SandboxOrder, SupervisorReport};

/// Runs the process that supervisors are forked from, on the socket that is standard input. To be called first thing in `main`,
/// before any thread starts, when the first argument is `__sandbox`; the process ends with what this returns.
#[must_use]
pub fn main() -> ExitCode {
    limits::close_inherited();
    let socket = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(fd) => UnixStream::from(fd),
        Err(_) => return ExitCode::from(2), // silent-ok: nobody can be told without the socket
    };
    // Said aloud, so that nobody starts it by mistake.
    let asked = std::env::args_os()
        .next_back()
        .is_some_and(|word| word == nursery::WORD);
    match asked {
        true => nursery::run(socket.into()),
        false => ExitCode::from(2),
    }
}

/// One run, from its order to its end, in a blank box where there is one for it.
fn supervise_on(
    socket: &UnixStream,
    ready: &cell::CellPrerequisites,
    blank: Option<cell::PrewarmedSandbox>,
) -> u8 {
    let ended = read_order(socket).and_then(|(order, streams)| match &order.enclosure {
        None => {
            // A blank box has used what was made ahead.
            let ready = blank.is_none().then_some(ready);
            drop(blank);
            supervise::run(socket, &order, streams, ready)
        }
        Some(enclosure) => cell::run(socket, &order, enclosure, streams, ready, blank),
    });
    match ended {
        Ok(()) => 0,
        Err(error) => {
            let reason = error.to_string();
            let _ = tell(socket, &SupervisorReport::Refused { reason }); // silent-ok: clawk may be gone
            2
        }
    }
}

/// What comes with an order.
struct OrderStreams {
    /// The tool's standard input; of a box that waits, the socket that its call comes by.
    input: OwnedFd,
    /// Its output; of a box that waits, none yet.
    output: Option<[OwnedFd; 2]>,
    /// Where the box's listening socket is to be sent, if it is to have one.
    door: Option<OwnedFd>,
}

/// Reads the order, and what comes with it.
fn read_order(socket: &UnixStream) -> std::io::Result<(SandboxOrder, OrderStreams)> {
    let (text, fds) =
        cell::read_whole(socket)?.ok_or_else(|| std::io::Error::other("the order has no length"))?;
    let mut fds = fds.into_iter();
    let four = [fds.next(), fds.next(), fds.next(), fds.next()];
    let (input, output, door) = match four {
        [Some(input), door, None, None] => (input, None, door),
        [Some(input), Some(out), Some(err), door] => (input, Some([out, err]), door),
        _ => return Err(std::io::Error::other("the order has no streams")),
    };
    let streams = OrderStreams { input, output, door };
    Ok((serde_json::from_slice(&text)?, streams))
}

fn tell(socket: &UnixStream, report: &SupervisorReport) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    (&mut &*socket).write_all(&line)
}
