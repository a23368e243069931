//! The kernel's ports on the shared state, for one start of the agent.

use std::sync::Arc;

use clawk_kernel::ports::{
    AnswerKey, Batch, BoxFuture, ConversationKey, EarlierArrival, HostCluster, HostNews, HostOrder, Journal,
    JournalError, JournalScan, JournalTicket, OpenEffect, OpenMessage, OutboxRow, RecordedEvent,
    SessionHolder, SessionRow, SpentAmount, StoredAnswer,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio::sync::watch;
use uuid::Uuid;

use super::own::{HOLD_MS, HostProcessState, SimWriterWork};
use super::server::SimStateServer;

/// The ports of one start of the agent.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    own: Arc<HostProcessState>,
    number: usize,
}

impl Handle {
    pub(crate) fn new(own: Arc<HostProcessState>) -> Self {
        let number = own.number();
        Self { own, number }
    }

    fn is_over(&self) -> bool {
        let held = self.own.lock();
        held.number != self.number || held.fenced.is_cancelled()
    }

    /// Queues a write that is not an event.
    fn write<'a, T: Send + 'a>(
        &'a self,
        what: impl FnOnce(&SimStateServer, usize) -> T + Send + 'a,
    ) -> BoxFuture<'a, Result<T, JournalError>> {
        Box::pin(async move {
            if self.is_over() {
                return Err(self.own.lost_error());
            }
            self.own.wait_until_reachable(0).await?;
            Ok(what(&self.own.server, self.number))
        })
    }
}

/// Runs a read while the server is reachable.
macro_rules! read {
    ($self:ident, $journal:ident => $what:expr) => {
        Box::pin(async move {
            $self.own.wait_until_reachable(HOLD_MS).await?;
            let $journal = &*$self.own.server.journal;
            $what.await
        })
    };
}

impl Journal for Handle {
    fn submit_batch(&self, batch: Batch) -> Result<JournalTicket, JournalError> {
        if let Some(fault) = batch.find_fault() {
            return Err(fault);
        }
        if self.number != self.own.number() {
            return Err(self.own.lost_error());
        }
        self.own.push(SimWriterWork::Append(batch), Some(self.number))
    }

    fn watch_commits(&self) -> watch::Receiver<u64> {
        self.own.committed.subscribe()
    }

    fn scan_events(&self, scan: JournalScan) -> BoxFuture<'_, Result<Vec<RecordedEvent>, JournalError>> {
        read!(self, journal => journal.scan_events(scan))
    }

    fn last_row_of(&self, kind: &'static str) -> BoxFuture<'_, Result<Option<u64>, JournalError>> {
        read!(self, journal => journal.last_row_of(kind))
    }

    fn answer_to(&self, key: AnswerKey) -> BoxFuture<'_, Result<Option<StoredAnswer>, JournalError>> {
        Box::pin(async move {
            self.own.wait_until_reachable(HOLD_MS).await?;
            let server = &self.own.server;
            let found = server.journal.answer_to(key).await?;
            let age_us = server.answer_age_us(key);
            Ok(found.map(|found| StoredAnswer { age_us, ..found }))
        })
    }

    fn read_content(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        read!(self, journal => journal.read_content(digest))
    }

    fn open_messages(&self) -> BoxFuture<'_, Result<Vec<OpenMessage>, JournalError>> {
        read!(self, journal => journal.open_messages())
    }

    fn message_session(&self, id: MessageId) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        read!(self, journal => journal.message_session(id))
    }

    fn find_arrival(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<EarlierArrival>, JournalError>> {
        let (channel, id) = (channel.to_owned(), platform_id.to_owned());
        read!(self, journal => journal.find_arrival(&channel, &id, now))
    }

    fn conversation_session(
        &self,
        key: &ConversationKey,
    ) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        let key = key.clone();
        read!(self, journal => journal.conversation_session(&key))
    }

    fn owed_answers(
        &self,
        channel: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        let channel = channel.to_owned();
        read!(self, journal => journal.owed_answers(&channel, limit))
    }

    fn read_outbox(&self, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        read!(self, journal => journal.read_outbox(limit))
    }

    fn list_sessions(&self, limit: usize) -> BoxFuture<'_, Result<Vec<SessionRow>, JournalError>> {
        read!(self, journal => journal.list_sessions(limit))
    }

    fn spent_since(&self, hour: i64) -> BoxFuture<'_, Result<Vec<SpentAmount>, JournalError>> {
        read!(self, journal => journal.spent_since(hour))
    }

    fn open_effects(&self) -> BoxFuture<'_, Result<Vec<OpenEffect>, JournalError>> {
        read!(self, journal => journal.open_effects())
    }

    fn host_cluster(&self) -> Option<Arc<dyn HostCluster>> {
        Some(Arc::new(self.clone()))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        let ticket = self.own.push(SimWriterWork::Flush, None);
        Box::pin(async move { ticket?.wait_until_durable().await })
    }
}

impl HostCluster for Handle {
    fn host_name(&self) -> &str {
        &self.own.name
    }

    fn is_leader(&self) -> bool {
        self.own.lock().leads
    }

    fn is_lost(&self) -> bool {
        self.is_over()
    }

    fn holds_session(&self, session: SessionId) -> bool {
        !self.is_over() && self.own.lock().sessions.contains_key(&session)
    }

    fn hold_session(&self, session: SessionId) -> BoxFuture<'_, Result<SessionHolder, JournalError>> {
        Box::pin(async move {
            if self.holds_session(session) {
                return Ok(SessionHolder::Here);
            }
            let taken = self
                .write(move |server, run| server.take_session(run, session))
                .await?;
            let (holder, epoch) = taken.ok_or_else(|| self.own.lost_error())?;
            if !matches!(holder, SessionHolder::There(_)) {
                self.own.take_sessions(self.number, vec![(session, epoch)]);
            }
            Ok(holder)
        })
    }

    fn release_session(&self, session: SessionId) {
        if self.is_over() {
            return;
        }
        let epoch = {
            let mut held = self.own.lock();
            let whole = !held.unwritten.contains(&session);
            whole.then(|| held.sessions.remove(&session)).flatten()
        };
        if let Some(epoch) = epoch {
            let _queued = self
                .own
                .push(SimWriterWork::Release(session, epoch), Some(self.number)); // silent-ok: it is free when this run ends
        }
    }

    fn mark_unsettled(&self, sessions: &[SessionId]) {
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

    fn take_over(&self) -> BoxFuture<'_, Result<Vec<SessionId>, JournalError>> {
        Box::pin(async move {
            let Some((leads, taken)) = self.write(|server, run| server.take_over_sessions(run)).await? else {
                self.own.fence();
                return Err(self.own.lost_error());
            };
            if leads && !self.is_over() {
                self.own.lock().leads = true;
            }
            self.own.take_sessions(self.number, taken.clone());
            Ok(taken.into_iter().map(|(session, _)| session).collect())
        })
    }

    fn mark_settled(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<(), JournalError>> {
        self.write(move |server, run| server.mark_settled(run, &sessions))
    }

    fn shared_secret(&self, id: Uuid, fresh: [u8; 32]) -> BoxFuture<'_, Result<[u8; 32], JournalError>> {
        self.write(move |server, _| server.ensure_secret(id, fresh))
    }

    fn poll_news(&self, look: bool) -> BoxFuture<'_, Result<HostNews, JournalError>> {
        Box::pin(async move {
            self.own.wait_until_reachable(0).await?;
            {
                let mut held = self.own.lock();
                held.asked_ms = held.now_ms;
            }
            Ok(self.own.server.host_news(self.own.number(), look))
        })
    }

    fn confirm_followed(&self) {
        let mut held = self.own.lock();
        held.heard_ms = held.asked_ms;
    }

    fn wait_for_wake(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.own.bell.notified())
    }

    fn give_order(&self, order: HostOrder) -> BoxFuture<'_, Result<(), JournalError>> {
        self.write(move |server, _| server.add_order(order))
    }

    fn order_outcome(&self, id: Uuid) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        self.write(move |server, _| server.take_outcome(id))
    }

    fn report_outcome(&self, id: Uuid, outcome: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>> {
        self.write(move |server, _| server.record_outcome(id, outcome))
    }
}
