//! What one host's process has of the state: its queue of writes, and its lease by its own clock.

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

/// How long a write or a read is tried again while the server is away, milliseconds.
pub(super) const HOLD_MS: u64 = 1_500;
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a host that may not begin something looks whether it may.
const WAIT: Duration = Duration::from_millis(50);
/// What may wait to be written.
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
    /// The start of the agent that it is of; `None`: of any.
    number: Option<usize>,
    told: WriteAckSender,
    since_ms: u64,
    /// The connection broke at its commit. What became of it then, unless the server did not get it.
    doubt: Option<Option<SimCommitOutcome>>,
}

#[derive(Debug)]
pub(super) struct SimHeldLease {
    pub(super) number: usize,
    /// This host's own clock, and its last renewal by it.
    pub(super) now_ms: u64,
    renewed_ms: u64,
    /// When it asked what the others have done, and of what it knows all.
    pub(super) asked_ms: u64,
    pub(super) heard_ms: u64,
    pub(super) fenced: CancellationToken,
    pub(super) sessions: BTreeMap<SessionId, u64>,
    /// Of which something was not written.
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

/// Of one process.
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

/// What faults do to the writer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriterFaults {
    /// The oldest are written, at most so many.
    pub(crate) most: usize,
    /// Once in so many times the connection breaks at the commit; 0: never.
    pub(crate) breaks: usize,
}

impl HostProcessState {
    /// The process begins and joins the others.
    pub(crate) fn new(host: usize, server: SimStateServer) -> Arc<Self> {
        let held = SimHeldLease {
            number: server.join(host, None),
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

    pub(crate) fn fenced(&self) -> CancellationToken {
        self.lock().fenced.clone()
    }

    pub(crate) fn outages(&self) -> watch::Receiver<u64> {
        self.outages.subscribe()
    }

    pub(super) fn lost(&self) -> JournalError {
        JournalError::Fenced {
            host: self.name.clone(),
        }
    }

    /// Before each start of the agent: every one but the first is a run of its own.
    ///
    /// # Errors
    /// The server is away.
    pub(crate) async fn begin(&self) -> Result<(), JournalError> {
        let begun = std::mem::replace(&mut self.lock().begun, true);
        if !begun && !self.fenced().is_cancelled() {
            return Ok(());
        }
        self.reached(0).await?;
        let mut held = self.lock();
        let number = self.server.join(self.host, Some(held.number));
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
            held.refusing = Some(self.lost());
            std::mem::take(&mut held.queue)
        };
        for item in waiting {
            let _gone = item.told.send(Err(self.lost())); // silent-ok: nobody waits
        }
    }

    /// Time passes on this host.
    pub(crate) fn pass(&self, ms: u64) {
        self.lock().now_ms += ms;
    }

    /// Renews the lease when it is time.
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
        if self.server.renew(number) {
            let mut held = self.lock();
            held.renewed_ms = held.now_ms;
        } else {
            self.fence();
        }
    }

    /// Whether something may begin here: the last renewal is younger than two thirds of the lease.
    ///
    /// # Errors
    /// It may not.
    pub(crate) fn fresh(&self) -> Result<(), String> {
        let held = self.lock();
        let young = |since_ms: u64| held.now_ms.saturating_sub(since_ms) < LEASE_MS * 2 / 3;
        if young(held.renewed_ms) && young(held.heard_ms) && !held.fenced.is_cancelled() {
            return Ok(());
        }
        Err("this host's lease is not known to be its own".to_owned())
    }

    /// The same, waited for.
    ///
    /// # Errors
    /// It may not for one lease's time.
    pub(crate) async fn granted(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_millis(LEASE_MS);
        loop {
            match self.fresh() {
                Err(_) if !self.fenced().is_cancelled() && Instant::now() < until => sleep(WAIT).await,
                said => return said,
            }
        }
    }

    /// The server can be asked; it is waited for so long.
    pub(super) async fn reached(&self, hold_ms: u64) -> Result<(), JournalError> {
        let until = Instant::now() + Duration::from_millis(hold_ms);
        loop {
            // Others may do something before.
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

    /// Writes some of what waits. What waits for too long is refused, until the server is back: then the agent begins anew.
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
            if let Some(item) = self.one(item, breaks.then(|| rng.one_in(2))) {
                self.lock().queue.push_front(item);
                return;
            }
        }
    }

    /// It ends in order. Sessions of which something was not written are taken over like those of a lost host.
    pub(crate) fn leave(&self) {
        let held = self.lock();
        self.server.leave(held.number, &held.unwritten);
    }

    /// The oldest write reaches the server, or does not, and this host ends.
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
            let _nobody = self.server.commit(number, &batch);
        }
    }

    /// Back, if it is not known what became of it. `breaks`: the connection does so, before or after the server got it.
    fn one(&self, mut item: SimWriterItem, breaks: Option<bool>) -> Option<SimWriterItem> {
        let number = self.number();
        let committed = match (&item.work, item.doubt.take()) {
            (SimWriterWork::Append(_), _) if item.number.is_some_and(|of| of != number) => {
                SimCommitOutcome::Written(Some(self.lost()), Vec::new())
            }
            // It is found by its first event.
            (SimWriterWork::Append(batch), Some(before))
                if batch
                    .entries
                    .first()
                    .is_some_and(|entry| self.server.has(entry.event_id)) =>
            {
                before.unwrap_or(SimCommitOutcome::Written(None, Vec::new()))
            }
            (SimWriterWork::Append(batch), _) => {
                if let Some(after) = breaks {
                    let done = after.then(|| self.server.commit(number, batch));
                    item.doubt = Some(done);
                    return Some(item);
                }
                self.server.commit(number, batch)
            }
            (SimWriterWork::Release(session, epoch), _) => {
                self.server.release(number, *session, *epoch);
                SimCommitOutcome::Written(None, Vec::new())
            }
            (SimWriterWork::Flush, _) => SimCommitOutcome::Written(None, Vec::new()),
        };
        match committed {
            SimCommitOutcome::Written(out, taken) => {
                self.takes(number, taken);
                let _gone = item.told.send(out.map_or(Ok(()), Err)); // silent-ok: nobody waits
                self.committed.send_modify(|commits| *commits += 1);
            }
            SimCommitOutcome::Gone => {
                let _gone = item.told.send(Err(self.lost())); // silent-ok: nobody waits
                self.fence();
            }
        }
        None
    }

    pub(super) fn takes(&self, number: usize, sessions: Vec<(SessionId, u64)>) {
        let mut held = self.lock();
        if held.number == number && !held.fenced.is_cancelled() {
            held.sessions.extend(sessions);
        }
    }
}
