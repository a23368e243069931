//! Looking at what is remembered, and forgetting it, from outside of the agent: by store, by scope, by words, by id.

use clawk_kernel::ports::{Batch, Entry, JournalError};
use clawk_kernel::time::Clock;
use clawk_proto::SessionId;
use clawk_proto::method::MemoryEntry;
use clawk_trace::bounded;
use clawk_trace::canonical::payload_of;
use rusqlite::{Connection, params};
use serde_json::json;

use super::{Part, retain, search};
use crate::dir::StateDir;
use crate::erase::overwriting;
use crate::error::StateError;
use crate::queue::Work;
use crate::reader::Reader;

/// The type of the event that says what was forgotten.
pub const FORGOTTEN: &str = "ckp.memory.forgotten";

/// Entries that may be forgotten at once.
pub const MAX_FORGOTTEN: usize = 1000;

/// One scope of a store, and how much it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPart {
    /// The store's name in the manifest.
    pub store: String,
    /// `identity/NAME`, `channel/IDENTITY/CHANNEL`, or empty for everybody's.
    pub scope: String,
    /// How many entries.
    pub entries: u64,
    id: i64,
}

/// An entry, and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Remembered {
    /// [`MemoryPart::store`].
    pub store: String,
    /// [`MemoryPart::scope`].
    pub scope: String,
    /// The entry; `score` within 0..1 when it was searched for.
    pub entry: MemoryEntry,
    /// Its place in time; what comes later has a greater one.
    pub row: u64,
    part: i64,
}

impl MemoryPart {
    fn part(&self) -> Part {
        Part {
            id: self.id,
            entries: i64::try_from(self.entries).unwrap_or(i64::MAX),
        }
    }
}

impl Reader {
    /// Everything that is remembered, by store and scope; of one store, if it is named.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn memory_parts(&self, store: Option<&str>) -> Result<Vec<MemoryPart>, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT id, store, scope, entries FROM memory_parts WHERE ?1 IS NULL OR store = ?1 ORDER BY store, scope",
            )?;
            let rows = select.query_map([store], |row| {
                Ok(MemoryPart {
                    id: row.get(0)?,
                    store: row.get(1)?,
                    scope: row.get(2)?,
                    entries: crate::append::unsigned_at(row, 3)?,
                })
            })?;
            rows.collect()
        })
    }

    /// Entries of a part, the newest first: at most `limit`, those before row `before`.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn remembered(
        &self,
        part: &MemoryPart,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Remembered>, StateError> {
        let before = before.map_or(i64::MAX, crate::append::integer);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with(|connection| {
            let sql = format!(
                "SELECT {}, n FROM memory WHERE part = ?1 AND n < ?2 ORDER BY n DESC LIMIT ?3",
                search::COLUMNS
            );
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map(params![part.id, before, limit], |row| {
                Ok(part.holds(search::entry(row)?, crate::append::unsigned_at(row, 5)?))
            })?;
            rows.collect()
        })
    }

    /// Entries of a part by their words, the best first: as the agent itself would find them.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn recalled(
        &self,
        part: &MemoryPart,
        words: &str,
        limit: usize,
    ) -> Result<Vec<Remembered>, StateError> {
        self.with(|connection| {
            let found = search::by_words(connection, part.part(), words, limit)?;
            Ok(found.into_iter().map(|entry| part.holds(entry, 0)).collect())
        })
    }

    /// The entries with this id or key, in these parts.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn remembered_as(&self, parts: &[MemoryPart], name: &str) -> Result<Vec<Remembered>, StateError> {
        self.with(|connection| {
            let sql = format!(
                "SELECT {}, n FROM memory WHERE part = ?1 AND (id = ?2 OR key = ?2) ORDER BY n",
                search::COLUMNS
            );
            let mut select = connection.prepare_cached(&sql)?;
            let mut found = Vec::new();
            for part in parts {
                let rows = select.query_map(params![part.id, name], |row| {
                    Ok(part.holds(search::entry(row)?, crate::append::unsigned_at(row, 5)?))
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
    fn holds(&self, entry: MemoryEntry, row: u64) -> Remembered {
        Remembered {
            store: self.store.clone(),
            scope: self.scope.clone(),
            entry,
            row,
            part: self.id,
        }
    }
}

impl StateDir {
    /// Removes entries from memory, overwriting them, and says so in the journal: one commit, all of it or nothing. What the
    /// trace keeps of how they came is another matter ([`StateDir::erase`]).
    ///
    /// # Errors
    /// More than [`MAX_FORGOTTEN`], or the journal can't be written: nothing is forgotten.
    pub async fn forget(
        &self,
        gone: &[Remembered],
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
            entries: said(gone, reason, by, clock)?,
            ..Batch::default()
        };
        let rows: Vec<(i64, i64)> = gone
            .iter()
            .map(|one| (one.part, crate::append::integer(one.row)))
            .collect();
        let job = move |connection: &Connection| {
            overwriting(connection, || {
                for (part, row) in &rows {
                    retain::delete(connection, *part, &[*row])?;
                }
                Ok(())
            })?;
            Ok(true)
        };
        let work = Work::AppendAnd(batch, Box::new(job));
        self.inner.queue.push(work)?.durable().await?;
        // The log beside the database holds old pages, too.
        self.finish_erasing().await
    }
}

/// A session of its own, which says what is gone: ids and names, never what was remembered.
fn said(gone: &[Remembered], reason: &str, by: &str, clock: &dyn Clock) -> Result<Vec<Entry>, JournalError> {
    let session = SessionId(clock.uuid());
    let started = json!({
        "agent_hash": clawk_proto::Digest::ZERO, "agent_id": by, "door": "operator", "goal": "forget", "run": session.0,
    });
    let entries: Vec<_> = gone
        .iter()
        .map(|one| json!({ "id": one.entry.id, "scope": one.scope, "store": one.store }))
        .collect();
    let forgotten = json!({ "by": by, "count": entries.len(), "entries": entries, "reason": reason });
    let entry = |kind, span, parent, payload: &serde_json::Value| {
        Ok(Entry {
            session,
            event_id: clock.uuid(),
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
        entry(FORGOTTEN, clock.uuid(), Some(session.0), &forgotten)?,
    ])
}
