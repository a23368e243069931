//! What this host holds of the swarm's bus. A task is given to another host after [`VISIBLE_AGAIN`] without a sign that the bus
//! has heard, so effects begin only while the last such sign is young, by this host's own monotonic clock; and the first
//! effect of a task only where the bus says that no other host has begun one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_proto::RequestId;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::bus::VISIBLE_AGAIN;

/// A sign is young for so long: two thirds of the time after which the task is somebody else's.
pub(super) const YOUNG: Duration = Duration::from_secs(20);
/// How long an effect waits for its host to hold its task again.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// A task that this host took.
#[derive(Debug)]
pub(super) struct ClaimedTask {
    pub(super) identity: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last sign left that the bus has heard.
    heard: Instant,
    /// The bus knows that effects of it have begun here.
    owner: bool,
    /// Its effects are another's.
    lost: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClaimedTask {
    fn is_young(&self) -> bool {
        lock(&self.state).heard.elapsed() < YOUNG
    }

    /// The bus has heard a sign that was sent then. One that was sent too late proves nothing: the task may be another's.
    pub(super) fn heard(&self, sent: Instant) {
        let mut state = lock(&self.state);
        if sent.duration_since(state.heard) < VISIBLE_AGAIN {
            state.heard = sent;
        }
    }

    pub(super) fn is_owner(&self) -> bool {
        lock(&self.state).owner
    }

    /// The bus says that effects begin here and nowhere else.
    pub(super) fn own(&self) {
        lock(&self.state).owner = true;
    }

    /// Its effects are another host's.
    pub(super) fn lose(&self) {
        lock(&self.state).lost = true;
    }

    fn is_lost(&self) -> bool {
        lock(&self.state).lost
    }

    /// Its report may go out: nobody else can have begun effects of it, or been given it.
    pub(super) fn may_report(&self) -> bool {
        let state = lock(&self.state);
        !state.lost && (state.owner || state.heard.elapsed() < VISIBLE_AGAIN)
    }
}

/// All of them, by the task's id.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<RequestId, Arc<ClaimedTask>>>,
    changed: Notify,
}

impl Claims {
    /// The bus gave this host a task now, maybe again.
    pub(super) fn hold(&self, task: &RequestId, identity: &str) -> Arc<ClaimedTask> {
        let mut all = lock(&self.held);
        let owner = all.get(task).is_some_and(|held| held.is_owner());
        let held = Arc::new(ClaimedTask {
            identity: identity.to_owned(),
            state: Mutex::new(State {
                heard: Instant::now(),
                owner,
                lost: false,
            }),
        });
        all.insert(task.clone(), Arc::clone(&held));
        drop(all);
        self.changed.notify_waiters();
        held
    }

    /// It has ended here.
    pub(super) fn forget(&self, task: &RequestId) {
        lock(&self.held).remove(task);
    }

    /// Completes when this host holds the task, and has told the bus so a short while ago.
    ///
    /// # Errors
    /// It does not for [`PATIENCE`].
    pub(super) async fn fresh(&self, task: &RequestId) -> Result<Arc<ClaimedTask>, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let held = lock(&self.held).get(task).cloned();
            if held.as_ref().is_some_and(|held| held.is_lost()) {
                return Err("another host has the effects of this task".to_owned());
            }
            if let Some(held) = held.filter(|held| held.is_young()) {
                return Ok(held);
            }
            if Instant::now() >= until {
                return Err(format!(
                    "this host has not held the task for {} s: the bus may have given it to another one",
                    PATIENCE.as_secs()
                ));
            }
            // A sign that is heard is no change of the table: it is looked at again in a while.
            let _woken = tokio::time::timeout(Duration::from_millis(500), changed).await; // silent-ok: either is a reason to look
        }
    }
}

#[cfg(test)]
mod tests;
