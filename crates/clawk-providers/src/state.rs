//! Server state that must be sent back (R52): collects it from the pieces of an answer, and finds it for the next request.

use clawk_core::ports::{ProviderState, StatePart};
use clawk_proto::Digest;
use serde_json::{Map, Value};

/// Largest state that is kept of one answer, in bytes. A larger state is dropped completely, because a signature over an incomplete
/// text is worthless.
const STATE_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Members of a chat completion's message that are sent back.
pub(crate) const MESSAGE_MEMBERS: [&str; 11] = [
    "reasoning_content",
    "reasoning_details",
    "reasoning",
    "reasoning_text",
    "reasoning_opaque",
    "reasoning_signature",
    "thinking",
    "thinking_blocks",
    "extra_content",
    "provider_specific_fields",
    "encrypted_content",
];
/// The members that hold readable thoughts.
pub(crate) const THOUGHT_MEMBERS: [&str; 4] =
    ["reasoning_content", "reasoning", "reasoning_text", "thinking"];
/// Members of a call that are sent back.
pub(crate) const CALL_MEMBERS: [&str; 4] = [
    "extra_content",
    "provider_specific_fields",
    "thought_signature",
    "signature",
];

/// The server and model that are asked. A state is sent back only to its own server and model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StateOwner<'a> {
    pub(crate) provider: &'a str,
    pub(crate) host: &'a str,
    pub(crate) model: &'a str,
}

impl StateOwner<'_> {
    /// Returns whether the state came from this server and model.
    pub(crate) fn owns_state(&self, state: &ProviderState) -> bool {
        (state.provider.as_str(), state.host.as_str(), state.model.as_str())
            == (self.provider, self.host, self.model)
    }
}

/// The state of one answer received so far.
#[derive(Debug, Default)]
pub(crate) struct StateDraft {
    members: Map<String, Value>,
    calls: Vec<(usize, String, Value)>,
    /// Blocks by the server's index of the block or item.
    blocks: Vec<(u64, BlockDraft)>,
    bytes: usize,
}

#[derive(Debug)]
enum BlockDraft {
    Opaque(Value),
    Text(u64),
    Call(usize),
}

impl StateDraft {
    /// Returns the size of the state in bytes. The server counts it as output.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a value to a member of the message.
    pub(crate) fn add_member(&mut self, name: &str, value: Value) {
        self.bytes += size_of(&value);
        match self.members.get_mut(name) {
            Some(so_far) => join_values(so_far, value),
            None if value.is_null() => {}
            None => {
                let mut so_far = match &value {
                    Value::Array(_) => Value::Array(Vec::new()),
                    Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                        Value::Null
                    }
                };
                join_values(&mut so_far, value);
                self.members.insert(name.to_owned(), so_far);
            }
        }
    }

    /// Adds a value to a member of the call at this position.
    pub(crate) fn add_call_member(&mut self, call: usize, name: &str, value: Value) {
        if value.is_null() {
            return;
        }
        self.bytes += size_of(&value);
        let known = self
            .calls
            .iter_mut()
            .find(|(at, known, _)| (*at, known.as_str()) == (call, name));
        match known {
            Some((_, _, so_far)) => *so_far = value,
            None => self.calls.push((call, name.to_owned(), value)),
        }
    }

    /// Stores a block unchanged.
    pub(crate) fn set_block(&mut self, index: u64, value: Value) {
        self.bytes += size_of(&value);
        match self.block_mut(index) {
            Some(known) => *known = BlockDraft::Opaque(value),
            None => self.blocks.push((index, BlockDraft::Opaque(value))),
        }
    }

    /// Inserts a block made by clawk before the text with this index.
    pub(crate) fn set_block_before(&mut self, index: u64, value: Value) {
        let at = self.blocks.iter().position(|(known, _)| *known == index);
        let at = at.unwrap_or(self.blocks.len());
        self.blocks.insert(at, (u64::MAX, BlockDraft::Opaque(value)));
    }

    /// Appends text to a string member of an opaque block.
    pub(crate) fn extend_block(&mut self, index: u64, name: &str, text: &str) {
        self.bytes += text.len();
        if let Some(BlockDraft::Opaque(Value::Object(block))) = self.block_mut(index) {
            let so_far = block.entry(name).or_insert_with(|| Value::String(String::new()));
            join_values(so_far, Value::String(text.to_owned()));
        }
    }

    pub(crate) fn has_block(&self, index: u64) -> bool {
        self.blocks.iter().any(|(known, _)| *known == index)
    }

    /// Records that this block holds `bytes` more bytes of the answer's text.
    pub(crate) fn add_text(&mut self, index: u64, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        match self.block_mut(index) {
            Some(BlockDraft::Text(so_far)) => *so_far = so_far.saturating_add(bytes),
            Some(BlockDraft::Opaque(_) | BlockDraft::Call(_)) => {}
            None => self.blocks.push((index, BlockDraft::Text(bytes))),
        }
    }

    /// Records that this block is the call at the given position.
    pub(crate) fn add_call(&mut self, index: u64, call: usize) {
        if !self.has_block(index) {
            self.blocks.push((index, BlockDraft::Call(call)));
        }
    }

    fn block_mut(&mut self, index: u64) -> Option<&mut BlockDraft> {
        let found = self.blocks.iter_mut().find(|(known, _)| *known == index);
        found.map(|(_, block)| block)
    }

    /// Returns the parts; an empty list if the state is too large.
    pub(crate) fn into_parts(self) -> Vec<StatePart> {
        if self.bytes > STATE_MAX_BYTES {
            return Vec::new();
        }
        let members = self.members.into_iter().map(|(name, value)| StatePart::Member {
            name,
            json: value.to_string(),
        });
        let mut parts: Vec<StatePart> = members.collect();
        parts.extend(self.calls.into_iter().filter_map(|(call, name, value)| {
            Some(StatePart::CallMember {
                call: u32::try_from(call).ok()?, // silent-ok: there are never so many calls
                name,
                json: value.to_string(),
            })
        }));
        // The order of text and calls matters only if there is other state.
        if self
            .blocks
            .iter()
            .any(|(_, block)| matches!(block, BlockDraft::Opaque(_)))
        {
            parts.extend(self.blocks.into_iter().filter_map(|(_, block)| match block {
                BlockDraft::Opaque(value) => Some(StatePart::Block {
                    json: value.to_string(),
                }),
                BlockDraft::Text(bytes) => Some(StatePart::Text { bytes }),
                BlockDraft::Call(call) => Some(StatePart::Call {
                    call: u32::try_from(call).ok()?, // silent-ok: as above
                }),
            }));
        }
        parts
    }
}

fn size_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        other => other.to_string().len(),
    }
}

/// Merges a new piece into the collected value: texts are appended, list entries are matched by index and type.
fn join_values(so_far: &mut Value, more: Value) {
    match (so_far, more) {
        (_, Value::Null) => {}
        (Value::String(text), Value::String(more)) => text.push_str(&more),
        (Value::Array(list), Value::Array(more)) => {
            for entry in more {
                join_entry(list, entry);
            }
        }
        (Value::Object(members), Value::Object(more)) => {
            for (name, value) in more {
                match members.get_mut(&name) {
                    Some(known) if known.is_object() => join_values(known, value),
                    Some(_) | None if value.is_null() => {}
                    Some(_) | None => {
                        members.insert(name, value);
                    }
                }
            }
        }
        (so_far, more) => *so_far = more,
    }
}

/// Merges an entry of `reasoning_details`. Pieces of one text have the same index, type and id.
fn join_entry(list: &mut Vec<Value>, entry: Value) {
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let kind = text(&entry, "type").unwrap_or_default();
    let same = |known: &&mut Value| {
        let id = (text(known, "id"), text(&entry, "id"));
        text(known, "type").unwrap_or_default() == kind
            && known.get("index") == entry.get("index")
            && !matches!(id, (Some(one), Some(two)) if one != two)
    };
    let pieces = kind.contains("text") || kind.contains("summary") || kind == "thinking";
    let known = match pieces {
        true => list.iter_mut().rev().find(same),
        false => None,
    };
    let (Some(Value::Object(known)), true) = (known, entry.is_object()) else {
        // The same entry in two chunks is stored once.
        if !list.contains(&entry) {
            list.push(entry);
        }
        return;
    };
    let repeats = text(&entry, "format").is_some_and(|format| format.starts_with("MiniMax"));
    for (name, value) in entry.as_object().cloned().unwrap_or_default() {
        let grows = matches!(name.as_str(), "text" | "summary" | "thinking");
        match (known.get_mut(&name), value) {
            (_, Value::Null) => {}
            // MiniMax sends the complete text so far with each chunk.
            (Some(Value::String(so_far)), Value::String(more)) if grows => {
                match repeats && more.starts_with(so_far.as_str()) {
                    true => *so_far = more,
                    false => so_far.push_str(&more),
                }
            }
            (_, value) => {
                known.insert(name, value);
            }
        }
    }
}

/// Digest of a request's prefix, extended message by message. It identifies the prefix that an answer was made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PrefixDigest(Digest);

impl PrefixDigest {
    /// Starts with the system prompt and the tools.
    pub(crate) fn for_prompt(system: &Value, tools: &Value) -> Self {
        Self(clawk_trace::chain::digest_of(
            format!("{system}\n{tools}").as_bytes(),
        ))
    }

    /// Adds one message.
    pub(crate) fn add_message(&mut self, message: &Value) {
        let text = message.to_string();
        self.0 = clawk_trace::chain::digest_of(&[&self.0.0[..], text.as_bytes()].concat());
    }

    pub(crate) const fn digest(self) -> Digest {
        self.0
    }
}

/// Parses the JSON of a part; null if it is not JSON.
pub(crate) fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default() // silent-ok: it was JSON when it was kept
}

#[cfg(test)]
mod tests {
    use super::StateDraft;
    use clawk_core::ports::StatePart;
    use serde_json::{Value, json};

    fn details(pieces: &[Value]) -> Value {
        let mut draft = StateDraft::default();
        for piece in pieces {
            draft.add_member("reasoning_details", json!([piece]));
        }
        match draft.into_parts().as_slice() {
            [StatePart::Member { json, .. }] => serde_json::from_str(json).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn entries_that_come_in_pieces_are_one_entry() {
        let text = |text: &str| json!({ "type": "reasoning.text", "text": text, "index": 0, "format": "f" });
        assert_eq!(
            details(&[
                text("I "),
                text("see"),
                json!({ "type": "reasoning.text", "signature": "s", "index": 0 })
            ]),
            json!([{ "type": "reasoning.text", "text": "I see", "index": 0, "format": "f", "signature": "s" }])
        );
        let sealed = |data: &str, id: &str| json!({ "type": "reasoning.encrypted", "data": data, "id": id, "index": 0 });
        assert_eq!(
            details(&[text("a"), sealed("x", "1"), sealed("y", "2"), sealed("y", "2")]),
            json!([text("a"), sealed("x", "1"), sealed("y", "2")])
        );
        let grows = |text: &str| json!({ "type": "reasoning.text", "text": text, "id": "r", "format": "MiniMax-response-v1" });
        assert_eq!(
            details(&[grows("I"), grows("I see"), grows("I see it")]),
            json!([grows("I see it")])
        );
        assert_eq!(
            details(&[
                json!({ "type": "reasoning.summary", "summary": "a" }),
                json!({ "type": "reasoning.summary", "summary": "b" })
            ]),
            json!([{ "type": "reasoning.summary", "summary": "ab" }])
        );
    }

    #[test]
    fn what_is_too_much_is_not_kept_in_part() {
        let mut draft = StateDraft::default();
        draft.add_member("reasoning_content", json!("x".repeat(super::STATE_MAX_BYTES)));
        draft.add_member("reasoning_content", json!("x"));
        assert!(draft.into_parts().is_empty());
    }
}
