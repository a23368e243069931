//! The swarm's facts as events: the payload says what happened, the content is the fact itself, by which a start rebuilds it.

use std::collections::HashMap;

use clawk_events::payload::{SwarmDelegated, SwarmProgress, SwarmReported};
use clawk_proto::SessionId;
use clawk_proto::method::TaskStatus;
use clawk_swarm::coord::{CircuitState, TaskId, TryEnd, derived};
use clawk_swarm::{Plan, SwarmFact, TaskOutcome};

use super::{DelegationRequest, Origin};
use crate::event::{Draft, JournalWriter, Thread, canonical, digest, kind};
use crate::ports::RecordedEvent;

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
pub(super) struct SwarmChains {
    /// The runtime's own chain: for what belongs to no run.
    pub(super) root: Thread,
    /// Where hosts share the agent: the one chain of the whole swarm. Only its holder can append to it.
    pub(super) home: Option<SessionId>,
}

/// What events say beside the facts themselves.
#[derive(Debug, Default)]
pub(super) struct SwarmRecordBook {
    runs: HashMap<TaskId, Origin>,
    tasks: HashMap<TaskId, RecordedTask>,
}

#[derive(Debug, Clone, Default)]
struct RecordedTask {
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
pub fn fact_of(event: &RecordedEvent) -> Option<SwarmFact> {
    let content = event.content.as_ref()?;
    serde_json::from_slice(&content.bytes).ok() // silent-ok: an event of before there were facts
}

const fn status_name(status: TaskStatus) -> &'static str {
    match status {
        TaskStatus::Completed => "completed",
        TaskStatus::Failed => "failed",
        TaskStatus::Partial => "partial",
    }
}

fn outcome_reason(outcome: &TaskOutcome) -> Option<&str> {
    outcome.fault.as_ref().map(|fault| &*fault.reason)
}

impl SwarmRecordBook {
    /// Learns from a fact what later events of its run and task say.
    pub(super) fn apply_fact(&mut self, plan: &Plan, fact: &SwarmFact) {
        match fact {
            SwarmFact::Run { run, origin, .. } => {
                self.runs.insert(run.clone(), Origin::read(origin));
            }
            SwarmFact::Delegated { new, .. } => {
                let known = RecordedTask {
                    run: Some(new.run.clone()),
                    parent: new.parent.clone(),
                    ..RecordedTask::default()
                };
                self.tasks.insert(new.task.clone(), known);
            }
            SwarmFact::Began { task, who, attempt } => {
                if let Some(known) = self.tasks.get_mut(task) {
                    plan.member(*who).clone_into(&mut known.member);
                    known.attempts = *attempt;
                }
            }
            SwarmFact::TryEnded { task, used, .. } => {
                if let Some(known) = self.tasks.get_mut(task) {
                    known.tokens = known.tokens.saturating_add(used.tokens);
                    known.cost_microusd = known.cost_microusd.saturating_add(used.cost_microusd);
                }
            }
            SwarmFact::Word { .. }
            | SwarmFact::Told { .. }
            | SwarmFact::Shared { .. }
            | SwarmFact::Reported { .. }
            | SwarmFact::DeadLettered { .. }
            | SwarmFact::Circuit { .. }
            | SwarmFact::Refused { .. }
            | SwarmFact::Aggregated { .. }
            | SwarmFact::Ended { .. } => {}
        }
    }

    fn forget_fact(&mut self, fact: &SwarmFact) {
        if let SwarmFact::Ended { result } = fact {
            self.runs.remove(&result.task_id);
            self.tasks
                .retain(|_, known| known.run.as_ref() != Some(&result.task_id));
        }
    }

    /// The event of a fact.
    pub(super) fn event_draft(
        &mut self,
        plan: &Plan,
        (scribe, chains): (&JournalWriter, &SwarmChains),
        fact: &SwarmFact,
        asked: Option<&DelegationRequest>,
    ) -> Draft {
        self.apply_fact(plan, fact);
        let bytes = canonical(fact);
        let hash = digest(&bytes);
        let (task, run) = self.event_subject(fact);
        let known = task
            .and_then(|task| self.tasks.get(task))
            .cloned()
            .unwrap_or_default();
        let origin = run.as_ref().and_then(|run| self.runs.get(run)).copied();
        let session = chains.home.or(origin.map(|origin| origin.session));
        let thread = session.map_or(chains.root, Thread::for_session);
        let session = task
            .filter(|_| known.attempts > 0)
            .map(|task| session_of(task, known.attempts).0);
        let mut payload = SwarmProgress {
            attempt: Some(known.attempts).filter(|attempt| *attempt > 0),
            fact_hash: Some(hash),
            member: Some(known.member.clone()).filter(|member| !member.is_empty()),
            parent: known.parent.as_ref().map(|task| task.as_str().to_owned()),
            peer_session: session,
            role: origin.map(|origin| origin.role.0.as_str().to_owned()),
            run: run.as_ref().map(|task| task.as_str().to_owned()),
            swarm: plan.swarm.to_string(),
            task_id: task.or(run.as_ref()).map(|task| task.as_str().to_owned()),
            ..SwarmProgress::default()
        };
        fill_payload(&mut payload, fact, &known);
        if let SwarmFact::Began { who, .. } = fact {
            payload.provider = plan.seat(*who).and_then(|seat| seat.asks.clone());
        }
        let answers = asked.filter(|_| matches!(fact, SwarmFact::Run { .. }));
        if let Some(asked) = answers {
            payload.request_hash = Some(asked.request_hash);
            payload.request_id = Some(asked.request_id.as_str().to_owned());
        }
        let draft = drafted(scribe, &thread.child(scribe.clock().new_uuid()), fact, payload);
        let draft = draft
            .with_content(hash, bytes)
            .with_answer_key(answers.map(|asked| asked.key));
        self.forget_fact(fact);
        draft
    }

    /// The task and the run that a fact is about.
    fn event_subject<'f>(&self, fact: &'f SwarmFact) -> (Option<&'f TaskId>, Option<TaskId>) {
        let of_task = |task: &'f TaskId| {
            let run = self.tasks.get(task).and_then(|known| known.run.clone());
            (Some(task), run)
        };
        match fact {
            SwarmFact::Run { run, .. } => (None, Some(run.clone())),
            SwarmFact::Delegated { new, .. } => of_task(&new.task),
            SwarmFact::Began { task, .. }
            | SwarmFact::TryEnded { task, .. }
            | SwarmFact::Word { task, .. }
            | SwarmFact::Shared { task, .. }
            | SwarmFact::Told { task, .. }
            | SwarmFact::Reported { task, .. }
            | SwarmFact::DeadLettered { task, .. }
            | SwarmFact::Refused { task, .. } => of_task(task),
            SwarmFact::Circuit { .. } => (None, None),
            SwarmFact::Aggregated { run, task, .. } => (task.as_ref(), Some(run.clone())),
            SwarmFact::Ended { result } => (None, Some(result.task_id.clone())),
        }
    }
}

/// The event of a fact's type.
fn drafted(scribe: &JournalWriter, thread: &Thread, fact: &SwarmFact, payload: SwarmProgress) -> Draft {
    match fact {
        SwarmFact::Run { .. } => scribe.draft_event(thread, &payload.as_run()),
        SwarmFact::Delegated { .. } => scribe.draft_event(thread, &delegated(payload)),
        SwarmFact::Began { .. }
        | SwarmFact::TryEnded { .. }
        | SwarmFact::Word { .. }
        | SwarmFact::Shared { .. }
        | SwarmFact::Told { .. } => scribe.draft_event(thread, &payload.as_try()),
        SwarmFact::Reported { .. } => scribe.draft_event(thread, &reported(payload)),
        SwarmFact::DeadLettered { .. } => scribe.draft_event(thread, &payload.as_dead_lettered()),
        SwarmFact::Refused { .. } => scribe.draft_event(thread, &payload.as_refused()),
        SwarmFact::Circuit { .. } => scribe.draft_event(thread, &payload.as_circuit()),
        SwarmFact::Aggregated { .. } => scribe.draft_event(thread, &payload.as_aggregated()),
        SwarmFact::Ended { .. } => scribe.draft_event(thread, &payload.as_ended()),
    }
}

fn delegated(said: SwarmProgress) -> SwarmDelegated {
    SwarmDelegated {
        attempt: said.attempt,
        fact_hash: said.fact_hash,
        member: said.member,
        parent: said.parent,
        peer_session: said.peer_session,
        role: said.role,
        run: said.run,
        swarm: said.swarm,
        task_id: said.task_id.unwrap_or_default(),
        ..SwarmDelegated::default()
    }
}

fn reported(said: SwarmProgress) -> SwarmReported {
    SwarmReported {
        attempt: said.attempt,
        cost_microusd: said.cost_microusd.unwrap_or_default(),
        duration_ms: said.duration_ms.unwrap_or_default(),
        fact_hash: said.fact_hash,
        member: said.member,
        orphan: said.orphan.unwrap_or_default(),
        parent: said.parent,
        peer_session: said.peer_session,
        reason: said.reason,
        role: said.role,
        run: said.run,
        status: said.status.unwrap_or_default(),
        swarm: Some(said.swarm),
        task_id: said.task_id.unwrap_or_default(),
        token_usage: said.token_usage.unwrap_or_default(),
        ..SwarmReported::default()
    }
}

/// What this fact says.
fn fill_payload(payload: &mut SwarmProgress, fact: &SwarmFact, known: &RecordedTask) {
    match fact {
        SwarmFact::Run { .. } | SwarmFact::Delegated { .. } => {}
        SwarmFact::Began { .. } => payload.state = Some("began".to_owned()),
        SwarmFact::Word { status, .. } => {
            payload.state = Some("reported".to_owned());
            payload.status = Some(status_name(*status).to_owned());
        }
        SwarmFact::Told { .. } => payload.state = Some("told".to_owned()),
        SwarmFact::Shared { .. } => payload.state = Some("shared".to_owned()),
        SwarmFact::TryEnded { end, used, .. } => {
            payload.token_usage = Some(used.tokens);
            payload.cost_microusd = Some(used.cost_microusd);
            let (state, reason) = match end {
                TryEnd::Said { .. } => ("said", None),
                TryEnd::Lost { why, .. } => ("lost", Some(why.reason())),
                TryEnd::Over { fault, .. } => ("over", Some(&*fault.reason)),
            };
            payload.state = Some(state.to_owned());
            payload.reason = reason.map(str::to_owned);
        }
        SwarmFact::Reported {
            outcome, duration_ms, ..
        } => {
            payload.status = Some(status_name(outcome.status).to_owned());
            payload.reason = outcome_reason(outcome).map(str::to_owned);
            payload.duration_ms = Some(*duration_ms);
            payload.token_usage = Some(known.tokens);
            payload.cost_microusd = Some(known.cost_microusd);
            payload.orphan = Some(false);
        }
        SwarmFact::DeadLettered { reason, .. } | SwarmFact::Refused { reason, .. } => {
            payload.reason = Some(reason.to_string())
        }
        SwarmFact::Circuit { member, circuit } => {
            payload.member = Some(member.to_string());
            let state = match circuit {
                CircuitState::Closed => "closed",
                CircuitState::Open { .. } => "open",
                CircuitState::Trial => "trial",
            };
            payload.state = Some(state.to_owned());
        }
        SwarmFact::Aggregated { outcome, .. } => {
            payload.status = Some(status_name(outcome.status).to_owned());
            payload.reason = outcome_reason(outcome).map(str::to_owned);
        }
        SwarmFact::Ended { result } => {
            payload.status = Some(status_name(result.status).to_owned());
            payload.reason = result.error.as_ref().map(|fault| fault.reason.to_string());
            payload.duration_ms = Some(result.duration_ms);
            // The tasks' own reports have counted them.
            payload.run_tokens = Some(result.tokens);
        }
    }
}
