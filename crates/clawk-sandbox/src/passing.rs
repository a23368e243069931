//! Sends and receives descriptors together with the bytes of a local socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, Result};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// The maximum number of descriptors in one message.
const MOST: usize = 24;

/// Sends bytes, with descriptors attached to the first byte. Returns how many bytes the socket accepted.
///
/// # Errors
/// `MSGSIZE`: more descriptors than [`MOST`]; and errors of the socket.
pub(crate) fn send_with_fds(
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

/// Receives bytes and the attached descriptors. Returns the number of bytes. The descriptors are closed on `exec`.
///
/// # Errors
/// Errors of the socket.
pub(crate) fn receive_with_fds(
    socket: impl AsFd,
    into: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, Vec<OwnedFd>)> {
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
