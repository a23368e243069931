//! Compares two aligned events member by member, and decides which members count.

use serde_json::{Map, Value};

use super::{DifferenceKind, DifferenceSignificance, TraceDifference};

/// Members that are never compared (CRA conformance, "Comparison Rules").
const IGNORED: [&str; 9] = [
    "event_id",
    "trace_id",
    "span_id",
    "request_id",
    "resolution_id",
    "execution_id",
    "timestamp",
    "event_hash",
    "previous_event_hash",
];

/// Members of an event that only give its position.
const PLACE: [&str; 3] = ["sequence", "session_id", "parent_span_id"];

/// How a member takes part in a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberWeight {
    Ignored,
    Minor,
    Major,
}

/// The weight of a payload's member, by its name.
pub(super) fn member_weight(name: &str) -> MemberWeight {
    if IGNORED.contains(&name) {
        return MemberWeight::Ignored;
    }
    let is_duration = matches!(
        name,
        "duration" | "elapsed" | "latency" | "uptime_ms" | "waited_ms" | "took_ms"
    ) || ["duration_", "elapsed_", "latency_"]
        .iter()
        .any(|word| name.starts_with(word))
        || ["_duration_ms", "_elapsed_ms", "_latency_ms"]
            .iter()
            .any(|word| name.ends_with(word));
    // `max_tokens` and `tokens_per_day` are settings, not counts.
    let is_count = matches!(name, "tokens" | "token_count" | "token_estimate")
        || matches!(
            name,
            "input_tokens"
                | "output_tokens"
                | "total_tokens"
                | "prompt_tokens"
                | "completion_tokens"
                | "cached_tokens"
        );
    let is_text = matches!(
        name,
        "message" | "error_message" | "description" | "detail" | "hint" | "note" | "summary"
    );
    if is_duration || is_count || is_text {
        MemberWeight::Minor
    } else {
        MemberWeight::Major
    }
}

/// The weight of an event's own member, by its name.
pub(super) fn weight_in_event(name: &str) -> MemberWeight {
    if PLACE.contains(&name) || IGNORED.contains(&name) {
        MemberWeight::Ignored
    } else {
        MemberWeight::Major
    }
}

/// Appends the differences between two events.
pub(super) fn compare_events(index: usize, before: &Value, after: &Value, out: &mut Vec<TraceDifference>) {
    let mut walk = DiffWalk {
        path: format!("/{index}"),
        out,
    };
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => walk.compare_members(before, after, weight_in_event),
        _ => walk.compare_values(before, after, DifferenceSignificance::Major),
    }
}

struct DiffWalk<'a> {
    path: String,
    out: &'a mut Vec<TraceDifference>,
}

impl DiffWalk<'_> {
    fn compare_members(
        &mut self,
        before: &Map<String, Value>,
        after: &Map<String, Value>,
        weight: fn(&str) -> MemberWeight,
    ) {
        let added = after.keys().filter(|key| !before.contains_key(*key));
        for key in before.keys().chain(added) {
            let significance = match weight(key) {
                MemberWeight::Ignored => continue,
                MemberWeight::Minor => DifferenceSignificance::Minor,
                MemberWeight::Major => DifferenceSignificance::Major,
            };
            let escaped = key.replace('~', "~0").replace('/', "~1");
            self.compare_inside(&escaped, before.get(key), after.get(key), significance);
        }
    }

    fn compare_inside(
        &mut self,
        step: &str,
        before: Option<&Value>,
        after: Option<&Value>,
        significance: DifferenceSignificance,
    ) {
        let length = self.path.len();
        self.path.push('/');
        self.path.push_str(step);
        match (before, after) {
            (Some(before), Some(after)) => self.compare_values(before, after, significance),
            // A missing or extra member is a structural change, whatever its name.
            (Some(before), None) => self.push(
                DifferenceKind::Removed,
                DifferenceSignificance::Major,
                Some(before),
                None,
            ),
            (None, Some(after)) => self.push(
                DifferenceKind::Added,
                DifferenceSignificance::Major,
                None,
                Some(after),
            ),
            (None, None) => {}
        }
        self.path.truncate(length);
    }

    fn compare_values(&mut self, before: &Value, after: &Value, significance: DifferenceSignificance) {
        match (before, after) {
            (Value::Object(before), Value::Object(after)) => {
                self.compare_members(before, after, member_weight)
            }
            (Value::Array(before), Value::Array(after)) => {
                for index in 0..before.len().max(after.len()) {
                    self.compare_inside(
                        &index.to_string(),
                        before.get(index),
                        after.get(index),
                        significance,
                    );
                }
            }
            (before, after) if before == after => {}
            (before, after) if kind(before) == kind(after) => {
                self.push(
                    DifferenceKind::ValueChanged,
                    significance,
                    Some(before),
                    Some(after),
                );
            }
            (before, after) => self.push(
                DifferenceKind::TypeChanged,
                DifferenceSignificance::Major,
                Some(before),
                Some(after),
            ),
        }
    }

    fn push(
        &mut self,
        change: DifferenceKind,
        significance: DifferenceSignificance,
        before: Option<&Value>,
        after: Option<&Value>,
    ) {
        self.out.push(TraceDifference {
            path: self.path.clone(),
            change,
            significance,
            before: before.cloned(),
            after: after.cloned(),
        });
    }
}

const fn kind(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}
