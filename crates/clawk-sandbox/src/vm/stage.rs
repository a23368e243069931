//! `clawk __vm`: the program that a sandbox of level `vm` starts instead of the tool. It starts the file server and qemu, forwards
//! the machine's output, and ends when the tool in the machine has ended. The sandbox and all of its processes end with it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::RecvFlags;

use super::wire::{self, MachineSetup, MachineToolUser};
use crate::passing;

/// The first argument that starts this level's programs.
pub const MODE: &str = "__vm";

/// The second argument selects the program; without it, the stage runs.
pub(super) const FILES: &str = "files";
pub(super) const AGENT: &str = "agent";

/// How many bytes of qemu's and the kernel's output are kept, for the reason of a failed start.
const CONSOLE_BYTES: usize = 2 << 10;

/// Runs the program that the arguments name. Call it first in `main` if the first argument is [`MODE`].
#[must_use]
pub fn main() -> ExitCode {
    let mut words = std::env::args().skip(2);
    let done = match words.next().as_deref() {
        Some(FILES) => super::files::serve_files(words.next().as_deref().unwrap_or_default()).map(|()| 0),
        Some(AGENT) => super::agent::run_machine().map(|()| 0),
        Some(_) | None => run_stage(),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}"); // silent-ok: the exit code says it
            ExitCode::from(2)
        }
    }
}

/// Runs the stage. Returns the tool's exit code in the shell's convention.
fn run_stage() -> io::Result<u8> {
    let launcher = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let done = run_machine(&launcher);
    if let Err(error) = &done {
        let _ = wire::send_frame(&launcher, wire::BROKEN, error.to_string().as_bytes()); // silent-ok: clawk may be gone
    }
    done
}

/// Runs the machine, from the order to the end.
fn run_machine(launcher: &UnixStream) -> io::Result<u8> {
    let (setup, listener, client) = receive_order(launcher)?;
    let (agent, port) = UnixStream::pair()?;
    let mut files = serve_files(&setup, listener)?;
    let (mut qemu, console) = start_machine(&setup, &client, &port.into())?;
    drop(client);
    let said = Arc::new(Mutex::new(VecDeque::new()));
    let hearing = Arc::clone(&said);
    std::thread::spawn(move || read_console(console, &hearing));
    let (from_launcher, to_agent) = (launcher.try_clone()?, agent.try_clone()?);
    std::thread::spawn(move || {
        let _ = forward_to_agent(from_launcher, to_agent); // silent-ok: whoever is gone ends the run
    });
    let ended = relay_output(launcher, &agent, Duration::from_millis(setup.boot_ms));
    for child in [&mut qemu, &mut files] {
        let _ = child.kill(); // silent-ok: it ended by itself
        child.wait()?;
    }
    ended.map_err(|error| {
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = said.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let last: Vec<&str> = text
            .lines()
            .rev()
            .filter(|line| !line.trim().is_empty())
            .take(4)
            .collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        io::Error::other(format!("{error}; its last words: {}", last.join(" | ")))
    })
}

/// Receives the setup and the two ends of the file server's socket, which can't be created in a sandbox.
fn receive_order(launcher: &UnixStream) -> io::Result<(MachineSetup, OwnedFd, OwnedFd)> {
    let mut length = [0_u8; 4];
    let (_, fds) = passing::receive_with_fds(launcher, &mut length, RecvFlags::WAITALL)?;
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
    if length > wire::MAX_JOB_BYTES {
        return Err(io::Error::other("the order is too long"));
    }
    let mut text = vec![0; length];
    (&mut &*launcher).read_exact(&mut text)?;
    let mut fds = fds.into_iter();
    match (fds.next(), fds.next()) {
        (Some(listener), Some(client)) => Ok((serde_json::from_slice(&text)?, listener, client)),
        _ => Err(io::Error::other("the order has no sockets")),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "clawk-sandbox is the only process spawner"
)]
fn serve_files(setup: &MachineSetup, listener: OwnedFd) -> io::Result<std::process::Child> {
    let rules = serde_json::to_string(&setup.rules)?;
    Command::new(crate::launch::OWN_PROGRAM)
        .args([MODE, FILES, &rules])
        .env_clear()
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
}

type Machine = (std::process::Child, std::io::PipeReader);

#[expect(
    clippy::disallowed_methods,
    reason = "clawk-sandbox is the only process spawner"
)]
fn start_machine(setup: &MachineSetup, client: &OwnedFd, port: &OwnedFd) -> io::Result<Machine> {
    let (console, theirs) = io::pipe()?;
    for fd in [client, port] {
        rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
    }
    let socket = |id: &str, fd: &OwnedFd| format!("socket,id={id},fd={}", fd.as_raw_fd());
    let qemu = Command::new(&setup.qemu)
        .args(&setup.args)
        .args([
            "-chardev",
            &socket("files", client),
            "-chardev",
            &socket("agent", port),
        ])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::from(theirs.try_clone()?))
        .stderr(Stdio::from(theirs))
        .spawn()
        .map_err(|error| io::Error::other(format!("`{}`: {error}", setup.qemu.display())))?;
    rustix::io::fcntl_setfd(client, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::fcntl_setfd(port, rustix::io::FdFlags::CLOEXEC)?;
    Ok((qemu, console))
}

fn read_console(mut console: impl Read, said: &Mutex<VecDeque<u8>>) {
    let mut buffer = [0_u8; 4096];
    while let Ok(read @ 1..) = console.read(&mut buffer) {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend(buffer.iter().take(read));
        let surplus = said.len().saturating_sub(CONSOLE_BYTES);
        said.drain(..surplus);
    }
}

/// Sends the tool's user to the machine, then forwards the launcher's frames.
fn forward_to_agent(mut launcher: UnixStream, mut agent: UnixStream) -> io::Result<()> {
    let who = MachineToolUser {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    wire::send_frame(&agent, wire::WHO, &serde_json::to_vec(&who)?)?;
    io::copy(&mut launcher, &mut agent).map(drop)
}

/// Forwards output to the run's own streams, and messages about the tool to the launcher.
fn relay_output(launcher: &UnixStream, agent: &UnixStream, boot: Duration) -> io::Result<u8> {
    let mut streams = (io::stdout(), io::stderr());
    agent.set_read_timeout(Some(boot))?;
    loop {
        let frame = wire::next(agent, wire::MAX_ANSWER_BYTES).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                io::Error::other(format!("it did not start within {} ms", boot.as_millis()))
            }
            _ => error,
        })?;
        let Some((kind, body)) = frame else {
            return Err(io::Error::other("the machine stopped"));
        };
        match kind {
            wire::OUT => streams.0.write_all(&body).and_then(|()| streams.0.flush())?,
            wire::ERR => streams.1.write_all(&body)?,
            wire::HELLO => {
                agent.set_read_timeout(None)?;
                wire::send_frame(launcher, kind, &body)?;
            }
            wire::STARTED => wire::send_frame(launcher, kind, &body)?,
            wire::FAULT => return wire::send_frame(launcher, kind, &body).map(|()| 127),
            wire::END => {
                let end: wire::MachineToolExit = serde_json::from_slice(&body)?;
                let code = end.exit_code.or(end.signal.map(|signal| 128 + (signal & 127)));
                wire::send_frame(launcher, kind, &body)?;
                return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX));
            }
            _ => return Err(io::Error::other("the machine does not keep to the protocol")),
        }
    }
}
