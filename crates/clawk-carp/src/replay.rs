//! Replay: compares the recorded answers of a session with the answers under another set of Atlases.
//!
//! Each recorded request is resolved again at its own time. The windows contain the recorded executions, including those in other
//! sessions of the same agent. Each recorded verdict on an execution is made again. An execution that was refused before the
//! policies (for its parameters, of which a trace has only the digest, or for its owner) stays refused.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use clawk_proto::SessionId;
use clawk_proto::carp::{
    CARP_VERSION, CarpExecution, CarpOperation, CarpRequester, CarpTask, Request, RiskTier,
};
use jiff::Timestamp;
use serde::{Deserialize as _, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::execute::{self, ExecutionRefusal, IssuedResolution};
use crate::rate::RateLedger;
use crate::resolve::{ActionEvaluation, DEFAULT_POLICY, ExplainedResolution, ResolutionIds, resolve_request};
use crate::set::AtlasSet;

/// The largest number of stored differences; more are only counted.
const MAX_DRIFTS: usize = 1000;
/// The largest number of live resolutions per session; above it, the oldest has expired.
const MAX_ISSUED: usize = 64;

/// The event types that a replay reads; other events may be omitted.
pub const KINDS: [&str; 10] = [
    "session.started",
    "carp.request.received",
    "policy.evaluated",
    "context.injected",
    "context.redacted",
    "carp.resolution.completed",
    "error.occurred",
    "action.requested",
    "action.approved",
    "action.denied",
];

/// One recorded event with the parts that a replay reads.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// `session_id`.
    pub session: SessionId,
    /// `span_id`: the events of one execution share it, if the runtime supports that.
    pub span: Uuid,
    /// `event_type`.
    pub event_type: &'a str,
    /// `timestamp`.
    pub at: Timestamp,
    /// `payload`.
    pub payload: &'a Map<String, Value>,
}

/// A difference between the record and the replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayDrift {
    /// The index among the given events, from 0: of the recorded event, or of the event after which a new one would follow.
    pub index: usize,
    /// The type of the event.
    pub event_type: &'static str,
    /// The action, if the difference is about one.
    pub action_id: Option<String>,
    /// The recorded value; null: nothing.
    pub recorded: Value,
    /// The value in the replay; null: nothing.
    pub replayed: Value,
    /// The effect on the action.
    pub turn: Turn,
    /// The difference is about an execution. Otherwise it is about the answer to a request.
    pub call: bool,
}

/// The change of the verdict on an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Turn {
    /// No change.
    None,
    /// It passed, and would be refused.
    Blocked,
    /// It was refused, and would pass.
    Allowed,
    /// It passed, and would wait for a person.
    Asked,
}

/// The outcome of a replay.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct AtlasReplayResult {
    /// The number of repeated resolutions.
    pub resolutions: usize,
    /// The number of repeated verdicts, on candidates and on executions.
    pub evaluations: usize,
    /// The differences, in order; at most 1,000.
    pub drifts: Vec<ReplayDrift>,
    /// The number of further differences.
    pub left_out: usize,
}

impl AtlasReplayResult {
    /// Whether there is no difference.
    #[must_use]
    pub const fn is_identical(&self) -> bool {
        self.drifts.is_empty()
    }

    fn add_drift(&mut self, drift: ReplayDrift) {
        if self.drifts.len() < MAX_DRIFTS {
            self.drifts.push(drift);
        } else {
            self.left_out += 1;
        }
    }

    /// Compares one verdict. `now`: the new verdict, and whether it waits for a person.
    fn compare_judgement(
        &mut self,
        (index, call): (usize, bool),
        action: &str,
        recorded: Option<&Map<String, Value>>,
        now: Option<(Value, bool)>,
    ) {
        self.evaluations += 1;
        let recorded = recorded.map_or(Value::Null, judgement_members);
        let (replayed, asks) = now.unwrap_or_default();
        if recorded == replayed {
            return;
        }
        let turn = match (is_passing(&recorded), is_passing(&replayed)) {
            (true, false) if asks => Turn::Asked,
            (true, false) => Turn::Blocked,
            (false, true) => Turn::Allowed,
            (true, true) | (false, false) => Turn::None,
        };
        self.add_drift(ReplayDrift {
            index,
            event_type: "policy.evaluated",
            action_id: Some(action.to_owned()),
            recorded,
            replayed,
            turn,
            call,
        });
    }

    fn compare_recorded(&mut self, index: usize, event_type: &'static str, recorded: Value, replayed: Value) {
        if recorded != replayed {
            self.add_drift(ReplayDrift {
                index,
                event_type,
                action_id: None,
                recorded,
                replayed,
                turn: Turn::None,
                call: false,
            });
        }
    }
}

/// Replays the events of one or more sessions, each in order. `only`: the other sessions fill the windows but are not compared.
#[must_use]
pub fn replay_events(set: &AtlasSet, events: &[Event<'_>], only: Option<SessionId>) -> AtlasReplayResult {
    replay_under(&|_| Some(set), events, &|session| {
        only.is_none_or(|only| only == session)
    })
}

/// As [`replay_events`], for Atlases that changed over time. `set_at`: the set in force at an event, by its index; `None`: unknown, and
/// the verdict is skipped. `counts`: which other sessions fill the windows.
#[must_use]
pub fn replay_under<'s>(
    set_at: &dyn Fn(usize) -> Option<&'s AtlasSet>,
    events: &[Event<'_>],
    counts: &dyn Fn(SessionId) -> bool,
) -> AtlasReplayResult {
    let record = ReplayEventIndex::new(events);
    let mut player = AtlasReplayer {
        set_at,
        sessions: HashMap::new(),
        ledger: RateLedger::new(),
        taken: vec![false; events.len()],
        counts,
        out: AtlasReplayResult::default(),
        record: &record,
    };
    for index in record.in_time() {
        let Some(event) = events.get(index) else { continue };
        if player.taken.get(index).copied().unwrap_or_default() {
            continue;
        }
        match event.event_type {
            "session.started" => {
                let session = player.sessions.entry(event.session).or_default();
                member_text(event.payload, "agent_id").clone_into(&mut session.agent);
            }
            "carp.request.received" => player.replay_resolution(index, event),
            // An evaluation that belongs to no resolution belongs to an execution.
            "policy.evaluated" => player.replay_execution(index, event),
            _ => {}
        }
    }
    player.out
}

/// The events, indexed by what belongs together.
struct ReplayEventIndex<'a> {
    events: &'a [Event<'a>],
    /// The events of each session, in order.
    lanes: HashMap<SessionId, Vec<usize>>,
    /// The position of each event in its session.
    places: Vec<usize>,
    /// `action.…` events by span and action, and by session and action.
    by_span: HashMap<(Uuid, &'a str), Vec<usize>>,
    by_session: HashMap<(SessionId, &'a str), Vec<usize>>,
}

impl<'a> ReplayEventIndex<'a> {
    fn new(events: &'a [Event<'a>]) -> Self {
        let mut record = Self {
            events,
            lanes: HashMap::new(),
            places: Vec::with_capacity(events.len()),
            by_span: HashMap::new(),
            by_session: HashMap::new(),
        };
        for (index, event) in events.iter().enumerate() {
            let lane = record.lanes.entry(event.session).or_default();
            record.places.push(lane.len());
            lane.push(index);
            if event.event_type.starts_with("action.") {
                let action = member_text(event.payload, "action_id");
                record
                    .by_span
                    .entry((event.span, action))
                    .or_default()
                    .push(index);
                record
                    .by_session
                    .entry((event.session, action))
                    .or_default()
                    .push(index);
            }
        }
        record
    }

    /// All sessions' events by time. The order inside a session does not change.
    fn in_time(&self) -> Vec<usize> {
        let mut latest: HashMap<SessionId, Timestamp> = HashMap::new();
        let mut keyed = Vec::with_capacity(self.events.len());
        for (index, event) in self.events.iter().enumerate() {
            let at = latest.entry(event.session).or_insert(event.at);
            *at = event.at.max(*at);
            keyed.push((*at, index));
        }
        keyed.sort();
        keyed.into_iter().map(|(_, index)| index).collect()
    }

    /// The later events of the same session, with their indexes.
    fn events_behind(&self, index: usize) -> impl Iterator<Item = (usize, &'a Event<'a>)> + '_ {
        let session = self.events.get(index).map(|event| event.session);
        let lane = session.and_then(|session| self.lanes.get(&session));
        let place = self.places.get(index).copied().unwrap_or_default();
        let behind = lane.into_iter().flatten().skip(place + 1);
        behind.filter_map(|index| Some((*index, self.events.get(*index)?)))
    }

    /// The event that ended the execution with this verdict. `None`: it still waits, or the record ends before it.
    fn execution_end(&self, index: usize, event: &Event<'_>, action: &str) -> Option<&'a Event<'a>> {
        let same_span = self.by_span.get(&(event.span, action));
        let list = same_span.or_else(|| self.by_session.get(&(event.session, action)))?;
        let next = *list.get(list.partition_point(|known| *known <= index))?;
        let answer = self.events.get(next)?;
        matches!(answer.event_type, "action.approved" | "action.denied").then_some(answer)
    }
}

/// The answers that one session has received.
#[derive(Default)]
struct ReplayedSession {
    agent: String,
    /// The issued resolutions, latest last.
    issued: VecDeque<ReplayedResolution>,
}

/// A resolution of the replay.
struct ReplayedResolution {
    /// Its id in the record.
    recorded_id: String,
    issued: IssuedResolution,
    /// The denied actions, with the denying policy.
    denied: HashMap<Box<str>, Value>,
    /// The actions that were denied or needed approval in the record.
    held: HashSet<Box<str>>,
}

struct AtlasReplayer<'a, 's> {
    set_at: &'a dyn Fn(usize) -> Option<&'s AtlasSet>,
    record: &'a ReplayEventIndex<'a>,
    sessions: HashMap<SessionId, ReplayedSession>,
    ledger: RateLedger,
    /// By event: whether it belongs to a resolution.
    taken: Vec<bool>,
    counts: &'a dyn Fn(SessionId) -> bool,
    out: AtlasReplayResult,
}

impl AtlasReplayer<'_, '_> {
    /// Resolves a request again and compares.
    fn replay_resolution(&mut self, index: usize, event: &Event<'_>) {
        let record = self.record;
        let mut of = Vec::new();
        let mut completed = None;
        for (at, event) in record.events_behind(index) {
            match event.event_type {
                "policy.evaluated" | "context.injected" | "context.redacted" => of.push(at),
                "carp.resolution.completed" => {
                    completed = Some((at, event));
                    break;
                }
                _ => break,
            }
        }
        let Some((end, completed)) = completed else {
            return; // cut off, or answered by an error
        };
        for at in &of {
            if let Some(taken) = self.taken.get_mut(*at) {
                *taken = true;
            }
        }
        let Some(set) = (self.set_at)(index) else {
            return;
        };
        let request = self.recorded_request(event);
        let recorded_id = member_text(completed.payload, "resolution_id");
        let ids = ResolutionIds {
            resolution: Uuid::try_parse(recorded_id).unwrap_or_default(), // silent-ok: an id is never compared
            approval: Uuid::nil(),
            trace: Uuid::nil(),
        };
        let counts = self.is_in_scope(event);
        self.out.resolutions += usize::from(counts);
        match resolve_request(set, &request, event.at, ids, &self.ledger) {
            Ok(resolved) => {
                let issued = IssuedResolution::new(&request, &resolved.resolution, event.at);
                if counts {
                    self.compare_resolution(&of, end, &resolved, &issued);
                }
                let held = self.held_actions(&of);
                let session = self.sessions.entry(event.session).or_default();
                let judged = resolved.evaluations.iter();
                let judged = judged.map(|one| ((*one.action_id).into(), judgement_of(one)));
                session.issued.push_back(ReplayedResolution {
                    recorded_id: recorded_id.to_owned(),
                    issued,
                    denied: judged.filter(|(_, judgement)| !is_passing(judgement)).collect(),
                    held,
                });
                if session.issued.len() > MAX_ISSUED {
                    session.issued.pop_front();
                }
            }
            Err(error) if counts => {
                let was = completed.payload.get("decision_type").cloned();
                let (was, now) = (was.unwrap_or_default(), json!(error.to_string()));
                self.out
                    .compare_recorded(end, "carp.resolution.completed", was, now);
            }
            Err(_) => {} // silent-ok: nothing is said of other sessions
        }
    }

    /// The actions that these recorded verdicts did not let pass.
    fn held_actions(&self, of: &[usize]) -> HashSet<Box<str>> {
        let judged = of.iter().filter_map(|at| self.record.events.get(*at));
        let judged = judged.filter(|event| event.event_type == "policy.evaluated");
        let held = judged.filter(|event| !is_passing(&judgement_members(event.payload)));
        held.map(|event| member_text(event.payload, "action_id").into())
            .collect()
    }

    fn is_in_scope(&self, event: &Event<'_>) -> bool {
        (self.counts)(event.session)
    }

    /// The recorded request; missing members get their defaults.
    fn recorded_request(&self, event: &Event<'_>) -> Request {
        let payload = event.payload;
        let list = |name: &str| -> Vec<String> {
            let items = payload.get(name).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let tier = payload.get("risk_tier").map(RiskTier::deserialize);
        let session = self.sessions.get(&event.session);
        Request {
            carp_version: CARP_VERSION.to_owned(),
            request_id: Uuid::try_parse(member_text(payload, "request_id")).unwrap_or_default(), // silent-ok: never compared
            timestamp: crate::resolve::format_timestamp(event.at),
            operation: CarpOperation::Resolve,
            requester: CarpRequester {
                agent_id: session.map(|session| session.agent.clone()).unwrap_or_default(),
                session_id: event.session,
                parent_session_id: None,
            },
            task: Some(CarpTask {
                goal: member_text(payload, "goal").to_owned(),
                // An invalid tier counts as the highest, so a replay is never more lenient.
                risk_tier: tier.map_or(RiskTier::Low, |tier| tier.unwrap_or(RiskTier::Critical)),
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

    fn compare_resolution(
        &mut self,
        of: &[usize],
        end: usize,
        resolved: &ExplainedResolution,
        issued: &IssuedResolution,
    ) {
        let waits: HashSet<&str> = issued.waiting_actions().collect();
        let mut left: BTreeMap<&str, (usize, &Map<String, Value>)> = BTreeMap::new();
        let mut blocks = Vec::new();
        let events = self.record.events;
        for (index, event) in of.iter().filter_map(|index| Some((*index, events.get(*index)?))) {
            match event.event_type {
                "policy.evaluated" => {
                    left.insert(member_text(event.payload, "action_id"), (index, event.payload));
                }
                // Blocks that were left out for lack of space were resolved too.
                _ => blocks.push(select_members(event.payload, &["block_id", "source"])),
            }
        }
        for one in &resolved.evaluations {
            let now = Some((judgement_of(one), waits.contains(&*one.action_id)));
            match left.remove(&*one.action_id) {
                Some((index, recorded)) => {
                    self.out
                        .compare_judgement((index, false), &one.action_id, Some(recorded), now)
                }
                None => self
                    .out
                    .compare_judgement((end, false), &one.action_id, None, now),
            }
        }
        for (action, (index, recorded)) in left {
            self.out
                .compare_judgement((index, false), action, Some(recorded), None);
        }
        let resolution = &resolved.resolution;
        let now: Value = resolution
            .context_blocks
            .iter()
            .map(|block| json!({ "block_id": block.block_id, "source": block.source }))
            .collect();
        self.out
            .compare_recorded(end, "context.injected", Value::from(blocks), now);
        let now = json!({
            "allowed_count": resolution.allowed_actions.len(), "decision_type": resolution.decision.kind,
            "denied_count": resolution.denied_actions.len(), "ttl_seconds": resolution.ttl_seconds,
        });
        let counts = ["allowed_count", "decision_type", "denied_count", "ttl_seconds"];
        let recorded = events
            .get(end)
            .map_or(Value::Null, |event| select_members(event.payload, &counts));
        self.out
            .compare_recorded(end, "carp.resolution.completed", recorded, now);
    }

    /// Judges an execution again, and charges the amounts of its approval.
    fn replay_execution(&mut self, index: usize, event: &Event<'_>) {
        let action = member_text(event.payload, "action_id");
        let answer = self.record.execution_end(index, event, action);
        let approved = answer.filter(|event| event.event_type == "action.approved");
        let named = approved.map(|event| member_text(event.payload, "resolution_id"));
        let of = |told: &&mut ReplayedResolution| named.is_none_or(|named| named == told.recorded_id);
        let counts = self.is_in_scope(event);
        let set = (self.set_at)(index);
        let (Some(set), Some(session)) = (set, self.sessions.get_mut(&event.session)) else {
            return;
        };
        let agent = session.agent.as_str();
        let Some(told) = session.issued.iter_mut().rev().find(of) else {
            return; // under no resolution of CARP
        };
        let issued = &mut told.issued;
        let execution = CarpExecution {
            resolution_id: issued.resolution_id,
            action_id: action.to_owned(),
            parameters: Map::new(),
            idempotency_key: None,
        };
        let mut now = execute::judge_execution(set, issued, None, &execution, event.at, &self.ledger);
        let waits = matches!(now, Err(ExecutionRefusal::PendingApproval { .. }));
        // The person's approval came before this verdict or after it.
        let before = is_passing(&judgement_members(event.payload)) && told.held.contains(action);
        if waits && approved.is_some() {
            issued.approve_action(action);
            let with = execute::judge_execution(set, issued, None, &execution, event.at, &self.ledger);
            if let Ok(grant) = &with {
                // silent-ok: a used-up limit shows at the next verdict
                let _ = self.ledger.spend(agent, &grant.spends, event.at);
            }
            issued.use_approval(action);
            if before {
                now = with;
            }
        } else if let (Ok(grant), Some(_)) = (&now, approved) {
            // silent-ok: as above
            let _ = self.ledger.spend(agent, &grant.spends, event.at);
        }
        let says = match &now {
            Ok(grant) => Some(judgement_of(&grant.evaluation)),
            Err(
                ExecutionRefusal::Denied { evaluation, .. }
                | ExecutionRefusal::PendingApproval { evaluation, .. },
            ) => Some(judgement_of(evaluation)),
            Err(ExecutionRefusal::NotAllowed { .. }) => told.denied.get(action).cloned(),
            Err(
                ExecutionRefusal::Expired
                | ExecutionRefusal::Unauthorized
                | ExecutionRefusal::InvalidParameters(_),
            ) => None,
        };
        let now = says.map(|says| (says, waits));
        if counts {
            self.out
                .compare_judgement((index, true), action, Some(event.payload), now);
        }
    }
}

/// The part of a `policy.evaluated` that a replay must repeat.
fn judgement_members(payload: &Map<String, Value>) -> Value {
    select_members(payload, &["policy_id", "result"])
}

fn judgement_of(evaluation: &ActionEvaluation) -> Value {
    let policy = evaluation.policy_id.as_deref().unwrap_or(DEFAULT_POLICY);
    json!({ "policy_id": policy, "result": evaluation.outcome })
}

fn is_passing(judgement: &Value) -> bool {
    let result = judgement.get("result").and_then(Value::as_str);
    matches!(result, Some("allow" | "not_applicable"))
}

fn select_members(payload: &Map<String, Value>, names: &[&str]) -> Value {
    names
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), payload.get(*name)?.clone())))
        .collect()
}

fn member_text<'a>(payload: &'a Map<String, Value>, member: &str) -> &'a str {
    payload.get(member).and_then(Value::as_str).unwrap_or_default()
}
