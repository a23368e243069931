//! Moves a state directory's tables into another state (`clawk state move`).
//!
//! The source is locked while it is read, so no agent serves it. The target is built beside its final path and renamed at the end,
//! so an interrupted move leaves nothing that looks like a state.

mod target;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clawk_kernel::moved::{
    CONTENTS, EVENTS, MEMORY, MovedCell, MovedRow, PAGE, RowSealer, StateTally, StateTotals, Table, VECTORS,
};
use clawk_proto::Digest;
use clawk_recall::entry::EntryProvenance;
use clawk_recall::keys::{Keys, join_names};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::dir::{Options, StateDir, make_private};
use crate::error::StateError;
use crate::reader::StateDirReader;

pub use target::SqliteStateImport;

/// The file that records the new location of a moved state.
const MOVED: &str = "moved";
/// The longest content of this file, bytes.
const MAX_MOVED: u64 = 4_096;
/// Files that belong to the database or to a running agent. They are not copied.
const OWN: [&str; 9] = [
    "state.db",
    "state.db-wal",
    "state.db-shm",
    "blobs",
    "lock",
    "control.sock",
    "postgres.json",
    "manifest",
    MOVED,
];

/// The new location of the directory's state; `None`: it was not moved.
///
/// # Errors
/// The file can't be read.
pub fn moved_to(dir: &Path) -> Result<Option<String>, StateError> {
    let path = dir.join(MOVED);
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => file
            .take(MAX_MOVED)
            .read_to_string(&mut text)
            .map_err(StateError::io_error("can't read", &path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::io_error("can't read", &path)(error)),
    };
    // Control characters are removed: the text is shown to people, and the directory may come from a cloned repository.
    Ok(Some(text.chars().filter(|c| !c.is_control()).collect()))
}

/// Copies the agent's files beside the database: keys, positions of channels, stores in folders. Does not follow links.
///
/// # Errors
/// A file can't be copied.
pub fn copy_files(from: &Path, to: &Path) -> Result<u64, StateError> {
    let mut copied = 0;
    let entries = fs::read_dir(from).map_err(StateError::io_error("can't look at", from))?;
    for entry in entries {
        let entry = entry.map_err(StateError::io_error("can't look at", from))?;
        let (path, name) = (entry.path(), entry.file_name());
        let place = to.join(&name);
        let kind = entry
            .file_type()
            .map_err(StateError::io_error("can't look at", &path))?;
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        if kind.is_dir() {
            make_private(&place)?;
            copied += copy_files(&path, &place)?;
        } else if kind.is_file() {
            fs::copy(&path, &place).map_err(StateError::io_error("can't copy", &path))?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// A whole state directory, read while no agent serves it.
#[derive(Debug)]
pub struct SqliteStateExport {
    dir: PathBuf,
    reader: StateDirReader,
    /// The lock on the directory; `None` if the state was moved before and is only read.
    owner: Option<StateDir>,
    digests: Option<std::vec::IntoIter<Digest>>,
    offset: i64,
    table: &'static str,
    tally: StateTally,
    /// Opens encrypted values.
    carrier: RowSealer,
    keys: Option<Keys>,
}

impl SqliteStateExport {
    /// Locks the directory. One that was moved to `target` before may be read again, because that move may have been interrupted.
    ///
    /// # Errors
    /// An agent serves it, it was moved elsewhere, the key of its encrypted stores is missing or wrong, or it can't be read.
    pub fn open(dir: &Path, target: &str) -> Result<Self, StateError> {
        let owner = match moved_to(dir)? {
            Some(to) if to == target => None,
            Some(to) => {
                return Err(StateError::Moved {
                    path: dir.to_owned(),
                    to,
                });
            }
            None => Some(StateDir::open(dir, Options::default())?),
        };
        let reader = StateDirReader::open(dir)?;
        let sealed = |why: &str| StateError::Sealed {
            path: dir.to_owned(),
            stores: join_names(reader.seals().stores().iter().cloned()),
            why: why.to_owned(),
        };
        if let Some(why) = reader.lacks_key() {
            return Err(sealed(why));
        }
        let keys = match (reader.key_references()?, reader.vault()) {
            (Some(references), Some(vault)) => {
                if references.previous.is_some() {
                    return Err(sealed(
                        "a change of the key is not finished: run `clawk memory rekey` again",
                    ));
                }
                Some(Keys {
                    vault: vault.clone(),
                    reference: references.current,
                    stores: reader.seals().stores().clone(),
                })
            }
            (_, _) => None,
        };
        Ok(Self {
            dir: dir.to_owned(),
            carrier: RowSealer::new(reader.seals().clone(), seal_place, MovedCell::Null),
            keys,
            reader,
            owner,
            digests: None,
            offset: 0,
            table: "",
            tally: StateTally::default(),
        })
    }

    /// The next rows of a table; empty at its end.
    ///
    /// # Errors
    /// The database or a content file can't be read.
    pub fn next_page(&mut self, table: &'static Table) -> Result<Vec<MovedRow>, StateError> {
        if self.table != table.name {
            (self.table, self.offset, self.digests) = (table.name, 0, None);
        }
        let mut rows = if table.name == CONTENTS {
            self.content_rows()?
        } else {
            let rows = self
                .reader
                .with(|connection| read(connection, table, self.offset))?;
            self.offset = match (table.name, rows.last().and_then(|row| row.first())) {
                // By their number, which has an index.
                (EVENTS | MEMORY, Some(MovedCell::Int(last))) => *last,
                _ => self.offset + i64::try_from(rows.len()).unwrap_or(i64::MAX),
            };
            rows
        };
        let opened = self.carrier.unseal_rows(table, &mut rows);
        opened.map_err(|why| StateError::io_error("can't move", &self.dir)(io::Error::other(why)))?;
        self.tally.add_rows(table, &rows);
        Ok(rows)
    }

    /// The key of the encrypted stores, for the target; `None`: nothing is encrypted.
    #[must_use]
    pub fn keys(&self) -> Option<Keys> {
        self.keys.clone()
    }

    fn content_rows(&mut self) -> Result<Vec<MovedRow>, StateError> {
        if self.digests.is_none() {
            let all = self.reader.with(|connection| {
                let sql =
                    "SELECT DISTINCT content_digest FROM events WHERE content_digest IS NOT NULL ORDER BY 1";
                let mut select = connection.prepare(sql)?;
                let digests = select.query_map([], |row| crate::append::digest_at(row, 0))?;
                digests.collect::<rusqlite::Result<Vec<_>>>()
            })?;
            self.digests = Some(all.into_iter());
        }
        let mut rows = Vec::new();
        for digest in self.digests.iter_mut().flatten() {
            // Erased content is not copied.
            if let Some(bytes) = self.reader.content(digest)? {
                rows.push(vec![MovedCell::Bytes(digest.0.to_vec()), MovedCell::Bytes(bytes)]);
            }
            if rows.len() >= PAGE / 40 {
                break;
            }
        }
        Ok(rows)
    }

    /// The totals of the rows that were read.
    pub fn crossed_totals(&mut self) -> StateTotals {
        std::mem::take(&mut self.tally).into_totals()
    }

    /// Records the state's new location: it can no longer be served here.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn mark_moved(&self, target: &str) -> Result<(), StateError> {
        let path = self.dir.join(MOVED);
        let part = self.dir.join("moved.new");
        let write = || -> io::Result<()> {
            let mut open = OpenOptions::new();
            let mut file = open
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&part)?;
            writeln!(file, "{target}")?;
            file.sync_all()?;
            fs::rename(&part, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(StateError::io_error("can't write", &path))?;
        if let Some(owner) = &self.owner {
            owner.close();
        }
        Ok(())
    }
}

/// The query for a page of a table. `?1` is an offset, or the number of the last row already read.
fn select_statement(table: &Table) -> String {
    let names = table.column_names();
    match table.name {
        EVENTS => {
            let columns: Vec<String> = table
                .columns
                .iter()
                .map(|(name, _)| match *name {
                    "session" => "s.session".to_owned(),
                    other => format!("e.{other}"),
                })
                .collect();
            format!(
                "SELECT {} FROM events e JOIN sessions s ON s.id = e.session WHERE e.row > ?1 ORDER BY e.row LIMIT {PAGE}",
                columns.join(", ")
            )
        }
        // The newest vector of each entry that still exists.
        VECTORS => format!(
            "SELECT {names} FROM memory_vectors WHERE v IN (SELECT max(v) FROM memory_vectors GROUP BY n, model) \
             AND n IN (SELECT n FROM memory) ORDER BY v LIMIT {PAGE} OFFSET ?1"
        ),
        MEMORY => format!("SELECT {names} FROM memory WHERE n > ?1 ORDER BY n LIMIT {PAGE}"),
        "answers" => format!(
            "SELECT key, row, (SELECT at FROM events e WHERE e.row = newest.row) AS at \
             FROM (SELECT key, max(row) AS row FROM answers GROUP BY key) AS newest ORDER BY row, key LIMIT {PAGE} OFFSET ?1"
        ),
        name => {
            // Rows with the same order key are copied in their order of insertion, if the table knows it.
            let tie = if KEYED.contains(&name) { "" } else { ", rowid" };
            let order = table.order;
            format!("SELECT {names} FROM {name} ORDER BY {order}{tie} LIMIT {PAGE} OFFSET ?1")
        }
    }
}

/// Tables without row ids.
const KEYED: [&str; 5] = ["conversations", "platform_ids", "spent", "deliveries", "marks"];

fn read(connection: &Connection, table: &Table, from: i64) -> rusqlite::Result<Vec<MovedRow>> {
    let mut select = connection.prepare_cached(&select_statement(table))?;
    let mut rows = select.query([from])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let mut cells = MovedRow::with_capacity(table.columns.len());
        for (at, (name, _)) in table.columns.iter().enumerate() {
            cells.push(match row.get_ref(at)? {
                // An earlier version stored entries without provenance: their origin is unknown.
                ValueRef::Null if *name == "mark" => MovedCell::Text(unknown_mark()),
                ValueRef::Null => MovedCell::Null,
                ValueRef::Integer(number) => MovedCell::Int(number),
                ValueRef::Real(_) => {
                    return Err(rusqlite::Error::InvalidColumnType(
                        at,
                        (*name).to_owned(),
                        rusqlite::types::Type::Real,
                    ));
                }
                ValueRef::Text(text) => MovedCell::Text(String::from_utf8_lossy(text).into_owned()),
                ValueRef::Blob(bytes) => MovedCell::Bytes(bytes.to_vec()),
            });
        }
        found.push(cells);
    }
    Ok(found)
}

/// The context string for sealing an entry, as in the writer's statements.
fn seal_place(part: i64, id: &str) -> String {
    format!("{part}/{id}")
}

fn unknown_mark() -> String {
    let mark = EntryProvenance {
        untrusted: true,
        ..EntryProvenance::default()
    };
    serde_json::to_string(&mark).unwrap_or_default() // silent-ok: plain members always serialise
}

#[cfg(test)]
mod tests;
