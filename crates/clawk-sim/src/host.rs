//! One host: a kernel in a runtime of its own, whose end is a crash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{
    FaultKind, InferRequest, ModelCompletion, ModelMessage, ProviderError, RemoteWorkers, TokenKey,
};
use clawk_kernel::purse::{BudgetAllowance, NamedBudget};
use clawk_kernel::testing::{Behaviour, MemJournal, Rig, ScriptedModel, calls, manifest, says};
use clawk_kernel::{EntryPoint, Kernel, Role, kind};
use clawk_proto::SessionId;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::desk::SharedHostUserFacts;

/// Tokens that an inference uses here.
const OUTPUT_TOKENS: u64 = 2_400;
/// A tool that a rule denies.
pub(crate) const FORBIDDEN: &str = "forbidden";

/// A tool about which a person is asked.
pub(crate) const DANGER: &str = "danger";
/// A tool that may run [`PAID_A_DAY`] times a day.
pub(crate) const PAID: &str = "paid";
/// The bound of [`PAID`].
pub(crate) const PAID_A_DAY: u64 = 3;
/// A question is open for so long, seconds.
const ASKED_S: u64 = 2;
/// A tool without side effects.
pub(crate) const LOOK: &str = "look";
/// What the `slow` tool takes, milliseconds.
const SLOW_MS: u64 = 60;

/// How fast a host's disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskSpeed {
    Fast,
    /// What is written is durable only later, and lost by a crash before.
    Slow,
}

/// A host. Its journal, its tools' memory of what was done and its clock outlive crashes.
pub(crate) struct SwarmHost {
    pub(crate) rig: Rig,
    number: u8,
    disk: DiskSpeed,
    /// Its clock runs so many thousandths faster or slower.
    drift: i64,
    running: Option<RunningKernel>,
    /// Where effects are looked up when they begin.
    journal: Arc<Mutex<Arc<MemJournal>>>,
    /// Effects that began before their decision was durable.
    early: Arc<Mutex<Vec<String>>>,
    used: RunTokenUsage,
}

/// Tokens that models of a host used, by run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTokenUsage(Arc<Mutex<BTreeMap<String, u64>>>);

impl RunTokenUsage {
    /// Tokens by run. Messages of clients are left out: they belong to no run.
    pub(crate) fn by_run(&self) -> BTreeMap<String, u64> {
        let mut used = lock(&self.0).clone();
        used.retain(|run, _| !run.starts_with("chat"));
        used
    }
}

pub(crate) struct RunningKernel {
    pub(crate) runtime: Runtime,
    pub(crate) kernel: Kernel,
    /// Where the client calls tools.
    pub(crate) desk: SessionId,
    /// Who delegates here.
    pub(crate) session: SessionId,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spec(run_tokens: u64) -> Value {
    let tool = |name: &str| json!({"name": name, "description": name, "input_schema": {"type": "object"}});
    json!({
        "tools": [tool("write"), tool("note"), tool(FORBIDDEN), tool(DANGER), tool(PAID), tool(LOOK), tool("flaky"), tool("slow")],
        "policies": [{"name": "policy", "rules": [
            {"id": "never", "action": "deny", "scope": "tool", "match": {"name": FORBIDDEN}},
            {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": DANGER},
                "approval": {"timeout_seconds": ASKED_S}},
            {"id": "all", "action": "allow", "scope": "all"},
        ]}],
        "swarm": {"name": "team", "topology": "leader-worker",
            "agents": [{"identity_ref": "lead", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 3}],
            "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
            "aggregation": {"strategy": "leader-decides"}, "resource_limits": {"max_total_tokens": run_tokens}},
    })
}

fn costly(mut completion: ModelCompletion, request: &InferRequest) -> ModelCompletion {
    // As a vendor does: no more than was asked for.
    completion.usage.output_tokens = OUTPUT_TOKENS.min(request.max_output_tokens);
    completion
}

/// The head gives a `team` task to its workers in parts. A worker tries what is forbidden, writes once, with its task as argument,
/// and then says so.
fn answer(request: &InferRequest, used: &RunTokenUsage) -> ModelCompletion {
    let task = request.messages.iter().rev().find_map(|message| match message {
        ModelMessage::User { text, .. } => Some(text.clone()),
        ModelMessage::Assistant { .. } | ModelMessage::ToolResult { .. } => None,
    });
    let task = task.unwrap_or_default();
    let latest = request.messages.iter().rev();
    let results = latest
        .take_while(|message| !matches!(message, ModelMessage::User { .. }))
        .filter(|message| matches!(message, ModelMessage::ToolResult { .. }));
    let run: Vec<&str> = task.split(' ').take(2).collect();
    let is_head = task.starts_with("team") && !task.contains("part");
    // Once: what is asked for again after a stop is a new effect of the model's own.
    let noted = request.messages.iter().any(|message| match message {
        ModelMessage::Assistant { calls, .. } => calls.iter().any(|call| {
            call.name == "note"
                && call
                    .arguments
                    .as_ref()
                    .is_ok_and(|said| said.get("task").and_then(Value::as_str) == Some(task.as_str()))
        }),
        ModelMessage::User { .. } | ModelMessage::ToolResult { .. } => false,
    });
    let twice = !noted && task.bytes().last().is_some_and(|last| last % 2 == 0);
    let completion = match (is_head, results.count()) {
        (true, 0) => {
            let part = |n: usize| {
                (
                    "delegate",
                    json!({"task": format!("{task} part {n}"), "to": "hand"}),
                )
            };
            calls(&[part(1), part(2), part(3)])
        }
        (_, 0) if task.len() % 3 == 0 => calls(&[
            (FORBIDDEN, json!({"task": task})),
            ("write", json!({"task": task})),
        ]),
        (_, 0) => calls(&[("write", json!({"task": task}))]),
        // A second effect, after the first one's end: both belong to one host.
        (false, 1) if twice => calls(&[("note", json!({"task": task}))]),
        _ => says(&format!("done: {task}")),
    };
    let completion = costly(completion, request);
    *lock(&used.0).entry(run.join(" ")).or_default() +=
        completion.usage.input_tokens + completion.usage.output_tokens;
    completion
}

/// What a host is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SwarmHostParameters {
    pub(crate) number: u8,
    pub(crate) disk: DiskSpeed,
    pub(crate) drift: i64,
    /// Tokens that one run may use.
    pub(crate) run_tokens: u64,
    /// Every so many questions, its model is overloaded.
    pub(crate) faulty_model: Option<usize>,
}

fn paid() -> NamedBudget {
    NamedBudget {
        day: BudgetAllowance {
            calls: Some(PAID_A_DAY),
            ..BudgetAllowance::default()
        },
        ..NamedBudget::default()
    }
}

/// The parts of a host, and what its models use. `may_ask`: a model may be asked now.
pub(crate) fn rig(
    make: SwarmHostParameters,
    may_ask: impl Fn() -> Result<(), ProviderError> + Send + Sync + 'static,
) -> (Rig, RunTokenUsage) {
    let mut rig = Rig::new(manifest(spec(make.run_tokens)));
    rig.clock.without_threads();
    let used = RunTokenUsage::default();
    let counted = used.clone();
    let model = ScriptedModel::new(move |request, count| {
        may_ask()?;
        if make.faulty_model.is_some_and(|times| count % times == 0) {
            return Err(ScriptedModel::fault(FaultKind::ServerFault, "too many ask"));
        }
        Ok(answer(request, &counted))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig.budgets.tools.insert(PAID.to_owned(), paid());
    rig.runner.read_only(LOOK);
    rig.runner.set("flaky", Behaviour::Flaky(2));
    rig.runner.set("slow", Behaviour::Sleep(SLOW_MS));
    (rig, used)
}

impl SwarmHost {
    pub(crate) fn new(
        make: SwarmHostParameters,
        elsewhere: Arc<dyn RemoteWorkers>,
        facts: SharedHostUserFacts,
    ) -> Self {
        let SwarmHostParameters {
            number, disk, drift, ..
        } = make;
        let (mut rig, used) = rig(make, || Ok(()));
        rig.swarm.elsewhere = Some(elsewhere);
        rig.swarm.token_key = TokenKey([number; 32]);
        let journal = Arc::new(Mutex::new(Arc::clone(&rig.journal)));
        let early: Arc<Mutex<Vec<String>>> = Arc::default();
        let (log, found) = (Arc::clone(&journal), Arc::clone(&early));
        rig.runner.watch(move |request_id, tool| {
            facts.begins(request_id, tool);
            let journal = Arc::clone(&lock(&log));
            let decided = journal.look(|events, _| {
                // The latest ones are at the end.
                events.iter().rev().any(|event| {
                    event.kind == kind::ACTION_APPROVED && event.payload.contains(request_id.as_str())
                })
            });
            // What is without side effects need not wait for the disk.
            if !decided && tool != LOOK {
                lock(&found).push(format!("{tool} of {request_id}"));
            }
        });
        Self {
            rig,
            number,
            disk,
            drift,
            running: None,
            journal,
            early,
            used,
        }
    }

    pub(crate) const fn running(&self) -> Option<&RunningKernel> {
        self.running.as_ref()
    }

    /// Effects that began before their decision was durable.
    pub(crate) fn early(&self) -> Vec<String> {
        lock(&self.early).clone()
    }

    /// The most tokens that models of this host used for one run.
    pub(crate) fn most_used(&self) -> Option<(String, u64)> {
        self.used.by_run().into_iter().max_by_key(|(_, tokens)| *tokens)
    }

    /// Its disk takes so many entries more; none: any number.
    pub(crate) fn room(&self, entries: Option<usize>) {
        match entries {
            Some(entries) => self.rig.journal.fail_after(entries),
            None => self.rig.journal.recover(),
        }
    }

    /// It ends in order: it drains, says so in its journal, and is gone.
    pub(crate) fn end(&mut self) {
        if let Some(running) = &self.running {
            let kernel = running.kernel.clone();
            let _drained = self.ask(async move { kernel.shutdown("the operator ends it", 0).await });
        }
        self.crash();
    }

    /// Its clock is set, as by a person or by a bad server of time.
    pub(crate) fn jump(&self, ms: i64) {
        self.rig.clock.set_off_ms(ms);
    }

    /// Starts it on what its journal has.
    pub(crate) fn start(&mut self) {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let door = if self.number == 0 {
            EntryPoint::launcher("sim")
        } else {
            // As the bus opens it.
            EntryPoint::Peer {
                identity: "swarm team".to_owned(),
                task_id: "team".to_owned(),
                role: Role::Admin,
            }
        };
        // Whoever starts it has made room on its disk.
        self.rig.journal.recover();
        let (kernel, session, desk) = runtime.block_on(async {
            let kernel = self.rig.start().await;
            let session = kernel.open(door).await.expect("a session opens");
            let desk = kernel
                .open(EntryPoint::launcher("desk"))
                .await
                .expect("a session opens");
            (kernel, session.id, desk.id)
        });
        // A start writes as fast as it can: it is not what is looked at.
        if self.disk == DiskSpeed::Slow {
            self.rig.journal.slow();
        }
        self.running = Some(RunningKernel {
            runtime,
            kernel,
            session,
            desk,
        });
    }

    /// Everything in memory is gone; what the journal has committed stays.
    pub(crate) fn crash(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.kernel);
        drop(running.runtime);
        let events = self.rig.journal.look(|events, _| events.len());
        self.rig.journal = Arc::new(self.rig.journal.cut(events));
        *lock(&self.journal) = Arc::clone(&self.rig.journal);
    }

    /// Lets it work: so many turns of its scheduler, or until it waits for time, which then passes; its disk commits so many batches.
    pub(crate) fn work(&self, turns: usize, pass_ms: u64, commits: usize) {
        let Some(running) = &self.running else { return };
        running.runtime.block_on(async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            if pass_ms > 0 {
                tokio::time::sleep(Duration::from_millis(pass_ms)).await;
            }
        });
        self.rig.journal.commit(commits);
        let passed = i64::try_from(pass_ms).unwrap_or(0);
        self.rig.clock.advance_ms(passed + passed * self.drift / 1000);
    }

    /// Does one thing to its end, however slow its disk is; none: it never ends.
    pub(crate) fn ask<T: Send + 'static>(&self, what: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let running = self.running.as_ref()?;
        let asked = running.runtime.spawn(what);
        for _ in 0..2_000 {
            running.runtime.block_on(async {
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
            });
            if asked.is_finished() {
                return running.runtime.block_on(asked).ok(); // silent-ok: a task that panicked is seen by the invariants
            }
            self.rig.journal.commit(1);
        }
        asked.abort();
        None
    }
}
