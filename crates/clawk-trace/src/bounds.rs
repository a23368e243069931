//! The size of an event: no field, and no event as a whole, is larger than every verifier takes.
//!
//! A field of an event may come from anywhere: a model, an MCP server, a peer, a channel, an error. So the bound is held in one
//! place, through which every payload goes, and it never refuses: what is too long is replaced by its beginning, its length
//! and its digest. Numbers without an agreed text (R27) become the nearest one that has one, or a text.

#[cfg(test)]
mod tests;

use clawk_proto::trace::PAYLOAD_MAX_BYTES;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::canonical::{payload_of, scan};
use crate::chain::digest_of;

/// Most bytes of one text in a payload.
pub const TEXT_MAX_BYTES: usize = 64 * 1024;
/// What is kept of a field that is longer.
const HEAD_MAX_BYTES: usize = 1024;
/// The greatest integer that every reader keeps exact (R27).
const EXACT_MAX: u64 = 1 << 53;

/// Bounds a payload for an event: canonical, no text longer than [`TEXT_MAX_BYTES`], at most [`PAYLOAD_MAX_BYTES`] in total.
/// A payload within these bounds is returned unchanged.
#[must_use]
pub fn bounded(payload: Box<RawValue>) -> Box<RawValue> {
    let text = payload.get();
    // No text in it can be longer than itself.
    if text.len() <= TEXT_MAX_BYTES && scan(text).is_some() {
        return payload;
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => rebuilt(members).unwrap_or_else(|| whole(text)),
        // What is not an object is not a payload: the journal refuses it.
        Ok(_) => payload,
        Err(_) => whole(text), // silent-ok: nested too deep to be read; its digest stays
    }
}

/// Long texts first; if that is not enough, the largest members, until the rest fits.
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

/// What is left of a payload whose members can't be kept apart.
fn whole(text: &str) -> Box<RawValue> {
    // silent-ok: a text always has a canonical form
    payload_of(&json!({ "oversize": folded(text) })).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The beginning, the length and the digest.
fn folded(text: &str) -> String {
    let head = text
        .get(..text.floor_char_boundary(HEAD_MAX_BYTES))
        .unwrap_or(text);
    let digest = digest_of(text.as_bytes()).to_hex();
    format!("{head}… [{} bytes, sha256:{digest}]", text.len())
}

/// Every number as one that all readers write alike.
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
