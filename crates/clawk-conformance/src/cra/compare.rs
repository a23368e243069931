//! The document's comparison rules: what differs between two runs by nature is ignored, at any depth.

use serde_json::Value;

/// Ids, times and digests, at any depth, and what hangs on them.
const DYNAMIC: [&str; 14] = [
    "event_id",
    "trace_id",
    "span_id",
    "parent_span_id",
    "request_id",
    "resolution_id",
    "execution_id",
    "session_id",
    "approval_id",
    "timestamp",
    "expires_at",
    "event_hash",
    "previous_event_hash",
    "duration_ms",
];

/// What must be the same of a dynamic member: absent, null, or there.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Value::from("*")
        }
    }
}

/// The value without what is dynamic.
pub(super) fn steady(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| {
                let kept = if DYNAMIC.contains(&key.as_str()) {
                    shape(member)
                } else {
                    steady(member)
                };
                (key.clone(), kept)
            })
            .collect(),
        Value::Array(items) => items.iter().map(steady).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// The first place where two values differ, as a JSON pointer with both sides; `None`: the same.
pub(super) fn first_difference(wanted: &Value, found: &Value) -> Option<(String, Value, Value)> {
    differs(&steady(wanted), &steady(found), String::new())
}

fn differs(wanted: &Value, found: &Value, at: String) -> Option<(String, Value, Value)> {
    match (wanted, found) {
        (Value::Object(a), Value::Object(b)) => {
            // A payload may say more than the standard list asks for (R31), and nothing less.
            let more = b.keys().filter(|_| !at.contains("/payload"));
            let mut keys: Vec<&String> = a.keys().chain(more).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.into_iter().find_map(|key| {
                let (a, b) = (a.get(key), b.get(key));
                if a == b {
                    return None;
                }
                let at = format!("{at}/{key}");
                match (a, b) {
                    (Some(a), Some(b)) => differs(a, b, at),
                    (a, b) => Some((at, absent(a), absent(b))),
                }
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            let longest = a.len().max(b.len());
            (0..longest).find_map(|index| {
                let at = format!("{at}/{index}");
                match (a.get(index), b.get(index)) {
                    (Some(a), Some(b)) => differs(a, b, at),
                    (a, b) => Some((at, absent(a), absent(b))),
                }
            })
        }
        (a, b) if a == b => None,
        (a, b) => Some((at, a.clone(), b.clone())),
    }
}

fn absent(value: Option<&Value>) -> Value {
    value.cloned().unwrap_or_else(|| Value::from("(absent)"))
}
