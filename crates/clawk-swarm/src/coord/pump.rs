//! Starts tasks in order of arrival, within the limit of parallel tries.

use super::{
    CircuitState, Effect, Kind, SwarmCoordinator, SwarmFact, SwarmFault, SwarmTask, SwarmTaskPhase,
    SwarmWorkerId, TaskAnswer, TaskId, TaskStatus, TryStart,
};
use crate::combine::TaskOutcome;
use crate::words;

impl SwarmCoordinator {
    /// The number of running tries. A try that waits for its own `delegate` or `ask-peer` does not count.
    #[must_use]
    pub fn running_tries(&self) -> usize {
        self.tasks.values().filter(|task| self.is_counted(task)).count()
    }

    /// Whether one more try may run. A run of another host is counted there; here only the tries that this host performs count.
    fn has_room(&self, from_afar: bool) -> bool {
        let tasks = self.tasks.values().filter(|task| self.is_counted(task));
        let running = tasks.filter(|task| {
            if from_afar {
                !task.afar
            } else {
                !self.is_from_afar(task)
            }
        });
        running.count() < self.plan.limits.max_parallel
    }

    fn is_from_afar(&self, task: &SwarmTask) -> bool {
        self.runs.get(&task.new.run).is_some_and(|run| run.from_afar)
    }

    fn is_counted(&self, task: &SwarmTask) -> bool {
        let held = self.held.iter().any(|(asker, _)| asker == task.id());
        task.phase == SwarmTaskPhase::Running && task.waits.is_empty() && !held
    }

    /// Whether a member may get a task now. `for_task`: this task may already be assigned to the member.
    pub(super) fn is_free(&self, who: SwarmWorkerId, for_task: Option<&TaskId>, now_ms: u64) -> bool {
        let SwarmWorkerId::Seat(_) = who else { return true };
        let state = self.seats.get(self.plan.member(who));
        match state.map(|state| state.circuit).unwrap_or_default() {
            CircuitState::Closed => {}
            CircuitState::Open { until_ms } if now_ms >= until_ms => {}
            CircuitState::Open { .. } | CircuitState::Trial => return false,
        }
        if !self.plan.limits.sequential {
            return true;
        }
        let judged = for_task
            .and_then(|task| self.tasks.get(task))
            .filter(|task| matches!(task.new.kind, Kind::Judge { .. }))
            .and_then(|task| task.new.parent.as_ref());
        let from_afar = for_task
            .and_then(|task| self.tasks.get(task))
            .is_some_and(|task| self.is_from_afar(task));
        !self.tasks.values().any(|task| {
            task.seat == Some(who)
                // A member that works elsewhere leaves its seat here free for runs from other hosts.
                && !(task.afar && from_afar)
                && matches!(task.phase, SwarmTaskPhase::Running | SwarmTaskPhase::Parked)
                && Some(task.id()) != judged
        })
    }

    pub(super) fn circuit_open(&self, who: SwarmWorkerId) -> bool {
        let state = self.seats.get(self.plan.member(who));
        state.is_some_and(|state| state.circuit != CircuitState::Closed)
    }

    /// Starts everything that may run.
    pub(super) fn advance_all(&mut self, now_ms: u64) {
        loop {
            let room = self.has_room(false);
            if room && (self.release_result() || self.deliver_results(now_ms)) {
                continue;
            }
            if self.break_chains(now_ms) {
                continue;
            }
            if !room && !self.has_room(true) {
                return;
            }
            let Some((task, who)) = self.first_that_may(now_ms) else {
                return;
            };
            self.start_try(&task, who, now_ms);
        }
    }

    /// Gives the next held result to an asking task that waited for a place.
    fn release_result(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let (asker, task) = self.held.remove(0);
        let result = self.tasks.get(&task).map(|task| Box::new(self.result_of(task)));
        if let Some(result) = result {
            self.out.push(Effect::Reply { asker, result });
        }
        true
    }

    /// Sends the results of tasks that were not waited for to the task that delegated them, all together after its turn.
    fn deliver_results(&mut self, now_ms: u64) -> bool {
        let parked = self.tasks.values().find_map(|task| {
            let open = task.phase == SwarmTaskPhase::Parked && task.word.is_none() && task.said.is_some();
            let of = self.undelivered_tasks(task);
            (open && !of.is_empty() && of.iter().all(|(_, done)| *done)).then(|| (task.id().clone(), of))
        });
        let Some((task, of)) = parked else {
            return false;
        };
        let of: Vec<TaskId> = of.into_iter().map(|(task, _)| task).collect();
        let texts = of.iter().filter_map(|id| self.tasks.get(id)).map(|task| {
            let member = task.seat.map_or("", |who| self.plan.member(who));
            let outcome = task.outcome.as_ref();
            let why = outcome
                .and_then(|outcome| outcome.fault.as_ref())
                .map(|fault| format!("failed: {}", fault.message));
            let text = outcome
                .map(|outcome| outcome.answer.text.clone())
                .filter(|text| !text.is_empty());
            words::mark_text(member, &text.or(why).unwrap_or_default())
        });
        let text = texts.collect::<Vec<_>>().join("\n\n");
        self.emit(SwarmFact::Told {
            task: task.clone(),
            of: of.clone(),
        });
        if let Some(task) = self.tasks.get_mut(&task) {
            task.since_ms = now_ms;
        }
        self.out.push(Effect::Tell { task, of, text });
        true
    }

    /// Tasks that were delegated without waiting and whose results were not sent yet; each with whether it has ended.
    pub(super) fn undelivered_tasks(&self, task: &SwarmTask) -> Vec<(TaskId, bool)> {
        let below = self.answers_below(&task.new.run, Some(task.id()), 0);
        below
            .into_iter()
            .filter(|child| !child.new.wait && !task.told.contains(child.id()))
            .map(|child| (child.id().clone(), child.is_done()))
            .collect()
    }

    /// Ends chain tasks whose predecessor has failed.
    fn break_chains(&mut self, now_ms: u64) -> bool {
        let broken = self.tasks.values().find_map(|task| {
            let before = self.tasks.get(task.new.after.as_ref()?)?;
            let failed = before.is_done() && before.status() != TaskStatus::Completed;
            (task.phase == SwarmTaskPhase::Waiting && failed).then(|| task.id().clone())
        });
        let Some(task) = broken else { return false };
        let fault = SwarmFault::task_failed("chain_broken", "the link before it did not end completed");
        self.finish_task(&task, TaskOutcome::from_fault(fault), now_ms);
        true
    }

    fn first_that_may(&self, now_ms: u64) -> Option<(TaskId, SwarmWorkerId)> {
        let (own, afar) = (self.has_room(false), self.has_room(true));
        let mut waiting: Vec<&SwarmTask> = self
            .tasks
            .values()
            .filter(|task| task.phase == SwarmTaskPhase::Waiting && task.not_before_ms <= now_ms)
            .filter(|task| if self.is_from_afar(task) { afar } else { own })
            .collect();
        waiting.sort_by_key(|task| task.arrived);
        waiting.into_iter().find_map(|task| {
            let before = task.new.after.as_ref().and_then(|after| self.tasks.get(after));
            if before.is_some_and(|before| !before.is_done()) {
                return None;
            }
            let among = task
                .seat
                .map_or_else(|| task.new.among.clone(), |seat| vec![seat]);
            let free = among
                .into_iter()
                .filter(|who| self.is_free(*who, Some(task.id()), now_ms));
            let price = |who: &SwarmWorkerId| {
                self.plan
                    .seat(*who)
                    .and_then(|seat| seat.price_microusd)
                    .unwrap_or(u64::MAX)
            };
            let who = if self.plan.limits.cost_aware {
                free.min_by_key(price)
            } else {
                free.min()
            };
            Some((task.id().clone(), who?))
        })
    }

    fn start_try(&mut self, id: &TaskId, who: SwarmWorkerId, now_ms: u64) {
        let Some(attempt) = self.tasks.get(id).map(|task| task.attempts.saturating_add(1)) else {
            return;
        };
        if self.circuit_open(who) {
            self.emit(SwarmFact::Circuit {
                member: self.plan.member(who).to_owned(),
                circuit: CircuitState::Trial,
            });
        }
        self.emit(SwarmFact::Began {
            task: id.clone(),
            who,
            attempt,
        });
        if let Some(task) = self.tasks.get_mut(id) {
            task.since_ms = now_ms;
        }
        self.start_effect(id, false);
    }

    /// Emits the effect that starts a try.
    pub(super) fn start_effect(&mut self, id: &TaskId, resumed: bool) {
        let Some(task) = self.tasks.get(id) else { return };
        let Some(who) = task.seat else { return };
        let names = |whom: Vec<SwarmWorkerId>| {
            whom.into_iter()
                .map(|who| self.plan.member(who).to_owned())
                .collect()
        };
        let works = task.new.kind == Kind::Work;
        let start = TryStart {
            task: id.clone(),
            run: task.new.run.clone(),
            kind: task.new.kind,
            who,
            member: self.plan.member(who).to_owned(),
            attempt: task.attempts,
            text: self.text_of(task),
            heard: if works {
                self.public_reports(task)
            } else {
                Vec::new()
            },
            asker: task.new.parent.clone(),
            below: if works {
                names(self.plan.delegable_seats(who))
            } else {
                Vec::new()
            },
            askable: match task.new.kind {
                Kind::Work | Kind::Asked => names(self.plan.askable_seats(who)),
                Kind::Judge { .. } => Vec::new(),
            },
            wish: task.new.wish.clone(),
            session: self.session_of(task),
            resumed,
        };
        self.out.push(Effect::Start(Box::new(start)));
    }

    /// The session of a task. A question is a turn in the session where the asked member works on the run, if the member works on
    /// one task at a time.
    #[must_use]
    pub fn session_of(&self, task: &SwarmTask) -> (TaskId, u32) {
        let own = (task.id().clone(), task.attempts);
        if task.new.kind != Kind::Asked || !self.plan.limits.sequential {
            return own;
        }
        let worked = self.tasks.values().filter(|other| {
            other.new.run == task.new.run
                && other.new.kind == Kind::Work
                && other.seat == task.seat
                && other.status() == TaskStatus::Completed
        });
        let last = worked.max_by_key(|other| other.arrived);
        last.map_or(own, |other| (other.id().clone(), other.attempts))
    }

    /// The text for the task's worker.
    fn text_of(&self, task: &SwarmTask) -> String {
        let new = &task.new;
        match new.kind {
            Kind::Judge { .. } => new.brief.description.clone(),
            Kind::Asked => format!(
                "Another member of your swarm asks you. Answer it.\n\n{}",
                new.brief.description
            ),
            Kind::Work => {
                let before = new.after.as_ref().and_then(|after| self.tasks.get(after));
                let before = before.and_then(|task| Some(task.said_as(self.plan.member(task.seat?))));
                let from: Vec<_> = new.from.iter().cloned().chain(before).collect();
                words::task_prompt(&new.brief.description, new.brief.input.as_ref(), &from)
            }
        }
    }

    /// Other members' reports of the run so far, if all members get them.
    fn public_reports(&self, task: &SwarmTask) -> Vec<String> {
        if !self.shares_reports() {
            return Vec::new();
        }
        let mut others: Vec<&SwarmTask> = self
            .tasks
            .values()
            .filter(|other| other.new.run == task.new.run && other.is_done() && other.new.kind == Kind::Work)
            .filter(|other| other.seat != task.seat && task.new.after.as_ref() != Some(other.id()))
            .collect();
        others.sort_by_key(|other| other.arrived);
        others
            .into_iter()
            .filter_map(|other| self.public_report(other))
            .collect()
    }

    /// A report as others read it; `None`: it is empty.
    pub(super) fn public_report(&self, task: &SwarmTask) -> Option<String> {
        let answer: &TaskAnswer = &task.outcome.as_ref()?.answer;
        let member = self.plan.member(task.seat?);
        (!answer.text.is_empty()).then(|| words::mark_text(member, &answer.text))
    }

    pub(super) fn shares_reports(&self) -> bool {
        self.plan.limits.passing == clawk_manifest::model::MessagePassing::EventBus
    }
}
