//! A queue in a SQLite file (WAL mode), for several processes of one host.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::time::{Clock, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use super::{Broker, BrokerSubscription, InboxMessage, KEPT, QueueError, broker_error, no_owners};

/// How often a reader of an empty queue checks whether the file has changed. The check takes no lock.
const LOOK: Duration = Duration::from_millis(5);
/// The number of checks before a read ends without a message.
const LOOKS: u32 = 200;
/// Every so many checks, an unchanged queue is read too: a lease expires without a change of the file.
const WHOLE: u32 = 50;
/// How long to wait for another process that holds the file.
const BUSY: Duration = Duration::from_secs(10);
/// The longest message, bytes.
const MOST: usize = 64 << 20;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, queue TEXT NOT NULL, client TEXT NOT NULL, message BLOB NOT NULL,
    own_id TEXT NOT NULL, added_ms INTEGER NOT NULL, visible_ms INTEGER NOT NULL, tries INTEGER NOT NULL DEFAULT 0,
    reason TEXT
);
CREATE INDEX IF NOT EXISTS waiting ON messages (queue, visible_ms);
CREATE UNIQUE INDEX IF NOT EXISTS once ON messages (queue, own_id);
CREATE TABLE IF NOT EXISTS readers (
    queue TEXT NOT NULL, reader TEXT NOT NULL, after INTEGER NOT NULL, PRIMARY KEY (queue, reader)
);
CREATE TABLE IF NOT EXISTS sent (queue TEXT NOT NULL, own_id TEXT NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (queue, own_id));
CREATE TABLE IF NOT EXISTS held (
    queue TEXT NOT NULL, reader TEXT NOT NULL, id INTEGER NOT NULL, visible_ms INTEGER NOT NULL, tries INTEGER NOT NULL,
    PRIMARY KEY (queue, reader, id)
);
CREATE TABLE IF NOT EXISTS owners (
    list TEXT NOT NULL, task TEXT NOT NULL, reader TEXT NOT NULL, at_ms INTEGER NOT NULL, PRIMARY KEY (list, task)
);";

/// A client of the file.
pub(crate) struct CkpSqliteBroker {
    clock: Arc<dyn Clock>,
    connection: Arc<Mutex<Connection>>,
    /// The connection that detects changes of the file by any process.
    watch: Mutex<Connection>,
    lane: BrokerSubscription,
}

impl CkpSqliteBroker {
    /// Opens the file. Creates it if it does not exist.
    pub(crate) fn open(
        clock: &Arc<dyn Clock>,
        path: &Path,
        lane: BrokerSubscription,
    ) -> Result<Self, QueueError> {
        let connection = Connection::open(path).map_err(broker_error)?;
        connection.busy_timeout(BUSY).map_err(broker_error)?;
        connection
            .pragma_update(None, "journal_mode", "wal")
            .map_err(broker_error)?;
        connection
            .pragma_update(None, "synchronous", "full")
            .map_err(broker_error)?;
        connection.execute_batch(SCHEMA).map_err(broker_error)?;
        let watch = Connection::open(path).map_err(broker_error)?;
        watch.busy_timeout(Duration::ZERO).map_err(broker_error)?;
        // A new reader skips the messages that are already there.
        if lane.shared {
            let join = "INSERT OR IGNORE INTO readers SELECT ?1, ?2, coalesce(max(id), 0) FROM messages WHERE queue = ?1";
            connection
                .execute(join, params![lane.take, lane.group])
                .map_err(broker_error)?;
        }
        Ok(Self {
            clock: Arc::clone(clock),
            connection: Arc::new(Mutex::new(connection)),
            watch: Mutex::new(watch),
            lane,
        })
    }

    fn now_ms(&self) -> i64 {
        self.clock.now().0 / 1000
    }

    /// Runs `act` in one transaction, on a thread that may block on the disk.
    async fn with_transaction<T: Send + 'static>(
        &self,
        act: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, QueueError> {
        let connection = Arc::clone(&self.connection);
        let acted = tokio::task::spawn_blocking(move || {
            let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = act(&transaction)?;
            transaction.commit()?;
            Ok::<T, rusqlite::Error>(done)
        });
        acted.await.map_err(broker_error)?.map_err(broker_error)
    }

    /// A number that changes when the file changes. Reads shared memory and never blocks.
    fn data_version(&self) -> Option<i64> {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        // silent-ok: while the file is being recovered, the queue is read
        watch
            .pragma_query_value(None, "data_version", |row| row.get(0))
            .ok()
    }

    async fn take_message(&self) -> Result<Option<InboxMessage<i64>>, QueueError> {
        let (lane, now) = (self.lane.clone(), self.now_ms());
        let found = self.with_transaction(move |on| {
            if lane.shared {
                read(on, &lane, now)
            } else {
                claim_message(on, &lane, now)
            }
        });
        Ok(found.await?.map(|found| InboxMessage {
            client: found.client,
            reply_to: None,
            message: found.message,
            tries: found.tries,
            put: Timestamp(found.added_ms.saturating_mul(1000)),
            receipt: found.id,
        }))
    }
}

struct SqliteQueueRow {
    id: i64,
    client: String,
    message: Vec<u8>,
    added_ms: i64,
    tries: u64,
}

fn wait_ms(lane: &BrokerSubscription) -> i64 {
    i64::try_from(lane.ack_wait.as_millis()).unwrap_or(i64::MAX)
}

/// The latest possible end of a lease that was taken by the present wall clock. A later end means that the clock was set back
/// since, and the lease counts as expired. Otherwise its message would be delayed by the whole jump.
fn latest_lease_end(lane: &BrokerSubscription, now: i64) -> i64 {
    now.saturating_add(wait_ms(lane).saturating_mul(2))
}

fn read_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<SqliteQueueRow> {
    let tries: i64 = row.get(4)?;
    Ok(SqliteQueueRow {
        id: row.get(0)?,
        client: row.get(1)?,
        message: row.get(2)?,
        added_ms: row.get(3)?,
        tries: u64::try_from(tries).unwrap_or(0).saturating_add(1),
    })
}

/// Takes the next message that no reader holds.
fn claim_message(
    on: &rusqlite::Transaction<'_>,
    lane: &BrokerSubscription,
    now: i64,
) -> rusqlite::Result<Option<SqliteQueueRow>> {
    let next = "SELECT id, client, message, added_ms, tries FROM messages WHERE queue = ?1 AND (visible_ms <= ?2 OR visible_ms > ?3)
        ORDER BY id LIMIT 1";
    let next = on
        .query_row(
            next,
            params![lane.take, now, latest_lease_end(lane, now)],
            read_row,
        )
        .optional()?;
    if let Some(next) = &next {
        on.execute(
            "UPDATE messages SET visible_ms = ?1, tries = tries + 1 WHERE id = ?2",
            params![now + wait_ms(lane), next.id],
        )?;
    }
    Ok(next)
}

/// Reads the next message that this reader has not read, or has read without acknowledging it in time.
fn read(
    on: &rusqlite::Transaction<'_>,
    lane: &BrokerSubscription,
    now: i64,
) -> rusqlite::Result<Option<SqliteQueueRow>> {
    let again =
        "SELECT m.id, m.client, m.message, m.added_ms, h.tries FROM held h JOIN messages m ON m.id = h.id
        WHERE h.queue = ?1 AND h.reader = ?2 AND (h.visible_ms <= ?3 OR h.visible_ms > ?4) ORDER BY m.id LIMIT 1";
    let again = on
        .query_row(
            again,
            params![lane.take, lane.group, now, latest_lease_end(lane, now)],
            read_row,
        )
        .optional()?;
    let next = match again {
        Some(again) => Some(again),
        None => {
            let next = "SELECT id, client, message, added_ms, 0 FROM messages WHERE queue = ?1
                AND id > (SELECT after FROM readers WHERE queue = ?1 AND reader = ?2) ORDER BY id LIMIT 1";
            on.query_row(next, params![lane.take, lane.group], read_row)
                .optional()?
        }
    };
    if let Some(next) = &next {
        let until = now + wait_ms(lane);
        let tries = i64::try_from(next.tries).unwrap_or(i64::MAX);
        on.execute(
            "INSERT OR REPLACE INTO held VALUES (?1, ?2, ?3, ?4, ?5)",
            params![lane.take, lane.group, next.id, until, tries],
        )?;
        on.execute(
            "UPDATE readers SET after = max(after, ?3) WHERE queue = ?1 AND reader = ?2",
            params![lane.take, lane.group, next.id],
        )?;
    }
    Ok(next)
}

impl Broker for CkpSqliteBroker {
    /// The message's number.
    type Receipt = i64;

    async fn next(&self) -> Result<Vec<InboxMessage<i64>>, QueueError> {
        let mut known = None;
        for look in 0..LOOKS {
            // The version is read before the queue, so a message that arrives in between is noticed by one of the two.
            let version = self.data_version();
            if (version.is_none() || known != version || look % WHOLE == 0)
                && let Some(parcel) = self.take_message().await?
            {
                return Ok(vec![parcel]);
            }
            known = version;
            tokio::time::sleep(LOOK).await;
        }
        Ok(Vec::new())
    }

    async fn publish_line(&self, to: &str, client: &str, line: &[u8], id: &str) -> Result<(), QueueError> {
        if line.len() > MOST {
            return Err(QueueError::TooLong(MOST));
        }
        let (to, client, line, id) = (to.to_owned(), client.to_owned(), line.to_vec(), id.to_owned());
        let now = self.now_ms();
        let old = now.saturating_sub(i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX));
        let removed = self
            .lane
            .puts
            .iter()
            .any(|(queue, removed)| *removed && *queue == to);
        self.with_transaction(move |on| {
            if removed {
                // A repeated message is stored once, even if the first copy was already consumed.
                on.execute("DELETE FROM sent WHERE at_ms < ?1", params![old])?;
                let new = on.execute(
                    "INSERT OR IGNORE INTO sent VALUES (?1, ?2, ?3)",
                    params![to, id, now],
                )?;
                if new == 0 {
                    return Ok(());
                }
            }
            let put = "INSERT OR IGNORE INTO messages (queue, client, message, own_id, added_ms, visible_ms)
                VALUES (?1, ?2, ?3, ?4, ?5, 0)";
            on.execute(put, params![to, client, line, id, now])?;
            if !removed {
                on.execute(
                    "DELETE FROM messages WHERE queue = ?1 AND added_ms < ?2",
                    params![to, old],
                )?;
            }
            Ok(())
        })
        .await
    }

    async fn acknowledge_message(&self, receipt: &i64) -> Result<(), QueueError> {
        let (id, lane) = (*receipt, self.lane.clone());
        self.with_transaction(move |on| {
            if lane.shared {
                let held = "DELETE FROM held WHERE queue = ?1 AND reader = ?2 AND id = ?3";
                on.execute(held, params![lane.take, lane.group, id])
            } else {
                on.execute("DELETE FROM messages WHERE id = ?1", params![id])
            }
        })
        .await
        .map(drop)
    }

    async fn claim_task(&self, task: &str, reader: &str) -> Result<String, QueueError> {
        let list = self.lane.owners.clone().ok_or_else(no_owners)?;
        let (task, reader, now) = (task.to_owned(), reader.to_owned(), self.now_ms());
        let old = now.saturating_sub(i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX));
        self.with_transaction(move |on| {
            on.execute("DELETE FROM owners WHERE at_ms < ?1", params![old])?;
            on.execute(
                "INSERT OR IGNORE INTO owners VALUES (?1, ?2, ?3, ?4)",
                params![list, task, reader, now],
            )?;
            let owner = "SELECT reader FROM owners WHERE list = ?1 AND task = ?2";
            on.query_row(owner, params![list, task], |row| row.get(0))
        })
        .await
    }

    async fn task_owner(&self, task: &str) -> Result<Option<String>, QueueError> {
        let list = self.lane.owners.clone().ok_or_else(no_owners)?;
        let task = task.to_owned();
        self.with_transaction(move |on| {
            let owner = "SELECT reader FROM owners WHERE list = ?1 AND task = ?2";
            on.query_row(owner, params![list, task], |row| row.get(0))
                .optional()
        })
        .await
    }

    async fn report_progress(&self, receipt: &i64) -> Result<(), QueueError> {
        let (id, until) = (*receipt, self.now_ms().saturating_add(wait_ms(&self.lane)));
        self.with_transaction(move |on| {
            on.execute(
                "UPDATE messages SET visible_ms = ?1 WHERE id = ?2",
                params![until, id],
            )
        })
        .await
        .map(drop)
    }

    async fn move_to_dead_letters(&self, parcel: &InboxMessage<i64>, reason: &str) -> Result<(), QueueError> {
        let (id, dead, reason) = (parcel.receipt, self.lane.dead.clone(), reason.to_owned());
        self.with_transaction(move |on| {
            // The row's number distinguishes it from another dead letter with the same id.
            on.execute(
                "UPDATE messages SET queue = ?1, reason = ?2, visible_ms = 9223372036854775807, own_id = own_id || '.' || id
                WHERE id = ?3",
                params![dead, reason, id],
            )
        })
        .await
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use clawk_kernel::testing::TestClock;
    use clawk_kernel::time::Clock;

    use super::{Broker as _, BrokerSubscription, CkpSqliteBroker};

    fn open(clock: &Arc<TestClock>, path: &Path, shared: bool) -> CkpSqliteBroker {
        let lane = BrokerSubscription {
            take: "in".to_owned(),
            shared,
            group: "readers".to_owned(),
            reader: "one".to_owned(),
            ack_wait: Duration::from_secs(30),
            at_once: 1,
            puts: vec![("in".to_owned(), !shared)],
            dead: "dead".to_owned(),
            owners: None,
        };
        let clock: Arc<dyn Clock> = Arc::clone(clock) as Arc<dyn Clock>;
        CkpSqliteBroker::open(&clock, path, lane).unwrap()
    }

    /// The queue finds a message, whether another connection or the reader's own one put it there.
    #[tokio::test]
    async fn a_message_is_found_whoever_put_it_there() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(TestClock::default());
        let path = folder.path().join("q.db");
        let (reader, other) = (open(&clock, &path, false), open(&clock, &path, false));
        assert!(reader.next().await.unwrap().is_empty());
        for (writer, text) in [(&other, "one"), (&reader, "two")] {
            let before = reader.data_version();
            assert_eq!(reader.data_version(), before, "nobody has changed the file");
            let late = async {
                tokio::time::sleep(Duration::from_millis(30)).await;
                writer
                    .publish_line("in", "", text.as_bytes(), text)
                    .await
                    .unwrap();
            };
            let (found, ()) = tokio::join!(reader.next(), late);
            let found = found.unwrap();
            assert_ne!(reader.data_version(), before, "it was changed");
            assert_eq!(found[0].message, text.as_bytes());
            reader.acknowledge_message(&found[0].receipt).await.unwrap();
        }
    }

    /// A reader takes a message and crashes; the wall clock is set back an hour. The message is delivered again when its lease
    /// expires, and not an hour later. A message with a valid lease is not.
    #[tokio::test]
    async fn a_wall_clock_that_goes_back_holds_no_message_back() {
        for shared in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let clock = Arc::new(TestClock::default());
            let file = open(&clock, &folder.path().join("q.db"), shared);
            file.publish_line("in", "", b"one", "id-1").await.unwrap();
            assert!(file.take_message().await.unwrap().is_some());
            assert!(file.take_message().await.unwrap().is_none(), "it is held");
            clock.set_off_ms(-3_600_000);
            let again = file
                .take_message()
                .await
                .unwrap()
                .expect("its lease is of another time");
            assert_eq!(again.tries, 2);
            assert!(file.take_message().await.unwrap().is_none(), "it is held again");
            file.acknowledge_message(&again.receipt).await.unwrap();
            // The clock goes a day forward and back: handled messages are not delivered again, and a repeated message is stored
            // once.
            clock.set_off_ms(86_400_000);
            file.publish_line("in", "", b"one", "id-1").await.unwrap();
            clock.set_off_ms(0);
            assert!(file.take_message().await.unwrap().is_none(), "shared: {shared}");
        }
    }
}
