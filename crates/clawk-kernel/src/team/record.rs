//! The swarm's facts as events: the payload says what happened, the content is the fact itself, by which a start rebuilds it.

use std::collections::HashMap;

use clawk_proto::SessionId;
use clawk_proto::method::TaskStatus;
use clawk_swarm::coord::{Circuit, TaskId, TryEnd, derived};
use clawk_swarm::{Fact, Outcome, Plan};

use super::{Asked, Origin};
use crate::event::{Draft, Scribe, SwarmEvent, Thread, canonical, digest, kind};
use crate::ports::Recorded;

/// The types of the swarm's events, all of them.
pub const SWARM_KINDS: [&str; 11] = [
    kind::SWARM_LED,
    kind::SWARM_RUN,
    kind::SWARM_DELEGATED,
    kind::SWARM_TRY,
    kind::SWARM_REPORTED,
    kind::SWARM_REFUSED,
    kind::SWARM_CIRCUIT,
    kind::SWARM_DEAD_LETTERED,
    kind::SWARM_AGGREGATED,
    kind::SWARM_BROADCAST,
    kind::SWARM_ENDED,
];

/// Where the swarm's events hang.
#[derive(Debug)]
pub(super) struct Chains {
    /// The runtime's own chain: for what belongs to no run.
    pub(super) root: Thread,
    /// Where hosts share the agent: the one chain of the whole swarm. Only its holder can append to it.
    pub(super) home: Option<SessionId>,
}

/// What events say beside the facts themselves.
#[derive(Debug, Default)]
pub(super) struct Book {
    runs: HashMap<TaskId, Origin>,
    tasks: HashMap<TaskId, Known>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    run: Option<TaskId>,
    parent: Option<TaskId>,
    member: String,
    attempts: u32,
    tokens: u64,
    cost_microusd: u64,
}

/// The session of one try: its id is made of the task's.
#[must_use]
pub fn session_of(task: &TaskId, attempt: u32) -> SessionId {
    let id = derived(task, &format!("session/{attempt}"));
    SessionId(uuid::Uuid::parse_str(id.as_str()).unwrap_or_default()) // silent-ok: a RequestId is a UUID
}

/// The fact that an event holds; none: it is another's, or erased.
#[must_use]
pub fn fact_of(event: &Recorded) -> Option<Fact> {
    let content = event.content.as_ref()?;
    serde_json::from_slice(&content.bytes).ok() // silent-ok: an event of before there were facts
}

const fn word(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Completed => "completed",
        TaskStatus::Failed => "failed",
        TaskStatus::Partial => "partial",
    }
}

fn reason(outcome: &Outcome) -> Option<&str> {
    outcome.fault.as_ref().map(|fault| &*fault.reason)
}

impl Book {
    /// Learns from a fact what later events of its run and task say.
    pub(super) fn see(&mut self, plan: &Plan, fact: &Fact) {
        match fact {
            Fact::Run { run, origin, .. } => {
                self.runs.insert(run.clone(), Origin::read(origin));
            }
            Fact::Delegated { new, .. } => {
                let known = Known {
                    run: Some(new.run.clone()),
                    parent: new.parent.clone(),
                    ..Known::default()
                };
                self.tasks.insert(new.task.clone(), known);
            }
            Fact::Began { task, who, attempt } => {
                if let Some(known) = self.tasks.get_mut(task) {
                    plan.member(*who).clone_into(&mut known.member);
                    known.attempts = *attempt;
                }
            }
            Fact::TryEnded { task, used, .. } => {
                if let Some(known) = self.tasks.get_mut(task) {
                    known.tokens = known.tokens.saturating_add(used.tokens);
                    known.cost_microusd = known.cost_microusd.saturating_add(used.cost_microusd);
                }
            }
            Fact::Word { .. }
            | Fact::Told { .. }
            | Fact::Shared { .. }
            | Fact::Reported { .. }
            | Fact::DeadLettered { .. }
            | Fact::Circuit { .. }
            | Fact::Refused { .. }
            | Fact::Aggregated { .. }
            | Fact::Ended { .. } => {}
        }
    }

    fn forget(&mut self, fact: &Fact) {
        if let Fact::Ended { result } = fact {
            self.runs.remove(&result.task_id);
            self.tasks
                .retain(|_, known| known.run.as_ref() != Some(&result.task_id));
        }
    }

    /// The event of a fact.
    pub(super) fn draft(
        &mut self,
        plan: &Plan,
        (scribe, chains): (&Scribe, &Chains),
        fact: &Fact,
        asked: Option<&Asked>,
    ) -> Draft {
        self.see(plan, fact);
        let bytes = canonical(fact);
        let hash = digest(&bytes);
        let (name, task, run) = self.place(fact);
        let known = task
            .and_then(|task| self.tasks.get(task))
            .cloned()
            .unwrap_or_default();
        let origin = run.as_ref().and_then(|run| self.runs.get(run)).copied();
        let session = chains.home.or(origin.map(|origin| origin.session));
        let thread = session.map_or(chains.root, Thread::of);
        let session = task
            .filter(|_| known.attempts > 0)
            .map(|task| session_of(task, known.attempts).0);
        let mut payload = SwarmEvent {
            attempt: Some(known.attempts).filter(|attempt| *attempt > 0),
            fact_hash: Some(hash),
            member: Some(known.member.as_str()).filter(|member| !member.is_empty()),
            parent: known.parent.as_ref().map(TaskId::as_str),
            peer_session: session,
            role: origin.map(|origin| origin.role.0.as_str()),
            run: run.as_ref().map(TaskId::as_str),
            swarm: &plan.swarm,
            task_id: task.or(run.as_ref()).map(TaskId::as_str),
            ..SwarmEvent::default()
        };
        fill(&mut payload, fact, &known);
        if let Fact::Began { who, .. } = fact {
            payload.provider = plan.seat(*who).and_then(|seat| seat.asks.as_deref());
        }
        let answers = asked.filter(|_| matches!(fact, Fact::Run { .. }));
        if let Some(asked) = answers {
            payload.request_hash = Some(asked.request_hash);
            payload.request_id = Some(asked.request_id.as_str());
        }
        let draft = scribe.entry(&thread.child(scribe.clock().uuid()), name, &payload);
        let draft = draft.content(hash, bytes).answers(answers.map(|asked| asked.key));
        self.forget(fact);
        draft
    }

    /// The event's type, and what it is about.
    fn place<'f>(&self, fact: &'f Fact) -> (&'static str, Option<&'f TaskId>, Option<TaskId>) {
        let of = |name, task: &'f TaskId| {
            let run = self.tasks.get(task).and_then(|known| known.run.clone());
            (name, Some(task), run)
        };
        match fact {
            Fact::Run { run, .. } => (kind::SWARM_RUN, None, Some(run.clone())),
            Fact::Delegated { new, .. } => of(kind::SWARM_DELEGATED, &new.task),
            Fact::Began { task, .. }
            | Fact::TryEnded { task, .. }
            | Fact::Word { task, .. }
            | Fact::Shared { task, .. }
            | Fact::Told { task, .. } => of(kind::SWARM_TRY, task),
            Fact::Reported { task, .. } => of(kind::SWARM_REPORTED, task),
            Fact::DeadLettered { task, .. } => of(kind::SWARM_DEAD_LETTERED, task),
            Fact::Refused { task, .. } => of(kind::SWARM_REFUSED, task),
            Fact::Circuit { .. } => (kind::SWARM_CIRCUIT, None, None),
            Fact::Aggregated { run, task, .. } => (kind::SWARM_AGGREGATED, task.as_ref(), Some(run.clone())),
            Fact::Ended { result } => (kind::SWARM_ENDED, None, Some(result.task_id.clone())),
        }
    }
}

/// What this fact says.
fn fill<'a>(payload: &mut SwarmEvent<'a>, fact: &'a Fact, known: &Known) {
    match fact {
        Fact::Run { .. } | Fact::Delegated { .. } => {}
        Fact::Began { .. } => payload.state = Some("began"),
        Fact::Word { status, .. } => {
            payload.state = Some("reported");
            payload.status = Some(word(*status));
        }
        Fact::Told { .. } => payload.state = Some("told"),
        Fact::Shared { .. } => payload.state = Some("shared"),
        Fact::TryEnded { end, used, .. } => {
            payload.token_usage = Some(used.tokens);
            payload.cost_microusd = Some(used.cost_microusd);
            let (state, reason) = match end {
                TryEnd::Said { .. } => ("said", None),
                TryEnd::Lost { why, .. } => ("lost", Some(why.reason())),
                TryEnd::Over { fault, .. } => ("over", Some(&*fault.reason)),
            };
            payload.state = Some(state);
            payload.reason = reason;
        }
        Fact::Reported {
            outcome, duration_ms, ..
        } => {
            payload.status = Some(word(outcome.status));
            payload.reason = reason(outcome);
            payload.duration_ms = Some(*duration_ms);
            payload.token_usage = Some(known.tokens);
            payload.cost_microusd = Some(known.cost_microusd);
            payload.orphan = Some(false);
        }
        Fact::DeadLettered { reason, .. } | Fact::Refused { reason, .. } => payload.reason = Some(reason),
        Fact::Circuit { member, circuit } => {
            payload.member = Some(member);
            payload.state = Some(match circuit {
                Circuit::Closed => "closed",
                Circuit::Open { .. } => "open",
                Circuit::Trial => "trial",
            });
        }
        Fact::Aggregated { outcome, .. } => {
            payload.status = Some(word(outcome.status));
            payload.reason = reason(outcome);
        }
        Fact::Ended { result } => {
            payload.status = Some(word(result.status));
            payload.reason = result.error.as_ref().map(|fault| &*fault.reason);
            payload.duration_ms = Some(result.duration_ms);
            // The tasks' own reports have counted them.
            payload.run_tokens = Some(result.tokens);
        }
    }
}
