//! Converts an entry to a point of a collection and back.

use std::collections::BTreeSet;

use clawk_core::ports::MemoryError;
use clawk_core::time::Timestamp;
use clawk_proto::method::MemoryEntry;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryProvenance};
use clawk_recall::{index, table, words};
use clawk_trace::chain::digest_of;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The name of the vector from the built-in table.
pub(super) const STATIC: &str = "static";

/// The name of the sparse vector of an entry's words. The server weighs each word by its rarity.
pub(super) const WORDS: &str = "words";

/// The payload fields that are indexed for filters and order, with their types.
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

/// The state of a normal entry.
pub(super) const LIVE: &str = "live";
/// The state of an entry that compaction set aside.
pub(super) const ASIDE: &str = "aside";

/// The payload of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PointPayload {
    pub(super) id: String,
    pub(super) scope: String,
    /// The entry's number. Of two entries with the same time, the later one has the greater number.
    pub(super) n: i64,
    /// Microseconds since 1970.
    pub(super) at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<String>,
    /// The conversation, in the form that [`owner_name`] writes.
    pub(super) whose: String,
    pub(super) state: String,
    /// The id of the entry that replaces this one.
    pub(super) instead: String,
    /// The size of content and metadata, in bytes.
    pub(super) bytes: u64,
    /// The content as JSON text, so that no server rounds a number.
    pub(super) content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<String>,
    pub(super) mark: EntryProvenance,
    /// The models whose vectors this entry has. Each model has its own collection.
    pub(super) vectors: Vec<String>,
}

/// A scope's name for a filter; never empty.
pub(super) fn scope_name(part: &str) -> String {
    format!("/{part}")
}

/// A conversation's name for a filter; never empty.
pub(super) fn owner_name(whose: &str) -> String {
    format!("/{whose}")
}

/// The condition on the conversation; `None` if all conversations count.
pub(super) fn of_owner(whose: &ConversationFilter) -> Option<Value> {
    match whose {
        ConversationFilter::All => None,
        ConversationFilter::Of(known) => {
            let mut any = vec![owner_name("")];
            any.extend(known.iter().map(|one| owner_name(one)));
            Some(json!({"key": "whose", "match": {"any": any}}))
        }
    }
}

/// `{"key": …, "match": {"value": …}}`.
pub(super) fn match_condition(key: &str, value: &str) -> Value {
    json!({"key": key, "match": {"value": value}})
}

/// The indices of the sparse vector of a text's words. Two words may have the same index; the later ranking by the text corrects
/// this.
pub(super) fn sparse_indices<'a>(stems: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
    let number = |stem: &str| {
        let [a, b, c, d, ..] = digest_of(stem.as_bytes()).0;
        u32::from_be_bytes([a, b, c, d])
    };
    let numbers: BTreeSet<u32> = stems.into_iter().map(number).collect();
    numbers.into_iter().collect()
}

/// A point's id: always the same for the same entry of the same scope, on every host.
pub(super) fn point_id(scope: &str, what: &str) -> String {
    let hex = digest_of(format!("{scope}\n{what}").as_bytes()).to_hex();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    // UUID version 8 (RFC 9562), which is for application-defined ids.
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

    pub(super) fn entry_hit(&self) -> EntryHit {
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

    /// Builds the point. With `replaces`, it replaces the point of the earlier entry with the same key.
    pub(super) fn to_point(&self, replaces: bool, embeds: bool) -> Result<Value, MemoryError> {
        let text = self.text();
        let stems: BTreeSet<String> = index::text_stems(&text).collect();
        let numbers = sparse_indices(stems.iter().map(String::as_str));
        let mut vector = serde_json::Map::new();
        if !numbers.is_empty() {
            let values = vec![1.0_f32; numbers.len()];
            vector.insert(WORDS.to_owned(), json!({"indices": numbers, "values": values}));
        }
        if let Some(values) = table::embed_text(&text).filter(|_| embeds) {
            vector.insert(STATIC.to_owned(), json!(values));
        }
        let payload = serde_json::to_value(self).map_err(|error| MemoryError::Backend(error.to_string()))?;
        Ok(json!({"id": self.at_point(replaces), "payload": payload, "vector": vector}))
    }

    /// The id of this entry's point.
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
