//! Replay: a record made by `resolve` and `check`, judged again.

use clawk_proto::SessionId;
use clawk_proto::carp::CarpExecution;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::{NOW, actions, at, ids, request, set};
use crate::execute::{ExecutionRefusal, IssuedResolution, judge_execution};
use crate::replay::{AtlasReplayResult, Event, Turn, replay_events};
use crate::resolve::{ActionEvaluation, ResolutionIds, resolve_request};
use crate::{AtlasSet, RateLedger};

/// An event of a record.
struct Made {
    session: u128,
    span: u128,
    kind: &'static str,
    at: Timestamp,
    payload: Map<String, Value>,
}

/// A runtime in small: it resolves and executes, and keeps what TRACE wants of it.
struct Runtime<'s> {
    set: &'s AtlasSet,
    ledger: RateLedger,
    now: Timestamp,
    spans: u128,
    issued: Vec<(u128, IssuedResolution)>,
    made: Vec<Made>,
}

impl<'s> Runtime<'s> {
    fn new(set: &'s AtlasSet) -> Self {
        Self {
            set,
            ledger: RateLedger::new(),
            now: at(NOW),
            spans: 1000,
            issued: Vec::new(),
            made: Vec::new(),
        }
    }

    fn note(&mut self, session: u128, kind: &'static str, payload: Value) {
        let (span, at) = (self.spans, self.now);
        let payload = payload.as_object().unwrap().clone();
        self.made.push(Made {
            session,
            span,
            kind,
            at,
            payload,
        });
    }

    fn judged(&mut self, session: u128, one: &ActionEvaluation) {
        let mut payload = Vec::new();
        one.write_payload(&mut payload);
        self.note(
            session,
            "policy.evaluated",
            serde_json::from_slice(&payload).unwrap(),
        );
    }

    fn open(&mut self, session: u128, agent: &str) {
        self.note(
            session,
            "session.started",
            json!({ "agent_id": agent, "goal": "g" }),
        );
    }

    /// The resolution's place among the issued.
    fn resolve(&mut self, session: u128, agent: &str, tier: &str) -> usize {
        self.spans += 1;
        let asked = request(
            &json!({ "requester": { "agent_id": agent }, "task": { "goal": "g", "risk_tier": tier } }),
        );
        let ids = ResolutionIds {
            resolution: Uuid::from_u128(self.spans),
            ..ids()
        };
        let resolved = resolve_request(self.set, &asked, self.now, ids, &self.ledger).unwrap();
        self.note(
            session,
            "carp.request.received",
            json!({ "request_id": asked.request_id, "goal": "g", "risk_tier": tier }),
        );
        for one in &resolved.evaluations {
            self.judged(session, one);
        }
        let resolution = &resolved.resolution;
        self.note(session, "carp.resolution.completed", json!({
            "resolution_id": resolution.resolution_id, "decision_type": resolution.decision.kind,
            "allowed_count": resolution.allowed_actions.len(), "denied_count": resolution.denied_actions.len(),
            "ttl_seconds": resolution.ttl_seconds,
        }));
        self.issued
            .push((session, IssuedResolution::new(&asked, resolution, self.now)));
        self.issued.len() - 1
    }

    /// Executes; `yes`: a person's, if one is asked.
    fn execute(&mut self, under: usize, agent: &str, action: &str, yes: Option<bool>) {
        self.spans += 1;
        let session = self.issued[under].0;
        self.note(session, "action.requested", json!({ "action_id": action }));
        let execution = CarpExecution {
            resolution_id: self.issued[under].1.resolution_id,
            action_id: action.to_owned(),
            parameters: Map::new(),
            idempotency_key: None,
        };
        let first = judge_execution(
            self.set,
            &self.issued[under].1,
            None,
            &execution,
            self.now,
            &self.ledger,
        );
        let approved = json!({ "action_id": action, "resolution_id": execution.resolution_id });
        match first {
            Ok(grant) => {
                let (evaluation, spends) = (grant.evaluation.clone(), grant.spends.clone());
                self.ledger.spend(agent, &spends, self.now).unwrap();
                self.judged(session, &evaluation);
                self.note(session, "action.approved", approved);
            }
            Err(ExecutionRefusal::PendingApproval { evaluation, .. }) => {
                self.judged(session, &evaluation);
                match yes {
                    None => {}
                    Some(false) => self.note(session, "action.denied", json!({ "action_id": action })),
                    Some(true) => {
                        let issued = &mut self.issued[under].1;
                        issued.approve_action(action);
                        let spends =
                            judge_execution(self.set, issued, None, &execution, self.now, &self.ledger)
                                .unwrap()
                                .spends;
                        self.issued[under].1.use_approval(action);
                        self.ledger.spend(agent, &spends, self.now).unwrap();
                        self.note(session, "action.approved", approved);
                    }
                }
            }
            Err(ExecutionRefusal::Denied { evaluation, .. }) => {
                self.judged(session, &evaluation);
                self.note(session, "action.denied", json!({ "action_id": action }));
            }
            Err(_) => self.note(session, "action.denied", json!({ "action_id": action })),
        }
    }

    fn later(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    fn again(&self, set: &AtlasSet, only: Option<u128>) -> AtlasReplayResult {
        let events: Vec<Event<'_>> = self
            .made
            .iter()
            .map(|made| Event {
                session: SessionId(Uuid::from_u128(made.session)),
                span: Uuid::from_u128(made.span),
                event_type: made.kind,
                at: made.at,
                payload: &made.payload,
            })
            .collect();
        replay_events(set, &events, only.map(|only| SessionId(Uuid::from_u128(only))))
    }
}

fn desk(most: u32, denied: &[&str]) -> AtlasSet {
    set(&json!({
        "actions": actions(&["a.free", "a.asks", "a.slow", "a.shut"]),
        "policies": [
            { "policy_id": "shut", "type": "deny", "actions": denied },
            { "policy_id": "asks", "type": "require_approval", "actions": ["a.asks"] },
            { "policy_id": "slow", "type": "rate_limit", "actions": ["a.slow"],
              "parameters": { "max_calls": most, "window_seconds": 60 } },
            { "policy_id": "critical", "type": "deny", "actions": ["a.free"], "conditions": { "risk_tiers": ["critical"] } },
        ],
    }))
}

/// Two agents in three sessions, one beside the other.
fn record(set: &AtlasSet) -> Runtime<'_> {
    let mut runtime = Runtime::new(set);
    for (session, agent) in [(1, "ann"), (2, "ann"), (3, "bob")] {
        runtime.open(session, agent);
    }
    let one = runtime.resolve(1, "ann", "low");
    let two = runtime.resolve(2, "ann", "critical");
    runtime.later(1);
    runtime.execute(one, "ann", "a.slow", None);
    runtime.later(1);
    runtime.execute(two, "ann", "a.slow", None);
    runtime.later(1);
    runtime.execute(one, "ann", "a.slow", None); // the third in the window
    let three = runtime.resolve(3, "bob", "medium");
    runtime.execute(three, "bob", "a.asks", None); // asked, unanswered
    runtime.execute(three, "bob", "a.asks", Some(true));
    runtime.execute(three, "bob", "a.asks", Some(false));
    runtime.execute(three, "bob", "a.free", None);
    runtime.later(61);
    runtime.execute(one, "ann", "a.slow", None); // the window has moved on
    runtime
}

#[test]
fn what_was_recorded_is_judged_the_same_again() {
    let set = desk(2, &["a.shut"]);
    let runtime = record(&set);
    let spent = |made: &&Made| {
        made.payload.get("policy_id") == Some(&json!("slow")) && made.payload["result"] == "deny"
    };
    assert_eq!(
        runtime.made.iter().filter(spent).count(),
        1,
        "the record has a spent limit"
    );
    let again = runtime.again(&set, None);
    assert_eq!(again.drifts, []);
    // Three resolutions of four actions, and eight executions.
    assert_eq!((again.resolutions, again.evaluations), (3, 20));
}

#[test]
fn one_session_alone_sees_what_the_others_spent() {
    let set = desk(2, &["a.shut"]);
    let runtime = record(&set);
    let again = runtime.again(&set, Some(1));
    assert_eq!(again.drifts, [], "the call of session 2 counts");
    assert_eq!((again.resolutions, again.evaluations), (1, 7));
    // Without the other session's events its first drift would be the third call.
    let mut alone = Runtime::new(&set);
    alone.made = runtime
        .made
        .into_iter()
        .filter(|made| made.session == 1)
        .collect();
    let again = alone.again(&set, None);
    assert_eq!(again.drifts.len(), 1);
    assert_eq!(again.drifts[0].turn, Turn::Allowed);
}

#[test]
fn a_narrower_limit_blocks_the_calls_beyond_it_and_no_others() {
    let then = desk(2, &["a.shut"]);
    let again = record(&then).again(&desk(1, &["a.shut"]), None);
    let calls: Vec<_> = again.drifts.iter().filter(|drift| drift.call).collect();
    assert_eq!(calls.len(), 1, "{calls:#?}");
    assert_eq!(
        (calls[0].turn, calls[0].action_id.as_deref()),
        (Turn::Blocked, Some("a.slow"))
    );
    assert_eq!(calls[0].replayed["policy_id"], "slow");
}

#[test]
fn a_denied_action_blocks_its_calls_by_the_policys_name() {
    let then = desk(2, &["a.shut"]);
    let again = record(&then).again(&desk(2, &["a.shut", "a.free", "a.slow"]), None);
    let calls: Vec<_> = again
        .drifts
        .iter()
        .filter(|drift| drift.call && drift.turn == Turn::Blocked)
        .collect();
    let named: Vec<_> = calls
        .iter()
        .map(|drift| drift.action_id.as_deref().unwrap())
        .collect();
    assert_eq!(named, ["a.slow", "a.slow", "a.free", "a.slow"]);
    assert!(
        calls.iter().all(|drift| drift.replayed["policy_id"] == "shut"),
        "{calls:#?}"
    );
}

#[test]
fn what_newly_asks_and_what_is_newly_free_is_said() {
    let then = desk(2, &["a.shut"]);
    let mut other = json!({
        "actions": actions(&["a.free", "a.asks", "a.slow", "a.shut"]),
        "policies": [{ "policy_id": "asks", "type": "require_approval", "actions": ["a.free"] }],
    });
    let again = record(&then).again(&set(&other), None);
    let turns = |action: &str, call: bool| -> Vec<Turn> {
        let of = again
            .drifts
            .iter()
            .filter(|drift| drift.action_id.as_deref() == Some(action) && drift.call == call);
        of.map(|drift| drift.turn).collect()
    };
    assert_eq!(turns("a.free", true), [Turn::Asked]);
    assert_eq!(turns("a.asks", true), [Turn::Allowed; 3]);
    assert_eq!(turns("a.shut", false), [Turn::Allowed; 3]);
    // An action that is gone is blocked by no policy.
    other["actions"] = actions(&["a.asks", "a.slow", "a.shut"]);
    other["policies"] = json!([]);
    let again = record(&then).again(&set(&other), None);
    let gone = again
        .drifts
        .iter()
        .find(|drift| drift.call && drift.action_id.as_deref() == Some("a.free"))
        .unwrap();
    assert_eq!((gone.turn, &gone.replayed), (Turn::Blocked, &Value::Null));
}

#[test]
fn changed_judgements_of_a_record_are_found_where_they_stand() {
    let set = desk(2, &["a.shut"]);
    let mut runtime = record(&set);
    let judged: Vec<usize> = (0..runtime.made.len())
        .filter(|at| runtime.made[*at].kind == "policy.evaluated")
        .collect();
    for index in judged {
        let before = runtime.made[index].payload.clone();
        let other = if before["result"] == "deny" {
            "allow"
        } else {
            "deny"
        };
        runtime.made[index]
            .payload
            .insert("result".to_owned(), json!(other));
        let again = runtime.again(&set, None);
        let found: Vec<usize> = again.drifts.iter().map(|drift| drift.index).collect();
        assert!(
            found.contains(&index),
            "event {index}, {before:?}: {:#?}",
            again.drifts
        );
        runtime.made[index].payload = before;
    }
    // Counts and the context of a resolution are compared, too.
    for (kind, member, value) in [
        ("carp.resolution.completed", "allowed_count", json!(9)),
        ("carp.resolution.completed", "decision_type", json!("allow")),
        ("carp.resolution.completed", "ttl_seconds", json!(1)),
    ] {
        let index = runtime.made.iter().position(|made| made.kind == kind).unwrap();
        let before = runtime.made[index]
            .payload
            .insert(member.to_owned(), value)
            .unwrap();
        let again = runtime.again(&set, None);
        assert_eq!(
            again.drifts.iter().map(|drift| drift.index).collect::<Vec<_>>(),
            [index]
        );
        runtime.made[index].payload.insert(member.to_owned(), before);
    }
}

#[test]
fn a_cut_record_is_replayed_as_far_as_it_goes() {
    let set = desk(2, &["a.shut"]);
    let mut runtime = record(&set);
    while runtime.made.pop().is_some() {
        let again = runtime.again(&set, None);
        assert_eq!(again.drifts, [], "{} events", runtime.made.len());
    }
}

#[test]
fn executions_side_by_side_are_paired_with_their_own_answers() {
    let set = desk(1, &["a.shut"]);
    let mut runtime = Runtime::new(&set);
    runtime.open(1, "ann");
    let one = runtime.resolve(1, "ann", "low");
    runtime.execute(one, "ann", "a.slow", None);
    runtime.execute(one, "ann", "a.slow", None); // beyond the limit
    // As two that ran at the same time are written: the answers come the other way round.
    let from = runtime
        .made
        .iter()
        .position(|made| made.kind == "action.requested")
        .unwrap();
    let mut of: Vec<Made> = runtime.made.split_off(from);
    let kinds: Vec<_> = of.iter().map(|made| made.kind).collect();
    let (first, second) = (
        ["action.requested", "policy.evaluated", "action.approved"],
        "action.denied",
    );
    assert_eq!(kinds, [&first[..], &first[..2], &[second]].concat());
    // Now: requested a, judged a, approved a, requested b, judged b, denied b.
    let order = [0, 3, 1, 4, 5, 2];
    let (a, b) = (of[0].span, of[3].span);
    assert_ne!(a, b);
    let mut left: Vec<Option<Made>> = of.drain(..).map(Some).collect();
    let of: Vec<Made> = order.iter().map(|at| left[*at].take().unwrap()).collect();
    let told: Vec<_> = of.iter().map(|made| (made.kind, made.span)).collect();
    assert_eq!((told[4], told[5]), (("action.denied", b), ("action.approved", a)));
    runtime.made.extend(of);
    assert_eq!(runtime.again(&set, None).drifts, []);
}
