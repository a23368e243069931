//! The kernel's ports on the shared state, for one start of the agent.

use std::sync::Arc;

use clawk_kernel::ports::{
    AnswerKey, Arrived, Batch, ConversationKey, Holder, Journal, JournalError, Later, News, OpenEffect,
    OpenMessage, Order, OutboxRow, Recorded, Scan, SessionRow, Shared, Spent, StoredAnswer, Ticket,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio::sync::watch;
use uuid::Uuid;

use super::own::{HOLD_MS, Own, Work};
use super::server::Server;

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

    /// Writes something that is not an event.
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
