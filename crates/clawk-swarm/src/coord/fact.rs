//! What happened: the only way in which the state changes, and what the journal keeps.

use super::{
    BTreeMap, BTreeSet, Deserialize, ENDED, Kind, SeatState, Serialize, SwarmCoordinator, SwarmRun,
    SwarmTask, SwarmTaskPhase, SwarmWorkerId, TaskAnswer, TaskBrief, TaskConstraints, TaskId, TaskStatus,
    TryEnd, TryUsage,
};
use crate::answer::MemberAnswer;
use crate::combine::TaskOutcome;
use crate::coord::task::{SharedValue, StageEnd};

/// A seat's circuit breaker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "state")]
pub enum CircuitState {
    /// Tasks reach it.
    #[default]
    Closed,
    /// Nothing reaches it until then, Unix milliseconds; afterwards one task does, as a trial.
    Open {
        /// When the trial may begin.
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
    /// What it is.
    pub kind: Kind,
    /// The task of who asked; none: the run itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<TaskId>,
    /// The try of who asked; 0 for what the run itself began.
    pub attempt: u32,
    /// Who asked waits for it.
    pub wait: bool,
    /// Who may work on it.
    pub among: Vec<SwarmWorkerId>,
    /// Its place among the answers.
    pub order: u32,
    /// Its stage in a pipeline.
    pub stage: u32,
    /// How many tasks stand above it.
    pub depth: u32,
    /// What is to be done.
    pub brief: TaskBrief,
    /// What came from others with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<MemberAnswer>,
    /// It begins after this one, with its answer (`chain`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<TaskId>,
    /// Wishes of who asked.
    #[serde(default)]
    pub wish: TaskConstraints,
}

/// What happened. Times are Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum SwarmFact {
    /// A run was accepted.
    Run {
        /// Its id.
        run: TaskId,
        /// What is to be done.
        brief: TaskBrief,
        /// Only these members.
        to: Vec<SwarmWorkerId>,
        /// Who asked.
        origin: String,
        /// What who asked wants of it.
        #[serde(default, skip_serializing_if = "TaskConstraints::is_empty")]
        wish: TaskConstraints,
        /// Another host of the swarm gave it, and counts it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        from_afar: bool,
        /// Under which plan.
        plan: String,
        /// When.
        at_ms: u64,
    },
    /// A task was given.
    Delegated {
        /// The task.
        new: NewTask,
        /// When.
        at_ms: u64,
    },
    /// A try began.
    Began {
        /// The task.
        task: TaskId,
        /// Who works on it.
        who: SwarmWorkerId,
        /// Counted from 1.
        attempt: u32,
    },
    /// A try ended.
    TryEnded {
        /// The task.
        task: TaskId,
        /// Which try.
        attempt: u32,
        /// How.
        end: TryEnd,
        /// What it used.
        used: TryUsage,
        /// Who tries next, and not before when; none: nobody.
        again: Option<(SwarmWorkerId, u64)>,
    },
    /// A member reported its own task; it ends with its turn.
    Word {
        /// The task.
        task: TaskId,
        /// As it says.
        status: TaskStatus,
        /// Its result.
        answer: TaskAnswer,
        /// What it says that it used; none: it works here, where that is counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        used: Option<TryUsage>,
    },
    /// A member put a value where all of its run read it (`shared-memory`).
    Shared {
        /// Whose turn.
        task: TaskId,
        /// Under which key.
        key: String,
        /// What.
        shared: SharedValue,
    },
    /// Results went to who had delegated them and not waited.
    Told {
        /// Whose session.
        task: TaskId,
        /// Which tasks' results.
        of: Vec<TaskId>,
    },
    /// A task ended.
    Reported {
        /// The task.
        task: TaskId,
        /// How.
        outcome: TaskOutcome,
        /// From its acceptance, milliseconds.
        duration_ms: u64,
    },
    /// A task went to the dead-letter box.
    DeadLettered {
        /// The task.
        task: TaskId,
        /// The last failure.
        reason: String,
    },
    /// A seat's circuit changed.
    Circuit {
        /// The seat.
        member: String,
        /// Now.
        circuit: CircuitState,
    },
    /// A report was not taken.
    Refused {
        /// The task that it names.
        task: TaskId,
        /// Why: `duplicate`, `late`, `not_yours`, `garbage`, `unproven`.
        reason: String,
        /// Who sent it.
        by: String,
    },
    /// Answers became one: of a task's children, of a stage, of the run.
    Aggregated {
        /// The run.
        run: TaskId,
        /// The task whose children answered; none: the run, or its stage.
        task: Option<TaskId>,
        /// The stage of a pipeline.
        stage: Option<u32>,
        /// Who gave it, where it is handed on.
        member: String,
        /// The one outcome.
        outcome: TaskOutcome,
    },
    /// A run ended.
    Ended {
        /// Its end.
        result: Box<super::RunResult>,
    },
}

impl SwarmCoordinator {
    /// Changes the state by what happened. What does not fit (a task that is not known) changes nothing.
    #[expect(clippy::too_many_lines, reason = "one arm for each kind, read side by side")]
    pub fn apply(&mut self, fact: &SwarmFact) {
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
            SwarmFact::Delegated { new, at_ms } => self.delegated(new, *at_ms),
            SwarmFact::Began { task, who, attempt } => self.change(task, |task| {
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
            } => self.change(task, |task| {
                task.word = Some((*status, answer.clone()));
                task.word_used = *used;
            }),
            SwarmFact::Shared { task, key, shared } => {
                let run = self.tasks.get(task).map(|task| task.new.run.clone());
                if let Some(run) = run.and_then(|run| self.runs.get_mut(&run)) {
                    run.shared.insert(key.clone(), shared.clone());
                }
            }
            SwarmFact::Told { task, of } => self.change(task, |task| {
                task.told.extend(of.iter().cloned());
                task.phase = SwarmTaskPhase::Running;
            }),
            SwarmFact::Reported {
                task,
                outcome,
                duration_ms,
            } => self.reported(task, outcome, *duration_ms),
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

    fn change(&mut self, task: &TaskId, change: impl FnOnce(&mut SwarmTask)) {
        if let Some(task) = self.tasks.get_mut(task) {
            change(task);
        }
    }

    fn delegated(&mut self, new: &NewTask, at_ms: u64) {
        if new.wait
            && let Some(asker) = &new.parent
        {
            self.change(asker, |asker| {
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
        task.reached |= end.reached();
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

    fn reported(&mut self, id: &TaskId, outcome: &TaskOutcome, duration_ms: u64) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.phase = SwarmTaskPhase::Done;
        task.outcome = Some(outcome.clone());
        task.duration_ms = duration_ms;
        task.waits.clear();
        if let Some(asker) = task.new.parent.clone() {
            self.change(&asker, |asker| {
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
