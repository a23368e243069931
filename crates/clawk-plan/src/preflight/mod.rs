//! Static checks of a call against a plan. They run before anything starts and do not touch the host. Pure.
//!
//! They check text only. A link or a mount may change between check and use; that is handled later: the file tools open paths
//! beneath their root and follow no link out of it, and the level's isolation restricts processes.

mod host;
pub mod path;
pub mod shell;

use std::path::Path;

use crate::level::SandboxRefusal;
use crate::plan::Plan;

/// One action of a call that is to be checked.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Run a command line in a shell.
    Shell {
        /// The command line as the shell will get it.
        command: &'a str,
    },
    /// Use a file or folder.
    Path {
        /// As the caller gave it: absolute, or relative to `workdir`.
        path: &'a str,
        /// Whether the call changes or creates it.
        write: bool,
        /// The agent's working directory, absolute.
        workdir: &'a Path,
    },
    /// Open a connection.
    Url {
        /// The host, without brackets.
        host: &'a str,
        /// The port.
        port: u16,
    },
}

pub(crate) fn check_request(plan: &Plan, request: &Request<'_>) -> Result<(), SandboxRefusal> {
    match *request {
        Request::Shell { command } => shell::check_command(&plan.shell, command),
        Request::Path { path, write, workdir } => path::check_path(&plan.filesystem, path, write, workdir),
        Request::Url { host, port } => host::check_host(&plan.network, host, port),
    }
}

#[cfg(test)]
mod tests;
