//! A record and its replay, side by side: what the kernel said then and now.
//!
//! Ids are compared by their order of appearance, times and durations not at all. Calls of a door run side by side, so that their events may
//! be interleaved: events are compared span by span.

use std::collections::HashMap;

use serde_json::Value;
use uuid::Uuid;

use super::Divergence;
use crate::event::kind;
use crate::ports::Recorded;

/// What no replay brings again: endings from outside, what happened to the record itself, what other doors did.
const SKIPPED: [&str; 7] = [
    kind::SESSION_STARTED,
    kind::SESSION_ENDED,
    kind::MESSAGE_RESUMED,
    kind::MESSAGE_REFUSED,
    "ckp.content.redacted",
    kind::AGENT_DESCRIBED,
    kind::TOOL_DESCRIBED,
];
/// Whole groups of types that replay does not run.
const OTHERS: [&str; 3] = ["ckp.memory.", "ckp.swarm.", "ckp.egress."];
/// Members that say when, how long, by which door, or under which id.
const IGNORED: [&str; 13] = [
    "attempts",
    "channel",
    // Prices are local.
    "cost_microusd",
    "door",
    "duration_ms",
    "execution_id",
    "expires_at",
    // What people saw: previews and files of that day.
    "question_hash",
    "resolution_id",
    "role",
    "sender",
    "shown",
    "plan_hash",
];

/// A side, reduced to what counts.
struct Side<'a> {
    /// Per span, in order of first appearance.
    spans: Vec<Vec<(&'a Recorded, Value)>>,
    skipped: u64,
}

pub(super) fn compare(then: &[Recorded], now: &[Recorded]) -> (u64, u64, Option<Divergence>) {
    let (then, now) = (Side::of(then), Side::of(now));
    let compared = then.spans.iter().map(Vec::len).sum::<usize>();
    let mut found: Vec<Divergence> = Vec::new();
    let empty = Vec::new();
    for at in 0..then.spans.len().max(now.spans.len()) {
        let pair = (
            then.spans.get(at).unwrap_or(&empty),
            now.spans.get(at).unwrap_or(&empty),
        );
        found.extend(first_difference(pair.0, pair.1));
    }
    let first = found.into_iter().min_by_key(|divergence| divergence.sequence);
    (u64::try_from(compared).unwrap_or(u64::MAX), then.skipped, first)
}

impl<'a> Side<'a> {
    fn of(events: &'a [Recorded]) -> Self {
        let mut ids: HashMap<Uuid, u64> = HashMap::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut side = Self {
            spans: Vec::new(),
            skipped: 0,
        };
        for event in events {
            let skipped = SKIPPED.contains(&event.kind.as_str())
                || OTHERS.iter().any(|prefix| event.kind.starts_with(prefix));
            if skipped {
                side.skipped += 1;
                continue;
            }
            let mut payload: Value = serde_json::from_str(&event.payload).unwrap_or_default(); // silent-ok: no object, nothing said
            let group = group_of(&payload);
            reduce(&mut payload, &mut ids);
            let at = *places.entry(group).or_insert_with(|| {
                side.spans.push(Vec::new());
                side.spans.len() - 1
            });
            if let Some(span) = side.spans.get_mut(at) {
                span.push((event, payload));
            }
        }
        side
    }
}

/// A turn is one line of events; a call from a door is one of its own.
fn group_of(payload: &Value) -> String {
    let text = |key: &str| payload.get(key).and_then(Value::as_str).map(str::to_owned);
    text("turn")
        .or_else(|| text("message_id"))
        .or_else(|| text("request_id"))
        .unwrap_or_default()
}

fn reduce(value: &mut Value, ids: &mut HashMap<Uuid, u64>) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !IGNORED.contains(&key.as_str()));
            for (_, member) in map.iter_mut() {
                reduce(member, ids);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| reduce(item, ids)),
        Value::String(text) => {
            if let Ok(id) = Uuid::try_parse(text) {
                let next = u64::try_from(ids.len()).unwrap_or(u64::MAX);
                *text = format!("id {}", ids.entry(id).or_insert(next));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn first_difference(then: &[(&Recorded, Value)], now: &[(&Recorded, Value)]) -> Option<Divergence> {
    for at in 0..then.len().max(now.len()) {
        let (was, is) = (then.get(at), now.get(at));
        let (event, detail) = match (was, is) {
            (None, None) => return None,
            (Some((event, _)), None) => (*event, "it does not come again".to_owned()),
            (None, Some((event, payload))) => {
                let after = then.last().map_or(0, |(event, _)| event.sequence + 1);
                let detail = format!("the replay goes on with `{}` {payload}", event.kind);
                return Some(Divergence {
                    sequence: after,
                    event_type: event.kind.clone(),
                    detail: clipped(&detail),
                });
            }
            (Some((event, payload)), Some((other, again))) => {
                match difference(event, payload, other, again) {
                    Some(detail) => (*event, detail),
                    None => continue,
                }
            }
        };
        return Some(Divergence {
            sequence: event.sequence,
            event_type: event.kind.clone(),
            detail: clipped(&detail),
        });
    }
    None
}

fn difference(event: &Recorded, payload: &Value, other: &Recorded, again: &Value) -> Option<String> {
    if event.kind != other.kind {
        return Some(format!("the replay has `{}` {again} in its place", other.kind));
    }
    if payload == again {
        return None;
    }
    let (Value::Object(was), Value::Object(is)) = (payload, again) else {
        return Some("its payload differs".to_owned());
    };
    let key = was
        .keys()
        .chain(is.keys())
        .find(|key| was.get(*key) != is.get(*key))?;
    let side = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), Value::to_string);
    let hint = if key == "request_hash" && event.kind == kind::PROVIDER_COMPLETED {
        " (the model is asked something else: prompt, conversation or tools differ)"
    } else {
        ""
    };
    Some(format!(
        "`{key}` was {}, is {}{hint}",
        side(was.get(key)),
        side(is.get(key))
    ))
}

fn clipped(text: &str) -> String {
    text.chars().take(400).collect()
}
