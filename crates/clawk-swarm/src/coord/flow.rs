//! How a run continues after a task: stages, subtasks, judges, the end.

use clawk_manifest::model::{AggregationStrategy as Strategy, Topology};

use super::{
    Kind, NewTask, SwarmCoordinator, SwarmFact, SwarmFault, SwarmTask, SwarmTaskPhase, SwarmWorkerId,
    TaskBrief, TaskConstraints, TaskId, TaskStatus, derived,
};
use crate::answer::{MemberAnswer, TaskAnswer};
use crate::combine::{self, CombineResult, HeadPurpose, TaskOutcome};
use crate::coord::task::StageEnd;
use crate::plan::identity_name;
use crate::words;

impl StageEnd {
    /// The stage's answer, as the next stage reads it.
    #[must_use]
    pub fn to_answer(&self) -> MemberAnswer {
        MemberAnswer {
            member: self.member.clone(),
            status: self.outcome.status,
            answer: self.outcome.answer.clone(),
        }
    }
}

impl SwarmCoordinator {
    /// Continues a task whose member has finished: it ends when its subtasks have ended.
    pub(super) fn advance_task(&mut self, id: &TaskId, now_ms: u64) {
        let Some(task) = self
            .tasks
            .get(id)
            .filter(|task| task.phase == SwarmTaskPhase::Parked)
        else {
            return;
        };
        let open = |other: &SwarmTask| other.new.parent.as_ref() == Some(id) && !other.is_done();
        if self.tasks.values().any(open) {
            return;
        }
        let own = Self::own_word(task);
        let spoke = task.word.is_some();
        if !spoke && !self.undelivered_tasks(task).is_empty() {
            return; // told in `pump`, and answered by another turn
        }
        let below = self.said_below(task);
        let decides = self.plan.strategy == Strategy::LeaderDecides;
        if task.new.kind != Kind::Work || below.is_empty() || decides || own.status == TaskStatus::Failed {
            self.finish_task(id, own, now_ms);
            return;
        }
        match combine::combine_answers(self.plan.strategy, &below, None) {
            CombineResult::Done(outcome) => self.node_ends(id, *outcome, now_ms),
            CombineResult::Ask(purpose) => {
                let run = task.new.run.clone();
                self.ask_head(&run, Some(id.clone()), (purpose, false), now_ms);
            }
        }
    }

    /// Ends a task whose subtasks' answers were combined.
    fn node_ends(&mut self, id: &TaskId, outcome: TaskOutcome, now_ms: u64) {
        let Some(task) = self.tasks.get(id) else { return };
        let outcome = TaskOutcome {
            head_text: Some(Self::own_word(task).answer.text),
            ..outcome
        };
        self.emit(SwarmFact::Aggregated {
            run: task.new.run.clone(),
            task: Some(id.clone()),
            stage: None,
            member: task.seat.map_or("", |who| self.plan.member(who)).to_owned(),
            outcome: outcome.clone(),
        });
        self.finish_task(id, outcome, now_ms);
    }

    /// The answers of the tasks below this one, in the order of its calls.
    pub(super) fn said_below(&self, task: &SwarmTask) -> Vec<MemberAnswer> {
        let below = self.answers_below(&task.new.run, Some(task.id()), 0);
        self.said_of(&below)
    }

    pub(super) fn said_of(&self, tasks: &[&SwarmTask]) -> Vec<MemberAnswer> {
        let said = |task: &&SwarmTask| task.said_as(task.seat.map_or("", |who| self.plan.member(who)));
        tasks.iter().map(said).collect()
    }

    /// Checks whether a run, or its stage, has all its answers.
    pub(super) fn catch_up(&mut self, run: &TaskId, now_ms: u64) {
        let Some(of) = self.runs.get(run) else { return };
        let (stage, solo) = (of.stage, !of.to.is_empty());
        if self.over.contains_key(run) {
            return;
        }
        let judge = |task: &SwarmTask| task.new.run == *run && task.new.parent.is_none() && !task.is_done();
        if self.tasks.values().any(judge) {
            return;
        }
        let answers = self.answers_below(run, None, stage);
        match self.plan.topology {
            _ if solo => self.root_ends(run, now_ms),
            Topology::LeaderWorker | Topology::Hierarchical => self.root_ends(run, now_ms),
            Topology::Broadcast | Topology::PeerToPeer => {
                let said = self.said_of(&answers);
                self.combine_run(run, &said, now_ms);
            }
            Topology::Pipeline => self.stage_has_answers(run, now_ms),
        }
    }

    /// Ends a run that consists of one task, with the task's outcome.
    fn root_ends(&mut self, run: &TaskId, now_ms: u64) {
        let outcome = self
            .answers_below(run, None, 0)
            .first()
            .and_then(|task| task.outcome.clone());
        let none = || {
            TaskOutcome::from_fault(SwarmFault::task_failed(
                "no_member",
                "no member could be given the task",
            ))
        };
        self.end_run(run, outcome.unwrap_or_else(none), now_ms);
    }

    fn combine_run(&mut self, run: &TaskId, said: &[MemberAnswer], now_ms: u64) {
        match combine::combine_answers(self.plan.strategy, said, None) {
            CombineResult::Done(outcome) => self.run_has(run, *outcome, now_ms),
            CombineResult::Ask(purpose) => self.ask_head(run, None, (purpose, false), now_ms),
        }
    }

    fn stage_has_answers(&mut self, run: &TaskId, now_ms: u64) {
        let Some((stage, ends)) = self.runs.get(run).map(|run| (run.stage, run.stages.clone())) else {
            return;
        };
        let said: Vec<MemberAnswer> = ends.iter().map(StageEnd::to_answer).collect();
        if usize::try_from(stage).unwrap_or(usize::MAX) >= self.plan.stages().len() {
            // Every stage has given its answer.
            match self.plan.strategy {
                Strategy::LeaderDecides => self.combine_run(run, &said, now_ms),
                _ => {
                    let last = ends.last().map(|end| end.outcome.clone());
                    let none = || {
                        TaskOutcome::from_fault(SwarmFault::task_failed(
                            "no_member",
                            "the pipeline has no stage",
                        ))
                    };
                    self.end_run(run, last.unwrap_or_else(none), now_ms);
                }
            }
            return;
        }
        let answers = self.answers_below(run, None, stage);
        if self.plan.stage_needs_all() {
            let said = self.said_of(&answers);
            self.combine_run(run, &said, now_ms);
            return;
        }
        let first = answers.first().and_then(|task| task.outcome.clone());
        let outcome = first.unwrap_or_else(|| {
            TaskOutcome::from_fault(SwarmFault::task_failed("no_member", "the stage has no member"))
        });
        let whole = outcome.status == TaskStatus::Completed
            || (outcome.status == TaskStatus::Partial && self.plan.strategy == Strategy::LeaderDecides);
        if whole {
            self.stage_ends(run, stage, outcome, now_ms);
        } else {
            let fault = outcome.fault.clone();
            let broken =
                || SwarmFault::task_failed("chain_broken", "a stage of the pipeline did not end completed");
            let fault = if self.plan.strategy == Strategy::Chain {
                broken()
            } else {
                fault.unwrap_or_else(broken)
            };
            self.end_run(run, TaskOutcome::from_fault(fault), now_ms);
        }
    }

    fn stage_ends(&mut self, run: &TaskId, stage: u32, outcome: TaskOutcome, now_ms: u64) {
        let answers = self.answers_below(run, None, stage);
        let member = match answers.as_slice() {
            [one] => one.seat.map(|who| self.plan.member(who).to_owned()),
            several => several
                .first()
                .and_then(|task| {
                    self.plan
                        .seat(task.seat.or_else(|| task.new.among.first().copied())?)
                })
                .map(|seat| identity_name(&seat.identity)),
        };
        self.emit(SwarmFact::Aggregated {
            run: run.clone(),
            task: None,
            stage: Some(stage),
            member: member.unwrap_or_default(),
            outcome,
        });
        self.begin_stage(run, now_ms);
        self.catch_up(run, now_ms);
    }

    /// Continues a run, or its stage, whose answers were combined.
    fn run_has(&mut self, run: &TaskId, outcome: TaskOutcome, now_ms: u64) {
        let stage = self.runs.get(run).map_or(0, |run| run.stage);
        let stages = u32::try_from(self.plan.stages().len()).unwrap_or(u32::MAX);
        if self.plan.topology == Topology::Pipeline && stage < stages && outcome.status != TaskStatus::Failed
        {
            self.stage_ends(run, stage, outcome, now_ms);
            return;
        }
        self.emit(SwarmFact::Aggregated {
            run: run.clone(),
            task: None,
            stage: None,
            member: String::new(),
            outcome: outcome.clone(),
        });
        self.end_run(run, outcome, now_ms);
    }

    /// The member that judges the answers.
    fn judge_of(&self, parent: Option<&TaskId>, purpose: HeadPurpose) -> SwarmWorkerId {
        match parent.and_then(|parent| self.tasks.get(parent)) {
            Some(node) => node.seat.unwrap_or(self.plan.head),
            // A participant does not judge.
            None if purpose == HeadPurpose::Choose && self.plan.topology == Topology::PeerToPeer => {
                SwarmWorkerId::Claw
            }
            None => self.plan.head,
        }
    }

    /// The answers that the judge sees.
    fn contest_answers(&self, run: &TaskId, parent: Option<&TaskId>) -> Vec<MemberAnswer> {
        let of = self.runs.get(run);
        let stage = of.map_or(0, |run| run.stage);
        match parent.and_then(|parent| self.tasks.get(parent)) {
            Some(node) => self.said_below(node),
            None if self.plan.topology == Topology::Pipeline && !self.plan.stage_needs_all() => of
                .map(|run| run.stages.iter().map(StageEnd::to_answer).collect())
                .unwrap_or_default(),
            None => self.said_of(&self.answers_below(run, None, stage)),
        }
    }

    /// Asks a head about answers, without tools.
    fn ask_head(
        &mut self,
        run: &TaskId,
        parent: Option<TaskId>,
        (purpose, again): (HeadPurpose, bool),
        now_ms: u64,
    ) {
        let Some(of) = self.runs.get(run) else { return };
        let stage = of.stage;
        let (brief, depth) = match parent.as_ref().and_then(|parent| self.tasks.get(parent)) {
            Some(node) => (node.new.brief.clone(), node.new.depth),
            None => (of.brief.clone(), 0),
        };
        let said = self.contest_answers(run, parent.as_ref());
        let counting = combine::counting_answers(self.plan.strategy, &said);
        let description = match purpose {
            HeadPurpose::Decide => {
                words::decision_prompt(&brief.description, brief.input.as_ref(), &counting)
            }
            HeadPurpose::Choose => {
                words::choice_prompt(&brief.description, brief.input.as_ref(), &counting, again)
            }
        };
        let judge = self.judge_of(parent.as_ref(), purpose);
        let place = parent.as_ref().unwrap_or(run);
        let node = parent.as_ref().and_then(|id| self.tasks.get(id));
        let attempt = node.map_or(0, |task| task.attempts);
        let new = NewTask {
            task: derived(place, &format!("judge/{stage}/{attempt}/{again}")),
            run: run.clone(),
            kind: Kind::Judge { purpose, again },
            attempt,
            parent,
            wait: false,
            among: vec![judge],
            order: 0,
            stage,
            depth,
            brief: TaskBrief {
                description,
                input: None,
            },
            from: Vec::new(),
            after: None,
            wish: TaskConstraints::default(),
        };
        self.emit(SwarmFact::Delegated { new, at_ms: now_ms });
    }

    /// Handles the head's answer or failure.
    pub(super) fn handle_judgement(
        &mut self,
        id: &TaskId,
        (run, parent): (&TaskId, Option<&TaskId>),
        (purpose, again): (HeadPurpose, bool),
        now_ms: u64,
    ) {
        let Some(task) = self.tasks.get(id) else { return };
        let member = task.seat.map_or("", |who| self.plan.member(who)).to_owned();
        let Some(judged) = task.outcome.clone() else {
            return;
        };
        let said = self.contest_answers(run, parent);
        let counting = combine::counting_answers(self.plan.strategy, &said);
        let outcome = if judged.status != TaskStatus::Completed {
            TaskOutcome::from_fault(judged.fault.unwrap_or_else(|| combine::no_verdict(&member)))
        } else if purpose == HeadPurpose::Decide {
            TaskOutcome::from_answer(TaskAnswer::from_text(&judged.answer.text))
        } else {
            match combine::parse_verdict(&judged.answer.text, counting.len()) {
                Some((best, why)) => combine::chosen_outcome(&counting, &member, best, why),
                None if again => TaskOutcome::from_fault(combine::no_verdict(&member)),
                None => {
                    self.ask_head(run, parent.cloned(), (purpose, true), now_ms);
                    return;
                }
            }
        };
        match parent {
            Some(node) => self.node_ends(&node.clone(), outcome, now_ms),
            None => self.run_has(run, outcome, now_ms),
        }
    }

    pub(super) fn end_run(&mut self, run: &TaskId, outcome: TaskOutcome, now_ms: u64) {
        let Some(result) = self.run_result(run, outcome, now_ms) else {
            return;
        };
        // A run that has its result needs no further work.
        for id in self.tasks_of(run).into_iter().rev() {
            if self.tasks.get(&id).is_some_and(|task| !task.is_done()) {
                self.over
                    .entry(run.clone())
                    .or_insert_with(|| SwarmFault::task_failed("run_ended", "its run has ended"));
                let fault = SwarmFault::task_failed("run_ended", "its run has ended");
                self.finish_task(&id, TaskOutcome::from_fault(fault), now_ms);
            }
        }
        self.emit(SwarmFact::Ended {
            result: Box::new(result.clone()),
        });
        self.out.push(super::Effect::RunEnded(Box::new(result)));
    }
}
