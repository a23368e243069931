//! `claw.initialize` and `claw.shutdown`: barriers (R25), and the only ones that change the phase.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::{Door, Kernel};
use clawk_proto::method::{InitializeResult, LifecycleState, ShutdownParams, ShutdownResult};
use clawk_proto::rpc::write_result;
use clawk_proto::{ErrorCode, RpcError};

use super::dispatch::Ask;
use super::init::{Asked, capabilities, judge};
use super::{Peer, Phase, Pulse, Run, error};

/// The longest drain that `claw.shutdown` may ask for.
const MAX_DRAIN_MS: u64 = 24 * 60 * 60 * 1000;
/// How long answers of drained calls may take to reach the outbox before the barrier lifts.
const SETTLE: Duration = Duration::from_secs(1);
/// What is kept of a client's name.
const CLIENT_CHARS: usize = 128;

impl Peer {
    /// `claw.initialize` (CKP §9.3.1, R1–R4). Refused, it changes nothing.
    pub(super) async fn initialize(&mut self, ask: Ask<'_>) {
        self.flush();
        let asked = match judge(ask.params) {
            Ok(asked) => asked,
            Err(error) => return self.refuse(&ask, &error),
        };
        if let Err(e) = self.factory.check(&asked.params.manifest).await {
            return self.refuse(&ask, &error::from_init(&e));
        }
        self.retire("initialized again", self.drain_timeout_ms).await;
        let run = match self.begin(&asked).await {
            Ok(run) => Arc::new(run),
            Err(error) => return self.refuse(&ask, &error),
        };
        let result = InitializeResult {
            protocol_version: asked.version.clone(),
            agent_info: run.kernel.agent_info(),
            conformance_level: format!("level-{}", run.kernel.level()),
            capabilities: capabilities(&asked, &run.kernel),
        };
        ask.place
            .put(&mut self.out, |out| write_result(out, &ask.id, &result));
        self.flush();
        // After the answer: no heartbeat and no question may overtake it.
        self.pulse.send_replace(Some(Pulse {
            kernel: run.kernel.clone(),
            notify_questions: asked.notify_questions,
        }));
        self.phase = Phase::Running(run);
    }

    async fn begin(&mut self, asked: &Asked) -> Result<Run, RpcError> {
        let manifest = &asked.params.manifest;
        let kernel = self
            .factory
            .start(Some(manifest))
            .await
            .map_err(|e| error::from_init(&e))?;
        let client: String = asked.params.client_info.name.chars().take(CLIENT_CHARS).collect();
        let session = match kernel.open(Door::launcher(&client)).await {
            Ok(session) => session,
            Err(e) => {
                kernel
                    .shutdown("no session can be opened", self.drain_timeout_ms)
                    .await;
                return Err(error::from_kernel(&e));
            }
        };
        self.current.set(kernel.clone());
        Ok(Run {
            kernel,
            session,
            client,
        })
    }

    /// `claw.shutdown` (CKP §9.3.1): drains, then answers; the process stays for `claw.status` and a new `claw.initialize`.
    pub(super) async fn shutdown(&mut self, ask: Ask<'_>) {
        self.flush();
        let params: ShutdownParams = match error::decode("claw.shutdown", ask.params) {
            Ok(params) => params,
            Err(error) => return self.refuse(&ask, &error),
        };
        let reason = params.reason.as_deref().unwrap_or("claw.shutdown");
        let timeout_ms = params
            .timeout_ms
            .unwrap_or(self.drain_timeout_ms)
            .min(MAX_DRAIN_MS);
        let Some(drained) = self.retire(reason, timeout_ms).await else {
            let error = RpcError::new(ErrorCode::InvalidRequest, "the agent was shut down already");
            return self.refuse(&ask, &error);
        };
        ask.place.put(&mut self.out, |out| {
            write_result(out, &ask.id, &ShutdownResult { drained })
        });
    }

    /// Ends the run, if there is one: no heartbeat from here on, what is in flight is drained, its answers are in the outbox.
    async fn retire(&mut self, reason: &str, timeout_ms: u64) -> Option<bool> {
        let Phase::Running(run) = &self.phase else {
            return None;
        };
        let kernel = run.kernel.clone();
        self.pulse.send_replace(None);
        self.phase = Phase::Stopped(kernel.clone());
        let drained = kernel.shutdown(reason, timeout_ms).await;
        self.settle().await;
        Some(drained)
    }

    /// Waits for the tasks, whose calls the kernel has ended; not for ever, should one of them be stuck.
    async fn settle(&mut self) {
        let tasks = mem::take(&mut self.tasks);
        tasks.close();
        if tokio::time::timeout(SETTLE, tasks.wait()).await.is_err() {
            tracing::warn!(left = tasks.len(), "work goes on after the drain");
        }
    }

    /// The end of the connection: an orderly shutdown (R4). Whether all was drained.
    pub(crate) async fn finish(&mut self, reason: &str) -> bool {
        let drained = match mem::replace(&mut self.phase, Phase::Fresh) {
            Phase::Fresh => true,
            Phase::Running(run) => self.end(&run.kernel, reason).await,
            // A barrier that was broken off by a termination signal has left its work here.
            Phase::Stopped(kernel) if kernel.status().state != LifecycleState::Stopped => {
                self.end(&kernel, reason).await
            }
            Phase::Stopped(_) => true,
        };
        self.settle().await;
        self.flush();
        drained
    }

    async fn end(&mut self, kernel: &Kernel, reason: &str) -> bool {
        self.pulse.send_replace(None);
        kernel.shutdown(reason, self.drain_timeout_ms).await
    }
}
