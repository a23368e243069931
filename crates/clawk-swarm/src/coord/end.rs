//! The end of a try: with an answer, with another try, or with the end of its task.

use serde::{Deserialize, Serialize};

use super::{
    CircuitState, Effect, Kind, SwarmCoordinator, SwarmFact, SwarmFault, SwarmTask, SwarmTaskPhase,
    SwarmWorkerId, TaskAnswer, TaskId, TaskStatus,
};
use crate::combine::TaskOutcome;
use crate::plan::Plan;

/// Why a try is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryReason {
    /// The member could not be reached.
    Unreached,
    /// The member crashed.
    Crashed,
    /// The time limit was exceeded.
    Timeout,
    /// No model was available (-32020).
    NoProvider,
    /// The answer was unreadable.
    Garbage,
}

impl RetryReason {
    /// The reason's stable identifier.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Unreached => "unreachable",
            Self::Crashed => "crashed",
            Self::Timeout => "try_timeout",
            Self::NoProvider => "provider_unavailable",
            Self::Garbage => "garbage",
        }
    }
}

/// The end of a try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub enum TryEnd {
    /// The member's turn ended with this text.
    Said {
        /// The text.
        text: String,
    },
    /// The try failed and may be repeated.
    Lost {
        /// The reason.
        why: RetryReason,
        /// The message, for people.
        message: String,
    },
    /// The task failed: an effect has an unknown outcome, a rule refused, or a limit was reached.
    Over {
        /// The fault.
        fault: SwarmFault,
        /// A limit of the whole swarm is used up, so the run ends.
        run: bool,
    },
}

impl TryEnd {
    /// Whether the member was reached.
    pub(super) fn has_reached_member(&self) -> bool {
        !matches!(
            self,
            Self::Lost {
                why: RetryReason::Unreached,
                ..
            }
        )
    }
}

/// The resources that a try used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TryUsage {
    /// Tokens.
    pub tokens: u64,
    /// The cost in millionths of a US dollar.
    pub cost_microusd: u64,
}

impl SwarmCoordinator {
    /// Records the end of a try. A try that no longer runs is late and changes nothing.
    pub fn try_ended(
        &mut self,
        task: &TaskId,
        attempt: u32,
        end: TryEnd,
        used: TryUsage,
        now_ms: u64,
    ) -> Vec<Effect> {
        let runs = |task: &&SwarmTask| task.phase == SwarmTaskPhase::Running && task.attempts == attempt;
        if self.tasks.get(task).filter(runs).is_some() {
            self.ended_try(task, end, used, now_ms);
            self.advance_all(now_ms);
        }
        std::mem::take(&mut self.out)
    }

    pub(super) fn ended_try(&mut self, id: &TaskId, end: TryEnd, used: TryUsage, now_ms: u64) {
        let Some(task) = self.tasks.get(id) else { return };
        let (attempt, seat) = (task.attempts, task.seat);
        let again = match &end {
            TryEnd::Lost { .. } => next_try(&self.plan, task, now_ms),
            TryEnd::Said { .. } | TryEnd::Over { .. } => None,
        };
        self.held.retain(|(asker, _)| asker != id);
        self.emit(SwarmFact::TryEnded {
            task: id.clone(),
            attempt,
            end: end.clone(),
            used,
            again,
        });
        if let Some(who) = seat {
            self.update_circuit(who, &end, now_ms);
        }
        match end {
            TryEnd::Said { .. } => self.advance_task(id, now_ms),
            TryEnd::Over { fault, run: true } => {
                if let Some(run) = self.tasks.get(id).map(|task| task.new.run.clone()) {
                    self.wind_down(&run, fault, now_ms);
                }
            }
            TryEnd::Over { fault, run: false } => {
                self.finish_task(id, TaskOutcome::from_fault(fault), now_ms)
            }
            TryEnd::Lost { why, message } => {
                self.abandon_children(id, now_ms);
                if again.is_none() {
                    self.give_up(id, why, &message, now_ms);
                }
            }
        }
    }

    /// Ends the tasks that a failed try had delegated.
    fn abandon_children(&mut self, id: &TaskId, now_ms: u64) {
        let open: Vec<TaskId> = self
            .tasks
            .values()
            .filter(|task| task.new.parent.as_ref() == Some(id) && !task.is_done())
            .map(|task| task.id().clone())
            .collect();
        for child in open {
            let fault = SwarmFault::task_failed("asker_ended", "the one who asked for it has ended");
            self.finish_task(&child, TaskOutcome::from_fault(fault), now_ms);
        }
    }

    fn update_circuit(&mut self, who: SwarmWorkerId, end: &TryEnd, now_ms: u64) {
        let (Some(breaker), SwarmWorkerId::Seat(_)) = (self.plan.limits.breaker, who) else {
            return;
        };
        let member = self.plan.member(who).to_owned();
        let Some(state) = self.seats.get(&member) else {
            return;
        };
        let circuit = match end {
            TryEnd::Lost { .. }
                if state.circuit == CircuitState::Trial || state.failures >= breaker.threshold =>
            {
                CircuitState::Open {
                    until_ms: now_ms.saturating_add(breaker.reset_ms),
                }
            }
            TryEnd::Said { .. } | TryEnd::Over { .. } => CircuitState::Closed,
            TryEnd::Lost { .. } => return,
        };
        if state.circuit != circuit {
            self.emit(SwarmFact::Circuit { member, circuit });
        }
    }

    /// Ends a task that no member will try again.
    fn give_up(&mut self, id: &TaskId, why: RetryReason, message: &str, now_ms: u64) {
        let Some(task) = self.tasks.get(id) else { return };
        let reached = task.reached;
        let tries = task.attempts;
        let dead = self.plan.limits.dead_letter.is_some();
        let message = format!("{message} ({tries} tries)");
        if dead {
            self.emit(SwarmFact::DeadLettered {
                task: id.clone(),
                reason: message.clone(),
            });
        }
        let reason = if dead { "dead_lettered" } else { why.reason() };
        let fault = if reached || dead {
            SwarmFault::task_failed(reason, message)
        } else {
            SwarmFault::member_unreached(reason, message)
        };
        self.finish_task(id, TaskOutcome::from_fault(fault), now_ms);
    }

    /// Ends a task: the asking task gets the result, the task's open subtasks end, and its run continues.
    pub(super) fn finish_task(&mut self, id: &TaskId, outcome: TaskOutcome, now_ms: u64) {
        let Some(task) = self.tasks.get(id).filter(|task| !task.is_done()) else {
            return;
        };
        let (run, asker, kind) = (task.new.run.clone(), task.new.parent.clone(), task.new.kind);
        let duration_ms = now_ms.saturating_sub(task.at_ms);
        let waited = asker.clone().filter(|asker| {
            let asker = self.tasks.get(asker);
            asker.is_some_and(|asker| asker.phase == SwarmTaskPhase::Running && asker.waits.contains(id))
        });
        if task.phase == SwarmTaskPhase::Running {
            self.out.push(Effect::Cancel(id.clone()));
        }
        self.held.retain(|(asker, _)| asker != id);
        self.emit(SwarmFact::Reported {
            task: id.clone(),
            outcome,
            duration_ms,
        });
        self.abandon_children(id, now_ms);
        if let Some(asker) = waited {
            self.reply_to_asker(&asker, id);
        }
        if kind == Kind::Work && self.shares_reports() {
            self.publish_report(id);
        }
        if self.over.contains_key(&run) {
            return;
        }
        match (kind, asker) {
            (Kind::Judge { purpose, again }, parent) => {
                self.handle_judgement(id, (&run, parent.as_ref()), (purpose, again), now_ms);
            }
            (Kind::Work, Some(parent)) => self.advance_task(&parent, now_ms),
            (Kind::Work, None) => self.catch_up(&run, now_ms),
            (Kind::Asked, _) => {}
        }
    }

    /// Gives the asking task the result: at once if it also waits for others, or else when it may run again.
    fn reply_to_asker(&mut self, asker: &TaskId, task: &TaskId) {
        let waits = self.tasks.get(asker).is_some_and(|asker| !asker.waits.is_empty());
        let result = self.tasks.get(task).map(|task| Box::new(self.result_of(task)));
        match result {
            Some(result) if waits => self.out.push(Effect::Reply {
                asker: asker.clone(),
                result,
            }),
            Some(_) => self.held.push((asker.clone(), task.clone())),
            None => {}
        }
    }

    fn publish_report(&mut self, id: &TaskId) {
        let Some(task) = self.tasks.get(id) else { return };
        let Some(text) = self.public_report(task) else {
            return;
        };
        let to: Vec<TaskId> = self
            .tasks
            .values()
            .filter(|other| {
                other.new.run == task.new.run
                    && other.phase == SwarmTaskPhase::Running
                    && other.new.kind == Kind::Work
            })
            // The task that waits for it gets it as its result instead.
            .filter(|other| task.new.parent.as_ref() != Some(other.id()) || !task.new.wait)
            .map(|other| other.id().clone())
            .collect();
        if !to.is_empty() {
            self.out.push(Effect::Publish { to, text });
        }
    }

    /// The outcome that a task's member itself reports.
    pub(super) fn own_word(task: &SwarmTask) -> TaskOutcome {
        match &task.word {
            Some((TaskStatus::Failed, answer)) => TaskOutcome {
                answer: answer.clone(),
                ..TaskOutcome::from_fault(SwarmFault::task_failed(
                    "reported_failed",
                    "its member reported it failed",
                ))
            },
            Some((status, answer)) => TaskOutcome {
                status: *status,
                ..TaskOutcome::from_answer(answer.clone())
            },
            None => TaskOutcome::from_answer(TaskAnswer::from_text(task.said.as_deref().unwrap_or_default())),
        }
    }
}

/// The member that repeats a failed try, and the earliest time; `None`: nobody.
fn next_try(plan: &Plan, task: &SwarmTask, now_ms: u64) -> Option<(SwarmWorkerId, u64)> {
    let limits = &plan.limits;
    let seat = task.seat?;
    if task.attempts >= limits.max_tries() {
        return None;
    }
    let failed_here = task.failed_here.saturating_add(1);
    let next = if failed_here > limits.retries {
        plan.next(seat, &candidate_seats(plan, task, seat))
    } else {
        seat
    };
    let wait = if next == seat {
        limits.delay_ms(failed_here)
    } else {
        0
    };
    Some((next, now_ms.saturating_add(wait)))
}

/// The members that could do the task instead of a seat, including members that were not named.
fn candidate_seats(plan: &Plan, task: &SwarmTask, seat: SwarmWorkerId) -> Vec<SwarmWorkerId> {
    match task.new.kind {
        Kind::Judge { .. } | Kind::Asked => vec![seat],
        Kind::Work => plan
            .all_seats()
            .filter(|who| *who == seat || (*who != plan.head && seat != plan.head))
            .collect(),
    }
}
