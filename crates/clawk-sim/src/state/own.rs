//! One host process's part of the state: its write queue, and its lease by its own clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalError, JournalTicket};
use clawk_proto::SessionId;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::server::{LEASE_MS, SimCommitOutcome, SimStateServer, name};
use crate::rng::SeededRng;

/// How long a write or a read is retried while the server is unreachable, in milliseconds.
pub(super) const HOLD_MS: u64 = 1_500;
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a host that may not begin an effect checks again.
const WAIT: Duration = Duration::from_millis(50);
/// The maximum number of queued writes.
const QUEUED: usize = 4_096;

type WriteAckSender = oneshot::Sender<Result<(), JournalError>>;

#[derive(Debug)]
pub(super) enum SimWriterWork {
    Append(Batch),
    Release(SessionId, u64),
    Flush,
}

#[derive(Debug)]
struct SimWriterItem {
    work: SimWriterWork,
    /// The start of the agent that this write belongs to; `None`: any start.
    number: Option<usize>,
    told: WriteAckSender,
    since_ms: u64,
    /// Set if the connection broke at the commit: the result, or `None` if the commit did not reach the server.
    doubt: Option<Option<SimCommitOutcome>>,
}

#[derive(Debug)]
pub(super) struct SimHeldLease {
    pub(super) number: usize,
    /// The host's own clock, and the time of its last renewal on that clock.
    pub(super) now_ms: u64,
    renewed_ms: u64,
    /// The time of the last request for the other hosts' changes; everything before it is known.
    pub(super) asked_ms: u64,
    pub(super) heard_ms: u64,
    pub(super) fenced: CancellationToken,
    pub(super) sessions: BTreeMap<SessionId, u64>,
    /// Sessions with failed writes.
    pub(super) unwritten: BTreeSet<SessionId>,
    pub(super) leads: bool,
    queue: VecDeque<SimWriterItem>,
    refusing: Option<JournalError>,
    begun: bool,
}

fn sessions_of(work: &SimWriterWork) -> Vec<SessionId> {
    match work {
        SimWriterWork::Append(batch) => batch.entries.iter().map(|entry| entry.session).collect(),
        SimWriterWork::Release(..) | SimWriterWork::Flush => Vec::new(),
    }
}

/// The state of one process.
#[derive(Debug)]
pub(crate) struct HostProcessState {
    host: usize,
    pub(super) name: String,
    pub(super) server: SimStateServer,
    held: Mutex<SimHeldLease>,
    pub(crate) bell: Notify,
    pub(super) committed: watch::Sender<u64>,
    outages: watch::Sender<u64>,
}

/// Faults of the writer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriterFaults {
    /// How many of the oldest writes are written at most.
    pub(crate) most: usize,
    /// Once in this many commits, the connection breaks; 0: never.
    pub(crate) breaks: usize,
}

impl HostProcessState {
    /// Creates a process that joins the other hosts.
    pub(crate) fn new(host: usize, server: SimStateServer) -> Arc<Self> {
        let held = SimHeldLease {
            number: server.join_run(host, None),
            now_ms: 0,
            renewed_ms: 0,
            asked_ms: 0,
            heard_ms: 0,
            fenced: CancellationToken::new(),
            sessions: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            leads: false,
            queue: VecDeque::new(),
            refusing: None,
            begun: false,
        };
        Arc::new(Self {
            host,
            name: name(host),
            server,
            held: Mutex::new(held),
            bell: Notify::new(),
            committed: watch::Sender::new(0),
            outages: watch::Sender::new(0),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SimHeldLease> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn number(&self) -> usize {
        self.lock().number
    }

    pub(crate) fn fence_signal(&self) -> CancellationToken {
        self.lock().fenced.clone()
    }

    pub(crate) fn watch_outages(&self) -> watch::Receiver<u64> {
        self.outages.subscribe()
    }

    pub(super) fn lost_error(&self) -> JournalError {
        JournalError::Fenced {
            host: self.name.clone(),
        }
    }

    /// Called before each start of the agent. Every start except the first is a new run.
    ///
    /// # Errors
    /// The server is unreachable.
    pub(crate) async fn begin_run(&self) -> Result<(), JournalError> {
        let begun = std::mem::replace(&mut self.lock().begun, true);
        if !begun && !self.fence_signal().is_cancelled() {
            return Ok(());
        }
        self.wait_until_reachable(0).await?;
        let mut held = self.lock();
        let number = self.server.join_run(self.host, Some(held.number));
        held.fenced.cancel();
        (held.number, held.renewed_ms, held.heard_ms) = (number, held.now_ms, held.now_ms);
        held.leads = false;
        (held.fenced, held.refusing) = (CancellationToken::new(), None);
        held.sessions.clear();
        held.unwritten.clear();
        Ok(())
    }

    pub(super) fn fence(&self) {
        let waiting = {
            let mut held = self.lock();
            held.leads = false;
            held.sessions.clear();
            held.fenced.cancel();
            held.refusing = Some(self.lost_error());
            std::mem::take(&mut held.queue)
        };
        for item in waiting {
            let _gone = item.told.send(Err(self.lost_error())); // silent-ok: nobody waits
        }
    }

    /// Advances this host's clock.
    pub(crate) fn pass_time(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    /// Renews the lease if it is time.
    pub(crate) fn renew(&self) {
        let (number, due) = {
            let held = self.lock();
            (
                held.number,
                held.now_ms.saturating_sub(held.renewed_ms) >= LEASE_MS / 3 && !held.fenced.is_cancelled(),
            )
        };
        if !due || !self.server.is_near(self.host) {
            return;
        }
        if self.server.renew_run(number) {
            let mut held = self.lock();
            held.renewed_ms = held.now_ms;
        } else {
            self.fence();
        }
    }

    /// Checks that an effect may begin here: the last renewal must be younger than two thirds of the lease.
    ///
    /// # Errors
    /// The effect may not begin.
    pub(crate) fn check_fresh(&self) -> Result<(), String> {
        let held = self.lock();
        let young = |since_ms: u64| held.now_ms.saturating_sub(since_ms) < LEASE_MS * 2 / 3;
        if young(held.renewed_ms) && young(held.heard_ms) && !held.fenced.is_cancelled() {
            return Ok(());
        }
        Err("this host's lease is not known to be its own".to_owned())
    }

    /// As [`Self::check_fresh`], but waits.
    ///
    /// # Errors
    /// The effect may not begin for the duration of one lease.
    pub(crate) async fn wait_until_granted(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_millis(LEASE_MS);
        loop {
            match self.check_fresh() {
                Err(_) if !self.fence_signal().is_cancelled() && Instant::now() < until => sleep(WAIT).await,
                said => return said,
            }
        }
    }

    /// Waits until the server is reachable, for at most `hold_ms`.
    pub(super) async fn wait_until_reachable(&self, hold_ms: u64) -> Result<(), JournalError> {
        let until = Instant::now() + Duration::from_millis(hold_ms);
        loop {
            // Let other tasks run first.
            tokio::task::yield_now().await;
            if self.server.is_near(self.host) {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(JournalError::Away("the server is away".to_owned()));
            }
            sleep(AGAIN).await;
        }
    }

    pub(super) fn push(
        &self,
        work: SimWriterWork,
        number: Option<usize>,
    ) -> Result<JournalTicket, JournalError> {
        let (told, ticket) = JournalTicket::new();
        let mut held = self.lock();
        let full = (held.queue.len() >= QUEUED).then_some(JournalError::Full { limit: QUEUED });
        if let Some(cause) = held.refusing.clone().or(full) {
            held.unwritten.extend(sessions_of(&work));
            return Err(cause);
        }
        let since_ms = held.now_ms;
        held.queue.push_back(SimWriterItem {
            work,
            number,
            told,
            since_ms,
            doubt: None,
        });
        Ok(ticket)
    }

    /// Writes a part of the queue. Writes that wait too long are refused until the server is back; then the agent starts again.
    pub(crate) fn write(&self, rng: &mut SeededRng, how: WriterFaults) {
        if !self.server.is_near(self.host) {
            let mut held = self.lock();
            let late = |item: &SimWriterItem| held.now_ms.saturating_sub(item.since_ms) >= HOLD_MS;
            if held.refusing.is_none() && held.queue.front().is_some_and(late) {
                let cause = JournalError::Away("the server is away".to_owned());
                held.refusing = Some(cause.clone());
                let waiting = std::mem::take(&mut held.queue);
                for item in waiting {
                    held.unwritten.extend(sessions_of(&item.work));
                    let _gone = item.told.send(Err(cause.clone())); // silent-ok: nobody waits
                }
            }
            return;
        }
        if self
            .lock()
            .refusing
            .take_if(|cause| matches!(cause, JournalError::Away(_)))
            .is_some()
        {
            self.outages.send_modify(|outages| *outages += 1);
        }
        for _ in 0..how.most {
            let Some(item) = self.lock().queue.pop_front() else {
                return;
            };
            let breaks = how.breaks > 0 && rng.one_in(how.breaks);
            if let Some(item) = self.commit_item(item, breaks.then(|| rng.one_in(2))) {
                self.lock().queue.push_front(item);
                return;
            }
        }
    }

    /// Leaves in order. Sessions with failed writes are taken over by other hosts, like those of a lost host.
    pub(crate) fn end_orderly(&self) {
        let held = self.lock();
        self.server.end_run(held.number, &held.unwritten);
    }

    /// The oldest write may or may not reach the server; then this host ends.
    pub(crate) fn last_words(&self) {
        let (number, oldest) = {
            let mut held = self.lock();
            (held.number, held.queue.pop_front())
        };
        if self.server.is_near(self.host)
            && let Some(SimWriterItem {
                work: SimWriterWork::Append(batch),
                doubt: None,
                ..
            }) = oldest
        {
            let _nobody = self.server.commit_batch(number, &batch);
        }
    }

    /// Commits one write. Returns it if its result is unknown. `breaks`: the connection breaks, after (true) or before (false) the
    /// server got the write.
    fn commit_item(&self, mut item: SimWriterItem, breaks: Option<bool>) -> Option<SimWriterItem> {
        let number = self.number();
        let committed = match (&item.work, item.doubt.take()) {
            (SimWriterWork::Append(_), _) if item.number.is_some_and(|of| of != number) => {
                SimCommitOutcome::Written(Some(self.lost_error()), Vec::new())
            }
            // A committed batch is recognized by its first event.
            (SimWriterWork::Append(batch), Some(before))
                if batch
                    .entries
                    .first()
                    .is_some_and(|entry| self.server.has_event(entry.event_id)) =>
            {
                before.unwrap_or(SimCommitOutcome::Written(None, Vec::new()))
            }
            (SimWriterWork::Append(batch), _) => {
                if let Some(after) = breaks {
                    let done = after.then(|| self.server.commit_batch(number, batch));
                    item.doubt = Some(done);
                    return Some(item);
                }
                self.server.commit_batch(number, batch)
            }
            (SimWriterWork::Release(session, epoch), _) => {
                self.server.release_session(number, *session, *epoch);
                SimCommitOutcome::Written(None, Vec::new())
            }
            (SimWriterWork::Flush, _) => SimCommitOutcome::Written(None, Vec::new()),
        };
        match committed {
            SimCommitOutcome::Written(out, taken) => {
                self.take_sessions(number, taken);
                let _gone = item.told.send(out.map_or(Ok(()), Err)); // silent-ok: nobody waits
                self.committed.send_modify(|commits| *commits += 1);
            }
            SimCommitOutcome::Gone => {
                let _gone = item.told.send(Err(self.lost_error())); // silent-ok: nobody waits
                self.fence();
            }
        }
        None
    }

    pub(super) fn take_sessions(&self, number: usize, sessions: Vec<(SessionId, u64)>) {
        let mut held = self.lock();
        if held.number == number && !held.fenced.is_cancelled() {
            held.sessions.extend(sessions);
        }
    }
}
