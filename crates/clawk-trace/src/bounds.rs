//! Limits the size of events, so that no field and no whole event is larger than every verifier accepts.
//!
//! A field may come from anywhere: a model, an MCP server, a peer, a channel, an error. So every payload passes through this
//! module. It never refuses a payload: a text that is too long is replaced by its beginning, its length and its digest. A number
//! without an agreed text (R27) becomes the nearest number with one, or a text.

#[cfg(test)]
mod tests;

use clawk_proto::trace::PAYLOAD_MAX_BYTES;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::canonical::{payload_of, scan_canonical};
use crate::chain::digest_of;

/// The longest text in a payload, bytes.
pub const TEXT_MAX_BYTES: usize = 64 * 1024;
/// The length of the beginning that is kept of a longer text, bytes.
const HEAD_MAX_BYTES: usize = 1024;
/// The largest integer that every reader represents exactly (R27).
const EXACT_MAX: u64 = 1 << 53;

/// Limits an event's payload: canonical, no text longer than [`TEXT_MAX_BYTES`], at most [`PAYLOAD_MAX_BYTES`] in total. A payload
/// within the limits is returned unchanged.
#[must_use]
pub fn bounded(payload: Box<RawValue>) -> Box<RawValue> {
    let text = payload.get();
    // A text inside the payload can't be longer than the payload.
    if text.len() <= TEXT_MAX_BYTES && scan_canonical(text).is_some() {
        return payload;
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => rebuilt(members).unwrap_or_else(|| whole(text)),
        // A payload that is not an object is refused by the journal.
        Ok(_) => payload,
        Err(_) => whole(text), // silent-ok: nested too deep to be read; its digest stays
    }
}

/// Shortens long texts first, then the largest members, until the payload fits.
fn rebuilt(mut members: Map<String, Value>) -> Option<Box<RawValue>> {
    for member in members.values_mut() {
        exact(member);
        if let Value::String(text) = member
            && text.len() > TEXT_MAX_BYTES
        {
            *member = Value::String(folded(text));
        }
    }
    let mut sizes: Vec<(usize, String)> = members
        .iter()
        .map(|(name, member)| (member.to_string().len(), name.clone()))
        .collect();
    let frame: usize = members.keys().map(|name| json!(name).to_string().len() + 2).sum();
    let mut total = frame + sizes.iter().map(|(size, _)| size).sum::<usize>();
    sizes.sort_unstable_by(|left, right| right.cmp(left));
    for (size, name) in sizes {
        if total <= PAYLOAD_MAX_BYTES {
            break;
        }
        let member = members.get_mut(&name)?;
        let text = match &*member {
            Value::String(text) => folded(text),
            other => folded(&other.to_string()),
        };
        *member = Value::String(text);
        total = total.saturating_sub(size) + member.to_string().len();
    }
    let payload = payload_of(&members).ok()?; // silent-ok: then the whole is replaced
    (payload.get().len() <= PAYLOAD_MAX_BYTES).then_some(payload)
}

/// The replacement for a payload whose members can't be kept separately.
fn whole(text: &str) -> Box<RawValue> {
    // silent-ok: a text always has a canonical form
    payload_of(&json!({ "oversize": folded(text) })).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The text's beginning, length and digest.
fn folded(text: &str) -> String {
    let head = text
        .get(..text.floor_char_boundary(HEAD_MAX_BYTES))
        .unwrap_or(text);
    let digest = digest_of(text.as_bytes()).to_hex();
    format!("{head}… [{} bytes, sha256:{digest}]", text.len())
}

/// Replaces numbers by ones that all readers write in the same way.
fn exact(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(exact),
        Value::Object(members) => members.values_mut().for_each(exact),
        Value::Number(number) => {
            if let Some(count) = number.as_u64() {
                if count > EXACT_MAX {
                    *value = EXACT_MAX.into();
                }
            } else if let Some(count) = number.as_i64() {
                if count.unsigned_abs() > EXACT_MAX {
                    *value = EXACT_MAX.cast_signed().wrapping_neg().into();
                }
            } else {
                *value = Value::String(number.to_string());
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
