//! The only writer: a thread that owns the write connection and commits in groups.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clawk_kernel::ports::JournalError;
use rusqlite::Connection;

use crate::answers::AnswerIndex;
use crate::append::{AppendError, EventPartStores, SqliteChainTips, integer};
use crate::blobs::BlobStore;
use crate::check;
use crate::dir::WriteDurability;
use crate::queue::{SqliteWriterDrain, SqliteWriterItem, SqliteWriterQueue, SqliteWriterWork};
use crate::{schema, seal};

/// How often a journal that can't be written tries again.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Counters that the writer shares with the handles.
#[derive(Debug, Default)]
pub(crate) struct SqliteWriterCounters {
    pub(crate) commits: AtomicU64,
    pub(crate) entries: AtomicU64,
    /// Changes after each commit that holds entries.
    pub(crate) committed: tokio::sync::watch::Sender<u64>,
    /// The largest size of the database, bytes; 0: no limit.
    pub(crate) max_bytes: AtomicU64,
}

/// The state of the writer's thread.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) database: PathBuf,
    pub(crate) durability: WriteDurability,
    pub(crate) blobs: BlobStore,
    pub(crate) queue: Arc<SqliteWriterQueue>,
    pub(crate) counters: Arc<SqliteWriterCounters>,
    pub(crate) answers: Arc<AnswerIndex>,
    pub(crate) tips: SqliteChainTips,
    /// `None` after a failure, until a probe has opened a new connection.
    pub(crate) connection: Option<Connection>,
}

impl Writer {
    /// Runs until the queue is closed and empty.
    pub(crate) fn run(mut self) {
        loop {
            let patience = self.connection.is_none().then_some(PROBE_INTERVAL);
            match self.queue.take_group(patience) {
                SqliteWriterDrain::Items(items) => self.commit_items(items),
                SqliteWriterDrain::Nothing => self.probe_database(),
                SqliteWriterDrain::Closed => break,
            }
        }
        if let Some(connection) = self.connection.take() {
            let close = || -> rusqlite::Result<()> {
                check::mark_all(&connection)?;
                connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            };
            if let Err(error) = close() {
                // The next start verifies from the older marks instead.
                tracing::warn!(%error, "the journal's marks were not written at close");
            }
        }
    }

    fn commit_items(&mut self, items: Vec<SqliteWriterItem>) {
        let Some(connection) = self.connection.take() else {
            return self.fail_items("it is not open", items);
        };
        let (jobs, senders): (Vec<SqliteWriterWork>, Vec<_>) =
            items.into_iter().map(|item| (item.work, item.done)).unzip();
        let outcome = self.run_transaction(&connection, jobs);
        match outcome {
            Ok(entries) => {
                self.connection = Some(connection);
                self.tips.trim();
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.entries.fetch_add(entries, Ordering::Relaxed);
                if entries > 0 {
                    self.counters.committed.send_modify(|count| *count += entries);
                }
                for done in senders {
                    let _ = done.send(Ok(())); // silent-ok: nobody waits for it any more
                }
            }
            Err(error) => {
                let cause = describe_error(&error);
                // Closing the connection ends the transaction, whose state is unknown.
                drop(connection);
                self.fail_items(&cause, Vec::new());
                for done in senders {
                    let _ = done.send(Err(JournalError::Unwritable(cause.clone()))); // silent-ok: nobody waits
                }
            }
        }
    }

    fn run_transaction(
        &mut self,
        connection: &Connection,
        works: Vec<SqliteWriterWork>,
    ) -> Result<u64, AppendError> {
        let durable = self.durability == WriteDurability::Durable;
        let places = EventPartStores {
            blobs: &self.blobs,
            answers: &self.answers,
            durable,
        };
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let mut entries = 0;
        for work in works {
            match work {
                SqliteWriterWork::Append(batch) => {
                    entries += u64::try_from(batch.entries.len()).unwrap_or(u64::MAX);
                    self.tips.append(connection, &places, &batch)?;
                }
                SqliteWriterWork::AppendAnd(batch, job) => {
                    entries += u64::try_from(batch.entries.len()).unwrap_or(u64::MAX);
                    self.tips.append(connection, &places, &batch)?;
                    job(connection)?;
                }
                SqliteWriterWork::Run(job) => {
                    connection.execute_batch("SAVEPOINT job")?;
                    let keep = job(connection)?;
                    let end = if keep {
                        "RELEASE job"
                    } else {
                        "ROLLBACK TO job; RELEASE job"
                    };
                    connection.execute_batch(end)?;
                }
                SqliteWriterWork::Flush => {}
            }
        }
        self.tips.save(connection)?;
        connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(entries)
    }

    /// Refuses the given, the queued and all future work until a probe succeeds.
    fn fail_items(&mut self, cause: &str, items: Vec<SqliteWriterItem>) {
        tracing::error!(
            cause,
            "the journal can't be written; everything is refused until it can"
        );
        self.connection = None;
        self.tips.forget();
        self.answers.forget_fill();
        for item in items.into_iter().chain(self.queue.refuse_all(cause)) {
            let _ = item.done.send(Err(JournalError::Unwritable(cause.to_owned()))); // silent-ok: nobody waits
        }
    }

    /// Tries a small real write on a new connection.
    fn probe_database(&mut self) {
        let attempt = || -> Result<Connection, String> {
            let connection =
                schema::open_writer(&self.database, self.durability).map_err(|e| e.to_string())?;
            seal::teach(&connection, self.blobs.state_sealer()).map_err(|e| e.to_string())?;
            limit_size(&connection, self.counters.max_bytes.load(Ordering::Relaxed))
                .map_err(|e| e.to_string())?;
            connection
                .execute("UPDATE probe SET n = n + 1", [])
                .map_err(|e| e.to_string())?;
            // As much space as a usual event needs, so that "writable" means more than updating one counter.
            connection
                .execute_batch(
                    "BEGIN IMMEDIATE; CREATE TABLE probe_room (x BLOB); \
                     INSERT INTO probe_room VALUES (zeroblob(32768)); ROLLBACK;",
                )
                .map_err(|e| e.to_string())?;
            Ok(connection)
        };
        match attempt() {
            Ok(connection) => {
                tracing::info!("the journal can be written again");
                self.connection = Some(connection);
                self.queue.accept_again();
            }
            Err(cause) => {
                for item in self.queue.refuse_all(&cause) {
                    let _ = item.done.send(Err(JournalError::Unwritable(cause.clone()))); // silent-ok: nobody waits
                }
            }
        }
    }
}

/// Limits the size of the database file; SQLite reports "full" above it.
pub(crate) fn limit_size(connection: &Connection, max_bytes: u64) -> rusqlite::Result<()> {
    if max_bytes == 0 {
        return Ok(());
    }
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages = integer(max_bytes) / page.max(1);
    connection.query_row(&format!("PRAGMA max_page_count = {}", pages.max(1)), [], |_| {
        Ok(())
    })
}

fn describe_error(error: &impl Display) -> String {
    error.to_string()
}
