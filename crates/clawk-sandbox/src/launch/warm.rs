//! Runs one call in a sandbox that has waited for it.

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use super::door::{EgressServerHandle, SandboxListener};
use super::pool::PooledSandbox;
use super::run::{RunFollower, SupervisorControl, open_input, outcome_from_reports, send_some, send_with};
use super::wire::{HEARD, SandboxCall, SupervisorReport, TAKEN};
use super::{LaunchError, LaunchOutcome, Spec};

/// The first process of a sandbox ends within this time after its supervisor.
const LAST_WORD: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Sends the call to the sandbox and follows it to its end. `None`: surely nothing of the call ran, and it needs a new sandbox.
pub(super) async fn hand_over(
    spec: &Spec,
    waiting: PooledSandbox,
    call: &SandboxCall,
    started: Instant,
) -> Option<Result<LaunchOutcome, LaunchError>> {
    let timeout_ms = call.timeout_ms?;
    let keep = open_egress(spec, &waiting).ok()?; // silent-ok: a box of its own tells the reason
    let (output, theirs) = create_output_pipes().ok()?; // silent-ok: as above
    let (input, feed) = open_input(spec).ok()?; // silent-ok: as above
    let PooledSandbox {
        control,
        calls,
        mechanisms,
        missing,
        supervisor,
        ..
    } = waiting;
    let [out, err] = theirs;
    // A call that was not received completely does not count.
    let Ok(calls) = send_call(&control, calls, call, timeout_ms, [input, out, err]).await else {
        supervisor.give_up();
        return None;
    };
    let (mut control, gone) = SupervisorControl::from_socket(control, keep).ok()?; // silent-ok: dropping it has ended the box
    let run = RunFollower {
        control: &mut control,
        gone: &gone,
        give_up: &|| supervisor.give_up(),
    };
    let [out, err] = output;
    let followed = run
        .until_end(spec, (Some(out), Some(err)), feed, timeout_ms)
        .await;
    let (mut reports, kept) = match followed {
        Ok(ended) => ended,
        Err(error) => return Some(Err(error)),
    };
    // Whatever was reported, the sandbox acknowledges its call before it does anything with it.
    if !has_read_call(&calls) {
        return None;
    }
    let supervisor = supervisor.id().clone();
    reports.0.insert(
        0,
        SupervisorReport::Enclosed {
            mechanisms,
            missing,
            supervisor,
        },
    );
    Some(outcome_from_reports(spec, reports, timeout_ms).map(|outcome| kept.into_outcome(outcome, started)))
}

/// Starts to serve the sandbox's network access, with the rules and the name of this call.
fn open_egress(spec: &Spec, waiting: &PooledSandbox) -> std::io::Result<Option<EgressServerHandle>> {
    match (&waiting.door, spec.way_out()) {
        (Some(door), Some(gate)) => {
            let listener = door.try_clone()?.into();
            let plan = Arc::clone(&spec.plan);
            gate.serve_listener(SandboxListener { listener, plan }).map(Some)
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err(std::io::Error::other("another box's way out")),
    }
}

/// clawk's ends and the tool's ends of the output pipes.
pub(super) type OutputPipes = ([pipe::Receiver; 2], [OwnedFd; 2]);

pub(super) fn create_output_pipes() -> std::io::Result<OutputPipes> {
    let one = || -> std::io::Result<(pipe::Receiver, OwnedFd)> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        named_by_tool(&writer)?;
        Ok((pipe::Receiver::from_owned_fd(reader)?, writer))
    };
    let ((out, their_out), (err, their_err)) = (one()?, one()?);
    Ok(([out, err], [their_out, their_err]))
}

/// Lets a tool with another user id open its end again by name: `/dev/stdin`, `/dev/stdout`. Processes that do not have the
/// descriptor, and may not inspect one that has it, have no name for it.
pub(super) fn named_by_tool(end: &OwnedFd) -> std::io::Result<()> {
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchmod(end, rustix::fs::Mode::from_raw_mode(0o666))?;
    }
    Ok(())
}

/// Sends the time limit first, then the call.
async fn send_call(
    control: &StdUnixStream,
    calls: StdUnixStream,
    call: &SandboxCall,
    timeout_ms: u64,
    streams: [OwnedFd; 3],
) -> std::io::Result<StdUnixStream> {
    let text = serde_json::to_vec(call)?;
    let length = u32::try_from(text.len()).map_err(std::io::Error::other)?;
    let mut taken = vec![TAKEN];
    taken.extend(timeout_ms.to_le_bytes());
    send_with(control.as_fd(), &taken, &[])?;
    let whole = [&length.to_le_bytes(), text.as_slice()].concat();
    let [input, out, err] = &streams;
    let sent = send_some(calls.as_fd(), &whole, &[input.as_fd(), out.as_fd(), err.as_fd()])?;
    drop(streams);
    match whole.get(sent..) {
        None | Some([]) => Ok(calls),
        Some(rest) => {
            let mut stream = UnixStream::from_std(calls)?;
            stream.write_all(rest).await?;
            stream.into_std()
        }
    }
}

/// Whether the sandbox has read its call. Its supervisor has ended, so the sandbox ends if it has not.
fn has_read_call(mut calls: &StdUnixStream) -> bool {
    let mut byte = [0_u8; 1];
    let mut fds = [PollFd::new(&calls, PollFlags::IN)];
    let _ = rustix::event::poll(&mut fds, Some(&LAST_WORD)); // silent-ok: the read says it
    match calls.read(&mut byte) {
        Ok(1) => byte == [HEARD],
        Ok(_) => false,
        // It neither sent anything nor closed the socket: what it does is unknown.
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}
