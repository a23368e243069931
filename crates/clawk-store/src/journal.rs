//! The kernel's `Journal` port on SQLite.

use std::sync::Arc;

use clawk_kernel::ports::{
    AnswerKey, Batch, BoxFuture, ConversationKey, EarlierArrival, Journal, JournalError, JournalScan,
    JournalTicket, OpenEffect, OpenMessage, OutboxRow, RecordedEvent, SessionRow, SpentAmount, StoredAnswer,
};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, MessageId, SessionId};

use crate::dir::StateDirInner;
use crate::queue::SqliteWriterWork;
use crate::reader;

/// The journal of a state directory.
#[derive(Debug)]
pub struct SqliteJournal {
    inner: Arc<StateDirInner>,
}

impl SqliteJournal {
    pub(crate) const fn new(inner: Arc<StateDirInner>) -> Self {
        Self { inner }
    }

    async fn read<T: Send + 'static>(
        &self,
        job: impl FnOnce(&reader::StateDirReader) -> Result<T, crate::StateError> + Send + 'static,
    ) -> Result<T, JournalError> {
        self.inner
            .readers
            .run(job)
            .await
            .map_err(JournalError::Unreadable)
    }
}

impl Journal for SqliteJournal {
    fn submit_batch(&self, batch: Batch) -> Result<JournalTicket, JournalError> {
        if let Some(fault) = batch.find_fault() {
            return Err(fault);
        }
        self.inner.queue.push(SqliteWriterWork::Append(batch))
    }

    fn watch_commits(&self) -> tokio::sync::watch::Receiver<u64> {
        self.inner.counters.committed.subscribe()
    }

    fn scan_events(&self, scan: JournalScan) -> BoxFuture<'_, Result<Vec<RecordedEvent>, JournalError>> {
        Box::pin(self.read(move |reader| reader.scan(&scan)))
    }

    fn last_row_of(&self, kind: &'static str) -> BoxFuture<'_, Result<Option<u64>, JournalError>> {
        Box::pin(self.read(move |reader| reader.last_row_of(kind)))
    }

    fn answer_to(&self, key: AnswerKey) -> BoxFuture<'_, Result<Option<StoredAnswer>, JournalError>> {
        let answers = self.inner.answers.clone();
        if !answers.may_have(key) {
            return Box::pin(std::future::ready(Ok(None)));
        }
        Box::pin(self.read(move |reader| {
            let Some(row) = reader.with(|connection| answers.find_row(connection, key))? else {
                return Ok(None);
            };
            let after_row = row.saturating_sub(1);
            let page = reader.scan(&JournalScan {
                after_row,
                limit: 1,
                with_content: true,
                ..JournalScan::default()
            })?;
            Ok(page
                .into_iter()
                .find(|found| found.row == row)
                .map(StoredAnswer::from))
        }))
    }

    fn read_content(&self, digest: Digest) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        Box::pin(self.read(move |reader| reader.content(digest)))
    }

    fn open_messages(&self) -> BoxFuture<'_, Result<Vec<OpenMessage>, JournalError>> {
        Box::pin(self.read(reader::StateDirReader::open_messages))
    }

    fn message_session(&self, id: MessageId) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        Box::pin(self.read(move |reader| reader.message(id)))
    }

    fn find_arrival(
        &self,
        channel: &str,
        platform_id: &str,
        now: Timestamp,
    ) -> BoxFuture<'_, Result<Option<EarlierArrival>, JournalError>> {
        let (channel, id) = (channel.to_owned(), platform_id.to_owned());
        Box::pin(self.read(move |reader| reader.arrived(&channel, &id, now)))
    }

    fn conversation_session(
        &self,
        key: &ConversationKey,
    ) -> BoxFuture<'_, Result<Option<SessionId>, JournalError>> {
        let key = key.clone();
        Box::pin(self.read(move |reader| reader.conversation(&key)))
    }

    fn owed_answers(
        &self,
        channel: &str,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        let channel = channel.to_owned();
        Box::pin(self.read(move |reader| reader.owed(&channel, limit)))
    }

    fn read_outbox(&self, limit: usize) -> BoxFuture<'_, Result<Vec<OutboxRow>, JournalError>> {
        Box::pin(self.read(move |reader| reader.outbox(limit)))
    }

    fn list_sessions(&self, limit: usize) -> BoxFuture<'_, Result<Vec<SessionRow>, JournalError>> {
        Box::pin(self.read(move |reader| reader.sessions(limit)))
    }

    fn spent_since(&self, hour: i64) -> BoxFuture<'_, Result<Vec<SpentAmount>, JournalError>> {
        Box::pin(self.read(move |reader| reader.spent_since(hour)))
    }

    fn open_effects(&self) -> BoxFuture<'_, Result<Vec<OpenEffect>, JournalError>> {
        Box::pin(self.read(reader::StateDirReader::open_effects))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), JournalError>> {
        let ticket = self.inner.queue.push(SqliteWriterWork::Flush);
        Box::pin(async move { ticket?.wait_until_durable().await })
    }
}
