//! `claw.initialize` and `claw.shutdown`. They are barriers (R25) and the only methods that change the phase. The launcher's
//! connection owns the agent; other connections only join and leave it (R38).

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::EntryPoint;
use clawk_proto::method::{InitializeResult, LifecycleState, ShutdownParams, ShutdownResult, ShutdownScope};
use clawk_proto::rpc::write_result;
use clawk_proto::{ErrorCode, RpcError};

use super::dispatch::AdmittedRequest;
use super::init::{InitializeRequest, capabilities, judge};
use super::{ClientRun, ConnectionPhase, RpcConnection, ServedRun};
use crate::access::Scope;
use crate::error::ckp as error;

/// The longest drain that `claw.shutdown` may request, milliseconds.
const MAX_DRAIN_MS: u64 = 24 * 60 * 60 * 1000;
/// How long answers of drained calls may take to reach the outbox before the barrier ends.
const SETTLE: Duration = Duration::from_secs(1);
/// After its input has ended, how long a client may wait for its answers, milliseconds. The answers stay stored under their request
/// ids.
const LINGER_MS: u64 = 5_000;
/// How long a request waits for the run in which its client continues.
const NEXT_RUN: Duration = Duration::from_secs(2);
/// The longest client name that is kept, characters.
const CLIENT_CHARS: usize = 128;

impl RpcConnection {
    /// `claw.initialize` (CKP §9.3.1, R1–R4). A refused one changes nothing.
    pub(super) async fn handle_initialize(&mut self, ask: AdmittedRequest<'_>) {
        self.flush();
        let asked = match judge(ask.params) {
            Ok(asked) => asked,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        if let Err(e) = self.host.factory().check_manifest(&asked.params.manifest).await {
            return self.refuse_request(&ask, &error::from_init(&e));
        }
        let drain_ms = self.host.options().drain_timeout_ms;
        if self.rights.owns_host() {
            self.end_run("initialized again", drain_ms).await;
        } else {
            self.end_session(drain_ms).await;
        }
        let run = match self.begin_run(&asked).await {
            Ok(run) => Arc::new(run),
            Err(error) => return self.refuse_request(&ask, &error),
        };
        let result = InitializeResult {
            protocol_version: asked.version.clone(),
            agent_info: run.kernel.agent_info(),
            conformance_level: format!("level-{}", run.kernel.conformance_level()),
            capabilities: capabilities(&asked, &run.kernel),
        };
        ask.place
            .put_answer(&mut self.out, |out| write_result(out, &ask.id, &result));
        self.flush();
        // This comes after the answer: no heartbeat or question may overtake the answer.
        self.pulse.send_replace(Some(ServedRun {
            kernel: run.kernel.clone(),
            notify_questions: asked.notify_questions,
            owed: run.owed.clone(),
        }));
        self.phase = ConnectionPhase::Running(run);
    }

    async fn begin_run(&mut self, asked: &InitializeRequest) -> Result<ClientRun, RpcError> {
        // The manifest of other clients only names the agent that they expect (R3).
        let wire = self.rights.owns_host().then_some(&asked.params.manifest);
        let kernel = self
            .host
            .start_agent(wire)
            .await
            .map_err(|e| error::from_init(&e))?;
        let named: String = asked.params.client_info.name.chars().take(CLIENT_CHARS).collect();
        let client = self.rights.client_name(&named);
        let door = EntryPoint::Rpc {
            client: client.clone(),
            role: self.rights.role(),
        };
        let session = match kernel.open_session(door).await {
            Ok(session) => session,
            Err(e) => {
                if self.rights.owns_host() {
                    self.host
                        .end_agent("no session can be opened", self.host.options().drain_timeout_ms)
                        .await;
                }
                return Err(error::from_kernel(&e));
            }
        };
        Ok(ClientRun {
            kernel,
            session,
            client,
            owed: asked.takes_reports.then(Arc::default),
        })
    }

    /// Moves the client to a new run after the agent restarted without an order of this client. The client gets a new session
    /// there. If the new run is not ready, nothing changes.
    pub(super) async fn go_on(&mut self) {
        let ConnectionPhase::Running(run) = &self.phase else {
            return;
        };
        let before = Arc::clone(run);
        let until = tokio::time::Instant::now() + NEXT_RUN;
        let kernel = loop {
            match self.host.current_kernel().get() {
                Some(kernel) if kernel.status().state == LifecycleState::Ready => break kernel,
                Some(_) | None if tokio::time::Instant::now() >= until => return,
                Some(_) | None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        let door = EntryPoint::Rpc {
            client: before.client.clone(),
            role: self.rights.role(),
        };
        let session = match kernel.open_session(door).await {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "a client can't go on in the next run yet");
                return;
            }
        };
        let notify_questions = self
            .pulse
            .borrow()
            .as_ref()
            .is_some_and(|pulse| pulse.notify_questions);
        let run = ClientRun {
            kernel,
            session,
            client: before.client.clone(),
            owed: before.owed.clone(),
        };
        self.pulse.send_replace(Some(ServedRun {
            kernel: run.kernel.clone(),
            notify_questions,
            owed: run.owed.clone(),
        }));
        self.phase = ConnectionPhase::Running(Arc::new(run));
    }

    /// `claw.shutdown` (CKP §9.3.1): drains, then answers. The connection stays open for `claw.status` and a new `claw.initialize`.
    pub(super) async fn handle_shutdown(&mut self, ask: AdmittedRequest<'_>) {
        self.flush();
        let params: ShutdownParams = match error::decode("claw.shutdown", ask.params) {
            Ok(params) => params,
            Err(error) => return self.refuse_request(&ask, &error),
        };
        let ends_agent = match params.scope {
            Some(ShutdownScope::Host) if !self.rights.has_scope(Scope::Admin) => {
                return self.refuse_request(&ask, &error::scope_missing(Scope::Admin));
            }
            Some(ShutdownScope::Host) => true,
            Some(ShutdownScope::Connection) => false,
            None => self.rights.owns_host(),
        };
        let reason = params.reason.as_deref().unwrap_or("claw.shutdown");
        let timeout_ms = params
            .timeout_ms
            .unwrap_or(self.host.options().drain_timeout_ms)
            .min(MAX_DRAIN_MS);
        let ended = if ends_agent {
            self.end_run(reason, timeout_ms).await
        } else {
            self.end_session(timeout_ms).await
        };
        let Some(drained) = ended else {
            let error = RpcError::new(ErrorCode::InvalidRequest, "the agent was shut down already");
            return self.refuse_request(&ask, &error);
        };
        ask.place.put_answer(&mut self.out, |out| {
            write_result(out, &ask.id, &ShutdownResult { drained })
        });
        if ends_agent && !self.rights.owns_host() {
            self.flush();
            self.host.request_stop();
        }
    }

    /// Ends the agent's run, if this connection joined one: heartbeats stop, work in flight is drained, its answers are in the
    /// outbox.
    async fn end_run(&mut self, reason: &str, timeout_ms: u64) -> Option<bool> {
        let ConnectionPhase::Running(run) = &self.phase else {
            return None;
        };
        let kernel = run.kernel.clone();
        self.pulse.send_replace(None);
        self.phase = ConnectionPhase::Stopped(kernel);
        let drained = self.host.end_agent(reason, timeout_ms).await;
        self.wait_tasks().await;
        Some(drained)
    }

    /// Ends this connection's own session and waits for its work for at most `timeout_ms`. The agent continues, and so does longer
    /// work; its answer is stored under its request id.
    async fn end_session(&mut self, timeout_ms: u64) -> Option<bool> {
        let ConnectionPhase::Running(run) = &self.phase else {
            return None;
        };
        let (kernel, session) = (run.kernel.clone(), run.session.id);
        self.pulse.send_replace(None);
        self.phase = ConnectionPhase::Stopped(kernel.clone());
        let tasks = mem::take(&mut self.tasks);
        tasks.close();
        let drained = tokio::time::timeout(Duration::from_millis(timeout_ms), tasks.wait()).await;
        self.host.spawn_detached(async move {
            tasks.wait().await;
            kernel.end_session(session, "completed").await;
        });
        Some(drained.is_ok())
    }

    /// Waits for the tasks whose calls the kernel has ended. The wait is limited, in case one of them is stuck.
    async fn wait_tasks(&mut self) {
        let tasks = mem::take(&mut self.tasks);
        tasks.close();
        if tokio::time::timeout(SETTLE, tasks.wait()).await.is_err() {
            tracing::warn!(left = tasks.len(), "work goes on after the drain");
        }
    }

    /// Ends the connection. For the launcher's connection, shuts the agent down in order (R4). `reads`: the client may still read
    /// its answers. Returns whether everything was drained.
    pub(crate) async fn end_connection(&mut self, reason: &str, reads: bool) -> bool {
        let drain_ms = self.host.options().drain_timeout_ms;
        let drained = if !self.rights.owns_host() {
            let linger_ms = if reads { LINGER_MS.min(drain_ms) } else { 0 };
            match self.end_session(linger_ms).await {
                Some(drained) => drained,
                // A client that sent orders but never initialized.
                None => self.wait_remaining(linger_ms).await,
            }
        } else {
            match &self.phase {
                ConnectionPhase::Fresh => true,
                ConnectionPhase::Running(_) => self.end_run(reason, drain_ms).await.unwrap_or(true),
                // A termination signal interrupted a barrier and left its work unfinished.
                ConnectionPhase::Stopped(kernel) if kernel.status().state != LifecycleState::Stopped => {
                    let drained = self.host.end_agent(reason, drain_ms).await;
                    self.wait_tasks().await;
                    drained
                }
                ConnectionPhase::Stopped(_) => true,
            }
        };
        self.flush();
        drained
    }

    async fn wait_remaining(&mut self, timeout_ms: u64) -> bool {
        let tasks = mem::take(&mut self.tasks);
        tasks.close();
        let ended = tokio::time::timeout(Duration::from_millis(timeout_ms), tasks.wait()).await;
        ended.is_ok()
    }
}
