//! The data types of memory: entries with their provenance, queries and results.

use clawk_manifest::model::Store;
use clawk_proto::method::{MemoryEntry, NewEntry};
use serde::{Deserialize, Serialize};

use crate::compact::by_key;

/// The provenance of an entry (R46). Only the runtime writes it; nothing in an entry's own text or metadata can change it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryProvenance {
    /// `user`, `agent`, `tool`, `web URL`, `file PATH`, `peer NAME` or `memory`. Empty: unknown, the entry is from an earlier
    /// version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
    /// Whether the entry contains, or was made from, text that did not come from the agent's user.
    #[serde(default, skip_serializing_if = "is_false")]
    pub untrusted: bool,
    /// The author, for people to read: `ann on slack (user)`. Empty: from an earlier version, which recorded no authors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// The session that stored the entry.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// The conversation that the entry belongs to. Empty: it belongs to everybody in the scope.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub whose: String,
    /// The sources of the entry: `message ID`, `call ID`, `entry ID`, or an origin; the nearest source first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_from: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl EntryProvenance {
    /// The kind of the origin: its first word.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.origin.split(' ').next().unwrap_or_default()
    }
}

/// An entry to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryInsertion {
    /// Unique within the store. If the id exists already, the stored entry is not changed.
    pub id: String,
    /// The entry's key, content and metadata.
    pub entry: NewEntry,
    /// The entry's provenance.
    pub mark: EntryProvenance,
}

/// The maximum size of one entry's content and metadata, in bytes of JSON.
const MAX_ENTRY_BYTES: usize = 1024 * 1024;

impl EntryInsertion {
    /// Checks that the entry fits the store. Returns the size of its content and metadata in bytes of JSON.
    ///
    /// # Errors
    /// The reason why it does not fit, and how to fix it.
    pub fn checked_size(&self, store: &Store) -> Result<usize, String> {
        if by_key(store.kind) && self.entry.key.is_none() {
            let what = store.kind.as_str();
            return Err(format!(
                "store `{}` is {what}: the entry needs a `key`",
                store.name
            ));
        }
        let metadata = self
            .entry
            .metadata
            .as_ref()
            .map_or(0, |metadata| metadata.to_string().len());
        let bytes = self.entry.content.to_string().len() + metadata;
        if bytes > MAX_ENTRY_BYTES {
            return Err(format!("{bytes} bytes; at most {MAX_ENTRY_BYTES}, split it"));
        }
        Ok(bytes)
    }
}

/// Checks that `more` bytes fit a store that holds `there` bytes. The limit is `max_size_mb`, over all scopes of the store.
///
/// # Errors
/// The store would be too large; the message says how much it holds, and how to fix it.
pub fn check_free_size(store: &Store, there: u64, more: u64) -> Result<(), String> {
    let Some(limit_mb) = store.max_size_mb else {
        return Ok(());
    };
    if there.saturating_add(more) <= limit_mb.saturating_mul(1024 * 1024) {
        return Ok(());
    }
    Err(format!(
        "store `{}` holds {there} bytes and may hold {limit_mb} MiB (`max_size_mb`); forget or compact something",
        store.name
    ))
}

/// An entry that a query found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryHit {
    /// The entry in its wire form. If it was found by text, `score` is set (0..1).
    pub entry: MemoryEntry,
    /// The entry's provenance.
    pub mark: EntryProvenance,
}

/// The method that a text search used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchMethod {
    /// Vectors of a provider's embedding model only.
    Vector,
    /// Words only.
    FullText,
    /// Words, and vectors of a provider's embedding model.
    Hybrid,
    /// The built-in embedding table, combined with words; without words if the store says `vector-only`.
    Static,
}

impl SearchMethod {
    /// The name on the wire: `vector`, `full-text`, `hybrid`, `static`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vector => "vector",
            Self::FullText => "full-text",
            Self::Hybrid => "hybrid",
            Self::Static => "static",
        }
    }
}

/// The result of a query.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EntrySearchResult {
    /// The best entry first; for a time range, in chronological order.
    pub hits: Vec<EntryHit>,
    /// The search method; `None` for queries by key or time.
    pub used: Option<SearchMethod>,
    /// Whether this process compared the vectors because the server can't. All vectors were compared, so the result is complete.
    #[serde(default, skip_serializing_if = "is_false")]
    pub compared_here: bool,
}

/// Which conversations' entries a query may return.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConversationFilter {
    /// Entries of all conversations.
    #[default]
    All,
    /// Entries of these conversations, and entries that belong to everybody.
    Of(Vec<String>),
}

impl ConversationFilter {
    /// Whether entries of this conversation are included.
    #[must_use]
    pub fn includes_owner(&self, whose: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(known) => whose.is_empty() || known.iter().any(|one| one == whose),
        }
    }
}

/// A hash of the conversation's name, the same on every machine; 0 for entries that belong to everybody. Indexes store it instead
/// of the name. A reader must compare the name as well.
#[must_use]
pub fn conversation_number(whose: &str) -> i64 {
    if whose.is_empty() {
        return 0;
    }
    // The hash is FNV-1a.
    let hash = whose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash | 1).cast_signed()
}

/// The vector of a question, with the model that made it.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// `PROVIDER/MODEL`.
    pub model: String,
    /// The vector, normalized to length 1.
    pub values: Vec<f32>,
}
