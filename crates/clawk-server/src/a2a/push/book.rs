//! What push receivers are owed, in a file of the state directory: the receivers with their secrets, and the notifications that
//! were not taken yet, in order. Everything is sealed under a key of the state directory; the names of tasks are not.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_recall::seal::{SealError, SealKeyring};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long another process may hold the file.
const BUSY: Duration = Duration::from_secs(10);
/// Receivers of all tasks that have not been told everything.
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

/// Why the file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// SQLite's word.
    #[error("what push receivers are owed can't be kept: {0}")]
    Sql(#[from] rusqlite::Error),
    /// It was sealed under another key, or changed.
    #[error("what push receivers are owed can't be opened: {0}")]
    Seal(#[from] SealError),
    /// It was not written by this program.
    #[error("what push receivers are owed can't be read: {0}")]
    Json(#[from] serde_json::Error),
    /// The thread that worked on it ended early.
    #[error("what push receivers are owed was not written: {0}")]
    Thread(#[from] tokio::task::JoinError),
    /// Too many receivers.
    #[error("{MAX_RECEIVERS} receivers are still owed notifications")]
    Full,
}

/// By what a receiver is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReceiverKey {
    pub(super) owner: String,
    pub(super) task: String,
    pub(super) id: String,
}

impl ReceiverKey {
    fn place(&self, what: &str) -> String {
        format!("push {what} {:?}", (&self.owner, &self.task, &self.id))
    }
}

/// A receiver as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredReceiver {
    /// What its owner asked for, with its secrets.
    pub(super) config: Value,
    /// Its notifications have the shapes of A2A 0.3.
    pub(super) old: bool,
    /// The task's conversation.
    pub(super) context: String,
    /// Of what the task asks for, in hex.
    pub(super) content: String,
}

/// A notification that is owed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DueNotification {
    pub(super) number: i64,
    /// The state that it is about.
    pub(super) state: String,
    pub(super) event: Value,
    /// How often it was posted.
    pub(super) attempts: u32,
    /// When it is posted next, microseconds since 1970.
    pub(super) next_us: i64,
}

/// A notification to be owed: a state's name and what is posted.
pub(super) type NotificationDraft = (&'static str, Value);

/// The file. Cheap to clone.
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
    /// Opens the file, and makes it if there is none.
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

    /// Runs something in one transaction, on a thread that may wait for the disk.
    async fn with<T: Send + 'static>(
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

    /// Keeps a receiver, in the place of the one of the same name. It is owed nothing yet.
    pub(super) async fn put(&self, key: ReceiverKey, kept: StoredReceiver) -> Result<(), BookError> {
        self.with(move |on, vault| {
            forget(on, &key)?;
            let all: i64 = on.query_row("SELECT count(*) FROM receivers", [], |row| row.get(0))?;
            if all >= MAX_RECEIVERS {
                return Err(BookError::Full);
            }
            let sealed = vault.seal(&key.place("receiver"), &serde_json::to_vec(&kept)?)?;
            let insert =
                "INSERT INTO receivers (owner, task, id, sealed, last, ended) VALUES (?1, ?2, ?3, ?4, '', 0)";
            on.execute(insert, params![key.owner, key.task, key.id, sealed])?;
            Ok(())
        })
        .await
    }

    /// Forgets a receiver and what it is owed.
    pub(super) async fn remove(&self, key: ReceiverKey) -> Result<(), BookError> {
        self.with(move |on, _| forget(on, &key)).await
    }

    /// From here on, a receiver is owed these notifications; the last one is about the task's end where `ended`.
    pub(super) async fn note(
        &self,
        key: ReceiverKey,
        notes: Vec<NotificationDraft>,
        ended: bool,
    ) -> Result<(), BookError> {
        self.with(move |on, vault| {
            let Some((last, _)) = notes.last() else {
                return Ok(());
            };
            let known = on.execute(
                "UPDATE receivers SET last = ?4, ended = ?5 WHERE owner = ?1 AND task = ?2 AND id = ?3",
                params![key.owner, key.task, key.id, last, ended],
            )?;
            // It was taken away.
            if known == 0 {
                return Ok(());
            }
            for (state, event) in notes {
                let sealed = vault.seal(&key.place("owed"), &serde_json::to_vec(&event)?)?;
                let insert = "INSERT INTO owed (owner, task, id, state, sealed) VALUES (?1, ?2, ?3, ?4, ?5)";
                on.execute(insert, params![key.owner, key.task, key.id, state, sealed])?;
            }
            Ok(())
        })
        .await
    }

    /// What a receiver is owed first. Where it is owed nothing and its task has ended, it is forgotten.
    pub(super) async fn next(&self, key: ReceiverKey) -> Result<Option<DueNotification>, BookError> {
        self.with(move |on, vault| {
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
            let event = vault.open(&key.place("owed"), &sealed)?.ok_or(SealError::Changed)?;
            Ok(Some(DueNotification { number, state, event: serde_json::from_slice(&event)?, attempts, next_us }))
        })
        .await
    }

    /// A notification is about to be posted; if it fails, it is posted again at `next_us`.
    pub(super) async fn begin(&self, number: i64, next_us: i64) -> Result<(), BookError> {
        let update = "UPDATE owed SET attempts = attempts + 1, next_us = ?2 WHERE number = ?1";
        self.with(move |on, _| Ok(on.execute(update, params![number, next_us]).map(drop)?))
            .await
    }

    /// A notification was taken, or is given up.
    pub(super) async fn settle(&self, number: i64) -> Result<(), BookError> {
        self.with(move |on, _| {
            Ok(on
                .execute("DELETE FROM owed WHERE number = ?1", [number])
                .map(drop)?)
        })
        .await
    }

    /// All receivers that have not been told everything, with the state that each was last owed; empty: none.
    pub(super) async fn all(&self) -> Result<Vec<(ReceiverKey, StoredReceiver, String)>, BookError> {
        self.with(|on, vault| {
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
                    .open(&key.place("receiver"), &sealed)?
                    .ok_or(SealError::Changed)?;
                found.push((key, serde_json::from_slice(&kept)?, last));
            }
            Ok(found)
        })
        .await
    }
}

fn forget(on: &Transaction<'_>, key: &ReceiverKey) -> Result<(), BookError> {
    for table in ["receivers", "owed"] {
        let delete = format!("DELETE FROM {table} WHERE owner = ?1 AND task = ?2 AND id = ?3");
        on.execute(&delete, params![key.owner, key.task, key.id])?;
    }
    Ok(())
}
