//! Lifecycle (CKP §8) and the count of running work.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clawk_events::payload::LifecycleChanged;
use clawk_proto::SessionId;
use clawk_proto::method::LifecycleState;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::event::{JournalWriter, Thread};
use crate::ports::JournalError;

/// An agent's lifecycle: the state machine, whose changes are recorded, the running work, and the tokens that end it.
#[derive(Debug)]
pub struct AgentLifecycle {
    agent: String,
    scribe: JournalWriter,
    started_us: u64,
    /// The runtime's own chain, which records the lifecycle.
    pub root: Thread,
    /// The tasks of the agent.
    pub tracker: TaskTracker,
    /// Cancelled when nothing new may begin. Workers end after their current turn.
    pub closing: CancellationToken,
    /// Cancelled when running work must end.
    pub stop: CancellationToken,
    /// Cancelled at STOPPED. User interfaces may then close.
    pub over: CancellationToken,
    state: AtomicU8,
    ready_at_us: AtomicU64,
    /// The agent ends so that the host can restart it. Its clients continue in the next run.
    pub goes_on: AtomicBool,
    in_flight: AtomicUsize,
    idle: Notify,
    moved: Notify,
}

/// One piece of running work. It ends when this guard is dropped.
#[derive(Debug)]
pub struct WorkGuard<'a>(&'a AgentLifecycle);

const STATES: [LifecycleState; 6] = [
    LifecycleState::Init,
    LifecycleState::Starting,
    LifecycleState::Ready,
    LifecycleState::Stopping,
    LifecycleState::Stopped,
    LifecycleState::Error,
];

const fn index(state: LifecycleState) -> u8 {
    match state {
        LifecycleState::Init => 0,
        LifecycleState::Starting => 1,
        LifecycleState::Ready => 2,
        LifecycleState::Stopping => 3,
        LifecycleState::Stopped => 4,
        LifecycleState::Error => 5,
    }
}

/// Flag beside the state: it was reached from ERROR, so a turn that needs a model keeps waiting while the agent stops.
const UNREACHED: u8 = 8;

/// Returns whether CKP §8 allows the change. ERROR changes to READY or STOPPING.
pub const fn may_move(from: LifecycleState, to: LifecycleState) -> bool {
    use LifecycleState::{Error, Init, Ready, Starting, Stopped, Stopping};
    matches!(
        (from, to),
        (Init, Starting)
            | (Starting, Ready | Error | Stopping)
            | (Ready, Stopping | Error)
            | (Error, Ready | Stopping)
            | (Stopping, Stopped)
    )
}

fn state_from_bits(state: u8) -> LifecycleState {
    let at = usize::from(state & !UNREACHED);
    STATES.get(at).copied().unwrap_or(LifecycleState::Error)
}

impl AgentLifecycle {
    /// Makes the state of an agent that has not started.
    pub fn new(scribe: JournalWriter, root: SessionId, agent: &str) -> Self {
        Self {
            agent: agent.to_owned(),
            started_us: scribe.clock().monotonic_us(),
            scribe,
            root: Thread::for_session(root),
            tracker: TaskTracker::new(),
            closing: CancellationToken::new(),
            stop: CancellationToken::new(),
            over: CancellationToken::new(),
            state: AtomicU8::new(index(LifecycleState::Init)),
            ready_at_us: AtomicU64::new(0),
            goes_on: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
            moved: Notify::new(),
        }
    }

    /// Returns the present state.
    pub fn state(&self) -> LifecycleState {
        state_from_bits(self.state.load(Ordering::Acquire))
    }

    /// Returns whether no model can be reached, now or when the agent began to stop.
    fn is_unreached(&self) -> bool {
        let now = self.state.load(Ordering::Acquire);
        now & UNREACHED != 0 || state_from_bits(now) == LifecycleState::Error
    }

    /// Changes the state and records it (CKP §8). A change that is not allowed has no effect.
    pub fn advance_to(&self, to: LifecycleState, reason: &str) -> Result<(), JournalError> {
        let now_us = self.scribe.clock().monotonic_us();
        let Some(from) = self.swap_state(to, now_us) else {
            return Ok(());
        };
        let payload = LifecycleChanged {
            agent: self.agent.to_string(),
            duration_ms: now_us.saturating_sub(self.started_us) / 1000,
            from: from.name().to_owned(),
            reason: reason.to_owned(),
            to: to.name().to_owned(),
        };
        let draft = self
            .scribe
            .draft_event(&self.root.child(self.root.span), &payload);
        let _ticket = self.scribe.submit_drafts(vec![draft])?; // order is kept by the journal; `start` and `shutdown` flush
        Ok(())
    }

    fn swap_state(&self, to: LifecycleState, now_us: u64) -> Option<LifecycleState> {
        let mut now = self.state.load(Ordering::Acquire);
        let from = loop {
            let from = state_from_bits(now);
            if !may_move(from, to) {
                return None;
            }
            let stays =
                to != LifecycleState::Ready && (from == LifecycleState::Error || now & UNREACHED != 0);
            let next = index(to) | if stays { UNREACHED } else { 0 };
            match self
                .state
                .compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => break from,
                Err(moved) => now = moved, // silent-ok: somebody else moved first; judge again
            }
        };
        if to == LifecycleState::Ready {
            // After ERROR, the uptime continues.
            let _ = self
                .ready_at_us
                .compare_exchange(0, now_us, Ordering::AcqRel, Ordering::Acquire);
        }
        self.moved.notify_waiters();
        Some(from)
    }

    /// Returns the milliseconds since READY (R5).
    pub fn uptime_ms(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.ready_at_us.load(Ordering::Acquire)) / 1000
    }

    /// Begins new work. Refused before READY and from STOPPING on. In ERROR no model can be reached: work without a model runs, and
    /// a turn waits (see [`Self::wait_until_recovered`]).
    pub fn begin_work(&self) -> Result<WorkGuard<'_>, LifecycleState> {
        let working = self.join_work();
        match self.state() {
            LifecycleState::Ready | LifecycleState::Error => Ok(working),
            state @ (LifecycleState::Init
            | LifecycleState::Starting
            | LifecycleState::Stopping
            | LifecycleState::Stopped) => Err(state),
        }
    }

    /// Waits until the state is no longer ERROR. An agent that stops never recovers: then the wait lasts until its end, even if it
    /// began during the stop.
    pub async fn wait_until_recovered(&self) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if !self.is_unreached() {
                return;
            }
            moved.await;
        }
    }

    /// Begins work that belongs to running work.
    pub fn join_work(&self) -> WorkGuard<'_> {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        WorkGuard(self)
    }

    /// Waits until no work is running. Returns `false` if the deadline came first.
    pub async fn wait_until_drained(&self, timeout: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.in_flight.load(Ordering::Acquire) == 0 {
                return true;
            }
            if tokio::time::timeout_at(deadline, idle).await.is_err() {
                return false;
            }
        }
    }
}

impl Drop for WorkGuard<'_> {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
