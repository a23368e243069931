//! The swarm for turns and calls: the coordinator, the record of every step, and the waiting callers.
//!
//! INVARIANT: each decision of the coordinator is queued for the journal under the same lock, so that the record has the same
//! order. Its effects are performed one after the other, each after its own record is durable.

mod record;
mod shared;
mod tools;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_manifest::model::{AutonomyLevel, Role};
use clawk_proto::{Digest, RequestId, SessionId};
use clawk_swarm::coord::{
    DelegatedTask, RunResult, RunTerms, SwarmTaskRefusal, TaskBrief, TaskConstraints, TaskId, TaskResult,
    TryStart,
};
use clawk_swarm::{Effect, Plan, SwarmCoordinator};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot, watch};

use crate::event::{JournalWriter, Thread};
use crate::member::Member;
use crate::ports::{AnswerKey, JournalError, JournalTicket};

pub use record::{SWARM_KINDS, fact_of, session_of};
pub(crate) use shared::STORE;
pub(crate) use tools::{ASK, DELEGATE, REPORT, SwarmToolCaller, WAIT_MS, tool_declarations};

/// Largest number of broadcasts kept for a member's next task.
const INBOX: usize = 64;
/// Largest number of runs and tasks whose askers' provenance is kept.
const ASKERS: usize = 10_000;

/// The source of a task whose asking context is unknown.
const UNKNOWN_CONTEXT: &str = "web unknown";
/// Largest part of a broadcast that a member reads, in bytes.
const MESSAGE_BYTES: usize = 16_384;

/// The giver of a run, and its rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The session whose chain records the run and whose budget pays.
    pub(crate) session: SessionId,
    /// Highest role of everybody who works on it.
    pub(crate) role: RoleWord,
    /// Highest autonomy level, if another host set one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) autonomy: Option<AutonomyLevel>,
    /// Another host gave the task, and it is worked on here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) from_afar: bool,
    /// The task came from the swarm's bus: if this host is lost, another one gets it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) by_bus: bool,
    /// Token limit, if the session's budget is on another host of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost_microusd: Option<u64>,
}

/// A role as its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoleWord(pub(crate) Role);

impl Serialize for RoleWord {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for RoleWord {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let word = String::deserialize(from)?;
        Ok(Self(Role::parse(&word).unwrap_or(Role::Viewer)))
    }
}

impl Origin {
    /// Makes the origin of a run that this agent's own session gave.
    pub(crate) const fn from_session(session: SessionId, role: Role) -> Self {
        Self {
            session,
            role: RoleWord(role),
            autonomy: None,
            from_afar: false,
            by_bus: false,
            tokens: None,
            cost_microusd: None,
        }
    }

    /// Parses a stored origin. An unreadable one has the lowest rights and no session.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or(Self {
            session: SessionId(uuid::Uuid::nil()),
            role: RoleWord(Role::Viewer),
            autonomy: Some(AutonomyLevel::Observer),
            from_afar: true,
            by_bus: true,
            tokens: None,
            cost_microusd: None,
        }) // silent-ok: ours always reads
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // silent-ok: a plain struct always serialises
    }
}

/// The request that a run answers (`claw.swarm.delegate`).
#[derive(Debug, Clone)]
pub(crate) struct DelegationRequest {
    pub(crate) request_id: RequestId,
    pub(crate) request_hash: Digest,
    pub(crate) key: AnswerKey,
}

/// The effects of a decision, performed after it is durable.
#[derive(Debug)]
pub(crate) struct SwarmStep {
    pub(crate) ticket: Option<JournalTicket>,
    pub(crate) effects: Vec<Effect>,
    pub(crate) done: Option<oneshot::Sender<Result<(), JournalError>>>,
}

#[derive(Debug)]
struct SwarmTeamState {
    coord: SwarmCoordinator,
    book: record::SwarmRecordBook,
    steps: VecDeque<SwarmStep>,
    /// Effects are no longer performed.
    over: bool,
    /// Waiters for the result of a task, by asker and task.
    replies: HashMap<(TaskId, TaskId), oneshot::Sender<TaskResult>>,
    /// Waiters for the end of a run.
    ends: HashMap<TaskId, Vec<oneshot::Sender<RunResult>>>,
    /// Ended runs whose end is not in the journal yet.
    ending: HashSet<TaskId>,
    members: HashMap<TaskId, Arc<Member>>,
    inboxes: BTreeMap<String, VecDeque<String>>,
    /// Provenance of the context in which a run was given, or in which a member's task asks others: by run or task.
    asked_in: HashMap<TaskId, BTreeSet<String>>,
}

impl SwarmTeamState {
    fn new(plan: Plan) -> Self {
        Self {
            coord: SwarmCoordinator::new(plan),
            book: record::SwarmRecordBook::default(),
            steps: VecDeque::new(),
            over: false,
            replies: HashMap::new(),
            ends: HashMap::new(),
            ending: HashSet::new(),
            members: HashMap::new(),
            inboxes: BTreeMap::new(),
            asked_in: HashMap::new(),
        }
    }

    fn wait_for_run(&mut self, run: &TaskId) -> oneshot::Receiver<RunResult> {
        let (tell, told) = oneshot::channel();
        let waiting = self.ends.entry(run.clone()).or_default();
        waiting.retain(|tell| !tell.is_closed());
        waiting.push(tell);
        told
    }
}

/// The swarm of an agent.
#[derive(Debug)]
pub(crate) struct SwarmTeam {
    inner: Mutex<SwarmTeamState>,
    scribe: JournalWriter,
    chains: record::SwarmChains,
    bell: Notify,
    /// `true` if this host coordinates the swarm. Only then it decides, works and records.
    leads: watch::Sender<bool>,
    /// Row of the last broadcast that was applied.
    heard: AtomicU64,
}

impl SwarmTeam {
    /// Makes the swarm. `root`: the runtime's own chain. `home`: if hosts share the agent, the chain of the whole swarm, whose
    /// owner coordinates it.
    pub(crate) fn new(plan: Plan, scribe: JournalWriter, root: Thread, home: Option<SessionId>) -> Self {
        Self {
            inner: Mutex::new(SwarmTeamState::new(plan)),
            scribe,
            chains: record::SwarmChains { root, home },
            bell: Notify::new(),
            leads: watch::Sender::new(home.is_none()),
            heard: AtomicU64::default(),
        }
    }

    /// Returns the chain of the whole swarm, if hosts share the agent.
    pub(crate) const fn home_session(&self) -> Option<SessionId> {
        self.chains.home
    }

    /// Returns whether this host coordinates the swarm.
    pub(crate) fn is_coordinator(&self) -> bool {
        *self.leads.borrow()
    }

    /// Makes this host the coordinator of the swarm.
    pub(crate) fn become_coordinator(&self) {
        self.leads.send_replace(true);
    }

    /// Forgets everything except the waiters for runs, before the record is read from its beginning.
    pub(crate) fn reset_state(&self) {
        let mut inner = self.lock();
        let fresh = SwarmTeamState::new(inner.coord.plan().clone());
        let before = std::mem::replace(&mut *inner, fresh);
        inner.ends = before.ends;
    }

    /// Puts a recorded broadcast into the members' inboxes, once.
    pub(crate) fn add_broadcast(&self, text: &str, row: u64) {
        if self.heard.fetch_max(row, Ordering::Relaxed) < row {
            self.broadcast_text(text);
        }
    }

    /// Completes when this host coordinates the swarm.
    pub(crate) async fn wait_until_coordinator(&self) {
        let mut leads = self.leads.subscribe();
        let _gone = leads.wait_for(|leads| *leads).await; // silent-ok: the sender is ours
    }

    fn lock(&self) -> MutexGuard<'_, SwarmTeamState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.scribe.now().0 / 1000).unwrap_or(0)
    }

    /// Reads the coordinator's state.
    pub(crate) fn with_coordinator<R>(&self, look: impl FnOnce(&SwarmCoordinator) -> R) -> R {
        look(&self.lock().coord)
    }

    /// Lets the coordinator decide and queues the decision. The receiver completes when it is durable.
    pub(crate) fn queue_decision<E>(
        &self,
        asked: Option<&DelegationRequest>,
        decide: impl FnOnce(&mut SwarmCoordinator, u64) -> Result<Vec<Effect>, E>,
    ) -> Result<oneshot::Receiver<Result<(), JournalError>>, E> {
        let now_ms = self.now_ms();
        let (done, durable) = oneshot::channel();
        let mut inner = self.lock();
        let effects = decide(&mut inner.coord, now_ms)?;
        if inner.over {
            return Ok(durable); // who waits for it is told that it does not come
        }
        let SwarmTeamState {
            coord, book, ending, ..
        } = &mut *inner;
        let mut drafts = Vec::new();
        let mut rest = Vec::new();
        for effect in effects {
            match effect {
                Effect::Record(fact) => {
                    drafts.push(book.event_draft(coord.plan(), (&self.scribe, &self.chains), &fact, asked))
                }
                Effect::RunEnded(result) => {
                    ending.insert(result.task_id.clone());
                    rest.push(Effect::RunEnded(result));
                }
                other => rest.push(other),
            }
        }
        let mut step = SwarmStep {
            ticket: None,
            effects: rest,
            done: Some(done),
        };
        if !drafts.is_empty() {
            match self.scribe.submit_drafts(drafts) {
                Ok(ticket) => step.ticket = Some(ticket),
                Err(error) => {
                    // Without its record, a decision has not happened and nothing of it is performed.
                    step.effects.clear();
                    let done = step.done.take();
                    done.into_iter().for_each(|done| {
                        let _gone = done.send(Err(error.clone())); // silent-ok: nobody waits
                    });
                }
            }
        }
        inner.steps.push_back(step);
        drop(inner);
        self.bell.notify_one();
        Ok(durable)
    }

    /// Closes the swarm at the agent's end. No further decision is made, and all waiting callers get an error.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.over = true;
        inner.steps.clear();
    }

    /// Waits for the next effects to perform.
    pub(crate) async fn next(&self) -> SwarmStep {
        loop {
            if let Some(step) = self.lock().steps.pop_front() {
                return step;
            }
            self.bell.notified().await;
        }
    }

    /// Accepts a run. It is durable when the receiver completes.
    pub(crate) fn accept_run(
        &self,
        run: &TaskId,
        brief: TaskBrief,
        (to, wish): (Option<&str>, TaskConstraints),
        origin: Origin,
        asked: Option<&DelegationRequest>,
    ) -> Result<oneshot::Receiver<Result<(), JournalError>>, SwarmTaskRefusal> {
        let terms = RunTerms {
            to,
            wish,
            from_afar: origin.from_afar,
        };
        let origin = origin.text();
        self.queue_decision(asked, |coord, now_ms| {
            coord.accept_within(run, brief, terms, &origin, now_ms)
        })
    }

    /// Returns a receiver for the end of a run that is not in the journal yet; `None`: it is, or the run does not exist.
    pub(crate) fn when_ended(&self, run: &TaskId) -> Option<oneshot::Receiver<RunResult>> {
        let mut inner = self.lock();
        if inner.coord.run(run).is_none() && !inner.ending.contains(run) {
            return None;
        }
        Some(inner.wait_for_run(run))
    }

    /// Removes a waiter for the end of a run.
    pub(crate) fn wait_no_more(&self, run: &TaskId, told: oneshot::Receiver<RunResult>) {
        drop(told);
        let mut inner = self.lock();
        if let Some(waiting) = inner.ends.get_mut(run) {
            waiting.retain(|tell| !tell.is_closed());
            if waiting.is_empty() {
                inner.ends.remove(run);
            }
        }
    }

    /// Returns a receiver for the end of a run, whichever host coordinates it.
    pub(crate) fn wait_for_end(&self, run: &TaskId) -> oneshot::Receiver<RunResult> {
        self.lock().wait_for_run(run)
    }

    /// Accepts a task that a member delegates. The receiver gets its result.
    pub(crate) fn delegate_task(
        &self,
        asker: &TaskId,
        wanted: DelegatedTask,
    ) -> Result<oneshot::Receiver<TaskResult>, SwarmTaskRefusal> {
        let told = self.wait_for(asker, &wanted.task);
        let task = wanted.task.clone();
        let kept = self.queue_decision(None, |coord, now_ms| coord.delegate_task(asker, wanted, now_ms));
        kept.map(|_durable| told)
            .inspect_err(|_| self.forget_task(asker, &task))
    }

    /// Accepts a question to a peer.
    pub(crate) fn ask_peer(
        &self,
        asker: &TaskId,
        task: TaskId,
        to: &str,
        question: String,
    ) -> Result<oneshot::Receiver<TaskResult>, SwarmTaskRefusal> {
        let told = self.wait_for(asker, &task);
        let asked = task.clone();
        let kept = self.queue_decision(None, |coord, now_ms| {
            coord.ask_peer(asker, asked, to, question, now_ms)
        });
        kept.map(|_durable| told)
            .inspect_err(|_| self.forget_task(asker, &task))
    }

    fn wait_for(&self, asker: &TaskId, task: &TaskId) -> oneshot::Receiver<TaskResult> {
        let (tell, told) = oneshot::channel();
        self.lock().replies.insert((asker.clone(), task.clone()), tell);
        told
    }

    fn forget_task(&self, asker: &TaskId, task: &TaskId) {
        self.lock().replies.remove(&(asker.clone(), task.clone()));
    }

    /// Passes a result to its waiting asker.
    pub(crate) fn deliver_result(&self, asker: &TaskId, result: TaskResult) {
        let waiting = self
            .lock()
            .replies
            .remove(&(asker.clone(), result.task_id.clone()));
        if let Some(waiting) = waiting {
            let _gone = waiting.send(result); // silent-ok: who asked has gone
        }
    }

    /// Records the provenance of the context in which this run or member's task asks.
    pub(crate) fn note_asker(&self, asker: &TaskId, origins: &BTreeSet<String>) {
        let mut inner = self.lock();
        if inner.asked_in.len() < ASKERS || inner.asked_in.contains_key(asker) {
            let known = inner.asked_in.entry(asker.clone()).or_default();
            known.extend(origins.iter().cloned());
        }
    }

    /// Returns the provenance of a task: that of its run's asker, and of the member that asked for it.
    pub(crate) fn asked_in(&self, start: &TryStart) -> BTreeSet<String> {
        let inner = self.lock();
        let askers = std::iter::once(&start.run).chain(&start.asker);
        let mut found = BTreeSet::new();
        for asker in askers {
            match inner.asked_in.get(asker) {
                Some(known) => found.extend(known.iter().cloned()),
                // The task was requested before a restart or on another host, so its context is unknown.
                None => drop(found.insert(UNKNOWN_CONTEXT.to_owned())),
            }
        }
        found
    }

    /// Notifies all waiters of a run.
    pub(crate) fn notify_run_ended(&self, result: &RunResult) {
        let mut inner = self.lock();
        inner.asked_in.remove(&result.task_id);
        inner.ending.remove(&result.task_id);
        let waiting = inner.ends.remove(&result.task_id).unwrap_or_default();
        drop(inner);
        for tell in waiting {
            let _gone = tell.send(result.clone()); // silent-ok: who waited has gone
        }
    }

    pub(crate) fn run_origin(&self, run: &TaskId) -> Option<Origin> {
        self.with_coordinator(|coord| coord.run(run).map(|run| Origin::read(&run.origin)))
    }

    pub(crate) fn seat_member(&self, member: Arc<Member>) {
        self.lock().members.insert(member.task.clone(), member);
    }

    pub(crate) fn unseat_member(&self, task: &TaskId) {
        self.lock().members.remove(task);
    }

    /// Returns the member that now works on a task.
    pub(crate) fn task_member(&self, task: &TaskId) -> Option<Arc<Member>> {
        self.lock().members.get(task).cloned()
    }

    /// Puts a message into every member's bounded inbox. Returns the number of members.
    pub(crate) fn broadcast_text(&self, text: &str) -> usize {
        let mut inner = self.lock();
        let names: Vec<String> = inner
            .coord
            .plan()
            .seats
            .iter()
            .map(|seat| seat.member.clone())
            .collect();
        let peers = names.len();
        for name in names {
            let inbox = inner.inboxes.entry(name).or_default();
            inbox.push_back(text.chars().take(MESSAGE_BYTES).collect());
            if inbox.len() > INBOX {
                inbox.pop_front();
            }
        }
        peers
    }

    /// Returns the messages to a member since its last task.
    pub(crate) fn take_inbox(&self, member: &str) -> Vec<String> {
        self.lock().inboxes.remove(member).unwrap_or_default().into()
    }

    /// Applies a fact of the journal, in its order.
    pub(crate) fn restore_fact(&self, fact: &clawk_swarm::SwarmFact) {
        let mut inner = self.lock();
        let SwarmTeamState { coord, book, .. } = &mut *inner;
        book.apply_fact(coord.plan(), fact);
        coord.apply_fact(fact);
    }
}
