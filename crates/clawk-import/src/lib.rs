//! Reads what another agent runtime was configured with and writes the same agent as a `claw.yaml` with its `clawk.toml`.
//!
//! *Owns*: the readers of the other runtimes' files, the draft of an agent, the writer of the new folder.
//! *Depends on*: parsers of JSON5, TOML, YAML and SQLite.
//! *Must not know*: the kernel, the network, the values of secrets after they were read over.
//! *Start reading at*: [`import`], then [`runtimes`](crate::Runtime).
//!
//! Four rules hold for every reader. It reads beneath the folder that it was given and follows no link. A secret's value is never written: the new files hold a reference, and the report says
//! where the value is. What the other runtime allowed without asking is not allowed here without asking. Every setting that
//! is not carried over is named in the report with the reason.

mod channels;
mod draft;
mod emit;
mod jobs;
mod providers;
mod report;
mod runtimes;
mod settings;
mod skill;
mod source;
mod tools;
mod vendors;
mod workspace;
mod write;

use std::path::{Path, PathBuf};

pub use report::{ImportReport, NeededSecret, OmittedSetting};
pub use runtimes::Runtime;
pub use skill::{REQUIRES, SkillImport, skill};

/// A folder to be written: the new agent, and what could not be carried over.
#[derive(Debug)]
pub struct ImportResult {
    /// Relative paths and contents. `claw.yaml`, `clawk.toml` and `IMPORT.md` are always among them.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// What was carried over, and what was not.
    pub report: ImportReport,
}

/// Why nothing could be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The runtime's configuration is not there.
    #[error("`{}` has no configuration of {runtime}: none of {looked_for} exists", path.display())]
    NotThere {
        /// The runtime's name.
        runtime: &'static str,
        /// The folder that was looked at.
        path: PathBuf,
        /// The files looked for, as a list for people.
        looked_for: String,
    },
    /// A file can't be read.
    #[error("can't read `{}`: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's words.
        cause: std::io::Error,
    },
    /// A file is not in its format.
    #[error("`{}` is not valid {format}: {cause}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// `JSON`, `TOML`, `YAML` or `SQLite`.
        format: &'static str,
        /// What the parser says, without the file's content.
        cause: String,
    },
    /// A link stands where a file is wanted.
    #[error(
        "`{}` is a link, or lies behind one; an import follows no link: copy the file there, or name the folder that it leads to",
        path.display()
    )]
    Link {
        /// The place.
        path: PathBuf,
    },
    /// A file is larger than any real one.
    #[error("`{}` is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes that are read at most.
        limit: u64,
    },
}

/// Reads the configuration of `runtime` below `path` (its home folder, such as `~/.openclaw`, or the configuration file in
/// it) and drafts the same agent for clawk. Reads only; writes nothing.
///
/// # Errors
/// No configuration is there, or one of its files can't be read. Single settings that mean nothing here are no errors: they
/// stand in the report.
pub fn import(runtime: Runtime, path: &Path) -> Result<ImportResult, ImportError> {
    let draft = runtimes::read(runtime, path)?;
    Ok(write::write(runtime, draft))
}
