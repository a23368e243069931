//! Erases content: by event, by digest, by session or by age. The chain stays intact, because it contains only digests. A
//! `ckp.content.redacted` event in the session's chain records what was erased and why.
//!
//! One commit adds the event, overwrites the bytes in the rows, and notes the digests in `erasing`. Then the files and the notes
//! are deleted. After a crash the next start finishes this.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::RecordedReason;
use clawk_kernel::ports::{Batch, JournalEntry, JournalError};
use clawk_kernel::time::{Clock, Timestamp};
use clawk_proto::{Digest, SessionId};
use clawk_trace::bounded;
use clawk_trace::canonical::payload_of;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::json;

use crate::append::{digest_at, integer, unsigned_at, uuid_at};
use crate::blobs::BlobStore;
use crate::dir::StateDir;
use crate::error::StateError;
use crate::queue::SqliteWriterWork;
use crate::reader::StateDirReader;
use crate::schema::{ATLAS_KINDS, BUCKETS};

/// The type of the event that records an erasure.
pub const REDACTED: &str = "ckp.content.redacted";
/// The largest number of digests in one such event.
const DIGESTS_PER_EVENT: usize = 256;
/// The number of rows that one commit of an expiry checks.
const EXPIRY_ROWS: i64 = 2000;
/// The number of attempts to empty the write-ahead log while readers hold it back. `LOG_PAUSE` is the pause between two attempts.
const LOG_PATIENCE: u32 = 100;
const LOG_PAUSE: Duration = Duration::from_millis(50);

/// The contents to erase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasureSelection {
    /// Everything that a session refers to, but what other sessions refer to as well, and the reasons of earlier erasures.
    Session(SessionId),
    /// The content of this event, wherever the session refers to it, except content that other sessions refer to.
    Event(SessionId, u64),
    /// This content everywhere. The given session records it.
    Digest(SessionId, Digest),
    /// Content that only events before this time refer to. One call handles a portion; see [`ErasureResult::more`].
    Before(Timestamp),
}

/// The result of an erasure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErasureResult {
    /// The number of erased contents.
    pub contents: u64,
    /// The number of contents that were kept because other events refer to them.
    pub kept: u64,
    /// The number of contents that were kept because an Atlas that was loaded over the API needs them.
    pub in_force: u64,
    /// More content may have expired: call again.
    pub more: bool,
}

/// The rows to empty, and their contents that must be kept.
#[derive(Debug, Default)]
struct ErasableRows {
    rows: Vec<u64>,
    gone: BTreeMap<SessionId, Vec<Digest>>,
    kept: u64,
    in_force: u64,
    /// The journal's last row at the time of the query; later rows are not affected.
    upto: u64,
    /// The position of an expiry. `more` tells whether it has reached its end.
    mark: Option<u64>,
    more: bool,
}

impl StateDir {
    /// Erases content and records it.
    ///
    /// # Errors
    /// The journal can't be written or read, or a file can't be deleted; the next start then deletes it.
    pub async fn erase(
        &self,
        what: ErasureSelection,
        reason: &str,
        by: &str,
        clock: &dyn Clock,
    ) -> Result<ErasureResult, JournalError> {
        let read = self.inner.readers.run(move |reader| reader.to_erase(what));
        let found = read.await.map_err(JournalError::Unreadable)?;
        let contents = found.gone.values().map(Vec::len).sum::<usize>();
        let erased = ErasureResult {
            contents: u64::try_from(contents).unwrap_or(u64::MAX),
            kept: found.kept,
            in_force: found.in_force,
            more: found.more,
        };
        let batch = Batch {
            entries: redaction_entries(&found.gone, what, reason, by, clock)?,
            ..Batch::default()
        };
        let digests: Vec<Digest> = found.gone.into_values().flatten().collect();
        let (rows, upto, mark, noted) = (found.rows, found.upto, found.mark, digests.clone());
        let job = move |connection: &Connection| {
            with_secure_delete(connection, || {
                let mut clear =
                    connection.prepare_cached("UPDATE events SET content = NULL WHERE row = ?1")?;
                for row in rows {
                    clear.execute([integer(row)])?;
                }
                Ok(())
            })?;
            let mut note = connection.prepare_cached(
                "INSERT OR REPLACE INTO erasing (digest, session, before, upto) VALUES (?1, ?2, ?3, ?4)",
            )?;
            let (session, before) = erasure_scope(what);
            for digest in &noted {
                note.execute(params![digest.0, session, before, integer(upto)])?;
            }
            if let Some(mark) = mark {
                connection.execute(
                    "INSERT OR REPLACE INTO marks (name, value) VALUES ('expired', ?1)",
                    [integer(mark)],
                )?;
            }
            Ok(true)
        };
        let work = SqliteWriterWork::AppendAnd(batch, Box::new(job));
        self.inner.queue.push(work)?.wait_until_durable().await?;
        self.finish_erasing().await?;
        Ok(erased)
    }

    /// Deletes the files noted as erased. Each start calls this too.
    ///
    /// # Errors
    /// The journal can't be written, or a file can't be deleted.
    pub(crate) async fn finish_erasing(&self) -> Result<(), JournalError> {
        let (blobs, fault) = (self.inner.blobs.clone(), Arc::new(Mutex::new(None)));
        let failed = fault.clone();
        // Runs on the writer's thread, so that the same content can't be stored meanwhile.
        let job = move |connection: &Connection| {
            let outcome = remove_files(connection, &blobs)?;
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = outcome;
            Ok(true)
        };
        self.inner
            .queue
            .push(SqliteWriterWork::Run(Box::new(job)))?
            .wait_until_durable()
            .await?;
        if let Some(cause) = fault.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(JournalError::Unwritable(cause));
        }
        self.off_thread(|connection| {
            for _ in 0..LOG_PATIENCE {
                let busy: i64 =
                    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
                if busy == 0 {
                    return Ok(true);
                }
                std::thread::sleep(LOG_PAUSE);
            }
            Ok(false)
        })
        .await
    }

    /// Rewrites the database without free pages and old copies. Needs as much time and space as a copy.
    ///
    /// # Errors
    /// SQLite reports an error, for example a full disk.
    pub async fn rewrite(&self) -> Result<(), JournalError> {
        self.off_thread(|connection| {
            connection.execute_batch("VACUUM")?;
            let busy: i64 = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))?;
            Ok(busy == 0)
        })
        .await
    }

    async fn off_thread(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<bool> + Send + 'static,
    ) -> Result<(), JournalError> {
        let database = self.path().join("state.db");
        let done = tokio::task::spawn_blocking(move || -> rusqlite::Result<bool> {
            let connection = Connection::open(database)?;
            connection.busy_timeout(Duration::from_secs(5))?;
            job(&connection)
        });
        match done.await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(JournalError::Unwritable(
                "the bytes are erased, but a reader holds the write-ahead log, which may still have them; close it and do this again"
                    .to_owned(),
            )),
            Ok(Err(e)) => Err(JournalError::Unwritable(e.to_string())),
            Err(e) => Err(JournalError::Unwritable(e.to_string())),
        }
    }
}

/// The session whose rows count, or the time before which rows count. Neither: all rows count.
fn erasure_scope(what: ErasureSelection) -> (Option<[u8; 16]>, Option<i64>) {
    match what {
        ErasureSelection::Session(session) | ErasureSelection::Event(session, _) => {
            (Some(session.0.into_bytes()), None)
        }
        ErasureSelection::Digest(..) => (None, None),
        ErasureSelection::Before(time) => (None, Some(time.0)),
    }
}

/// The events that record the erasure: one per session and 256 digests.
///
/// # Errors
/// A payload can't be written.
pub fn redaction_entries(
    gone: &BTreeMap<SessionId, Vec<Digest>>,
    what: ErasureSelection,
    reason: &str,
    by: &str,
    clock: &dyn Clock,
) -> Result<Vec<JournalEntry>, JournalError> {
    let scope = match what {
        ErasureSelection::Session(_) => "session",
        ErasureSelection::Event(..) => "event",
        ErasureSelection::Digest(..) => "digest",
        ErasureSelection::Before(_) => "expired",
    };
    // Why something expired is this program's word. A person's reason is a content, which can be erased in its turn.
    let words = match what {
        ErasureSelection::Session(_) | ErasureSelection::Event(..) | ErasureSelection::Digest(..) => {
            Some(RecordedReason::new(reason))
        }
        ErasureSelection::Before(_) => None,
    };
    let mut entries = Vec::new();
    for (session, digests) in gone {
        for portion in digests.chunks(DIGESTS_PER_EVENT) {
            let contents: Vec<String> = portion.iter().map(Digest::to_hex).collect();
            let mut payload = json!({
                "by": by, "contents": contents, "count": contents.len(), "reason": reason, "scope": scope,
            });
            if let (Some(words), Some(members)) = (&words, payload.as_object_mut()) {
                members.insert("reason".to_owned(), json!(words.stand_in));
                members.insert("words_hash".to_owned(), json!(words.content.digest));
            }
            entries.push(JournalEntry {
                session: *session,
                event_id: clock.new_uuid(),
                span: clock.new_uuid(),
                parent: Some(session.0),
                at: clock.now(),
                kind: REDACTED,
                payload: bounded(payload_of(&payload).map_err(|e| JournalError::Unwritable(e.to_string()))?),
                content: words.as_ref().map(|words| words.content.clone()),
                answers: None,
            });
        }
    }
    Ok(entries)
}

/// Finishes what a crash interrupted. A file that can't be deleted stays noted for the next start.
pub(crate) fn finish_erasures(connection: &Connection, blobs: &BlobStore) -> rusqlite::Result<()> {
    if let Some(fault) = remove_files(connection, blobs)? {
        tracing::error!(fault, "content that was erased on the record still has its file");
    }
    Ok(())
}

/// Deletes each noted file that no event outside the erasure refers to. Returns the reason if a file could not be deleted.
fn remove_files(connection: &Connection, blobs: &BlobStore) -> rusqlite::Result<Option<String>> {
    let mut select = connection.prepare("SELECT digest, session, before, upto FROM erasing")?;
    let mut rows = select.query([])?;
    let mut fault = None;
    while let Some(row) = rows.next()? {
        let digest = digest_at(row, 0)?;
        let (session, before): (Option<Vec<u8>>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let others = count_other_references(connection, digest, (session.as_deref(), before), row.get(3)?)?;
        if others == 0
            && let Err(error) = blobs.erase_file(digest)
        {
            fault = Some(format!(
                "content {digest} is erased from the journal, its file is not: {error}"
            ));
            continue;
        }
        connection.execute("DELETE FROM erasing WHERE digest = ?1", [digest.0])?;
    }
    Ok(fault)
}

/// The number of rows outside the scope that refer to the content.
fn count_other_references(
    connection: &Connection,
    digest: Digest,
    (session, before): (Option<&[u8]>, Option<i64>),
    upto: i64,
) -> rusqlite::Result<i64> {
    let sql = format!(
        "{BUCKETS} SELECT count(*) FROM bucket CROSS JOIN events e WHERE e.row >> 12 = bucket.n AND e.content_digest = ?1 \
         AND (e.row > ?4 OR (?2 IS NOT NULL AND e.session <> (SELECT id FROM sessions WHERE session = ?2)) \
         OR (?3 IS NOT NULL AND e.at >= ?3))"
    );
    connection
        .prepare_cached(&sql)?
        .query_row(params![digest.0, session, before, upto], |row| row.get(0))
}

impl StateDirReader {
    fn to_erase(&self, what: ErasureSelection) -> Result<ErasableRows, StateError> {
        let upto = self.last_row()?;
        let mut found = ErasableRows {
            upto,
            ..ErasableRows::default()
        };
        let candidates = match what {
            ErasureSelection::Before(time) => self.expired(time, &mut found)?,
            ErasureSelection::Session(session) => self.rows_of(session, None, None)?,
            ErasureSelection::Event(session, sequence) => {
                let of_event = self.rows_of(session, Some(sequence), None)?;
                match of_event.first() {
                    Some((_, _, digest)) => self.rows_of(session, None, Some(*digest))?,
                    None => Vec::new(),
                }
            }
            ErasureSelection::Digest(session, digest) => {
                // This session records the erasure; the content is erased everywhere.
                let named = self.rows_of(session, None, Some(digest))?;
                if named.is_empty() {
                    named
                } else {
                    self.everywhere(session, digest)?
                }
            }
        };
        let (of, before) = erasure_scope(what);
        let in_force = self.atlases_in_force()?;
        let mut judged: BTreeMap<Digest, bool> = BTreeMap::new();
        for (row, session, digest) in candidates {
            let goes = match judged.get(&digest) {
                Some(goes) => *goes,
                None => {
                    let others = self.with(|connection| {
                        count_other_references(
                            connection,
                            digest,
                            (of.as_ref().map(<[u8; 16]>::as_slice), before),
                            integer(upto),
                        )
                    })?;
                    // Content that is already gone is not erased again.
                    let governs = in_force.contains(&digest);
                    let goes = !governs && others == 0 && self.content(digest)?.is_some();
                    found.in_force += u64::from(governs);
                    found.kept += u64::from(others > 0 && !governs);
                    judged.insert(digest, goes);
                    if goes {
                        found.gone.entry(session).or_default().push(digest);
                    }
                    goes
                }
            };
            if goes {
                found.rows.push(row);
            }
        }
        Ok(found)
    }

    /// Rows with content of one session: of one event, with one digest, or all.
    fn rows_of(
        &self,
        session: SessionId,
        sequence: Option<u64>,
        digest: Option<Digest>,
    ) -> Result<Vec<(u64, SessionId, Digest)>, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT row, content_digest FROM events WHERE session = (SELECT id FROM sessions WHERE session = ?1) \
                 AND content_digest IS NOT NULL AND (?2 IS NULL OR sequence = ?2) AND (?3 IS NULL OR content_digest = ?3) \
                 AND (?2 IS NOT NULL OR ?3 IS NOT NULL OR kind <> ?4) ORDER BY row",
            )?;
            let values = params![
                session.0.as_bytes(),
                sequence.map(integer),
                digest.map(|digest| digest.0),
                REDACTED
            ];
            let rows = select.query_map(values, |row| Ok((unsigned_at(row, 0)?, session, digest_at(row, 1)?)))?;
            rows.collect()
        })
    }

    fn everywhere(
        &self,
        session: SessionId,
        digest: Digest,
    ) -> Result<Vec<(u64, SessionId, Digest)>, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare_cached(&format!(
                "{BUCKETS} SELECT e.row FROM bucket CROSS JOIN events e WHERE e.row >> 12 = bucket.n AND e.content_digest = ?1"
            ))?;
            let rows = select.query_map([digest.0], |row| Ok((unsigned_at(row, 0)?, session, digest)))?;
            rows.collect()
        })
    }

    /// The contents from which Atlases of the API are read at the next start. Without them the Atlases would not be in force.
    fn atlases_in_force(&self) -> Result<BTreeSet<Digest>, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare_cached(&format!(
                "SELECT kind, payload ->> '$.atlas_id', content_digest FROM events WHERE {ATLAS_KINDS} ORDER BY row"
            ))?;
            let mut rows = select.query([])?;
            let mut loaded: BTreeMap<String, Digest> = BTreeMap::new();
            while let Some(row) = rows.next()? {
                let (kind, id): (String, Option<String>) = (row.get(0)?, row.get(1)?);
                let id = id.unwrap_or_default();
                if kind == "ckp.atlas.removed" {
                    loaded.remove(&id);
                } else if !matches!(row.get_ref(2)?, rusqlite::types::ValueRef::Null) {
                    loaded.insert(id, digest_at(row, 2)?);
                }
            }
            Ok(loaded.into_values().collect())
        })
    }

    /// The next rows older than `time`; moves the mark. Content that an Atlas needed when the mark passed it is checked again.
    fn expired(
        &self,
        time: Timestamp,
        found: &mut ErasableRows,
    ) -> Result<Vec<(u64, SessionId, Digest)>, StateError> {
        self.with(|connection| {
            let mark: i64 = connection
                .query_row("SELECT value FROM marks WHERE name = 'expired'", [], |row| row.get(0))
                .optional()?
                .unwrap_or(0);
            let mut select = connection.prepare_cached(
                "SELECT e.row, e.at, s.session, e.content_digest FROM events e JOIN sessions s ON s.id = e.session \
                 WHERE e.row > ?1 ORDER BY e.row LIMIT ?2",
            )?;
            let mut rows = select.query([mark, EXPIRY_ROWS])?;
            let (mut due, mut seen) = (passed_by(connection, mark, time)?, 0);
            while let Some(row) = rows.next()? {
                let at: i64 = row.get(1)?;
                if at >= time.0 {
                    return Ok(due);
                }
                seen += 1;
                found.mark = Some(unsigned_at(row, 0)?);
                if !matches!(row.get_ref(3)?, rusqlite::types::ValueRef::Null) {
                    due.push((unsigned_at(row, 0)?, SessionId(uuid_at(row, 2)?), digest_at(row, 3)?));
                }
            }
            found.more = seen == EXPIRY_ROWS;
            Ok(due)
        })
    }
}

/// Content of Atlases before the mark. It expires when its Atlas is no longer in force.
fn passed_by(
    connection: &Connection,
    mark: i64,
    time: Timestamp,
) -> rusqlite::Result<Vec<(u64, SessionId, Digest)>> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT e.row, s.session, e.content_digest FROM events e JOIN sessions s ON s.id = e.session \
         WHERE {ATLAS_KINDS} AND e.content_digest IS NOT NULL AND e.row <= ?1 AND e.at < ?2 ORDER BY e.row"
    ))?;
    let rows = select.query_map(params![mark, time.0], |row| {
        Ok((
            unsigned_at(row, 0)?,
            SessionId(uuid_at(row, 1)?),
            digest_at(row, 2)?,
        ))
    })?;
    rows.collect()
}

/// Runs an erasure with overwriting of freed pages. That is too slow to be always on.
pub(crate) fn with_secure_delete<T>(
    connection: &Connection,
    erase: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.pragma_update(None, "secure_delete", true)?;
    let outcome = erase();
    connection.pragma_update(None, "secure_delete", false)?;
    outcome
}
