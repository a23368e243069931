//! One host: a kernel in a runtime of its own, whose end is a crash.

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::TokenKey;
use clawk_kernel::ports::{Elsewhere, Message};
use clawk_kernel::testing::{Rig, ScriptedModel, calls, manifest, says};
use clawk_kernel::{Door, Kernel};
use clawk_proto::SessionId;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

/// Tokens that one run may use.
pub(crate) const RUN_TOKENS: u64 = 40_000;

/// A host. Its journal, its tools' memory of what was done and its clock outlive crashes.
pub(crate) struct Host {
    pub(crate) rig: Rig,
    running: Option<Running>,
}

pub(crate) struct Running {
    pub(crate) runtime: Runtime,
    pub(crate) kernel: Kernel,
    /// Who delegates here.
    pub(crate) session: SessionId,
}

fn spec() -> Value {
    json!({
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}],
        "swarm": {"name": "team", "topology": "leader-worker",
            "agents": [{"identity_ref": "lead", "role": "leader"}, {"identity_ref": "hand", "role": "worker", "count": 3}],
            "coordination": {"message_passing": "queue", "backend": "in-process", "concurrency": {}},
            "aggregation": {"strategy": "leader-decides"}, "resource_limits": {"max_total_tokens": RUN_TOKENS}},
    })
}

/// A worker writes once, with its task as argument, and then says so.
fn worker() -> ScriptedModel {
    ScriptedModel::new(|request, _| {
        let task = request.messages.iter().rev().find_map(|message| match message {
            Message::User { text, .. } => Some(text.clone()),
            Message::Assistant { .. } | Message::ToolResult { .. } => None,
        });
        let task = task.unwrap_or_default();
        let written = request
            .messages
            .iter()
            .any(|message| matches!(message, Message::ToolResult { .. }));
        Ok(if written {
            says(&format!("done: {task}"))
        } else {
            calls(&[("write", json!({"task": task}))])
        })
    })
}

impl Host {
    pub(crate) fn new(number: u8, elsewhere: Option<Arc<dyn Elsewhere>>) -> Self {
        let mut rig = Rig::new(manifest(spec()));
        rig.models.insert("model".to_owned(), Arc::new(worker()));
        rig.swarm.elsewhere = elsewhere;
        rig.swarm.token_key = TokenKey([number; 32]);
        Self { rig, running: None }
    }

    pub(crate) const fn running(&self) -> Option<&Running> {
        self.running.as_ref()
    }

    /// Starts it on what its journal has.
    pub(crate) fn start(&mut self) {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let (kernel, session) = runtime.block_on(async {
            let kernel = self.rig.start().await;
            let session = kernel.open(Door::launcher("sim")).await.expect("a session opens");
            (kernel, session.id)
        });
        self.running = Some(Running {
            runtime,
            kernel,
            session,
        });
    }

    /// Everything in memory is gone; what the journal has taken stays.
    pub(crate) fn crash(&mut self) {
        let Some(running) = self.running.take() else {
            return;
        };
        drop(running.kernel);
        drop(running.runtime);
        let events = self.rig.journal.events().len();
        self.rig.journal = Arc::new(self.rig.journal.cut(events));
    }

    /// Lets it work: so many turns of its scheduler, or until it waits for time, which then passes.
    pub(crate) fn work(&self, turns: usize, pass_ms: u64) {
        let Some(running) = &self.running else { return };
        running.runtime.block_on(async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            if pass_ms > 0 {
                tokio::time::sleep(Duration::from_millis(pass_ms)).await;
            }
        });
        self.rig.clock.advance_ms(i64::try_from(pass_ms).unwrap_or(0));
    }
}
