//! A shadow run: a recorded session again under another manifest, or by another version, and what would be decided otherwise.
//!
//! The record plays the world, as in a replay: models say what they said, tools end as they ended, people answer as they
//! answered the same question. Only the decisions are compared, by meaning: which verdict a call got and how a message ended.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;

use clawk_manifest::model::Manifest;
use clawk_plan::{Plan, SandboxRefusal};
use clawk_proto::{Digest, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::read::{parse_payload, text_field};
use super::{PlayedTape, ReplayError, ReplayTape, ToolFacts, play_tape};
use crate::SAMPLING;
use crate::event::kind;
use crate::ports::RecordedEvent;

/// The static checks of a built-in tool, by its name; `None`: there is no such built-in.
pub type StaticCheck = fn(&str, &Map<String, Value>, &Plan, &Path) -> Option<Result<(), SandboxRefusal>>;

/// What takes the place of the recorded agent.
#[derive(Debug, Clone, Default)]
pub struct ShadowAgent {
    /// Another manifest; `None`: the recorded one.
    pub manifest: Option<Box<Manifest>>,
    /// Descriptions of tools that take the place of the recorded ones, or that the record does not have.
    pub tools: BTreeMap<String, ToolFacts>,
    /// Static checks of the built-ins among these tools, where the sandboxes are not those of the record.
    pub checks: Option<(StaticCheck, BTreeSet<String>)>,
}

/// What a shadow run of one session found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionShadowReport {
    /// The session.
    pub session_id: SessionId,
    /// Decisions of the record: calls that were decided, and messages that ended.
    pub decisions: usize,
    /// Questions to models that would have another text: the answers of the record stand for them all the same.
    pub prompts_differ: usize,
    /// Decisions that would be others.
    pub differences: Vec<DecisionDifference>,
}

/// A decision that would be another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecisionDifference {
    /// The session.
    pub session_id: SessionId,
    /// `call` or `message`.
    pub what: String,
    /// The message that it belongs to, counted from 1; none: a call from a door.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<usize>,
    /// The event of the record that asked for it; none: the record has no such call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// When that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// The call's id in the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Digest of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_hash: Option<Digest>,
    /// In the record.
    pub was: ComparedDecision,
    /// In the shadow run.
    pub would_be: ComparedDecision,
}

/// One decision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComparedDecision {
    /// Of a call: `allow`, `audit`, `ask`, `deny`, `not_reached` (it does not come). Of a message: `answered`, `refused`,
    /// `cancelled`, `stopped`, `failed`, `open` (it has no end).
    pub verdict: String,
    /// What refused it: `policy`, `autonomy`, `role`, `sandbox`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl DecisionDifference {
    /// Both are about the same decision and come to the same verdict.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        let place = |one: &Self| {
            (
                one.session_id,
                one.what.clone(),
                one.message,
                one.sequence,
                one.tool.clone(),
                one.arguments_hash,
            )
        };
        place(self) == place(other) && self.would_be.verdict == other.would_be.verdict
    }
}

/// Runs a tape with `shadow` in place of the recorded agent. `context_dir` holds the context files of the agent that runs.
///
/// # Errors
/// See [`ReplayError`]; a difference is the answer, not an error.
pub async fn replay_shadow(
    mut tape: ReplayTape,
    context_dir: &Path,
    shadow: ShadowAgent,
) -> Result<SessionShadowReport, ReplayError> {
    if let Some(manifest) = &shadow.manifest {
        drop_declarations(&mut tape);
        tape.facts.manifest = (**manifest).clone();
    }
    tape.tools.extend(shadow.tools.clone());
    tape.shadow = Some(shadow);
    let session = tape.session;
    let PlayedTape { again, events, .. } = play_tape(tape, context_dir).await?;
    let (then, now) = (collect_decisions(&events), collect_decisions(&again));
    Ok(SessionShadowReport {
        session_id: session,
        decisions: then.len(),
        prompts_differ: prompts_differ(&events, &again),
        differences: find_differences(session, then, now),
    })
}

/// What the old manifest said of a tool stands in its description, too: it is the new manifest's turn to say it.
fn drop_declarations(tape: &mut ReplayTape) {
    for old in &tape.facts.manifest.tools {
        let Some(facts) = tape.tools.get_mut(&old.name) else {
            continue;
        };
        let said = |name: &String, value: &Value| old.annotations.get(name) == Some(value);
        facts.annotations.retain(|name, value| !said(name, value));
        facts
            .labels
            .retain(|name, value| old.labels.get(name) != Some(value));
    }
}

/// A decision, and what it is about.
#[derive(Debug, Clone)]
struct Decision {
    what: &'static str,
    message: Option<usize>,
    sequence: u64,
    timestamp: String,
    request_id: Option<String>,
    tool: Option<String>,
    arguments: Option<Digest>,
    judged: Option<ComparedDecision>,
}

impl Decision {
    /// What the decision of the other side is found by.
    fn match_key(&self) -> (&'static str, Option<usize>, Option<&str>, Option<Digest>) {
        (self.what, self.message, self.tool.as_deref(), self.arguments)
    }
}

/// Every decision of a session, in order. A call that ended before it was decided is none.
#[expect(clippy::too_many_lines, reason = "one arm for each type of event")]
fn collect_decisions(events: &[RecordedEvent]) -> Vec<Decision> {
    let mut found: Vec<Decision> = Vec::new();
    let mut messages: HashMap<String, usize> = HashMap::new();
    let mut calls: HashMap<String, usize> = HashMap::new();
    for event in events {
        let facts = parse_payload(event);
        let own = |key: &str| text_field(&facts, key).unwrap_or_default();
        let blank = |what, message| Decision {
            what,
            message,
            sequence: event.sequence,
            timestamp: event.at.to_string(),
            request_id: None,
            tool: None,
            arguments: None,
            judged: None,
        };
        let judged = |verdict: &str| ComparedDecision {
            verdict: verdict.to_owned(),
            by: text_field(&facts, "by"),
            policy: text_field(&facts, "policy_id"),
            rule: text_field(&facts, "rule_id"),
            reason: text_field(&facts, "reason"),
        };
        match event.kind.as_str() {
            kind::MESSAGE_ACCEPTED => {
                let ordinal = messages.len() + 1;
                messages.insert(own("message_id"), ordinal);
                found.push(blank("message", Some(ordinal)));
            }
            kind::ACTION_REQUESTED if own("action_id") != SAMPLING => {
                let message = text_field(&facts, "turn").and_then(|turn| messages.get(&turn).copied());
                calls.insert(own("request_id"), found.len());
                found.push(Decision {
                    request_id: text_field(&facts, "request_id"),
                    tool: text_field(&facts, "action_id"),
                    arguments: text_field(&facts, "parameters_hash").and_then(|hex| Digest::from_hex(&hex)),
                    ..blank("call", message)
                });
            }
            kind::APPROVAL_REQUESTED | kind::ACTION_APPROVED | kind::ACTION_DENIED => {
                let verdict = match (event.kind.as_str(), own("effect").as_str()) {
                    (kind::APPROVAL_REQUESTED, _) | (_, "require-approval") => "ask",
                    (kind::ACTION_APPROVED, "audit-only") => "audit",
                    (kind::ACTION_APPROVED, "allow") => "allow",
                    (_, _) => "deny",
                };
                let call = calls.get(&own("request_id")).and_then(|at| found.get_mut(*at));
                if let Some(call) = call.filter(|call| call.judged.is_none()) {
                    call.judged = Some(judged(verdict));
                }
            }
            kind::TURN_STOPPED => {
                let ordinal = messages.get(&own("turn")).copied();
                end_message(
                    &mut found,
                    ordinal,
                    ComparedDecision {
                        by: text_field(&facts, "guard"),
                        ..judged("stopped")
                    },
                );
            }
            kind::MESSAGE_ANSWERED => {
                let declined = facts.get("declined") == Some(&Value::Bool(true));
                let word = if declined {
                    "refused".to_owned()
                } else {
                    own("end")
                };
                end_message(
                    &mut found,
                    messages.get(&own("message_id")).copied(),
                    judged(&word),
                );
            }
            kind::MESSAGE_DEAD => {
                end_message(
                    &mut found,
                    messages.get(&own("message_id")).copied(),
                    judged("failed"),
                );
            }
            _ => {}
        }
    }
    for decision in &mut found {
        if decision.what == "message" && decision.judged.is_none() {
            decision.judged = Some(ComparedDecision {
                verdict: "open".to_owned(),
                ..ComparedDecision::default()
            });
        }
    }
    found.retain(|decision| decision.judged.is_some());
    found
}

/// The end of a message; what stopped its turn stays the end.
fn end_message(found: &mut [Decision], ordinal: Option<usize>, judged: ComparedDecision) {
    let message = found
        .iter_mut()
        .find(|one| one.what == "message" && one.message == ordinal && ordinal.is_some());
    if let Some(message) = message.filter(|message| message.judged.is_none()) {
        message.judged = Some(judged);
    }
}

/// Pairs the decisions of both sides, in order among those about the same thing.
fn find_differences(session: SessionId, then: Vec<Decision>, now: Vec<Decision>) -> Vec<DecisionDifference> {
    let mut waiting: BTreeMap<_, VecDeque<&Decision>> = BTreeMap::new();
    for decision in &now {
        waiting
            .entry(decision.match_key())
            .or_default()
            .push_back(decision);
    }
    let mut found = Vec::new();
    let mut take = |was: Option<&Decision>, is: Option<&Decision>| {
        let absent = || ComparedDecision {
            verdict: "not_reached".to_owned(),
            ..ComparedDecision::default()
        };
        let judged = |side: Option<&Decision>| side.and_then(|one| one.judged.clone()).unwrap_or_else(absent);
        let (before, after) = (judged(was), judged(is));
        let Some(about) = was.or(is).filter(|_| before.verdict != after.verdict) else {
            return;
        };
        found.push(DecisionDifference {
            session_id: session,
            what: about.what.to_owned(),
            message: about.message,
            sequence: was.map(|was| was.sequence),
            timestamp: was.map(|was| was.timestamp.clone()),
            request_id: was.and_then(|was| was.request_id.clone()),
            tool: about.tool.clone(),
            arguments_hash: about.arguments,
            was: before,
            would_be: after,
        });
    };
    for was in &then {
        let is = waiting.get_mut(&was.match_key()).and_then(VecDeque::pop_front);
        take(Some(was), is);
    }
    for is in waiting.into_values().flatten() {
        take(None, Some(is));
    }
    found
}

/// Questions to models whose text would not be the same, of those that are asked on both sides.
fn prompts_differ(then: &[RecordedEvent], now: &[RecordedEvent]) -> usize {
    let asked = |events: &[RecordedEvent]| -> Vec<Option<String>> {
        let asked = events
            .iter()
            .filter(|event| event.kind == kind::PROVIDER_REQUESTED);
        asked
            .map(|event| text_field(&parse_payload(event), "request_hash"))
            .collect()
    };
    let (then, now) = (asked(then), asked(now));
    then.iter().zip(&now).filter(|(was, is)| was != is).count()
}
