//! `--nats`: queues on NATS JetStream.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, DeliverPolicy, pull};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::{AckKind, Acker};
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, LastRawMessageErrorKind, RetentionPolicy, Stream,
};
use clawk_client::queue::{CLIENT, QueueNames, REASON, REPLY_TO};
use clawk_egress::Url;
use clawk_kernel::time::Timestamp;
use clawk_secrets::EnvironmentSource;
use futures::StreamExt as _;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    Broker, BrokerDoor, BrokerSubscription, IN_FLIGHT, InboxMessage, KEPT, QUEUE_BYTES, QueueError,
    QueueOptions, broker_error, no_owners, retry_start,
};
use crate::host::AgentHost;

/// How often the connection is checked while no message arrives.
const LOOK: Duration = Duration::from_secs(5);
/// How long duplicates of a message are detected, where that matters more than memory.
const ONCE: Duration = Duration::from_secs(3_600);
/// Space for the headers of a message, bytes.
const HEADERS: usize = 1_024;

/// The connected door.
pub struct NatsDoor(Arc<BrokerDoor<CkpJetStreamBroker>>);

impl std::fmt::Debug for NatsDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nats")
    }
}

impl NatsDoor {
    /// Connects, and creates missing streams: the inbox as a work queue, the outbox, and the dead letters.
    ///
    /// # Errors
    /// The server can't be reached, has no JetStream, or refuses the login.
    pub async fn connect(host: AgentHost, options: &QueueOptions) -> Result<Self, QueueError> {
        let lane = BrokerSubscription::of_agent(&QueueNames::new(&options.swarm, &options.agent));
        let jet = retry_start(|| CkpJetStreamBroker::open(&options.server, &lane)).await?;
        Ok(Self(BrokerDoor::new(jet, host, "nats", options)?))
    }

    /// Serves until `cancel`.
    pub async fn serve(self, cancel: CancellationToken) {
        self.0.serve(cancel).await;
    }
}

impl CkpJetStreamBroker {
    pub(crate) async fn open(server: &Url, lane: &BrokerSubscription) -> Result<Self, QueueError> {
        let tls = clawk_egress::tls_config(&EnvironmentSource::Process).map_err(broker_error)?;
        let connect = async_nats::ConnectOptions::new()
            .name("clawk")
            .require_tls(server.scheme() == "tls")
            .tls_client_config(tls);
        let client = connect.connect(server.as_str()).await.map_err(broker_error)?;
        let context = async_nats::jetstream::new(client.clone());
        let work = Config {
            retention: RetentionPolicy::WorkQueue,
            // A full inbox refuses new messages, so no accepted message is lost.
            discard: DiscardPolicy::New,
            duplicate_window: if lane.at_once == 1 { ONCE } else { Duration::ZERO },
            ..Config::default()
        };
        let kept = Config {
            discard: DiscardPolicy::Old,
            max_age: KEPT,
            ..Config::default()
        };
        let dead = Config {
            discard: DiscardPolicy::New,
            ..Config::default()
        };
        let taken = if lane.shared { kept.clone() } else { work.clone() };
        let inbox = ensure_stream(&context, &lane.take, taken).await?;
        for (queue, removed) in &lane.puts {
            let config = if *removed { work.clone() } else { kept.clone() };
            ensure_stream(&context, queue, config).await?;
        }
        ensure_stream(&context, &lane.dead, dead).await?;
        let owners = match &lane.owners {
            None => None,
            Some(subject) => Some((subject.clone(), owner_stream(&context, subject).await?)),
        };
        let consumer = pull::Config {
            durable_name: Some(lane.group.clone()),
            filter_subject: lane.take.clone(),
            ack_policy: AckPolicy::Explicit,
            ack_wait: lane.ack_wait,
            deliver_policy: if lane.shared {
                DeliverPolicy::New
            } else {
                DeliverPolicy::All
            },
            inactive_threshold: if lane.shared { KEPT } else { Duration::ZERO },
            max_ack_pending: i64::try_from(IN_FLIGHT).unwrap_or(i64::MAX),
            ..pull::Config::default()
        };
        let consumer = context
            .create_consumer_on_stream(consumer, inbox)
            .await
            .map_err(broker_error)?;
        Ok(Self {
            client,
            context,
            stored: lane.puts.iter().map(|(queue, _)| queue.clone()).collect(),
            dead: lane.dead.clone(),
            at_once: lane.at_once,
            owners,
            consumer,
            messages: Mutex::default(),
        })
    }
}

/// The name of the stream for a subject. Creates the stream if none exists.
async fn ensure_stream(context: &Context, subject: &str, config: Config) -> Result<String, QueueError> {
    if let Ok(name) = context.stream_by_subject(subject).await {
        return Ok(name);
    }
    let name = subject.replace('.', "-");
    let config = Config {
        name: name.clone(),
        subjects: vec![subject.to_owned()],
        max_bytes: QUEUE_BYTES,
        ..config
    };
    context.get_or_create_stream(config).await.map_err(broker_error)?;
    Ok(name)
}

/// The stream that records which reader began the effects of a task. The first record of a task stays.
async fn owner_stream(context: &Context, subject: &str) -> Result<Stream, QueueError> {
    let config = Config {
        name: subject.replace('.', "-"),
        subjects: vec![format!("{subject}.*")],
        discard: DiscardPolicy::New,
        max_messages_per_subject: 1,
        discard_new_per_subject: true,
        max_age: KEPT,
        max_bytes: QUEUE_BYTES,
        ..Config::default()
    };
    context.get_or_create_stream(config).await.map_err(broker_error)
}

pub(crate) struct CkpJetStreamBroker {
    client: async_nats::Client,
    context: Context,
    stored: Vec<String>,
    dead: String,
    at_once: usize,
    owners: Option<(String, Stream)>,
    consumer: Consumer<pull::Config>,
    messages: Mutex<Option<pull::Stream>>,
}

impl CkpJetStreamBroker {
    fn message_headers(client: &str, id: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id);
        if !client.is_empty() {
            headers.insert(CLIENT, client);
        }
        headers
    }

    /// Publishes to a stream and waits for its acknowledgement.
    async fn store_message(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Vec<u8>,
    ) -> Result<(), QueueError> {
        let published = self
            .context
            .publish_with_headers(subject.to_owned(), headers, payload.into());
        published
            .await
            .map_err(broker_error)?
            .await
            .map_err(broker_error)
            .map(drop)
    }
}

impl Broker for CkpJetStreamBroker {
    type Receipt = Acker;

    async fn next(&self) -> Result<Vec<InboxMessage<Acker>>, QueueError> {
        let mut messages = self.messages.lock().await;
        if messages.is_none() {
            let open = self.consumer.stream().max_messages_per_batch(self.at_once);
            *messages = Some(open.messages().await.map_err(broker_error)?);
        }
        let Some(open) = messages.as_mut() else {
            return Ok(Vec::new());
        };
        let message = match tokio::time::timeout(LOOK, open.next()).await {
            Ok(Some(Ok(message))) => message,
            // The stream continues when the connection is back. silent-ok: the deadline is only for the check
            Err(_) => {
                return match self.client.connection_state() {
                    State::Connected => Ok(Vec::new()),
                    State::Pending | State::Disconnected => Err(broker_error("the connection is lost")),
                };
            }
            Ok(other) => {
                *messages = None;
                let why = other.and_then(Result::err).map(|error| error.to_string());
                return Err(QueueError::Broker(
                    why.unwrap_or_else(|| "the consumer has ended".to_owned()),
                ));
            }
        };
        let (tries, published_us) = message.info().map_or((1, i64::MAX), |info| {
            let published_us = info.published.unix_timestamp().saturating_mul(1_000_000);
            (u64::try_from(info.delivered).unwrap_or(1), published_us)
        });
        let header = |name: &str| {
            let headers = message.headers.as_ref()?;
            headers.get(name).map(|value| value.as_str().to_owned())
        };
        let (client, reply_to) = (header(CLIENT).unwrap_or_default(), header(REPLY_TO));
        let (message, receipt) = message.split();
        Ok(vec![InboxMessage {
            client,
            reply_to,
            message: message.payload.into(),
            tries,
            put: Timestamp(published_us),
            receipt,
        }])
    }

    async fn publish_line(&self, to: &str, client: &str, line: &[u8], id: &str) -> Result<(), QueueError> {
        let most = self.client.server_info().max_payload.saturating_sub(HEADERS);
        if line.len() > most {
            return Err(QueueError::TooLong(most));
        }
        let headers = Self::message_headers(client, id);
        if self.stored.iter().any(|stored| stored == to) {
            return self.store_message(to, headers, line.to_vec()).await;
        }
        // A private subject without a stream: only current listeners get the message.
        let published = self
            .client
            .publish_with_headers(to.to_owned(), headers, line.to_vec().into());
        published.await.map_err(broker_error)?;
        self.client.flush().await.map_err(broker_error)
    }

    async fn acknowledge_message(&self, receipt: &Acker) -> Result<(), QueueError> {
        receipt.double_ack().await.map_err(broker_error)
    }

    async fn claim_task(&self, task: &str, reader: &str) -> Result<String, QueueError> {
        let Some((subject, _)) = &self.owners else {
            return Err(no_owners());
        };
        let word = reader.as_bytes().to_vec();
        let kept = self
            .store_message(&format!("{subject}.{task}"), HeaderMap::new(), word)
            .await;
        match self.task_owner(task).await? {
            Some(owner) => Ok(owner),
            None => Err(kept
                .err()
                .unwrap_or_else(|| broker_error("the owner of a task is not kept"))),
        }
    }

    async fn task_owner(&self, task: &str) -> Result<Option<String>, QueueError> {
        let Some((subject, stream)) = &self.owners else {
            return Err(no_owners());
        };
        let subject = format!("{subject}.{task}");
        match stream.get_last_raw_message_by_subject(&subject).await {
            Ok(word) => Ok(Some(String::from_utf8_lossy(&word.payload).into_owned())),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(broker_error(error)),
        }
    }

    /// Waits for a reply: a sign in the send buffer of a disconnected client proves nothing.
    async fn report_progress(&self, receipt: &Acker) -> Result<(), QueueError> {
        receipt
            .double_ack_with(AckKind::Progress)
            .await
            .map_err(broker_error)
    }

    async fn move_to_dead_letters(
        &self,
        parcel: &InboxMessage<Acker>,
        reason: &str,
    ) -> Result<(), QueueError> {
        let mut headers = HeaderMap::new();
        if !parcel.client.is_empty() {
            headers.insert(CLIENT, parcel.client.as_str());
        }
        let reason: String = reason.chars().filter(|c| !c.is_control()).take(256).collect();
        headers.insert(REASON, reason.as_str());
        self.store_message(&self.dead, headers, parcel.message.clone())
            .await?;
        let ended = parcel.receipt.double_ack_with(AckKind::Term).await;
        ended.map_err(broker_error)
    }
}
