//! Reads and deletes memory entries for tools outside the agent: by store, scope, words or id.

use clawk_kernel::RecordedReason;
use clawk_kernel::ports::{Batch, JournalEntry, JournalError, StoreQuery};
use clawk_kernel::time::Clock;
use clawk_manifest::model::Store;
use clawk_proto::method::MemoryEntry;
use clawk_proto::{Digest, SessionId};
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryProvenance};
use clawk_trace::bounded;
use clawk_trace::canonical::payload_of;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::json;

use super::indexed::SqliteWordIndex;
use super::rows::{self, ANY, SqliteStorePart};
use super::search::SqlitePartSearch;
use super::vectors::Vectors;
use crate::dir::StateDir;
use crate::erase::with_secure_delete;
use crate::error::StateError;
use crate::queue::{Job, SqliteWriterWork};
use crate::reader::StateDirReader;

/// The type of the event that records deleted entries.
pub const FORGOTTEN: &str = "ckp.memory.forgotten";

/// The type of the event that records restored entries.
pub const RESTORED: &str = "ckp.memory.restored";

/// The largest number of entries that one call may delete.
pub const MAX_FORGOTTEN: usize = 1000;

/// One scope of a store, and its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPart {
    /// The store's name in the manifest.
    pub store: String,
    /// `identity/NAME`, `channel/IDENTITY/CHANNEL`, or empty for the shared scope.
    pub scope: String,
    /// The number of entries.
    pub entries: u64,
    id: i64,
    /// The store is encrypted.
    sealed: bool,
}

/// An entry with its store and scope.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberedEntry {
    /// [`MemoryPart::store`].
    pub store: String,
    /// [`MemoryPart::scope`].
    pub scope: String,
    /// The entry. After a search, `score` is within 0..1.
    pub entry: MemoryEntry,
    /// The entry's provenance.
    pub mark: EntryProvenance,
    /// The entry's row; later entries have greater numbers.
    pub row: u64,
    part: i64,
}

impl MemoryPart {
    fn store_part(&self) -> SqliteStorePart {
        SqliteStorePart {
            id: self.id,
            entries: i64::try_from(self.entries).unwrap_or(i64::MAX),
            sealed: self.sealed,
        }
    }
}

impl StateDirReader {
    /// All parts with entries, by store and scope. With `store`, only that store's parts.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn memory_parts(&self, store: Option<&str>) -> Result<Vec<MemoryPart>, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT id, store, scope, entries, clawk_holds(store) FROM memory_parts WHERE ?1 IS NULL OR store = ?1 ORDER BY store, scope",
            )?;
            let rows = select.query_map([store], |row| {
                Ok(MemoryPart {
                    id: row.get(0)?,
                    store: row.get(1)?,
                    scope: row.get(2)?,
                    entries: crate::append::unsigned_at(row, 3)?,
                    sealed: row.get(4)?,
                })
            })?;
            rows.collect()
        })
    }

    /// Entries of a part, newest first: at most `limit`, before row `before`.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn remembered(
        &self,
        part: &MemoryPart,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        let before = before.map_or(i64::MAX, crate::append::integer);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with(|connection| {
            let sql = format!(
                "SELECT {}, n FROM memory WHERE part = ?1 AND n < ?2 ORDER BY n DESC LIMIT ?3",
                rows::hit_columns(part.sealed)
            );
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map(params![part.id, before, limit], |row| {
                Ok(part.remembered_entry(rows::hit_from_row(row)?, crate::append::unsigned_at(row, 6)?))
            })?;
            rows.collect()
        })
    }

    /// Searches a part by words, best first, exactly as the agent does.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn recalled(
        &self,
        part: &MemoryPart,
        words: &str,
        limit: usize,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        self.with(|connection| {
            let search = SqlitePartSearch {
                store: &Store::with_name(&part.store),
                part: part.store_part(),
                whose: &ConversationFilter::All,
                limit,
                vectors: &Vectors::default(),
                words: &SqliteWordIndex::default(),
            };
            let query = StoreQuery::Text(words.to_owned());
            let found = search.run(connection, &query, None)?;
            Ok(found
                .hits
                .into_iter()
                .map(|hit| part.remembered_entry(hit, 0))
                .collect())
        })
    }

    /// The entries with this id or key in these parts. Entries that compaction set aside are found by id only.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn remembered_as(
        &self,
        parts: &[MemoryPart],
        name: &str,
    ) -> Result<Vec<RememberedEntry>, StateError> {
        self.with(|connection| {
            let mut found = Vec::new();
            for part in parts {
                let sql = format!(
                    "SELECT {0}, n FROM memory WHERE part = ?1 AND (id = ?2 OR key IN (?2, clawk_name(?2))) UNION ALL \
                     SELECT {0}, n FROM memory_aside WHERE part = ?1 AND id = ?2 ORDER BY n",
                    rows::hit_columns(part.sealed)
                );
                let mut select = connection.prepare_cached(&sql)?;
                let rows = select.query_map(params![part.id, name], |row| {
                    Ok(part.remembered_entry(rows::hit_from_row(row)?, crate::append::unsigned_at(row, 6)?))
                })?;
                for row in rows {
                    found.push(row?);
                }
            }
            Ok(found)
        })
    }
}

impl MemoryPart {
    fn remembered_entry(&self, EntryHit { entry, mark }: EntryHit, row: u64) -> RememberedEntry {
        RememberedEntry {
            store: self.store.clone(),
            scope: self.scope.clone(),
            entry,
            mark,
            row,
            part: self.id,
        }
    }
}

impl StateDirReader {
    /// The entries of a part that compaction set aside, newest first, at most `limit`.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn set_aside(&self, part: &MemoryPart, limit: usize) -> Result<Vec<RememberedEntry>, StateError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with(|connection| {
            let sql = format!(
                "SELECT {}, n FROM memory_aside WHERE part = ?1 ORDER BY n DESC LIMIT ?2",
                rows::hit_columns(part.sealed)
            );
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map(params![part.id, limit], |row| {
                Ok(part.remembered_entry(rows::hit_from_row(row)?, crate::append::unsigned_at(row, 6)?))
            })?;
            rows.collect()
        })
    }
}

impl StateDir {
    /// Deletes and overwrites entries, and records it in the journal, in one commit. Content in the trace stays; see
    /// [`StateDir::erase`].
    ///
    /// # Errors
    /// More than [`MAX_FORGOTTEN`] entries, or the journal can't be written; nothing is deleted.
    pub async fn forget(
        &self,
        gone: &[RememberedEntry],
        reason: &str,
        by: &str,
        clock: &dyn Clock,
    ) -> Result<(), JournalError> {
        if gone.len() > MAX_FORGOTTEN {
            return Err(JournalError::Unwritable(format!(
                "{} entries; at most {MAX_FORGOTTEN} are forgotten at once",
                gone.len()
            )));
        }
        let batch = Batch {
            entries: erasure_journal_entries(gone, reason, by, clock)?,
            ..Batch::default()
        };
        let gone: Vec<(i64, i64, String)> = gone
            .iter()
            .map(|one| (one.part, crate::append::integer(one.row), one.entry.id.clone()))
            .collect();
        let job = move |connection: &Connection| {
            with_secure_delete(connection, || {
                for (part, row, id) in &gone {
                    erase_entry(connection, *part, *row, id)?;
                }
                rows::drop_dead_words(connection)
            })?;
            Ok(true)
        };
        let work = SqliteWriterWork::AppendAnd(batch, Box::new(job));
        self.inner.queue.push(work)?.wait_until_durable().await?;
        // The write-ahead log holds old pages too.
        self.finish_erasing().await
    }
}

/// The events that record deletions in stores outside this database: store, scope and id of each entry.
///
/// # Errors
/// They can't be encoded.
pub fn forgotten_journal_entries(
    gone: &[(&str, &str, &str)],
    reason: &str,
    by: &str,
    clock: &dyn Clock,
) -> Result<Vec<JournalEntry>, JournalError> {
    let entries: Vec<_> = gone
        .iter()
        .map(|(store, scope, id)| json!({ "id": id, "scope": scope, "store": store }))
        .collect();
    recorded_forgetting(&entries, reason, by, clock)
}

/// The events that record restored entries of stores outside this database: store and scope of each part, and the entry's id
/// (`None`: all entries).
///
/// # Errors
/// They can't be encoded.
pub fn restored_journal_entries(
    parts: &[(&str, &str)],
    id: Option<&str>,
    by: &str,
    clock: &dyn Clock,
) -> Result<Vec<JournalEntry>, JournalError> {
    let stores: Vec<_> = parts
        .iter()
        .map(|(store, scope)| json!({ "scope": scope, "store": store }))
        .collect();
    let payload = json!({ "by": by, "id": id.unwrap_or("everything"), "stores": stores });
    session_journal_entries("restore", RESTORED, &payload, by, clock)
}

impl StateDir {
    /// Records deletions in stores outside this database ([`forgotten_journal_entries`]). The same commit deletes cached embeddings of the texts
    /// with these digests.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn forgotten_elsewhere(
        &self,
        entries: Vec<JournalEntry>,
        embedded: Vec<Digest>,
    ) -> Result<(), JournalError> {
        let job = move |connection: &Connection| {
            with_secure_delete(connection, || {
                embedded
                    .iter()
                    .try_for_each(|digest| rows::forget_digest(connection, *digest))
            })?;
            Ok(true)
        };
        self.noted(entries, Box::new(job)).await?;
        self.finish_erasing().await
    }

    /// Records restored entries of stores outside this database ([`restored_journal_entries`]).
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn restored_elsewhere(&self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        self.noted(entries, Box::new(|_: &Connection| Ok(true))).await
    }

    async fn noted(&self, entries: Vec<JournalEntry>, job: Job) -> Result<(), JournalError> {
        let batch = Batch {
            entries,
            ..Batch::default()
        };
        let work = SqliteWriterWork::AppendAnd(batch, job);
        self.inner.queue.push(work)?.wait_until_durable().await
    }
}

/// Deletes an entry, active or set aside, together with its cached embedding, the entries set aside for it, and every summary made
/// from it. Other entries behind such a summary are restored.
pub(super) fn erase_entry(connection: &Connection, part: i64, row: i64, id: &str) -> rusqlite::Result<()> {
    let text = format!(
        "SELECT {ANY} FROM memory WHERE n = ?1 UNION ALL SELECT {ANY} FROM memory_aside WHERE n = ?1"
    );
    let mut select = connection.prepare_cached(&text)?;
    let texts = select
        .query_map([row], |row| rows::parse_content(row.get(0)?, row.get(1)?))?
        .collect::<Result<Vec<_>, _>>()?;
    for (content, key) in texts {
        rows::forget_embedded(connection, &content, key.as_deref())?;
    }
    rows::delete_entries(connection, part, &[row])?;
    rows::came_or_went(connection)?;
    let mut summaries: Vec<String> = connection
        .prepare_cached("SELECT instead FROM memory_aside WHERE n = ?1 AND instead <> ''")?
        .query_map([row], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    connection.execute(
        "DELETE FROM memory_aside WHERE n = ?1 OR (part = ?2 AND instead = ?3)",
        params![row, part, id],
    )?;
    while let Some(summary) = summaries.pop() {
        let mut above = connection.prepare_cached(
            "SELECT instead FROM memory_aside WHERE part = ?1 AND id = ?2 AND instead <> ''",
        )?;
        summaries.extend(
            above
                .query_map(params![part, summary], |row| row.get(0))?
                .collect::<Result<Vec<String>, _>>()?,
        );
        connection.execute(
            "DELETE FROM memory_aside WHERE part = ?1 AND id = ?2",
            params![part, summary],
        )?;
        undo_summary(connection, part, &summary)?;
    }
    Ok(())
}

/// Deletes a summary and restores the entries behind it. Returns the number of restored entries.
fn undo_summary(connection: &Connection, part: i64, summary: &str) -> rusqlite::Result<u64> {
    let mut select = connection.prepare_cached("SELECT n FROM memory WHERE part = ?1 AND id = ?2")?;
    let own = select
        .query_map(params![part, summary], |row| row.get(0))?
        .collect::<Result<Vec<i64>, _>>()?;
    let embeds = rows::has_vectors(connection, part)?;
    rows::delete_entries(connection, part, &own)?;
    let mut select = connection
        .prepare_cached("SELECT n FROM memory_aside WHERE part = ?1 AND instead = ?2 ORDER BY n")?;
    let old = select
        .query_map(params![part, summary], |row| row.get(0))?
        .collect::<Result<Vec<i64>, _>>()?;
    rows::bring_back(connection, part, &old, embeds)
}

/// Restores one entry, the entries behind a summary, or all entries of a part.
fn bring_back(connection: &Connection, part: i64, which: &RestoreSelection) -> rusqlite::Result<u64> {
    let mut back = 0;
    match which {
        RestoreSelection::All => loop {
            let next: Option<(i64, String)> = connection
                .query_row(
                    "SELECT n, instead FROM memory_aside WHERE part = ?1 ORDER BY since DESC, n DESC LIMIT 1",
                    [part],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()?;
            let Some((n, instead)) = next else { return Ok(back) };
            let came = if instead.is_empty() {
                rows::bring_back(connection, part, &[n], rows::has_vectors(connection, part)?)?
            } else {
                undo_summary(connection, part, &instead)?
            };
            if came == 0 {
                return Ok(back);
            }
            back += came;
        },
        RestoreSelection::Id(id) => {
            let mut select = connection
                .prepare_cached("SELECT n FROM memory_aside WHERE part = ?1 AND id = ?2 ORDER BY n")?;
            let own = select
                .query_map(params![part, id], |row| row.get(0))?
                .collect::<Result<Vec<i64>, _>>()?;
            back += rows::bring_back(connection, part, &own, rows::has_vectors(connection, part)?)?;
            let stands: bool = connection
                .prepare_cached("SELECT 1 FROM memory_aside WHERE part = ?1 AND instead = ?2")?
                .exists(params![part, id])?;
            if stands {
                back += undo_summary(connection, part, id)?;
            }
        }
    }
    Ok(back)
}

/// Which of the entries set aside to restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreSelection {
    /// All entries.
    All,
    /// The entry with this id, or the entries behind the summary with this id.
    Id(String),
}

impl StateDir {
    /// Restores entries that compaction set aside in these parts, and records it, in one commit.
    ///
    /// # Errors
    /// The journal can't be written; nothing is restored.
    pub async fn restore(
        &self,
        parts: &[MemoryPart],
        which: RestoreSelection,
        by: &str,
        clock: &dyn Clock,
    ) -> Result<u64, JournalError> {
        let name = match &which {
            RestoreSelection::All => "everything",
            RestoreSelection::Id(id) => id,
        };
        let stores: Vec<_> = parts
            .iter()
            .map(|part| json!({ "scope": part.scope, "store": part.store }))
            .collect();
        let payload = json!({ "by": by, "id": name, "stores": stores });
        let batch = Batch {
            entries: session_journal_entries("restore", RESTORED, &payload, by, clock)?,
            ..Batch::default()
        };
        let ids: Vec<i64> = parts.iter().map(|part| part.id).collect();
        let slot = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = slot.clone();
        let job = move |connection: &Connection| {
            for part in ids {
                let back = bring_back(connection, part, &which)?;
                count.fetch_add(back, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(true)
        };
        let work = SqliteWriterWork::AppendAnd(batch, Box::new(job));
        self.inner.queue.push(work)?.wait_until_durable().await?;
        Ok(slot.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// A separate session that records the deletion: ids and names, never content.
fn erasure_journal_entries(
    gone: &[RememberedEntry],
    reason: &str,
    by: &str,
    clock: &dyn Clock,
) -> Result<Vec<JournalEntry>, JournalError> {
    let entries: Vec<_> = gone
        .iter()
        .map(|one| json!({ "id": one.entry.id, "scope": one.scope, "store": one.store }))
        .collect();
    recorded_forgetting(&entries, reason, by, clock)
}

fn recorded_forgetting(
    entries: &[serde_json::Value],
    reason: &str,
    by: &str,
    clock: &dyn Clock,
) -> Result<Vec<JournalEntry>, JournalError> {
    let words = RecordedReason::new(reason);
    let payload = json!({
        "by": by, "count": entries.len(), "entries": entries, "reason": words.stand_in, "words_hash": words.content.digest,
    });
    let mut session = session_journal_entries("forget", FORGOTTEN, &payload, by, clock)?;
    if let Some(forgotten) = session.last_mut() {
        forgotten.content = Some(words.content);
    }
    Ok(session)
}

fn session_journal_entries(
    goal: &str,
    kind: &'static str,
    payload: &serde_json::Value,
    by: &str,
    clock: &dyn Clock,
) -> Result<Vec<JournalEntry>, JournalError> {
    let session = SessionId(clock.new_uuid());
    let started = json!({
        "agent_hash": clawk_proto::Digest::ZERO, "agent_id": by, "door": "operator", "goal": goal, "run": session.0,
    });
    let entry = |kind, span, parent, payload: &serde_json::Value| {
        Ok(JournalEntry {
            session,
            event_id: clock.new_uuid(),
            span,
            parent,
            at: clock.now(),
            kind,
            payload: bounded(payload_of(payload).map_err(|e| JournalError::Unwritable(e.to_string()))?),
            content: None,
            answers: None,
        })
    };
    Ok(vec![
        entry(clawk_kernel::kind::SESSION_STARTED, session.0, None, &started)?,
        entry(kind, clock.new_uuid(), Some(session.0), payload)?,
    ])
}
