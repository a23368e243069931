//! One client's connection: its session, rights and output. Each request is parsed, checked by the gate, routed and answered. A
//! door passes it the messages, over any transport.

mod dispatch;
mod gate;
pub(crate) mod heartbeat;
mod init;
pub(crate) mod lane;
mod lifecycle;
mod messages;
pub(crate) mod questions;
mod reply;
pub(crate) mod reports;
mod tasks;
#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;

use clawk_kernel::time::Clock;
use clawk_kernel::{Kernel, SessionHandle};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::access::ClientRights;
use crate::host::AgentHost;
use crate::transport::outbox::Outbox;

/// The phase of the connection (R4).
#[derive(Debug)]
pub(crate) enum ConnectionPhase {
    /// `claw.initialize` has not succeeded yet.
    Fresh,
    /// The connection serves requests.
    Running(Arc<ClientRun>),
    /// After `claw.shutdown`, or after a second `claw.initialize` that failed half-way.
    Stopped(Kernel),
}

/// An initialized agent, as one client sees it.
#[derive(Debug)]
pub(crate) struct ClientRun {
    pub(crate) kernel: Kernel,
    pub(crate) session: SessionHandle,
    /// The name of the person who answers questions here, for the trace.
    pub(crate) client: String,
    /// Reports that this client must get; `None`: it accepts no reports.
    pub(crate) owed: Option<Arc<reports::OwedReports>>,
}

/// The current run, for the background loops of a connection.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) kernel: Kernel,
    /// The client wants notifications of open questions (R18a).
    pub(crate) notify_questions: bool,
    /// Reports of delegated tasks.
    pub(crate) owed: Option<Arc<reports::OwedReports>>,
}

/// One client on one connection. Only the door's reading loop holds it; tasks get the [`Arc`]s they need.
#[derive(Debug)]
pub(crate) struct RpcConnection {
    host: AgentHost,
    rights: ClientRights,
    outbox: Arc<Outbox>,
    lanes: Arc<lane::ConnectionLimits>,
    tasks: TaskTracker,
    pulse: watch::Sender<Option<ServedRun>>,
    phase: ConnectionPhase,
    /// Answers of the reading loop that are not in the outbox yet.
    out: Vec<u8>,
}

impl RpcConnection {
    /// The connection of a new client, and the run that its background loops follow.
    pub(crate) fn new(host: AgentHost, rights: ClientRights) -> (Self, watch::Receiver<Option<ServedRun>>) {
        let (pulse, follow) = watch::channel(None);
        let connection = Self {
            host,
            rights,
            outbox: Arc::default(),
            lanes: lane::ConnectionLimits::new(),
            tasks: TaskTracker::new(),
            pulse,
            phase: ConnectionPhase::Fresh,
            out: Vec::new(),
        };
        (connection, follow)
    }

    /// The queue for its answers and notifications.
    pub(crate) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }

    /// The clock for heartbeats.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.host.options().clock)
    }

    /// The limits of requests in flight.
    pub(crate) fn lanes(&self) -> Arc<lane::ConnectionLimits> {
        Arc::clone(&self.lanes)
    }

    /// Handles one message and sends its answer and notifications to `outbox` instead of the connection's own. A request that
    /// arrived by itself is answered where it came from.
    pub(crate) async fn take_to(&mut self, message: &[u8], outbox: Arc<Outbox>) {
        let own = mem::replace(&mut self.outbox, outbox);
        self.handle_line(message).await;
        self.flush();
        self.outbox = own;
    }

    /// Whether its session has ended, by `claw.shutdown` or with the agent.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Stopped(_))
    }

    /// Moves the answers to the outbox. Call it before any wait, so that a client that waits for us gets them.
    pub(crate) fn flush(&mut self) {
        self.outbox.take(&mut self.out);
    }

    /// Bytes of answers that are not in the outbox yet.
    pub(crate) const fn gathered(&self) -> usize {
        self.out.len()
    }

    /// Waits until the peer has read enough.
    pub(crate) async fn room(&self) {
        self.outbox.room().await;
    }

    /// Whether the client may stay silent without a limit.
    pub(crate) const fn may_idle(&self) -> bool {
        self.rights.owns_host() || matches!(self.phase, ConnectionPhase::Running(_))
    }

    /// Whether a request is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }
}
