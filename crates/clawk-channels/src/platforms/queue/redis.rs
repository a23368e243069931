//! Redis Streams with a consumer group. What an earlier process left pending comes first.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::Delivery;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamRangeReply, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Value};
use serde_json::{Map, json};

use super::{QueueAdapter, QueueTriggerMessage, ReplyTo};
use crate::adapter::{ChannelDisconnect, DeliveryLookup, InboundPipeline, OutboundMessage};
use crate::api::bounded_line;

/// The group, and its only consumer: one process owns an agent, and another name would orphan what is pending.
const GROUP: &str = "clawk";
/// How long a read waits, milliseconds; less than an answer may take.
const BLOCK_MS: u64 = 2_000;
const ANSWER: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(5);
/// Entries of a reply stream among which an answer is looked for.
const LOOKED_AT: usize = 100;

pub(super) struct RedisStreamsTrigger {
    client: Client,
    key: String,
}

impl fmt::Debug for RedisStreamsTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.key)
    }
}

fn disconnect_from_error(error: &RedisError) -> ChannelDisconnect {
    let reason = bounded_line(&error.to_string());
    match error.code() {
        Some("NOAUTH" | "WRONGPASS" | "NOPERM") => {
            ChannelDisconnect::fatal(format!("Redis refuses the login ({reason})"))
        }
        _ => ChannelDisconnect::temporary(reason),
    }
}

impl RedisStreamsTrigger {
    pub(super) fn new(url: &Url, key: &str) -> Result<Self, String> {
        let client = Client::open(url.as_str()).map_err(|_| "`url` is not an address of Redis".to_owned())?; // silent-ok: said, without the password
        Ok(Self {
            client,
            key: key.to_owned(),
        })
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(ANSWER));
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    pub(super) async fn listen(
        &self,
        queue: &QueueAdapter,
        inlet: &InboundPipeline,
    ) -> Result<(), ChannelDisconnect> {
        let mut connection = self
            .connect()
            .await
            .map_err(|error| disconnect_from_error(&error))?;
        let made: RedisResult<Value> = redis::cmd("XGROUP")
            .arg("CREATE")
            .arg(&self.key)
            .arg(GROUP)
            .arg("0")
            .arg("MKSTREAM")
            .query_async(&mut connection)
            .await;
        if let Err(error) = made
            && error.code() != Some("BUSYGROUP")
        {
            return Err(disconnect_from_error(&error));
        }
        inlet.report_ready();
        // What was delivered and not acknowledged, then what is new.
        let mut after = Some("0".to_owned());
        loop {
            queue.runs.wait_for_place().await;
            let mut command = redis::cmd("XREADGROUP");
            command
                .arg("GROUP")
                .arg(GROUP)
                .arg(GROUP)
                .arg("COUNT")
                .arg(queue.runs.free_places().max(1));
            if after.is_none() {
                command.arg("BLOCK").arg(BLOCK_MS);
            }
            command
                .arg("STREAMS")
                .arg(&self.key)
                .arg(after.as_deref().unwrap_or(">"));
            let read: RedisResult<Option<StreamReadReply>> = command.query_async(&mut connection).await;
            let read = read.map_err(|error| disconnect_from_error(&error))?;
            let keys = read.map(|read| read.keys).unwrap_or_default();
            let entries: Vec<StreamId> = keys.into_iter().flat_map(|key| key.ids).collect();
            if after.is_some() {
                after = entries.last().map(|entry| entry.id.clone());
            }
            for entry in entries {
                // An entry that was trimmed while it was pending has no fields.
                if !entry.map.is_empty() {
                    queue.ingest_message(inlet, self.trigger_message(&entry)).await?;
                }
                let acked: RedisResult<Value> = redis::cmd("XACK")
                    .arg(&self.key)
                    .arg(GROUP)
                    .arg(&entry.id)
                    .query_async(&mut connection)
                    .await;
                acked.map_err(|error| disconnect_from_error(&error))?;
            }
        }
    }

    fn trigger_message(&self, entry: &StreamId) -> QueueTriggerMessage {
        let text = |name: &str| bytes_of(entry, name).and_then(|bytes| String::from_utf8(bytes).ok()); // silent-ok: such a name is none
        let body = ["payload", "data", "body"]
            .iter()
            .find_map(|name| bytes_of(entry, name));
        let body = body.unwrap_or_else(|| {
            let mut all = Map::new();
            for name in entry.map.keys() {
                let value = bytes_of(entry, name).unwrap_or_default();
                all.insert(name.clone(), json!(String::from_utf8_lossy(&value)));
            }
            serde_json::Value::Object(all).to_string().into_bytes()
        });
        QueueTriggerMessage {
            id: format!("{}:{}", self.key, entry.id),
            producer: text("id"),
            reply: text("reply_to").map(|address| ReplyTo {
                address,
                correlation: text("correlation_id"),
            }),
            body: Bytes::from(body),
            ..QueueTriggerMessage::default()
        }
    }

    pub(super) async fn publish_answer(&self, reply: &ReplyTo, out: &OutboundMessage) -> Delivery {
        let sent = async {
            let mut connection = self.connect().await?;
            let mut command = redis::cmd("XADD");
            command
                .arg(&reply.address)
                .arg("*")
                .arg("payload")
                .arg(&out.markdown)
                .arg("id")
                .arg(&out.id)
                .arg("in_reply_to")
                .arg(&out.conversation);
            if let Some(correlation) = &reply.correlation {
                command.arg("correlation_id").arg(correlation);
            }
            command.query_async::<String>(&mut connection).await
        };
        match sent.await {
            Ok(id) => Delivery::Delivered {
                platform_id: Some(id),
            },
            Err(error) => {
                let reason = bounded_line(&error.to_string());
                match error.code() {
                    Some("WRONGTYPE") => Delivery::Failed { reason },
                    _ if error.is_connection_refusal() => Delivery::Retry {
                        after_ms: None,
                        reason,
                    },
                    _ => Delivery::Unknown { reason },
                }
            }
        }
    }

    /// Whether an answer is in the reply stream already.
    pub(super) async fn find_answer(&self, reply: &ReplyTo, out: &OutboundMessage) -> DeliveryLookup {
        let looked = async {
            let mut connection = self.connect().await?;
            redis::cmd("XREVRANGE")
                .arg(&reply.address)
                .arg("+")
                .arg("-")
                .arg("COUNT")
                .arg(LOOKED_AT)
                .query_async::<StreamRangeReply>(&mut connection)
                .await
        };
        match looked.await {
            Ok(found) => found
                .ids
                .iter()
                .find(|entry| bytes_of(entry, "id").as_deref() == Some(out.id.as_bytes()))
                .map_or(DeliveryLookup::No, |entry| {
                    DeliveryLookup::Yes(Some(entry.id.clone()))
                }),
            Err(_) => DeliveryLookup::CantKnow, // silent-ok: then the answer is sent marked as a repetition
        }
    }
}

fn bytes_of(entry: &StreamId, name: &str) -> Option<Vec<u8>> {
    match entry.map.get(name)? {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::SimpleString(text) => Some(text.clone().into_bytes()),
        _ => None,
    }
}
