//! The public view of a swarm: results, states and the graph.

use super::{
    Deserialize, Serialize, SwarmCoordinator, SwarmTask, SwarmTaskPhase, SwarmWorkerId, TaskId, TaskStatus,
    Value, derived,
};
use crate::answer::SwarmFault;
use crate::combine::{JudgeChoice, TaskOutcome};
use crate::coord::task::{Kind, SwarmRun};
use crate::merge::MergeConflict;
use crate::vote::BallotCount;
use clawk_manifest::model::Topology;

/// The result of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Its id.
    pub task_id: TaskId,
    /// The member that worked on it; empty: none.
    pub member: String,
    /// The member's role.
    pub role: String,
    /// The status at its end.
    pub status: TaskStatus,
    /// The text of the answer.
    pub text: String,
    /// The answer as JSON, if it is an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The number of tries.
    pub attempts: u32,
    /// Tokens.
    pub tokens: u64,
    /// The cost, millionths of a US dollar.
    pub cost_microusd: u64,
    /// The time since its acceptance, milliseconds.
    pub duration_ms: u64,
    /// Why it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SwarmFault>,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// Its id.
    pub task_id: TaskId,
    /// The swarm's name.
    pub swarm: String,
    /// The topology.
    pub topology: String,
    /// The aggregation strategy.
    pub strategy: String,
    /// The status at its end.
    pub status: TaskStatus,
    /// The text of the combined answer.
    pub text: String,
    /// The combined answer as JSON, if it is an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The head's last text, if it is not the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_text: Option<String>,
    /// The answers, in order.
    pub answers: Vec<TaskResult>,
    /// The votes, for `majority-vote`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<Vec<BallotCount>>,
    /// The choice, for `best-of-n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeChoice>,
    /// The conflicts, for `merge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflicts: Option<Vec<MergeConflict>>,
    /// Tokens of the whole run.
    pub tokens: u64,
    /// The cost, millionths of a US dollar.
    pub cost_microusd: u64,
    /// The time since its acceptance, milliseconds.
    pub duration_ms: u64,
    /// Why it is not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<SwarmFault>,
}

/// The present state of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub member: String,
    /// Its role.
    pub role: String,
    /// Its `identity_ref`.
    pub identity: String,
    /// `ready`, `busy` or `unavailable`.
    pub status: String,
    /// Why it is unavailable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its circuit breaker: `closed`, `open` or `trial`.
    pub circuit: String,
    /// The number of running tries.
    pub running: usize,
    /// The number of tries that ended with an answer.
    pub done: u64,
    /// The number of tries that failed.
    pub failed: u64,
}

/// The present state of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunState {
    /// Its id.
    pub task_id: TaskId,
    /// Always `running`.
    pub status: String,
    /// The number of waiting tasks.
    pub waiting: usize,
    /// The number of running tasks.
    pub running: usize,
    /// The number of completed tasks.
    pub completed: usize,
    /// The number of failed tasks.
    pub failed: usize,
    /// The number of tasks in the dead-letter queue.
    pub dead: usize,
}

/// A member in the graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub member: String,
    /// Its role.
    pub role: String,
    /// The member above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// The relation between two members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EdgeKind {
    /// The first may delegate tasks to the second.
    Delegates,
    /// The second gets its input from the first.
    Feeds,
    /// The first may ask the second.
    Asks,
    /// The second judges answers for the first.
    Judges,
}

/// An edge of the graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SwarmEdge {
    /// The first member.
    pub from: String,
    /// The second member.
    pub to: String,
    /// The relation.
    pub kind: EdgeKind,
    /// The task, if the graph is of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
}

impl SwarmCoordinator {
    /// The result of a task.
    #[must_use]
    pub fn result_of(&self, task: &SwarmTask) -> TaskResult {
        let outcome = task.outcome.clone();
        let failed = || TaskOutcome::from_fault(SwarmFault::task_failed("running", "it has not ended"));
        let outcome = outcome.unwrap_or_else(failed);
        TaskResult {
            task_id: task.id().clone(),
            member: task.seat.map_or("", |who| self.plan.member(who)).to_owned(),
            role: task.seat.map_or("", |who| self.plan.role(who)).to_owned(),
            status: outcome.status,
            text: outcome.answer.text,
            data: outcome.answer.data,
            attempts: task.attempts,
            tokens: task.tokens,
            cost_microusd: task.cost_microusd,
            duration_ms: task.duration_ms,
            error: outcome.fault,
        }
    }

    pub(super) fn run_result(&self, run: &TaskId, outcome: TaskOutcome, now_ms: u64) -> Option<RunResult> {
        let of = self.runs.get(run)?;
        let mine = || self.tasks.values().filter(|task| task.new.run == *run);
        let sum =
            |part: fn(&SwarmTask) -> u64| mine().fold(0_u64, |sum, task| sum.saturating_add(part(task)));
        Some(RunResult {
            task_id: run.clone(),
            swarm: self.plan.swarm.clone(),
            topology: self.plan.topology.to_string(),
            strategy: self.plan.strategy.to_string(),
            status: outcome.status,
            text: outcome.answer.text,
            data: outcome.answer.data,
            head_text: outcome.head_text,
            answers: self.answers_of(of),
            votes: outcome.votes,
            judge: outcome.judge,
            conflicts: Some(outcome.conflicts).filter(|conflicts| !conflicts.is_empty()),
            tokens: sum(|task| task.tokens),
            cost_microusd: sum(|task| task.cost_microusd),
            duration_ms: now_ms.saturating_sub(of.at_ms),
            error: outcome.fault,
        })
    }

    fn answers_of(&self, run: &SwarmRun) -> Vec<TaskResult> {
        let top = self.answers_below(&run.id, None, 0);
        match self.plan.topology {
            Topology::Pipeline if run.to.is_empty() => self.stages_of(run),
            Topology::LeaderWorker | Topology::Hierarchical => {
                let below = top
                    .first()
                    .map(|head| self.answers_below(&run.id, Some(head.id()), 0));
                let of = below.filter(|below| !below.is_empty()).unwrap_or(top);
                of.into_iter().map(|task| self.result_of(task)).collect()
            }
            Topology::Broadcast | Topology::PeerToPeer | Topology::Pipeline => {
                top.into_iter().map(|task| self.result_of(task)).collect()
            }
        }
    }

    /// One answer per stage. If several members work in a stage and their answers are not combined yet, one answer per member.
    fn stages_of(&self, run: &SwarmRun) -> Vec<TaskResult> {
        let mut answers = Vec::new();
        for stage in 0..=run.stage {
            let tasks: Vec<TaskResult> = self
                .answers_below(&run.id, None, stage)
                .into_iter()
                .map(|task| self.result_of(task))
                .collect();
            let end = usize::try_from(stage).ok().and_then(|at| run.stages.get(at)); // silent-ok: no such stage
            match (tasks.first(), end) {
                (Some(first), Some(end)) if tasks.len() > 1 => answers.push(TaskResult {
                    task_id: derived(&run.id, &format!("stage/{stage}")),
                    member: end.member.clone(),
                    role: first.role.clone(),
                    status: end.outcome.status,
                    text: end.outcome.answer.text.clone(),
                    data: end.outcome.answer.data.clone(),
                    attempts: tasks.iter().map(|task| task.attempts).sum(),
                    // Members may report any usage, so the sum must not overflow.
                    tokens: tasks
                        .iter()
                        .fold(0_u64, |sum, task| sum.saturating_add(task.tokens)),
                    cost_microusd: tasks
                        .iter()
                        .fold(0_u64, |sum, task| sum.saturating_add(task.cost_microusd)),
                    duration_ms: tasks.iter().map(|task| task.duration_ms).max().unwrap_or(0),
                    error: end.outcome.fault.clone(),
                }),
                _ => answers.extend(tasks),
            }
        }
        answers
    }

    /// The present state of every seat, in seat order.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.plan
            .all_seats()
            .filter_map(|who| self.member_now(who))
            .collect()
    }

    fn member_now(&self, who: SwarmWorkerId) -> Option<Member> {
        let seat = self.plan.seat(who)?;
        let state = self.seats.get(&seat.member).cloned().unwrap_or_default();
        let on = |phase: SwarmTaskPhase| {
            self.tasks
                .values()
                .filter(move |task| task.seat == Some(who) && task.phase == phase)
        };
        let running = on(SwarmTaskPhase::Running).count();
        let (circuit, open) = match state.circuit {
            super::CircuitState::Closed => ("closed", false),
            super::CircuitState::Open { .. } => ("open", true),
            super::CircuitState::Trial => ("trial", true),
        };
        let busy = running > 0 || on(SwarmTaskPhase::Parked).next().is_some();
        Some(Member {
            member: seat.member.clone(),
            role: seat.role.clone(),
            identity: seat.identity.clone(),
            status: match (open, busy) {
                (true, _) => "unavailable",
                (false, true) => "busy",
                (false, false) => "ready",
            }
            .to_owned(),
            reason: open.then(|| "circuit_open".to_owned()),
            circuit: circuit.to_owned(),
            running,
            done: state.done,
            failed: state.failed,
        })
    }

    /// Runs that have not ended.
    #[must_use]
    pub fn runs_now(&self) -> Vec<RunState> {
        let state = |run: &SwarmRun| {
            let count = |wanted: &dyn Fn(&SwarmTask) -> bool| {
                self.tasks
                    .values()
                    .filter(|task| task.new.run == run.id && wanted(task))
                    .count()
            };
            RunState {
                task_id: run.id.clone(),
                status: "running".to_owned(),
                waiting: count(&|task| task.phase == SwarmTaskPhase::Waiting),
                running: count(&|task| {
                    matches!(task.phase, SwarmTaskPhase::Running | SwarmTaskPhase::Parked)
                }),
                completed: count(&|task| task.is_done() && task.status() == TaskStatus::Completed),
                failed: count(&|task| task.is_done() && task.status() != TaskStatus::Completed),
                dead: count(&|task| {
                    let fault = task.outcome.as_ref().and_then(|outcome| outcome.fault.as_ref());
                    fault.is_some_and(|fault| fault.reason == "dead_lettered")
                }),
            }
        };
        self.runs.values().map(state).collect()
    }

    /// The graph of the swarm, as the manifest declares it.
    #[must_use]
    pub fn graph(&self) -> (Vec<Node>, Vec<SwarmEdge>) {
        let plan = &self.plan;
        let claw = (plan.head == SwarmWorkerId::Claw).then_some(SwarmWorkerId::Claw);
        let whom: Vec<SwarmWorkerId> = claw.into_iter().chain(plan.all_seats()).collect();
        let nodes = whom.iter().map(|who| Node {
            member: plan.member(*who).to_owned(),
            role: plan.role(*who).to_owned(),
            parent: plan
                .seat(*who)
                .and_then(|seat| seat.parent)
                .map(|parent| plan.member(parent).to_owned()),
        });
        let mut edges = Vec::new();
        let mut edge = |from: SwarmWorkerId, to: SwarmWorkerId, kind: EdgeKind| {
            edges.push(SwarmEdge {
                from: plan.member(from).to_owned(),
                to: plan.member(to).to_owned(),
                kind,
                task_id: None,
            });
        };
        for who in &whom {
            plan.delegable_seats(*who)
                .into_iter()
                .for_each(|to| edge(*who, to, EdgeKind::Delegates));
            plan.askable_seats(*who)
                .into_iter()
                .for_each(|to| edge(*who, to, EdgeKind::Asks));
        }
        if plan.topology == Topology::Broadcast {
            plan.other_seats()
                .into_iter()
                .for_each(|to| edge(plan.head, to, EdgeKind::Feeds));
        }
        if plan.topology == Topology::Pipeline {
            let stages = plan.stages();
            for (from, to) in stages.iter().zip(stages.iter().skip(1)) {
                from.iter()
                    .for_each(|from| to.iter().for_each(|to| edge(*from, *to, EdgeKind::Feeds)));
            }
        }
        (nodes.collect(), edges)
    }

    /// The graph of a running run: which member gave which task to whom.
    #[must_use]
    pub fn graph_of(&self, run: &TaskId) -> Vec<SwarmEdge> {
        let tasks = self.tasks_of(run);
        let edge = |id: &TaskId| {
            let task = self.tasks.get(id)?;
            let asker = task
                .new
                .parent
                .as_ref()
                .and_then(|parent| self.tasks.get(parent)?.seat);
            let from = asker.unwrap_or(self.plan.head);
            Some(SwarmEdge {
                from: self.plan.member(from).to_owned(),
                to: self.plan.member(task.seat?).to_owned(),
                kind: match task.new.kind {
                    Kind::Work if task.new.parent.is_some() => EdgeKind::Delegates,
                    Kind::Work => EdgeKind::Feeds,
                    Kind::Asked => EdgeKind::Asks,
                    Kind::Judge { .. } => EdgeKind::Judges,
                },
                task_id: Some(id.clone()),
            })
        };
        tasks.iter().filter_map(edge).collect()
    }
}
