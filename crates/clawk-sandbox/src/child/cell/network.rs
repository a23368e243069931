//! A network namespace that contains only `lo`. It is made before the sandbox that gets it, and used by that sandbox only. Creating
//! it costs more than all other namespaces together.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::sched::CloneFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::child::sys;

const OWN: &str = "/proc/self/ns/net";

/// Creates one. Afterwards this single-threaded process is back in its previous namespace.
pub(super) fn create_namespace() -> io::Result<OwnedFd> {
    let home = OwnedFd::from(File::open(OWN)?);
    nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
    let made = sys::loopback_up().and_then(|()| File::open(OWN));
    // INVARIANT: a process that could not return to its namespace must not fork anything.
    if enter_namespace(&home).is_err() {
        sys::exit_now(2);
    }
    Ok(made?.into())
}

/// Moves this single-threaded process into the namespace.
pub(super) fn enter_namespace(network: &OwnedFd) -> io::Result<()> {
    Ok(move_into_link_name_space(
        network.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}
