//! Facts: the only way to change the state, and what the journal stores.

use super::{
    BTreeMap, BTreeSet, Deserialize, ENDED, Kind, SeatState, Serialize, SwarmCoordinator, SwarmRun,
    SwarmTask, SwarmTaskPhase, SwarmWorkerId, TaskAnswer, TaskBrief, TaskConstraints, TaskId, TaskStatus,
    TryEnd, TryUsage,
};
use crate::answer::MemberAnswer;
use crate::combine::TaskOutcome;
use crate::coord::task::{SharedValue, StageEnd};

/// The state of a seat's circuit breaker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum CircuitState {
    /// The seat gets tasks.
    #[default]
    Closed,
    /// The seat gets no tasks until this time. After that it gets one task as a trial.
    Open {
        /// When the trial may begin, Unix milliseconds.
        until_ms: u64,
    },
    /// The trial runs.
    Trial,
}

/// A task as it was given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewTask {
    /// Its id.
    pub task: TaskId,
    /// Its run.
    pub run: TaskId,
    /// The kind of task.
    pub kind: Kind,
    /// The asking task; `None`: the run itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TaskId>,
    /// The try of the asking task; 0 if the run itself began the task.
    pub attempt: u32,
    /// The asking task waits for the result.
    pub wait: bool,
    /// The workers that may take it.
    pub among: Vec<SwarmWorkerId>,
    /// Its position among the answers.
    pub order: u32,
    /// Its stage in a pipeline.
    pub stage: u32,
    /// The number of tasks above it.
    pub depth: u32,
    /// The work.
    pub brief: TaskBrief,
    /// Answers of other members that belong to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<MemberAnswer>,
    /// The task that must end before this one begins, and whose answer it gets (`chain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TaskId>,
    /// The limits set by the asking task.
    #[serde(default)]
    pub wish: TaskConstraints,
}

/// A fact. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum SwarmFact {
    /// A run was accepted.
    Run {
        /// Its id.
        run: TaskId,
        /// The work.
        brief: TaskBrief,
        /// Only these members; empty: the whole swarm.
        to: Vec<SwarmWorkerId>,
        /// Who asked.
        origin: String,
        /// The limits set by the asker.
        #[serde(default, skip_serializing_if = "TaskConstraints::is_empty")]
        wish: TaskConstraints,
        /// Another host of the swarm gave the run and counts it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        from_afar: bool,
        /// The fingerprint of the plan.
        plan: String,
        /// The time.
        at_ms: u64,
    },
    /// A task was given.
    Delegated {
        /// The task.
        new: NewTask,
        /// The time.
        at_ms: u64,
    },
    /// A try began.
    Began {
        /// The task.
        task: TaskId,
        /// The worker.
        who: SwarmWorkerId,
        /// The number of the try, from 1.
        attempt: u32,
    },
    /// A try ended.
    TryEnded {
        /// The task.
        task: TaskId,
        /// The number of the try.
        attempt: u32,
        /// How it ended.
        end: TryEnd,
        /// The resources that it used.
        used: TryUsage,
        /// The next worker and the earliest time; `None`: no further try.
        again: Option<(SwarmWorkerId, u64)>,
    },
    /// A member reported its own task. The task ends with the member's turn.
    Word {
        /// The task.
        task: TaskId,
        /// The reported status.
        status: TaskStatus,
        /// The reported answer.
        answer: TaskAnswer,
        /// The reported usage; `None`: the member works here, where its usage is counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<TryUsage>,
    },
    /// A member stored a shared value for its run (`shared-memory`).
    Shared {
        /// The task of the member.
        task: TaskId,
        /// The key.
        key: String,
        /// The value.
        shared: SharedValue,
    },
    /// Results of tasks that were not waited for were sent to the task that delegated them.
    Told {
        /// The task that delegated them.
        task: TaskId,
        /// The tasks with these results.
        of: Vec<TaskId>,
    },
    /// A task ended.
    Reported {
        /// The task.
        task: TaskId,
        /// The outcome.
        outcome: TaskOutcome,
        /// The time since it was accepted, milliseconds.
        duration_ms: u64,
    },
    /// A task went to the dead-letter queue.
    DeadLettered {
        /// The task.
        task: TaskId,
        /// The last failure.
        reason: String,
    },
    /// The circuit breaker of a seat changed.
    Circuit {
        /// The seat's member.
        member: String,
        /// The new state.
        circuit: CircuitState,
    },
    /// A report was refused.
    Refused {
        /// The task that it names.
        task: TaskId,
        /// The reason: `duplicate`, `late`, `not_yours`, `garbage`, `unproven`.
        reason: String,
        /// The sender.
        by: String,
    },
    /// Answers were combined: those of a task's subtasks, of a stage, or of the run.
    Aggregated {
        /// The run.
        run: TaskId,
        /// The task whose subtasks answered; `None`: the run, or its stage.
        task: Option<TaskId>,
        /// The stage of a pipeline.
        stage: Option<u32>,
        /// The name under which the outcome is passed on.
        member: String,
        /// The combined outcome.
        outcome: TaskOutcome,
    },
    /// A run ended.
    Ended {
        /// The result.
        result: Box<super::RunResult>,
    },
}

impl SwarmCoordinator {
    /// Applies a fact to the state. A fact that does not match (such as an unknown task) changes nothing.
    #[expect(clippy::too_many_lines, reason = "one arm for each kind, read side by side")]
    pub fn apply_fact(&mut self, fact: &SwarmFact) {
        match fact {
            SwarmFact::Run {
                run,
                brief,
                to,
                origin,
                wish,
                from_afar,
                plan,
                at_ms,
            } => {
                let new = SwarmRun {
                    id: run.clone(),
                    brief: brief.clone(),
                    to: to.clone(),
                    origin: origin.clone(),
                    wish: wish.clone(),
                    from_afar: *from_afar,
                    at_ms: *at_ms,
                    plan: plan.clone(),
                    stage: 0,
                    stages: Vec::new(),
                    shared: BTreeMap::new(),
                };
                self.runs.insert(run.clone(), new);
            }
            SwarmFact::Delegated { new, at_ms } => self.apply_delegation(new, *at_ms),
            SwarmFact::Began { task, who, attempt } => self.change_task(task, |task| {
                task.phase = SwarmTaskPhase::Running;
                task.afar = false;
                task.attempts = *attempt;
                if task.seat.replace(*who) != Some(*who) {
                    task.failed_here = 0;
                }
            }),
            SwarmFact::TryEnded {
                task,
                end,
                used,
                again,
                ..
            } => self.try_applied(task, (end, used), *again),
            SwarmFact::Word {
                task,
                status,
                answer,
                used,
            } => self.change_task(task, |task| {
                task.word = Some((*status, answer.clone()));
                task.word_used = *used;
            }),
            SwarmFact::Shared { task, key, shared } => {
                let run = self.tasks.get(task).map(|task| task.new.run.clone());
                if let Some(run) = run.and_then(|run| self.runs.get_mut(&run)) {
                    run.shared.insert(key.clone(), shared.clone());
                }
            }
            SwarmFact::Told { task, of } => self.change_task(task, |task| {
                task.told.extend(of.iter().cloned());
                task.phase = SwarmTaskPhase::Running;
            }),
            SwarmFact::Reported {
                task,
                outcome,
                duration_ms,
            } => self.apply_task_end(task, outcome, *duration_ms),
            SwarmFact::Circuit { member, circuit } => {
                self.seats.entry(member.clone()).or_default().circuit = *circuit
            }
            SwarmFact::Aggregated {
                run,
                stage,
                member,
                outcome,
                ..
            } => {
                if let (Some(run), Some(stage)) = (self.runs.get_mut(run), stage) {
                    run.stage = stage.saturating_add(1);
                    run.stages.push(StageEnd {
                        member: member.clone(),
                        outcome: outcome.clone(),
                    });
                }
            }
            SwarmFact::DeadLettered { .. } | SwarmFact::Refused { .. } => {}
            SwarmFact::Ended { result } => self.run_ended(&result.task_id),
        }
    }

    fn change_task(&mut self, task: &TaskId, change: impl FnOnce(&mut SwarmTask)) {
        if let Some(task) = self.tasks.get_mut(task) {
            change(task);
        }
    }

    fn apply_delegation(&mut self, new: &NewTask, at_ms: u64) {
        if new.wait
            && let Some(asker) = &new.parent
        {
            self.change_task(asker, |asker| {
                asker.waits.insert(new.task.clone());
            });
        }
        self.arrived += 1;
        let task = SwarmTask {
            arrived: self.arrived,
            at_ms,
            phase: SwarmTaskPhase::Waiting,
            seat: None,
            attempts: 0,
            failed_here: 0,
            not_before_ms: 0,
            since_ms: at_ms,
            afar: false,
            reached: false,
            waits: BTreeSet::new(),
            told: BTreeSet::new(),
            word: None,
            word_used: None,
            said: None,
            outcome: None,
            tokens: 0,
            cost_microusd: 0,
            duration_ms: 0,
            new: new.clone(),
        };
        self.tasks.insert(new.task.clone(), task);
    }

    fn try_applied(
        &mut self,
        id: &TaskId,
        (end, used): (&TryEnd, &TryUsage),
        again: Option<(SwarmWorkerId, u64)>,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.tokens = task.tokens.saturating_add(used.tokens);
        task.cost_microusd = task.cost_microusd.saturating_add(used.cost_microusd);
        task.reached |= end.has_reached_member();
        task.waits.clear();
        let seat = task.seat;
        match end {
            TryEnd::Said { text } => {
                task.said = Some(text.clone());
                task.phase = SwarmTaskPhase::Parked;
            }
            TryEnd::Lost { .. } => {
                task.phase = SwarmTaskPhase::Waiting;
                task.failed_here += 1;
                (task.word, task.word_used) = (None, None);
                if let Some((who, not_before_ms)) = again {
                    if task.seat.replace(who) != Some(who) {
                        task.failed_here = 0;
                    }
                    task.not_before_ms = not_before_ms;
                }
            }
            TryEnd::Over { .. } => task.phase = SwarmTaskPhase::Parked,
        }
        let Some(member) = seat
            .filter(|who| *who != SwarmWorkerId::Claw)
            .map(|who| self.plan.member(who).to_owned())
        else {
            return;
        };
        let seat: &mut SeatState = self.seats.entry(member).or_default();
        match end {
            TryEnd::Lost { .. } => {
                seat.failures = seat.failures.saturating_add(1);
                seat.failed += 1;
            }
            TryEnd::Said { .. } => {
                seat.failures = 0;
                seat.done += 1;
            }
            TryEnd::Over { .. } => seat.failed += 1,
        }
    }

    fn apply_task_end(&mut self, id: &TaskId, outcome: &TaskOutcome, duration_ms: u64) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.phase = SwarmTaskPhase::Done;
        task.outcome = Some(outcome.clone());
        task.duration_ms = duration_ms;
        task.waits.clear();
        if let Some(asker) = task.new.parent.clone() {
            self.change_task(&asker, |asker| {
                asker.waits.remove(id);
            });
        }
    }

    fn run_ended(&mut self, run: &TaskId) {
        let of = self.tasks_of(run);
        self.ended.extend(of.iter().cloned().chain([run.clone()]));
        while self.ended.len() > ENDED {
            self.ended.pop_front();
        }
        for task in of {
            self.tasks.remove(&task);
        }
        self.runs.remove(run);
        self.over.remove(run);
        let known = &self.tasks;
        self.held.retain(|(asker, _)| known.contains_key(asker));
    }
}
