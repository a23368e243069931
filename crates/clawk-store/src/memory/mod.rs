//! Memory stores on SQLite (CKP §5.6, §9.3.4; R21): conversation, key-value, and semantic by full text.

mod look;
mod retain;
mod search;
mod words;

use std::sync::{Arc, Mutex, PoisonError};

use clawk_kernel::ports::{JournalError, Later, Memory, MemoryError, Place, StoreQuery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{SearchStrategy, Store, StoreBackend, StoreScope, StoreType};
use clawk_proto::method::{MemoryEntry, NewEntry};
use rusqlite::{Connection, OptionalExtension as _, params};

pub use look::{FORGOTTEN, MAX_FORGOTTEN, MemoryPart, Remembered};

use crate::dir::Inner;
use crate::queue::Work;

/// The largest content of one entry, bytes of JSON.
const MAX_ENTRY_BYTES: usize = 1024 * 1024;

/// Memory stores of a state directory.
#[derive(Debug)]
pub struct SqliteMemory {
    inner: Arc<Inner>,
}

impl SqliteMemory {
    pub(crate) const fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Runs a write on the writer's thread; answers when it is durable.
    async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let slot: Arc<Mutex<Option<T>>> = Arc::default();
        let result = slot.clone();
        let work = Work::Run(Box::new(move |connection| {
            let value = job(connection)?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            Ok(true)
        }));
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
}

impl Memory for SqliteMemory {
    fn check(&self, store: &Store) -> Result<(), MemoryError> {
        check(store)
    }

    fn query<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Place,
        query: StoreQuery,
        limit: usize,
    ) -> Later<'a, Result<Vec<MemoryEntry>, MemoryError>> {
        Box::pin(async move {
            check(store)?;
            let (name, scope, kind) = (store.name.clone(), scope_of(store, place), store.kind);
            let read = move |reader: &crate::Reader| {
                reader.with(|connection| {
                    let Some(part) = find_part(connection, &name, &scope)? else {
                        return Ok(Vec::new());
                    };
                    search::run(connection, part, kind, &query, limit)
                })
            };
            self.inner.readers.run(read).await.map_err(MemoryError::Query)
        })
    }

    fn store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Place,
        entries: Vec<NewEntry>,
        ids: Vec<String>,
        at: Timestamp,
    ) -> Later<'a, Result<Vec<String>, MemoryError>> {
        Box::pin(async move {
            check(store)?;
            let rows = rows_of(store, entries, ids)?;
            let (name, scope, retention) = (
                store.name.clone(),
                scope_of(store, place),
                store.retention.clone(),
            );
            let replaces = store.kind == StoreType::KeyValue;
            self.write(move |connection| {
                let part = part(connection, &name, &scope)?;
                for row in &rows {
                    if is_kept(connection, part, &row.id)? {
                        continue;
                    }
                    if let (true, Some(key)) = (replaces, &row.key) {
                        retain::delete_key(connection, part.id, key)?;
                    }
                    insert(connection, part, row, at)?;
                }
                retain::apply(connection, part.id, &retention, at)?;
                Ok(rows.into_iter().map(|row| row.id).collect())
            })
            .await
        })
    }

    fn compact<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Place,
        at: Timestamp,
    ) -> Later<'a, Result<(u64, u64), MemoryError>> {
        Box::pin(async move {
            check(store)?;
            let (name, scope) = (store.name.clone(), scope_of(store, place));
            let (retention, compaction) = (store.retention.clone(), store.compaction.clone());
            self.write(move |connection| {
                let Some(part) = find_part(connection, &name, &scope)? else {
                    return Ok((0, 0));
                };
                let before = retain::count(connection, part.id)?;
                retain::apply(connection, part.id, &retention, at)?;
                if let Some(compaction) = compaction.filter(|compaction| compaction.enabled) {
                    retain::compact(connection, part, compaction.strategy, retention.max_entries, at)?;
                }
                Ok((before, retain::count(connection, part.id)?))
            })
            .await
        })
    }
}

/// Refuses what this version can't do, at start rather than in the middle of the work.
fn check(store: &Store) -> Result<(), MemoryError> {
    let refuse = |what: String| Err(MemoryError::Backend(format!("store `{}`: {what}", store.name)));
    match store.kind {
        StoreType::Conversation | StoreType::Semantic | StoreType::KeyValue => {}
        StoreType::Workspace | StoreType::Checkpoint => {
            let kind = store.kind.as_str();
            return refuse(format!(
                "type `{kind}` comes with a later version; use `conversation`, `semantic` or `key-value`"
            ));
        }
    }
    match store.backend {
        None | Some(StoreBackend::Sqlite | StoreBackend::SqliteVec) => {}
        Some(
            other @ (StoreBackend::Postgresql
            | StoreBackend::Filesystem
            | StoreBackend::Pgvector
            | StoreBackend::Qdrant
            | StoreBackend::Custom),
        ) => {
            return refuse(format!(
                "backend `{}` comes with a later version; use `sqlite`",
                other.as_str()
            ));
        }
    }
    if store.encryption {
        return refuse(
            "`encryption: true` comes with a later version; nothing is written unencrypted instead"
                .to_owned(),
        );
    }
    if store.embedding.is_some() && store.search.strategy == SearchStrategy::VectorOnly {
        return refuse(
            "`vector-only` search comes with a later version; use `hybrid` or `fts-only`".to_owned(),
        );
    }
    Ok(())
}

/// Whose part of the store; absent means per identity.
fn scope_of(store: &Store, place: &Place) -> String {
    match store.scope.unwrap_or(StoreScope::PerIdentity) {
        StoreScope::Global => String::new(),
        StoreScope::PerIdentity => format!("identity/{}", place.identity),
        StoreScope::PerChannel => format!("channel/{}/{}", place.identity, place.channel),
    }
}

/// One store's entries for one scope.
#[derive(Debug, Clone, Copy)]
struct Part {
    id: i64,
    entries: i64,
}

fn find_part(connection: &Connection, store: &str, scope: &str) -> rusqlite::Result<Option<Part>> {
    connection
        .prepare_cached("SELECT id, entries FROM memory_parts WHERE store = ?1 AND scope = ?2")?
        .query_row([store, scope], |row| {
            Ok(Part {
                id: row.get(0)?,
                entries: row.get(1)?,
            })
        })
        .optional()
}

fn part(connection: &Connection, store: &str, scope: &str) -> rusqlite::Result<Part> {
    if let Some(part) = find_part(connection, store, scope)? {
        return Ok(part);
    }
    connection.execute(
        "INSERT INTO memory_parts (store, scope, entries) VALUES (?1, ?2, 0)",
        [store, scope],
    )?;
    Ok(Part {
        id: connection.last_insert_rowid(),
        entries: 0,
    })
}

/// An entry ready to be written.
#[derive(Debug)]
struct NewRow {
    id: String,
    key: Option<String>,
    content: String,
    metadata: Option<String>,
    words: String,
}

fn rows_of(store: &Store, entries: Vec<NewEntry>, ids: Vec<String>) -> Result<Vec<NewRow>, MemoryError> {
    if ids.len() != entries.len() {
        return Err(MemoryError::Backend(format!(
            "{} ids for {} entries",
            ids.len(),
            entries.len()
        )));
    }
    let row = |(index, (entry, id)): (usize, (NewEntry, String))| {
        let refuse = |reason: String| MemoryError::Entry { index, reason };
        if store.kind == StoreType::KeyValue && entry.key.is_none() {
            return Err(refuse(format!(
                "store `{}` is key-value: the entry needs a `key`",
                store.name
            )));
        }
        let metadata = entry.metadata.as_ref().map(ToString::to_string);
        let content = entry.content.to_string();
        let bytes = content.len() + metadata.as_ref().map_or(0, String::len);
        if bytes > MAX_ENTRY_BYTES {
            return Err(refuse(format!(
                "{bytes} bytes; at most {MAX_ENTRY_BYTES}, split it"
            )));
        }
        let words = words::text_of(&entry.content, entry.key.as_deref());
        Ok(NewRow {
            id,
            key: entry.key,
            content,
            metadata,
            words,
        })
    };
    entries.into_iter().zip(ids).enumerate().map(row).collect()
}

/// An entry of this id is there.
fn is_kept(connection: &Connection, part: Part, id: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM memory WHERE part = ?1 AND id = ?2")?
        .exists(params![part.id, id])
}

fn insert(connection: &Connection, part: Part, row: &NewRow, at: Timestamp) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO memory (part, id, key, content, metadata, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![part.id, row.id, row.key, row.content, row.metadata, at.0])?;
    let n = connection.last_insert_rowid();
    connection
        .prepare_cached("INSERT INTO memory_words (rowid, part, text) VALUES (?1, ?2, ?3)")?
        .execute(params![n, words::part_token(part.id), row.words])?;
    connection
        .prepare_cached("UPDATE memory_parts SET entries = entries + 1 WHERE id = ?1")?
        .execute([part.id])?;
    Ok(())
}
