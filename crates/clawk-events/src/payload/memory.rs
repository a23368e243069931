//! Entries of the agent's memory. The events hold ids and digests; the text is in the memory store.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::{ForgottenEntry, MemorySearch, RestoredStore};

payloads! {
    /// `ckp.memory.requested`, `ckp.memory.stored`: which entries.
    MemoryWrite {
        /// The entries that were given together.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<Uuid>,
        /// The identity that did this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The count.
        count: u64,
        /// Digest of the entries.
        entries_hash: Digest,
        /// Digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_hash: Option<Digest>,
        /// Id of the request.
        request_id: String,
        /// Name of the memory store.
        store: String,
    }

    /// `ckp.memory.queried`. A memory store was searched.
    MemoryQueried {
        /// How many entries were found.
        found: u64,
        /// The query, shortened.
        query: String,
        /// Name of the memory store.
        store: String,
    }

    /// `ckp.memory.recalled`. Entries were recalled before a turn. The content is the entries.
    MemoryRecalled {
        /// Entries that were found and did not fit.
        left_out: u64,
        /// Digest of the question.
        query_hash: Digest,
        /// Digest of what was recalled.
        recalled_hash: Digest,
        /// What each store found.
        searches: Vec<MemorySearch>,
        /// Number of tokens.
        tokens: u64,
        /// Id of the turn.
        turn: Uuid,
        /// Sources of the untrusted text in it.
        untrusted: Vec<String>,
    }

    /// `ckp.memory.expired`. Retention deleted entries permanently.
    MemoryExpired {
        /// The entries.
        entries: u64,
        /// Name of the memory store.
        store: String,
    }

    /// `ckp.memory.compacted`. A store was compacted.
    MemoryCompacted {
        /// Entries afterwards.
        entries_after: u64,
        /// Entries before.
        entries_before: u64,
        /// Name of the memory store.
        store: String,
    }

    /// `ckp.memory.forgotten`. A person or a program outside the agent deleted entries.
    MemoryForgotten {
        /// The identity that did this.
        by: String,
        /// The count.
        count: u64,
        /// The entries.
        entries: Vec<ForgottenEntry>,
        /// Why. Of an earlier version: the words themselves.
        reason: String,
        /// Digest of the reason's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.memory.restored`. Entries that compaction had set aside were restored.
    MemoryRestored {
        /// The identity that did this.
        by: String,
        /// Id of the entry, or `everything`.
        id: String,
        /// The stores.
        stores: Vec<RestoredStore>,
    }
}
