//! Signed heads: the journal as an append-only Merkle tree, with a signed root over all events from time to time.
//!
//! A reader builds a head from a snapshot, and the writer stores it. A head holds the tree's signed line and one line for each
//! session that has grown since the last head (at most [`SESSIONS_SIGNED`]; the tree covers the rest).

use clawk_kernel::ports::JournalError;
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, SessionId};
use clawk_trace::checkpoint::{
    CheckpointLine, CheckpointStatement, PublicKey, TraceSigner, Tree, TreeStatement,
};
use rusqlite::{OptionalExtension as _, Row, params};

use crate::append::{digest_at, integer, unsigned_at, uuid_at};
use crate::dir::StateDir;
use crate::error::StateError;
use crate::queue::SqliteWriterWork;
use crate::reader::StateDirReader;

/// The largest number of sessions with their own line in one head. The sessions that grew last are chosen.
pub const SESSIONS_SIGNED: usize = 256;

/// A stored signed head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredHead {
    /// The number of events that it covers.
    pub size: u64,
    /// The tree's root.
    pub root: Digest,
    /// When it was signed.
    pub at: Timestamp,
    /// The lines of a checkpoints file: first the tree's line, then the sessions'.
    pub lines: String,
}

/// The progress of the delivery of heads to a second location.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delivery {
    /// The size of the last delivered head.
    pub size: u64,
    /// The number of failed attempts since the beginning.
    pub failures: u64,
    /// Why the last attempt failed; `None`: it succeeded.
    pub error: Option<String>,
}

/// The content of a head before it is signed.
struct Snapshot {
    tree: Tree,
    sessions: Vec<(SessionId, u64, Digest)>,
}

impl StateDir {
    /// Signs the present journal and stores the head; `None`: there are no new events.
    ///
    /// # Errors
    /// The journal can't be read or written, or rows are missing.
    pub async fn seal(
        &self,
        signer: &TraceSigner,
        at: Timestamp,
    ) -> Result<Option<StoredHead>, JournalError> {
        let read = self.inner.readers.run(|reader| reader.snapshot());
        let Some(Snapshot { tree, sessions }) = read.await.map_err(JournalError::Unreadable)? else {
            return Ok(None);
        };
        let (size, root, timestamp) = (tree.size(), tree.root(), at.to_string());
        let statement = TreeStatement {
            size,
            root,
            timestamp: timestamp.clone(),
        };
        let mut lines = statement_line(&signer.sign_tree(statement))?;
        for (session_id, events, head) in sessions {
            let statement = CheckpointStatement {
                session_id,
                events,
                head,
                timestamp: timestamp.clone(),
            };
            lines.push_str(&statement_line(&signer.sign(statement))?);
        }
        let head = StoredHead {
            size,
            root,
            at,
            lines: lines.clone(),
        };
        let peaks: Vec<u8> = tree.peaks().iter().flat_map(|peak| peak.0).collect();
        let job = move |connection: &rusqlite::Connection| {
            connection.execute(
                "INSERT OR IGNORE INTO heads (size, root, peaks, at, lines) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![integer(size), root.0, peaks, at.0, lines],
            )?;
            Ok(true)
        };
        self.inner
            .queue
            .push(SqliteWriterWork::Run(Box::new(job)))?
            .wait_until_durable()
            .await?;
        Ok(Some(head))
    }

    /// Checks that this key signed the last head and that the head matches the journal. Cheap for any size of the journal.
    ///
    /// # Errors
    /// The key was replaced, the heads were changed, or events are missing.
    pub fn check_heads(&self, key: &PublicKey) -> Result<(), StateError> {
        self.inner.readers.now(|reader| reader.check_heads(key))
    }

    /// Whether the journal has a signed head.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn is_signed(&self) -> Result<bool, StateError> {
        let first = self.inner.readers.now(|reader| reader.heads_after(0, 1))?;
        Ok(!first.is_empty())
    }

    /// Compares the stored tables with the events, as [`StateDirReader::projections`] does.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn projections(&self, last: Option<u64>) -> Result<Vec<String>, StateError> {
        self.inner.readers.now(|reader| reader.projections(last))
    }

    /// Records the result of a delivery to a second location.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn delivered(&self, place: &'static str, delivery: Delivery) -> Result<(), JournalError> {
        let job = move |connection: &rusqlite::Connection| {
            connection.execute(
                "INSERT OR REPLACE INTO deliveries (place, size, failures, error) VALUES (?1, ?2, ?3, ?4)",
                params![
                    place,
                    integer(delivery.size),
                    integer(delivery.failures),
                    delivery.error
                ],
            )?;
            Ok(true)
        };
        self.inner
            .queue
            .push(SqliteWriterWork::Run(Box::new(job)))?
            .wait_until_durable()
            .await
    }

    /// The heads larger than `size`, oldest first, on a blocking thread.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn heads_after(&self, size: u64, limit: usize) -> Result<Vec<StoredHead>, JournalError> {
        let read = self
            .inner
            .readers
            .run(move |reader| reader.heads_after(size, limit));
        read.await.map_err(JournalError::Unreadable)
    }
}

fn statement_line<T: serde::Serialize>(statement: &T) -> Result<String, JournalError> {
    let text = serde_json::to_string(statement).map_err(|e| JournalError::Unwritable(e.to_string()))?;
    Ok(text + "\n")
}

impl StateDirReader {
    /// Checks that this key signed the last head and that the head matches the journal. Cheap for any size of the journal.
    ///
    /// # Errors
    /// The key was replaced, the heads were changed, or events are missing.
    pub fn check_heads(&self, key: &PublicKey) -> Result<(), StateError> {
        let broken = |detail: String| Err(self.unvouched(detail));
        let Some((tree, head)) = self.last_tree()? else {
            return Ok(());
        };
        let Some(tree) = tree.filter(|tree| tree.root() == head.root) else {
            return broken(format!("the kept tree of {} events has another root", head.size));
        };
        let first = head.lines.lines().next().unwrap_or_default();
        match CheckpointLine::parse(first) {
            Ok(line) if !line.signed_by(key) => {
                return broken(format!(
                    "the last signed head names the key `{}`, the key in `keys` is `{}`, or the head was changed",
                    line.key_id().chars().take(32).collect::<String>(),
                    key.id()
                ));
            }
            Ok(CheckpointLine::Tree(signed))
                if signed.statement.size == head.size && signed.statement.root == head.root => {}
            Ok(_) | Err(_) => return broken("the last signed head can't be read".to_owned()),
        }
        let rows = self.last_row()?;
        if rows < tree.size() {
            return broken(format!(
                "{} events were signed, {rows} are there: the end of the journal is missing",
                tree.size()
            ));
        }
        Ok(())
    }

    /// Heads larger than `size`, oldest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn heads_after(&self, size: u64, limit: usize) -> Result<Vec<StoredHead>, StateError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT size, root, at, lines FROM heads WHERE size > ?1 ORDER BY size LIMIT ?2",
            )?;
            let rows = select.query_map(params![integer(size), limit], head_at)?;
            rows.collect()
        })
    }

    /// The lines of all heads, as a checkpoints file.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn heads(&self) -> Result<String, StateError> {
        self.with(|connection| {
            let mut select = connection.prepare("SELECT lines FROM heads ORDER BY size")?;
            let mut rows = select.query([])?;
            let mut text = String::new();
            while let Some(row) = rows.next()? {
                text.push_str(row.get_ref(0)?.as_str()?);
            }
            Ok(text)
        })
    }

    /// The head of exactly this size, if there is one.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn head_of(&self, size: u64) -> Result<Option<StoredHead>, StateError> {
        let found = self.heads_after(size.saturating_sub(1), 1)?;
        Ok(found.into_iter().find(|head| head.size == size))
    }

    /// The progress of the delivery to each second location.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn deliveries(&self) -> Result<Vec<(String, Delivery)>, StateError> {
        self.with(|connection| {
            let mut select =
                connection.prepare("SELECT place, size, failures, error FROM deliveries ORDER BY place")?;
            let rows = select.query_map([], |row| {
                let delivery = Delivery {
                    size: unsigned_at(row, 1)?,
                    failures: unsigned_at(row, 2)?,
                    error: row.get(3)?,
                };
                Ok((row.get(0)?, delivery))
            })?;
            rows.collect()
        })
    }

    /// The last head with its tree. No tree: the stored subtree roots do not match the head.
    fn last_tree(&self) -> Result<Option<(Option<Tree>, StoredHead)>, StateError> {
        self.with(|connection| {
            connection
                .prepare_cached("SELECT size, root, at, lines, peaks FROM heads ORDER BY size DESC LIMIT 1")?
                .query_row([], |row| {
                    let head = head_at(row)?;
                    let bytes: Vec<u8> = row.get(4)?;
                    let (peaks, rest) = bytes.as_chunks::<32>();
                    let peaks = peaks.iter().map(|peak| Digest(*peak)).collect();
                    let tree = Tree::from_peaks(head.size, peaks).filter(|_| rest.is_empty());
                    Ok((tree, head))
                })
                .optional()
        })
    }

    /// The tree of the whole journal, and the sessions that grew; `None`: nothing is new.
    fn snapshot(&self) -> Result<Option<Snapshot>, StateError> {
        // One transaction, so that rows and sessions are from the same snapshot.
        self.with(|connection| connection.execute_batch("BEGIN"))?;
        let outcome = self.grow();
        self.with(|connection| connection.execute_batch("COMMIT"))?;
        outcome
    }

    fn grow(&self) -> Result<Option<Snapshot>, StateError> {
        let known = self.last_tree()?;
        let mut tree = match known {
            None => Tree::default(),
            Some((Some(tree), head)) if tree.root() == head.root => tree,
            // A start would refuse such a state: somebody changed it while the agent runs.
            Some((_, head)) => {
                return Err(self.unvouched(format!("the tree of {} events was changed", head.size)));
            }
        };
        let before = tree.size();
        let after = integer(before);
        self.with(|connection| {
            let mut select =
                connection.prepare_cached("SELECT hash FROM events WHERE row > ?1 ORDER BY row")?;
            let mut rows = select.query([after])?;
            while let Some(row) = rows.next()? {
                tree.push(&digest_at(row, 0)?);
            }
            Ok(())
        })?;
        if tree.size() == before {
            return Ok(None);
        }
        // INVARIANT: rows are numbered without gaps, so a row's number is its position in the tree.
        let last = self.last_row()?;
        if last != tree.size() {
            return Err(self.unvouched(format!("{} rows, the last is number {last}", tree.size())));
        }
        let limit = i64::try_from(SESSIONS_SIGNED).unwrap_or(i64::MAX);
        let sessions = self.with(|connection| {
            let mut select = connection.prepare_cached(
                "SELECT session, events, head FROM sessions WHERE id IN (SELECT session FROM events WHERE row > ?1) \
                 ORDER BY last DESC, id DESC LIMIT ?2",
            )?;
            let rows = select.query_map(params![after, limit], |row| {
                Ok((
                    SessionId(uuid_at(row, 0)?),
                    unsigned_at(row, 1)?,
                    digest_at(row, 2)?,
                ))
            })?;
            rows.collect()
        })?;
        Ok(Some(Snapshot { tree, sessions }))
    }
}

fn head_at(row: &Row<'_>) -> rusqlite::Result<StoredHead> {
    Ok(StoredHead {
        size: unsigned_at(row, 0)?,
        root: digest_at(row, 1)?,
        at: Timestamp(row.get(2)?),
        lines: row.get(3)?,
    })
}
