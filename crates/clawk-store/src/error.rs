//! Why a state directory can't be used. Every message names the place and a fix.

use std::io;
use std::path::{Path, PathBuf};

use clawk_proto::SessionId;
use clawk_trace::FaultKind;

/// Why a state directory can't be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system reported an error.
    #[error("{what} `{path}`: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process owns the directory.
    #[error(
        "the state directory `{path}` is in use by {holder}; stop that process, or name another directory with --state"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// `process 123`, or `another process` if the lock file does not say.
        holder: String,
    },
    /// A later version wrote the database.
    #[error(
        "`{path}` has schema version {found}, this clawk knows up to {known}; use the clawk that wrote it, or a newer one"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// The database's version.
        found: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// The file is not a database of clawk.
    #[error("`{path}` is a database of another program; name another directory with --state")]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// A chain is broken.
    #[error(
        "the journal in `{path}` is broken: session {session}, event {sequence}: {} ({detail}); nothing was started. \
         Look with `clawk trace verify --state {path}`; to start afresh, keep this directory as evidence by moving it \
         aside, for example `mv {path} {path}.broken`",
        kind.code()
    )]
    Broken {
        /// The directory.
        path: String,
        /// The session whose chain is broken.
        session: SessionId,
        /// The sequence number of the event.
        sequence: u64,
        /// The kind of fault.
        kind: FaultKind,
        /// The detail, for people.
        detail: String,
    },
    /// The signed heads do not match the journal or its key.
    #[error(
        "the journal in `{path}` is not the one that was signed: {detail}; nothing was started. Look with \
         `clawk trace verify --state {path}`, and keep the directory as evidence"
    )]
    Unvouched {
        /// The directory.
        path: PathBuf,
        /// The detail, for people.
        detail: String,
    },
    /// The state was moved and can no longer be served here.
    #[error("the state in `{path}` was moved to {to}, and serves no more; it can still be read")]
    Moved {
        /// The directory.
        path: PathBuf,
        /// The new location.
        to: String,
    },
    /// Stores are encrypted, and the key is missing or wrong.
    #[error("the stores {stores} in `{path}` are encrypted, and {why}; nothing was started")]
    Sealed {
        /// The database.
        path: PathBuf,
        /// The stores' names, in backticks.
        stores: String,
        /// What is wrong with the key.
        why: String,
    },
    /// The state is on a server that can't be reached or refuses.
    #[error("{0}")]
    Server(String),
    /// SQLite reported an error.
    #[error(
        "the database `{path}`: {source}; if it is damaged, keep it as evidence by moving the directory aside"
    )]
    Database {
        /// The database.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
}

impl StateError {
    pub(crate) fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            what,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn database_error(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database {
            path: path.to_owned(),
            source,
        }
    }
}
