//! What one host has of the state: its queue of writes, its lease by its own clock, and the kernel's ports on the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{
    AnswerKey, Arrived, Batch, ConversationKey, Holder, Journal, JournalError, Later, News, OpenEffect,
    OpenMessage, Order, OutboxRow, Recorded, Scan, SessionRow, Shared, Spent, StoredAnswer, Ticket,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::server::{Committed, LEASE_MS, Server, name};
use crate::rng::Rng;

/// How long a write or a read is tried again while the server is away, milliseconds.
const HOLD_MS: u64 = 1_500;
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a host that may not begin something looks whether it may.
const WAIT: Duration = Duration::from_millis(50);
/// What may wait to be written.
const QUEUED: usize = 4_096;

type Told = oneshot::Sender<Result<(), JournalError>>;

#[derive(Debug)]
enum Work {
    Append(Batch),
    Release(SessionId, u64),
    Flush,
}

#[derive(Debug)]
struct Item {
    work: Work,
    /// The start of the agent that it is of; `None`: of any.
    number: Option<usize>,
    told: Told,
    since_ms: u64,
    /// The connection broke at its commit. What became of it then, unless the server did not get it.
    doubt: Option<Option<Committed>>,
}

#[derive(Debug)]
struct Held {
    number: usize,
    /// This host's own clock, and its last renewal by it.
    now_ms: u64,
    renewed_ms: u64,
    /// When it asked what the others have done, and of what it knows all.
    asked_ms: u64,
    heard_ms: u64,
    fenced: CancellationToken,
    sessions: BTreeMap<SessionId, u64>,
    /// Of which something was not written.
    unwritten: BTreeSet<SessionId>,
    leads: bool,
    queue: VecDeque<Item>,
    refusing: Option<JournalError>,
    begun: bool,
}

fn sessions_of(work: &Work) -> Vec<SessionId> {
    match work {
        Work::Append(batch) => batch.entries.iter().map(|entry| entry.session).collect(),
        Work::Release(..) | Work::Flush => Vec::new(),
    }
}

/// Of one process.
#[derive(Debug)]
pub(crate) struct Own {
    host: usize,
    name: String,
    server: Server,
    held: Mutex<Held>,
    pub(crate) bell: Notify,
    committed: watch::Sender<u64>,
    outages: watch::Sender<u64>,
}

/// What faults do to the writer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Writes {
    /// The oldest are written, at most so many.
    pub(crate) most: usize,
    /// Once in so many times the connection breaks at the commit; 0: never.
    pub(crate) breaks: usize,
}

impl Own {
    /// The process begins and joins the others.
    pub(crate) fn new(host: usize, server: Server) -> Arc<Self> {
        let held = Held {
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

    fn lock(&self) -> MutexGuard<'_, Held> {
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

    fn lost(&self) -> JournalError {
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

    fn fence(&self) {
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
    async fn reached(&self, hold_ms: u64) -> Result<(), JournalError> {
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

    fn push(&self, work: Work, number: Option<usize>) -> Result<Ticket, JournalError> {
        let (told, ticket) = Ticket::new();
        let mut held = self.lock();
        let full = (held.queue.len() >= QUEUED).then_some(JournalError::Full { limit: QUEUED });
        if let Some(cause) = held.refusing.clone().or(full) {
            held.unwritten.extend(sessions_of(&work));
            return Err(cause);
        }
        let since_ms = held.now_ms;
        held.queue.push_back(Item {
            work,
            number,
            told,
            since_ms,
            doubt: None,
        });
        Ok(ticket)
    }

    /// Writes some of what waits. What waits for too long is refused, until the server is back: then the agent begins anew.
    pub(crate) fn write(&self, rng: &mut Rng, how: Writes) {
        if !self.server.is_near(self.host) {
            let mut held = self.lock();
            let late = |item: &Item| held.now_ms.saturating_sub(item.since_ms) >= HOLD_MS;
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
            && let Some(Item {
                work: Work::Append(batch),
                doubt: None,
                ..
            }) = oldest
        {
            let _nobody = self.server.commit(number, &batch);
        }
    }

    /// Back, if it is not known what became of it. `breaks`: the connection does so, before or after the server got it.
    fn one(&self, mut item: Item, breaks: Option<bool>) -> Option<Item> {
        let number = self.number();
        let committed = match (&item.work, item.doubt.take()) {
            (Work::Append(_), _) if item.number.is_some_and(|of| of != number) => {
                Committed::Written(Some(self.lost()), Vec::new())
            }
            // It is found by its first event.
            (Work::Append(batch), Some(before))
                if batch
                    .entries
                    .first()
                    .is_some_and(|entry| self.server.has(entry.event_id)) =>
            {
                before.unwrap_or(Committed::Written(None, Vec::new()))
            }
            (Work::Append(batch), _) => {
                if let Some(after) = breaks {
                    let done = after.then(|| self.server.commit(number, batch));
                    item.doubt = Some(done);
                    return Some(item);
                }
                self.server.commit(number, batch)
            }
            (Work::Release(session, epoch), _) => {
                self.server.release(number, *session, *epoch);
                Committed::Written(None, Vec::new())
            }
            (Work::Flush, _) => Committed::Written(None, Vec::new()),
        };
        match committed {
            Committed::Written(out, taken) => {
                self.takes(number, taken);
                let _gone = item.told.send(out.map_or(Ok(()), Err)); // silent-ok: nobody waits
                self.committed.send_modify(|commits| *commits += 1);
            }
            Committed::Gone => {
                let _gone = item.told.send(Err(self.lost())); // silent-ok: nobody waits
                self.fence();
            }
        }
        None
    }

    fn takes(&self, number: usize, sessions: Vec<(SessionId, u64)>) {
        let mut held = self.lock();
        if held.number == number && !held.fenced.is_cancelled() {
            held.sessions.extend(sessions);
        }
    }
}

/// The ports for one start of the agent.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    own: Arc<Own>,
    number: usize,
}

impl Handle {
    pub(crate) fn new(own: Arc<Own>) -> Self {
        let number = own.number();
        Self { own, number }
    }

    fn is_over(&self) -> bool {
        let held = self.own.lock();
        held.number != self.number || held.fenced.is_cancelled()
    }

    /// One of this host's writes that are no events.
    fn write<'a, T: Send + 'a>(
        &'a self,
        what: impl FnOnce(&Server, usize) -> T + Send + 'a,
    ) -> Later<'a, Result<T, JournalError>> {
        Box::pin(async move {
            if self.is_over() {
                return Err(self.own.lost());
            }
            self.own.reached(0).await?;
            Ok(what(&self.own.server, self.number))
        })
    }
}

/// Something that is read, while the server is near.
macro_rules! read {
    ($self:ident, $journal:ident => $what:expr) => {
        Box::pin(async move {
            $self.own.reached(HOLD_MS).await?;
            let $journal = &*$self.own.server.journal;
            $what.await
        })
    };
}

impl Journal for Handle {
    fn submit(&self, batch: Batch) -> Result<Ticket, JournalError> {
        if let Some(fault) = batch.fault() {
            return Err(fault);
        }
        if self.number != self.own.number() {
            return Err(self.own.lost());
        }
        self.own.push(Work::Append(batch), Some(self.number))
    }

    fn watch(&self) -> watch::Receiver<u64> {
        self.own.committed.subscribe()
    }

    fn scan(&self, scan: Scan) -> Later<'_, Result<Vec<Recorded>, JournalError>> {
        read!(self, journal => journal.scan(scan))
    }

    fn last_row_of(&self, kind: &'static str) -> Later<'_, Result<Option<u64>, JournalError>> {
        read!(self, journal => journal.last_row_of(kind))
    }

    fn answer_to(&self, key: AnswerKey) -> Later<'_, Result<Option<StoredAnswer>, JournalError>> {
        Box::pin(async move {
            self.own.reached(HOLD_MS).await?;
            let server = &self.own.server;
            let found = server.journal.answer_to(key).await?;
            let age_us = server.answer_age_us(key);
            Ok(found.map(|found| StoredAnswer { age_us, ..found }))
        })
    }

    fn content(&self, digest: Digest) -> Later<'_, Result<Option<Vec<u8>>, JournalError>> {
        read!(self, journal => journal.content(digest))
    }

    fn open_messages(&self) -> Later<'_, Result<Vec<OpenMessage>, JournalError>> {
        read!(self, journal => journal.open_messages())
    }

    fn message(&self, id: MessageId) -> Later<'_, Result<Option<SessionId>, JournalError>> {
        read!(self, journal => journal.message(id))
    }

    fn arrived(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> Later<'_, Result<Option<Arrived>, JournalError>> {
        let (channel, id) = (channel.to_owned(), platform_id.to_owned());
        read!(self, journal => journal.arrived(&channel, &id, now))
    }

    fn conversation(&self, key: &ConversationKey) -> Later<'_, Result<Option<SessionId>, JournalError>> {
        let key = key.clone();
        read!(self, journal => journal.conversation(&key))
    }

    fn owed(&self, channel: &str, limit: usize) -> Later<'_, Result<Vec<OutboxRow>, JournalError>> {
        let channel = channel.to_owned();
        read!(self, journal => journal.owed(&channel, limit))
    }

    fn outbox(&self, limit: usize) -> Later<'_, Result<Vec<OutboxRow>, JournalError>> {
        read!(self, journal => journal.outbox(limit))
    }

    fn sessions(&self, limit: usize) -> Later<'_, Result<Vec<SessionRow>, JournalError>> {
        read!(self, journal => journal.sessions(limit))
    }

    fn spent_since(&self, hour: i64) -> Later<'_, Result<Vec<Spent>, JournalError>> {
        read!(self, journal => journal.spent_since(hour))
    }

    fn open_effects(&self) -> Later<'_, Result<Vec<OpenEffect>, JournalError>> {
        read!(self, journal => journal.open_effects())
    }

    fn shared(&self) -> Option<Arc<dyn Shared>> {
        Some(Arc::new(self.clone()))
    }

    fn flush(&self) -> Later<'_, Result<(), JournalError>> {
        let ticket = self.own.push(Work::Flush, None);
        Box::pin(async move { ticket?.durable().await })
    }
}

impl Shared for Handle {
    fn host(&self) -> &str {
        &self.own.name
    }

    fn leads(&self) -> bool {
        self.own.lock().leads
    }

    fn is_lost(&self) -> bool {
        self.is_over()
    }

    fn holds(&self, session: SessionId) -> bool {
        !self.is_over() && self.own.lock().sessions.contains_key(&session)
    }

    fn hold(&self, session: SessionId) -> Later<'_, Result<Holder, JournalError>> {
        Box::pin(async move {
            if self.holds(session) {
                return Ok(Holder::Here);
            }
            let taken = self.write(move |server, run| server.hold(run, session)).await?;
            let (holder, epoch) = taken.ok_or_else(|| self.own.lost())?;
            if !matches!(holder, Holder::There(_)) {
                self.own.takes(self.number, vec![(session, epoch)]);
            }
            Ok(holder)
        })
    }

    fn release(&self, session: SessionId) {
        if self.is_over() {
            return;
        }
        let epoch = {
            let mut held = self.own.lock();
            let whole = !held.unwritten.contains(&session);
            whole.then(|| held.sessions.remove(&session)).flatten()
        };
        if let Some(epoch) = epoch {
            let _queued = self.own.push(Work::Release(session, epoch), Some(self.number)); // silent-ok: it is free when this run ends
        }
    }

    fn unsettled(&self, sessions: &[SessionId]) {
        if !self.is_over() {
            self.own.lock().unwritten.extend(sessions);
        }
    }

    fn all_settled(&self, sessions: &[SessionId]) {
        if !self.is_over() {
            let settled = |session: &SessionId| sessions.contains(session);
            self.own.lock().unwritten.retain(|session| !settled(session));
        }
    }

    fn take_over(&self) -> Later<'_, Result<Vec<SessionId>, JournalError>> {
        Box::pin(async move {
            let Some((leads, taken)) = self.write(|server, run| server.look(run)).await? else {
                self.own.fence();
                return Err(self.own.lost());
            };
            if leads && !self.is_over() {
                self.own.lock().leads = true;
            }
            self.own.takes(self.number, taken.clone());
            Ok(taken.into_iter().map(|(session, _)| session).collect())
        })
    }

    fn settled(&self, sessions: Vec<SessionId>) -> Later<'_, Result<(), JournalError>> {
        self.write(move |server, run| server.settled(run, &sessions))
    }

    fn secret(&self, id: Uuid, fresh: [u8; 32]) -> Later<'_, Result<[u8; 32], JournalError>> {
        self.write(move |server, _| server.secret(id, fresh))
    }

    fn news(&self, look: bool) -> Later<'_, Result<News, JournalError>> {
        Box::pin(async move {
            self.own.reached(0).await?;
            {
                let mut held = self.own.lock();
                held.asked_ms = held.now_ms;
            }
            Ok(self.own.server.news(self.own.number(), look))
        })
    }

    fn followed(&self) {
        let mut held = self.own.lock();
        held.heard_ms = held.asked_ms;
    }

    fn woken(&self) -> Later<'_, ()> {
        Box::pin(self.own.bell.notified())
    }

    fn order(&self, order: Order) -> Later<'_, Result<(), JournalError>> {
        self.write(move |server, _| server.order(order))
    }

    fn outcome(&self, id: Uuid) -> Later<'_, Result<Option<Vec<u8>>, JournalError>> {
        self.write(move |server, _| server.outcome(id))
    }

    fn obeyed(&self, id: Uuid, outcome: Vec<u8>) -> Later<'_, Result<(), JournalError>> {
        self.write(move |server, _| server.obeyed(id, outcome))
    }
}
