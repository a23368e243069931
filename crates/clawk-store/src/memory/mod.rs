//! Memory stores on SQLite (CKP §5.6, §9.3.4; R21): entries, words, vectors; all types of stores.

mod kinds;
mod look;
mod retain;
mod rows;
mod search;
mod vectors;

use std::sync::{Arc, Mutex, PoisonError};

use clawk_kernel::ports::{Ask, Batch, JournalError, Later, Memory, MemoryError, Scope};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_recall::compact::{Summary, replaces};
use clawk_recall::entry::{Found, Hit, New, Whose};
use clawk_recall::{packed, words};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde_json::Value;

pub use look::{FORGOTTEN, MAX_FORGOTTEN, MemoryPart, RESTORED, Remembered, Restore};

use crate::dir::Inner;
use crate::queue::Work;
use kinds::{check, scope_of};
use rows::{Part, find_part, is_kept, part, rows_of};
use search::Search;
use vectors::Vectors;

/// Memory stores of a state directory.
#[derive(Debug)]
pub struct SqliteMemory {
    inner: Arc<Inner>,
    vectors: Arc<Vectors>,
}

/// An entry that has no vector yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lacking {
    /// Names it to [`SqliteMemory::vectors`].
    pub handle: String,
    /// Its text.
    pub text: String,
}

impl SqliteMemory {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self {
            inner,
            vectors: Arc::default(),
        }
    }

    /// Runs a write on the writer's thread; answers when it is durable.
    async fn write<T: Send + 'static>(
        &self,
        record: Batch,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let slot: Arc<Mutex<Option<T>>> = Arc::default();
        let result = slot.clone();
        let job = Box::new(move |connection: &Connection| {
            let value = job(connection)?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            Ok(true)
        });
        let work = if record.entries.is_empty() {
            Work::Run(job)
        } else {
            Work::AppendAnd(record, job)
        };
        let backend = |e: JournalError| MemoryError::Backend(e.to_string());
        self.inner
            .queue
            .push(work)
            .map_err(backend)?
            .durable()
            .await
            .map_err(backend)?;
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| MemoryError::Backend("the write left no answer".to_owned()))
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let read = self.inner.readers.run(move |reader| reader.with(job)).await;
        read.map_err(MemoryError::Query)
    }

    /// What a question finds among the entries of these conversations. As [`Memory::ask`].
    ///
    /// # Errors
    /// The store can't be served or read.
    pub async fn ask(&self, store: &Store, place: &Scope, ask: Ask) -> Result<Found, MemoryError> {
        check(store)?;
        let Ask {
            whose,
            query,
            vector,
            limit,
        } = ask;
        let (store, scope, vectors) = (store.clone(), scope_of(store, place), self.vectors.clone());
        self.read(move |connection| {
            let Some(part) = find_part(connection, &store.name, &scope)? else {
                return Ok(Found::default());
            };
            let search = Search {
                store: &store,
                part,
                whose: &whose,
                limit,
                vectors: &vectors,
            };
            search.run(connection, &query, vector.as_ref())
        })
        .await
    }

    /// Keeps all entries or none, durably, in one commit with `record`; then retention, and compaction where it is due.
    ///
    /// # Errors
    /// An entry does not fit the store, or the state can't be written: nothing is kept, and nothing recorded.
    pub async fn keep(
        &self,
        store: &Store,
        place: &Scope,
        entries: Vec<New>,
        at: Timestamp,
        record: Batch,
    ) -> Result<Vec<String>, MemoryError> {
        check(store)?;
        let rows = rows_of(store, entries).map_err(|(index, reason)| MemoryError::Entry { index, reason })?;
        self.check_size(store, rows.iter().map(rows::NewRow::bytes).sum())
            .await?;
        let (store, scope) = (store.clone(), scope_of(store, place));
        self.write(record, move |connection| {
            let part = part(connection, &store.name, &scope)?.id;
            for row in &rows {
                if is_kept(connection, part, &row.id)? {
                    continue;
                }
                if let (true, Some(key)) = (replaces(store.kind), &row.key) {
                    retain::delete_key(connection, part, key)?;
                }
                rows::insert(connection, part, row, at)?;
            }
            retain::apply(connection, part, &store, at)?;
            Ok(rows.into_iter().map(|row| row.id).collect())
        })
        .await
    }

    /// `max_size_mb` holds for all scopes of the store together.
    async fn check_size(&self, store: &Store, more: u64) -> Result<(), MemoryError> {
        let Some(limit_mb) = store.max_size_mb else {
            return Ok(());
        };
        let name = store.name.clone();
        let there = self
            .read(move |connection| rows::bytes(connection, &name))
            .await?;
        if there.saturating_add(more) <= limit_mb.saturating_mul(1024 * 1024) {
            return Ok(());
        }
        Err(MemoryError::Entry {
            index: 0,
            reason: format!(
                "store `{}` holds {there} bytes and may hold {limit_mb} MiB (`max_size_mb`); forget or compact something",
                store.name
            ),
        })
    }

    /// What compaction would set aside now, the oldest first.
    ///
    /// # Errors
    /// The state can't be read.
    pub async fn old(&self, store: &Store, place: &Scope) -> Result<Vec<Hit>, MemoryError> {
        check(store)?;
        let (store, scope) = (store.clone(), scope_of(store, place));
        self.read(
            move |connection| match find_part(connection, &store.name, &scope)? {
                Some(part) => retain::hits(connection, &retain::old(connection, part.id, &store)?),
                None => Ok(Vec::new()),
            },
        )
        .await
    }

    /// Retention, then compaction with this summary if it is of what would be set aside; the counts before and after.
    ///
    /// # Errors
    /// The state can't be written.
    pub async fn compact_by(
        &self,
        store: &Store,
        place: &Scope,
        at: Timestamp,
        summary: Option<Summary>,
    ) -> Result<(u64, u64), MemoryError> {
        check(store)?;
        let (store, scope) = (store.clone(), scope_of(store, place));
        self.write(Batch::default(), move |connection| {
            let Some(Part { id, .. }) = find_part(connection, &store.name, &scope)? else {
                return Ok((0, 0));
            };
            let before = rows::count(connection, id)?;
            retain::apply(connection, id, &store, at)?;
            retain::compact(connection, id, &store, at, summary.as_ref())?;
            Ok((before, rows::count(connection, id)?))
        })
        .await
    }

    /// Retention in every scope of the store; how many entries went.
    ///
    /// # Errors
    /// The state can't be written.
    pub async fn retain(&self, store: &Store, at: Timestamp) -> Result<u64, MemoryError> {
        check(store)?;
        let store = store.clone();
        self.write(Batch::default(), move |connection| {
            let mut gone = 0;
            for part in rows::parts_of(connection, &store.name)? {
                let before = rows::count(connection, part)?;
                retain::apply(connection, part, &store, at)?;
                gone += before.saturating_sub(rows::count(connection, part)?);
            }
            Ok(gone)
        })
        .await
    }

    /// Removes the entry with this id, its words and vectors, overwriting them; what it was, if it was there.
    ///
    /// # Errors
    /// The state can't be written: nothing is removed.
    pub async fn remove(
        &self,
        store: &Store,
        place: &Scope,
        whose: Whose,
        id: String,
        record: Batch,
    ) -> Result<Option<Hit>, MemoryError> {
        check(store)?;
        let (name, scope) = (store.name.clone(), scope_of(store, place));
        self.write(record, move |connection| {
            let Some(part) = find_part(connection, &name, &scope)? else {
                return Ok(None);
            };
            let sql = format!(
                "SELECT {}, n FROM memory WHERE part = ?1 AND id = ?2",
                rows::COLUMNS
            );
            let mut select = connection.prepare_cached(&sql)?;
            let found = select
                .query_row(params![part.id, id], |row| Ok((rows::hit(row)?, row.get(6)?)))
                .optional()?;
            let Some((hit, n)) = found.filter(|(hit, _)| whose.holds(&hit.mark.whose)) else {
                return Ok(None);
            };
            crate::erase::overwriting(connection, || rows::delete(connection, part.id, &[n]))?;
            Ok(Some(hit))
        })
        .await
    }

    /// Entries, of every scope of the store, that have no vector of this model; the newest first.
    ///
    /// # Errors
    /// The state can't be read.
    pub async fn lacking(
        &self,
        store: &Store,
        model: &str,
        limit: usize,
    ) -> Result<Vec<Lacking>, MemoryError> {
        let (name, model, limit) = (store.name.clone(), model.to_owned(), integer(limit));
        self.read(move |connection| {
            let mut found = Vec::new();
            for part in rows::parts_of(connection, &name)? {
                let mut select = connection.prepare_cached(
                    "SELECT n, key, content FROM memory WHERE part = ?1 AND NOT EXISTS \
                     (SELECT 1 FROM memory_vectors v WHERE v.n = memory.n AND v.model = ?2) ORDER BY n DESC LIMIT ?3",
                )?;
                let rows = select.query_map(params![part, model, limit], |row| {
                    let (n, key, content): (i64, Option<String>, String) =
                        (row.get(0)?, row.get(1)?, row.get(2)?);
                    let content = serde_json::from_str(&content).unwrap_or(Value::String(content));
                    Ok(Lacking {
                        handle: n.to_string(),
                        text: words::text_of(&content, key.as_deref()),
                    })
                })?;
                found.extend(rows.collect::<Result<Vec<_>, _>>()?);
            }
            Ok(found)
        })
        .await
    }

    /// Keeps vectors for entries that are still there.
    ///
    /// # Errors
    /// The state can't be written.
    pub async fn add_vectors(
        &self,
        model: &str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> Result<(), MemoryError> {
        let model = model.to_owned();
        self.write(Batch::default(), move |connection| {
            let mut select = connection.prepare_cached(
                "SELECT part, whose FROM memory WHERE n = ?1 AND NOT EXISTS \
                 (SELECT 1 FROM memory_vectors v WHERE v.n = memory.n AND v.model = ?2)",
            )?;
            for (handle, vector) in &vectors {
                let Ok(n) = handle.parse::<i64>() else { continue };
                let there = select
                    .query_row(params![n, model], |row| Ok((row.get(0)?, row.get(1)?)))
                    .optional()?;
                if let Some((part, whose)) = there {
                    rows::add_vector(connection, n, part, whose, &model, &packed::pack(vector))?;
                }
            }
            Ok(())
        })
        .await
    }
}

fn integer(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Memory for SqliteMemory {
    fn check(&self, store: &Store) -> Result<(), MemoryError> {
        check(store)
    }

    fn joins(&self, _store: &Store) -> bool {
        true
    }

    fn ask<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: Ask,
    ) -> Later<'a, Result<Found, MemoryError>> {
        Box::pin(Self::ask(self, store, place, ask))
    }

    fn keep<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<New>,
        at: Timestamp,
        record: Batch,
    ) -> Later<'a, Result<Vec<String>, MemoryError>> {
        Box::pin(Self::keep(self, store, place, entries, at, record))
    }

    fn old<'a>(&'a self, store: &'a Store, place: &'a Scope) -> Later<'a, Result<Vec<Hit>, MemoryError>> {
        Box::pin(Self::old(self, store, place))
    }

    fn compact<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<Summary>,
    ) -> Later<'a, Result<(u64, u64), MemoryError>> {
        Box::pin(self.compact_by(store, place, at, summary))
    }

    fn retain<'a>(&'a self, store: &'a Store, at: Timestamp) -> Later<'a, Result<u64, MemoryError>> {
        Box::pin(Self::retain(self, store, at))
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: Whose,
        id: String,
    ) -> Later<'a, Result<Option<Hit>, MemoryError>> {
        Box::pin(Self::remove(self, store, place, whose, id, Batch::default()))
    }
}
