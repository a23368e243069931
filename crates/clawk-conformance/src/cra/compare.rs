//! The document's comparison rules: values that naturally differ between two runs are ignored at any depth.

use serde_json::Value;

/// Members with ids, times and digests, and members derived from them.
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

/// Returns the comparable part of a dynamic member: absent, null, or present.
fn dynamic_shape(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            Value::from("*")
        }
    }
}

/// Returns the value without dynamic members.
pub(super) fn strip_dynamic(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .map(|(key, member)| {
                let kept = if DYNAMIC.contains(&key.as_str()) {
                    dynamic_shape(member)
                } else {
                    strip_dynamic(member)
                };
                (key.clone(), kept)
            })
            .collect(),
        Value::Array(items) => items.iter().map(strip_dynamic).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns the first difference as a JSON pointer with both values; `None`: the values are equal.
pub(super) fn first_difference(wanted: &Value, found: &Value) -> Option<(String, Value, Value)> {
    find_difference(&strip_dynamic(wanted), &strip_dynamic(found), String::new())
}

fn find_difference(wanted: &Value, found: &Value, at: String) -> Option<(String, Value, Value)> {
    match (wanted, found) {
        (Value::Object(a), Value::Object(b)) => {
            // A payload may have more members than the standard requires (R31), but not fewer.
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
                    (Some(a), Some(b)) => find_difference(a, b, at),
                    (a, b) => Some((at, or_absent_mark(a), or_absent_mark(b))),
                }
            })
        }
        (Value::Array(a), Value::Array(b)) => {
            let longest = a.len().max(b.len());
            (0..longest).find_map(|index| {
                let at = format!("{at}/{index}");
                match (a.get(index), b.get(index)) {
                    (Some(a), Some(b)) => find_difference(a, b, at),
                    (a, b) => Some((at, or_absent_mark(a), or_absent_mark(b))),
                }
            })
        }
        (a, b) if a == b => None,
        (a, b) => Some((at, a.clone(), b.clone())),
    }
}

fn or_absent_mark(value: Option<&Value>) -> Value {
    value.cloned().unwrap_or_else(|| Value::from("(absent)"))
}
