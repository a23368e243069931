//! Why a state directory can't be used. Every message says where and what would mend it.

use std::io;
use std::path::{Path, PathBuf};

use clawk_proto::SessionId;
use clawk_trace::FaultKind;

/// Why a state directory can't be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system refused.
    #[error("{what} `{path}`: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process owns it.
    #[error(
        "the state directory `{path}` is in use by {holder}; stop that process, or name another directory with --state"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// `process 123`, or `another process` when the lock file doesn't say.
        holder: String,
    },
    /// A later version wrote it.
    #[error(
        "`{path}` has schema version {found}, this clawk knows up to {known}; use the clawk that wrote it, or a newer one"
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// It is no database of ours.
    #[error("`{path}` is a database of another program; name another directory with --state")]
    Foreign {
        /// The database.
        path: PathBuf,
    },
    /// A chain doesn't hold.
    #[error(
        "the journal in `{path}` is broken: session {session}, event {sequence}: {} ({detail}); nothing was started. \
         Look with `clawk trace verify --state {path}`; to start afresh, keep this directory as evidence by moving it \
         aside, for example `mv {path} {path}.broken`",
        kind.code()
    )]
    Broken {
        /// The directory.
        path: String,
        /// The chain.
        session: SessionId,
        /// The event.
        sequence: u64,
        /// The kind of fault.
        kind: FaultKind,
        /// For people.
        detail: String,
    },
    /// The signed heads and the journal, or its key, don't fit.
    #[error(
        "the journal in `{path}` is not the one that was signed: {detail}; nothing was started. Look with \
         `clawk trace verify --state {path}`, and keep the directory as evidence"
    )]
    Unvouched {
        /// The directory.
        path: PathBuf,
        /// For people.
        detail: String,
    },
    /// It was moved elsewhere, and serves no more.
    #[error("the state in `{path}` was moved to {to}, and serves no more; it can still be read")]
    Moved {
        /// The directory.
        path: PathBuf,
        /// Where to.
        to: String,
    },
    /// Something in it is encrypted, and the key is not there or not the right one.
    #[error("the stores {stores} in `{path}` are encrypted, and {why}; nothing was started")]
    Sealed {
        /// The database.
        path: PathBuf,
        /// Their names, in backticks.
        stores: String,
        /// What is wrong with the key.
        why: String,
    },
    /// A state that lies on a server can't be reached, or the server refused.
    #[error("{0}")]
    Server(String),
    /// SQLite refused.
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
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            what,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn database(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database {
            path: path.to_owned(),
            source,
        }
    }
}
