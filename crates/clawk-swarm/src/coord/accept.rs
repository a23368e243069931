//! Requests to a swarm: runs, delegated tasks, questions, reports.

use clawk_manifest::model::{AggregationStrategy, Topology};
use clawk_proto::method::TaskStatus;
use serde_json::Value;

use super::{
    BTreeSet, Effect, Kind, NewTask, ReportReception, SwarmCoordinator, SwarmFact, SwarmTaskPhase,
    SwarmWorkerId, TaskBrief, TaskConstraints, TaskId, TryUsage, derived,
};
use crate::answer::{MAX_ANSWER_BYTES, SwarmFault, TaskAnswer, canonical_json};
use crate::words;

/// The largest description of a task with its input, bytes.
pub(super) const MAX_TASK_BYTES: usize = 1 << 20;

/// Why a task is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwarmTaskRefusal {
    /// The error code on the wire: -32040 or -32602.
    pub code: i64,
    /// A stable identifier: `busy`, `circuit_open`, `max_depth`, `ask_cycle`, `not_below`, `unknown_task` …
    pub reason: &'static str,
    /// The message, for people and models.
    pub message: String,
}

impl SwarmTaskRefusal {
    fn member_unreached(reason: &'static str, message: impl Into<String>) -> Self {
        let fault = SwarmFault::member_unreached(reason, message);
        Self {
            code: fault.code,
            reason,
            message: fault.message,
        }
    }

    fn invalid_request(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: clawk_proto::ErrorCode::InvalidParams.code(),
            reason,
            message: message.into(),
        }
    }
}

/// A task that a member delegates.
#[derive(Debug, Clone, PartialEq)]
pub struct DelegatedTask {
    /// Its id; the same call gives the same id.
    pub task: TaskId,
    /// The work.
    pub brief: TaskBrief,
    /// A member, an identity or a role; `None`: any free member below the asking one.
    pub to: Option<String>,
    /// Limits; they only narrow.
    pub wish: TaskConstraints,
    /// The asking member waits for the result.
    pub wait: bool,
}

/// The terms of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunTerms<'a> {
    /// A member, an identity or a role; `None`: the whole swarm.
    pub to: Option<&'a str>,
    /// Limits; they only narrow.
    pub wish: TaskConstraints,
    /// Another host of the swarm gave the run and counts it.
    pub from_afar: bool,
}

fn brief_size(brief: &TaskBrief) -> usize {
    brief.description.len()
        + brief
            .input
            .as_ref()
            .map_or(0, |input| canonical_json(input).len())
}

impl SwarmCoordinator {
    /// Accepts a run: a task for the whole swarm, or for the members that `to` names. The same id again is the same run and changes
    /// nothing.
    ///
    /// # Errors
    /// Too many tasks wait, no member has this name, or another task has this id.
    pub fn accept_run(
        &mut self,
        run: &TaskId,
        brief: TaskBrief,
        to: Option<&str>,
        origin: &str,
        now_ms: u64,
    ) -> Result<Vec<Effect>, SwarmTaskRefusal> {
        let terms = RunTerms {
            to,
            ..RunTerms::default()
        };
        self.accept_within(run, brief, terms, origin, now_ms)
    }

    /// As [`Self::accept_run`], with limits for the run's tasks (`wish`).
    ///
    /// # Errors
    /// As [`Self::accept_run`].
    pub fn accept_within(
        &mut self,
        run: &TaskId,
        brief: TaskBrief,
        terms: RunTerms<'_>,
        origin: &str,
        now_ms: u64,
    ) -> Result<Vec<Effect>, SwarmTaskRefusal> {
        if let Some(known) = self.runs.get(run) {
            return if known.brief == brief {
                Ok(Vec::new())
            } else {
                Err(SwarmTaskRefusal::invalid_request(
                    "task_id_reused",
                    "another task has this `task_id`",
                ))
            };
        }
        if self.tasks.contains_key(run) || self.ended.contains(run) {
            return Err(SwarmTaskRefusal::invalid_request(
                "task_id_reused",
                "another task has this `task_id`",
            ));
        }
        if brief.description.trim().is_empty() || brief_size(&brief) > MAX_TASK_BYTES {
            let message =
                format!("a task has a description, and at most {MAX_TASK_BYTES} bytes with its input");
            return Err(SwarmTaskRefusal::invalid_request("bad_task", message));
        }
        let all: Vec<SwarmWorkerId> = self.plan.all_seats().chain([SwarmWorkerId::Claw]).collect();
        let to = match terms.to {
            None => Vec::new(),
            Some(name) => {
                let mut named = self.plan.find_seats(&all, name);
                if named.is_empty() {
                    named.extend(self.plan.find_member(name));
                }
                if named.is_empty() {
                    let message = format!(
                        "`{name}` is no member, identity or role of the swarm `{}`",
                        self.plan.swarm
                    );
                    return Err(SwarmTaskRefusal::invalid_request("unknown_member", message));
                }
                named
            }
        };
        self.check_room()?;
        self.emit(SwarmFact::Run {
            run: run.clone(),
            brief,
            to,
            origin: origin.to_owned(),
            wish: terms.wish,
            from_afar: terms.from_afar,
            plan: self.plan.fingerprint(),
            at_ms: now_ms,
        });
        self.begin_run(run, now_ms);
        self.advance_all(now_ms);
        Ok(std::mem::take(&mut self.out))
    }

    /// Accepts a task that a member delegates while it works on `asker`. The same id again is the same task, and its result is sent
    /// when it is there.
    ///
    /// # Errors
    /// The asking task is not running or must not delegate; no member below has this name; no member is free (`direct`); or too
    /// many tasks wait.
    pub fn delegate_task(
        &mut self,
        asker: &TaskId,
        wanted: DelegatedTask,
        now_ms: u64,
    ) -> Result<Vec<Effect>, SwarmTaskRefusal> {
        let (who, run) = self.find_asker(asker)?;
        if self.tasks.contains_key(&wanted.task) {
            return self.repeat_delegation(asker, &wanted);
        }
        let below = self.plan.delegable_seats(who);
        if below.is_empty() {
            let message = format!(
                "`{}` has no members below it to delegate to",
                self.plan.member(who)
            );
            return Err(SwarmTaskRefusal::invalid_request("not_below", message));
        }
        let among = match &wanted.to {
            None => below,
            Some(name) => {
                let named = self.plan.find_seats(&below, name);
                if named.is_empty() {
                    let names: Vec<&str> = below.iter().map(|who| self.plan.member(*who)).collect();
                    let message = format!("`{name}` is none of {}", names.join(", "));
                    return Err(SwarmTaskRefusal::invalid_request("not_below", message));
                }
                named
            }
        };
        let depth = self.depth_below(asker)?;
        self.free_or_wait(&among, wanted.wait, now_ms)?;
        let before = self.answers_below(&run, Some(asker), 0);
        let chained = self.plan.strategy == AggregationStrategy::Chain;
        let after = before.last().filter(|_| chained).map(|task| task.id().clone());
        let order = u32::try_from(before.len()).unwrap_or(u32::MAX);
        let attempt = self.tasks.get(asker).map_or(0, |task| task.attempts);
        let new = NewTask {
            task: wanted.task,
            run,
            kind: Kind::Work,
            parent: Some(asker.clone()),
            attempt,
            wait: wanted.wait,
            among,
            order,
            stage: 0,
            depth,
            brief: wanted.brief,
            from: Vec::new(),
            after,
            wish: wanted.wish,
        };
        self.give_task(new, now_ms)
    }

    /// Accepts a question from one peer to another, while the first one works on `asker`.
    ///
    /// # Errors
    /// As [`Self::delegate_task`]; or the asked peer itself waits for the asking one (`ask_cycle`).
    pub fn ask_peer(
        &mut self,
        asker: &TaskId,
        task: TaskId,
        to: &str,
        question: String,
        now_ms: u64,
    ) -> Result<Vec<Effect>, SwarmTaskRefusal> {
        let (who, run) = self.find_asker(asker)?;
        let brief = TaskBrief {
            description: words::mark_text(self.plan.member(who), &question),
            input: None,
        };
        let wanted = DelegatedTask {
            task,
            brief,
            to: Some(to.to_owned()),
            wish: TaskConstraints::default(),
            wait: true,
        };
        if self.tasks.contains_key(&wanted.task) {
            return self.repeat_delegation(asker, &wanted);
        }
        let named = self.plan.find_seats(&self.plan.askable_seats(who), to);
        let Some(first) = named.first().copied() else {
            let message = format!("`{to}` is no peer that `{}` may ask", self.plan.member(who));
            return Err(SwarmTaskRefusal::invalid_request("not_a_peer", message));
        };
        if named.iter().any(|peer| self.waits_for(&run, *peer, who)) {
            let message = format!(
                "`{to}` waits for `{}` itself: two that wait for each other wait for ever",
                self.plan.member(who)
            );
            return Err(SwarmTaskRefusal::member_unreached("ask_cycle", message));
        }
        let depth = self.depth_below(asker)?;
        self.free_or_wait(&[first], true, now_ms)?;
        let attempt = self.tasks.get(asker).map_or(0, |task| task.attempts);
        let new = NewTask {
            task: wanted.task,
            run,
            kind: Kind::Asked,
            parent: Some(asker.clone()),
            attempt,
            wait: true,
            among: named,
            order: 0,
            stage: 0,
            depth,
            brief: wanted.brief,
            from: Vec::new(),
            after: None,
            wish: wanted.wish,
        };
        self.give_task(new, now_ms)
    }

    /// Handles a report of the task's own member while it works on the task (`report`), or of the host bound to the task.
    pub fn accept_report(
        &mut self,
        task: &TaskId,
        by: Option<&str>,
        status: TaskStatus,
        result: &Value,
    ) -> (ReportReception, Vec<Effect>) {
        self.report_from_afar(task, by, (status, result), None)
    }

    /// As [`Self::accept_report`], for a member that works elsewhere, with the usage that it reports.
    pub fn report_from_afar(
        &mut self,
        task: &TaskId,
        by: Option<&str>,
        (status, result): (TaskStatus, &Value),
        used: Option<TryUsage>,
    ) -> (ReportReception, Vec<Effect>) {
        let reception = self.judge_report(task, by, result);
        match reception {
            ReportReception::Taken => self.emit(SwarmFact::Word {
                task: task.clone(),
                status,
                answer: TaskAnswer::from_report(result),
                used,
            }),
            ReportReception::Unknown => {}
            refused => self.emit(SwarmFact::Refused {
                task: task.clone(),
                reason: refused.reason().unwrap_or_default().to_owned(),
                by: by.unwrap_or_default().to_owned(),
            }),
        }
        (reception, std::mem::take(&mut self.out))
    }

    /// Records a report that is refused, whatever its content.
    pub fn refuse_report(&mut self, task: &TaskId, by: &str, reception: ReportReception) -> Vec<Effect> {
        if let Some(reason) = reception.reason() {
            self.emit(SwarmFact::Refused {
                task: task.clone(),
                reason: reason.to_owned(),
                by: by.to_owned(),
            });
        }
        std::mem::take(&mut self.out)
    }

    fn judge_report(&self, task: &TaskId, by: Option<&str>, result: &Value) -> ReportReception {
        if self.ended.contains(task) {
            return ReportReception::Late;
        }
        let Some(task) = self.tasks.get(task) else {
            return ReportReception::Unknown;
        };
        if task.seat.map(|who| self.plan.member(who)) != by {
            return ReportReception::NotYours;
        }
        if task.word.is_some() {
            return ReportReception::Duplicate;
        }
        if task.phase != SwarmTaskPhase::Running {
            return ReportReception::Late;
        }
        if canonical_json(result).len() > MAX_ANSWER_BYTES || !(result.is_string() || result.is_object()) {
            return ReportReception::Garbage;
        }
        ReportReception::Taken
    }

    /// The worker and the run of the asking task.
    fn find_asker(&self, asker: &TaskId) -> Result<(SwarmWorkerId, TaskId), SwarmTaskRefusal> {
        let task = self
            .tasks
            .get(asker)
            .filter(|task| task.phase == SwarmTaskPhase::Running);
        let found = task.and_then(|task| Some((task.seat?, task.new.run.clone())));
        found.ok_or_else(|| {
            SwarmTaskRefusal::invalid_request("unknown_task", "the task of who asks has ended")
        })
    }

    /// Handles a repeated request, after a crash of the asking member.
    fn repeat_delegation(
        &mut self,
        asker: &TaskId,
        wanted: &DelegatedTask,
    ) -> Result<Vec<Effect>, SwarmTaskRefusal> {
        let known = self
            .tasks
            .get(&wanted.task)
            .filter(|task| task.new.parent.as_ref() == Some(asker));
        let Some(known) = known else {
            return Err(SwarmTaskRefusal::invalid_request(
                "task_id_reused",
                "another task has this id",
            ));
        };
        if known.is_done() && wanted.wait {
            let result = Box::new(self.result_of(known));
            self.out.push(Effect::Reply {
                asker: asker.clone(),
                result,
            });
        }
        Ok(std::mem::take(&mut self.out))
    }

    fn depth_below(&self, asker: &TaskId) -> Result<u32, SwarmTaskRefusal> {
        let depth = self
            .tasks
            .get(asker)
            .map_or(0, |task| task.new.depth)
            .saturating_add(1);
        let most = self.plan.limits.local.max_depth;
        if depth > most {
            let message = format!(
                "{depth} tasks would stand below each other; `[swarm] max_depth` of clawk.toml allows {most}"
            );
            return Err(SwarmTaskRefusal::member_unreached("max_depth", message));
        }
        Ok(depth)
    }

    fn check_room(&self) -> Result<(), SwarmTaskRefusal> {
        let waiting = self
            .tasks
            .values()
            .filter(|task| task.phase == SwarmTaskPhase::Waiting)
            .count();
        let most = self.plan.limits.local.max_waiting;
        if waiting >= most {
            let message = format!("{waiting} tasks wait; `[swarm] max_waiting` of clawk.toml allows {most}");
            return Err(SwarmTaskRefusal::member_unreached("busy", message));
        }
        Ok(())
    }

    /// Checks that one of these members is free, or that a task for them may wait.
    fn free_or_wait(&self, among: &[SwarmWorkerId], wait: bool, now_ms: u64) -> Result<(), SwarmTaskRefusal> {
        if !self.plan.limits.refuses_to_wait() {
            return self.check_room();
        }
        let free = among.iter().any(|who| self.is_free(*who, None, now_ms));
        // A task that waits does not count.
        let others = self.running_tries().saturating_sub(usize::from(wait));
        if free && others < self.plan.limits.max_parallel {
            return Ok(());
        }
        let open = |who: &SwarmWorkerId| self.circuit_open(*who);
        if among.iter().all(open) {
            let message = "every member that could do it has failed too often and is left alone for a while";
            return Err(SwarmTaskRefusal::member_unreached("circuit_open", message));
        }
        let message = "no member that could do it is free, and `message_passing: direct` lets nothing wait";
        Err(SwarmTaskRefusal::member_unreached("busy", message))
    }

    fn give_task(&mut self, new: NewTask, now_ms: u64) -> Result<Vec<Effect>, SwarmTaskRefusal> {
        if brief_size(&new.brief) > MAX_TASK_BYTES {
            let message = format!("a task has at most {MAX_TASK_BYTES} bytes with its input");
            return Err(SwarmTaskRefusal::invalid_request("bad_task", message));
        }
        self.emit(SwarmFact::Delegated { new, at_ms: now_ms });
        self.advance_all(now_ms);
        Ok(std::mem::take(&mut self.out))
    }

    /// Whether the task that `peer` works on waits, directly or through others, for `who`.
    fn waits_for(&self, run: &TaskId, peer: SwarmWorkerId, who: SwarmWorkerId) -> bool {
        let on = |seat: SwarmWorkerId| {
            self.tasks
                .values()
                .filter(move |task| task.new.run == *run && !task.is_done() && task.seat == Some(seat))
        };
        let mut seen: BTreeSet<&TaskId> = BTreeSet::new();
        let mut next: Vec<&TaskId> = on(peer).flat_map(|task| task.waits.iter()).collect();
        while let Some(id) = next.pop() {
            let Some(task) = self.tasks.get(id).filter(|_| seen.insert(id)) else {
                continue;
            };
            let seats = task
                .seat
                .map_or_else(|| task.new.among.clone(), |seat| vec![seat]);
            if seats.contains(&who) {
                return true;
            }
            next.extend(&task.waits);
            next.extend(seats.into_iter().flat_map(on).flat_map(|task| task.waits.iter()));
        }
        false
    }

    /// Begins the first tasks of the topology.
    pub(super) fn begin_run(&mut self, run: &TaskId, now_ms: u64) {
        let Some((to, whole)) = self.runs.get(run).map(|run| (run.to.clone(), run.to.is_empty())) else {
            return;
        };
        if !whole {
            self.fan_out(run, vec![to], 0, now_ms);
            return;
        }
        let each = |whom: Vec<SwarmWorkerId>| whom.into_iter().map(|who| vec![who]).collect();
        match self.plan.topology {
            Topology::LeaderWorker | Topology::Hierarchical => {
                self.fan_out(run, vec![vec![self.plan.head]], 0, now_ms)
            }
            Topology::Broadcast => self.fan_out(run, each(self.plan.other_seats()), 0, now_ms),
            Topology::PeerToPeer => self.fan_out(run, each(self.plan.all_seats().collect()), 0, now_ms),
            Topology::Pipeline => self.begin_stage(run, now_ms),
        }
        self.catch_up(run, now_ms);
    }

    /// Begins the tasks of a pipeline's stage.
    pub(super) fn begin_stage(&mut self, run: &TaskId, now_ms: u64) {
        let Some(stage) = self.runs.get(run).map(|run| run.stage) else {
            return;
        };
        let stages = self.plan.stages();
        let at = usize::try_from(stage).unwrap_or(usize::MAX);
        if let Some(seats) = stages.into_iter().nth(at) {
            let each = if self.plan.stage_needs_all() {
                seats.into_iter().map(|who| vec![who]).collect()
            } else {
                vec![seats]
            };
            self.fan_out(run, each, stage, now_ms);
        }
    }

    /// Begins one task for each of these groups; any member of a group may take it.
    fn fan_out(&mut self, run: &TaskId, groups: Vec<Vec<SwarmWorkerId>>, stage: u32, now_ms: u64) {
        let Some(of) = self.runs.get(run).cloned() else {
            return;
        };
        let chained =
            self.plan.strategy == AggregationStrategy::Chain && self.plan.topology != Topology::Pipeline;
        let from = of
            .stages
            .last()
            .map(|end| end.to_answer())
            .into_iter()
            .collect::<Vec<_>>();
        let mut before = None;
        for (order, among) in groups.into_iter().enumerate() {
            let task = derived(run, &format!("{stage}/{order}"));
            let new = NewTask {
                task: task.clone(),
                run: run.clone(),
                kind: Kind::Work,
                parent: None,
                attempt: 0,
                wait: false,
                among,
                order: u32::try_from(order).unwrap_or(u32::MAX),
                stage,
                depth: 0,
                brief: of.brief.clone(),
                from: from.clone(),
                after: before.take().filter(|_| chained),
                wish: of.wish.clone(),
            };
            self.emit(SwarmFact::Delegated { new, at_ms: now_ms });
            before = Some(task);
        }
    }
}
