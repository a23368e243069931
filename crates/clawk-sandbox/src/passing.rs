//! Descriptors that go from process to process with the bytes of a local socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// The most that one message carries, descriptors.
const MOST: usize = 24;

/// Sends bytes with descriptors attached to the first of them; how many bytes the socket took.
///
/// # Errors
/// `MSGSIZE`: more descriptors than [`MOST`]; and what the socket says.
pub(crate) fn send(
    socket: impl AsFd,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    rustix::net::sendmsg(socket, parts, &mut ancillary, flags | SendFlags::NOSIGNAL)
}

/// Receives bytes, how many, and the descriptors that came with them; none of them outlives an `exec`.
///
/// # Errors
/// What the socket says.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8], flags: RecvFlags) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(into)];
    let got = rustix::net::recvmsg(socket, &mut into, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok((got.bytes, rights.flatten().collect()))
}
