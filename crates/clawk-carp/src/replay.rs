//! Replay: what a recorded session would have been told under a set of Atlases, compared with what it was told.
//!
//! Each recorded request is resolved again at its own time, with the windows as the recorded executions had filled them;
//! each execution is judged again. Parameters are not in a trace, only their digest: an execution that was refused for
//! them, or for whose resolution it was, stays refused.

use std::collections::BTreeMap;

use clawk_proto::SessionId;
use clawk_proto::carp::{CARP_VERSION, Execution, Operation, Request, Requester, Resolution, RiskTier, Task};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::execute::{self, Issued, Refusal};
use crate::rate::Ledger;
use crate::resolve::{Ids, Resolved, resolve};
use crate::set::AtlasSet;

/// More are counted, not kept.
const MAX_DRIFTS: usize = 1000;

/// One recorded event, as far as a replay looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// `event_type`.
    pub event_type: &'a str,
    /// `timestamp`.
    pub at: Timestamp,
    /// `payload`.
    pub payload: &'a Value,
}

/// A place where the replay says something else.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Drift {
    /// The event's index in the trace.
    pub index: usize,
    /// JSON pointer: `/INDEX/payload/…`, or `/INDEX` for a whole event.
    pub path: String,
    /// What was recorded; null: nothing.
    pub recorded: Value,
    /// What it would be; null: nothing.
    pub replayed: Value,
}

/// The outcome of a replay.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Replayed {
    /// Resolutions that were made again.
    pub resolutions: usize,
    /// Executions that were judged again.
    pub executions: usize,
    /// Where the two differ, in order; at most 1,000.
    pub drifts: Vec<Drift>,
    /// Drifts beyond those.
    pub left_out: usize,
}

impl Replayed {
    /// Nothing differs.
    #[must_use]
    pub const fn identical(&self) -> bool {
        self.drifts.is_empty()
    }

    fn drift(&mut self, index: usize, member: &str, recorded: Value, replayed: Value) {
        if self.drifts.len() >= MAX_DRIFTS {
            self.left_out += 1;
            return;
        }
        let path = if member.is_empty() {
            format!("/{index}")
        } else {
            format!("/{index}/payload/{member}")
        };
        self.drifts.push(Drift {
            index,
            path,
            recorded,
            replayed,
        });
    }
}

/// Replays one session's events.
#[must_use]
pub fn replay(set: &AtlasSet, events: &[Event<'_>]) -> Replayed {
    let mut player = Player {
        set,
        events,
        agent: String::new(),
        ledger: Ledger::new(),
        issued: BTreeMap::new(),
        out: Replayed::default(),
    };
    let mut index = 0;
    while let Some(event) = events.get(index) {
        index = match event.event_type {
            "session.started" => {
                text(event.payload, "agent_id").clone_into(&mut player.agent);
                index + 1
            }
            "carp.request.received" => player.resolution(index, event),
            "action.approved" | "action.denied" => {
                player.execution(index, event);
                index + 1
            }
            _ => index + 1,
        };
    }
    player.out
}

struct Player<'a> {
    set: &'a AtlasSet,
    events: &'a [Event<'a>],
    agent: String,
    ledger: Ledger,
    /// By the recorded resolution's id.
    issued: BTreeMap<String, Issued>,
    out: Replayed,
}

impl Player<'_> {
    /// Resolves again and compares; the index behind the resolution.
    fn resolution(&mut self, index: usize, event: &Event<'_>) -> usize {
        let behind = self.events.iter().skip(index + 1);
        let length = behind
            .take_while(|event| {
                matches!(
                    event.event_type,
                    "policy.evaluated" | "context.injected" | "context.redacted"
                )
            })
            .count();
        let end = index + 1 + length;
        let Some(completed) = self
            .events
            .get(end)
            .filter(|event| event.event_type == "carp.resolution.completed")
        else {
            return index + 1; // cut off, or answered by an error
        };
        let (request, at) = (self.request(event), event.at);
        self.out.resolutions += 1;
        let ids = Ids {
            resolution: id(completed.payload, "resolution_id"),
            approval: Uuid::nil(),
            trace: Uuid::nil(),
        };
        match resolve(self.set, &request, at, ids, &self.ledger) {
            Ok(resolved) => {
                self.compare(index + 1, end, &resolved);
                let issued = Issued::new(&request, &resolved.resolution, at);
                self.issued
                    .insert(text(completed.payload, "resolution_id").to_owned(), issued);
            }
            Err(error) => self.out.drift(
                end,
                "",
                json!("carp.resolution.completed"),
                json!(error.to_string()),
            ),
        }
        end + 1
    }

    /// The recorded request; what was not given has its default.
    fn request(&self, event: &Event<'_>) -> Request {
        let payload = event.payload;
        let list = |name: &str| -> Vec<String> {
            let items = payload.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let tier = payload.get("risk_tier").cloned().unwrap_or_default();
        Request {
            carp_version: CARP_VERSION.to_owned(),
            request_id: id(payload, "request_id"),
            timestamp: crate::resolve::stamp(event.at),
            operation: Operation::Resolve,
            requester: Requester {
                agent_id: self.agent.clone(),
                session_id: SessionId(Uuid::nil()),
                parent_session_id: None,
            },
            task: Some(Task {
                goal: text(payload, "goal").to_owned(),
                risk_tier: serde_json::from_value(tier).unwrap_or(RiskTier::Low), // silent-ok: absent means low
                context_hints: list("context_hints"),
                required_capabilities: list("required_capabilities"),
            }),
            execution: None,
            atlas_ids: list("atlas_ids"),
            context: payload
                .get("context")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
        }
    }

    fn compare(&mut self, from: usize, end: usize, resolved: &Resolved) {
        let made = produced(resolved);
        let recorded = self.events.get(from..=end).unwrap_or_default();
        for at in 0..recorded.len().max(made.len()) {
            let index = from + at;
            match (recorded.get(at), made.get(at)) {
                (Some(old), Some((kind, new))) if alike(old.event_type, kind) => {
                    for (member, new) in new {
                        let old = old.payload.get(member).unwrap_or(&Value::Null);
                        if old != new {
                            self.out.drift(index, member, old.clone(), new.clone());
                        }
                    }
                }
                (old, new) => {
                    let old = old.map_or(Value::Null, |old| json!([old.event_type, old.payload]));
                    let new = new.map_or(Value::Null, |(kind, payload)| json!([kind, payload]));
                    self.out.drift(index.min(end), "", old, new);
                    return; // what follows is shifted, and says nothing more
                }
            }
        }
    }

    fn execution(&mut self, index: usize, event: &Event<'_>) {
        let approved = event.event_type == "action.approved";
        let action = text(event.payload, "action_id").to_owned();
        // An approval names its resolution; a denial belongs to the latest.
        let named = text(event.payload, "resolution_id");
        if !approved && self.for_other_reasons(index) {
            return;
        }
        let issued = match self.issued.get_mut(named) {
            Some(issued) => issued,
            None if approved => return, // no execution of CARP
            None => match self.issued.values_mut().last() {
                Some(issued) => issued,
                None => return,
            },
        };
        self.out.executions += 1;
        if approved {
            // Whoever was asked said yes then.
            issued.approve(&action);
        }
        let execution = Execution {
            resolution_id: issued.resolution_id,
            action_id: action.clone(),
            parameters: Map::new(),
            idempotency_key: None,
        };
        match execute::judge(self.set, issued, None, &execution, event.at, &self.ledger) {
            Ok(grant) => {
                if !approved {
                    self.out
                        .drift(index, "", json!("action.denied"), json!("action.approved"));
                } else if self.ledger.spend(&self.agent, &grant.spends, event.at).is_err() {
                    self.out
                        .drift(index, "", json!("action.approved"), json!("action.denied"));
                }
            }
            Err(Refusal::PendingApproval { .. }) if !approved => {}
            Err(refusal) if approved => {
                self.out
                    .drift(index, "", json!("action.approved"), json!(refusal.to_string()));
            }
            Err(_) => {}
        }
    }

    /// The denial at `index` says, beside it, that parameters or ownership were the reason.
    fn for_other_reasons(&self, index: usize) -> bool {
        let around = self
            .events
            .get(index.saturating_sub(1)..)
            .unwrap_or_default()
            .iter()
            .take(3);
        around
            .filter(|event| event.event_type == "policy.violated")
            .any(|event| {
                matches!(
                    text(event.payload, "violation_type"),
                    "invalid_parameters" | "unauthorized"
                )
            })
    }
}

/// What was left out for want of room was offered all the same.
fn alike(recorded: &str, made: &str) -> bool {
    recorded == made || (recorded == "context.redacted" && made == "context.injected")
}

/// The events of a resolution behind its request, with the members that a replay must repeat.
fn produced(resolved: &Resolved) -> Vec<(&'static str, Vec<(&'static str, Value)>)> {
    let resolution: &Resolution = &resolved.resolution;
    let evaluations = resolved.evaluations.iter().map(|one| {
        let policy = one.policy_id.as_deref().unwrap_or(crate::resolve::DEFAULT_POLICY);
        let members = vec![
            ("action_id", json!(one.action_id)),
            ("policy_id", json!(policy)),
            ("result", json!(one.outcome)),
        ];
        ("policy.evaluated", members)
    });
    let blocks = resolution.context_blocks.iter().map(|block| {
        let members = vec![
            ("block_id", json!(block.block_id)),
            ("source", json!(block.source)),
        ];
        ("context.injected", members)
    });
    let completed = vec![
        ("allowed_count", json!(resolution.allowed_actions.len())),
        ("decision_type", json!(resolution.decision.kind)),
        ("denied_count", json!(resolution.denied_actions.len())),
        ("ttl_seconds", json!(resolution.ttl_seconds)),
    ];
    evaluations
        .chain(blocks)
        .chain([("carp.resolution.completed", completed)])
        .collect()
}

fn text<'a>(payload: &'a Value, member: &str) -> &'a str {
    payload.get(member).and_then(Value::as_str).unwrap_or_default()
}

fn id(payload: &Value, member: &str) -> Uuid {
    Uuid::try_parse(text(payload, member)).unwrap_or_default() // silent-ok: an id is never compared
}
