//! The lexical part of a frame: its members as borrowed text, without checks.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::MAX_BATCH;

/// The members of a JSON object that JSON-RPC defines, as raw JSON text. Any JSON object is accepted; checks come later.
#[derive(Debug, Default)]
pub(super) struct RpcFrame<'a> {
    pub(super) jsonrpc: Option<&'a str>,
    pub(super) id: Option<&'a str>,
    pub(super) method: Option<&'a str>,
    pub(super) params: Option<&'a str>,
    /// Whether it has a `result` or an `error`, as responses do.
    pub(super) response: bool,
    /// A duplicate member; it is unknown which of the two counts.
    pub(super) twice: Option<&'static str>,
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum RpcMemberKey {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    #[serde(other)]
    Other,
}

impl<'de> Deserialize<'de> for RpcFrame<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FrameVisitor)
    }
}

struct FrameVisitor;

impl<'de> Visitor<'de> for FrameVisitor {
    type Value = RpcFrame<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut frame = RpcFrame::default();
        while let Some(key) = map.next_key::<RpcMemberKey>()? {
            let (slot, name) = match key {
                RpcMemberKey::Jsonrpc => (&mut frame.jsonrpc, "jsonrpc"),
                RpcMemberKey::Id => (&mut frame.id, "id"),
                RpcMemberKey::Method => (&mut frame.method, "method"),
                RpcMemberKey::Params => (&mut frame.params, "params"),
                RpcMemberKey::Result | RpcMemberKey::Error => {
                    map.next_value::<IgnoredAny>()?;
                    frame.response = true;
                    continue;
                }
                RpcMemberKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if slot.replace(map.next_value::<&RawValue>()?.get()).is_some() {
                frame.twice = Some(name);
            }
        }
        Ok(frame)
    }
}

/// The members of a batch, at most [`MAX_BATCH`]. The others are only checked to be JSON.
#[derive(Debug, Default)]
pub(super) struct RpcBatchMembers<'a> {
    pub(super) members: Vec<&'a RawValue>,
    pub(super) too_many: bool,
}

impl<'de> Deserialize<'de> for RpcBatchMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = RpcBatchMembers<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut out = RpcBatchMembers::default();
        while out.members.len() < MAX_BATCH {
            match seq.next_element::<&RawValue>()? {
                Some(member) => out.members.push(member),
                None => return Ok(out),
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            out.too_many = true;
        }
        Ok(out)
    }
}

/// Whether brackets outside strings nest deeper than `limit`. Texts too short for that are not scanned.
pub(super) fn nests_deeper(text: &str, limit: usize) -> bool {
    if text.len() <= limit {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The content of a JSON string; borrowed if it has no escapes. `None` if the text is not a string.
pub(super) fn unquote_json(raw: &str) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(raw).ok().map(Cow::Owned) // silent-ok: a lone surrogate is no string of ours
}
