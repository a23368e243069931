//! The coordinator, driven by members that do what a script says. After each step the state is the fold of the facts, and no
//! more runs than may.

mod cells;
mod limits;
mod random;
mod rules;

use std::collections::{BTreeMap, VecDeque};

use clawk_proto::method::TaskStatus;
use serde_json::{Value, json};

use super::{
    DelegatedTask, Effect, Kind, ReportReception, RetryReason, RunResult, SwarmCoordinator, SwarmFact,
    SwarmTaskPhase, TaskBrief, TaskConstraints, TaskId, TryEnd, TryStart, TryUsage, derived,
};
use crate::answer::SwarmFault;
use crate::limit::LocalLimits;
use crate::plan::Plan;
use crate::plan::tests::swarm;

/// What a member does next.
#[derive(Debug, Clone)]
enum Do {
    /// Delegates these side by side: to whom (empty: whoever is free), and what.
    Delegate(Vec<(&'static str, &'static str)>),
    /// The same without waiting.
    Leave(&'static str, &'static str),
    /// With wishes.
    Wish(&'static str, TaskConstraints),
    Ask(&'static str, &'static str),
    Report(TaskStatus, Value),
    /// Works so long, milliseconds.
    Work(u64),
    Say(String),
    Lose(RetryReason),
    Fail(&'static str),
    /// The swarm's purse is empty.
    Spent,
}

struct Active {
    start: TryStart,
    steps: VecDeque<Do>,
    calls: u32,
    waits: usize,
    /// Results that it has read.
    got: Vec<String>,
    until_ms: u64,
}

type Script = Box<dyn FnMut(&TryStart, &[String]) -> Vec<Do>>;

struct Sim {
    coord: SwarmCoordinator,
    now: u64,
    facts: Vec<SwarmFact>,
    /// How many facts were kept together each time: the journal takes all of them or none.
    kept: Vec<usize>,
    active: BTreeMap<TaskId, Active>,
    log: Vec<String>,
    results: Vec<RunResult>,
    script: Script,
    most: usize,
}

fn say(text: &str) -> Vec<Do> {
    vec![Do::Say(text.to_owned())]
}

fn id(n: u32) -> TaskId {
    TaskId::parse(&format!("00000000-0000-4000-8000-{n:012}")).unwrap()
}

fn brief(text: &str) -> TaskBrief {
    TaskBrief {
        description: text.to_owned(),
        input: None,
    }
}

impl Sim {
    fn new(
        topology: &str,
        strategy: &str,
        agents: &[(&str, &str, u32)],
        more: Value,
        script: impl FnMut(&TryStart, &[String]) -> Vec<Do> + 'static,
    ) -> Self {
        let plan = Plan::from_manifest(
            &swarm(topology, strategy, agents, more),
            "claw",
            LocalLimits::default(),
        )
        .unwrap();
        Self {
            coord: SwarmCoordinator::new(plan),
            now: 1_000_000,
            facts: Vec::new(),
            kept: Vec::new(),
            active: BTreeMap::new(),
            log: Vec::new(),
            results: Vec::new(),
            script: Box::new(script),
            most: 0,
        }
    }

    fn accept(&mut self, n: u32, text: &str) {
        let effects = self
            .coord
            .accept_run(&id(n), brief(text), None, "test", self.now)
            .unwrap();
        self.take(effects);
    }

    /// One run to its end: its result, and what happened.
    fn run(mut self, text: &str) -> (RunResult, Vec<String>, Self) {
        self.accept(1, text);
        self.go();
        assert_eq!(self.results.len(), 1, "one result of one run: {:#?}", self.log);
        (self.results[0].clone(), std::mem::take(&mut self.log), self)
    }

    fn check(&mut self) {
        let running = self.coord.running_tries();
        self.most = self.most.max(running);
        assert!(
            running <= self.coord.plan().limits.max_parallel,
            "{:#?}",
            self.log
        );
        let mut folded = SwarmCoordinator::new(self.coord.plan().clone());
        for fact in &self.facts {
            let kept: SwarmFact = serde_json::from_str(&serde_json::to_string(fact).unwrap()).unwrap();
            assert_eq!(kept, *fact);
            folded.apply_fact(&kept);
        }
        assert_eq!(
            json!(folded),
            json!(self.coord),
            "the state is the fold of the facts"
        );
    }

    fn take(&mut self, effects: Vec<Effect>) {
        let mut begins = Vec::new();
        for effect in effects {
            match effect {
                Effect::Record(fact) => self.record(*fact),
                Effect::Start(start) => begins.push(*start),
                Effect::Cancel(task) => {
                    begins.retain(|start| start.task != task);
                    if let Some(active) = self.active.remove(&task) {
                        self.log.push(format!("cancel {}", active.start.member));
                    }
                }
                Effect::Reply { asker, result } => {
                    // After a restart the asker may not have asked again yet.
                    if let Some(active) = self.active.get_mut(&asker).filter(|active| active.waits > 0) {
                        active.waits -= 1;
                        let error = result.error.map(|fault| fault.reason).unwrap_or_default();
                        active
                            .got
                            .push(format!("{}:{}{error}", result.member, result.text));
                    }
                }
                Effect::Tell { task, text, .. } => {
                    let active = self.active.get_mut(&task).unwrap();
                    active.got.push(text);
                    active.steps = (self.script)(&active.start, &active.got).into();
                }
                Effect::Publish { to, .. } => self.log.push(format!("publish to {}", to.len())),
                Effect::RunEnded(result) => self.results.push(*result),
            }
        }
        self.kept.push(self.facts.len());
        for start in begins {
            let ask = match start.kind {
                Kind::Work => "work",
                Kind::Asked => "asked",
                Kind::Judge { .. } => "judge",
            };
            let text = start
                .text
                .replace(" note=\"data, not an instruction\"", "")
                .replace(" origin=\"peer\"", "");
            let text = text.replace("peer-message", "p").replace('\n', "|");
            self.log
                .push(format!("{} {ask} {}: {text}", start.member, start.attempt));
            let steps = (self.script)(&start, &[]).into();
            let active = Active {
                steps,
                calls: 0,
                waits: 0,
                got: Vec::new(),
                until_ms: self.now,
                start,
            };
            self.active.insert(active.start.task.clone(), active);
        }
        self.check();
    }

    fn record(&mut self, fact: SwarmFact) {
        match &fact {
            SwarmFact::Circuit { member, circuit } => self.log.push(format!("circuit {member} {circuit:?}")),
            SwarmFact::DeadLettered { .. } => self.log.push("dead letter".to_owned()),
            // One whose turn has ended is not cancelled.
            SwarmFact::Reported { task, .. } => {
                let over = |active: &mut Active| active.steps.is_empty();
                if self.active.get_mut(task).is_some_and(over) {
                    self.active.remove(task);
                }
            }
            _ => {}
        }
        self.facts.push(fact);
    }

    fn go(&mut self) {
        for _ in 0..10_000 {
            let now = self.now;
            let ready = self
                .active
                .values()
                .filter(|active| active.waits == 0 && active.until_ms <= now && !active.steps.is_empty())
                .map(|active| {
                    (
                        active.start.attempt,
                        active.start.member.clone(),
                        active.start.task.clone(),
                    )
                })
                .min_by_key(|(_, member, task)| (member.clone(), task.clone()));
            if let Some((_, _, task)) = ready {
                self.step(&task);
                continue;
            }
            let busy = self
                .active
                .values()
                .map(|active| active.until_ms)
                .filter(|until| *until > now)
                .min();
            let Some(next) = busy.into_iter().chain(self.coord.wakes_at()).min() else {
                return;
            };
            self.now = next.max(now + 1);
            let effects = self.coord.tick(self.now);
            self.take(effects);
            if self.active.is_empty() && self.coord.runs.is_empty() {
                return;
            }
        }
        panic!("it does not end: {:#?}", self.log);
    }

    fn step(&mut self, task: &TaskId) {
        let active = self.active.get_mut(task).unwrap();
        let next = active.steps.pop_front().unwrap();
        let (member, attempt) = (active.start.member.clone(), active.start.attempt);
        match next {
            Do::Delegate(several) => {
                for (to, text) in several {
                    self.delegate(task, to, text, TaskConstraints::default(), true);
                }
            }
            Do::Leave(to, text) => self.delegate(task, to, text, TaskConstraints::default(), false),
            Do::Wish(text, wish) => self.delegate(task, "", text, wish, true),
            Do::Ask(to, text) => {
                active.calls += 1;
                active.waits += 1;
                let asked = derived(task, &format!("{attempt}/{}", active.calls));
                let answer = self.coord.ask_peer(task, asked, to, text.to_owned(), self.now);
                self.answered(task, answer);
            }
            Do::Report(status, result) => {
                let (reception, effects) = self.coord.accept_report(task, Some(&member), status, &result);
                self.log.push(format!("{member} reports: {reception:?}"));
                self.take(effects);
            }
            Do::Work(ms) => active.until_ms = self.now + ms,
            Do::Say(text) => {
                // A script may speak of what it has read.
                let text = if text == "$got" {
                    active.got.join("; ")
                } else {
                    text
                };
                self.end(task, attempt, TryEnd::Said { text });
            }
            Do::Lose(why) => {
                let message = "lost".to_owned();
                self.end(task, attempt, TryEnd::Lost { why, message });
            }
            Do::Fail(reason) => {
                let fault = SwarmFault::task_failed(reason, "x");
                self.end(task, attempt, TryEnd::Over { fault, run: false });
            }
            Do::Spent => {
                let fault = SwarmFault::limit_spent("swarm_tokens", "x");
                self.end(task, attempt, TryEnd::Over { fault, run: true });
            }
        }
    }

    fn end(&mut self, task: &TaskId, attempt: u32, end: TryEnd) {
        let parks = matches!(end, TryEnd::Said { .. });
        let used = TryUsage {
            tokens: 10,
            cost_microusd: 5,
        };
        let effects = self.coord.try_ended(task, attempt, end, used, self.now);
        // Who delegated without waiting may still be told.
        if !parks
            || self.coord.task(task).is_none_or(|task| {
                task.phase != SwarmTaskPhase::Parked && task.phase != SwarmTaskPhase::Running
            })
        {
            self.active.remove(task);
        }
        self.take(effects);
    }

    fn delegate(&mut self, task: &TaskId, to: &str, text: &str, wish: TaskConstraints, wait: bool) {
        let active = self.active.get_mut(task).unwrap();
        active.calls += 1;
        active.waits += usize::from(wait);
        let wanted = DelegatedTask {
            task: derived(task, &format!("{}/{}", active.start.attempt, active.calls)),
            brief: brief(text),
            to: Some(to.to_owned()).filter(|to| !to.is_empty()),
            wish,
            wait,
        };
        let answer = self.coord.delegate_task(task, wanted, self.now);
        self.answered(task, answer);
    }

    fn answered(&mut self, task: &TaskId, answer: Result<Vec<Effect>, super::SwarmTaskRefusal>) {
        match answer {
            Ok(effects) => self.take(effects),
            Err(refusal) => {
                let active = self.active.get_mut(task).unwrap();
                active.waits = active.waits.saturating_sub(1);
                active.got.push(format!("refused {}", refusal.reason));
                self.log.push(format!(
                    "{} refused: {} {}",
                    active.start.member, refusal.code, refusal.reason
                ));
            }
        }
    }
}

fn reason(result: &RunResult) -> &str {
    result.error.as_ref().map_or("", |fault| &fault.reason)
}

fn answers(result: &RunResult) -> Vec<String> {
    let one = |answer: &super::TaskResult| {
        let error = answer.error.as_ref().map(|fault| format!(" ({})", fault.reason));
        format!("{}: {}{}", answer.member, answer.text, error.unwrap_or_default())
    };
    result.answers.iter().map(one).collect()
}
