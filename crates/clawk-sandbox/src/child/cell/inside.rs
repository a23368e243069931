//! The probe (R32): runs in the tool's place at start-up, and checks that the isolation works.

use std::io;

use rustix::net::{AddressFamily, SocketType};

use super::identity::ToolIdentity;
use crate::child::sys;

/// Runs the checks and ends the process: exit code 0 if all pass; otherwise it names the failed one.
pub(super) fn verify_walls(identity: ToolIdentity) -> io::Result<std::convert::Infallible> {
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
    sys::exit_now(0)
}
