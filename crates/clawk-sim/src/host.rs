//! One host: a kernel in its own runtime. Dropping the runtime is a crash.

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

/// How many tokens one inference uses.
const OUTPUT_TOKENS: u64 = 2_400;
/// A tool that a rule denies.
pub(crate) const FORBIDDEN: &str = "forbidden";

/// A tool that needs a person's approval.
pub(crate) const DANGER: &str = "danger";
/// A tool that may run [`PAID_A_DAY`] times per day.
pub(crate) const PAID: &str = "paid";
/// The daily limit of [`PAID`].
pub(crate) const PAID_A_DAY: u64 = 3;
/// How long a question stays open, in seconds.
const ASKED_S: u64 = 2;
/// A tool without side effects.
pub(crate) const LOOK: &str = "look";
/// How long the tool `slow` takes, in milliseconds.
const SLOW_MS: u64 = 60;

/// How fast a host's disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskSpeed {
    Fast,
    /// Writes become durable later; a crash before that loses them.
    Slow,
}

/// A host. Its journal, its tools' records of effects and its clock survive crashes.
pub(crate) struct SwarmHost {
    pub(crate) rig: Rig,
    number: u8,
    disk: DiskSpeed,
    /// The clock's drift in thousandths; positive is faster.
    drift: i64,
    running: Option<RunningKernel>,
    /// The journal in which a beginning effect looks up its decision.
    journal: Arc<Mutex<Arc<MemJournal>>>,
    /// Effects that began before their decision was durable.
    early: Arc<Mutex<Vec<String>>>,
    used: RunTokenUsage,
}

/// Tokens that a host's models used, by run.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTokenUsage(Arc<Mutex<BTreeMap<String, u64>>>);

impl RunTokenUsage {
    /// Tokens by run. Clients' messages are not counted, because they belong to no run.
    pub(crate) fn by_run(&self) -> BTreeMap<String, u64> {
        let mut used = lock_mutex(&self.0).clone();
        used.retain(|run, _| !run.starts_with("chat"));
        used
    }
}

pub(crate) struct RunningKernel {
    pub(crate) runtime: Runtime,
    pub(crate) kernel: Kernel,
    /// The session in which the client calls tools.
    pub(crate) desk: SessionId,
    /// The session that delegates tasks.
    pub(crate) session: SessionId,
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn agent_spec(run_tokens: u64) -> Value {
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

fn charge_output_tokens(mut completion: ModelCompletion, request: &InferRequest) -> ModelCompletion {
    // As real vendors do: no more than the requested maximum.
    completion.usage.output_tokens = OUTPUT_TOKENS.min(request.max_output_tokens);
    completion
}

/// The simulated model. The head splits a `team` task among its workers. A worker tries the forbidden tool, writes once with its
/// task as argument, and then reports.
fn model_answer(request: &InferRequest, used: &RunTokenUsage) -> ModelCompletion {
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
    // Only once: after a stop, a repeated request would be a new effect of the model.
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
        // A second effect after the first one ended: both must run on the same host.
        (false, 1) if twice => calls(&[("note", json!({"task": task}))]),
        _ => says(&format!("done: {task}")),
    };
    let completion = charge_output_tokens(completion, request);
    *lock_mutex(&used.0).entry(run.join(" ")).or_default() +=
        completion.usage.input_tokens + completion.usage.output_tokens;
    completion
}

/// The parameters of a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SwarmHostParameters {
    pub(crate) number: u8,
    pub(crate) disk: DiskSpeed,
    pub(crate) drift: i64,
    /// The token budget of one run.
    pub(crate) run_tokens: u64,
    /// Every n-th request finds the model overloaded.
    pub(crate) faulty_model: Option<usize>,
}

fn paid_budget() -> NamedBudget {
    NamedBudget {
        day: BudgetAllowance {
            calls: Some(PAID_A_DAY),
            ..BudgetAllowance::default()
        },
        ..NamedBudget::default()
    }
}

/// Builds the parts of a host and the record of its model usage. `may_ask` decides whether a model can be asked now.
pub(crate) fn build_rig(
    make: SwarmHostParameters,
    may_ask: impl Fn() -> Result<(), ProviderError> + Send + Sync + 'static,
) -> (Rig, RunTokenUsage) {
    let mut rig = Rig::new(manifest(agent_spec(make.run_tokens)));
    rig.clock.without_threads();
    let used = RunTokenUsage::default();
    let counted = used.clone();
    let model = ScriptedModel::new(move |request, count| {
        may_ask()?;
        if make.faulty_model.is_some_and(|times| count % times == 0) {
            return Err(ScriptedModel::fault(FaultKind::ServerFault, "too many ask"));
        }
        Ok(model_answer(request, &counted))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig.budgets.tools.insert(PAID.to_owned(), paid_budget());
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
        let (mut rig, used) = build_rig(make, || Ok(()));
        rig.swarm.elsewhere = Some(elsewhere);
        rig.swarm.token_key = TokenKey([number; 32]);
        let journal = Arc::new(Mutex::new(Arc::clone(&rig.journal)));
        let early: Arc<Mutex<Vec<String>>> = Arc::default();
        let (log, found) = (Arc::clone(&journal), Arc::clone(&early));
        rig.runner.watch(move |request_id, tool| {
            facts.record_effect_begin(request_id, tool);
            let journal = Arc::clone(&lock_mutex(&log));
            let decided = journal.look(|events, _| {
                // Search from the end, where the latest events are.
                events.iter().rev().any(|event| {
                    event.kind == kind::ACTION_APPROVED && event.payload.contains(request_id.as_str())
                })
            });
            // A tool without side effects need not wait for the disk.
            if !decided && tool != LOOK {
                lock_mutex(&found).push(format!("{tool} of {request_id}"));
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

    pub(crate) const fn running_kernel(&self) -> Option<&RunningKernel> {
        self.running.as_ref()
    }

    /// Effects that began before their decision was durable.
    pub(crate) fn early_effects(&self) -> Vec<String> {
        lock_mutex(&self.early).clone()
    }

    /// The run for which this host's models used the most tokens, and how many.
    pub(crate) fn most_used(&self) -> Option<(String, u64)> {
        self.used.by_run().into_iter().max_by_key(|(_, tokens)| *tokens)
    }

    /// How many more entries the disk can store; `None`: unlimited.
    pub(crate) fn set_disk_capacity(&self, entries: Option<usize>) {
        match entries {
            Some(entries) => self.rig.journal.fail_after(entries),
            None => self.rig.journal.recover(),
        }
    }

    /// Shuts the host down in order: it drains, records this in its journal, and stops.
    pub(crate) fn end_orderly(&mut self) {
        if let Some(running) = &self.running {
            let kernel = running.kernel.clone();
            let _drained = self.run_to_end(async move { kernel.shutdown("the operator ends it", 0).await });
        }
        self.crash();
    }

    /// Sets the host's clock, as a person or a bad time server could.
    pub(crate) fn set_clock(&self, ms: i64) {
        self.rig.clock.set_off_ms(ms);
    }

    /// Starts the host on its journal.
    pub(crate) fn start(&mut self) {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let door = if self.number == 0 {
            EntryPoint::from_launcher("sim")
        } else {
            // As the real bus opens it.
            EntryPoint::Peer {
                identity: "swarm team".to_owned(),
                task_id: "team".to_owned(),
                role: Role::Admin,
            }
        };
        // The caller has made space on the disk.
        self.rig.journal.recover();
        let (kernel, session, desk) = runtime.block_on(async {
            let kernel = self.rig.start().await;
            let session = kernel.open_session(door).await.expect("a session opens");
            let desk = kernel
                .open_session(EntryPoint::from_launcher("desk"))
                .await
                .expect("a session opens");
            (kernel, session.id, desk.id)
        });
        // A start writes at full speed: it is not the subject of the test.
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

    /// Crashes the host: all memory is lost, and the committed journal stays.
    pub(crate) fn crash(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.kernel);
        drop(running.runtime);
        let events = self.rig.journal.look(|events, _| events.len());
        self.rig.journal = Arc::new(self.rig.journal.cut(events));
        *lock_mutex(&self.journal) = Arc::clone(&self.rig.journal);
    }

    /// Lets the host work for `turns` scheduler turns, or until it only waits for time; then `pass_ms` pass. Its disk commits
    /// `commits` batches.
    pub(crate) fn run_turns(&self, turns: usize, pass_ms: u64, commits: usize) {
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

    /// Runs one future to its end, however slow the disk is. `None`: it never ends.
    pub(crate) fn run_to_end<T: Send + 'static>(
        &self,
        what: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
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
