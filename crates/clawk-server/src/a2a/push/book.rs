//! The file of pending push notifications, in the state directory. It holds the receivers with their secrets, and undelivered
//! notifications in order. All of it is sealed under a key of the state directory, except the names of tasks.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_recall::seal::{SealError, SealKeyring};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long to wait for another process that holds the file.
const BUSY: Duration = Duration::from_secs(10);
/// The largest number of receivers, over all tasks, that still have something to get.
const MAX_RECEIVERS: i64 = 4_096;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS receivers (
    owner TEXT NOT NULL, task TEXT NOT NULL, id TEXT NOT NULL, sealed BLOB NOT NULL, last TEXT NOT NULL, ended INTEGER NOT NULL,
    PRIMARY KEY (owner, task, id)
);
CREATE TABLE IF NOT EXISTS owed (
    number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, task TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL,
    sealed BLOB NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, next_us INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS of_receiver ON owed (owner, task, id, number);";

/// Why the file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// SQLite reported an error.
    #[error("what push receivers are owed can't be kept: {0}")]
    Sql(#[from] rusqlite::Error),
    /// The file was sealed under another key, or was changed.
    #[error("what push receivers are owed can't be opened: {0}")]
    Seal(#[from] SealError),
    /// The content was not written by this program.
    #[error("what push receivers are owed can't be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The thread that used the file ended early.
    #[error("what push receivers are owed was not written: {0}")]
    Thread(#[from] tokio::task::JoinError),
    /// The limit of receivers is reached.
    #[error("{MAX_RECEIVERS} receivers are still owed notifications")]
    Full,
}

/// The key of a receiver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReceiverKey {
    pub(super) owner: String,
    pub(super) task: String,
    pub(super) id: String,
}

impl ReceiverKey {
    fn seal_context(&self, what: &str) -> String {
        format!("push {what} {:?}", (&self.owner, &self.task, &self.id))
    }
}

/// A receiver as the file stores it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredReceiver {
    /// The configuration that the owner sent, with its secrets.
    pub(super) config: Value,
    /// The notifications use the shapes of A2A 0.3.
    pub(super) old: bool,
    /// The id of the task's conversation.
    pub(super) context: String,
    /// The digest of the task's content, in hex.
    pub(super) content: String,
}

/// A notification that is still to be delivered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DueNotification {
    pub(super) number: i64,
    /// The state that the notification reports.
    pub(super) state: String,
    pub(super) event: Value,
    /// The number of posts so far.
    pub(super) attempts: u32,
    /// The time of the next post, microseconds since 1970.
    pub(super) next_us: i64,
}

/// A notification to store: the state's name and the JSON to post.
pub(super) type NotificationDraft = (&'static str, Value);

/// The file of pending notifications. Cheap to clone.
#[derive(Clone)]
pub(super) struct PushStore {
    connection: Arc<Mutex<Connection>>,
    vault: Arc<SealKeyring>,
}

impl std::fmt::Debug for PushStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Book")
    }
}

impl PushStore {
    /// Opens the file. Creates it if it does not exist.
    pub(super) fn open(path: &Path, vault: SealKeyring) -> Result<Self, BookError> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            vault: Arc::new(vault),
        })
    }

    /// Runs `act` in one transaction, on a thread that may block on the disk.
    async fn with_transaction<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Transaction<'_>, &SealKeyring) -> Result<T, BookError> + Send + 'static,
    ) -> Result<T, BookError> {
        let (connection, vault) = (Arc::clone(&self.connection), Arc::clone(&self.vault));
        let acted = tokio::task::spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = act(&transaction, &vault)?;
            transaction.commit()?;
            Ok(done)
        });
        acted.await?
    }

    /// Stores a receiver, or replaces the one with the same key. It has no pending notifications yet.
    pub(super) async fn store_receiver(
        &self,
        key: ReceiverKey,
        kept: StoredReceiver,
    ) -> Result<(), BookError> {
        self.with_transaction(move |on, vault| {
            delete_receiver(on, &key)?;
            let all: i64 = on.query_row("SELECT count(*) FROM receivers", [], |row| row.get(0))?;
            if all >= MAX_RECEIVERS {
                return Err(BookError::Full);
            }
            let sealed = vault.seal(&key.seal_context("receiver"), &serde_json::to_vec(&kept)?)?;
            let insert =
                "INSERT INTO receivers (owner, task, id, sealed, last, ended) VALUES (?1, ?2, ?3, ?4, '', 0)";
            on.execute(insert, params![key.owner, key.task, key.id, sealed])?;
            Ok(())
        })
        .await
    }

    /// Deletes a receiver and its pending notifications.
    pub(super) async fn remove(&self, key: ReceiverKey) -> Result<(), BookError> {
        self.with_transaction(move |on, _| delete_receiver(on, &key))
            .await
    }

    /// Adds notifications for a receiver. `ended`: the last one reports the task's end.
    pub(super) async fn enqueue_notifications(
        &self,
        key: ReceiverKey,
        notes: Vec<NotificationDraft>,
        ended: bool,
    ) -> Result<(), BookError> {
        self.with_transaction(move |on, vault| {
            let Some((last, _)) = notes.last() else {
                return Ok(());
            };
            let known = on.execute(
                "UPDATE receivers SET last = ?4, ended = ?5 WHERE owner = ?1 AND task = ?2 AND id = ?3",
                params![key.owner, key.task, key.id, last, ended],
            )?;
            // The receiver was removed.
            if known == 0 {
                return Ok(());
            }
            for (state, event) in notes {
                let sealed = vault.seal(&key.seal_context("owed"), &serde_json::to_vec(&event)?)?;
                let insert = "INSERT INTO owed (owner, task, id, state, sealed) VALUES (?1, ?2, ?3, ?4, ?5)";
                on.execute(insert, params![key.owner, key.task, key.id, state, sealed])?;
            }
            Ok(())
        })
        .await
    }

    /// The oldest pending notification of a receiver. If there is none and the task has ended, the receiver is deleted.
    pub(super) async fn next(&self, key: ReceiverKey) -> Result<Option<DueNotification>, BookError> {
        self.with_transaction(move |on, vault| {
            let first = "SELECT number, state, sealed, attempts, next_us FROM owed WHERE owner = ?1 AND task = ?2 AND id = ?3 \
                         ORDER BY number LIMIT 1";
            let found = on.query_row(first, params![key.owner, key.task, key.id], |row| {
                let sealed: Vec<u8> = row.get(2)?;
                Ok((row.get(0)?, row.get(1)?, sealed, row.get(3)?, row.get(4)?))
            });
            let Some((number, state, sealed, attempts, next_us)) = found.optional()? else {
                let done = "DELETE FROM receivers WHERE owner = ?1 AND task = ?2 AND id = ?3 AND ended = 1";
                on.execute(done, params![key.owner, key.task, key.id])?;
                return Ok(None);
            };
            let event = vault.open(&key.seal_context("owed"), &sealed)?.ok_or(SealError::Changed)?;
            Ok(Some(DueNotification { number, state, event: serde_json::from_slice(&event)?, attempts, next_us }))
        })
        .await
    }

    /// Counts an attempt before the post. If the post fails, the next one is due at `next_us`.
    pub(super) async fn begin_attempt(&self, number: i64, next_us: i64) -> Result<(), BookError> {
        let update = "UPDATE owed SET attempts = attempts + 1, next_us = ?2 WHERE number = ?1";
        self.with_transaction(move |on, _| Ok(on.execute(update, params![number, next_us]).map(drop)?))
            .await
    }

    /// Deletes a notification that was delivered or given up.
    pub(super) async fn settle_notification(&self, number: i64) -> Result<(), BookError> {
        self.with_transaction(move |on, _| {
            Ok(on
                .execute("DELETE FROM owed WHERE number = ?1", [number])
                .map(drop)?)
        })
        .await
    }

    /// All stored receivers, each with the last state that was stored for it (empty: none).
    pub(super) async fn pending_receivers(
        &self,
    ) -> Result<Vec<(ReceiverKey, StoredReceiver, String)>, BookError> {
        self.with_transaction(|on, vault| {
            let mut all = on.prepare("SELECT owner, task, id, sealed, last FROM receivers ORDER BY rowid")?;
            let rows = all.query_map([], |row| {
                let key = ReceiverKey {
                    owner: row.get(0)?,
                    task: row.get(1)?,
                    id: row.get(2)?,
                };
                let (sealed, last): (Vec<u8>, String) = (row.get(3)?, row.get(4)?);
                Ok((key, sealed, last))
            })?;
            let mut found = Vec::new();
            for row in rows {
                let (key, sealed, last) = row?;
                let kept = vault
                    .open(&key.seal_context("receiver"), &sealed)?
                    .ok_or(SealError::Changed)?;
                found.push((key, serde_json::from_slice(&kept)?, last));
            }
            Ok(found)
        })
        .await
    }
}

fn delete_receiver(on: &Transaction<'_>, key: &ReceiverKey) -> Result<(), BookError> {
    for table in ["receivers", "owed"] {
        let delete = format!("DELETE FROM {table} WHERE owner = ?1 AND task = ?2 AND id = ?3");
        on.execute(&delete, params![key.owner, key.task, key.id])?;
    }
    Ok(())
}
