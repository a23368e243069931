//! The host (R38): owns one agent, its start and its end. Doors open and close while the agent runs.

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

/// How long the end of a host waits for what connections left behind, once the agent has ended.
const LEFT: Duration = Duration::from_secs(5);
/// How long the answer to an order to restart has until the host stops.
const ANSWERED: Duration = Duration::from_millis(200);

/// Settings of connections.
#[derive(Debug, Clone)]
pub struct Options {
    /// Longest message, bytes (R24).
    pub max_message_bytes: usize,
    /// How long work in flight may take when the host ends, or `claw.shutdown` says nothing, milliseconds.
    pub drain_timeout_ms: u64,
    /// For the timestamps of heartbeats.
    pub clock: Arc<dyn Clock>,
    /// Why the host can't be started again by itself; `None`: whoever runs it does so when [`AgentHost::is_restarting`].
    pub cant_restart: Option<&'static str>,
}

impl Default for Options {
    /// 8 MiB, 30 s, the machine's clock.
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
    /// Held by whoever starts or ends the agent.
    moving: Mutex<()>,
    /// Somebody who may has asked the host to stop.
    over: CancellationToken,
    /// Work that goes on after its connection.
    left: TaskTracker,
    tasks: AgentTasks,
    /// An A2A endpoint is on (R23).
    serves_tasks: AtomicBool,
    channels: Held<Option<Arc<dyn Channels>>>,
    /// Which run of this host it is.
    run: Uuid,
    /// Once it has stopped, it is to start again.
    restarts: AtomicBool,
}

impl AgentHost {
    /// A host whose agents come from `factory`; none runs yet.
    #[must_use]
    pub fn new(factory: Arc<dyn AgentFactory>, options: Options) -> Self {
        let run = options.clock.uuid();
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

    /// An A2A endpoint is on, so `claw.task.*` is served, too (R23).
    pub(crate) fn serves_tasks(&self) -> bool {
        self.0.serves_tasks.load(Ordering::SeqCst)
    }

    /// From now on, an A2A endpoint is on.
    pub(crate) fn serve_tasks(&self) {
        self.0.serves_tasks.store(true, Ordering::SeqCst);
    }

    /// The run that is served now.
    #[must_use]
    pub fn current(&self) -> &CurrentKernel {
        &self.0.current
    }

    /// Sets the channels of the agent. Replaces the earlier ones.
    pub fn set_channels(&self, channels: Option<Arc<dyn Channels>>) {
        *self.0.channels.lock().unwrap_or_else(PoisonError::into_inner) = channels;
    }

    /// Its agent's channels, where they are connected.
    pub(crate) fn channels(&self) -> Option<Arc<dyn Channels>> {
        self.0
            .channels
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How connections are served.
    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn factory(&self) -> &dyn AgentFactory {
        &*self.0.factory
    }

    /// The agent that runs; where none does, it is started. `wire` is the manifest of the client that owns the agent.
    ///
    /// # Errors
    /// It can't be started, or the host is ending.
    pub async fn start(&self, wire: Option<&Value>) -> Result<Kernel, InitFailure> {
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
        let kernel = self.0.factory.start(wire).await?;
        self.0.current.set(kernel.clone());
        Ok(kernel)
    }

    /// Ends the agent that runs and starts the next one; `between` is done while none runs, and nobody can start one then.
    /// Where none runs, `between` is all that is done.
    ///
    /// # Errors
    /// The next one can't be started, or the host is ending: then none runs.
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
            self.0.current.set(self.0.factory.start(None).await?);
        }
        Ok(())
    }

    /// Starts anew an agent whose state was away or was taken over; its clients go on in the next run. Where none runs that could go
    /// on, nothing is done.
    ///
    /// # Errors
    /// It can't be started yet: called again, this goes on.
    pub async fn renew(&self, reason: &str) -> Result<(), InitFailure> {
        let _alone = self.0.moving.lock().await;
        let Some(kernel) = self.0.current.get() else {
            return Ok(());
        };
        if kernel.status().state != LifecycleState::Stopped {
            kernel.give_way(reason).await;
        }
        if kernel.goes_on() && !self.0.over.is_cancelled() {
            self.0.current.set(self.0.factory.start(None).await?);
        }
        Ok(())
    }

    /// Ends the agent: drains for at most `timeout_ms`, then cancels. Whether all of it ended in time.
    pub async fn end(&self, reason: &str, timeout_ms: u64) -> bool {
        let _alone = self.0.moving.lock().await;
        match self.0.current.get() {
            Some(kernel) if kernel.status().state != LifecycleState::Stopped => {
                kernel.shutdown(reason, timeout_ms).await
            }
            Some(_) | None => true,
        }
    }

    /// Which run of the host this is: another one after each start.
    pub(crate) fn run(&self) -> Uuid {
        self.0.run
    }

    /// Asks the host to stop and to start again. It stops a moment later, so that who asked gets an answer.
    ///
    /// # Errors
    /// Why it can't start again by itself.
    pub(crate) fn restart(&self) -> Result<(), &'static str> {
        if let Some(why) = self.0.options.cant_restart {
            return Err(why);
        }
        self.0.restarts.store(true, Ordering::SeqCst);
        let host = self.clone();
        self.outlive(async move {
            tokio::time::sleep(ANSWERED).await;
            host.stop();
        });
        Ok(())
    }

    /// It has been asked to start again once it has stopped.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        self.0.restarts.load(Ordering::SeqCst)
    }

    /// Asks the host to stop. [`Self::stopping`] completes then.
    pub fn stop(&self) {
        self.0.over.cancel();
    }

    /// Completes when somebody has asked the host to stop.
    pub async fn stopping(&self) {
        self.0.over.cancelled().await;
    }

    /// Closes the host: accepts no new agent, ends the running one, and waits for the open work of connections.
    pub async fn close(&self, reason: &str) -> bool {
        self.stop();
        let drained = self.end(reason, self.0.options.drain_timeout_ms).await;
        self.0.left.close();
        if tokio::time::timeout(LEFT, self.0.left.wait()).await.is_err() {
            tracing::warn!(left = self.0.left.len(), "work goes on after the end of the host");
        }
        drained
    }

    /// Lets `work` go on after the connection that began it.
    pub(crate) fn outlive(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.left.spawn(work);
    }
}
