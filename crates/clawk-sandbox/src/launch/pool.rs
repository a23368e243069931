//! The pool of prepared sandboxes. Each one is made before the call that uses it, is used once, and is then discarded. It has the
//! same isolation as a sandbox that is made for its call, because the same code makes it from the same order. The parts that only
//! the call has (program, arguments, environment, streams, deadline, the proxy's identity) are sent when it is taken. It is taken
//! only if the host has not changed since.

mod maker;
mod mounts;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::nursery::{ForkServerClient, SupervisorHandle};
use super::wire::SandboxOrder;
use crate::child::cell::world::{self, HostObservation};
use maker::SandboxMaker;
pub(super) use maker::without_call;
use mounts::MountWatcher;

/// How many requests for sandboxes may be queued. If the queue is full, a call makes its own sandbox and no new request.
const WISHES: usize = 16;

/// How long dropping the pool waits for the maker thread, in milliseconds. After that, the thread ends later.
const ENDING_MS: u64 = 250;

/// How long after a call the next sandbox is made, in milliseconds, so that a short call is not slowed down.
const SETTLE_MS: u64 = 10;

/// Limits of the pool of prepared sandboxes: their number, and the time after which an unused sandbox ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmPoolLimits {
    /// The maximum number of waiting sandboxes per configuration. The pool starts with one. It adds one for each call that found
    /// none because other calls came just before it, and removes one for each sandbox that was not used. 0: no sandboxes wait.
    pub boxes: usize,
    /// The maximum number of waiting sandboxes of all configurations. The oldest one is discarded first. The pool also remembers
    /// the useful number of sandboxes for this many configurations.
    pub boxes_total: usize,
    /// An unused sandbox is discarded after this time, in milliseconds.
    pub idle_ms: u64,
}

impl Default for WarmPoolLimits {
    fn default() -> Self {
        Self {
            boxes: 4,
            boxes_total: 8,
            idle_ms: 120_000,
        }
    }
}

/// A waiting sandbox. Dropping it ends it.
pub(super) struct PooledSandbox {
    /// The order from which it was made, as text.
    key: Vec<u8>,
    pub(super) control: UnixStream,
    pub(super) calls: UnixStream,
    pub(super) door: Option<OwnedFd>,
    pub(super) mechanisms: Vec<String>,
    pub(super) missing: Vec<String>,
    pub(super) supervisor: SupervisorHandle,
    order: Arc<SandboxOrder>,
    seen: Vec<HostObservation>,
    /// The number of the last change of mounts and groups before it was made.
    epoch: u64,
    made: Instant,
}

impl PooledSandbox {
    /// Whether it is alive and has sent nothing. Before its call it sends only its end.
    fn is_quiet(&self) -> bool {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        matches!(ready, Ok(0))
    }

    /// Whether the host would still give an identical sandbox.
    fn is_fresh(&self) -> bool {
        let enclosure = self.order.enclosure.as_ref();
        self.is_quiet() && enclosure.is_some_and(|enclosure| world::is_host_unchanged(&self.seen, enclosure))
    }
}

/// A request for a sandbox of this configuration.
struct PrewarmRequest {
    key: Vec<u8>,
    order: Arc<SandboxOrder>,
    due: Instant,
}

/// The waiting sandboxes. Calls and the maker thread share this state.
struct PoolState {
    limits: WarmPoolLimits,
    boxes: Mutex<PooledSandboxes>,
    mounts: Mutex<MountWatcher>,
}

#[derive(Default)]
struct PooledSandboxes {
    /// The waiting sandboxes, oldest first.
    all: VecDeque<PooledSandbox>,
    /// Sandboxes that ended while they waited.
    dead: Vec<PooledSandbox>,
    /// How many sandboxes should wait, by configuration. The most recently used configuration is last.
    wanted: VecDeque<(Vec<u8>, usize)>,
    closed: bool,
}

impl PooledSandboxes {
    /// Records another call of this configuration. `missed`: it found no sandbox, and this was not due to a change of the host.
    fn record_demand(&mut self, key: &[u8], missed: bool, limits: WarmPoolLimits) {
        let known = self.wanted.iter().position(|(other, _)| other == key);
        let known = known.and_then(|at| self.wanted.remove(at));
        let (key, number) = known.unwrap_or_else(|| (key.to_vec(), 0));
        let more = number + usize::from(missed);
        self.wanted.push_back((key, more.clamp(1, limits.boxes.max(1))));
        while self.wanted.len() > limits.boxes_total.max(1) {
            self.wanted.pop_front();
        }
    }

    /// Records that a sandbox of this configuration was not used.
    fn want_less(&mut self, key: &[u8]) {
        for (_, number) in self.wanted.iter_mut().filter(|(other, _)| other == key) {
            *number = number.saturating_sub(1);
        }
    }
}

impl PoolState {
    fn lock_sandboxes(&self) -> MutexGuard<'_, PooledSandboxes> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that changes whenever mounts or clawk's own groups change.
    fn epoch(&self) -> u64 {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).epoch()
    }

    /// Whether fewer sandboxes of this configuration wait than should.
    fn needs_more(&self, key: &[u8]) -> bool {
        let boxes = self.lock_sandboxes();
        let wanted = boxes.wanted.iter().find(|(other, _)| other == key);
        let wanted = wanted.map_or(1, |(_, number)| *number);
        boxes.all.iter().filter(|one| one.key == key).count() < wanted.min(self.limits.boxes_total)
    }

    /// Discards sandboxes that have waited too long or have ended. Returns when the next one expires.
    fn remove_expired(&self, now: Instant) -> Option<Instant> {
        let idle = Duration::from_millis(self.limits.idle_ms);
        let mut boxes = self.lock_sandboxes();
        let mut kept = VecDeque::new();
        for one in std::mem::take(&mut boxes.all) {
            match one.is_quiet() {
                true if one.made + idle > now => kept.push_back(one),
                true => boxes.want_less(&one.key), // Dropped, it ends by itself.
                false => boxes.dead.push(one),
            }
        }
        boxes.all = kept;
        boxes.all.iter().map(|one| one.made + idle).min()
    }

    /// Removes the remains of sandboxes that ended while they waited.
    fn remove_leftovers(&self) {
        let dead = std::mem::take(&mut self.lock_sandboxes().dead);
        dead.iter().for_each(|one| one.supervisor.give_up());
    }

    /// Adds a sandbox. Returns false if the pool is closed.
    fn add_sandbox(&self, made: PooledSandbox) -> bool {
        let mut boxes = self.lock_sandboxes();
        if boxes.closed {
            return false;
        }
        while boxes.all.len() >= self.limits.boxes_total.max(1) {
            boxes.all.pop_front();
        }
        boxes.all.push_back(made);
        true
    }
}

/// The pool that one launcher and its clones share.
pub(super) struct Pool {
    shelf: Arc<PoolState>,
    nursery: Arc<ForkServerClient>,
    /// The maker thread, started by the first call that could use a prepared sandbox. `None`: no thread can be started, so every
    /// call makes its own sandbox.
    making: OnceLock<Option<MakerThread>>,
    served: AtomicU64,
}

/// The thread that makes sandboxes.
struct MakerThread {
    wishes: SyncSender<PrewarmRequest>,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({:?}, {} waiting)", self.shelf.limits, self.len())
    }
}

impl Pool {
    /// Creates an empty pool. The first call of a configuration shows that sandboxes for it are useful.
    pub(super) fn new(limits: WarmPoolLimits, nursery: Arc<ForkServerClient>) -> Self {
        Self {
            shelf: Arc::new(PoolState {
                limits,
                boxes: Mutex::default(),
                mounts: Mutex::new(MountWatcher::new()),
            }),
            nursery,
            making: OnceLock::new(),
            served: AtomicU64::new(0),
        }
    }

    fn maker_thread(&self) -> Option<&MakerThread> {
        let start = || {
            let (wishes, wanted) = sync_channel(WISHES);
            let maker = SandboxMaker::new(Arc::clone(&self.shelf), Arc::clone(&self.nursery));
            let thread = std::thread::Builder::new().name("clawk-boxes".to_owned());
            let thread = thread.spawn(move || maker.serve_requests(&wanted)).ok()?; // silent-ok: see the field
            Some(MakerThread { wishes, thread })
        };
        self.making.get_or_init(start).as_ref()
    }

    /// The number of sandboxes that wait now.
    pub(super) fn len(&self) -> usize {
        self.shelf.lock_sandboxes().all.len()
    }

    /// Counts a served call.
    pub(super) fn record_served(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn served_count(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Takes a waiting sandbox for this order, if one is still identical to what the host would give; and requests the next one.
    pub(super) fn take_sandbox(&self, order: SandboxOrder) -> Option<PooledSandbox> {
        let key = serde_json::to_vec(&order).ok()?; // silent-ok: then no box waits for it
        let epoch = self.shelf.epoch();
        let mut changed = false;
        let taken = loop {
            let mut boxes = self.shelf.lock_sandboxes();
            let at = boxes.all.iter().position(|one| one.key == key);
            let one = at.and_then(|at| boxes.all.remove(at));
            boxes.record_demand(&key, one.is_none() && !changed, self.shelf.limits);
            let Some(one) = one else {
                break None;
            };
            drop(boxes);
            if one.epoch == epoch && one.is_fresh() {
                break Some(one);
            }
            changed = true;
            if !one.is_quiet() {
                self.shelf.lock_sandboxes().dead.push(one);
            }
        };
        let wish = PrewarmRequest {
            key,
            order: Arc::new(order),
            due: Instant::now() + Duration::from_millis(SETTLE_MS),
        };
        if let Some(making) = self.maker_thread() {
            let _ = making.wishes.try_send(wish); // silent-ok: enough is to be made already
        }
        taken
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut boxes = self.shelf.lock_sandboxes();
        boxes.closed = true;
        boxes.all.clear();
        drop(boxes);
        let Some(MakerThread { wishes, thread }) = self.making.take().flatten() else {
            return;
        };
        drop(wishes);
        // The thread may be making a sandbox, which it then discards. Do not wait long for that.
        for _ in 0..ENDING_MS {
            if thread.is_finished() {
                let _ = thread.join(); // silent-ok: it has ended, however
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
