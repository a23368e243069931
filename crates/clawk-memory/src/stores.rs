//! Chooses the back end for each store.

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

/// The memory stores of an agent: in the state's database, in folders, on a PostgreSQL or Qdrant server, or on an MCP server.
#[derive(Debug)]
pub struct MemoryStores {
    database: Arc<dyn Memory>,
    files: FolderMemory,
    postgres: Result<Arc<dyn Memory>, String>,
    qdrant: Result<Arc<dyn Memory>, String>,
    custom: Result<Arc<dyn Memory>, String>,
    /// Whether stores outside the state are read-only.
    untouched: bool,
}

impl MemoryStores {
    /// Creates the set. `database` serves all stores that no other back end serves.
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

    /// Sets the back end for `backend: postgresql` and `pgvector`, or the reason why there is none.
    #[must_use]
    pub fn with_postgres(mut self, postgres: Result<Arc<dyn Memory>, String>) -> Self {
        self.postgres = postgres;
        self
    }

    /// Sets the back end for `backend: qdrant`, or the reason why there is none.
    #[must_use]
    pub fn with_qdrant(mut self, qdrant: Result<Arc<dyn Memory>, String>) -> Self {
        self.qdrant = qdrant;
        self
    }

    /// Sets the back end for `backend: custom`, or the reason why there is none.
    #[must_use]
    pub fn with_custom(mut self, custom: Result<Arc<dyn Memory>, String>) -> Self {
        self.custom = custom;
        self
    }

    /// For a dry run, which works on a copy of the state: makes stores on servers and in folders outside the state read-only.
    #[must_use]
    pub const fn untouched_outside(mut self, untouched: bool) -> Self {
        self.untouched = untouched;
        self
    }

    /// Whether this store is outside the state and read-only.
    fn is_read_only(&self, store: &Store) -> bool {
        self.untouched && (self.server(store).is_some() || (is_in_files(store) && store.path.is_some()))
    }

    /// The server of the store, or the reason why there is none. `None`: the store is not on a server.
    fn server(&self, store: &Store) -> Option<&Result<Arc<dyn Memory>, String>> {
        if is_on_postgres(store) {
            return Some(&self.postgres);
        }
        if is_custom(store) {
            return Some(&self.custom);
        }
        is_on_qdrant(store).then_some(&self.qdrant)
    }

    fn backend_for(&self, store: &Store) -> &dyn Memory {
        match self.server(store) {
            Some(Ok(server)) => &**server,
            _ if is_in_files(store) => &self.files,
            // The database also refuses stores of an unknown back end.
            Some(Err(_)) | None => &*self.database,
        }
    }
}

fn ready_result<'a, T: Send + 'a>(value: T) -> BoxFuture<'a, Result<T, MemoryError>> {
    Box::pin(std::future::ready(Ok(value)))
}

/// Whether the store has `backend: postgresql`, or `pgvector`, which needs the extension.
#[must_use]
pub fn is_on_postgres(store: &Store) -> bool {
    matches!(
        store.backend,
        Some(StoreBackend::Postgresql | StoreBackend::Pgvector)
    )
}

/// Whether the store has `backend: filesystem`, or is a workspace with a `path` and no back end.
fn is_in_files(store: &Store) -> bool {
    match store.backend {
        Some(StoreBackend::Filesystem) => true,
        None => store.kind == StoreType::Workspace && store.path.is_some(),
        Some(_) => false,
    }
}

/// Returns why no back end of this program can hold a store as it is declared; the configuration is not looked at. A start and
/// `clawk validate` refuse such a store alike.
#[must_use]
pub fn declared_store_fault(store: &Store) -> Option<String> {
    if store.path.is_some() && !is_in_files(store) {
        return Some(
            "`path` is for stores in folders; write `backend: filesystem`, or leave `path` out".to_owned(),
        );
    }
    if is_in_files(store) {
        return crate::files::declared_workspace_fault(store).map(str::to_owned);
    }
    None
}

impl Memory for MemoryStores {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        if let Some(fault) = declared_store_fault(store) {
            return Err(MemoryError::Backend(fault));
        }
        if let Some(Err(why)) = self.server(store) {
            return Err(MemoryError::Backend(format!("store `{}`: {why}", store.name)));
        }
        self.backend_for(store).check_store(store)
    }

    fn joins_journal(&self, store: &Store) -> bool {
        self.backend_for(store).joins_journal(store)
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>> {
        self.backend_for(store).search_entries(store, place, ask)
    }

    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        if self.is_read_only(store) {
            return ready_result(entries.into_iter().map(|entry| entry.id).collect());
        }
        self.backend_for(store)
            .store_entries(store, place, entries, at, record)
    }

    fn compaction_candidates<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        self.backend_for(store).compaction_candidates(store, place)
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>> {
        if self.is_read_only(store) {
            return Box::pin(async move {
                let count = self.backend_for(store).count_entries(store, place).await?;
                Ok((count, count))
            });
        }
        self.backend_for(store).compact_store(store, place, at, summary)
    }

    fn apply_retention<'a>(
        &'a self,
        store: &'a Store,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        if self.is_read_only(store) {
            return ready_result(0);
        }
        self.backend_for(store).apply_retention(store, at)
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>> {
        if self.is_read_only(store) {
            return ready_result(None);
        }
        self.backend_for(store).remove(store, place, whose, id)
    }

    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        self.backend_for(store).count_entries(store, place)
    }

    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>> {
        if self.is_read_only(store) {
            return ready_result(Vec::new()); // no vector would be kept
        }
        self.backend_for(store).unembedded_entries(store, model, limit)
    }

    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        if self.is_read_only(store) {
            return ready_result(());
        }
        self.backend_for(store).add_vectors(store, model, vectors)
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
