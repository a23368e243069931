//! Reads the configuration of another agent runtime and writes the same agent as a `claw.yaml` with its `clawk.toml`.
//!
//! *Owns*: the readers of the other runtimes' files, the draft of an agent, the writer of the new folder.
//! *Depends on*: parsers of JSON5, TOML, YAML and SQLite.
//! *Must not know*: the kernel, the network, the values of secrets after they were skipped.
//! *Start reading at*: [`import_agent`], then [`runtimes`](crate::Runtime).
//!
//! Four rules apply to every reader. It reads only below the given folder and follows no link. It never writes a secret's value:
//! the new files hold a reference, and the report says where the value is. Actions that the other runtime allowed without asking
//! need an approval here. The report names every setting that is not imported, with the reason.

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
pub use skill::{REQUIRES, SkillImport, import_skill};

/// The new folder's content: the imported agent, and the settings that were not imported.
#[derive(Debug)]
pub struct ImportResult {
    /// Relative paths and contents. `claw.yaml`, `clawk.toml` and `IMPORT.md` are always included.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The imported settings and the omitted ones.
    pub report: ImportReport,
}

/// Why nothing could be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The runtime's configuration does not exist.
    #[error("`{}` has no configuration of {runtime}: none of {looked_for} exists", path.display())]
    NotThere {
        /// The runtime's name.
        runtime: &'static str,
        /// The searched folder.
        path: PathBuf,
        /// The searched file names, as a list for people.
        looked_for: String,
    },
    /// A file can't be read.
    #[error("can't read `{}`: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A file does not have its format.
    #[error("`{}` is not valid {format}: {cause}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// `JSON`, `TOML`, `YAML` or `SQLite`.
        format: &'static str,
        /// The parser's error, without the file's content.
        cause: String,
    },
    /// A link was found in the place of a file.
    #[error(
        "`{}` is a link, or lies behind one; an import follows no link: copy the file there, or name the folder that it leads to",
        path.display()
    )]
    Link {
        /// The path of the link.
        path: PathBuf,
    },
    /// A file is larger than any real configuration file.
    #[error("`{}` is larger than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest size that is read, bytes.
        limit: u64,
    },
}

/// Reads the configuration of `runtime` below `path` (its home folder, such as `~/.openclaw`, or the configuration file in it), and
/// drafts the same agent for clawk. Writes nothing.
///
/// # Errors
/// There is no configuration, or one of its files can't be read. A single setting without a meaning here is not an error; the
/// report names it.
pub fn import_agent(runtime: Runtime, path: &Path) -> Result<ImportResult, ImportError> {
    let draft = runtimes::read(runtime, path)?;
    Ok(write::write(runtime, draft))
}
