//! Reads a state directory: a pool for the agent itself, and [`StateDirReader`] for tools outside while the agent runs.

mod account;
mod projections;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::ports::{EventContent, JournalScan, OpenMessage, RecordedEvent, SessionRow};
use clawk_kernel::time::Timestamp;
use clawk_proto::trace::{SealedEvent, TRACE_VERSION};
use clawk_proto::{Digest, MessageId, SessionId};
use clawk_recall::keys::StateSealer;
use clawk_recall::seal::SealKeyring;
use clawk_trace::chain::digest_of;
use clawk_trace::event::RawEvent;
use clawk_trace::verify::Verifier;
use clawk_trace::{FaultKind, VerificationReport};
use rusqlite::types::{ToSql, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::append::{digest_at, integer, unsigned_at, uuid_at};
use crate::blobs::BlobStore;
use crate::error::StateError;
use crate::schema::{self, BUCKETS, partial_index};
use crate::seal;

/// The number of rows in a page if the caller gives no limit.
const PAGE: usize = 1000;
/// How far a clock may have been set back between two events so that both are still found by their time, microseconds: an hour.
const CLOCK_SET_BACK_US: i64 = 3_600_000_000;

/// The number of connections that may read at once.
const READERS: usize = 4;

/// Read-only connections, opened on demand. Opening one costs as much as reading its whole schema.
#[derive(Debug, Clone)]
pub(crate) struct StateReaderPool {
    database: PathBuf,
    blobs: BlobStore,
    idle: Arc<Mutex<Vec<StateDirReader>>>,
    slots: Arc<Semaphore>,
}

impl StateReaderPool {
    pub(crate) fn new(database: PathBuf, blobs: BlobStore) -> Self {
        Self {
            database,
            blobs,
            idle: Arc::default(),
            slots: Arc::new(Semaphore::new(READERS)),
        }
    }

    /// Runs a read on a blocking thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&StateDirReader) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, String> {
        let slot = self
            .slots
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| "it was closed".to_owned())?; // silent-ok: says no more
        let own = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            own.now(job)
        });
        match done.await {
            Ok(outcome) => outcome.map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        }
    }

    /// Runs a read on the caller's thread; blocks.
    pub(crate) fn now<T>(
        &self,
        job: impl FnOnce(&StateDirReader) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        let free = self.idle().pop();
        let reader = match free {
            Some(reader) => reader,
            None => self.open()?,
        };
        let outcome = job(&reader);
        if !self.slots.is_closed() {
            self.idle().push(reader);
        }
        outcome
    }

    fn open(&self) -> Result<StateDirReader, StateError> {
        let connection = schema::open_reader(&self.database)?;
        seal::teach(&connection, self.blobs.state_sealer())
            .map_err(StateError::database_error(&self.database))?;
        Ok(StateDirReader {
            connection,
            database: self.database.clone(),
            blobs: self.blobs.clone(),
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<StateDirReader>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close(&self) {
        self.slots.close();
        self.idle().clear();
    }
}

/// The query of [`StateDirReader::events`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter {
    /// Only this chain.
    pub session: Option<SessionId>,
    /// Only rows after this one.
    pub after_row: u64,
    /// The largest number of events; 0: a page of 1000.
    pub limit: usize,
}

/// A whole event and its position.
#[derive(Debug)]
pub struct StoredEvent {
    /// Its row in the journal.
    pub row: u64,
    /// The event in its export form.
    pub event: SealedEvent,
    /// The digest of its content.
    pub content_digest: Option<Digest>,
}

/// Reads a state directory without owning it.
#[derive(Debug)]
pub struct StateDirReader {
    connection: Connection,
    database: PathBuf,
    blobs: BlobStore,
}

impl StateDirReader {
    /// Opens a state directory for reading. An agent may own it at the same time.
    ///
    /// # Errors
    /// It does not exist, a later version wrote it, or it can't be read.
    pub fn open(state: impl AsRef<Path>) -> Result<Self, StateError> {
        let database = state.as_ref().join("state.db");
        std::fs::metadata(&database).map_err(StateError::io_error("there is no state in", state.as_ref()))?;
        let connection = schema::open_reader(&database)?;
        schema::check_identity(&connection, &database)?;
        let seals = seal::reader_sealer(&connection, &database)?;
        Ok(Self {
            connection,
            blobs: BlobStore::new(state.as_ref()).sealed_by(seals),
            database,
        })
    }

    /// The keyring for encrypted values; `None`: nothing is encrypted, or the key is missing.
    #[must_use]
    pub fn vault(&self) -> Option<&SealKeyring> {
        self.blobs.state_sealer().vault()
    }

    /// Why encrypted values can't be opened; `None`: they can, or there are none.
    #[must_use]
    pub fn lacks_key(&self) -> Option<&str> {
        self.blobs.state_sealer().missing_key_reason()
    }

    /// The sealer, with the names of the encrypted stores.
    pub(crate) fn seals(&self) -> &StateSealer {
        self.blobs.state_sealer()
    }

    /// The path of the state directory.
    #[must_use]
    pub fn state(&self) -> &Path {
        self.database.parent().unwrap_or(&self.database)
    }

    fn sql<T>(&self, outcome: rusqlite::Result<T>) -> Result<T, StateError> {
        outcome.map_err(StateError::database_error(&self.database))
    }

    /// See [`clawk_kernel::ports::Journal::scan_events`]. A page is shorter than the limit only at the journal's end.
    pub(crate) fn scan(&self, scan: &JournalScan) -> Result<Vec<RecordedEvent>, StateError> {
        let after = match scan.since {
            Some(since) if scan.after_row == 0 && partial_index(scan.kinds.iter().copied()).is_none() => {
                self.sql(self.row_before(since))?
            }
            Some(_) | None => integer(scan.after_row),
        };
        let limit = i64::try_from(if scan.limit == 0 { PAGE } else { scan.limit }).unwrap_or(i64::MAX);
        let session = scan.session.map(|session| session.0.into_bytes());
        let mut values: Vec<&dyn ToSql> = vec![&after, &limit];
        values.extend(session.as_ref().map(|session| session as &dyn ToSql));
        values.extend(scan.kinds.iter().map(|kind| kind as &dyn ToSql));
        values.extend(scan.since.as_ref().map(|since| &since.0 as &dyn ToSql));
        values.extend(scan.says.as_ref().map(|says| says as &dyn ToSql));
        let sql = select(scan);
        let read = || -> rusqlite::Result<Vec<RecordedEvent>> {
            let mut select = self.connection.prepare_cached(&sql)?;
            let mut rows = select.query(values.as_slice())?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(self.recorded(row, scan.with_content)?);
            }
            Ok(found)
        };
        self.sql(read())
    }

    /// The last row before those that may be from `since` or later, by binary search. Rows are ordered by time, except where a
    /// clock was set back.
    fn row_before(&self, since: Timestamp) -> rusqlite::Result<i64> {
        let sought = since.0.saturating_sub(CLOCK_SET_BACK_US);
        let last = "SELECT coalesce(max(row), 0) FROM events";
        let mut at = self
            .connection
            .prepare_cached("SELECT at FROM events WHERE row >= ?1 ORDER BY row LIMIT 1")?;
        let (mut before, mut behind) = (
            0,
            self.connection.query_row(last, [], |row| row.get::<_, i64>(0))? + 1,
        );
        while behind - before > 1 {
            let middle = before + (behind - before) / 2;
            if at.query_row([middle], |row| row.get::<_, i64>(0))? < sought {
                before = middle;
            } else {
                behind = middle;
            }
        }
        Ok(before)
    }

    /// One page of events in the kernel's form.
    ///
    /// # Errors
    /// The database or a content's file can't be read.
    pub fn recorded_events(&self, scan: &JournalScan) -> Result<Vec<RecordedEvent>, StateError> {
        self.scan(scan)
    }

    fn recorded(&self, row: &Row<'_>, with_content: bool) -> rusqlite::Result<RecordedEvent> {
        let digest = optional_digest(row, 6)?;
        let content = match (digest, row.get_ref(7)?) {
            (Some(digest), ValueRef::Blob(bytes)) => Some(EventContent {
                digest,
                bytes: right(digest, self.opened(digest, bytes.to_vec())?)?,
            }),
            (Some(digest), _) if with_content => match self.file(digest, 7)? {
                Some(bytes) => Some(EventContent {
                    digest,
                    bytes: right(digest, bytes)?,
                }),
                None => None,
            },
            _ => None,
        };
        Ok(RecordedEvent {
            row: unsigned_at(row, 0)?,
            session: SessionId(uuid_at(row, 1)?),
            sequence: unsigned_at(row, 2)?,
            at: Timestamp(row.get(3)?),
            kind: row.get(4)?,
            payload: row.get(5)?,
            content,
        })
    }

    /// Decodes inline content.
    fn opened(&self, digest: Digest, bytes: Vec<u8>) -> rusqlite::Result<Vec<u8>> {
        let opened = self.blobs.state_sealer().open_content(digest, bytes);
        opened.map_err(|fault| {
            rusqlite::Error::FromSqlConversionFailure(7, rusqlite::types::Type::Blob, Box::new(fault))
        })
    }

    fn file(&self, digest: Digest, index: usize) -> rusqlite::Result<Option<Vec<u8>>> {
        self.blobs.read(digest).map_err(|e| {
            rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Blob, Box::new(e))
        })
    }

    pub(crate) fn last_row_of(&self, kind: &str) -> Result<Option<u64>, StateError> {
        let index = partial_index([kind]).map_or_else(String::new, |index| format!(" AND {index}"));
        let sql = format!("SELECT row FROM events WHERE kind = ?1{index} ORDER BY row DESC LIMIT 1");
        let read = || {
            self.connection
                .prepare_cached(&sql)?
                .query_row([kind], |row| unsigned_at(row, 0))
                .optional()
        };
        self.sql(read())
    }

    /// Content by its digest; `None` if it was erased or is unknown.
    ///
    /// # Errors
    /// The database or the content's file can't be read, or the bytes do not have this digest.
    pub fn content(&self, digest: Digest) -> Result<Option<Vec<u8>>, StateError> {
        let found = self.stored_content(digest)?;
        self.sql(found.map(|bytes| right(digest, bytes)).transpose())
    }

    /// As [`Self::content`], without a check of the digest.
    pub(crate) fn stored_content(&self, digest: Digest) -> Result<Option<Vec<u8>>, StateError> {
        let sql = format!(
            "{BUCKETS} SELECT e.content FROM bucket CROSS JOIN events e \
             WHERE e.row >> 12 = bucket.n AND e.content_digest = ?1 AND e.content IS NOT NULL LIMIT 1"
        );
        let read = || -> rusqlite::Result<Option<Vec<u8>>> {
            if let Some(bytes) = self.file(digest, 0)? {
                return Ok(Some(bytes));
            }
            let found = self
                .connection
                .prepare_cached(&sql)?
                .query_row([digest.0], |row| row.get(0))
                .optional()?;
            found.map(|bytes| self.opened(digest, bytes)).transpose()
        };
        self.sql(read())
    }

    pub(crate) fn open_messages(&self) -> Result<Vec<OpenMessage>, StateError> {
        let read = || -> rusqlite::Result<Vec<OpenMessage>> {
            let mut select = self
                .connection
                .prepare_cached("SELECT session, message FROM inbox WHERE state = 'open' ORDER BY n")?;
            let rows = select.query_map([], |row| {
                Ok(OpenMessage {
                    session: SessionId(uuid_at(row, 0)?),
                    message: MessageId(uuid_at(row, 1)?),
                })
            })?;
            rows.collect()
        };
        self.sql(read())
    }

    /// The session of a message, if it was ever accepted.
    pub(crate) fn message(&self, id: MessageId) -> Result<Option<SessionId>, StateError> {
        let read = || {
            let sql = "SELECT session FROM inbox WHERE message = ?1";
            let mut select = self.connection.prepare_cached(sql)?;
            select
                .query_row([id.0.as_bytes()], |row| Ok(SessionId(uuid_at(row, 0)?)))
                .optional()
        };
        self.sql(read())
    }

    /// Sessions, latest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn sessions(&self, limit: usize) -> Result<Vec<SessionRow>, StateError> {
        let sql = "SELECT session, events, started, last FROM sessions ORDER BY last DESC, id DESC LIMIT ?1";
        let read = || -> rusqlite::Result<Vec<SessionRow>> {
            let mut select = self.connection.prepare_cached(sql)?;
            let rows = select.query_map([i64::try_from(limit).unwrap_or(i64::MAX)], |row| {
                Ok(SessionRow {
                    session: SessionId(uuid_at(row, 0)?),
                    events: unsigned_at(row, 1)?,
                    started: Timestamp(row.get(2)?),
                    last: Timestamp(row.get(3)?),
                })
            })?;
            rows.collect()
        };
        self.sql(read())
    }

    /// The row of the newest event; 0 if there is none.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn last_row(&self) -> Result<u64, StateError> {
        let read = || {
            self.connection
                .query_row("SELECT coalesce(max(row), 0) FROM events", [], |row| {
                    unsigned_at(row, 0)
                })
        };
        self.sql(read())
    }

    /// One page of whole events in row order.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn events(&self, filter: Filter) -> Result<Vec<StoredEvent>, StateError> {
        let sql = format!(
            "SELECT e.row, s.session, s.trace_id, e.sequence, e.at, e.kind, e.event_id, e.span, e.parent, e.payload, e.hash, \
             e.content_digest, (SELECT p.hash FROM events p WHERE p.session = e.session AND p.sequence = e.sequence - 1) \
             FROM events e JOIN sessions s ON s.id = e.session WHERE e.row > ?1 {} ORDER BY e.row LIMIT ?3",
            if filter.session.is_some() {
                "AND e.session = (SELECT id FROM sessions WHERE session = ?2)"
            } else {
                "AND ?2 IS NULL"
            }
        );
        let limit = i64::try_from(if filter.limit == 0 { PAGE } else { filter.limit }).unwrap_or(i64::MAX);
        let session = filter.session.map(|session| session.0.into_bytes());
        let read = || -> rusqlite::Result<Vec<StoredEvent>> {
            let mut select = self.connection.prepare_cached(&sql)?;
            let rows = select.query_map(params![integer(filter.after_row), session, limit], stored)?;
            rows.collect()
        };
        self.sql(read())
    }

    /// Verifies every chain from its first event, and that no chain has lost its end.
    ///
    /// # Errors
    /// The database can't be read. A broken chain is not an error; the report names it.
    pub fn verify(&self, session: Option<SessionId>) -> Result<VerificationReport, StateError> {
        // Read first: an agent may be appending, so there may be more events later, but never fewer.
        let recorded = self.ends(session)?;
        let mut verifier = Verifier::default();
        let mut filter = Filter {
            session,
            after_row: 0,
            limit: PAGE,
        };
        loop {
            let page = self.events(filter)?;
            let Some(last) = page.last() else { break };
            filter.after_row = last.row;
            for stored in &page {
                let raw = RawEvent::of_sealed(&stored.event);
                verifier.push(&raw, stored.row);
            }
        }
        let mut report = verifier.finish();
        if report.valid {
            check_heads(&recorded, &mut report);
        }
        Ok(report)
    }

    /// The end of each chain according to the table `sessions`.
    fn ends(&self, only: Option<SessionId>) -> Result<Vec<(SessionId, u64, Digest)>, StateError> {
        let read = || -> rusqlite::Result<Vec<(SessionId, u64, Digest)>> {
            let sql = "SELECT session, events, head FROM sessions WHERE ?1 IS NULL OR session = ?1";
            let mut select = self.connection.prepare(sql)?;
            let rows = select.query_map([only.map(|session| session.0.into_bytes())], |row| {
                Ok((
                    SessionId(uuid_at(row, 0)?),
                    unsigned_at(row, 1)?,
                    digest_at(row, 2)?,
                ))
            })?;
            rows.collect()
        };
        self.sql(read())
    }

    pub(crate) fn unvouched(&self, detail: String) -> StateError {
        StateError::Unvouched {
            path: self.state().to_owned(),
            detail,
        }
    }

    /// Runs a read for another module.
    pub(crate) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StateError> {
        self.sql(read(&self.connection))
    }
}

/// The statement of a scan. Its parameters: the previous row, the limit, then the given ones of session, kinds, time and words.
fn select(scan: &JournalScan) -> String {
    let mut sql =
        "SELECT e.row, s.session, e.sequence, e.at, e.kind, e.payload, e.content_digest, ".to_owned();
    sql.push_str(if scan.with_content { "e.content" } else { "NULL" });
    sql.push_str(" FROM events e JOIN sessions s ON s.id = e.session WHERE e.row > ?1");
    let mut given = 2;
    if scan.session.is_some() {
        given += 1;
        sql.push_str(" AND e.session = (SELECT id FROM sessions WHERE session = ?3)");
    }
    if !scan.kinds.is_empty() {
        let places: Vec<String> = scan
            .kinds
            .iter()
            .map(|_| {
                given += 1;
                format!("?{given}")
            })
            .collect();
        sql.push_str(&format!(" AND e.kind IN ({})", places.join(",")));
        if let Some(index) = partial_index(scan.kinds.iter().copied()) {
            sql.push_str(" AND ");
            sql.push_str(index);
        }
    }
    if scan.since.is_some() {
        given += 1;
        sql.push_str(&format!(" AND e.at >= ?{given}"));
    }
    if scan.says.is_some() {
        given += 1;
        sql.push_str(&format!(" AND instr(e.payload, ?{given}) > 0"));
    }
    sql.push_str(" ORDER BY e.row LIMIT ?2");
    sql
}

fn check_heads(recorded: &[(SessionId, u64, Digest)], report: &mut VerificationReport) {
    let found: std::collections::HashMap<_, _> = report
        .sessions
        .iter()
        .map(|s| (s.session_id, (s.events, s.head)))
        .collect();
    for (session, events, head) in recorded {
        let (have, end) = found.get(session).copied().unwrap_or((0, Digest::ZERO));
        if have < *events {
            let detail = format!("the chain ends after {have} events; {events} were recorded");
            return report.refuse_end(FaultKind::Gap, detail, *session, have);
        }
        if have == *events && end != *head {
            let detail = "the chain's last event is not the head that was recorded".to_owned();
            return report.refuse_end(FaultKind::BrokenLink, detail, *session, have);
        }
    }
}

/// Returns the bytes only if they have this digest; other bytes are never used.
fn right(digest: Digest, bytes: Vec<u8>) -> rusqlite::Result<Vec<u8>> {
    if digest_of(&bytes) == digest {
        return Ok(bytes);
    }
    let reason = format!("the content `{digest}` was changed; look with `clawk trace verify`");
    Err(rusqlite::Error::FromSqlConversionFailure(
        7,
        rusqlite::types::Type::Blob,
        reason.into(),
    ))
}

fn optional_digest(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<Digest>> {
    match row.get_ref(index)? {
        ValueRef::Null => Ok(None),
        _ => digest_at(row, index).map(Some),
    }
}

pub(crate) fn stored(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    let payload: String = row.get(9)?;
    let payload = RawValue::from_string(payload).map_err(|e| {
        rusqlite::Error::FromSqlConversionFailure(9, rusqlite::types::Type::Text, Box::new(e))
    })?;
    let parent_span_id = match row.get_ref(8)? {
        ValueRef::Null => None,
        _ => Some(uuid_at(row, 8)?),
    };
    let event = SealedEvent {
        trace_version: TRACE_VERSION,
        session_id: SessionId(uuid_at(row, 1)?),
        trace_id: uuid_at(row, 2)?,
        sequence: unsigned_at(row, 3)?,
        timestamp: Timestamp(row.get(4)?).to_string(),
        event_type: row.get(5)?,
        event_id: uuid_at(row, 6)?,
        span_id: uuid_at(row, 7)?,
        parent_span_id,
        payload,
        event_hash: digest_at(row, 10)?,
        previous_event_hash: optional_digest(row, 12)?.unwrap_or(Digest::ZERO),
    };
    Ok(StoredEvent {
        row: unsigned_at(row, 0)?,
        event,
        content_digest: optional_digest(row, 11)?,
    })
}
