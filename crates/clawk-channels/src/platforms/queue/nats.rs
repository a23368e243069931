//! NATS JetStream: a durable pull consumer of the stream that holds the subject. Plain subjects lose what nobody listens to, so that
//! a subject without a stream is refused.

use std::fmt;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, Consumer, pull};
use async_nats::jetstream::{self, Message as Delivered};
use clawk_egress::Url;
use clawk_kernel::ports::Delivery;
use clawk_secrets::EnvironmentSource;
use futures::StreamExt as _;
use tokio::sync::Mutex;

use super::{QueueAdapter, QueueTriggerMessage, ReplyTo};
use crate::adapter::{ChannelDisconnect, InboundPipeline, OutboundMessage};
use crate::api::bounded_line;

/// How long connecting may take, and an answer's way to the broker.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one fetch waits for messages.
const FETCH: Duration = Duration::from_secs(2);
/// How long the broker waits for an acknowledgement before it delivers again.
const ACK_WAIT: Duration = Duration::from_secs(60);

pub(super) struct JetStreamTrigger {
    url: Url,
    subject: String,
    consumer: String,
    env: EnvironmentSource,
    client: Mutex<Option<async_nats::Client>>,
}

impl fmt::Debug for JetStreamTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nats({})", self.subject)
    }
}

fn disconnect_from_error(error: impl fmt::Display) -> ChannelDisconnect {
    ChannelDisconnect::temporary(bounded_line(&error.to_string()))
}

impl JetStreamTrigger {
    pub(super) fn new(url: Url, subject: &str, channel: &str, env: &EnvironmentSource) -> Self {
        Self {
            url,
            subject: subject.to_owned(),
            consumer: format!("clawk-{channel}"),
            env: env.clone(),
            client: Mutex::default(),
        }
    }

    async fn connect(&self) -> Result<async_nats::Client, ChannelDisconnect> {
        let tls = clawk_egress::tls_config(&self.env).map_err(disconnect_from_error)?;
        let mut options = async_nats::ConnectOptions::new()
            .name("clawk")
            .require_tls(self.url.scheme() == "tls")
            .tls_client_config(tls);
        let mut url = self.url.clone();
        if let Some(password) = self.url.password() {
            options = options.user_and_password(self.url.username().to_owned(), password.to_owned());
            // The library shows the address in its errors.
            if url.set_password(None).is_err() || url.set_username("").is_err() {
                return Err(ChannelDisconnect::fatal("`url` is not an address of NATS"));
            }
        }
        match tokio::time::timeout(PATIENCE, options.connect(url.as_str())).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(error)) if error.kind() == async_nats::ConnectErrorKind::AuthorizationViolation => {
                Err(ChannelDisconnect::fatal("NATS refuses the login"))
            }
            Ok(Err(error)) => Err(disconnect_from_error(error)),
            Err(_) => Err(ChannelDisconnect::temporary("NATS did not answer in time")),
        }
    }

    pub(super) async fn listen(
        &self,
        queue: &QueueAdapter,
        inlet: &InboundPipeline,
    ) -> Result<(), ChannelDisconnect> {
        let client = self.connect().await?;
        *self.client.lock().await = Some(client.clone());
        let context = jetstream::new(client);
        let Ok(stream) = context.stream_by_subject(self.subject.as_str()).await else {
            return Err(ChannelDisconnect::fatal(format!(
                "no JetStream stream holds `{}`; without one, messages that nobody hears are lost (make it with `nats stream add`)",
                bounded_line(&self.subject)
            )));
        };
        let consumer = pull::Config {
            durable_name: Some(self.consumer.clone()),
            filter_subject: self.subject.clone(),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_ack_pending: i64::try_from(queue.runs.places()).unwrap_or(i64::MAX),
            ..pull::Config::default()
        };
        let consumer: Consumer<pull::Config> = context
            .create_consumer_on_stream(consumer, stream.as_str())
            .await
            .map_err(disconnect_from_error)?;
        inlet.report_ready();
        loop {
            queue.runs.wait_for_place().await;
            let fetched = consumer
                .fetch()
                .max_messages(queue.runs.free_places().max(1))
                .expires(FETCH)
                .messages()
                .await;
            let mut messages = fetched.map_err(disconnect_from_error)?;
            while let Some(message) = messages.next().await {
                let message = message.map_err(disconnect_from_error)?;
                queue.ingest_message(inlet, read(&message)?).await?;
                message.double_ack().await.map_err(disconnect_from_error)?;
            }
        }
    }

    pub(super) async fn publish_answer(&self, reply: &ReplyTo, out: &OutboundMessage) -> Delivery {
        let client = self.client.lock().await.clone();
        let Some(client) = client else {
            return Delivery::Retry {
                after_ms: None,
                reason: "NATS is not connected".to_owned(),
            };
        };
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", out.id.as_str());
        headers.insert("In-Reply-To", out.conversation.as_str());
        if let Some(correlation) = &reply.correlation {
            headers.insert("Correlation-Id", correlation.as_str());
        }
        let published = async {
            let body = out.markdown.clone().into_bytes().into();
            client
                .publish_with_headers(reply.address.clone(), headers, body)
                .await
                .map_err(|error| error.to_string())?;
            client.flush().await.map_err(|error| error.to_string())
        };
        match tokio::time::timeout(PATIENCE, published).await {
            Ok(Ok(())) => Delivery::Delivered { platform_id: None },
            Ok(Err(reason)) => Delivery::Unknown {
                reason: bounded_line(&reason),
            },
            Err(_) => Delivery::Unknown {
                reason: "NATS did not answer in time".to_owned(),
            },
        }
    }
}

fn read(message: &Delivered) -> Result<QueueTriggerMessage, ChannelDisconnect> {
    let info = message.info().map_err(disconnect_from_error)?;
    let header = |name: &str| {
        let headers = message.headers.as_ref()?;
        headers.get(name).map(|value| value.as_str().to_owned())
    };
    Ok(QueueTriggerMessage {
        id: format!("{}:{}", info.stream, info.stream_sequence),
        producer: header("Nats-Msg-Id"),
        reply: header("Reply-To")
            .or_else(|| header("Nats-Reply"))
            .map(|address| ReplyTo {
                address,
                correlation: header("Correlation-Id"),
            }),
        body: message.payload.clone(),
        ..QueueTriggerMessage::default()
    })
}
