//! Runs and tasks.

use super::{
    BTreeMap, BTreeSet, Deserialize, NewTask, Serialize, SwarmWorkerId, TaskAnswer, TaskId, TaskStatus,
    TryUsage, Value,
};
use crate::answer::MemberAnswer;
use crate::combine::{HeadPurpose, TaskOutcome};

/// The work of a task or run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskBrief {
    /// A description in words.
    pub description: String,
    /// Structured input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// The limits that an asker sets for a task; they only narrow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskConstraints {
    /// Only these tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The time limit of the whole task, from its acceptance, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// The largest number of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The largest cost, millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
}

impl TaskConstraints {
    /// Whether no limit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The kind of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Work on the run's task or on a delegated task.
    Work,
    /// A question from a peer.
    Asked,
    /// A question about answers, without tools.
    Judge {
        /// What the head is asked to do.
        purpose: HeadPurpose,
        /// It is the second attempt, because the first verdict was unreadable.
        again: bool,
    },
}

/// The phase of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwarmTaskPhase {
    /// No try runs.
    Waiting,
    /// A try runs.
    Running,
    /// Its member has finished, but its subtasks or a judge have not.
    Parked,
    /// It has ended.
    Done,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmTask {
    /// The task as it was given.
    pub new: NewTask,
    pub(super) arrived: u64,
    pub(super) at_ms: u64,
    /// Its phase.
    pub phase: SwarmTaskPhase,
    /// The present or next worker.
    pub seat: Option<SwarmWorkerId>,
    /// The number of tries so far.
    pub attempts: u32,
    /// The number of consecutive failed tries on this seat.
    pub(super) failed_here: u32,
    pub(super) not_before_ms: u64,
    /// The start of the present phase. It is reset at a restart, so the time in between does not count.
    #[serde(skip)]
    pub(super) since_ms: u64,
    /// Its try runs elsewhere. Not stored: after a restart it is sent again.
    #[serde(skip)]
    pub(super) afar: bool,
    /// A member was reached.
    pub(super) reached: bool,
    /// Tasks that it waits for.
    pub(super) waits: BTreeSet<TaskId>,
    /// Results that were sent to it in a message.
    pub(super) told: BTreeSet<TaskId>,
    /// Its own report.
    pub(super) word: Option<(TaskStatus, TaskAnswer)>,
    /// The usage in its own report.
    pub(super) word_used: Option<TryUsage>,
    /// The last text of its turn.
    pub(super) said: Option<String>,
    /// Its outcome.
    pub outcome: Option<TaskOutcome>,
    /// The tokens of its tries.
    pub tokens: u64,
    /// The cost of its tries, millionths of a US dollar.
    pub cost_microusd: u64,
    pub(super) duration_ms: u64,
}

impl SwarmTask {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> &TaskId {
        &self.new.task
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == SwarmTaskPhase::Done
    }

    /// Its status; `Failed` before its end.
    #[must_use]
    pub fn status(&self) -> TaskStatus {
        self.outcome
            .as_ref()
            .map_or(TaskStatus::Failed, |outcome| outcome.status)
    }

    /// The deadline that the asking task set.
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

/// A task for the whole swarm, or for one member, from outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwarmRun {
    /// The run's id, which the asker knows.
    pub id: TaskId,
    /// The work.
    pub brief: TaskBrief,
    /// Only these members; empty: the whole swarm.
    pub to: Vec<SwarmWorkerId>,
    /// Who asked, in the caller's own notation.
    pub origin: String,
    /// The limits set by the asker, for each of the run's tasks.
    #[serde(default)]
    pub wish: TaskConstraints,
    /// Another host of the swarm gave the run and counts it.
    #[serde(default)]
    pub from_afar: bool,
    /// When it was accepted, Unix milliseconds.
    pub at_ms: u64,
    /// The plan's [`crate::Plan::fingerprint`].
    pub plan: String,
    /// The present stage.
    pub stage: u32,
    /// The results of earlier stages.
    pub stages: Vec<StageEnd>,
    /// The values that its members share (`shared-memory`), by key.
    #[serde(default)]
    pub shared: BTreeMap<String, SharedValue>,
}

/// A value that the members of a run share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharedValue {
    /// The value.
    pub value: Value,
    /// The version, from 1 for each key.
    pub version: u64,
    /// The member that stored it.
    pub member: String,
}

/// The result of a stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageEnd {
    /// Its member, or the name of its identity if several members worked.
    pub member: String,
    /// Its outcome.
    pub outcome: TaskOutcome,
}
