//! Passes orders and calls to the processes of a sandbox, over private sockets, with the tool's streams attached.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvFlags, SendFlags};

use crate::child::sys;
use crate::launch::wire::{HEARD, MAX_REQUEST_BYTES, SandboxCall};
use crate::passing;

/// The tool's standard streams.
pub(super) struct ToolStreams {
    pub(super) input: OwnedFd,
    /// Standard output and error; `None`: nobody reads them.
    pub(super) output: Option<[OwnedFd; 2]>,
}

impl ToolStreams {
    /// Makes them this process's standard streams.
    pub(super) fn take_places(self) -> io::Result<()> {
        sys::stdin_is(&self.input)?;
        if let Some([out, err]) = &self.output {
            rustix::stdio::dup2_stdout(out)?;
            rustix::stdio::dup2_stderr(err)?;
        }
        Ok(())
    }
}

/// Tells the first process that the filter is installed, and passes it the guard's listener.
pub(super) fn send_listener(socket: BorrowedFd<'_>, listener: Option<&OwnedFd>) -> io::Result<()> {
    match listener {
        Some(listener) => super::send_descriptor(socket, listener.as_fd()),
        None => Ok(rustix::io::write(socket, b"d").map(drop)?),
    }
}

/// Receives a message of [`send_listener`]; `None`: nothing was sent.
pub(super) fn receive_listener(socket: &UnixStream) -> Option<Option<OwnedFd>> {
    let got = passing::receive_with_fds(socket, &mut [0], RecvFlags::DONTWAIT);
    let (bytes, fds) = got.ok()?; // silent-ok: the fault says why
    (bytes == 1).then(|| fds.into_iter().next())
}

/// Sends a text after its length (4 bytes, little endian), with descriptors attached.
pub(in crate::child) fn send_whole(
    socket: &UnixStream,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let length = u32::try_from(text.len()).map_err(io::Error::other)?.to_le_bytes();
    let parts = [io::IoSlice::new(&length), io::IoSlice::new(text)];
    let sent = passing::send_with_fds(socket, &parts, fds, SendFlags::empty())?;
    let whole = [length.as_slice(), text].concat();
    (&mut &*socket).write_all(whole.get(sent..).unwrap_or_default())
}

/// Receives such a text; `None`: the sender is gone.
pub(in crate::child) fn read_whole(socket: &UnixStream) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut length = [0_u8; 4];
    let (got, fds) = passing::receive_with_fds(socket, &mut length, RecvFlags::WAITALL)?;
    if got != length.len() {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_REQUEST_BYTES {
        return Err(io::Error::other(
            "the call is too long: arguments and environment exceed 8 MiB",
        ));
    }
    let mut text = vec![0; length];
    (&mut &*socket).read_exact(&mut text)?;
    Ok(Some((text, fds)))
}

/// Waits for the complete call and acknowledges it. The process that becomes the tool calls this, fully isolated already. It ends
/// if the sandbox's first process ends.
pub(super) fn receive_call(calls: &UnixStream) -> io::Result<(SandboxCall, ToolStreams)> {
    let (text, fds) = match read_whole(calls)? {
        Some(whole) => whole,
        None => sys::exit_now(1), // whoever could have called is gone
    };
    let call = serde_json::from_slice(&text)?;
    let Ok([input, out, err]) = <[OwnedFd; 3]>::try_from(fds) else {
        return Err(io::Error::other("the call has no streams"));
    };
    (&mut &*calls).write_all(&[HEARD])?;
    let streams = ToolStreams {
        input,
        output: Some([out, err]),
    };
    Ok((call, streams))
}
