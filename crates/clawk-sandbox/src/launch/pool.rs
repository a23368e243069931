//! Boxes that wait: made ahead of the calls that use them, each used once and thrown away. A box that waits has every wall of
//! one that is made for its call, because it is made by the same code from the same order; what a call alone brings
//! (program, arguments, environment, streams, deadline, the proxy's identity) reaches it when it is taken. It is taken only
//! while the host is what it was made from.

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

/// Wishes for boxes that may be open; beyond, the call that could not wish makes its own box, as always.
const WISHES: usize = 16;

/// At the end, the thread that makes boxes is waited for so long, milliseconds; it ends later otherwise.
const ENDING_MS: u64 = 250;

/// The next box is made so much later, milliseconds, that a short call is not slowed by it.
const SETTLE_MS: u64 = 10;

/// Limits of the pool of prepared boxes: their number, and the time until an unused box ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WarmPoolLimits {
    /// Boxes that wait for calls of one configuration, at most: one, and one more for each call that found none because others came
    /// right before it; one less for each that nobody used. 0: none wait, each call makes its own.
    pub boxes: usize,
    /// Boxes that wait, of all configurations together. The one that has waited longest makes room. It is remembered of so many
    /// configurations how many boxes are worth having.
    pub boxes_total: usize,
    /// A box is thrown away when nobody has used it for so long, milliseconds.
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

/// A box that waits. Dropping it ends it.
pub(super) struct PooledSandbox {
    /// The order that it was made from, as text.
    key: Vec<u8>,
    pub(super) control: UnixStream,
    pub(super) calls: UnixStream,
    pub(super) door: Option<OwnedFd>,
    pub(super) mechanisms: Vec<String>,
    pub(super) missing: Vec<String>,
    pub(super) supervisor: SupervisorHandle,
    order: Arc<SandboxOrder>,
    seen: Vec<HostObservation>,
    /// Of mounts and groups, before it was made.
    epoch: u64,
    made: Instant,
}

impl PooledSandbox {
    /// It lives, and has said nothing: all that it will say before its call is that it is over.
    fn quiet(&self) -> bool {
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        matches!(ready, Ok(0))
    }

    /// The host would still give the very same box.
    fn fresh(&self) -> bool {
        let enclosure = self.order.enclosure.as_ref();
        self.quiet() && enclosure.is_some_and(|enclosure| world::still(&self.seen, enclosure))
    }
}

/// A box of this configuration is wanted.
struct PrewarmRequest {
    key: Vec<u8>,
    order: Arc<SandboxOrder>,
    due: Instant,
}

/// What waits; shared by those who take and the thread that makes.
struct PoolState {
    limits: WarmPoolLimits,
    boxes: Mutex<PooledSandboxes>,
    mounts: Mutex<MountWatcher>,
}

#[derive(Default)]
struct PooledSandboxes {
    /// The oldest first.
    all: VecDeque<PooledSandbox>,
    /// Ended while they waited.
    dead: Vec<PooledSandbox>,
    /// Of which configurations how many are to wait; the one that was asked for last at the end.
    wanted: VecDeque<(Vec<u8>, usize)>,
    closed: bool,
}

impl PooledSandboxes {
    /// Another call of this configuration has come. `missed`: it found no box, and not because of a change of the host.
    fn want(&mut self, key: &[u8], missed: bool, limits: WarmPoolLimits) {
        let known = self.wanted.iter().position(|(other, _)| other == key);
        let known = known.and_then(|at| self.wanted.remove(at));
        let (key, number) = known.unwrap_or_else(|| (key.to_vec(), 0));
        let more = number + usize::from(missed);
        self.wanted.push_back((key, more.clamp(1, limits.boxes.max(1))));
        while self.wanted.len() > limits.boxes_total.max(1) {
            self.wanted.pop_front();
        }
    }

    /// A box of this configuration has waited for nothing.
    fn want_less(&mut self, key: &[u8]) {
        for (_, number) in self.wanted.iter_mut().filter(|(other, _)| other == key) {
            *number = number.saturating_sub(1);
        }
    }
}

impl PoolState {
    fn boxes(&self) -> MutexGuard<'_, PooledSandboxes> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes with every change of mounts, and of our own groups.
    fn epoch(&self) -> u64 {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).epoch()
    }

    /// More boxes of this configuration are to wait than do.
    fn lacks(&self, key: &[u8]) -> bool {
        let boxes = self.boxes();
        let wanted = boxes.wanted.iter().find(|(other, _)| other == key);
        let wanted = wanted.map_or(1, |(_, number)| *number);
        boxes.all.iter().filter(|one| one.key == key).count() < wanted.min(self.limits.boxes_total)
    }

    /// What has waited too long, or has ended meanwhile, goes; when the next will.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let idle = Duration::from_millis(self.limits.idle_ms);
        let mut boxes = self.boxes();
        let mut kept = VecDeque::new();
        for one in std::mem::take(&mut boxes.all) {
            match one.quiet() {
                true if one.made + idle > now => kept.push_back(one),
                true => boxes.want_less(&one.key), // Dropped, it ends by itself.
                false => boxes.dead.push(one),
            }
        }
        boxes.all = kept;
        boxes.all.iter().map(|one| one.made + idle).min()
    }

    /// Removes what boxes have left that ended while they waited.
    fn bury(&self) {
        let dead = std::mem::take(&mut self.boxes().dead);
        dead.iter().for_each(|one| one.supervisor.give_up());
    }

    /// False: nobody will take it.
    fn put(&self, made: PooledSandbox) -> bool {
        let mut boxes = self.boxes();
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

/// The boxes of one launcher and all its clones.
pub(super) struct Pool {
    shelf: Arc<PoolState>,
    nursery: Arc<ForkServerClient>,
    /// Made by the first call that could use a box; `None`: no thread can be started, so that every call makes its own.
    making: OnceLock<Option<MakerThread>>,
    served: AtomicU64,
}

/// The thread that makes boxes.
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
    /// Makes nothing yet: the first call of a configuration says that boxes of it are worth having.
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

    fn making(&self) -> Option<&MakerThread> {
        let start = || {
            let (wishes, wanted) = sync_channel(WISHES);
            let maker = SandboxMaker::new(Arc::clone(&self.shelf), Arc::clone(&self.nursery));
            let thread = std::thread::Builder::new().name("clawk-boxes".to_owned());
            let thread = thread.spawn(move || maker.serve(&wanted)).ok()?; // silent-ok: see the field
            Some(MakerThread { wishes, thread })
        };
        self.making.get_or_init(start).as_ref()
    }

    /// Boxes that wait now.
    pub(super) fn len(&self) -> usize {
        self.shelf.boxes().all.len()
    }

    /// A box has served its call.
    pub(super) fn count(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// A box for this order, if one waits that is still what the host would give; and the wish for the next.
    pub(super) fn take(&self, order: SandboxOrder) -> Option<PooledSandbox> {
        let key = serde_json::to_vec(&order).ok()?; // silent-ok: then no box waits for it
        let epoch = self.shelf.epoch();
        let mut changed = false;
        let taken = loop {
            let mut boxes = self.shelf.boxes();
            let at = boxes.all.iter().position(|one| one.key == key);
            let one = at.and_then(|at| boxes.all.remove(at));
            boxes.want(&key, one.is_none() && !changed, self.shelf.limits);
            let Some(one) = one else {
                break None;
            };
            drop(boxes);
            if one.epoch == epoch && one.fresh() {
                break Some(one);
            }
            changed = true;
            if !one.quiet() {
                self.shelf.boxes().dead.push(one);
            }
        };
        let wish = PrewarmRequest {
            key,
            order: Arc::new(order),
            due: Instant::now() + Duration::from_millis(SETTLE_MS),
        };
        if let Some(making) = self.making() {
            let _ = making.wishes.try_send(wish); // silent-ok: enough is to be made already
        }
        taken
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut boxes = self.shelf.boxes();
        boxes.closed = true;
        boxes.all.clear();
        drop(boxes);
        let Some(MakerThread { wishes, thread }) = self.making.take().flatten() else {
            return;
        };
        drop(wishes);
        // It may be making a box, which it throws away then: nobody waits for that for long.
        for _ in 0..ENDING_MS {
            if thread.is_finished() {
                let _ = thread.join(); // silent-ok: it has ended, however
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
