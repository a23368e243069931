//! Which back end serves which store.

use std::sync::Arc;

use clawk_core::ports::{Batch, BoxFuture, Memory, MemoryError, MemorySearch, Scope, UnembeddedEntry};
use clawk_core::time::Timestamp;
use clawk_manifest::model::{Store, StoreBackend, StoreType};
use clawk_proto::Digest;
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntrySearchResult};

use crate::custom::is_custom;
use crate::files::FolderMemory;
use crate::qdrant::is_on_qdrant;

/// The stores of an agent: in the state's database, in folders, on a PostgreSQL or a Qdrant server, or with an MCP server.
#[derive(Debug)]
pub struct MemoryStores {
    database: Arc<dyn Memory>,
    files: FolderMemory,
    postgres: Result<Arc<dyn Memory>, String>,
    qdrant: Result<Arc<dyn Memory>, String>,
    custom: Result<Arc<dyn Memory>, String>,
    /// Stores outside of the state are read and not changed.
    untouched: bool,
}

impl MemoryStores {
    /// `database` serves what no other back end does.
    #[must_use]
    pub fn new(database: Arc<dyn Memory>, files: FolderMemory) -> Self {
        Self {
            database,
            files,
            postgres: Err("no PostgreSQL server is configured".to_owned()),
            qdrant: Err("no Qdrant server is configured".to_owned()),
            custom: Err("no MCP server is configured".to_owned()),
            untouched: false,
        }
    }

    /// What serves `backend: postgresql` and `pgvector`, or why nothing does.
    #[must_use]
    pub fn with_postgres(mut self, postgres: Result<Arc<dyn Memory>, String>) -> Self {
        self.postgres = postgres;
        self
    }

    /// What serves `backend: qdrant`, or why nothing does.
    #[must_use]
    pub fn with_qdrant(mut self, qdrant: Result<Arc<dyn Memory>, String>) -> Self {
        self.qdrant = qdrant;
        self
    }

    /// What serves `backend: custom`, or why nothing does.
    #[must_use]
    pub fn with_custom(mut self, custom: Result<Arc<dyn Memory>, String>) -> Self {
        self.custom = custom;
        self
    }

    /// For a dry run, which works on a copy of the state: stores on servers and in folders outside of the state are read, and never
    /// changed.
    #[must_use]
    pub const fn untouched_outside(mut self, untouched: bool) -> Self {
        self.untouched = untouched;
        self
    }

    /// The store lies outside of the state, and is not to be changed.
    fn stays(&self, store: &Store) -> bool {
        self.untouched && (self.server(store).is_some() || (is_in_files(store) && store.path.is_some()))
    }

    /// The server that the store is on, or why there is none; `None`: it is on no server.
    fn server(&self, store: &Store) -> Option<&Result<Arc<dyn Memory>, String>> {
        if is_on_postgres(store) {
            return Some(&self.postgres);
        }
        if is_custom(store) {
            return Some(&self.custom);
        }
        is_on_qdrant(store).then_some(&self.qdrant)
    }

    fn of(&self, store: &Store) -> &dyn Memory {
        match self.server(store) {
            Some(Ok(server)) => &**server,
            _ if is_in_files(store) => &self.files,
            // A store of another back end is refused there as well.
            Some(Err(_)) | None => &*self.database,
        }
    }
}

fn done<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, Result<T, MemoryError>> {
    Box::pin(std::future::ready(Ok(value)))
}

/// `backend: postgresql`, or `pgvector`, which must have the extension.
#[must_use]
pub fn is_on_postgres(store: &Store) -> bool {
    matches!(
        store.backend,
        Some(StoreBackend::Postgresql | StoreBackend::Pgvector)
    )
}

/// `backend: filesystem`, or a workspace with a `path` and no back end.
fn is_in_files(store: &Store) -> bool {
    match store.backend {
        Some(StoreBackend::Filesystem) => true,
        None => store.kind == StoreType::Workspace && store.path.is_some(),
        Some(_) => false,
    }
}

impl Memory for MemoryStores {
    fn check(&self, store: &Store) -> Result<(), MemoryError> {
        if store.path.is_some() && !is_in_files(store) {
            return Err(MemoryError::Backend(
                "`path` is for stores in folders; write `backend: filesystem`, or leave `path` out"
                    .to_owned(),
            ));
        }
        if let Some(Err(why)) = self.server(store) {
            return Err(MemoryError::Backend(format!("store `{}`: {why}", store.name)));
        }
        self.of(store).check(store)
    }

    fn joins(&self, store: &Store) -> bool {
        self.of(store).joins(store)
    }

    fn ask<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        self.of(store).ask(store, place, ask)
    }

    fn keep<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        if self.stays(store) {
            return done(entries.into_iter().map(|entry| entry.id).collect());
        }
        self.of(store).keep(store, place, entries, at, record)
    }

    fn old<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        self.of(store).old(store, place)
    }

    fn compact<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        if self.stays(store) {
            return Box::pin(async move {
                let count = self.of(store).count(store, place).await?;
                Ok((count, count))
            });
        }
        self.of(store).compact(store, place, at, summary)
    }

    fn retain<'a>(&'a self, store: &'a Store, at: Timestamp) -> BoxFuture<'a, Result<u64, MemoryError>> {
        if self.stays(store) {
            return done(0);
        }
        self.of(store).retain(store, at)
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        if self.stays(store) {
            return done(None);
        }
        self.of(store).remove(store, place, whose, id)
    }

    fn count<'a>(&'a self, store: &'a Store, place: &'a Scope) -> BoxFuture<'a, Result<u64, MemoryError>> {
        self.of(store).count(store, place)
    }

    fn lacking<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        if self.stays(store) {
            return done(Vec::new()); // no vector would be kept
        }
        self.of(store).lacking(store, model, limit)
    }

    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        if self.stays(store) {
            return done(());
        }
        self.of(store).add_vectors(store, model, vectors)
    }

    fn paid_for<'a>(
        &'a self,
        model: &'a str,
        digests: Vec<Digest>,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, MemoryError>> {
        self.database.paid_for(model, digests)
    }

    fn pay_once<'a>(
        &'a self,
        model: &'a str,
        vectors: Vec<(Digest, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        self.database.pay_once(model, vectors)
    }
}
