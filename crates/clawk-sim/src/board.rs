//! What the bus knows of hosts: who is cut off, who holds a task and was heard last when, who began effects of it first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{BoxFuture, MemberRoute, RemoteResult, RemoteTask, RemoteWorkers, ReportReceiver};
use clawk_proto::RequestId;
use clawk_trace::checkpoint::PublicKey;

/// A task is given to another host after so long without a sign of its holder, milliseconds of the world; shorter than the bus's,
/// as everything here is.
const VISIBLE_MS: u64 = 1_200;
/// An effect begins while the last sign is younger than this.
const YOUNG_MS: u64 = 800;
/// How often an effect that waits for its task looks, and how long apart.
const LOOKS: usize = 60;
const LOOK: Duration = Duration::from_millis(40);

#[derive(Debug, Default)]
struct SimBusState {
    now_ms: u64,
    cut: BTreeSet<usize>,
    /// By task: who holds it, and when the last sign was heard.
    held: BTreeMap<String, (usize, u64)>,
    owners: BTreeMap<String, usize>,
}

/// The bus's own state; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct SimBus(Arc<Mutex<SimBusState>>);

impl SimBus {
    fn lock(&self) -> MutexGuard<'_, SimBusState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pass(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    pub(crate) fn cut(&self, host: usize, off: bool) {
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

    /// Who is to work on a task that may be given to `host` now.
    pub(crate) fn take(&self, task: &str, host: usize) -> Option<usize> {
        let mut inner = self.lock();
        let now = inner.now_ms;
        if let Some((holder, heard)) = inner.held.get(task).copied()
            && now.saturating_sub(heard) < VISIBLE_MS
        {
            // Delivered again to who has it: brokers do that.
            return Some(holder);
        }
        // Another host began effects of it: it is left to that one.
        let host = inner.owners.get(task).copied().unwrap_or(host);
        if inner.cut.contains(&host) {
            return None;
        }
        inner.held.insert(task.to_owned(), (host, now));
        Some(host)
    }

    /// A host that runs says what it is at.
    pub(crate) fn sign(&self, host: usize) {
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

/// A worker's side of the bus.
#[derive(Debug)]
pub(crate) struct SimBusWorker {
    pub(crate) host: usize,
    pub(crate) board: SimBus,
}

impl RemoteWorkers for SimBusWorker {
    fn place(&self, _identity: &str) -> Option<MemberRoute> {
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

    fn tools(&self, _identity: &str) -> Option<Vec<String>> {
        None
    }

    fn key(&self, _identity: &str) -> Option<PublicKey> {
        None
    }

    fn work<'a>(
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
