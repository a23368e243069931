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
    /// By what the store's entries are kept apart; absent means per identity. A workspace's `isolation` says the same of files.
    #[must_use]
    pub fn of(store: &Store) -> StoreScope {
        match (store.kind, store.isolation) {
            (StoreType::Workspace, Some(WorkspaceIsolation::Shared)) => StoreScope::Global,
            (StoreType::Workspace, Some(WorkspaceIsolation::PerIdentity)) => StoreScope::PerIdentity,
            (StoreType::Workspace, Some(WorkspaceIsolation::PerChannel)) => StoreScope::PerChannel,
            _ => store.scope.unwrap_or(StoreScope::PerIdentity),
        }
    }

    /// The store and the place whose part has this name, for whoever names parts instead of owners. `None`: no part is named so.
    #[must_use]
    pub fn named(part: &str, store: &Store) -> Option<(Self, Store)> {
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
        (place.part(&store) == part).then_some((place, store))
    }

    /// The name of this part of the store: empty for everybody's, `identity/NAME`, `channel/IDENTITY/CHANNEL`.
    #[must_use]
    pub fn part(&self, store: &Store) -> String {
        match Self::of(store) {
            StoreScope::Global => String::new(),
            StoreScope::PerIdentity => format!("identity/{}", self.identity),
            StoreScope::PerChannel => format!("channel/{}/{}", self.identity, self.channel),
        }
    }
}

/// A question with its times parsed and its bound applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreQuery {
    /// By words (and by meaning where the store has embeddings).
    Text(String),
    /// By exact key, or by entry id in stores without keys.
    Key(String),
    /// Inclusive; answered in chronological order.
    Between(Timestamp, Timestamp),
}

/// Why a memory operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MemoryError {
    /// The backend can't be reached or written.
    #[error("memory backend: {0}")]
    Backend(String),
    /// The query can't be run.
    #[error("memory query: {0}")]
    Query(String),
    /// Another writer changed the same entry at the same time; nothing was written.
    #[error("memory conflict: {0}")]
    Conflict(String),
    /// The entry does not fit the store: no key for a key-value store, or too large.
    #[error("memory entry {index}: {reason}")]
    Entry {
        /// Position in `entries`.
        index: usize,
        /// What is wrong and what would mend it.
        reason: String,
    },
}

/// A question to a store.
#[derive(Debug, Clone, PartialEq)]
pub struct MemorySearch {
    /// Whose entries count.
    pub whose: ConversationFilter,
    /// What is asked.
    pub query: StoreQuery,
    /// A text's vector by the store's embedding model; without it, such a store is searched by words.
    pub vector: Option<Vector>,
    /// At most so many entries.
    pub limit: usize,
}

/// An entry that has no vector of a model yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnembeddedEntry {
    /// Names it to [`Memory::add_vectors`]; means nothing elsewhere.
    pub handle: String,
    /// The text that is embedded: [`clawk_recall::words::text_of`].
    pub text: String,
}

/// Which entries of a part an operator looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// Those that compaction set aside, instead of those that count.
    pub aside: bool,
    /// Only those whose number is smaller; the newest has the greatest.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

/// What only operators do with a store. They see all its parts and the entries of all owners; the scope that the manifest gives the
/// store does not limit them. [`Scope::part`] gives the names of parts.
pub trait MemoryInspector: Memory {
    /// The parts that hold something, and the number of entries that count in each. `known`: parts that the manifest speaks of, for a
    /// back end that can't list its own.
    fn parts<'a>(
        &'a self,
        store: &'a Store,
        known: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, MemoryError>>;

    /// Entries of a part with their numbers, the newest first.
    fn page<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        page: Page,
    ) -> BoxFuture<'a, Result<Vec<(i64, EntryHit)>, MemoryError>>;

    /// The entries of a part with this id or key; those that compaction set aside by their id, too.
    fn named<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>>;

    /// Brings back what compaction set aside of a part: one entry or what a summary stands for, or everything. Returns how many
    /// entries came back.
    fn bring_back<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, MemoryError>>;
}

/// Keeps and finds entries of the manifest's stores.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Whether this backend can serve the store; asked at start, so that an agent whose memory can't work doesn't start.
    ///
    /// # Errors
    /// The backend or an option of the store isn't served, with the cure.
    fn check(&self, store: &Store) -> Result<(), MemoryError>;

    /// Entries of this store and their record in the journal are one commit.
    fn joins(&self, _store: &Store) -> bool {
        false
    }

    /// What a question finds; scores within 0..1.
    fn ask<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> BoxFuture<'a, Result<EntrySearchResult, MemoryError>>;

    /// Keeps all entries or none, durably; returns their ids in order. An entry whose id is there already is left as it is: it was
    /// kept before a crash, and the request has come again. `record` is committed with them where the store [joins](Self::joins),
    /// and must be empty elsewhere.
    fn keep<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> BoxFuture<'a, Result<Vec<String>, MemoryError>>;

    /// What compaction would set aside now, the oldest first.
    fn old<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>>;

    /// Applies retention and the store's compaction, with this summary if it is of exactly what is set aside; returns the counts
    /// before and after.
    fn compact<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> BoxFuture<'a, Result<(u64, u64), MemoryError>>;

    /// Applies retention in every scope; returns how many entries went.
    fn retain<'a>(&'a self, store: &'a Store, at: Timestamp) -> BoxFuture<'a, Result<u64, MemoryError>>;

    /// Removes an entry for good, if it is there and among those that count; what it was.
    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> BoxFuture<'a, Result<Option<EntryHit>, MemoryError>>;

    /// The number of entries of this store, of all owners.
    fn count<'a>(&'a self, store: &'a Store, place: &'a Scope) -> BoxFuture<'a, Result<u64, MemoryError>>;

    /// Entries of every scope that have no vector of this model (`PROVIDER/MODEL`), the newest first, at most `limit`.
    fn lacking<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<UnembeddedEntry>, MemoryError>>;

    /// Keeps vectors (handle, values of length 1) for entries that are still there.
    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>>;

    /// Vectors that were paid for before, by the digests of their texts and in their order; `None` where there is none.
    fn paid_for<'a>(
        &'a self,
        _model: &'a str,
        digests: Vec<Digest>,
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, MemoryError>> {
        Box::pin(std::future::ready(Ok(vec![None; digests.len()])))
    }

    /// Keeps vectors that were paid for, by the digests of their texts.
    fn pay_once<'a>(
        &'a self,
        _model: &'a str,
        _vectors: Vec<(Digest, Vec<f32>)>,
    ) -> BoxFuture<'a, Result<(), MemoryError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The entries alone that a question finds, among everybody's.
    fn query<'a>(
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
            let found = self.ask(store, place, ask).await?;
            Ok(found.hits.into_iter().map(|hit| hit.entry).collect())
        })
    }

    /// Stores entries without a known origin.
    fn store<'a>(
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
        self.keep(store, place, new.collect(), at, Batch::default())
    }
}
