//! The kernel's `Journal` port on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::{
    AnswerKey, Batch, BoxFuture, ConversationKey, EarlierArrival, HostCluster, Journal, JournalError,
    JournalScan, JournalTicket, OpenEffect, OpenMessage, OutboxRow, RecordedEvent, SessionRow, SpentAmount,
    StoredAnswer,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, SessionId};
use tokio::time::Instant;

use super::queue::{PgWriterWork, sessions_of};
use super::read;
use super::shared::PgShared;
use super::{PgStateInner, StateSharing};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// How long a read is retried while the server is unreachable; a restarted server is back by then.
const HOLD: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);

/// The journal of a state on PostgreSQL.
#[derive(Debug)]
pub struct PgJournal {
    inner: Arc<PgStateInner>,
    /// The number of one start of the agent. After the next start, tasks that still use this journal can record nothing. `None`:
    /// valid across starts.
    number: Option<i64>,
}

impl PgJournal {
    pub(super) const fn new(inner: Arc<PgStateInner>, number: Option<i64>) -> Self {
        Self { inner, number }
    }

    async fn read<T>(
        &self,
        work: impl AsyncFn(&PgConnection) -> Result<T, PgFailure>,
    ) -> Result<T, JournalError> {
        let until = Instant::now() + HOLD;
        loop {
            match self.inner.database.read(&work).await {
                Ok(found) => return Ok(found),
                Err(failure) if failure.is_away() && Instant::now() < until => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(failure) if failure.is_away() => return Err(JournalError::Away(failure.text())),
                Err(failure) => return Err(JournalError::Unreadable(failure.text())),
            }
        }
    }
}

impl Journal for PgJournal {
    fn submit_batch(&self, batch: Batch) -> Result<JournalTicket, JournalError> {
        if let Some(fault) = batch.find_fault() {
            return Err(fault);
        }
        if self
            .number
            .is_some_and(|number| number != self.inner.lease.number())
        {
            return Err(self.inner.lease.lost_error());
        }
        let sessions: Vec<SessionId> = sessions_of(&batch).collect();
        let taken = self.inner.queue.push(PgWriterWork::Append(batch, self.number));
        if taken.is_err() {
            self.inner.lease.not_written(sessions);
        }
        taken
    }

    fn watch_commits(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.counters.committed.subscribe()
    }

    fn scan_events(&self, scan: JournalScan) -> BoxFuture<'_, Result<Vec<RecordedEvent>, JournalError>> {
        let seals = Arc::clone(&self.inner.seals);
        Box::pin(self.read(async move |session| read::scan_journal(session, &seals, &scan).await))
    }

    fn last_row_of(&self, kind: &'static str) -> BoxFuture<'_, Result<Option<u64>, JournalError>> {
        Box::pin(self.read(async move |session| read::last_row_of(session, kind).await))
    }

    fn answer_to(&self, key: AnswerKey) -> BoxFuture<'_, Result<Option<StoredAnswer>, JournalError>> {
        let seals = Arc::clone(&self.inner.seals);
        Box::pin(self.read(async move |session| read::answer_to(session, &seals, key).await))
    }

    fn read_content(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        let seals = Arc::clone(&self.inner.seals);
        Box::pin(self.read(async move |session| read::read_content(session, &seals, digest).await))
    }

    fn open_messages(&self) -> BoxFuture<'_, Result<Vec<OpenMessage>, JournalError>> {
        Box::pin(self.read(async |session| read::open_messages(session).await))
    }

    fn message_session(&self, id: MessageId) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        Box::pin(self.read(async move |session| read::message_session(session, id).await))
    }

    fn find_arrival(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<EarlierArrival>, JournalError>> {
        let (channel, id) = (channel.to_owned(), platform_id.to_owned());
        Box::pin(self.read(async move |session| read::find_arrival(session, &channel, &id, now).await))
    }

    fn conversation_session(
        &self,
        key: &ConversationKey,
    ) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        let key = key.clone();
        Box::pin(self.read(async move |session| read::conversation_session(session, &key).await))
    }

    fn owed_answers(
        &self,
        channel: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        let (channel, seals) = (channel.to_owned(), Arc::clone(&self.inner.seals));
        Box::pin(self.read(async move |session| read::owed_answers(session, &seals, &channel, limit).await))
    }

    fn read_outbox(&self, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        let seals = Arc::clone(&self.inner.seals);
        Box::pin(self.read(async move |session| read::read_outbox(session, &seals, limit).await))
    }

    fn list_sessions(&self, limit: usize) -> BoxFuture<'_, Result<Vec<SessionRow>, JournalError>> {
        Box::pin(self.read(async move |session| read::list_sessions(session, limit).await))
    }

    fn spent_since(&self, hour: i64) -> BoxFuture<'_, Result<Vec<SpentAmount>, JournalError>> {
        Box::pin(self.read(async move |session| read::spent_since(session, hour).await))
    }

    fn open_effects(&self) -> BoxFuture<'_, Result<Vec<OpenEffect>, JournalError>> {
        Box::pin(self.read(async |session| read::open_effects(session).await))
    }

    fn host_cluster(&self) -> Option<Arc<dyn HostCluster>> {
        let shared = self.inner.lease.sharing == StateSharing::Shared;
        shared.then(|| Arc::new(PgShared::new(Arc::clone(&self.inner), self.number)) as _)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        let ticket = self.inner.queue.push(PgWriterWork::Flush);
        Box::pin(async move { ticket?.wait_until_durable().await })
    }
}
