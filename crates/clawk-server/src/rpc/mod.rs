//! One connection's requests: judged, gated, routed, answered.

pub(crate) mod dispatch;
pub(crate) mod error;
mod gate;
pub(crate) mod heartbeat;
mod init;
pub(crate) mod lane;
mod lifecycle;
pub(crate) mod questions;
mod reply;

use std::sync::Arc;

use clawk_kernel::{Kernel, Session};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::agent::{AgentFactory, Current};
use crate::transport::outbox::Outbox;

/// Where the connection stands (R4).
#[derive(Debug)]
pub(crate) enum Phase {
    /// `claw.initialize` has not been answered.
    Fresh,
    /// Serving.
    Running(Arc<Run>),
    /// After `claw.shutdown`, or when a second `claw.initialize` failed half-way.
    Stopped(Kernel),
}

/// An initialized agent, as one client sees it.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) kernel: Kernel,
    pub(crate) session: Session,
    /// Who answers questions here, for the trace.
    pub(crate) client: String,
}

/// What the side loops of a connection follow: the run that is served, or none.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    pub(crate) kernel: Kernel,
    /// R18a.
    pub(crate) notify_questions: bool,
}

/// One client on one connection. Only the reading loop holds it; tasks get the [`Arc`]s they need.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) factory: Arc<dyn AgentFactory>,
    pub(crate) current: Current,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) lanes: Arc<lane::Lanes>,
    pub(crate) tasks: TaskTracker,
    pub(crate) pulse: watch::Sender<Option<Pulse>>,
    pub(crate) phase: Phase,
    pub(crate) drain_timeout_ms: u64,
    /// Answers of the reading loop itself, not yet in the outbox.
    pub(crate) out: Vec<u8>,
}

impl Peer {
    /// Hands the answers over; before anything is waited for, so that a peer that waits for us gets them.
    pub(crate) fn flush(&mut self) {
        self.outbox.take(&mut self.out);
    }
}
