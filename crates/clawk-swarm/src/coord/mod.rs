//! The coordinator: a state machine without I/O. Events come in with their time; effects go out.
//!
//! Every change of the state is a [`SwarmFact`], and only [`SwarmCoordinator::apply_fact`] changes the state. The journal stores the
//! facts. So the state after a restart is their fold: [`SwarmCoordinator::apply_fact`] for each fact, then [`SwarmCoordinator::resume`].
//!
//! INVARIANT: the other fields (`out`, `held`, `over`) hold nothing that a fold of the facts would miss.

mod accept;
mod end;
mod fact;
mod flow;
mod over;
mod pump;
mod share;
mod task;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use clawk_proto::RequestId;
use clawk_proto::method::TaskStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::answer::{SwarmFault, TaskAnswer};
use crate::plan::{Plan, SwarmWorkerId};

pub use accept::{DelegatedTask, RunTerms, SwarmTaskRefusal};
pub use end::{RetryReason, TryEnd, TryUsage};
pub use fact::{CircuitState, NewTask, SwarmFact};
pub use share::NotShared;
pub use task::{Kind, SharedValue, SwarmRun, SwarmTask, SwarmTaskPhase, TaskBrief, TaskConstraints};
pub use view::{EdgeKind, Member, Node, RunResult, RunState, SwarmEdge, TaskResult};

/// The id of a task or a run.
pub type TaskId = RequestId;

/// The number of ended runs and tasks that are remembered, so that late messages are recognised.
const ENDED: usize = 4096;

/// An action for the caller, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Record a fact before any later effect is performed.
    Record(Box<SwarmFact>),
    /// A try begins, or continues after a restart.
    Start(Box<TryStart>),
    /// End the task's try; its later messages do not count.
    Cancel(TaskId),
    /// Give the task that asked its result.
    Reply {
        /// The task that waits.
        asker: TaskId,
        /// The result.
        result: Box<TaskResult>,
    },
    /// Send results of tasks that were not waited for, as a message to the task that delegated them. It takes another turn.
    Tell {
        /// The task whose session gets the message.
        task: TaskId,
        /// The tasks with these results.
        of: Vec<TaskId>,
        /// The message.
        text: String,
    },
    /// Add a report before the next inference of these tasks' members (`event-bus`).
    Publish {
        /// The tasks that get it.
        to: Vec<TaskId>,
        /// The report, marked as data.
        text: String,
    },
    /// The run has ended.
    RunEnded(Box<RunResult>),
}

/// The start of a try.
#[derive(Debug, Clone, PartialEq)]
pub struct TryStart {
    /// The task.
    pub task: TaskId,
    /// Its run.
    pub run: TaskId,
    /// The kind of task.
    pub kind: Kind,
    /// The worker.
    pub who: SwarmWorkerId,
    /// The worker's name.
    pub member: String,
    /// The number of the try, from 1.
    pub attempt: u32,
    /// The text for the worker.
    pub text: String,
    /// Reports of the run that are not part of the task's text (`event-bus`), marked as data.
    pub heard: Vec<String>,
    /// The task that asked for it.
    pub asker: Option<TaskId>,
    /// The members to whom it may delegate.
    pub below: Vec<String>,
    /// The members that it may ask.
    pub askable: Vec<String>,
    /// The limits set by the asking task; they only narrow.
    pub wish: TaskConstraints,
    /// The session in which the try is a turn, by task and try: its own, or that of the task that the asked member is working on.
    pub session: (TaskId, u32),
    /// The try began before a restart and continues in its session.
    pub resumed: bool,
}

/// The result of receiving a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportReception {
    /// The report counts.
    Taken,
    /// The task has been reported before.
    Duplicate,
    /// The task has ended.
    Late,
    /// The task belongs to another member.
    NotYours,
    /// The report is too large or unreadable.
    Garbage,
    /// The member is bound to a key that did not sign the report.
    Unproven,
    /// The task is unknown: an orphan (R22).
    Unknown,
}

impl ReportReception {
    /// The reason in `ckp.swarm.refused`.
    #[must_use]
    pub const fn reason(self) -> Option<&'static str> {
        match self {
            Self::Taken | Self::Unknown => None,
            Self::Duplicate => Some("duplicate"),
            Self::Late => Some("late"),
            Self::NotYours => Some("not_yours"),
            Self::Garbage => Some("garbage"),
            Self::Unproven => Some("unproven"),
        }
    }
}

/// The state of a seat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct SeatState {
    /// The number of consecutive failed tries.
    failures: u32,
    circuit: CircuitState,
    done: u64,
    failed: u64,
}

/// The state of a running swarm.
#[derive(Debug, Clone, Serialize)]
pub struct SwarmCoordinator {
    plan: Plan,
    runs: BTreeMap<TaskId, SwarmRun>,
    tasks: BTreeMap<TaskId, SwarmTask>,
    seats: BTreeMap<String, SeatState>,
    /// The number of tasks so far, which gives their order of arrival.
    arrived: u64,
    ended: VecDeque<TaskId>,
    #[serde(skip)]
    out: Vec<Effect>,
    /// Results whose asking tasks wait for a place within `max_parallel`.
    #[serde(skip)]
    held: Vec<(TaskId, TaskId)>,
    #[serde(skip)]
    over: BTreeMap<TaskId, SwarmFault>,
}

/// An id derived from another one; it is the same after a restart.
#[must_use]
pub fn derived(from: &TaskId, what: &str) -> TaskId {
    let mut hash = Sha256::new();
    hash.update(from.as_str().as_bytes());
    hash.update([0]);
    hash.update(what.as_bytes());
    let mut bytes = [0_u8; 16];
    for (to, byte) in bytes.iter_mut().zip(hash.finalize()) {
        *to = byte;
    }
    TaskId::from(uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

impl SwarmCoordinator {
    /// A swarm without any events.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            runs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            seats: BTreeMap::new(),
            arrived: 0,
            ended: VecDeque::new(),
            out: Vec::new(),
            held: Vec::new(),
            over: BTreeMap::new(),
        }
    }

    /// The swarm's members and limits.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// A task whose run has not ended.
    #[must_use]
    pub fn task(&self, task: &TaskId) -> Option<&SwarmTask> {
        self.tasks.get(task)
    }

    /// Whether the task's own report has been accepted.
    #[must_use]
    pub fn has_word(&self, task: &TaskId) -> bool {
        self.tasks.get(task).is_some_and(|task| task.word.is_some())
    }

    /// The usage of the try according to the task's own report, if the member works elsewhere.
    #[must_use]
    pub fn word_used(&self, task: &TaskId) -> Option<TryUsage> {
        self.tasks.get(task)?.word_used
    }

    /// A run that has not ended.
    #[must_use]
    pub fn run(&self, run: &TaskId) -> Option<&SwarmRun> {
        self.runs.get(run)
    }

    /// Whether the run or task has ended, as far as that is remembered.
    #[must_use]
    pub fn has_ended(&self, task: &TaskId) -> bool {
        self.ended.contains(task)
    }

    /// Continues after the journal's facts were applied. Tries that had begun continue. A run that the manifest no longer supports
    /// ends.
    pub fn resume(&mut self, now_ms: u64) -> Vec<Effect> {
        let plan = self.plan.fingerprint();
        let changed: Vec<TaskId> = self
            .runs
            .values()
            .filter(|run| run.plan != plan)
            .map(|run| run.id.clone())
            .collect();
        for run in changed {
            let fault = SwarmFault::task_failed(
                "swarm_changed",
                "the Swarm of the manifest has changed since the run began",
            );
            self.wind_down(&run, fault, now_ms);
        }
        let running: Vec<TaskId> = self
            .tasks
            .values()
            .filter(|task| task.phase == SwarmTaskPhase::Running)
            .map(|task| task.id().clone())
            .collect();
        for id in running {
            if let Some(task) = self.tasks.get_mut(&id) {
                task.since_ms = now_ms; // the time in which nobody ran does not count
            }
            self.start_effect(&id, true);
        }
        let parked: Vec<TaskId> = self
            .tasks
            .values()
            .filter(|task| task.phase == SwarmTaskPhase::Parked)
            .map(|task| task.id().clone())
            .collect();
        for task in parked {
            self.advance_task(&task, now_ms);
        }
        let runs: Vec<TaskId> = self.runs.keys().cloned().collect();
        for run in runs {
            if self.tasks_in(&run).next().is_none() {
                self.begin_run(&run, now_ms);
            } else {
                self.catch_up(&run, now_ms);
            }
        }
        self.advance_all(now_ms);
        std::mem::take(&mut self.out)
    }

    /// Records that the task's try runs elsewhere, so it takes no seat of this host.
    pub fn crosses(&mut self, task: &TaskId, now_ms: u64) -> Vec<Effect> {
        if let Some(task) = self.tasks.get_mut(task) {
            task.afar = true;
        }
        self.advance_all(now_ms);
        std::mem::take(&mut self.out)
    }

    /// Handles the passing of time: limits end runs and tries, and waiting tasks continue.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Effect> {
        self.expire_tasks(now_ms);
        self.advance_all(now_ms);
        std::mem::take(&mut self.out)
    }

    fn emit(&mut self, fact: SwarmFact) {
        self.apply_fact(&fact);
        self.out.push(Effect::Record(Box::new(fact)));
    }

    /// Every task whose run has not ended.
    pub fn tasks(&self) -> impl Iterator<Item = &SwarmTask> {
        self.tasks.values()
    }

    /// The tasks of a run.
    pub fn tasks_in<'a>(&'a self, run: &'a TaskId) -> impl Iterator<Item = &'a SwarmTask> {
        self.tasks.values().filter(move |task| task.new.run == *run)
    }

    /// The ids of a run's tasks, in order of arrival.
    fn tasks_of(&self, run: &TaskId) -> Vec<TaskId> {
        let mut of: Vec<&SwarmTask> = self.tasks.values().filter(|task| task.new.run == *run).collect();
        of.sort_by_key(|task| task.arrived);
        of.into_iter().map(|task| task.id().clone()).collect()
    }

    /// The tasks that this task delegated, in the order of its calls. For a run: the tasks that its topology began, in order.
    fn answers_below(&self, run: &TaskId, parent: Option<&TaskId>, stage: u32) -> Vec<&SwarmTask> {
        // Tasks that an earlier try of the asking task delegated belong to that try.
        let attempt = parent
            .and_then(|parent| self.tasks.get(parent))
            .map_or(0, |task| task.attempts);
        let mut of: Vec<&SwarmTask> = self
            .tasks
            .values()
            .filter(|task| {
                task.new.run == *run
                    && task.new.parent.as_ref() == parent
                    && task.new.attempt == attempt
                    && task.new.kind == Kind::Work
                    && task.new.stage == stage
            })
            .collect();
        of.sort_by_key(|task| (task.new.order, task.arrived));
        of
    }
}
