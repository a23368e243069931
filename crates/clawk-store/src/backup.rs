//! Consistent copies of a state directory's databases and contents while an agent writes them (`clawk backup`).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clawk_proto::Digest;
use rusqlite::{Connection, OpenFlags};

use crate::append::digest_at;
use crate::error::StateError;
use crate::reader::StateDirReader;

/// How long to wait for a writer of the file.
const BUSY: std::time::Duration = std::time::Duration::from_secs(30);

/// A content that an event refers to and that lies in a file of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiledContent {
    /// Its digest.
    pub digest: Digest,
    /// The record says that it was erased.
    pub erased: bool,
}

/// Writes a copy of an SQLite database as of one moment. Others may write it meanwhile, and do not wait.
///
/// # Errors
/// `to` exists, or a file can't be read or written.
pub fn snapshot_database(from: &Path, to: &Path) -> Result<(), StateError> {
    fs::metadata(from).map_err(StateError::io_error("can't read", from))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(from, flags).map_err(StateError::database_error(from))?;
    let copy = || -> rusqlite::Result<()> {
        connection.busy_timeout(BUSY)?;
        connection.execute("VACUUM INTO ?1", [to.to_string_lossy()])?;
        Ok(())
    };
    copy().map_err(StateError::database_error(from))?;
    fs::set_permissions(to, Permissions::from_mode(0o600)).map_err(StateError::io_error("can't protect", to))
}

/// The file of a content, below a state directory.
#[must_use]
pub fn content_file(digest: Digest) -> PathBuf {
    let hex = digest.to_hex();
    let (front, rest) = hex.split_at_checked(2).unwrap_or((hex.as_str(), ""));
    Path::new("blobs").join(front).join(rest)
}

/// Removes the signed heads, so that another key can sign from here on. Returns them as a checkpoints file. The chains stay as they
/// are.
///
/// # Errors
/// The database can't be read or written.
pub fn detach_heads(state: &Path) -> Result<String, StateError> {
    let heads = StateDirReader::open(state)?.heads()?;
    let database = state.join("state.db");
    let connection = Connection::open(&database).map_err(StateError::database_error(&database))?;
    connection
        .execute_batch("BEGIN IMMEDIATE; DELETE FROM heads; DELETE FROM deliveries; COMMIT;")
        .map_err(StateError::database_error(&database))?;
    Ok(heads)
}

impl StateDirReader {
    /// Lists the contents that have no copy in the database, each once.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn filed_contents(&self) -> Result<Vec<FiledContent>, StateError> {
        let (erased, _) = self.redacted()?;
        self.with(|connection| {
            let mut select = connection.prepare(
                "SELECT content_digest FROM events WHERE content_digest IS NOT NULL \
                 GROUP BY content_digest HAVING max(content IS NOT NULL) = 0",
            )?;
            let rows = select.query_map([], |row| digest_at(row, 0))?;
            rows.map(|digest| {
                digest.map(|digest| FiledContent {
                    digest,
                    erased: erased.contains(&digest),
                })
            })
            .collect()
        })
    }
}
