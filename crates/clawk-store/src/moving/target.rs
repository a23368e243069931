//! The target of a move into a directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_kernel::moved::{
    CONTENTS, EVENTS, MEMORY, MovedCell, MovedRow, RowSealer, SESSIONS, StateTally, StateTotals, TABLES,
    Table,
};
use clawk_proto::Digest;
use clawk_recall::keys::Keys;
use clawk_recall::seal::is_sealed_text;
use clawk_recall::words;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use super::{read, seal_place};
use crate::blobs::{BlobStore, INLINE_BYTES};
use crate::dir::{WriteDurability, make_private};
use crate::error::StateError;
use crate::schema;

/// The number of keys in one bucket of answers, as in the journal.
const BUCKET: i64 = 4_096;

/// A state directory that is being written.
#[derive(Debug)]
pub struct SqliteStateImport {
    /// The final path.
    dir: PathBuf,
    /// The temporary path.
    part: PathBuf,
    connection: Option<Connection>,
    blobs: BlobStore,
    answers: i64,
    /// Seals the values that were sealed in the source.
    carrier: RowSealer,
}

struct CellToSql<'a>(&'a MovedCell);

impl ToSql for CellToSql<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            MovedCell::Null => ToSqlOutput::Owned(Value::Null),
            MovedCell::Int(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            MovedCell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            MovedCell::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

impl SqliteStateImport {
    /// Begins to write a state directory, which must not exist or must be empty. `keys`: those of the encrypted stores.
    ///
    /// # Errors
    /// The directory is not empty, or can't be created.
    pub fn begin(dir: &Path, keys: Option<Keys>) -> Result<Self, StateError> {
        let fault = |path: &Path, why: &str| {
            StateError::io_error("can't move a state to", path)(io::Error::other(why.to_owned()))
        };
        let parent = dir.parent().ok_or_else(|| fault(dir, "it has no folder"))?;
        let name = dir.file_name().ok_or_else(|| fault(dir, "it has no name"))?;
        match fs::read_dir(dir) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(fault(dir, "it is not empty; name a directory that is not there"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StateError::io_error("can't look at", dir)(error)),
        }
        fs::create_dir_all(parent).map_err(StateError::io_error("can't make the directory", parent))?;
        let part = parent.join(format!(".{}.moving", name.to_string_lossy()));
        // Remains of an interrupted move.
        match fs::remove_dir_all(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StateError::io_error("can't remove", &part)(error));
            }
            Ok(()) | Err(_) => {}
        }
        make_private(&part)?;
        make_private(&part.join("blobs"))?;
        let database = part.join("state.db");
        let connection = schema::open_writer(&database, WriteDurability::Relaxed)?;
        connection
            .execute_batch(
                "BEGIN IMMEDIATE; CREATE INDEX moving_digest ON events(content_digest) WHERE content_digest IS NOT NULL;",
            )
            .map_err(StateError::database_error(&database))?;
        let reference = keys.as_ref().map(|keys| keys.reference.clone());
        let carrier = RowSealer::of_target(keys, seal_place, MovedCell::Null);
        let proofs = carrier.key_proofs().map_err(|why| fault(dir, &why))?;
        for (store, proof) in proofs {
            let sql = "INSERT INTO seals (store, reference, proof) VALUES (?1, ?2, ?3)";
            connection
                .execute(sql, (&store, &reference, &proof))
                .map_err(StateError::database_error(&database))?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            blobs: BlobStore::new(&part).sealed_by(Arc::new(carrier.state_sealer().clone())),
            part,
            connection: Some(connection),
            answers: 0,
            carrier,
        })
    }

    /// The folder for the files beside the database.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.part
    }

    /// Writes rows of a table.
    ///
    /// # Errors
    /// The disk is full, or a row does not fit.
    pub fn add_rows(&mut self, table: &'static Table, mut rows: Vec<MovedRow>) -> Result<(), StateError> {
        let database = self.part.join("state.db");
        // Content files are sealed when they are written.
        if table.name != CONTENTS {
            let closed = self.carrier.seal_rows(table, &mut rows);
            closed.map_err(|why| StateError::io_error("can't write", &database)(io::Error::other(why)))?;
        }
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        if table.name == CONTENTS {
            for row in &rows {
                let [MovedCell::Bytes(digest), MovedCell::Bytes(bytes)] = row.as_slice() else {
                    continue;
                };
                let exact = <[u8; 32]>::try_from(digest.as_slice()).map(Digest);
                if let (Ok(digest), true) = (exact, bytes.len() > INLINE_BYTES) {
                    self.blobs
                        .write(digest, bytes, false)
                        .map_err(StateError::io_error("can't write a content below", &self.part))?;
                } else {
                    let sealed = match exact {
                        Ok(digest) => self.carrier.state_sealer().seal_content(digest, bytes),
                        Err(_) => Ok(None), // silent-ok: no event refers to it
                    };
                    let sealed = sealed.map_err(|error| {
                        StateError::io_error("can't encrypt a content below", &self.part)(io::Error::other(
                            error,
                        ))
                    })?;
                    connection
                        .prepare_cached("UPDATE events SET content = ?2 WHERE content_digest = ?1")
                        .and_then(|mut update| update.execute((digest, sealed.as_ref().unwrap_or(bytes))))
                        .map_err(StateError::database_error(&database))?;
                }
            }
        } else {
            write(connection, table, &rows, &mut self.answers)
                .map_err(StateError::database_error(&database))?;
        }
        Ok(())
    }

    /// Reads back the stored totals.
    ///
    /// # Errors
    /// They can't be read.
    pub fn stored_totals(&self) -> Result<StateTotals, StateError> {
        let database = self.part.join("state.db");
        let Some(connection) = &self.connection else {
            return Ok(StateTotals::default());
        };
        let files = self
            .blobs
            .all_digests()
            .map_err(StateError::io_error("can't look below", &self.part))?;
        stored_totals(connection, files.len()).map_err(StateError::database_error(&database))
    }

    /// Renames the directory to its final path; from then on it is a state directory.
    ///
    /// # Errors
    /// It can't be written or renamed.
    pub fn commit(mut self) -> Result<(), StateError> {
        let database = self.part.join("state.db");
        if let Some(connection) = self.connection.take() {
            connection
                .execute_batch(
                    "DROP INDEX moving_digest; \
                     UPDATE memory_parts SET bytes = (SELECT coalesce(sum(length(content) + coalesce(length(metadata), 0)), 0) \
                       FROM memory WHERE part = memory_parts.id); \
                     COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
                )
                .map_err(StateError::database_error(&database))?;
        }
        let settle = || -> io::Result<()> {
            File::open(&database)?.sync_all()?;
            sync_below(&self.part)?;
            match fs::remove_dir(&self.dir) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            fs::rename(&self.part, &self.dir)?;
            match self.dir.parent() {
                Some(parent) => File::open(parent)?.sync_all(),
                None => Ok(()),
            }
        };
        settle().map_err(StateError::io_error("can't move a state to", &self.dir))
    }
}

/// Counts the rows of every table and reads the chains' heads. `files` is the number of content files.
fn stored_totals(connection: &Connection, files: usize) -> rusqlite::Result<StateTotals> {
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let mut tally = StateTally::default();
    let mut rows = BTreeMap::new();
    for table in &TABLES {
        let number = match table.name {
            CONTENTS => {
                let inline = "SELECT count(DISTINCT content_digest) FROM events WHERE content IS NOT NULL";
                count(inline)? + i64::try_from(files).unwrap_or(i64::MAX)
            }
            SESSIONS => {
                let mut from = 0;
                loop {
                    let page = read(connection, table, from)?;
                    if page.is_empty() {
                        break from;
                    }
                    from += i64::try_from(page.len()).unwrap_or(i64::MAX);
                    tally.add_rows(table, &page);
                }
            }
            name => count(&format!("SELECT count(*) FROM {name}"))?,
        };
        rows.insert(table.name, u64::try_from(number).unwrap_or(0));
    }
    Ok(StateTotals {
        rows,
        ..tally.into_totals()
    })
}

/// Syncs all files and folders below `folder` to the disk.
fn sync_below(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_below(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

fn write(
    connection: &Connection,
    table: &Table,
    rows: &[MovedRow],
    answers: &mut i64,
) -> rusqlite::Result<()> {
    let names = table.column_names();
    let places: Vec<String> = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, (name, _))| match (table.name, *name) {
            (EVENTS, "session") => format!("(SELECT id FROM sessions WHERE session = ?{})", at + 1),
            _ => format!("?{}", at + 1),
        })
        .collect();
    let places = places.join(", ");
    let sql = match table.name {
        "answers" => "INSERT OR REPLACE INTO answers (bucket, key, row) VALUES (?1, ?2, ?3)".to_owned(),
        name => format!("INSERT INTO {name} ({names}) VALUES ({places})"),
    };
    let mut insert = connection.prepare_cached(&sql)?;
    for row in rows {
        match (table.name, row.as_slice()) {
            ("answers", [MovedCell::Bytes(key), MovedCell::Int(number), at]) => {
                let bucket = *answers / BUCKET;
                *answers += 1;
                insert.execute((bucket, key, number))?;
                let at = if let MovedCell::Int(at) = at { *at } else { 0 };
                connection
                    .prepare_cached(
                        "INSERT INTO answer_buckets (bucket, last) VALUES (?1, ?2) \
                         ON CONFLICT (bucket) DO UPDATE SET last = max(last, excluded.last)",
                    )?
                    .execute((bucket, at))?;
            }
            (MEMORY, cells) => {
                insert.execute(params_from_iter(cells.iter().map(CellToSql)))?;
                index(connection, cells)?;
            }
            (_, cells) => {
                insert.execute(params_from_iter(cells.iter().map(CellToSql)))?;
            }
        }
    }
    Ok(())
}

/// Indexes an entry's words.
fn index(connection: &Connection, cells: &[MovedCell]) -> rusqlite::Result<()> {
    let [
        MovedCell::Int(n),
        MovedCell::Int(part),
        _,
        key,
        MovedCell::Text(content),
        _,
        _,
        _,
        MovedCell::Int(whose),
    ] = cells
    else {
        return Ok(());
    };
    if is_sealed_text(content) {
        return Ok(()); // the words of encrypted entries are in memory alone
    }
    let key = match key {
        MovedCell::Text(key) => Some(key.as_str()),
        _ => None,
    };
    let content: serde_json::Value =
        serde_json::from_str(content).unwrap_or_else(|_| content.as_str().into()); // silent-ok: of an earlier version
    let text = words::text_of(&content, key);
    crate::memory::index_words(connection, (*n, *part, *whose), &text)
}
