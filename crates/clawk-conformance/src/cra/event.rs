//! Validates a trace event: its members, and the payload of each standard type.

use serde_json::{Map, Value, json};
use uuid::Uuid;

/// The standard types and their required payload members. Other members are allowed (R31).
const TYPES: &[(&str, &[&str])] = &[
    ("session.started", &["agent_id", "goal"]),
    ("session.ended", &["reason", "duration_ms"]),
    ("carp.request.received", &["request_id", "operation", "goal"]),
    (
        "carp.resolution.completed",
        &["resolution_id", "decision_type", "allowed_count", "denied_count"],
    ),
    ("carp.resolution.cached", &["resolution_id", "cache_hit"]),
    ("action.requested", &["action_id", "parameters_hash"]),
    ("action.approved", &["action_id", "resolution_id"]),
    ("action.denied", &["action_id", "reason", "policy_id"]),
    ("action.executed", &["action_id", "execution_id", "duration_ms"]),
    ("action.failed", &["action_id", "error_code", "error_message"]),
    ("policy.evaluated", &["policy_id", "result"]),
    ("policy.violated", &["policy_id", "violation_type"]),
    ("context.injected", &["block_id", "source", "token_count"]),
    ("context.redacted", &["block_id", "redaction_reason"]),
];
const MEMBERS: [&str; 12] = [
    "trace_version",
    "event_id",
    "trace_id",
    "span_id",
    "parent_span_id",
    "session_id",
    "sequence",
    "timestamp",
    "event_type",
    "payload",
    "event_hash",
    "previous_event_hash",
];
/// Payload members with a closed set of values.
const CHOICES: &[(&str, &str, &[&str])] = &[
    (
        "session.ended",
        "reason",
        &["completed", "timeout", "error", "cancelled"],
    ),
    ("policy.evaluated", "result", &["allow", "deny", "not_applicable"]),
    (
        "policy.violated",
        "violation_type",
        &[
            "rate_limit",
            "budget",
            "denied_action",
            "invalid_parameters",
            "unauthorized",
        ],
    ),
    (
        "carp.resolution.completed",
        "decision_type",
        &["allow", "deny", "partial", "requires_approval"],
    ),
];

/// Returns all faults, each with its path.
pub(super) fn find_faults(event: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    let mut fault = |path: String, message: &str| found.push(json!({ "path": path, "message": message }));
    let Value::Object(members) = event else {
        fault(String::new(), "not an object");
        return found;
    };
    for name in MEMBERS {
        match members.get(name) {
            None if name != "parent_span_id" => fault(format!("/{name}"), "missing"),
            Some(value) if !is_valid_field(name, value) => fault(format!("/{name}"), "not of its form"),
            Some(_) | None => {}
        }
    }
    for name in members.keys().filter(|name| !MEMBERS.contains(&name.as_str())) {
        fault(format!("/{name}"), "not a member of an event");
    }
    let empty = Map::new();
    let payload = members
        .get("payload")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let event_type = members
        .get("event_type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let wanted = TYPES.iter().find(|(name, _)| *name == event_type);
    for name in wanted.into_iter().flat_map(|(_, names)| names.iter()) {
        if !payload.contains_key(*name) {
            fault(format!("/payload/{name}"), "missing");
        }
    }
    for (_, name, choices) in CHOICES.iter().filter(|(of, ..)| *of == event_type) {
        let value = payload.get(*name);
        if value.is_some_and(|value| !value.as_str().is_some_and(|word| choices.contains(&word))) {
            fault(format!("/payload/{name}"), "not one of its values");
        }
    }
    found
}

fn is_valid_field(name: &str, value: &Value) -> bool {
    let text = value.as_str();
    match name {
        "trace_version" => text == Some("1.0"),
        "parent_span_id" => value.is_null() || text.is_some_and(is_id),
        "sequence" => value.is_u64(),
        "timestamp" => text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()),
        "event_type" => text.is_some_and(|text| !text.is_empty()),
        "payload" => value.is_object(),
        "event_hash" | "previous_event_hash" => text.is_some_and(is_digest),
        _ => text.is_some_and(is_id),
    }
}

fn is_id(text: &str) -> bool {
    text.len() == 36 && Uuid::try_parse(text).is_ok()
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
