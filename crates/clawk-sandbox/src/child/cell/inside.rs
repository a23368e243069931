//! The probe (R32): what a tool would be, looking whether the walls stand. Run in the tool's place at start-up.

use std::io;

use rustix::net::{AddressFamily, SocketType};

use super::identity::ToolIdentity;
use crate::child::sys;

/// Looks, and ends the process: 0 when every wall holds. A wall that does not is named.
pub(super) fn look(identity: ToolIdentity) -> io::Result<std::convert::Infallible> {
    let refused = |what: &str, held: bool| {
        if held {
            Ok(())
        } else {
            Err(io::Error::other(format!("{what}: the probe got through")))
        }
    };
    let caps = rustix::thread::capabilities(None)?;
    refused(
        "capabilities",
        caps.effective.is_empty() && caps.permitted.is_empty(),
    )?;
    refused(
        "uid",
        identity.uid != 0 && rustix::process::getuid().as_raw() == identity.uid,
    )?;
    refused(
        "pid namespace",
        rustix::process::getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == 1),
    )?;
    refused(
        "seccomp",
        rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).is_err(),
    )?;
    refused(
        "network namespace",
        std::net::TcpStream::connect("127.0.0.1:9").is_err(),
    )?;
    refused("view", std::fs::metadata("/sys/kernel").is_err())?;
    refused("view", std::fs::write("/usr/.clawk-probe", "x").is_err())?;
    refused(
        "privileges",
        rustix::thread::set_thread_uid(rustix::process::Uid::ROOT).is_err(),
    )?;
    std::fs::write("/tmp/.probe", "x")
        .map_err(|error| io::Error::new(error.kind(), format!("tmpfs: {error}")))?;
    sys::end(0)
}
