//! An entry as a point of a collection.

use std::collections::BTreeSet;

use clawk_core::ports::MemoryError;
use clawk_core::time::Timestamp;
use clawk_proto::method::MemoryEntry;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryProvenance};
use clawk_recall::{index, table, words};
use clawk_trace::chain::digest_of;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The vector by the built-in table.
pub(super) const STATIC: &str = "static";

/// The sparse vector of an entry's words; the server weighs each by how rare it is.
pub(super) const WORDS: &str = "words";

/// What is filtered and ordered by.
pub(super) const FIELDS: [(&str, &str); 10] = [
    ("scope", "keyword"),
    ("state", "keyword"),
    ("id", "keyword"),
    ("key", "keyword"),
    ("whose", "keyword"),
    ("instead", "keyword"),
    ("vectors", "keyword"),
    ("at", "integer"),
    ("n", "integer"),
    ("bytes", "integer"),
];

/// It counts.
pub(super) const LIVE: &str = "live";
/// Compaction set it aside.
pub(super) const ASIDE: &str = "aside";

/// A point's payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PointPayload {
    pub(super) id: String,
    pub(super) scope: String,
    /// Of two entries of one moment, the later one's is greater.
    pub(super) n: i64,
    /// Microseconds since 1970.
    pub(super) at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// As [`owner`] writes it.
    pub(super) whose: String,
    pub(super) state: String,
    /// The id of the entry that stands for it.
    pub(super) instead: String,
    /// Of content and metadata.
    pub(super) bytes: u64,
    /// JSON as text, so that no server rounds a number.
    pub(super) content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<String>,
    pub(super) mark: EntryProvenance,
    /// The models whose vectors it has, each in a collection of its own.
    pub(super) vectors: Vec<String>,
}

/// A scope's name in a filter: never empty.
pub(super) fn scope_name(part: &str) -> String {
    format!("/{part}")
}

/// A conversation's name in a filter: never empty.
pub(super) fn owner(whose: &str) -> String {
    format!("/{whose}")
}

/// The condition on whose entries count, if there is one.
pub(super) fn of_owner(whose: &ConversationFilter) -> Option<Value> {
    match whose {
        ConversationFilter::All => None,
        ConversationFilter::Of(known) => {
            let mut any = vec![owner("")];
            any.extend(known.iter().map(|one| owner(one)));
            Some(json!({"key": "whose", "match": {"any": any}}))
        }
    }
}

/// `{"key": …, "match": {"value": …}}`.
pub(super) fn is(key: &str, value: &str) -> Value {
    json!({"key": key, "match": {"value": value}})
}

/// The words of a text as a sparse vector's numbers; two words may share one, which ranking by the text itself puts right.
pub(super) fn sparse<'a>(stems: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
    let number = |stem: &str| {
        let [a, b, c, d, ..] = digest_of(stem.as_bytes()).0;
        u32::from_be_bytes([a, b, c, d])
    };
    let numbers: BTreeSet<u32> = stems.into_iter().map(number).collect();
    numbers.into_iter().collect()
}

/// A point's id: the same for the same entry of the same scope, whoever writes it.
pub(super) fn point_id(scope: &str, what: &str) -> String {
    let hex = digest_of(format!("{scope}\n{what}").as_bytes()).to_hex();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    // Its version and variant say "made by us" (RFC 9562, version 8).
    format!(
        "{}-{}-8{}-8{}-{}",
        part(0, 8),
        part(8, 12),
        part(13, 16),
        part(17, 20),
        part(20, 32)
    )
}

impl PointPayload {
    pub(super) fn text(&self) -> String {
        words::text_of(&self.value(), self.key.as_deref())
    }

    fn value(&self) -> Value {
        serde_json::from_str(&self.content).unwrap_or_else(|_| Value::String(self.content.clone())) // silent-ok: written by us
    }

    pub(super) fn hit(&self) -> EntryHit {
        let metadata = self.metadata.as_deref();
        EntryHit {
            entry: MemoryEntry {
                id: self.id.clone(),
                content: self.value(),
                score: None,
                timestamp: Some(Timestamp(self.at).to_string()),
                key: self.key.clone(),
                metadata: metadata.and_then(|text| serde_json::from_str(text).ok()), // silent-ok: written by us
            },
            mark: self.mark.clone(),
        }
    }

    /// The point; `replaces`: the entry of a key stands where the one before it stood.
    pub(super) fn point(&self, replaces: bool, embeds: bool) -> Result<Value, MemoryError> {
        let text = self.text();
        let stems: BTreeSet<String> = index::stems(&text).collect();
        let numbers = sparse(stems.iter().map(String::as_str));
        let mut vector = serde_json::Map::new();
        if !numbers.is_empty() {
            let values = vec![1.0_f32; numbers.len()];
            vector.insert(WORDS.to_owned(), json!({"indices": numbers, "values": values}));
        }
        if let Some(values) = table::embed(&text).filter(|_| embeds) {
            vector.insert(STATIC.to_owned(), json!(values));
        }
        let payload = serde_json::to_value(self).map_err(|error| MemoryError::Backend(error.to_string()))?;
        Ok(json!({"id": self.at_point(replaces), "payload": payload, "vector": vector}))
    }

    /// Its point's id.
    pub(super) fn at_point(&self, replaces: bool) -> String {
        match self.key.as_deref().filter(|_| replaces) {
            Some(key) => point_id(&self.scope, &format!("key {key}")),
            None => point_id(&self.scope, &format!("id {}", self.id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_points_id_is_a_uuid_of_its_scope_and_name() {
        let id = point_id("/a", "id 1");
        assert_eq!(id.len(), 36, "{id}");
        assert_eq!(id, point_id("/a", "id 1"));
        assert_ne!(id, point_id("/b", "id 1"));
        assert_ne!(point_id("/a", "id 1"), point_id("/a", "key 1"));
        let dashes: Vec<usize> = id.match_indices('-').map(|(at, _)| at).collect();
        assert_eq!(dashes, [8, 13, 18, 23]);
    }
}
