//! A connection: one client's session, rights and output. Its requests are judged, gated, routed, answered. A door hands it
//! messages; what carries them is the door's.

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

/// Where the connection stands (R4).
#[derive(Debug)]
pub(crate) enum ConnectionPhase {
    /// `claw.initialize` has not been answered.
    Fresh,
    /// Serving.
    Running(Arc<ClientRun>),
    /// After `claw.shutdown`, or when a second `claw.initialize` failed half-way.
    Stopped(Kernel),
}

/// An initialized agent, as one client sees it.
#[derive(Debug)]
pub(crate) struct ClientRun {
    pub(crate) kernel: Kernel,
    pub(crate) session: SessionHandle,
    /// Who answers questions here, for the trace.
    pub(crate) client: String,
    /// Reports that this client is owed; none: it takes none.
    pub(crate) owed: Option<Arc<reports::OwedReports>>,
}

/// What the side loops of a connection follow: the run that is served, or none.
#[derive(Debug, Clone)]
pub(crate) struct ServedRun {
    pub(crate) kernel: Kernel,
    /// R18a.
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
    /// Answers of the reading loop itself, not yet in the outbox.
    out: Vec<u8>,
}

impl RpcConnection {
    /// A new client's, and what its side loops follow.
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

    /// Where its answers and notifications go.
    pub(crate) fn outbox(&self) -> Arc<Outbox> {
        Arc::clone(&self.outbox)
    }

    /// For the timestamps of heartbeats.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.host.options().clock)
    }

    /// What is in flight.
    pub(crate) fn lanes(&self) -> Arc<lane::ConnectionLimits> {
        Arc::clone(&self.lanes)
    }

    /// Takes one message whose answer, and what is told on the way to it, goes to `outbox` instead: a request that came by
    /// itself is answered where it came from.
    pub(crate) async fn take_to(&mut self, message: &[u8], outbox: Arc<Outbox>) {
        let own = mem::replace(&mut self.outbox, outbox);
        self.take(message).await;
        self.flush();
        self.outbox = own;
    }

    /// Its session has ended, by `claw.shutdown` or with the agent.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Stopped(_))
    }

    /// Hands the answers over; before anything is waited for, so that a peer that waits for us gets them.
    pub(crate) fn flush(&mut self) {
        self.outbox.take(&mut self.out);
    }

    /// Bytes of answers that were not handed over yet.
    pub(crate) const fn gathered(&self) -> usize {
        self.out.len()
    }

    /// Waits until the peer has read enough.
    pub(crate) async fn room(&self) {
        self.outbox.room().await;
    }

    /// It may say nothing for as long as it likes.
    pub(crate) const fn may_idle(&self) -> bool {
        self.rights.owns() || matches!(self.phase, ConnectionPhase::Running(_))
    }

    /// Something is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }
}
