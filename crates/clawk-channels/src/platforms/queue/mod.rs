//! `queue`: each message of a queue begins a run (C11). The message is acknowledged once it is durable here; what has no place waits
//! at the broker. RabbitMQ, NATS JetStream and Redis Streams.

mod amqp;
mod entry;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use clawk_egress::Url;
use clawk_kernel::ports::{BoxFuture, Delivery};
use clawk_manifest::model::Channel;
use clawk_secrets::EnvironmentSource;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

pub(super) use self::entry::QUEUE;
use crate::adapter::{
    ChannelAdapter, ChannelDisconnect, DeliveryLookup, InboundPipeline, LengthUnit, MarkupFormat,
    OutboundMessage, PlatformCapabilities,
};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::genuine::to_hex;
use crate::platform_kit::{required, secret};
use crate::runs::{Event, RunAdmission, TriggerRuns};

/// Bytes of a message; a larger one is a dead letter.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of a reply address, a correlation id or a producer's id.
const MAX_NAME: usize = 512;

/// Where a message's answer goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ReplyTo {
    address: String,
    correlation: Option<String>,
}

/// What outlives the process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredQueueState {
    running: Vec<String>,
    replies: BTreeMap<String, ReplyTo>,
    /// Messages that came without an id.
    seen: amqp::SeenMessages,
}

/// A message of a broker.
#[derive(Debug, Default)]
struct QueueTriggerMessage {
    /// The broker's id of it; the same on every delivery. Empty: it has none, and gets one of ours.
    id: String,
    /// The broker says that it may have delivered it before.
    redelivered: bool,
    /// It has more than [`MAX_BYTES`], and its body is left out.
    large: bool,
    /// The producer's own id.
    producer: Option<String>,
    reply: Option<ReplyTo>,
    body: Bytes,
}

/// Which broker.
#[derive(Debug)]
enum Broker {
    Amqp(Box<amqp::RabbitMqTrigger>),
    #[cfg(feature = "nats")]
    Nats(nats::JetStreamTrigger),
    #[cfg(feature = "redis")]
    Redis(redis::RedisStreamsTrigger),
}

/// The channel.
#[derive(Debug)]
pub(crate) struct QueueAdapter {
    broker: Broker,
    runs: TriggerRuns,
    replies: Mutex<BTreeMap<String, ReplyTo>>,
    seen: Mutex<amqp::SeenMessages>,
}

impl QueueAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let url = config.url.as_deref().ok_or(
            "`url` is missing in clawk.toml: the broker (`amqp://HOST`, `nats://HOST` or `redis://HOST`)",
        )?;
        let mut url = Url::parse(url).map_err(|error| format!("`url` is not a valid address: {error}"))?;
        if url.password().is_some() {
            return Err("`url` holds a password; name it by `auth.secret_ref`".to_owned());
        }
        if !url.username().is_empty() {
            let password = secret(channel, parts)?;
            url.set_password(Some(password.expose().trim()))
                .map_err(|()| "the broker's address takes no password".to_owned())?;
        }
        let queue = required(channel, "queue_name", |trigger| trigger.queue_name.as_deref())?;
        Ok(Self {
            broker: broker(url, &queue, &channel.name, parts.secrets.env())?,
            runs: TriggerRuns::new(channel, config, parts),
            replies: Mutex::default(),
            seen: Mutex::default(),
        })
    }

    fn lock_replies(&self) -> MutexGuard<'_, BTreeMap<String, ReplyTo>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_seen(&self) -> MutexGuard<'_, amqp::SeenMessages> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save_state(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let running = self.runs.running_runs();
        let replies = self.lock_replies().clone();
        let seen = self.lock_seen().clone();
        let kept = StoredQueueState {
            running,
            replies,
            seen,
        };
        let text = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
        inlet.set_cursor(&text).map_err(|error| error.to_string())
    }

    async fn restore_state(&self, inlet: &InboundPipeline) -> Result<(), ChannelDisconnect> {
        let text = inlet
            .read_cursor()
            .map_err(|error| ChannelDisconnect::temporary(error.to_string()))?;
        let Some(text) = text else { return Ok(()) };
        let kept: StoredQueueState = serde_json::from_str(&text).map_err(|error| {
            ChannelDisconnect::fatal(format!("which runs are under way can't be read: {error}"))
        })?;
        self.runs
            .restore_runs(inlet, kept.running)
            .await
            .map_err(ChannelDisconnect::temporary)?;
        let running = self.runs.running_runs();
        let mut replies = kept.replies;
        replies.retain(|run, _| running.contains(run));
        *self.lock_replies() = replies;
        *self.lock_seen() = kept.seen;
        Ok(())
    }

    async fn listen(&self, inlet: &InboundPipeline) -> Result<(), ChannelDisconnect> {
        self.restore_state(inlet).await?;
        match &self.broker {
            Broker::Amqp(rabbit) => rabbit.listen(self, inlet).await,
            #[cfg(feature = "nats")]
            Broker::Nats(jet) => jet.listen(self, inlet).await,
            #[cfg(feature = "redis")]
            Broker::Redis(streams) => streams.listen(self, inlet).await,
        }
    }

    /// Takes a message. When this returns `Ok`, it is durable, and the broker may be told so.
    async fn ingest_message(
        &self,
        inlet: &InboundPipeline,
        mut message: QueueTriggerMessage,
    ) -> Result<(), ChannelDisconnect> {
        if message.id.is_empty() {
            let digest = to_hex(&Sha256::digest(&message.body));
            let fresh = inlet.clock().new_uuid().to_string();
            message.id = self.lock_seen().id(&digest, message.redelivered, fresh);
        }
        let poison = if message.large || message.body.len() > MAX_BYTES {
            Some("the message is larger than 1 MiB")
        } else if std::str::from_utf8(&message.body).is_err() {
            Some("the message is not UTF-8")
        } else {
            None
        };
        if let Some(reason) = poison {
            return self
                .runs
                .dead_letter(inlet, &message.id, &message.body, reason)
                .await
                .map_err(ChannelDisconnect::temporary);
        }
        self.runs.wait_for_place().await;
        let run = message.id.clone();
        let fits =
            |text: &String| !text.is_empty() && text.len() <= MAX_NAME && !text.contains(char::is_control);
        if let Some(reply) = message.reply.filter(|reply| fits(&reply.address)) {
            self.lock_replies().insert(run.clone(), reply);
        }
        let producer = message.producer.filter(fits).map(|id| format!("id:{id}"));
        let event = Event {
            ids: std::iter::once(message.id).chain(producer).collect(),
            text: String::from_utf8_lossy(&message.body).into_owned(),
            attachments: Vec::new(),
        };
        match self.runs.begin_run(inlet, event, || self.save_state(inlet)).await {
            RunAdmission::Kept => Ok(()),
            RunAdmission::Later(reason) => Err(ChannelDisconnect::temporary(format!(
                "a message could not be kept: {reason}"
            ))),
        }
    }

    async fn send_answer(&self, out: &OutboundMessage) -> Delivery {
        let reply = self.lock_replies().get(&out.conversation).cloned();
        let Some(reply) = reply else {
            // Nobody asked for an answer: it is in the journal.
            return Delivery::Delivered { platform_id: None };
        };
        match &self.broker {
            Broker::Amqp(rabbit) => rabbit.publish_answer(&reply, out).await,
            #[cfg(feature = "nats")]
            Broker::Nats(jet) => jet.publish_answer(&reply, out).await,
            #[cfg(feature = "redis")]
            Broker::Redis(streams) => streams.publish_answer(&reply, out).await,
        }
    }
}

/// The broker of an address.
#[cfg_attr(
    not(feature = "nats"),
    expect(unused_variables, reason = "only NATS needs the channel's name")
)]
fn broker(url: Url, queue: &str, channel: &str, env: &EnvironmentSource) -> Result<Broker, String> {
    match url.scheme() {
        #[cfg(feature = "nats")]
        "nats" | "tls" => Ok(Broker::Nats(nats::JetStreamTrigger::new(
            url, queue, channel, env,
        ))),
        #[cfg(feature = "redis")]
        "redis" => Ok(Broker::Redis(redis::RedisStreamsTrigger::new(&url, queue)?)),
        #[cfg(not(feature = "nats"))]
        "nats" | "tls" => Err("this build has no NATS; build with `--features nats`".to_owned()),
        #[cfg(not(feature = "redis"))]
        "redis" => Err("this build has no Redis; build with `--features redis`".to_owned()),
        "amqp" | "amqps" => Ok(Broker::Amqp(Box::new(amqp::RabbitMqTrigger::new(
            url, queue, env,
        )?))),
        other => Err(format!(
            "`{other}://` is not a broker; `amqp://`, `amqps://`, `nats://` and `redis://` work"
        )),
    }
}

impl ChannelAdapter for QueueAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            // A reply carries its id: in NATS as `Nats-Msg-Id`. In Redis it is looked for.
            idempotent: match &self.broker {
                #[cfg(feature = "nats")]
                Broker::Nats(_) => true,
                #[cfg(feature = "redis")]
                Broker::Redis(_) => false,
                // It carries its id as `message_id`, which the asker may compare.
                Broker::Amqp(_) => false,
            },
            ..PlatformCapabilities::plain_text(MAX_BYTES, LengthUnit::Bytes)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            tokio::select! {
                ended = self.listen(inlet) => ended.err().unwrap_or_else(|| ChannelDisconnect::temporary("the queue ended")),
                () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
            }
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(self.send_answer(out))
    }

    fn sent_before<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, DeliveryLookup> {
        Box::pin(async move {
            let reply = self.lock_replies().get(&out.conversation).cloned();
            match (&self.broker, reply) {
                #[cfg(feature = "redis")]
                (Broker::Redis(streams), Some(reply)) => streams.find_answer(&reply, out).await,
                // A queue of somebody else's can't be read without taking from it.
                (Broker::Amqp(_), Some(_)) => DeliveryLookup::CantKnow,
                _ => DeliveryLookup::No,
            }
        })
    }

    fn on_run_finished<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        self.lock_replies().remove(conversation);
        self.runs.finish_run(conversation);
        Box::pin(std::future::ready(()))
    }
}
