//! The bus's knowledge of the hosts: which ones are cut off, which host holds a task and when it was last heard, and which host
//! began effects of a task first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{BoxFuture, MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver};
use clawk_proto::RequestId;
use clawk_trace::checkpoint::PublicKey;

/// If a task's holder is silent for this long, the task is given to another host. In milliseconds of simulated time; shorter than
/// in the real bus, as all times here.
const VISIBLE_MS: u64 = 1_200;
/// An effect may begin only if the last sign of life is younger than this, in milliseconds.
const YOUNG_MS: u64 = 800;
/// How often an effect checks whether its task is confirmed, and the pause between two checks.
const LOOKS: usize = 60;
const LOOK: Duration = Duration::from_millis(40);

#[derive(Debug, Default)]
struct SimBusState {
    now_ms: u64,
    cut: BTreeSet<usize>,
    /// By task: its holder, and when the last sign of life was heard.
    held: BTreeMap<String, (usize, u64)>,
    owners: BTreeMap<String, usize>,
}

/// The bus's own state. Cloning it is cheap and shares the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimBus(Arc<Mutex<SimBusState>>);

impl SimBus {
    fn lock(&self) -> MutexGuard<'_, SimBusState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pass_time(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    pub(crate) fn set_cut_off(&self, host: usize, off: bool) {
        let mut inner = self.lock();
        if off {
            inner.cut.insert(host);
        } else {
            inner.cut.remove(&host);
        }
    }

    pub(crate) fn is_cut(&self, host: usize) -> bool {
        self.lock().cut.contains(&host)
    }

    /// Assigns a task that is offered to `host`. Returns the host that is to work on it; `None` if that host is cut off.
    pub(crate) fn take_task(&self, task: &str, host: usize) -> Option<usize> {
        let mut inner = self.lock();
        let now = inner.now_ms;
        if let Some((holder, heard)) = inner.held.get(task).copied()
            && now.saturating_sub(heard) < VISIBLE_MS
        {
            // Deliver it again to its holder, as real brokers do.
            return Some(holder);
        }
        // If another host began effects of this task, only that host may continue it.
        let host = inner.owners.get(task).copied().unwrap_or(host);
        if inner.cut.contains(&host) {
            return None;
        }
        inner.held.insert(task.to_owned(), (host, now));
        Some(host)
    }

    /// A running host sends a sign of life for its tasks.
    pub(crate) fn report_progress(&self, host: usize) {
        let mut inner = self.lock();
        if inner.cut.contains(&host) {
            return;
        }
        let now = inner.now_ms;
        for (holder, heard) in inner.held.values_mut() {
            if *holder == host && now.saturating_sub(*heard) < VISIBLE_MS {
                *heard = now;
            }
        }
    }

    fn may_begin(&self, task: &str, host: usize) -> Option<Result<(), String>> {
        let mut inner = self.lock();
        let (holder, heard) = inner.held.get(task).copied()?;
        let young = inner.now_ms.saturating_sub(heard) < YOUNG_MS;
        if holder != host {
            return Some(Err("another host holds it".to_owned()));
        }
        if !young || inner.cut.contains(&host) {
            return None;
        }
        let owner = *inner.owners.entry(task.to_owned()).or_insert(host);
        Some(if owner == host {
            Ok(())
        } else {
            Err("another host has begun effects of it".to_owned())
        })
    }
}

/// A worker's view of the bus.
#[derive(Debug)]
pub(crate) struct SimBusWorker {
    pub(crate) host: usize,
    pub(crate) board: SimBus,
}

impl RemoteWorkers for SimBusWorker {
    fn member_route(&self, _identity: &str) -> Option<MemberRoute> {
        None
    }

    fn is_gone(&self, _identity: &str) -> bool {
        false
    }

    fn lives_here(&self, _identity: &str) -> bool {
        false
    }

    fn timeout_ms(&self, _identity: &str) -> Option<u64> {
        None
    }

    fn allowed_tools(&self, _identity: &str) -> Option<Vec<String>> {
        None
    }

    fn report_key(&self, _identity: &str) -> Option<PublicKey> {
        None
    }

    fn perform_task<'a>(
        &'a self,
        _errand: RemoteTask,
        _reports: Arc<dyn ReportReceiver>,
    ) -> BoxFuture<'a, RemoteResult> {
        Box::pin(std::future::pending())
    }

    fn may_begin<'a>(&'a self, run: &'a RequestId) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            for _ in 0..LOOKS {
                if let Some(said) = self.board.may_begin(run.as_str(), self.host) {
                    return said;
                }
                tokio::time::sleep(LOOK).await;
            }
            Err("this host has not held the task for long".to_owned())
        })
    }
}
