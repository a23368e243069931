//! One host: a kernel in a runtime of its own, whose end is a crash.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Completion, Elsewhere, InferRequest, Message, TokenKey};
use clawk_kernel::testing::{MemJournal, Rig, ScriptedModel, calls, manifest, says};
use clawk_kernel::{Door, Kernel, Role, kind};
use clawk_proto::SessionId;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// Tokens that one run may use.
pub(crate) const RUN_TOKENS: u64 = 40_000;
/// Tokens that an inference uses here.
const OUTPUT_TOKENS: u64 = 2_400;
/// A tool that a rule denies.
pub(crate) const FORBIDDEN: &str = "forbidden";

/// How fast a host's disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    Fast,
    /// What is written is durable only later, and lost by a crash before.
    Slow,
}

/// A host. Its journal, its tools' memory of what was done and its clock outlive crashes.
pub(crate) struct Host {
    pub(crate) rig: Rig,
    number: u8,
    disk: Disk,
    /// Its clock runs so many thousandths faster or slower.
    drift: i64,
    running: Option<Running>,
    /// Where effects are looked up when they begin.
    journal: Arc<Mutex<Arc<MemJournal>>>,
    /// Effects that began before their decision was durable.
    early: Arc<Mutex<Vec<String>>>,
    /// Tokens that models of this host used, by run.
    used: Arc<Mutex<BTreeMap<String, u64>>>,
}

pub(crate) struct Running {
    pub(crate) runtime: Runtime,
    pub(crate) kernel: Kernel,
    /// Who delegates here.
    pub(crate) session: SessionId,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spec() -> Value {
    let tool = |name: &str| json!({"name": name, "description": name, "input_schema": {"type": "object"}});
    json!({
        "tools": [tool("write"), tool(FORBIDDEN)],
        "policies": [{"name": "policy", "rules": [
            {"id": "never", "action": "deny", "scope": "tool", "match": {"name": FORBIDDEN}},
            {"id": "all", "action": "allow", "scope": "all"},
        ]}],
        "swarm": {"name": "team", "topology": "leader-worker",
            "agents": [{"identity_ref": "lead", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 3}],
            "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
            "aggregation": {"strategy": "leader-decides"}, "resource_limits": {"max_total_tokens": RUN_TOKENS}},
    })
}

fn costly(mut completion: Completion) -> Completion {
    completion.usage.output_tokens = OUTPUT_TOKENS;
    completion
}

/// The head gives a `team` task to its workers in parts. A worker tries what is forbidden, writes once, with its task as argument,
/// and then says so.
fn answer(request: &InferRequest, used: &Mutex<BTreeMap<String, u64>>) -> Completion {
    let task = request.messages.iter().rev().find_map(|message| match message {
        Message::User { text, .. } => Some(text.clone()),
        Message::Assistant { .. } | Message::ToolResult { .. } => None,
    });
    let task = task.unwrap_or_default();
    let results = request.messages.iter();
    let results = results.filter(|message| matches!(message, Message::ToolResult { .. }));
    let run: Vec<&str> = task.split(' ').take(2).collect();
    let completion = match (task.starts_with("team"), results.count()) {
        (true, 0) if !task.contains("part") => {
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
        _ => says(&format!("done: {task}")),
    };
    let completion = costly(completion);
    *lock(used).entry(run.join(" ")).or_default() +=
        completion.usage.input_tokens + completion.usage.output_tokens;
    completion
}

impl Host {
    pub(crate) fn new(number: u8, elsewhere: Arc<dyn Elsewhere>, disk: Disk, drift: i64) -> Self {
        let mut rig = Rig::new(manifest(spec()));
        let used: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let counted = Arc::clone(&used);
        let model = ScriptedModel::new(move |request, _| Ok(answer(request, &counted)));
        rig.models.insert("model".to_owned(), Arc::new(model));
        rig.swarm.elsewhere = Some(elsewhere);
        rig.swarm.token_key = TokenKey([number; 32]);
        let journal = Arc::new(Mutex::new(Arc::clone(&rig.journal)));
        let early: Arc<Mutex<Vec<String>>> = Arc::default();
        let (log, found) = (Arc::clone(&journal), Arc::clone(&early));
        rig.runner.watch(move |request_id, tool| {
            let journal = Arc::clone(&lock(&log));
            let decided = journal.events().iter().any(|event| {
                event.kind == kind::ACTION_APPROVED && event.payload.contains(request_id.as_str())
            });
            if !decided {
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

    pub(crate) const fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// Effects that began before their decision was durable.
    pub(crate) fn early(&self) -> Vec<String> {
        lock(&self.early).clone()
    }

    /// The most tokens that models of this host used for one run.
    pub(crate) fn most_used(&self) -> Option<(String, u64)> {
        let used = lock(&self.used);
        let most = used.iter().max_by_key(|(_, tokens)| **tokens);
        most.map(|(run, tokens)| (run.clone(), *tokens))
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
            Door::launcher("sim")
        } else {
            // As the bus opens it.
            Door::Peer {
                identity: "swarm team".to_owned(),
                task_id: "team".to_owned(),
                role: Role::Admin,
            }
        };
        let (kernel, session) = runtime.block_on(async {
            let kernel = self.rig.start().await;
            let session = kernel.open(door).await.expect("a session opens");
            (kernel, session.id)
        });
        // A start writes as fast as it can: it is not what is looked at.
        if self.disk == Disk::Slow {
            self.rig.journal.slow();
        }
        self.running = Some(Running {
            runtime,
            kernel,
            session,
        });
    }

    /// Everything in memory is gone; what the journal has committed stays.
    pub(crate) fn crash(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.kernel);
        drop(running.runtime);
        let events = self.rig.journal.events().len();
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
