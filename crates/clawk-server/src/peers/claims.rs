//! Tasks of the swarm's bus that this host holds. The bus gives a task to another host after [`VISIBLE_AGAIN`] without a sign of
//! life. So effects begin only shortly after the last confirmed sign, by this host's monotonic clock. The first effect of a task
//! begins only if the bus confirms that no other host has begun one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_proto::RequestId;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::bus::VISIBLE_AGAIN;

/// How long a confirmed sign of life allows effects: two thirds of the time after which the task goes to another host.
pub(super) const YOUNG: Duration = Duration::from_secs(20);
/// How long an effect waits for its host to hold the task again.
pub(super) const PATIENCE: Duration = Duration::from_secs(90);

/// A task that this host has taken.
#[derive(Debug)]
pub(super) struct ClaimedTask {
    pub(super) identity: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last confirmed sign of life was sent.
    heard: Instant,
    /// The bus knows that this host has begun effects of the task.
    owner: bool,
    /// Another host owns the effects.
    lost: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClaimedTask {
    fn is_young(&self) -> bool {
        lock(&self.state).heard.elapsed() < YOUNG
    }

    /// Records that the bus has confirmed a sign sent at this time. A sign that was sent too late proves nothing: another host may
    /// have the task.
    pub(super) fn note_heard(&self, sent: Instant) {
        let mut state = lock(&self.state);
        if sent.duration_since(state.heard) < VISIBLE_AGAIN {
            state.heard = sent;
        }
    }

    pub(super) fn is_owner(&self) -> bool {
        lock(&self.state).owner
    }

    /// Records that the bus reserves the task's effects for this host.
    pub(super) fn mark_owned(&self) {
        lock(&self.state).owner = true;
    }

    /// Records that another host owns the effects.
    pub(super) fn mark_lost(&self) {
        lock(&self.state).lost = true;
    }

    fn is_lost(&self) -> bool {
        lock(&self.state).lost
    }

    /// Whether the report may be sent: no other host can have begun effects of the task or received it.
    pub(super) fn may_report(&self) -> bool {
        let state = lock(&self.state);
        !state.lost && (state.owner || state.heard.elapsed() < VISIBLE_AGAIN)
    }
}

/// All held tasks, by task id.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<RequestId, Arc<ClaimedTask>>>,
    changed: Notify,
}

impl Claims {
    /// Records that the bus has just given a task to this host, maybe again.
    pub(super) fn hold_task(&self, task: &RequestId, identity: &str) -> Arc<ClaimedTask> {
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

    /// Removes a task that has ended here.
    pub(super) fn forget_task(&self, task: &RequestId) {
        lock(&self.held).remove(task);
    }

    /// Completes when this host holds the task and has a recent confirmed sign of life.
    ///
    /// # Errors
    /// That did not happen within [`PATIENCE`].
    pub(super) async fn wait_fresh_claim(&self, task: &RequestId) -> Result<Arc<ClaimedTask>, String> {
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
            // A confirmed sign does not notify this task, so it checks again after a while.
            let _woken = tokio::time::timeout(Duration::from_millis(500), changed).await; // silent-ok: either is a reason to look
        }
    }
}

#[cfg(test)]
mod tests;
