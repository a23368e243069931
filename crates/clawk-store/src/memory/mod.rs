//! Memory stores on SQLite (CKP §5.6, §9.3.4; R21): entries, words and vectors, for all types of stores.

mod indexed;
mod kinds;
mod look;
mod retain;
mod rows;
mod search;
mod vectors;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use clawk_kernel::ports::{
    Batch, BoxFuture, JournalError, Memory, MemoryError, MemorySearch, Scope, UnembeddedEntry,
};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_proto::Digest;
use clawk_recall::compact::{self, CompactionSummary, has_unique_keys};
use clawk_recall::entry::{self, ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult};
use clawk_recall::{packed, words};
use rusqlite::{Connection, OptionalExtension as _, params};

pub use look::{
    FORGOTTEN, MAX_FORGOTTEN, MemoryPart, RESTORED, RememberedEntry, RestoreSelection,
    forgotten_journal_entries, restored_journal_entries,
};
pub(crate) use rows::{bundle_of, bundle_of_plain, drop_dead_words};

use crate::dir::StateDirInner;
use crate::queue::SqliteWriterWork;
use indexed::SqliteWordIndex;
use kinds::check_store;
use rows::{SqliteStorePart, ensure_part, find_part, is_kept, parse_content, rows_of};
use search::SqlitePartSearch;
use vectors::Vectors;

/// The memory stores of a state directory.
#[derive(Debug)]
pub struct SqliteMemory {
    inner: Arc<StateDirInner>,
    vectors: Arc<Vectors>,
    words: Arc<SqliteWordIndex>,
    /// By part: the number of entries and the newest row at the last search for repeated entries.
    merged: Arc<Mutex<HashMap<i64, (u64, i64)>>>,
}

impl SqliteMemory {
    pub(crate) fn new(inner: Arc<StateDirInner>) -> Self {
        Self {
            inner,
            vectors: Arc::default(),
            words: Arc::default(),
            merged: Arc::default(),
        }
    }

    fn check_served(&self, store: &Store) -> Result<(), MemoryError> {
        check_store(store, self.inner.blobs.state_sealer())
    }

    /// Runs a write on the writer's thread. Returns when it is durable.
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
            SqliteWriterWork::Run(job)
        } else {
            SqliteWriterWork::AppendAnd(record, job)
        };
        let backend = |e: JournalError| MemoryError::Backend(e.to_string());
        self.inner
            .queue
            .push(work)
            .map_err(backend)?
            .wait_until_durable()
            .await
            .map_err(backend)?;
        let value = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.ok_or_else(|| MemoryError::Backend("the write left no answer".to_owned()))
    }

    /// Sets entries aside that a later entry of the part repeats.
    async fn merge_duplicates(&self, part: i64, sealed: bool, at: Timestamp) -> Result<(), MemoryError> {
        let known = self.merged.clone();
        let again = self
            .read(move |connection| {
                let now = retain::part_extent(connection, part)?;
                let lock = || known.lock().unwrap_or_else(PoisonError::into_inner);
                if lock().insert(part, now) == Some(now) {
                    return Ok(Vec::new());
                }
                retain::said_again(connection, part, sealed)
            })
            .await?;
        if again.is_empty() {
            return Ok(());
        }
        self.write(Batch::default(), move |connection| {
            rows::set_aside(connection, part, &again, "", at)
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let read = self.inner.readers.run(move |reader| reader.with(job)).await;
        read.map_err(MemoryError::Query)
    }

    /// Checks `max_size_mb`, which limits all scopes of the store together.
    async fn check_size(&self, store: &Store, more: u64) -> Result<(), MemoryError> {
        if store.max_size_mb.is_none() {
            return Ok(());
        }
        let name = store.name.clone();
        let there = self
            .read(move |connection| rows::store_bytes(connection, &name))
            .await?;
        entry::check_free_size(store, there, more).map_err(|reason| MemoryError::Entry { index: 0, reason })
    }
}

fn to_i64(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Memory for SqliteMemory {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        self.check_served(store)
    }

    fn joins_journal(&self, _store: &Store) -> bool {
        true
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        let (store, scope) = (store.clone(), place.part_name(store));
        let (vectors, words) = (self.vectors.clone(), self.words.clone());
        Box::pin(async move {
            self.check_served(&store)?;
            self.read(move |connection| {
                // A read transaction: hundreds of rows come from one snapshot, and the file is locked once.
                let moment = connection.unchecked_transaction()?;
                let Some(part) = find_part(&moment, &store.name, &scope)? else {
                    return Ok(EntrySearchResult::default());
                };
                let search = SqlitePartSearch {
                    store: &store,
                    part,
                    whose: &ask.whose,
                    limit: ask.limit,
                    vectors: &vectors,
                    words: &words,
                };
                search.run(&moment, &ask.query, ask.vector.as_ref())
            })
            .await
        })
    }

    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        Box::pin(async move {
            self.check_served(store)?;
            let rows =
                rows_of(store, entries).map_err(|(index, reason)| MemoryError::Entry { index, reason })?;
            self.check_size(store, rows.iter().map(rows::NewRow::bytes).sum())
                .await?;
            let (store, scope) = (store.clone(), place.part_name(store));
            self.write(record, move |connection| {
                let part = ensure_part(connection, &store.name, &scope)?;
                for row in &rows {
                    if is_kept(connection, part, &row.id)? {
                        continue;
                    }
                    if let (true, Some(key)) = (has_unique_keys(store.kind), &row.key) {
                        retain::delete_key(connection, part, key)?;
                    }
                    rows::insert(connection, part, row, at)?;
                }
                retain::apply_retention(connection, part, &store, at)?;
                Ok(rows.into_iter().map(|row| row.id).collect())
            })
            .await
        })
    }

    fn compaction_candidates<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        let (store, scope) = (store.clone(), place.part_name(store));
        Box::pin(async move {
            self.check_served(&store)?;
            self.read(
                move |connection| match find_part(connection, &store.name, &scope)? {
                    Some(part) => {
                        let rows = retain::rows_to_compact(connection, part.id, &store)?;
                        retain::load_hits(connection, &rows, part.sealed)
                    }
                    None => Ok(Vec::new()),
                },
            )
            .await
        })
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        let (store, scope) = (store.clone(), place.part_name(store));
        Box::pin(async move {
            self.check_served(&store)?;
            self.write(Batch::default(), move |connection| {
                let Some(SqliteStorePart { id, .. }) = find_part(connection, &store.name, &scope)? else {
                    return Ok((0, 0));
                };
                let before = rows::count_entries(connection, id)?;
                retain::apply_retention(connection, id, &store, at)?;
                retain::compact_entries(connection, id, &store, at, summary.as_ref())?;
                Ok((before, rows::count_entries(connection, id)?))
            })
            .await
        })
    }

    fn apply_retention<'a>(
        &'a self,
        store: &'a Store,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        let store = store.clone();
        Box::pin(async move {
            self.check_served(&store)?;
            let name = store.name.clone();
            let parts = self
                .read(move |connection| rows::parts_of(connection, &name))
                .await?;
            let mut gone = 0;
            // A commit covers only some entries, so that other writers need not wait for all of them.
            for part in parts {
                loop {
                    let store = store.clone();
                    let went = self
                        .write(Batch::default(), move |connection| {
                            crate::erase::with_secure_delete(connection, || {
                                retain::remove_batch(connection, part, &store, at)
                            })
                        })
                        .await?;
                    gone += went;
                    if went < retain::AT_ONCE {
                        break;
                    }
                }
                if compact::merges_duplicates(&store) {
                    self.merge_duplicates(part, store.encryption, at).await?;
                }
            }
            Ok(gone)
        })
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        let (name, scope) = (store.name.clone(), place.part_name(store));
        Box::pin(async move {
            self.check_served(store)?;
            self.write(Batch::default(), move |connection| {
                let Some(part) = find_part(connection, &name, &scope)? else {
                    return Ok(None);
                };
                let sql = format!(
                    "SELECT {}, n FROM memory WHERE part = ?1 AND id = ?2",
                    rows::hit_columns(part.sealed)
                );
                let mut select = connection.prepare_cached(&sql)?;
                let found = select
                    .query_row(params![part.id, id], |row| {
                        Ok((rows::hit_from_row(row)?, row.get(6)?))
                    })
                    .optional()?;
                let Some((hit, n)) = found.filter(|(hit, _)| whose.includes_owner(&hit.mark.whose)) else {
                    return Ok(None);
                };
                crate::erase::with_secure_delete(connection, || {
                    look::erase_entry(connection, part.id, n, &id)
                })?;
                Ok(Some(hit))
            })
            .await
        })
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        let (name, scope) = (store.name.clone(), place.part_name(store));
        Box::pin(
            self.read(move |connection| match find_part(connection, &name, &scope)? {
                Some(part) => rows::count_entries(connection, part.id),
                None => Ok(0),
            }),
        )
    }

    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        let (name, sealed, model) = (store.name.clone(), store.encryption, model.to_owned());
        Box::pin(self.read(move |connection| {
            let mut found = Vec::new();
            let told_columns = rows::told_columns(sealed);
            for part in rows::parts_of(connection, &name)? {
                let mut select = connection.prepare_cached(
                    &format!("SELECT n, {told_columns} FROM memory WHERE part = ?1 AND NOT EXISTS \
                     (SELECT 1 FROM memory_vectors v WHERE v.n = memory.n AND v.model = ?2) ORDER BY n DESC LIMIT ?3"),
                )?;
                let left = to_i64(limit.saturating_sub(found.len()));
                let rows = select.query_map(params![part, model, left], |row| {
                    let n: i64 = row.get(0)?;
                    let (content, key) = parse_content(row.get(1)?, row.get(2)?)?;
                    Ok(UnembeddedEntry {
                        handle: n.to_string(),
                        text: words::text_of(&content, key.as_deref()),
                    })
                })?;
                found.extend(rows.collect::<Result<Vec<_>, _>>()?);
            }
            Ok(found)
        }))
    }

    fn add_vectors<'a>(
        &'a self,
        _store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        let model = model.to_owned();
        Box::pin(self.write(Batch::default(), move |connection| {
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
                    rows::add_vector(connection, n, part, whose, &model, &packed::pack_vector(vector))?;
                }
            }
            Ok(())
        }))
    }

    fn paid_for<'a>(
        &'a self,
        model: &'a str,
        digests: Vec<Digest>,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, MemoryError>> {
        let model = model.to_owned();
        Box::pin(self.read(move |connection| {
            let mut select = connection
                .prepare_cached("SELECT clawk_kept(vector, 'embedding', digest) FROM embeddings WHERE model = ?1 AND digest = ?2")?;
            let vector = |digest: &Digest| {
                let found = select.query_row(params![model, digest.0], |row| row.get::<_, Vec<u8>>(0));
                Ok(found.optional()?.map(|bytes| decode_floats(&bytes)))
            };
            digests.iter().map(vector).collect()
        }))
    }

    fn pay_once<'a>(
        &'a self,
        model: &'a str,
        vectors: Vec<(Digest, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        let model = model.to_owned();
        Box::pin(self.write(Batch::default(), move |connection| {
            let mut insert = connection.prepare_cached(
                "INSERT OR REPLACE INTO embeddings (model, digest, vector) VALUES (?1, ?2, clawk_keep(?3, 'embedding', ?2))",
            )?;
            for (digest, vector) in &vectors {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                insert.execute(params![model, digest.0, bytes])?;
            }
            Ok(())
        }))
    }
}

/// Decodes little-endian 32-bit floats.
fn decode_floats(bytes: &[u8]) -> Vec<f32> {
    let values = bytes.chunks_exact(4).filter_map(|value| value.try_into().ok());
    values.map(f32::from_le_bytes).collect()
}

/// Indexes the words of the entry `n` in `part`, which belongs to the conversation `whose`.
pub(crate) fn index_words(
    connection: &rusqlite::Connection,
    (n, part, whose): (i64, i64, i64),
    text: &str,
) -> rusqlite::Result<()> {
    rows::index(connection, n, part, whose, text)
}
