//! The host (R38): owns one agent, starts it and ends it. Doors open and close while the agent runs.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as Held, PoisonError};
use std::time::Duration;

use clawk_kernel::time::{Clock, SystemClock};
use clawk_kernel::{Kernel, StartError};
use clawk_proto::method::LifecycleState;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::a2a::tasks::AgentTasks;
use crate::agent::{AgentFactory, CurrentKernel, InitFailure};
use crate::channels::Channels;

/// After the agent has ended, how long the host waits for the remaining work of connections.
const LEFT: Duration = Duration::from_secs(5);
/// How long the host keeps running after an order to restart, so that the answer gets out.
const ANSWERED: Duration = Duration::from_millis(200);

/// Settings of connections.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest message, bytes (R24).
    pub max_message_bytes: usize,
    /// How long work in flight may take when the host ends, or when `claw.shutdown` gives no time, milliseconds.
    pub drain_timeout_ms: u64,
    /// Gives the timestamps of heartbeats.
    pub clock: Arc<dyn Clock>,
    /// Why the host can't restart itself. `None`: its runner starts it again when [`AgentHost::is_restarting`].
    pub cant_restart: Option<&'static str>,
}

impl Default for Options {
    /// 8 MiB messages, 30 s of draining, the machine's clock.
    fn default() -> Self {
        Self {
            max_message_bytes: 8 * 1024 * 1024,
            drain_timeout_ms: 30_000,
            clock: Arc::new(SystemClock::default()),
            cant_restart: Some("whoever started the agent has to start it again"),
        }
    }
}

/// One agent with any number of doors; cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentHost(Arc<AgentHostInner>);

#[derive(Debug)]
struct AgentHostInner {
    factory: Arc<dyn AgentFactory>,
    current: CurrentKernel,
    options: Options,
    /// Held while the agent is started or ended.
    moving: Mutex<()>,
    /// Cancelled when an authorized client has asked the host to stop.
    over: CancellationToken,
    /// Work that continues after its connection has ended.
    left: TaskTracker,
    tasks: AgentTasks,
    /// An A2A endpoint is enabled (R23).
    serves_tasks: AtomicBool,
    channels: Held<Option<Arc<dyn Channels>>>,
    /// The id of this run of the host.
    run: Uuid,
    /// The host is to start again after it has stopped.
    restarts: AtomicBool,
}

impl AgentHost {
    /// A host whose agents come from `factory`. No agent runs yet.
    #[must_use]
    pub fn new(factory: Arc<dyn AgentFactory>, options: Options) -> Self {
        let run = options.clock.new_uuid();
        Self(Arc::new(AgentHostInner {
            run,
            restarts: AtomicBool::new(false),
            factory,
            current: CurrentKernel::default(),
            options,
            moving: Mutex::default(),
            over: CancellationToken::new(),
            left: TaskTracker::new(),
            tasks: AgentTasks::default(),
            serves_tasks: AtomicBool::new(false),
            channels: Held::default(),
        }))
    }

    /// The tasks of other agents.
    pub(crate) fn tasks(&self) -> &AgentTasks {
        &self.0.tasks
    }

    /// Whether an A2A endpoint is enabled; then `claw.task.*` is served too (R23).
    pub(crate) fn serves_tasks(&self) -> bool {
        self.0.serves_tasks.load(Ordering::SeqCst)
    }

    /// Enables an A2A endpoint.
    pub(crate) fn serve_tasks(&self) {
        self.0.serves_tasks.store(true, Ordering::SeqCst);
    }

    /// The current run of the agent.
    #[must_use]
    pub fn current_kernel(&self) -> &CurrentKernel {
        &self.0.current
    }

    /// Sets the channels of the agent. Replaces the earlier ones.
    pub fn set_channels(&self, channels: Option<Arc<dyn Channels>>) {
        *self.0.channels.lock().unwrap_or_else(PoisonError::into_inner) = channels;
    }

    /// The agent's channels, if they are connected.
    pub(crate) fn channels(&self) -> Option<Arc<dyn Channels>> {
        self.0
            .channels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The settings of connections.
    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn factory(&self) -> &dyn AgentFactory {
        &*self.0.factory
    }

    /// Returns the running agent, or starts one. `wire` is the manifest of the client that owns the agent.
    ///
    /// # Errors
    /// The agent can't start, or the host is ending.
    pub async fn start_agent(&self, wire: Option<&Value>) -> Result<Kernel, InitFailure> {
        let _alone = self.0.moving.lock().await;
        if self.0.over.is_cancelled() {
            let ending = "the host is ending".to_owned();
            return Err(InitFailure::Start(StartError::Unserved(vec![ending])));
        }
        if let Some(running) = self.0.current.get()
            && running.status().state != LifecycleState::Stopped
        {
            return Ok(running);
        }
        let kernel = self.0.factory.start_agent(wire).await?;
        self.0.current.set(kernel.clone());
        Ok(kernel)
    }

    /// Ends the running agent and starts the next run. `between` runs while no agent runs; nobody can start one meanwhile. If no
    /// agent runs, only `between` runs.
    ///
    /// # Errors
    /// The next run can't start, or the host is ending: then no agent runs.
    pub async fn next_run(
        &self,
        reason: &str,
        between: impl Future<Output = ()> + Send,
    ) -> Result<(), InitFailure> {
        let _alone = self.0.moving.lock().await;
        let running = self.0.current.get();
        let running = running.filter(|kernel| kernel.status().state != LifecycleState::Stopped);
        if let Some(kernel) = &running {
            kernel.shutdown(reason, self.0.options.drain_timeout_ms).await;
        }
        between.await;
        if running.is_some() && !self.0.over.is_cancelled() {
            self.0.current.set(self.0.factory.start_agent(None).await?);
        }
        Ok(())
    }

    /// Restarts an agent whose state was unreachable or was taken over. Its clients continue in the next run. Does nothing if no
    /// run can continue.
    ///
    /// # Errors
    /// The agent can't start yet. Call this again to continue.
    pub async fn renew_agent(&self, reason: &str) -> Result<(), InitFailure> {
        let _alone = self.0.moving.lock().await;
        let Some(kernel) = self.0.current.get() else {
            return Ok(());
        };
        if kernel.status().state != LifecycleState::Stopped {
            kernel.give_way(reason).await;
        }
        if kernel.goes_on() && !self.0.over.is_cancelled() {
            self.0.current.set(self.0.factory.start_agent(None).await?);
        }
        Ok(())
    }

    /// Ends the agent: drains for at most `timeout_ms`, then cancels. Returns whether everything ended in time.
    pub async fn end_agent(&self, reason: &str, timeout_ms: u64) -> bool {
        let _alone = self.0.moving.lock().await;
        match self.0.current.get() {
            Some(kernel) if kernel.status().state != LifecycleState::Stopped => {
                kernel.shutdown(reason, timeout_ms).await
            }
            Some(_) | None => true,
        }
    }

    /// The id of this run of the host; each start has another one.
    pub(crate) fn run(&self) -> Uuid {
        self.0.run
    }

    /// Asks the host to stop and start again. It stops a moment later, so that the caller gets an answer.
    ///
    /// # Errors
    /// Why the host can't restart itself.
    pub(crate) fn request_restart(&self) -> Result<(), &'static str> {
        if let Some(why) = self.0.options.cant_restart {
            return Err(why);
        }
        self.0.restarts.store(true, Ordering::SeqCst);
        let host = self.clone();
        self.spawn_detached(async move {
            tokio::time::sleep(ANSWERED).await;
            host.request_stop();
        });
        Ok(())
    }

    /// Whether the host is to start again after it has stopped.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        self.0.restarts.load(Ordering::SeqCst)
    }

    /// Asks the host to stop. [`Self::wait_stop_request`] completes then.
    pub fn request_stop(&self) {
        self.0.over.cancel();
    }

    /// Completes when somebody has asked the host to stop.
    pub async fn wait_stop_request(&self) {
        self.0.over.cancelled().await;
    }

    /// Closes the host: accepts no new agent, ends the running one, and waits for the open work of connections.
    pub async fn close(&self, reason: &str) -> bool {
        self.request_stop();
        let drained = self.end_agent(reason, self.0.options.drain_timeout_ms).await;
        self.0.left.close();
        if tokio::time::timeout(LEFT, self.0.left.wait()).await.is_err() {
            tracing::warn!(left = self.0.left.len(), "work goes on after the end of the host");
        }
        drained
    }

    /// Runs `work` even after the connection that began it has ended.
    pub(crate) fn spawn_detached(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.left.spawn(work);
    }
}
