//! The supervisor: one small process per run, between clawk and the tool. It is forked from the fork server
//! (`clawk __sandbox nursery`).
//!
//! It leads its own session and is the subreaper of everything that the tool starts, so that a double-forked daemon becomes its
//! child. It enforces the limits, and ends only when no process of the run is left. When clawk dies, its socket closes and the
//! whole tree is killed at once. A parent-death signal would be bound to a thread of clawk, which may end earlier.

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

/// Runs the fork server on the socket that is standard input. Call it first in `main`, before any thread starts, if the first
/// argument is `__sandbox`; then end the process with the returned exit code.
#[must_use]
pub fn main() -> ExitCode {
    limits::close_inherited();
    let socket = match rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3) {
        Ok(fd) => UnixStream::from(fd),
        Err(_) => return ExitCode::from(2), // silent-ok: nobody can be told without the socket
    };
    // The argument is required, so that nobody starts this by mistake.
    let asked = std::env::args_os()
        .next_back()
        .is_some_and(|word| word == nursery::WORD);
    match asked {
        true => nursery::run(socket.into()),
        false => ExitCode::from(2),
    }
}

/// Supervises one run, from its order to its end. Uses a prewarmed sandbox if there is one.
fn supervise_on(
    socket: &UnixStream,
    ready: &cell::CellPrerequisites,
    blank: Option<cell::PrewarmedSandbox>,
) -> u8 {
    let ended = read_order(socket).and_then(|(order, streams)| match &order.enclosure {
        None => {
            // A prewarmed sandbox has used the parts that were made in advance.
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
            let _ = send_report(socket, &SupervisorReport::Refused { reason }); // silent-ok: clawk may be gone
            2
        }
    }
}

/// Sets the umask of a box. The folders of its view must be readable for the tool's user, whatever umask clawk was started with (`UMask=` of
/// a service).
pub(crate) fn set_box_umask() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
}

/// The descriptors that come with an order.
struct OrderStreams {
    /// The tool's standard input; for a waiting sandbox, the socket for its call.
    input: OwnedFd,
    /// The tool's output; for a waiting sandbox, `None`.
    output: Option<[OwnedFd; 2]>,
    /// The socket over which the sandbox's listening socket is sent, if there is one.
    door: Option<OwnedFd>,
}

/// Reads the order and its descriptors.
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

fn send_report(socket: &UnixStream, report: &SupervisorReport) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    (&mut &*socket).write_all(&line)
}
