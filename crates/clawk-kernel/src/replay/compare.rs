//! Compares a record with its replay, event by event.
//!
//! Ids are compared by their order of appearance, times and durations not at all. Calls of a door run side by side, so that their events may
//! be interleaved: events are compared span by span.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;
use uuid::Uuid;

use super::{ReplayDivergence, tape};
use crate::carp;
use crate::event::kind;
use crate::ports::RecordedEvent;
use crate::recover;

/// What no replay brings again: endings from outside, what happened to the record itself, what other doors did.
const SKIPPED: [&str; 11] = [
    // What was found was taken out before it was recorded.
    kind::SCREEN_SECRET,
    kind::SESSION_STARTED,
    kind::SESSION_ENDED,
    kind::MESSAGE_RESUMED,
    kind::MESSAGE_REFUSED,
    // What was chosen stands in each message, too.
    kind::CONVERSATION_MODEL,
    "ckp.content.redacted",
    // A session that was taken up by another run told of all files anew.
    kind::CONTEXT_READ,
    kind::AGENT_DESCRIBED,
    kind::TOOL_DESCRIBED,
    // A session that was taken up by another run was told of all providers anew.
    kind::PROVIDER_ADAPTED,
];
/// Whole groups of types that replay does not run.
const OTHERS: [&str; 7] = [
    "ckp.channel.",
    "ckp.delivery.",
    "ckp.memory.",
    "ckp.context.written",
    "ckp.swarm.",
    "ckp.egress.",
    "ckp.undo.",
];
/// Members that say when, how long, by which door, or under which id.
const IGNORED: [&str; 24] = [
    // With other Atlases in their place, none came or went.
    "atlas_changes",
    "attempts",
    "channel",
    "conversation",
    // How a turn ended in a word, and what it was offered, which earlier versions did not record.
    "could_act",
    "declined",
    // Prices are local.
    "cost_microusd",
    "direct",
    "door",
    "duration_ms",
    "execution_id",
    "expires_at",
    // What people saw: previews and files of that day.
    "question_hash",
    "platform_ids",
    "resolution_id",
    "role",
    "seen",
    "sender",
    "shown",
    "task_id",
    "plan_hash",
    "basis_hash",
    // What a call took is another's limits and another day's time.
    "took",
    "why",
];

/// Events that belong together, with their payloads as compared.
type Span<'a> = Vec<(&'a RecordedEvent, Value)>;

/// A side, reduced to what counts.
#[derive(Default)]
struct ComparedSide<'a> {
    /// Per turn and per call from a door, in order of first appearance.
    spans: Vec<Span<'a>>,
    /// By goal: calls that come side by side resolve in any order.
    resolutions: BTreeMap<String, Span<'a>>,
    skipped: u64,
}

/// Where the next event goes.
#[derive(Default)]
struct ComparePosition {
    /// The goal of the resolution that is under way: it is written in one piece.
    goal: Option<String>,
    /// It was made for a message that had been resolved before a crash.
    again: bool,
    /// The turn or call of the last `action.…`, which a judgement of an Atlas stands beside.
    call: String,
    /// Per goal, messages less their resolutions.
    owed: HashMap<String, i64>,
    resumed: bool,
}

pub(super) fn compare(then: &[RecordedEvent], now: &[RecordedEvent]) -> (u64, u64, Option<ReplayDivergence>) {
    let judged = tape::first_judged(then).unwrap_or(u64::MAX);
    let (then, now) = (ComparedSide::of(then), ComparedSide::of(now));
    let resolved = then.resolutions.values().map(Vec::len).sum::<usize>();
    let compared = then.spans.iter().map(Vec::len).sum::<usize>() + resolved;
    let mut found: Vec<ReplayDivergence> = Vec::new();
    let empty = Vec::new();
    for at in 0..then.spans.len().max(now.spans.len()) {
        let pair = (
            then.spans.get(at).unwrap_or(&empty),
            now.spans.get(at).unwrap_or(&empty),
        );
        found.extend(first_difference(pair.0, pair.1, judged));
    }
    let goals: BTreeSet<&String> = then.resolutions.keys().chain(now.resolutions.keys()).collect();
    for goal in goals {
        let pair = (
            then.resolutions.get(goal).unwrap_or(&empty),
            now.resolutions.get(goal).unwrap_or(&empty),
        );
        found.extend(first_difference(pair.0, pair.1, judged));
    }
    let first = found.into_iter().min_by_key(|divergence| divergence.sequence);
    (u64::try_from(compared).unwrap_or(u64::MAX), then.skipped, first)
}

impl<'a> ComparedSide<'a> {
    fn of(events: &'a [RecordedEvent]) -> Self {
        let mut ids: HashMap<Uuid, u64> = HashMap::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut place = ComparePosition::default();
        let mut side = Self::default();
        let lost = lost(events);
        for event in events {
            let mut payload = Value::Object(super::read::parse_payload(event));
            place.look(event, &payload);
            let skipped = place.again
                || inference(event, &payload).is_some_and(|id| lost.contains(id))
                || SKIPPED.contains(&event.kind.as_str())
                || OTHERS.iter().any(|prefix| event.kind.starts_with(prefix));
            if skipped {
                side.skipped += 1;
                place.behind(event);
                continue;
            }
            let group = match event.kind.as_str() {
                kind::POLICY_EVALUATED | kind::POLICY_VIOLATED => place.call.clone(),
                _ => group_of(&payload),
            };
            without_wait(event, &mut payload);
            reduce(&mut payload, &mut ids);
            if let Some(goal) = &place.goal {
                let span = side.resolutions.entry(goal.clone()).or_default();
                span.push((event, payload));
            } else {
                let at = *places.entry(group).or_insert_with(|| {
                    side.spans.push(Vec::new());
                    side.spans.len() - 1
                });
                if let Some(span) = side.spans.get_mut(at) {
                    span.push((event, payload));
                }
            }
            place.behind(event);
        }
        side
    }
}

impl ComparePosition {
    fn look(&mut self, event: &RecordedEvent, payload: &Value) {
        let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                let said = event.content.as_ref().map(|content| content.bytes.clone());
                // silent-ok: without its text there is no replay
                let said = said
                    .and_then(|said| String::from_utf8(said).ok())
                    .unwrap_or_default();
                *self.owed.entry(carp::goal_of(&said)).or_default() += 1;
            }
            kind::MESSAGE_RESUMED => self.resumed = true,
            kind::CARP_REQUEST => {
                let goal = text("goal").to_owned();
                let owed = self.owed.entry(goal.clone()).or_default();
                self.again = self.resumed && *owed <= 0;
                *owed -= 1;
                self.resumed = false;
                self.goal = Some(goal);
            }
            kind::ACTION_REQUESTED | kind::ACTION_APPROVED | kind::ACTION_DENIED => {
                self.call = group_of(payload);
            }
            _ => {}
        }
    }

    fn behind(&mut self, event: &RecordedEvent) {
        if event.kind == kind::CARP_COMPLETED || event.kind == kind::ERROR_OCCURRED {
            self.goal = None;
            self.again = false;
        }
    }
}

/// The inference that an event of a provider is about.
fn inference<'a>(event: &RecordedEvent, payload: &'a Value) -> Option<&'a str> {
    let of_provider = event.kind.starts_with("ckp.provider.");
    payload
        .get("inference_id")
        .and_then(Value::as_str)
        .filter(|_| of_provider)
}

/// Inferences that a crash cut short: what was asked then is asked again by the turn that was taken up.
fn lost(events: &[RecordedEvent]) -> BTreeSet<String> {
    let failed = events.iter().filter(|event| event.kind == kind::PROVIDER_FAILED);
    let payloads = failed.map(|event| (event, Value::Object(super::read::parse_payload(event))));
    let lost = payloads.filter(|(_, payload)| payload.get("kind").is_some_and(|kind| kind == recover::LOST));
    lost.filter_map(|(event, payload)| inference(event, &payload).map(str::to_owned))
        .collect()
}

/// A turn is one line of events; a call from a door is one of its own.
fn group_of(payload: &Value) -> String {
    let text = |key: &str| payload.get(key).and_then(Value::as_str).map(str::to_owned);
    text("turn")
        .or_else(|| text("message_id"))
        .or_else(|| text("request_id"))
        .unwrap_or_default()
}

/// How long a spent limit asks to wait depends on the moment of the question: a refusal is compared without it.
fn without_wait(event: &RecordedEvent, payload: &mut Value) {
    let content = event
        .content
        .as_ref()
        .filter(|_| event.kind == kind::ACTION_DENIED);
    // silent-ok: what is no JSON is compared by its digest
    let said = content.and_then(|content| serde_json::from_slice::<Value>(&content.bytes).ok());
    if let (Some(mut said), Value::Object(payload)) = (said, payload)
        && forget(&mut said, "retry_after_ms")
    {
        payload.insert("result_hash".to_owned(), Value::String(said.to_string()));
    }
}

fn forget(value: &mut Value, name: &str) -> bool {
    match value {
        Value::Object(map) => {
            let given = map.remove(name).is_some_and(|wait| !wait.is_null());
            map.values_mut()
                .fold(given, |given, member| forget(member, name) || given)
        }
        _ => false,
    }
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

/// `judged`: from this place on, the record knows of authors.
fn first_difference(
    then: &[(&RecordedEvent, Value)],
    now: &[(&RecordedEvent, Value)],
    judged: u64,
) -> Option<ReplayDivergence> {
    for at in 0..then.len().max(now.len()) {
        let (was, is) = (then.get(at), now.get(at));
        let (event, detail) = match (was, is) {
            (None, None) => return None,
            (Some((event, _)), None) => (*event, "it does not come again".to_owned()),
            (None, Some((event, payload))) => {
                let after = then.last().map_or(0, |(event, _)| event.sequence + 1);
                let detail = format!("the replay goes on with `{}` {payload}", event.kind);
                return Some(ReplayDivergence {
                    sequence: after,
                    event_type: event.kind.clone(),
                    detail: clipped(&detail),
                });
            }
            (Some((event, payload)), Some((other, again))) => {
                let lacks: &[&str] = match event.sequence < judged {
                    true => &["author_kind", "taint"],
                    false => &[],
                };
                match difference((event, payload), (other, again), lacks) {
                    Some(detail) => (*event, detail),
                    None => continue,
                }
            }
        };
        return Some(ReplayDivergence {
            sequence: event.sequence,
            event_type: event.kind.clone(),
            detail: clipped(&detail),
        });
    }
    None
}

/// `lacks`: members that the record's version did not know; where it has none, the replay's are not compared.
fn difference(
    (event, payload): (&RecordedEvent, &Value),
    (other, again): (&RecordedEvent, &Value),
    lacks: &[&str],
) -> Option<String> {
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
        .filter(|key| was.contains_key(*key) || !lacks.contains(&key.as_str()))
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
