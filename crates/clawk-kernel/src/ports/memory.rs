//! Memory stores (CKP §5.6, §9.3.4; R21).

use std::fmt;

use clawk_manifest::model::Store;
use clawk_proto::method::{MemoryEntry, NewEntry};

use super::Later;
use crate::time::Timestamp;

/// Whose entries: the store's `scope` says which part counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// The Identity's name.
    pub identity: String,
    /// The channel's name; empty for the RPC.
    pub channel: String,
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
    /// The entry does not fit the store: no key for a key-value store, or too large.
    #[error("memory entry {index}: {reason}")]
    Entry {
        /// Position in `entries`.
        index: usize,
        /// What is wrong and what would mend it.
        reason: String,
    },
}

/// Keeps and finds entries of the manifest's stores.
pub trait Memory: Send + Sync + fmt::Debug {
    /// Whether this backend can serve the store; asked at start, so that an agent whose memory can't work doesn't start.
    ///
    /// # Errors
    /// The backend or an option of the store isn't served, with the cure.
    fn check(&self, store: &Store) -> Result<(), MemoryError>;

    /// At most `limit` entries; scores within 0..1.
    fn query<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Place,
        query: StoreQuery,
        limit: usize,
    ) -> Later<'a, Result<Vec<MemoryEntry>, MemoryError>>;

    /// Keeps all entries or none, durably; returns their ids in order. `ids` are for the new entries, one each; an entry
    /// whose id is there already is left as it is: it was kept before a crash, and the request has come again.
    fn store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Place,
        entries: Vec<NewEntry>,
        ids: Vec<String>,
        at: Timestamp,
    ) -> Later<'a, Result<Vec<String>, MemoryError>>;

    /// Applies retention and the store's compaction; returns the counts before and after.
    fn compact<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Place,
        at: Timestamp,
    ) -> Later<'a, Result<(u64, u64), MemoryError>>;
}
