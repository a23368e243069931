//! Memory stores (CKP §5.6, §9.3.4; R21).

use std::fmt;

use clawk_manifest::model::{Store, StoreScope, StoreType, WorkspaceIsolation};
use clawk_proto::Digest;
use clawk_proto::method::{MemoryEntry, NewEntry};
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{
    ConversationFilter, EntryHit, EntryInsertion, EntryProvenance, EntrySearchResult, Vector,
};

use super::{Batch, BoxFuture};
use crate::time::Timestamp;

/// The owner of entries. The store's `scope` decides which of the fields count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// The Identity's name.
    pub identity: String,
    /// The channel's name; `rpc` for JSON-RPC, `cli` for the terminal.
    pub channel: String,
}

impl Scope {
    /// Returns how the store's entries are separated; by default per identity. A workspace's `isolation` does the same for files.
    #[must_use]
    pub fn store_scope(store: &Store) -> StoreScope {
        match (store.kind, store.isolation) {
            (StoreType::Workspace, Some(WorkspaceIsolation::Shared)) => StoreScope::Global,
            (StoreType::Workspace, Some(WorkspaceIsolation::PerIdentity)) => StoreScope::PerIdentity,
            (StoreType::Workspace, Some(WorkspaceIsolation::PerChannel)) => StoreScope::PerChannel,
            _ => store.scope.unwrap_or(StoreScope::PerIdentity),
        }
    }

    /// Returns the store and scope of the part with this name; `None`: there is none.
    #[must_use]
    pub fn from_part_name(part: &str, store: &Store) -> Option<(Self, Store)> {
        let mut store = store.clone();
        store.isolation = None;
        let (kind, place) = match part.split_once('/') {
            None if part.is_empty() => (StoreScope::Global, Self::default()),
            Some(("identity", identity)) => (
                StoreScope::PerIdentity,
                Self {
                    identity: identity.to_owned(),
                    channel: String::new(),
                },
            ),
            Some(("channel", rest)) => {
                let (identity, channel) = rest.split_once('/')?;
                (
                    StoreScope::PerChannel,
                    Self {
                        identity: identity.to_owned(),
                        channel: channel.to_owned(),
                    },
                )
            }
            _ => return None,
        };
        store.scope = Some(kind);
        (place.part_name(&store) == part).then_some((place, store))
    }

    /// Returns the name of this part of the store: empty for everybody's entries, `identity/NAME`, `channel/IDENTITY/CHANNEL`.
    #[must_use]
    pub fn part_name(&self, store: &Store) -> String {
        match Self::store_scope(store) {
            StoreScope::Global => String::new(),
            StoreScope::PerIdentity => format!("identity/{}", self.identity),
            StoreScope::PerChannel => format!("channel/{}/{}", self.identity, self.channel),
        }
    }
}

/// A query with parsed times and an applied limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreQuery {
    /// By words, and by meaning if the store has embeddings.
    Text(String),
    /// By exact key, or by entry id in stores without keys.
    Key(String),
    /// An inclusive time range; results are in chronological order.
    Between(Timestamp, Timestamp),
}

/// Why a memory operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MemoryError {
    /// The back end can't be reached or written.
    #[error("memory backend: {0}")]
    Backend(String),
    /// The query is not valid.
    #[error("memory query: {0}")]
    Query(String),
    /// Another writer changed the same entry at the same time; nothing was written.
    #[error("memory conflict: {0}")]
    Conflict(String),
    /// The entry does not match the store: no key for a key-value store, or too large.
    #[error("memory entry {index}: {reason}")]
    Entry {
        /// Position in `entries`.
        index: usize,
        /// What is wrong, and how to fix it.
        reason: String,
    },
}

/// A query to a store.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySearch {
    /// The filter by owner.
    pub whose: ConversationFilter,
    /// The query.
    pub query: StoreQuery,
    /// The text's vector by the store's embedding model. Without it, such a store is searched by words.
    pub vector: Option<Vector>,
    /// Largest number of entries.
    pub limit: usize,
}

/// An entry without a vector of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnembeddedEntry {
    /// Identifies it for [`Memory::add_vectors`] only.
    pub handle: String,
    /// The text that is embedded: [`clawk_recall::words::text_of`].
    pub text: String,
}

/// A page of a part's entries, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Entries that compaction set aside, instead of the valid ones.
    pub aside: bool,
    /// Only entries with a smaller number; the newest has the largest.
    pub before: Option<i64>,
    /// Largest number of entries.
    pub limit: usize,
}

/// Operations on a store for operators. They see all parts and the entries of all owners, regardless of the scope in the manifest.
/// [`Scope::part_name`] returns the names of parts.
pub trait MemoryInspector: Memory {
    /// Returns the non-empty parts, with the number of valid entries in each. `known`: parts named in the manifest, for a back end
    /// that can't list its own.
    fn list_parts<'a>(
        &'a self,
        store: &'a Store,
        known: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, MemoryError>>;

    /// Returns entries of a part with their numbers, newest first.
    fn list_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        page: Page,
    ) -> BoxFuture<'a, Result<Vec<(i64, EntryHit)>, MemoryError>>;

    /// Returns the entries of a part with this id or key. Entries that were set aside are found by id, too.
    fn find_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>>;

    /// Restores what compaction set aside in a part: one entry, the entries behind a summary, or everything. Returns the number of
    /// restored entries.
    fn bring_back<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, MemoryError>>;
}

/// Stores and finds entries of the manifest's stores.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Checks that this back end supports the store. Called at the start, so that an agent whose memory can't work does not start.
    ///
    /// # Errors
    /// The back end or an option of the store isn't supported. The text says how to fix it.
    fn check_store(&self, store: &Store) -> Result<(), MemoryError>;

    /// Returns whether entries of this store and their event in the journal are one commit.
    fn joins_journal(&self, _store: &Store) -> bool {
        false
    }

    /// Returns the results of a query; scores are within 0..1.
    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>>;

    /// Stores all entries or none, durably. Returns their ids in order. An entry whose id exists is unchanged: it was stored before
    /// a crash, and the request was repeated. `record` is committed with them if the store [joins](Self::joins_journal), and must be empty
    /// otherwise.
    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>>;

    /// Returns the entries that compaction would now set aside, oldest first.
    fn compaction_candidates<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>>;

    /// Applies retention and the store's compaction, with this summary if it covers exactly what is set aside. Returns the counts
    /// before and after.
    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>>;

    /// Applies retention in every scope. Returns the number of removed entries.
    fn apply_retention<'a>(
        &'a self,
        store: &'a Store,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<u64, MemoryError>>;

    /// Deletes a valid entry permanently. Returns the entry.
    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>>;

    /// Returns the number of entries of this store, over all owners.
    fn count_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<u64, MemoryError>>;

    /// Returns at most `limit` entries of every scope without a vector of this model (`PROVIDER/MODEL`), newest first.
    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>>;

    /// Stores vectors (handle, values of length 1) for entries that still exist.
    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>>;

    /// Returns cached vectors by the digests of their texts, in the same order; `None` if there is none.
    fn paid_for<'a>(
        &'a self,
        _model: &'a str,
        digests: Vec<Digest>,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, MemoryError>> {
        Box::pin(std::future::ready(Ok(vec![None; digests.len()])))
    }

    /// Caches paid vectors by the digests of their texts.
    fn pay_once<'a>(
        &'a self,
        _model: &'a str,
        _vectors: Vec<(Digest, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns only the entries that a query finds, over all owners.
    fn query_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        query: StoreQuery,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<MemoryEntry>, MemoryError>> {
        let ask = MemorySearch {
            whose: ConversationFilter::All,
            query,
            vector: None,
            limit,
        };
        Box::pin(async move {
            let found = self.search_entries(store, place, ask).await?;
            Ok(found.hits.into_iter().map(|hit| hit.entry).collect())
        })
    }

    /// Stores entries without a known source.
    fn store_unattributed<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<NewEntry>,
        ids: Vec<String>,
        at: Timestamp,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>> {
        let new = entries.into_iter().zip(ids).map(|(entry, id)| EntryInsertion {
            id,
            entry,
            mark: EntryProvenance::default(),
        });
        self.store_entries(store, place, new.collect(), at, Batch::default())
    }
}
