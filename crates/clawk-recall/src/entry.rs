//! What is remembered: an entry and its mark; a question and what it found.

use clawk_manifest::model::Store;
use clawk_proto::method::{MemoryEntry, NewEntry};
use serde::{Deserialize, Serialize};

use crate::compact::by_key;

/// Where an entry came from (R46). It is the runtime's word: nothing in an entry's own text or metadata changes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryProvenance {
    /// `user`, `agent`, `tool`, `web URL`, `file PATH`, `peer NAME`, `memory`; empty: not known, of an earlier version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub origin: String,
    /// It holds text, or was made from text, that the agent's user did not say.
    #[serde(default, skip_serializing_if = "is_false")]
    pub untrusted: bool,
    /// Who it is from, for people: `ann on slack (user)`. Empty: of an earlier version, which knew no authors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub author: String,
    /// The session that it was stored from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// The conversation whose it is; empty: everybody's in the scope.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub whose: String,
    /// What it was made from: `message ID`, `call ID`, `entry ID`, or an origin; the nearest first.
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

/// An entry on its way into a store.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryInsertion {
    /// Unique within the store; one that is there already is left as it is.
    pub id: String,
    /// What is kept.
    pub entry: NewEntry,
    /// Where it came from.
    pub mark: EntryProvenance,
}

/// The largest content and metadata of one entry, bytes of JSON.
const MAX_ENTRY_BYTES: usize = 1024 * 1024;

impl EntryInsertion {
    /// The bytes of JSON of its content and metadata.
    ///
    /// # Errors
    /// It does not fit the store; why, and what would mend it.
    pub fn fits(&self, store: &Store) -> Result<usize, String> {
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

/// Whether so many bytes more fit a store that holds `there` bytes: `max_size_mb`, of all its scopes together.
///
/// # Errors
/// They do not; how much there is, and what would mend it.
pub fn room(store: &Store, there: u64, more: u64) -> Result<(), String> {
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

/// An entry that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EntryHit {
    /// As the wire has it; `score` within 0..1 where it was searched for.
    pub entry: MemoryEntry,
    /// Where it came from.
    pub mark: EntryProvenance,
}

/// By what a text was searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchMethod {
    /// By meaning alone, with a provider's embeddings.
    Vector,
    /// By words alone.
    FullText,
    /// By words and a provider's embeddings.
    Hybrid,
    /// By the built-in table: with words, or alone where the store says `vector-only`.
    Static,
}

impl SearchMethod {
    /// Its name: `vector`, `full-text`, `hybrid`, `static`.
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

/// What a question found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EntrySearchResult {
    /// The best first; in chronological order for a range of times.
    pub hits: Vec<EntryHit>,
    /// How a text was searched; `None` for keys and times.
    pub used: Option<SearchMethod>,
    /// The server that keeps the store can't compare vectors; all of them were compared by this process, so nothing is missed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub compared_here: bool,
}

/// Whose entries count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ConversationFilter {
    /// Everybody's.
    #[default]
    All,
    /// Those of these conversations, and those that are everybody's.
    Of(Vec<String>),
}

impl ConversationFilter {
    /// Whether entries of this conversation count.
    #[must_use]
    pub fn holds(&self, whose: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(known) => whose.is_empty() || known.iter().any(|one| one == whose),
        }
    }
}

/// A number for a conversation, the same on every machine; 0 for everybody's. Indexes keep it instead of the name, and whoever
/// finds by it compares the name as well.
#[must_use]
pub fn number(whose: &str) -> i64 {
    if whose.is_empty() {
        return 0;
    }
    // FNV-1a.
    let hash = whose.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash | 1).cast_signed()
}

/// A vector of the question, by which model.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// `PROVIDER/MODEL`.
    pub model: String,
    /// Of length 1.
    pub values: Vec<f32>,
}
