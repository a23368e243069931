//! `--redis`: queues on Redis Streams with a consumer group.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use clawk_client::queue::{CLIENT, MESSAGE, QueueNames, REASON, REPLY_TO};
use clawk_egress::Url;
use clawk_kernel::time::Timestamp;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamPendingCountReply, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, RedisResult, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Broker, BrokerDoor, BrokerSubscription, InboxMessage, KEPT, QueueError, QueueOptions, broker_error,
    no_owners, retry_start,
};
use crate::host::AgentHost;

/// How long a read waits for entries, milliseconds.
const BLOCK_MS: u64 = 2_000;
/// How often unacknowledged entries are searched for.
const CLAIM: Duration = Duration::from_secs(5);
/// The start id of the search for unacknowledged entries.
const FIRST: &str = "0-0";
/// The approximate largest number of entries in an outbox.
const KEPT_ENTRIES: usize = 100_000;
/// How long a private reply stream lives after its last entry, seconds.
const REPLY_SECONDS: u64 = 86_400;
/// How long duplicates of a message are detected, seconds.
const ONCE_SECONDS: u64 = 86_400;
const PUT_ONCE: &str = "if redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[5]) then \
    redis.call('XADD', KEYS[1], '*', ARGV[1], ARGV[2], ARGV[3], ARGV[4]) return 1 end return 0";
/// The longest value that Redis accepts, bytes.
const MOST: usize = 512 << 20;

/// The connected door.
pub struct RedisDoor(Arc<BrokerDoor<CkpRedisStreamsBroker>>);

impl std::fmt::Debug for RedisDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redis")
    }
}

impl RedisDoor {
    /// Connects, and creates the inbox with its consumer group.
    ///
    /// # Errors
    /// The server can't be reached, or refuses the login.
    pub async fn connect(host: AgentHost, options: &QueueOptions) -> Result<Self, QueueError> {
        let lane = BrokerSubscription::of_agent(&QueueNames::new(&options.swarm, &options.agent));
        let streams = CkpRedisStreamsBroker::new(&options.server, lane)?;
        // Connecting now makes an unreachable server an error of the start.
        retry_start(|| streams.connect_reader()).await?;
        Ok(Self(BrokerDoor::new(streams, host, "redis", options)?))
    }

    /// Serves until `cancel`.
    pub async fn serve(self, cancel: CancellationToken) {
        self.0.serve(cancel).await;
    }
}

pub(crate) struct CkpRedisStreamsBroker {
    client: Client,
    lane: BrokerSubscription,
    /// The connection for blocking reads.
    read: Mutex<Option<RedisReadState>>,
    write: Mutex<Option<MultiplexedConnection>>,
}

#[derive(Clone)]
struct RedisReadState {
    connection: MultiplexedConnection,
    /// Where reading continues in the entries that an earlier process or connection left unacknowledged. `None`: only new entries
    /// are read.
    left_after: Option<String>,
    claimed: Instant,
    /// Where the search for unacknowledged entries continues; one step checks only a few entries.
    claim_from: String,
}

impl CkpRedisStreamsBroker {
    pub(crate) fn new(server: &Url, lane: BrokerSubscription) -> Result<Self, QueueError> {
        let client = Client::open(server.as_str())
            .map_err(|_| QueueError::Broker("the URL is not one of Redis".to_owned()))?;
        Ok(Self {
            client,
            lane,
            read: Mutex::default(),
            write: Mutex::default(),
        })
    }

    async fn connect(&self) -> Result<MultiplexedConnection, QueueError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(5)))
            .set_response_timeout(Some(Duration::from_secs(30)));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config);
        connection.await.map_err(broker_error)
    }

    /// Connects the reader and creates the consumer group.
    pub(crate) async fn connect_reader(&self) -> Result<(), QueueError> {
        let mut connection = self.connect().await?;
        let made: RedisResult<Value> = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg(&self.lane.take)
            .arg(&self.lane.group)
            .arg(if self.lane.shared { "$" } else { "0" })
            .arg("MKSTREAM")
            .query_async(&mut connection)
            .await;
        if let Err(error) = made
            && error.code() != Some("BUSYGROUP")
        {
            return Err(broker_error(error));
        }
        *self.read.lock().await = Some(RedisReadState {
            connection,
            left_after: Some("0".to_owned()),
            claimed: Instant::now(),
            claim_from: FIRST.to_owned(),
        });
        Ok(())
    }

    /// Runs one command on the writing connection. Reconnects after a failure.
    async fn run<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, QueueError> {
        let open = self.write.lock().await.clone();
        let mut connection = match open {
            Some(connection) => connection,
            None => {
                let fresh = self.connect().await?;
                *self.write.lock().await = Some(fresh.clone());
                fresh
            }
        };
        let outcome: RedisResult<T> = command.query_async(&mut connection).await;
        if outcome
            .as_ref()
            .is_err_and(redis::RedisError::is_unrecoverable_error)
        {
            *self.write.lock().await = None;
        }
        outcome.map_err(broker_error)
    }

    async fn read(&self, reading: &mut RedisReadState) -> RedisResult<Vec<StreamId>> {
        let connection = &mut reading.connection;
        if let Some(after) = reading.left_after.clone() {
            let left = read_entries(connection, &self.lane, &after, None).await?;
            reading.left_after = left.last().map(|entry| entry.id.clone());
            if !left.is_empty() {
                return Ok(left);
            }
        }
        while reading.claimed.elapsed() >= CLAIM {
            let found: StreamAutoClaimReply = redis::cmd("XAUTOCLAIM")
                .arg(&self.lane.take)
                .arg(&self.lane.group)
                .arg(&self.lane.reader)
                .arg(u64::try_from(self.lane.ack_wait.as_millis()).unwrap_or(u64::MAX))
                .arg(&reading.claim_from)
                .arg("COUNT")
                .arg(self.lane.at_once)
                .query_async(connection)
                .await?;
            // The search has covered the whole list when it is back at its start.
            if found.next_stream_id == FIRST {
                reading.claimed = Instant::now();
            }
            reading.claim_from = found.next_stream_id;
            if !found.claimed.is_empty() {
                return Ok(found.claimed);
            }
        }
        read_entries(connection, &self.lane, ">", Some(BLOCK_MS)).await
    }

    /// Adds an entry once, however often it is tried. The stream is not trimmed, so no waiting entry is lost.
    async fn put_once(&self, to: &str, client: &str, line: &[u8], id: &str) -> Result<(), QueueError> {
        let mut command = redis::cmd("EVAL");
        command
            .arg(PUT_ONCE)
            .arg(2)
            .arg(to)
            .arg(format!("{to}.sent.{id}"));
        command
            .arg(MESSAGE)
            .arg(line)
            .arg(CLIENT)
            .arg(client)
            .arg(ONCE_SECONDS);
        let _put: i64 = self.run(&command).await?;
        Ok(())
    }

    /// The number of deliveries of an entry.
    async fn delivery_count(&self, id: &str) -> Result<u64, QueueError> {
        let mut command = redis::cmd("XPENDING");
        command
            .arg(&self.lane.take)
            .arg(&self.lane.group)
            .arg(id)
            .arg(id)
            .arg(1);
        let pending: StreamPendingCountReply = self.run(&command).await?;
        let times = pending.ids.first().map_or(1, |entry| entry.times_delivered);
        Ok(u64::try_from(times).unwrap_or(u64::MAX))
    }
}

async fn read_entries(
    connection: &mut MultiplexedConnection,
    lane: &BrokerSubscription,
    after: &str,
    block_ms: Option<u64>,
) -> RedisResult<Vec<StreamId>> {
    let mut command = redis::cmd("XREADGROUP");
    command.arg("GROUP").arg(&lane.group).arg(&lane.reader);
    command.arg("COUNT").arg(lane.at_once);
    if let Some(block_ms) = block_ms {
        command.arg("BLOCK").arg(block_ms);
    }
    command.arg("STREAMS").arg(&lane.take).arg(after);
    let reply: Option<StreamReadReply> = command.query_async(connection).await?;
    let keys = reply.map(|reply| reply.keys).unwrap_or_default();
    Ok(keys.into_iter().flat_map(|key| key.ids).collect())
}

/// When an entry was added: its id begins with the milliseconds.
fn added_at(id: &str) -> Timestamp {
    let added_ms = id.split('-').next().and_then(|ms| ms.parse::<i64>().ok()); // silent-ok: ids of one's own making are old
    Timestamp(added_ms.unwrap_or(0).saturating_mul(1000))
}

/// A field of an entry.
fn entry_field(map: &HashMap<String, Value>, name: &str) -> Option<Vec<u8>> {
    match map.get(name)? {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        _ => None,
    }
}

impl Broker for CkpRedisStreamsBroker {
    /// The entry's id.
    type Receipt = String;

    async fn next(&self) -> Result<Vec<InboxMessage<String>>, QueueError> {
        let open = self.read.lock().await.clone();
        let Some(mut reading) = open else {
            return self.connect_reader().await.map(|()| Vec::new());
        };
        let found = self.read(&mut reading).await;
        let mut parcels = Vec::new();
        match found {
            Err(error) => {
                *self.read.lock().await = None;
                return Err(broker_error(error));
            }
            Ok(found) => {
                *self.read.lock().await = Some(reading);
                for entry in found {
                    let text = |name: &str| {
                        entry_field(&entry.map, name)
                            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                    };
                    parcels.push(InboxMessage {
                        client: text(CLIENT).unwrap_or_default(),
                        reply_to: text(REPLY_TO).or_else(|| text("reply_to")),
                        message: entry_field(&entry.map, MESSAGE).unwrap_or_default(),
                        tries: self.delivery_count(&entry.id).await?,
                        put: added_at(&entry.id),
                        receipt: entry.id,
                    });
                }
            }
        }
        Ok(parcels)
    }

    async fn publish_line(&self, to: &str, client: &str, line: &[u8], id: &str) -> Result<(), QueueError> {
        if line.len() > MOST {
            return Err(QueueError::TooLong(MOST));
        }
        if self
            .lane
            .puts
            .iter()
            .any(|(stored, removed)| *removed && stored == to)
        {
            return self.put_once(to, client, line, id).await;
        }
        let mut command = redis::cmd("XADD");
        command.arg(to).arg("MAXLEN").arg("~").arg(KEPT_ENTRIES).arg("*");
        command.arg(MESSAGE).arg(line).arg("id").arg(id);
        if !client.is_empty() {
            command.arg(CLIENT).arg(client);
        }
        let _entry: String = self.run(&command).await?;
        if !self.lane.puts.iter().any(|(stored, _)| stored == to) {
            let mut command = redis::cmd("EXPIRE");
            command.arg(to).arg(REPLY_SECONDS);
            let _set: i64 = self.run(&command).await?;
        }
        Ok(())
    }

    async fn acknowledge_message(&self, receipt: &String) -> Result<(), QueueError> {
        let mut command = redis::cmd("XACK");
        command.arg(&self.lane.take).arg(&self.lane.group).arg(receipt);
        let _acknowledged: i64 = self.run(&command).await?;
        if self.lane.shared {
            return Ok(());
        }
        let mut command = redis::cmd("XDEL");
        command.arg(&self.lane.take).arg(receipt);
        let _gone: i64 = self.run(&command).await?;
        Ok(())
    }

    async fn claim_task(&self, task: &str, reader: &str) -> Result<String, QueueError> {
        let owners = self.lane.owners.as_ref().ok_or_else(no_owners)?;
        let mut command = redis::cmd("SET");
        command.arg(format!("{owners}.{task}")).arg(reader);
        command.arg("NX").arg("EX").arg(KEPT.as_secs());
        let _set: Option<String> = self.run(&command).await?;
        let kept = self.task_owner(task).await?;
        kept.ok_or_else(|| broker_error("the owner of a task is not kept"))
    }

    async fn task_owner(&self, task: &str) -> Result<Option<String>, QueueError> {
        let owners = self.lane.owners.as_ref().ok_or_else(no_owners)?;
        let mut command = redis::cmd("GET");
        command.arg(format!("{owners}.{task}"));
        self.run(&command).await
    }

    async fn report_progress(&self, receipt: &String) -> Result<(), QueueError> {
        let mut command = redis::cmd("XCLAIM");
        command
            .arg(&self.lane.take)
            .arg(&self.lane.group)
            .arg(&self.lane.reader)
            .arg(0);
        command.arg(receipt).arg("JUSTID");
        let _claimed: Value = self.run(&command).await?;
        Ok(())
    }

    async fn move_to_dead_letters(
        &self,
        parcel: &InboxMessage<String>,
        reason: &str,
    ) -> Result<(), QueueError> {
        let mut command = redis::cmd("XADD");
        command
            .arg(&self.lane.dead)
            .arg("MAXLEN")
            .arg("~")
            .arg(KEPT_ENTRIES);
        command.arg("*").arg(MESSAGE).arg(parcel.message.as_slice());
        command.arg(CLIENT).arg(&parcel.client).arg(REASON).arg(reason);
        let _entry: String = self.run(&command).await?;
        self.acknowledge_message(&parcel.receipt).await
    }
}
