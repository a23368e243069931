//! A state directory's tables, out of it and into a new one (`clawk state move`).
//!
//! A source is owned while it is read, so nobody serves it. A target is made beside its place and takes it at the end: a move that is cut
//! off leaves nothing behind that could be taken for a state.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_kernel::moved::{
    CONTENTS, Carrier, Cell, EVENTS, MEMORY, PAGE, Row, SESSIONS, Sum, TABLES, Table, Tally, VECTORS,
};
use clawk_proto::Digest;
use clawk_recall::entry::Mark;
use clawk_recall::keys::{Keys, named};
use clawk_recall::seal::is_sealed_text;
use clawk_recall::words;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql, params_from_iter};

use crate::blobs::{Blobs, INLINE_BYTES};
use crate::dir::{Durability, Options, StateDir, make_private};
use crate::error::StateError;
use crate::reader::Reader;
use crate::schema;

/// The file that says where a state was moved to.
const MOVED: &str = "moved";
/// Bytes of it.
const MAX_MOVED: u64 = 4_096;
/// Keys in one bucket of answers, as the journal fills them.
const BUCKET: i64 = 4_096;
/// What belongs to the database or to a running agent, and does not go along as a file.
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

/// Where the state of this directory was moved to; `None`: it was not.
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
            .map_err(StateError::io("can't read", &path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::io("can't read", &path)(error)),
    };
    // It is shown to people, and the directory may have come with a cloned folder.
    Ok(Some(text.chars().filter(|c| !c.is_control()).collect()))
}

/// The files beside the database that belong to the agent: keys, positions of channels, stores in folders. Links are not followed.
///
/// # Errors
/// One of them can't be copied.
pub fn copy_files(from: &Path, to: &Path) -> Result<u64, StateError> {
    let mut copied = 0;
    let entries = fs::read_dir(from).map_err(StateError::io("can't look at", from))?;
    for entry in entries {
        let entry = entry.map_err(StateError::io("can't look at", from))?;
        let (path, name) = (entry.path(), entry.file_name());
        let place = to.join(&name);
        let kind = entry
            .file_type()
            .map_err(StateError::io("can't look at", &path))?;
        if OWN.iter().any(|own| name == *own) {
            continue;
        }
        if kind.is_dir() {
            make_private(&place)?;
            copied += copy_files(&path, &place)?;
        } else if kind.is_file() {
            fs::copy(&path, &place).map_err(StateError::io("can't copy", &path))?;
            copied += 1;
        }
    }
    Ok(copied)
}

/// A state directory that is read from its beginning to its end, and that nobody serves meanwhile.
#[derive(Debug)]
pub struct Source {
    dir: PathBuf,
    reader: Reader,
    /// Its owner, unless it was moved before and is only read.
    owner: Option<StateDir>,
    digests: Option<std::vec::IntoIter<Digest>>,
    offset: i64,
    table: &'static str,
    tally: Tally,
    /// Opens what is encrypted.
    carrier: Carrier,
    keys: Option<Keys>,
}

impl Source {
    /// Takes the directory. One that was moved to `target` before is read again: that move may have been cut off.
    ///
    /// # Errors
    /// It is served, was moved elsewhere, the key of its encrypted stores is missing or wrong, or it can't be read.
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
        let reader = Reader::open(dir)?;
        let sealed = |why: &str| StateError::Sealed {
            path: dir.to_owned(),
            stores: named(reader.seals().stores().iter().cloned()),
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
            carrier: Carrier::new(reader.seals().clone(), place, Cell::Null),
            keys,
            reader,
            owner,
            digests: None,
            offset: 0,
            table: "",
            tally: Tally::default(),
        })
    }

    /// The next rows of a table; none at its end.
    ///
    /// # Errors
    /// The database or a content's file can't be read.
    pub fn page(&mut self, table: &'static Table) -> Result<Vec<Row>, StateError> {
        if self.table != table.name {
            (self.table, self.offset, self.digests) = (table.name, 0, None);
        }
        let mut rows = if table.name == CONTENTS {
            self.contents()?
        } else {
            let rows = self
                .reader
                .with(|connection| read(connection, table, self.offset))?;
            self.offset = match (table.name, rows.last().and_then(|row| row.first())) {
                // By their number, which an index finds.
                (EVENTS | MEMORY, Some(Cell::Int(last))) => *last,
                _ => self.offset + i64::try_from(rows.len()).unwrap_or(i64::MAX),
            };
            rows
        };
        let opened = self.carrier.open(table, &mut rows);
        opened.map_err(|why| StateError::io("can't move", &self.dir)(io::Error::other(why)))?;
        self.tally.add(table, &rows);
        Ok(rows)
    }

    /// The key of its encrypted stores, for the target; `None`: nothing is encrypted.
    #[must_use]
    pub fn keys(&self) -> Option<Keys> {
        self.keys.clone()
    }

    fn contents(&mut self) -> Result<Vec<Row>, StateError> {
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
            // What was erased does not cross.
            if let Some(bytes) = self.reader.content(digest)? {
                rows.push(vec![Cell::Bytes(digest.0.to_vec()), Cell::Bytes(bytes)]);
            }
            if rows.len() >= PAGE / 40 {
                break;
            }
        }
        Ok(rows)
    }

    /// What has crossed.
    pub fn sum(&mut self) -> Sum {
        std::mem::take(&mut self.tally).sum()
    }

    /// Says where the state is now: no start serves it any more.
    ///
    /// # Errors
    /// It can't be written.
    pub fn moved(&self, target: &str) -> Result<(), StateError> {
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
        write().map_err(StateError::io("can't write", &path))?;
        if let Some(owner) = &self.owner {
            owner.close();
        }
        Ok(())
    }
}

/// What is read of a table; an offset, or a number behind which it goes on, is `?1`.
fn select(table: &Table) -> String {
    let names = table.names();
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
        // The newest of each entry that is still there.
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
            // Rows of one order cross in the order of their making, where the table knows it.
            let tie = if KEYED.contains(&name) { "" } else { ", rowid" };
            let order = table.order;
            format!("SELECT {names} FROM {name} ORDER BY {order}{tie} LIMIT {PAGE} OFFSET ?1")
        }
    }
}

/// Tables without row ids.
const KEYED: [&str; 5] = ["conversations", "platform_ids", "spent", "deliveries", "marks"];

fn read(connection: &Connection, table: &Table, from: i64) -> rusqlite::Result<Vec<Row>> {
    let mut select = connection.prepare_cached(&select(table))?;
    let mut rows = select.query([from])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let mut cells = Row::with_capacity(table.columns.len());
        for (at, (name, _)) in table.columns.iter().enumerate() {
            cells.push(match row.get_ref(at)? {
                // An earlier version kept entries without a mark: nobody knows who said them.
                ValueRef::Null if *name == "mark" => Cell::Text(unknown_mark()),
                ValueRef::Null => Cell::Null,
                ValueRef::Integer(number) => Cell::Int(number),
                ValueRef::Real(_) => {
                    return Err(rusqlite::Error::InvalidColumnType(
                        at,
                        (*name).to_owned(),
                        rusqlite::types::Type::Real,
                    ));
                }
                ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
                ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
            });
        }
        found.push(cells);
    }
    Ok(found)
}

/// For what an entry is sealed, as the statements of the writer have it.
fn place(part: i64, id: &str) -> String {
    format!("{part}/{id}")
}

fn unknown_mark() -> String {
    let mark = Mark {
        untrusted: true,
        ..Mark::default()
    };
    serde_json::to_string(&mark).unwrap_or_default() // silent-ok: plain members always serialise
}

/// A state directory in the making.
#[derive(Debug)]
pub struct Target {
    /// Where it will be.
    dir: PathBuf,
    /// Where it is made.
    part: PathBuf,
    connection: Option<Connection>,
    blobs: Blobs,
    answers: i64,
    /// Seals what was sealed in the source.
    carrier: Carrier,
}

struct Put<'a>(&'a Cell);

impl ToSql for Put<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Cell::Null => ToSqlOutput::Owned(Value::Null),
            Cell::Int(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Cell::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Cell::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}

impl Target {
    /// Begins a state directory, which must not be there, or be empty. `keys`: of its encrypted stores.
    ///
    /// # Errors
    /// It holds something, or can't be made.
    pub fn begin(dir: &Path, keys: Option<Keys>) -> Result<Self, StateError> {
        let fault = |path: &Path, why: &str| {
            StateError::io("can't move a state to", path)(io::Error::other(why.to_owned()))
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
            Err(error) => return Err(StateError::io("can't look at", dir)(error)),
        }
        fs::create_dir_all(parent).map_err(StateError::io("can't make the directory", parent))?;
        let part = parent.join(format!(".{}.moving", name.to_string_lossy()));
        // What a move that was cut off left.
        match fs::remove_dir_all(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StateError::io("can't remove", &part)(error));
            }
            Ok(()) | Err(_) => {}
        }
        make_private(&part)?;
        make_private(&part.join("blobs"))?;
        let database = part.join("state.db");
        let connection = schema::open_writer(&database, Durability::Relaxed)?;
        connection
            .execute_batch(
                "BEGIN IMMEDIATE; CREATE INDEX moving_digest ON events(content_digest) WHERE content_digest IS NOT NULL;",
            )
            .map_err(StateError::database(&database))?;
        let reference = keys.as_ref().map(|keys| keys.reference.clone());
        let carrier = Carrier::of_target(keys, place, Cell::Null);
        let proofs = carrier.proofs().map_err(|why| fault(dir, &why))?;
        for (store, proof) in proofs {
            let sql = "INSERT INTO seals (store, reference, proof) VALUES (?1, ?2, ?3)";
            connection
                .execute(sql, (&store, &reference, &proof))
                .map_err(StateError::database(&database))?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            blobs: Blobs::new(&part).sealed_by(Arc::new(carrier.seals().clone())),
            part,
            connection: Some(connection),
            answers: 0,
            carrier,
        })
    }

    /// Where files beside the database go.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.part
    }

    /// Takes rows of a table.
    ///
    /// # Errors
    /// The disk is full, or a row does not fit.
    pub fn rows(&mut self, table: &'static Table, mut rows: Vec<Row>) -> Result<(), StateError> {
        let database = self.part.join("state.db");
        // Files are sealed as they are written.
        if table.name != CONTENTS {
            let closed = self.carrier.close(table, &mut rows);
            closed.map_err(|why| StateError::io("can't write", &database)(io::Error::other(why)))?;
        }
        let Some(connection) = &self.connection else {
            return Ok(());
        };
        if table.name == CONTENTS {
            for row in &rows {
                let [Cell::Bytes(digest), Cell::Bytes(bytes)] = row.as_slice() else {
                    continue;
                };
                let exact = <[u8; 32]>::try_from(digest.as_slice()).map(Digest);
                if let (Ok(digest), true) = (exact, bytes.len() > INLINE_BYTES) {
                    self.blobs
                        .write(digest, bytes, false)
                        .map_err(StateError::io("can't write a content below", &self.part))?;
                } else {
                    let sealed = match exact {
                        Ok(digest) => self.carrier.seals().closed(digest, bytes),
                        Err(_) => Ok(None), // silent-ok: no event refers to it
                    };
                    let sealed = sealed.map_err(|error| {
                        StateError::io("can't encrypt a content below", &self.part)(io::Error::other(error))
                    })?;
                    connection
                        .prepare_cached("UPDATE events SET content = ?2 WHERE content_digest = ?1")
                        .and_then(|mut update| update.execute((digest, sealed.as_ref().unwrap_or(bytes))))
                        .map_err(StateError::database(&database))?;
                }
            }
        } else {
            write(connection, table, &rows, &mut self.answers).map_err(StateError::database(&database))?;
        }
        Ok(())
    }

    /// What is stored now, read back.
    ///
    /// # Errors
    /// It can't be read.
    pub fn stored(&self) -> Result<Sum, StateError> {
        let database = self.part.join("state.db");
        let Some(connection) = &self.connection else {
            return Ok(Sum::default());
        };
        let files = self
            .blobs
            .all()
            .map_err(StateError::io("can't look below", &self.part))?;
        stored(connection, files.len()).map_err(StateError::database(&database))
    }

    /// Takes its place: from here on it is a state directory.
    ///
    /// # Errors
    /// It can't be written or moved to its place.
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
                .map_err(StateError::database(&database))?;
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
        settle().map_err(StateError::io("can't move a state to", &self.dir))
    }
}

/// The rows of every table, and the chains' heads. Contents that have files are counted by these.
fn stored(connection: &Connection, files: usize) -> rusqlite::Result<Sum> {
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let mut tally = Tally::default();
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
                    tally.add(table, &page);
                }
            }
            name => count(&format!("SELECT count(*) FROM {name}"))?,
        };
        rows.insert(table.name, u64::try_from(number).unwrap_or(0));
    }
    Ok(Sum { rows, ..tally.sum() })
}

/// Files and folders are on the disk when this returns.
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

fn write(connection: &Connection, table: &Table, rows: &[Row], answers: &mut i64) -> rusqlite::Result<()> {
    let names = table.names();
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
            ("answers", [Cell::Bytes(key), Cell::Int(number), at]) => {
                let bucket = *answers / BUCKET;
                *answers += 1;
                insert.execute((bucket, key, number))?;
                let at = if let Cell::Int(at) = at { *at } else { 0 };
                connection
                    .prepare_cached(
                        "INSERT INTO answer_buckets (bucket, last) VALUES (?1, ?2) \
                         ON CONFLICT (bucket) DO UPDATE SET last = max(last, excluded.last)",
                    )?
                    .execute((bucket, at))?;
            }
            (MEMORY, cells) => {
                insert.execute(params_from_iter(cells.iter().map(Put)))?;
                index(connection, cells)?;
            }
            (_, cells) => {
                insert.execute(params_from_iter(cells.iter().map(Put)))?;
            }
        }
    }
    Ok(())
}

/// An entry's words.
fn index(connection: &Connection, cells: &[Cell]) -> rusqlite::Result<()> {
    let [
        Cell::Int(n),
        Cell::Int(part),
        _,
        key,
        Cell::Text(content),
        _,
        _,
        _,
        Cell::Int(whose),
    ] = cells
    else {
        return Ok(());
    };
    if is_sealed_text(content) {
        return Ok(()); // the words of encrypted entries are in memory alone
    }
    let key = match key {
        Cell::Text(key) => Some(key.as_str()),
        _ => None,
    };
    let content: serde_json::Value =
        serde_json::from_str(content).unwrap_or_else(|_| content.as_str().into()); // silent-ok: of an earlier version
    let text = words::text_of(&content, key);
    crate::memory::index_words(connection, (*n, *part, *whose), &text)
}

#[cfg(test)]
mod tests;
