//! The coordinator: a state machine without I/O. Events come in with their time; effects go out.
//!
//! Every change of the state is a [`SwarmFact`], and only [`SwarmCoordinator::apply`] makes it. The facts are what the journal keeps, so the
//! state after a restart is the fold of them: [`SwarmCoordinator::apply`] for each, then [`SwarmCoordinator::resume`].
//!
//! INVARIANT: what is not a fact (`out`, `held`, `over`) holds nothing that a fold of the facts would miss.

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

/// A task's id, and a run's.
pub type TaskId = RequestId;

/// Runs and tasks that ended and are remembered, so that what comes late is known as such.
const ENDED: usize = 4096;

/// What is to be done next, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// To be kept, before anything that follows it is done.
    Record(Box<SwarmFact>),
    /// A try begins, or goes on after a restart.
    Start(Box<TryStart>),
    /// The task's try is to be ended: what it still says does not count.
    Cancel(TaskId),
    /// The asker of this task may read its result now.
    Reply {
        /// Who waits for it.
        asker: TaskId,
        /// Whose result.
        result: Box<TaskResult>,
    },
    /// Results of tasks that were not waited for, as a message to the one who delegated them; it takes another turn.
    Tell {
        /// Whose session.
        task: TaskId,
        /// Which results, by their tasks.
        of: Vec<TaskId>,
        /// The message.
        text: String,
    },
    /// A report, to be put before the next inference of these tasks' members (`event-bus`).
    Publish {
        /// Who reads it.
        to: Vec<TaskId>,
        /// The report, marked as data.
        text: String,
    },
    /// The run is over.
    RunEnded(Box<RunResult>),
}

/// A try.
#[derive(Debug, Clone, PartialEq)]
pub struct TryStart {
    /// The task.
    pub task: TaskId,
    /// Its run.
    pub run: TaskId,
    /// What it is.
    pub kind: Kind,
    /// Who works on it.
    pub who: SwarmWorkerId,
    /// Its name.
    pub member: String,
    /// Counted from 1.
    pub attempt: u32,
    /// What it reads.
    pub text: String,
    /// Reports of the run that it has not been told as part of its task (`event-bus`), marked as data.
    pub heard: Vec<String>,
    /// Who asked for it, by their task.
    pub asker: Option<TaskId>,
    /// The members to whom it may delegate.
    pub below: Vec<String>,
    /// The members whom it may ask.
    pub askable: Vec<String>,
    /// The wishes of who asked; they only narrow.
    pub wish: TaskConstraints,
    /// Whose session it is a turn of, by task and try: its own, or that of the task on which the asked one has worked.
    pub session: (TaskId, u32),
    /// It began before a restart: it goes on where its session stood.
    pub resumed: bool,
}

/// What a report met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportReception {
    /// It counts.
    Taken,
    /// The task has been reported before.
    Duplicate,
    /// The task has ended.
    Late,
    /// The task is another member's.
    NotYours,
    /// Too large, or not readable.
    Garbage,
    /// Its member is bound to a key that has not signed it.
    Unproven,
    /// No such task: an orphan (R22).
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

/// What is known of a seat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct SeatState {
    /// Failed tries in a row.
    failures: u32,
    circuit: CircuitState,
    done: u64,
    failed: u64,
}

/// A swarm at work.
#[derive(Debug, Clone, Serialize)]
pub struct SwarmCoordinator {
    plan: Plan,
    runs: BTreeMap<TaskId, SwarmRun>,
    tasks: BTreeMap<TaskId, SwarmTask>,
    seats: BTreeMap<String, SeatState>,
    /// Tasks so far: the order of arrival.
    arrived: u64,
    ended: VecDeque<TaskId>,
    #[serde(skip)]
    out: Vec<Effect>,
    /// Results whose askers wait for a place among `max_parallel`.
    #[serde(skip)]
    held: Vec<(TaskId, TaskId)>,
    #[serde(skip)]
    over: BTreeMap<TaskId, SwarmFault>,
}

/// An id that is made of another one: the same after a restart.
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
    /// A swarm in which nothing has happened.
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

    /// The task's own report has been taken.
    #[must_use]
    pub fn has_word(&self, task: &TaskId) -> bool {
        self.tasks.get(task).is_some_and(|task| task.word.is_some())
    }

    /// What the task's own report says that its try used, where the member works elsewhere.
    #[must_use]
    pub fn word_used(&self, task: &TaskId) -> Option<TryUsage> {
        self.tasks.get(task)?.word_used
    }

    /// A run that has not ended.
    #[must_use]
    pub fn run(&self, run: &TaskId) -> Option<&SwarmRun> {
        self.runs.get(run)
    }

    /// The run or task has ended, as far as is remembered.
    #[must_use]
    pub fn has_ended(&self, task: &TaskId) -> bool {
        self.ended.contains(task)
    }

    /// Goes on after the facts of the journal have been applied. Tries that had begun go on; what the manifest no longer says
    /// ends its runs.
    pub fn resume(&mut self, now_ms: u64) -> Vec<Effect> {
        let plan = self.plan.fingerprint();
        let changed: Vec<TaskId> = self
            .runs
            .values()
            .filter(|run| run.plan != plan)
            .map(|run| run.id.clone())
            .collect();
        for run in changed {
            let fault = SwarmFault::failed(
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
            self.node(&task, now_ms);
        }
        let runs: Vec<TaskId> = self.runs.keys().cloned().collect();
        for run in runs {
            if self.tasks_in(&run).next().is_none() {
                self.begin(&run, now_ms);
            } else {
                self.catch_up(&run, now_ms);
            }
        }
        self.pump(now_ms);
        std::mem::take(&mut self.out)
    }

    /// The task's try is worked on elsewhere: it takes no seat of this host.
    pub fn crosses(&mut self, task: &TaskId, now_ms: u64) -> Vec<Effect> {
        if let Some(task) = self.tasks.get_mut(task) {
            task.afar = true;
        }
        self.pump(now_ms);
        std::mem::take(&mut self.out)
    }

    /// Time has passed: limits end what they bound, what waited goes on.
    pub fn tick(&mut self, now_ms: u64) -> Vec<Effect> {
        self.expire(now_ms);
        self.pump(now_ms);
        std::mem::take(&mut self.out)
    }

    fn emit(&mut self, fact: SwarmFact) {
        self.apply(&fact);
        self.out.push(Effect::Record(Box::new(fact)));
    }

    /// Every task whose run has not ended.
    pub fn tasks(&self) -> impl Iterator<Item = &SwarmTask> {
        self.tasks.values()
    }

    /// A run's tasks.
    pub fn tasks_in<'a>(&'a self, run: &'a TaskId) -> impl Iterator<Item = &'a SwarmTask> {
        self.tasks.values().filter(move |task| task.new.run == *run)
    }

    /// The ids of a run's tasks in the order of arrival.
    fn tasks_of(&self, run: &TaskId) -> Vec<TaskId> {
        let mut of: Vec<&SwarmTask> = self.tasks.values().filter(|task| task.new.run == *run).collect();
        of.sort_by_key(|task| task.arrived);
        of.into_iter().map(|task| task.id().clone()).collect()
    }

    /// The tasks that this one delegated, in the order of its calls; of a run, what its topology began, in their order.
    fn answers_below(&self, run: &TaskId, parent: Option<&TaskId>, stage: u32) -> Vec<&SwarmTask> {
        // What an earlier try of the asker delegated belongs to that try.
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
