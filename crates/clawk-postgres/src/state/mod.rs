//! An agent's whole state on PostgreSQL (R48): the journal with its chains, inbox, outbox and sums, contents, signed heads, and the
//! lease that decides which host may write.
//!
//! Either several hosts share the agent, each with its own sessions, or one host has it alone. Every commit locks the only row of
//! `journal` and the row that gives its host the right to write. So a host that lost the right can't change anything.

mod append;
mod boxes;
mod check;
mod erase;
mod heads;
mod info;
mod journal;
mod lease;
pub mod moving;
mod queue;
mod read;
mod row;
mod seal;
mod shared;
mod terms;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clawk_kernel::ports::JournalError;
use clawk_recall::keys::{Keys, SealKeyLookup, StateSealer};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::pool::PgDatabase;

pub use erase::{ContentRemoval, ErasedReference};
pub use heads::{HeadDelivery, KeptHead, ToSign};
pub use info::{HostSeen, LeaseSeen, PgStateInfo};
pub use journal::PgJournal;
pub use read::{Event, PgEventQuery, PgReader};

use lease::Lease;
use queue::{Bounds, PgWriterQueue, PgWriterWork};
use writer::Writer;

/// The shortest lease. With a shorter one, a busy server would make the lease move between hosts all the time.
const MIN_LEASE: Duration = Duration::from_millis(500);
/// The longest lease.
const MAX_LEASE: Duration = Duration::from_secs(600);
/// How often a standby host checks for the lease.
const LOOK: Duration = Duration::from_millis(500);
/// How often a task that waits for a renewal checks again.
const WAIT: Duration = Duration::from_millis(50);
/// How long the shutdown waits for queued writes and the release of the lease.
const LAST: Duration = Duration::from_secs(15);

/// Whether other hosts serve the agent at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSharing {
    /// One host has the whole agent; other hosts stand by.
    Alone,
    /// Each host has the sessions that it holds.
    Shared,
}

/// The settings of serving a state.
#[derive(Debug, Clone)]
pub struct ServingOptions {
    /// The agent's name. A state holds one agent.
    pub agent: String,
    /// The name of this host.
    pub host: String,
    /// The process id of this host.
    pub pid: u32,
    /// How long the lease is valid after each renewal.
    pub lease: Duration,
    /// Alone, or together with other hosts.
    pub sharing: StateSharing,
    /// Refuse a group of servers whose primary commits without waiting for a standby.
    pub synchronous: bool,
    /// The largest number of queued entries; above it, work is refused.
    pub queue_entries: usize,
    /// The largest size of queued entries, bytes.
    pub queue_bytes: usize,
    /// The key of encrypted stores, from the agent's configuration.
    pub keys: Option<Keys>,
    /// Finds the key of a state if the configuration gives none.
    pub find: Option<SealKeyLookup>,
}

impl ServingOptions {
    /// Default limits, for this agent, host and process.
    #[must_use]
    pub fn new(agent: &str, host: &str, pid: u32) -> Self {
        Self {
            agent: agent.to_owned(),
            host: host.to_owned(),
            pid,
            lease: Duration::from_secs(3),
            sharing: StateSharing::Alone,
            synchronous: false,
            queue_entries: 65_536,
            queue_bytes: 64 * 1024 * 1024,
            keys: None,
            find: None,
        }
    }
}

/// Why a state can't be served or read.
#[derive(Debug, thiserror::Error)]
pub enum PgStateError {
    /// Another host serves the state.
    #[error("the state is served by the host `{host}`")]
    Served {
        /// The host's name.
        host: String,
    },
    /// The state was moved and can no longer be served here.
    #[error("the state was moved to `{to}`, and serves no more; it can still be read")]
    Moved {
        /// The new location.
        to: String,
    },
    /// The state has encrypted stores, and the key is missing or wrong.
    #[error("the stores {stores} are encrypted, and {why}; nothing was started")]
    Sealed {
        /// The stores' names.
        stores: String,
        /// What is wrong with the key.
        why: String,
    },
    /// The state does not exist yet: no host has served it.
    #[error("{0}")]
    Absent(String),
    /// The state is damaged. Holds the reason.
    #[error("{0}")]
    Broken(String),
    /// The server is unreachable or refuses, or the tables are of a later version.
    #[error("{0}")]
    Database(String),
}

impl From<PgFailure> for PgStateError {
    fn from(failure: PgFailure) -> Self {
        match failure {
            PgFailure::Absent(why) => Self::Absent(why),
            failure => Self::Database(failure.text()),
        }
    }
}

/// Counters of the writer since the start.
#[derive(Debug, Default)]
struct PgWriterCounters {
    commits: AtomicU64,
    entries: AtomicU64,
    /// The number of times that the journal refused writes for a while. Work that was in progress then must be checked again.
    outages: tokio::sync::watch::Sender<u64>,
    committed: tokio::sync::watch::Sender<u64>,
    /// The last row seen, of any host.
    seen: AtomicU64,
}

/// A state that this host serves. Clones share it.
#[derive(Debug, Clone)]
pub struct PgState {
    inner: Arc<PgStateInner>,
}

#[derive(Debug)]
struct PgStateInner {
    database: PgDatabase,
    queue: Arc<PgWriterQueue>,
    counters: Arc<PgWriterCounters>,
    lease: Arc<Lease>,
    /// A run of the agent has begun.
    begun: AtomicBool,
    /// Opens and seals encrypted content.
    seals: Arc<StateSealer>,
    over: CancellationToken,
    tasks: std::sync::Mutex<Vec<JoinHandle<()>>>,
}

/// Checks that a failover keeps acknowledged commits, if the options require that.
///
/// # Errors
/// A failover may lose commits, or the server is unreachable.
async fn check_protected(database: &PgDatabase, serving: &ServingOptions) -> Result<(), PgStateError> {
    database.read(async |_| Ok(())).await?;
    match database.failover_risk() {
        Some(why) if serving.synchronous => Err(PgStateError::Database(format!(
            "{why}, and two servers may take writes: set `synchronous_standby_names` there, name one server, or accept it with \
             `failover = \"asynchronous\"` in `[state]`"
        ))),
        Some(_) | None => Ok(()),
    }
}

impl PgState {
    /// Takes the lease, creates or migrates the tables, and verifies the new events of every chain. Content that is not sealed with
    /// the key yet is sealed before this returns, while no other host serves the state. `patience`: how long to wait for another
    /// host's lease; `None`: without a limit. The state's tasks run on the caller's runtime.
    ///
    /// # Errors
    /// Another host keeps the lease, the state was moved, a chain is broken, the key of encrypted stores is missing or wrong, the
    /// server is unreachable, or a failover may lose acknowledged commits.
    pub async fn open(
        database: PgDatabase,
        serving: ServingOptions,
        patience: Option<Duration>,
    ) -> Result<Self, PgStateError> {
        if !(MIN_LEASE..=MAX_LEASE).contains(&serving.lease) {
            return Err(PgStateError::Database(format!(
                "`lease_ms` is {}; it must lie between {} and {}",
                serving.lease.as_millis(),
                MIN_LEASE.as_millis(),
                MAX_LEASE.as_millis()
            )));
        }
        check_protected(&database, &serving).await?;
        let first = seal::check_key(&database, &serving).await?;
        if first.due {
            seal::reseal_everything(&database, &serving, &first, patience).await?;
        }
        let until = patience.map(|patience| tokio::time::Instant::now() + patience);
        let lease = loop {
            match lease::acquire_lease(&database, &serving).await? {
                lease::LeaseAcquisition::Ours(lease) => break lease,
                lease::LeaseAcquisition::Theirs(host) => {
                    if until.is_some_and(|until| tokio::time::Instant::now() >= until) {
                        return Err(PgStateError::Served { host });
                    }
                    tokio::time::sleep(LOOK).await;
                }
            }
        };
        let over = CancellationToken::new();
        let renewing = spawn_task(Arc::clone(&lease).renew_until_end(database.clone(), over.clone()));
        // Another host may have changed the key during the wait for the lease.
        let settled = async {
            check::verify_chains(&database).await?;
            seal::settle_key(&database, &serving).await
        };
        let seals = match settled.await {
            Ok(seals) => seals,
            Err(error) => {
                over.cancel();
                renewing.abort();
                lease.release(&database).await;
                return Err(error);
            }
        };
        let queue = Arc::new(PgWriterQueue::new(Bounds {
            entries: serving.queue_entries,
            bytes: serving.queue_bytes,
            group_entries: 2048,
            group_bytes: 2 * 1024 * 1024,
        }));
        let counters = Arc::<PgWriterCounters>::default();
        let writer = Writer {
            database: database.clone(),
            queue: Arc::clone(&queue),
            counters: Arc::clone(&counters),
            lease: Arc::clone(&lease),
            seals: Arc::clone(&seals),
            woken: std::sync::Mutex::default(),
        };
        let tasks = std::sync::Mutex::new(vec![spawn_task(writer.run()), renewing]);
        Ok(Self {
            inner: Arc::new(PgStateInner {
                database,
                queue,
                counters,
                lease,
                begun: AtomicBool::new(false),
                seals,
                over,
                tasks,
            }),
        })
    }

    /// The journal for the present start of the agent; see [`Self::begin_run`].
    #[must_use]
    pub fn journal(&self) -> Arc<PgJournal> {
        let number = self.inner.lease.number();
        Arc::new(PgJournal::new(Arc::clone(&self.inner), Some(number)))
    }

    /// The journal for tasks that survive a restart of the agent.
    #[must_use]
    pub fn lasting_journal(&self) -> Arc<PgJournal> {
        Arc::new(PgJournal::new(Arc::clone(&self.inner), None))
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> PgDatabase {
        self.inner.database.clone()
    }

    /// A reader of the same database.
    #[must_use]
    pub fn reader(&self) -> PgReader {
        PgReader {
            seals: Arc::clone(&self.inner.seals),
            ..PgReader::new(self.inner.database.clone())
        }
    }

    /// The number of transactions of this host since the start, and the number of events (of all hosts, if several serve).
    #[must_use]
    pub fn write_counts(&self) -> (u64, u64) {
        let counters = &self.inner.counters;
        let events = if self.is_shared() {
            counters.seen.load(Ordering::Relaxed)
        } else {
            counters.entries.load(Ordering::Relaxed)
        };
        (counters.commits.load(Ordering::Relaxed), events)
    }

    /// A counter that changes after each commit with events. It wakes readers.
    #[must_use]
    pub fn watch_commits(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.counters.committed.subscribe()
    }

    /// A counter that changes when the journal accepts writes again. Turns that ended in the meantime must be resumed.
    #[must_use]
    pub fn watch_outages(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.counters.outages.subscribe()
    }

    /// Fires when another host has taken the lease. This host can then only shut down.
    #[must_use]
    pub fn fence_signal(&self) -> CancellationToken {
        self.inner.lease.fence_signal()
    }

    /// Whether this host serves the agent together with others.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.lease.sharing == StateSharing::Shared
    }

    /// Whether this host does the work that only one host may do. Always true for a host that has the agent alone.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        !self.is_shared() || self.inner.lease.is_leader()
    }

    /// Call this before each start of the agent. If hosts share the agent, each start is a new run: the sessions of the previous
    /// run become free, and its unfinished work is resumed like that of a lost host.
    ///
    /// # Errors
    /// The server is unreachable, or one host has the whole agent.
    pub async fn begin_run(&self) -> Result<(), PgStateError> {
        let inner = &self.inner;
        let begun = inner.begun.swap(true, Ordering::SeqCst);
        if !self.is_shared() || !(begun || inner.lease.is_fenced()) {
            return Ok(());
        }
        inner.lease.rejoin(&inner.database).await?;
        seal::check_key_unchanged(&inner.database, &inner.seals).await?;
        inner.queue.accept_again();
        Ok(())
    }

    /// The fencing token, which decides whether this host may begin something now.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        FencingToken(Arc::clone(&self.inner.lease))
    }

    /// Runs a write that is not an event, in the journal's order.
    async fn run(&self, work: PgWriterWork) -> Result<(), JournalError> {
        self.inner.queue.push(work)?.wait_until_durable().await
    }

    /// Finishes queued writes, marks the chains as verified, and releases the lease. Later writes are refused.
    pub async fn close(&self) {
        let inner = &self.inner;
        inner.queue.close();
        let tasks: Vec<_> = {
            let mut tasks = inner
                .tasks
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            tasks.drain(..).collect()
        };
        if tasks.is_empty() {
            return;
        }
        let mut tasks = tasks.into_iter();
        if let Some(writer) = tasks.next()
            && tokio::time::timeout(LAST, writer).await.is_err()
        {
            tracing::error!("what waited for PostgreSQL was not written in time");
        }
        inner.over.cancel();
        for task in tasks {
            let _ended = tokio::time::timeout(LAST, task).await; // silent-ok: the lease expires by itself
        }
        if !inner.lease.is_fenced() {
            inner.lease.release(&inner.database).await;
        }
    }
}

/// Decides whether this host may begin an inference or an effect.
#[derive(Debug, Clone)]
pub struct FencingToken(Arc<Lease>);

impl FencingToken {
    /// Whether this host holds the lease. The answer stays true until the end of this transaction.
    pub(crate) async fn is_held(&self, session: &PgConnection) -> Result<bool, PgFailure> {
        let number = self.0.number();
        if self.0.sharing == StateSharing::Shared {
            let sql = "SELECT 1 FROM runs WHERE run = $1 AND NOT gone FOR SHARE";
            return Ok(session.query_first(sql, &[&number]).await?.is_some());
        }
        let sql = "SELECT epoch FROM leases WHERE session = $1 AND run IS NULL FOR SHARE";
        let found = session.query_first(sql, &[&lease::AGENT]).await?;
        let epoch: Option<i64> = found.map(|row| row.try_get(0)).transpose()?;
        Ok(epoch == Some(number))
    }

    /// Waits until this host may begin something, for at most the lease's length; a restarted server is back by then.
    ///
    /// # Errors
    /// Another host has the lease; or the last renewal, or the last news of other hosts, is older than two thirds of the lease.
    pub async fn wait_until_granted(&self) -> Result<(), JournalError> {
        let until = tokio::time::Instant::now() + self.0.time;
        loop {
            match self.0.check_fresh() {
                Ok(()) => return Ok(()),
                Err(why) if self.0.is_fenced() || tokio::time::Instant::now() >= until => {
                    return Err(why);
                }
                Err(_) => tokio::time::sleep(WAIT).await, // silent-ok: told at the end of the patience
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends by the queue's end or the token; `PgState::close` awaits the handle"
)]
fn spawn_task(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(task)
}
