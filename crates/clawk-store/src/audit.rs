//! A database that holds only audit records: a copy that can be given away and that survives its source.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use crate::dir::make_private_file;
use crate::error::StateError;

/// How long to wait for another reader or writer of the file.
const BUSY: Duration = Duration::from_secs(5);

/// One audit record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRow {
    /// Milliseconds since the epoch.
    pub at_ms: i64,
    /// The event's type.
    pub kind: String,
    /// The session whose chain has it.
    pub session: String,
    /// The event's sequence number in the chain.
    pub sequence: u64,
    /// The whole record as a JSON object.
    pub record: String,
}

/// The audit database. Each use opens the file, because it may be moved away or read in between.
#[derive(Debug, Clone)]
pub struct AuditDb {
    path: PathBuf,
}

impl AuditDb {
    /// The database at this path. The first write creates it.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_connection(&self) -> Result<Connection, StateError> {
        let error = || StateError::database_error(&self.path);
        make_private_file(&self.path)?;
        let connection = Connection::open(&self.path).map_err(error())?;
        fs::set_permissions(&self.path, Permissions::from_mode(0o600))
            .map_err(StateError::io_error("can't protect", &self.path))?;
        let prepare = || -> rusqlite::Result<()> {
            connection.busy_timeout(BUSY)?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            // Deleted records must not stay readable in free pages.
            connection.pragma_update(None, "secure_delete", true)?;
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS audit (
                    at_ms INTEGER NOT NULL, type TEXT NOT NULL, session TEXT NOT NULL, sequence INTEGER NOT NULL,
                    record TEXT NOT NULL, PRIMARY KEY (session, sequence)) STRICT, WITHOUT ROWID;
                 CREATE INDEX IF NOT EXISTS audit_at ON audit (at_ms);",
            )
        };
        prepare().map_err(error())?;
        Ok(connection)
    }

    /// Checks that the database can be written.
    ///
    /// # Errors
    /// It can't be opened or created, or is not a database.
    pub fn check_writable(&self) -> Result<(), StateError> {
        self.open_connection().map(drop)
    }

    /// Stores all rows durably in one transaction. Rows that exist already are not changed.
    ///
    /// # Errors
    /// It can't be written; no row is stored.
    pub fn insert_rows(&self, rows: &[AuditRow]) -> Result<(), StateError> {
        let mut connection = self.open_connection()?;
        let mut write = || -> rusqlite::Result<()> {
            let transaction = connection.transaction()?;
            {
                let mut insert = transaction.prepare(
                    "INSERT INTO audit (at_ms, type, session, sequence, record) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (session, sequence) DO NOTHING",
                )?;
                for row in rows {
                    let sequence = i64::try_from(row.sequence).unwrap_or(i64::MAX);
                    insert.execute((row.at_ms, &row.kind, &row.session, sequence, &row.record))?;
                }
            }
            transaction.commit()
        };
        write().map_err(StateError::database_error(&self.path))
    }

    /// Deletes older rows and returns their number.
    ///
    /// # Errors
    /// It can't be written.
    pub fn expire_rows(&self, before_ms: i64) -> Result<usize, StateError> {
        let connection = self.open_connection()?;
        connection
            .execute("DELETE FROM audit WHERE at_ms < ?1", [before_ms])
            .map_err(StateError::database_error(&self.path))
    }

    /// All rows, oldest first.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read_rows(&self) -> Result<Vec<AuditRow>, StateError> {
        let connection = self.open_connection()?;
        let read = || -> rusqlite::Result<Vec<AuditRow>> {
            let mut select = connection.prepare(
                "SELECT at_ms, type, session, sequence, record FROM audit ORDER BY at_ms, session, sequence",
            )?;
            let rows = select.query_map([], |row| {
                let sequence: i64 = row.get(3)?;
                Ok(AuditRow {
                    at_ms: row.get(0)?,
                    kind: row.get(1)?,
                    session: row.get(2)?,
                    sequence: u64::try_from(sequence).unwrap_or(0),
                    record: row.get(4)?,
                })
            })?;
            rows.collect()
        };
        read().map_err(StateError::database_error(&self.path))
    }
}
