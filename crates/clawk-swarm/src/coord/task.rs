//! Runs and tasks.

use super::{
    BTreeMap, BTreeSet, Deserialize, NewTask, Serialize, SwarmWorkerId, TaskAnswer, TaskId, TaskStatus,
    TryUsage, Value,
};
use crate::answer::MemberAnswer;
use crate::combine::{HeadPurpose, TaskOutcome};

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskBrief {
    /// In words.
    pub description: String,
    /// Structured input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// What who asks for a task wants of it; all of it only narrows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskConstraints {
    /// At most these tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Of the whole task, from its acceptance, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Millionths of a dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
}

impl TaskConstraints {
    /// Nothing is wished.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Work on the run's task, or on one that was delegated.
    Work,
    /// A peer's question.
    Asked,
    /// A question about answers, without tools.
    Judge {
        /// What is wanted.
        purpose: HeadPurpose,
        /// The first verdict was not readable.
        again: bool,
    },
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwarmTaskPhase {
    /// No try runs.
    Waiting,
    /// A try runs.
    Running,
    /// Its member has said its last word; tasks that it delegated, or a judge, have not.
    Parked,
    /// It has ended.
    Done,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmTask {
    /// As it was given.
    pub new: NewTask,
    pub(super) arrived: u64,
    pub(super) at_ms: u64,
    /// Where it stands.
    pub phase: SwarmTaskPhase,
    /// Who works on it, or will again.
    pub seat: Option<SwarmWorkerId>,
    /// Tries so far.
    pub attempts: u32,
    /// Failed tries in a row on this seat.
    pub(super) failed_here: u32,
    pub(super) not_before_ms: u64,
    /// Not kept beyond a restart as it is: the time between does not count.
    #[serde(skip)]
    pub(super) since_ms: u64,
    /// Its try is worked on elsewhere. Not kept: after a restart it crosses again.
    #[serde(skip)]
    pub(super) afar: bool,
    /// A member has been reached.
    pub(super) reached: bool,
    /// Tasks that it waits for.
    pub(super) waits: BTreeSet<TaskId>,
    /// Results that it was told in a message.
    pub(super) told: BTreeSet<TaskId>,
    /// Its own report.
    pub(super) word: Option<(TaskStatus, TaskAnswer)>,
    /// What the member says in it that it used.
    pub(super) word_used: Option<TryUsage>,
    /// The last text of its turn.
    pub(super) said: Option<String>,
    /// How it ended.
    pub outcome: Option<TaskOutcome>,
    /// Tokens of its tries.
    pub tokens: u64,
    /// Their cost, millionths of a dollar.
    pub cost_microusd: u64,
    pub(super) duration_ms: u64,
}

impl SwarmTask {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &TaskId {
        &self.new.task
    }

    /// It has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == SwarmTaskPhase::Done
    }

    /// How it ended; failed while it has not.
    #[must_use]
    pub fn status(&self) -> TaskStatus {
        self.outcome
            .as_ref()
            .map_or(TaskStatus::Failed, |outcome| outcome.status)
    }

    /// The deadline that its asker set.
    pub(super) fn deadline_ms(&self) -> Option<u64> {
        self.new
            .wish
            .timeout_ms
            .map(|limit| self.at_ms.saturating_add(limit))
    }

    pub(super) fn said_as(&self, member: &str) -> MemberAnswer {
        MemberAnswer {
            member: member.to_owned(),
            status: self.status(),
            answer: self
                .outcome
                .as_ref()
                .map(|outcome| outcome.answer.clone())
                .unwrap_or_default(),
        }
    }
}

/// One task given to the whole swarm, or to one member from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmRun {
    /// Its id, by which who asked knows it.
    pub id: TaskId,
    /// What is to be done.
    pub brief: TaskBrief,
    /// Only these members; empty: the whole swarm.
    pub to: Vec<SwarmWorkerId>,
    /// Who asked: the driver's own word.
    pub origin: String,
    /// Wishes of who asked: they hold for each of its tasks.
    #[serde(default)]
    pub wish: TaskConstraints,
    /// Another host of the swarm gave it, and counts it.
    #[serde(default)]
    pub from_afar: bool,
    /// When it was accepted, Unix milliseconds.
    pub at_ms: u64,
    /// [`crate::Plan::fingerprint`].
    pub plan: String,
    /// The stage that works.
    pub stage: u32,
    /// What the stages before gave.
    pub stages: Vec<StageEnd>,
    /// What its members share (`shared-memory`), by key.
    #[serde(default)]
    pub shared: BTreeMap<String, SharedValue>,
}

/// A value that the members of a run share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharedValue {
    /// The value.
    pub value: Value,
    /// Counted from 1 for each key.
    pub version: u64,
    /// Who put it there.
    pub member: String,
}

/// What a stage gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageEnd {
    /// Its member, or the name of its identity where several worked.
    pub member: String,
    /// Its one answer.
    pub outcome: TaskOutcome,
}
