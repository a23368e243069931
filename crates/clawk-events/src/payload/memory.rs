//! Entries that an agent remembers. The entries themselves are in the store.

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
        /// Who did it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// How many.
        count: u64,
        /// Digest of the entries.
        entries_hash: Digest,
        /// Digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_hash: Option<Digest>,
        /// The request.
        request_id: String,
        /// The store.
        store: String,
    }

    /// `ckp.memory.queried`. A store was asked.
    MemoryQueried {
        /// How many entries were found.
        found: u64,
        /// What was asked, shortened.
        query: String,
        /// The store.
        store: String,
    }

    /// `ckp.memory.recalled`. Entries were recalled before a turn; the content is what was found.
    MemoryRecalled {
        /// Entries that were found and did not fit.
        left_out: u64,
        /// Digest of the question.
        query_hash: Digest,
        /// Digest of what was recalled.
        recalled_hash: Digest,
        /// What each store found.
        searches: Vec<MemorySearch>,
        /// Tokens.
        tokens: u64,
        /// The turn.
        turn: Uuid,
        /// Origins of the untrusted text in it.
        untrusted: Vec<String>,
    }

    /// `ckp.memory.expired`. Retention removed entries for good.
    MemoryExpired {
        /// The entries.
        entries: u64,
        /// The store.
        store: String,
    }

    /// `ckp.memory.compacted`. A store was compacted.
    MemoryCompacted {
        /// Entries afterwards.
        entries_after: u64,
        /// Entries before.
        entries_before: u64,
        /// The store.
        store: String,
    }

    /// `ckp.memory.forgotten`. Entries were forgotten from outside of the agent.
    MemoryForgotten {
        /// Who did it.
        by: String,
        /// How many.
        count: u64,
        /// The entries.
        entries: Vec<ForgottenEntry>,
        /// Why. Of an earlier version: the words themselves.
        reason: String,
        /// Digest of the reason's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }

    /// `ckp.memory.restored`. Entries that compaction had set aside came back.
    MemoryRestored {
        /// Who did it.
        by: String,
        /// The entry, or `everything`.
        id: String,
        /// The stores.
        stores: Vec<RestoredStore>,
    }
}
