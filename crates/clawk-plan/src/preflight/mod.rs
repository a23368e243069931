//! Static checks of a call against a plan: before anything starts, and without touching the host. Pure.
//!
//! They read text only. A link or a mount that changes meaning between check and use is the runner's matter: the file
//! tools open beneath their root and follow no link out, and the walls of the level hold for processes.

mod host;
pub mod path;
pub mod shell;

use std::path::Path;

use crate::level::SandboxRefusal;
use crate::plan::Plan;

/// One thing that a call is going to do.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// A command line for a shell.
    Shell {
        /// As the shell will get it.
        command: &'a str,
    },
    /// A file or folder.
    Path {
        /// As the caller gave it: absolute, or relative to `workdir`.
        path: &'a str,
        /// It will be changed or made.
        write: bool,
        /// The agent's working directory, absolute.
        workdir: &'a Path,
    },
    /// A connection.
    Url {
        /// The host, without brackets.
        host: &'a str,
        /// The port.
        port: u16,
    },
}

pub(crate) fn check(plan: &Plan, request: &Request<'_>) -> Result<(), SandboxRefusal> {
    match *request {
        Request::Shell { command } => shell::check(&plan.shell, command),
        Request::Path { path, write, workdir } => path::check(&plan.filesystem, path, write, workdir),
        Request::Url { host, port } => host::check(&plan.network, host, port),
    }
}

#[cfg(test)]
mod tests;
