//! Time limits: ends the runs and tries whose limit is reached.

use clawk_manifest::model::{AggregationStrategy as Strategy, Topology};

use super::{
    Effect, Kind, RetryReason, SwarmCoordinator, SwarmFact, SwarmFault, SwarmTaskPhase, TaskId, TryEnd,
    TryUsage,
};
use crate::answer::MemberAnswer;
use crate::combine::{self, CombineResult, TaskOutcome};
use crate::coord::task::StageEnd;
use crate::plan::SwarmWorkerId;

impl SwarmCoordinator {
    /// When [`SwarmCoordinator::tick`] has something to do, Unix milliseconds; `None`: only an event can change something.
    #[must_use]
    pub fn wakes_at(&self) -> Option<u64> {
        let runs = self
            .runs
            .values()
            .filter_map(|run| self.plan.limits.deadline(run.at_ms))
            .map(|(at, _)| at);
        let tasks = self.tasks.values().filter(|task| !task.is_done());
        let tasks = tasks.flat_map(|task| {
            let running = (task.phase == SwarmTaskPhase::Running)
                .then(|| task.since_ms.saturating_add(self.try_ms(task.seat)));
            let waiting = task.phase == SwarmTaskPhase::Waiting && task.not_before_ms > 0;
            let waiting = waiting.then_some(task.not_before_ms);
            [task.deadline_ms(), running, waiting]
        });
        let circuits = self.seats.values().filter_map(|seat| match seat.circuit {
            super::CircuitState::Open { until_ms } => Some(until_ms),
            super::CircuitState::Closed | super::CircuitState::Trial => None,
        });
        let waits = self
            .tasks
            .values()
            .any(|task| task.phase == SwarmTaskPhase::Waiting);
        runs.chain(tasks.flatten())
            .chain(circuits.filter(|_| waits))
            .min()
    }

    fn try_ms(&self, seat: Option<SwarmWorkerId>) -> u64 {
        let own = seat
            .and_then(|who| self.plan.seat(who))
            .and_then(|seat| seat.timeout_ms);
        own.unwrap_or_else(|| self.plan.limits.try_ms())
    }

    pub(super) fn expire_tasks(&mut self, now_ms: u64) {
        let runs: Vec<(TaskId, &'static str)> = self
            .runs
            .values()
            .filter_map(|run| Some((run.id.clone(), self.plan.limits.deadline(run.at_ms)?)))
            .filter(|(_, (at, _))| *at <= now_ms)
            .map(|(run, (_, why))| (run, why))
            .collect();
        for (run, why) in runs {
            let message = match why {
                "swarm_duration" => "the run reached `resource_limits.max_duration_ms` of the Swarm",
                _ => "the run reached `aggregation.timeout_ms` of the Swarm",
            };
            self.wind_down(&run, SwarmFault::task_failed(why, message), now_ms);
        }
        let due: Vec<TaskId> = self
            .tasks
            .values()
            .filter(|task| !task.is_done() && task.deadline_ms().is_some_and(|at| at <= now_ms))
            .map(|task| task.id().clone())
            .collect();
        for task in due {
            let fault = SwarmFault::task_failed(
                "timeout",
                "the task reached the `timeout_ms` that its asker gave it",
            );
            self.finish_task(&task, TaskOutcome::from_fault(fault), now_ms);
        }
        let slow: Vec<TaskId> = self
            .tasks
            .values()
            .filter(|task| task.phase == SwarmTaskPhase::Running)
            .filter(|task| task.since_ms.saturating_add(self.try_ms(task.seat)) <= now_ms)
            .map(|task| task.id().clone())
            .collect();
        for task in slow {
            // A task that a slower one had delegated may have ended together with it.
            let still = self
                .tasks
                .get(&task)
                .filter(|task| task.phase == SwarmTaskPhase::Running);
            let Some(limit) = still.map(|task| self.try_ms(task.seat)) else {
                continue;
            };
            let end = TryEnd::Lost {
                why: RetryReason::Timeout,
                message: format!("the try took longer than {limit} ms"),
            };
            self.out.push(Effect::Cancel(task.clone()));
            self.ended_try(&task, end, TryUsage::default(), now_ms);
        }
    }

    /// Ends a run early: running tasks are cancelled, waiting ones never start, and existing answers count if no model has to be
    /// asked.
    pub(super) fn wind_down(&mut self, run: &TaskId, fault: SwarmFault, now_ms: u64) {
        if !self.runs.contains_key(run) {
            return;
        }
        self.over.insert(run.clone(), fault.clone());
        // Subtasks come after the task that delegated them, so the order is reversed.
        for id in self.tasks_of(run).into_iter().rev() {
            let Some(task) = self.tasks.get(&id).filter(|task| !task.is_done()) else {
                continue;
            };
            let below = self.said_below(task);
            let node = task.new.kind == Kind::Work
                && !below.is_empty()
                && self.plan.strategy != Strategy::LeaderDecides;
            let outcome =
                match node.then(|| combine::combine_answers(self.plan.strategy, &below, Some(&fault))) {
                    Some(CombineResult::Done(outcome)) => TaskOutcome {
                        head_text: task.said.clone(),
                        ..*outcome
                    },
                    Some(CombineResult::Ask(_)) | None => TaskOutcome::from_fault(fault.clone()),
                };
            self.finish_task(&id, outcome, now_ms);
        }
        let outcome = self.cut_outcome(run, &fault);
        self.emit(SwarmFact::Aggregated {
            run: run.clone(),
            task: None,
            stage: None,
            member: String::new(),
            outcome: outcome.clone(),
        });
        self.end_run(run, outcome, now_ms);
    }

    /// The outcome of a run that was cut short.
    fn cut_outcome(&self, run: &TaskId, fault: &SwarmFault) -> TaskOutcome {
        let Some(of) = self.runs.get(run) else {
            return TaskOutcome::from_fault(fault.clone());
        };
        let here = self.answers_below(run, None, of.stage);
        let root = || here.first().and_then(|task| task.outcome.clone());
        let ends: Vec<MemberAnswer> = of.stages.iter().map(StageEnd::to_answer).collect();
        let said = match self.plan.topology {
            Topology::LeaderWorker | Topology::Hierarchical => {
                return root().unwrap_or_else(|| TaskOutcome::from_fault(fault.clone()));
            }
            _ if !of.to.is_empty() => {
                return root().unwrap_or_else(|| TaskOutcome::from_fault(fault.clone()));
            }
            Topology::Broadcast | Topology::PeerToPeer => self.said_of(&here),
            Topology::Pipeline if self.plan.stage_needs_all() => {
                let now = self.said_of(&here);
                if combine::counting_answers(self.plan.strategy, &now).is_empty() {
                    ends.last().cloned().into_iter().collect()
                } else {
                    now
                }
            }
            Topology::Pipeline => ends,
        };
        match combine::combine_answers(self.plan.strategy, &said, Some(fault)) {
            CombineResult::Done(outcome) => *outcome,
            CombineResult::Ask(_) => TaskOutcome::from_fault(fault.clone()),
        }
    }
}
