//! RabbitMQ over AMQP 0-9-1. The consumer acknowledges a message when it is stored durably here. The prefetch count is the number of
//! runs that may go on at once. Answers are published with publisher confirms. The protocol's few methods are in [`wire`].

mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::{EgressStream, Url};
use clawk_kernel::ports::Delivery;
use clawk_secrets::EnvironmentSource;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use self::wire::{AmqpFieldReader, AmqpFrame, AmqpMethodId, AmqpProperties, Method};
use super::{MAX_BYTES, QueueAdapter, QueueTriggerMessage, ReplyTo};
use crate::adapter::{ChannelDisconnect, InboundPipeline, OutboundMessage};
use crate::api::bounded_line;

/// How long connecting and each answer of the broker may take, milliseconds.
const CONNECT_MS: u64 = 10_000;
const PATIENCE: Duration = Duration::from_secs(20);
/// The heartbeat interval of both sides, seconds. A connection that is silent for twice as long is closed.
const HEARTBEAT_S: u16 = 20;
/// The only channel of a connection.
const CHANNEL: u16 = 1;
/// The largest number of unacknowledged messages.
const MAX_PREFETCH: usize = 1_000;
/// Reply codes of the broker: the login is refused, the queue does not exist, no queue is bound for a published message.
const REFUSED: u16 = 403;
const MISSING: u16 = 404;
const NO_ROUTE: u16 = 312;

pub(super) struct RabbitMqTrigger {
    url: Url,
    queue: String,
    env: EnvironmentSource,
}

impl fmt::Debug for RabbitMqTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Amqp({})", self.queue)
    }
}

/// Why there is no answer.
#[derive(Debug)]
enum AmqpFailure {
    /// The broker closed the channel or the connection: its code, and its words.
    Closed(u16, String),
    Lost(String),
}

impl AmqpFailure {
    fn into_disconnect(self) -> ChannelDisconnect {
        match self {
            Self::Closed(REFUSED, reason) => {
                ChannelDisconnect::fatal(format!("the broker refuses it ({reason})"))
            }
            Self::Closed(code, reason) => {
                ChannelDisconnect::temporary(format!("the broker closed with {code} ({reason})"))
            }
            Self::Lost(reason) => ChannelDisconnect::temporary(reason),
        }
    }
}

impl From<String> for AmqpFailure {
    fn from(reason: String) -> Self {
        Self::Lost(reason)
    }
}

/// A message with its delivery tag on this connection.
#[derive(Debug)]
struct AmqpDelivery {
    tag: u64,
    redelivered: bool,
    properties: AmqpProperties,
    body: Vec<u8>,
    /// Its body is larger than what is kept.
    large: bool,
}

/// A connection with one channel.
struct AmqpConnection {
    input: ReadHalf<EgressStream>,
    out: Arc<Mutex<WriteHalf<EgressStream>>>,
    max_frame: u32,
}

impl AmqpConnection {
    async fn write_bytes(&self, bytes: &[u8]) -> Result<(), AmqpFailure> {
        write_locked(&self.out, bytes).await
    }

    /// The next frame; a close of the broker is an error.
    async fn next(&mut self) -> Result<AmqpFrame, AmqpFailure> {
        let silence = Duration::from_secs(u64::from(HEARTBEAT_S) * 2 + 5);
        let frame = tokio::time::timeout(silence, wire::read(&mut self.input)).await;
        let frame =
            frame.map_err(|_| AmqpFailure::Lost("the broker was silent for too long".to_owned()))??; // silent-ok: said
        if let AmqpFrame::Method {
            id: id @ (wire::CLOSE | wire::CHANNEL_CLOSE),
            rest,
        } = &frame
        {
            let mut fields = AmqpFieldReader(rest);
            let (code, reason) = (
                fields.read_short().unwrap_or(0),
                fields.read_text().unwrap_or_default(),
            );
            let closed = if *id == wire::CLOSE {
                Method::new(wire::CLOSE_OK).into_frame(0)
            } else {
                Method::new(wire::CHANNEL_CLOSE_OK).into_frame(CHANNEL)
            };
            // It goes whether or not the broker reads this.
            if let Err(broken) = self.write_bytes(&closed).await {
                tracing::debug!(?broken, "a close could not be answered");
            }
            return Err(AmqpFailure::Closed(code, bounded_line(&reason)));
        }
        Ok(frame)
    }

    /// Sends a method and waits for the one that answers it.
    async fn call_method(&mut self, bytes: &[u8], wanted: AmqpMethodId) -> Result<Vec<u8>, AmqpFailure> {
        self.write_bytes(bytes).await?;
        self.wait_for(wanted).await
    }

    async fn wait_for(&mut self, wanted: AmqpMethodId) -> Result<Vec<u8>, AmqpFailure> {
        let until = Instant::now() + PATIENCE;
        loop {
            let next = tokio::time::timeout_at(until, self.next()).await;
            match next.map_err(|_| AmqpFailure::Lost("the broker did not answer in time".to_owned()))?? {
                AmqpFrame::Method { id, rest, .. } if id == wanted => return Ok(rest),
                AmqpFrame::Method { .. }
                | AmqpFrame::Heartbeat
                | AmqpFrame::Header { .. }
                | AmqpFrame::Body(_) => {}
            }
        }
    }

    /// The content that follows a method: its properties and its body, of which at most [`MAX_BYTES`] are kept.
    async fn read_content(&mut self) -> Result<(AmqpProperties, Vec<u8>, bool), AmqpFailure> {
        let wrong = || AmqpFailure::Lost("the broker sent a message without its content".to_owned());
        let (size, properties) = loop {
            match self.next().await? {
                AmqpFrame::Header { size, properties } => break (size, properties),
                AmqpFrame::Heartbeat => {}
                AmqpFrame::Method { .. } | AmqpFrame::Body(_) => return Err(wrong()),
            }
        };
        let properties = AmqpProperties::read(&properties).ok_or_else(wrong)?;
        let (mut body, mut left, mut large) = (Vec::new(), size, false);
        while left > 0 {
            match self.next().await? {
                AmqpFrame::Body(part) => {
                    left = left.saturating_sub(u64::try_from(part.len()).unwrap_or(u64::MAX));
                    if body.len() + part.len() > MAX_BYTES {
                        large = true;
                    } else if !large {
                        body.extend(part);
                    }
                }
                AmqpFrame::Heartbeat => {}
                AmqpFrame::Method { .. } | AmqpFrame::Header { .. } => return Err(wrong()),
            }
        }
        Ok((properties, body, large))
    }
}

async fn write_locked(out: &Mutex<WriteHalf<EgressStream>>, bytes: &[u8]) -> Result<(), AmqpFailure> {
    let mut out = out.lock().await;
    match tokio::time::timeout(PATIENCE, wire::write(&mut *out, bytes)).await {
        Ok(written) => Ok(written?),
        Err(_) => Err(AmqpFailure::Lost("the broker does not read".to_owned())),
    }
}

/// Decodes `%2f` and the like in a part of an address.
fn percent_decode(part: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = part.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?); // silent-ok: two digits are a byte
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok() // silent-ok: told as an address that can't be read
}

impl RabbitMqTrigger {
    /// # Errors
    /// The address can't be read.
    pub(super) fn new(url: Url, queue: &str, env: &EnvironmentSource) -> Result<Self, String> {
        if queue.len() > 255 {
            return Err("`trigger.queue_name` has more than 255 bytes".to_owned());
        }
        let rabbit = Self {
            url,
            queue: queue.to_owned(),
            env: env.clone(),
        };
        rabbit.vhost()?;
        Ok(rabbit)
    }

    fn vhost(&self) -> Result<String, String> {
        let path = self.url.path().trim_start_matches('/');
        if path.contains('/') {
            return Err(
                "`url` has more than a virtual host behind the broker's name; write `/` in it as `%2f`"
                    .to_owned(),
            );
        }
        match percent_decode(path).ok_or("`url` can't be read")? {
            empty if empty.is_empty() => Ok("/".to_owned()),
            vhost => Ok(vhost),
        }
    }

    async fn connect(&self) -> Result<AmqpConnection, AmqpFailure> {
        let secure = self.url.scheme() == "amqps";
        let host = self
            .url
            .host_str()
            .unwrap_or("localhost")
            .trim_matches(['[', ']']);
        let port = self.url.port().unwrap_or(if secure { 5671 } else { 5672 });
        let stream = EgressStream::connect(host, port, secure, &self.env, CONNECT_MS).await;
        let stream = stream.map_err(|error| AmqpFailure::Lost(error.to_string()))?;
        let (input, out) = tokio::io::split(stream);
        let mut connection = AmqpConnection {
            input,
            out: Arc::new(Mutex::new(out)),
            max_frame: wire::MAX_FRAME,
        };
        connection.call_method(&wire::HELLO, wire::START).await?;
        let part = |text: &str| percent_decode(text).unwrap_or_else(|| text.to_owned());
        // Without a name in the address, the broker's own guest.
        let (user, password) = match (self.url.username(), self.url.password()) {
            ("", _) => ("guest".to_owned(), "guest".to_owned()),
            (user, password) => (part(user), part(password.unwrap_or_default())),
        };
        let login = format!("\0{user}\0{password}");
        let start = Method::new(wire::START_OK)
            .long_bytes(&wire::client_capabilities())
            .with_text("PLAIN")
            .long_bytes(login.as_bytes())
            .with_text("en_US");
        let tuned = connection.call_method(&start.into_frame(0), wire::TUNE).await?;
        let mut fields = AmqpFieldReader(&tuned);
        let (_channels, wanted) = (fields.read_short(), fields.read_long().unwrap_or(0));
        if wanted >= 4_096 {
            connection.max_frame = wanted.min(wire::MAX_FRAME);
        }
        let tune = Method::new(wire::TUNE_OK)
            .with_short(CHANNEL)
            .with_long(connection.max_frame)
            .with_short(HEARTBEAT_S);
        connection.write_bytes(&tune.into_frame(0)).await?;
        let open = Method::new(wire::OPEN)
            .with_text(&self.vhost()?)
            .with_text("")
            .with_octet(0);
        connection.call_method(&open.into_frame(0), wire::OPEN_OK).await?;
        self.open_channel(&mut connection).await?;
        Ok(connection)
    }

    async fn open_channel(&self, connection: &mut AmqpConnection) -> Result<(), AmqpFailure> {
        let open = Method::new(wire::CHANNEL_OPEN).with_text("").into_frame(CHANNEL);
        connection
            .call_method(&open, wire::CHANNEL_OPEN_OK)
            .await
            .map(drop)
    }

    /// Opens the queue. If it does not exist, declares a durable one.
    async fn declare_queue(&self, connection: &mut AmqpConnection) -> Result<(), AmqpFailure> {
        let declare = |bits: u8| {
            Method::new(wire::DECLARE)
                .with_short(0)
                .with_text(&self.queue)
                .with_octet(bits)
                .long_bytes(&[])
                .into_frame(CHANNEL)
        };
        // To declare it with other arguments than it has would be an error.
        match connection.call_method(&declare(1), wire::DECLARE_OK).await {
            Ok(_) => Ok(()),
            Err(AmqpFailure::Closed(MISSING, _)) => {
                self.open_channel(connection).await?;
                connection
                    .call_method(&declare(2), wire::DECLARE_OK)
                    .await
                    .map(drop)
            }
            Err(broken) => Err(broken),
        }
    }

    pub(super) async fn listen(
        &self,
        queue: &QueueAdapter,
        inlet: &InboundPipeline,
    ) -> Result<(), ChannelDisconnect> {
        let mut connection = self.connect().await.map_err(AmqpFailure::into_disconnect)?;
        self.declare_queue(&mut connection)
            .await
            .map_err(AmqpFailure::into_disconnect)?;
        let most = queue.runs.places().clamp(1, MAX_PREFETCH);
        let prefetch = u16::try_from(most).unwrap_or(u16::MAX);
        let qos = Method::new(wire::QOS)
            .with_long(0)
            .with_short(prefetch)
            .with_octet(0);
        let consume = Method::new(wire::CONSUME)
            .with_short(0)
            .with_text(&self.queue)
            .with_text("clawk")
            .with_octet(0)
            .long_bytes(&[]);
        let asked = async {
            connection
                .call_method(&qos.into_frame(CHANNEL), wire::QOS_OK)
                .await?;
            connection
                .call_method(&consume.into_frame(CHANNEL), wire::CONSUME_OK)
                .await
        };
        asked.await.map_err(AmqpFailure::into_disconnect)?;
        inlet.report_ready();
        // The broker gives no more than it may: there is room for all of them.
        let (came, coming) = mpsc::channel(most);
        let out = Arc::clone(&connection.out);
        tokio::select! {
            ended = read_deliveries(&mut connection, &came) => ended,
            ended = ingest_deliveries(queue, inlet, coming, &out) => ended,
            ended = send_heartbeats(&out) => ended,
        }
    }

    /// Publishes an answer to the message's `reply-to` queue, and waits for the broker's confirmation.
    pub(super) async fn publish_answer(&self, reply: &ReplyTo, out: &OutboundMessage) -> Delivery {
        let mut connection = match self.connect().await {
            Ok(connection) => connection,
            Err(broken) => {
                return Delivery::Retry {
                    after_ms: None,
                    reason: broken.into_disconnect().reason,
                };
            }
        };
        let confirms = Method::new(wire::CONFIRM).with_octet(0).into_frame(CHANNEL);
        if let Err(broken) = connection.call_method(&confirms, wire::CONFIRM_OK).await {
            return Delivery::Retry {
                after_ms: None,
                reason: broken.into_disconnect().reason,
            };
        }
        let delivery = match publish_reply(&mut connection, reply, out).await {
            Ok(delivery) => delivery,
            Err(broken) => Delivery::Unknown {
                reason: broken.into_disconnect().reason,
            },
        };
        let close = Method::new(wire::CLOSE)
            .with_short(200)
            .with_text("")
            .with_short(0)
            .with_short(0);
        if let Err(broken) = connection.write_bytes(&close.into_frame(0)).await {
            tracing::debug!(?broken, "a connection could not be closed");
        }
        delivery
    }
}

async fn publish_reply(
    connection: &mut AmqpConnection,
    reply: &ReplyTo,
    out: &OutboundMessage,
) -> Result<Delivery, AmqpFailure> {
    let body = out.markdown.as_bytes();
    let properties = AmqpProperties {
        correlation: reply.correlation.clone(),
        reply_to: None,
        id: Some(out.id.clone()),
    };
    // Mandatory: what no queue takes comes back.
    let publish = Method::new(wire::PUBLISH)
        .with_short(0)
        .with_text("")
        .with_text(&reply.address)
        .with_octet(1);
    let mut bytes = publish.into_frame(CHANNEL);
    bytes.extend(properties.header_frame(CHANNEL, u64::try_from(body.len()).unwrap_or(u64::MAX)));
    let piece = connection.max_frame.saturating_sub(wire::FRAME_ROOM).max(1);
    for part in body.chunks(usize::try_from(piece).unwrap_or(1)) {
        bytes.extend(wire::encode_frame(3, CHANNEL, part));
    }
    connection.write_bytes(&bytes).await?;
    let until = Instant::now() + PATIENCE;
    let mut returned = None;
    loop {
        let next = tokio::time::timeout_at(until, connection.next()).await;
        let next = next.map_err(|_| AmqpFailure::Lost("the broker did not confirm it in time".to_owned()))?; // silent-ok: said
        let AmqpFrame::Method { id, rest, .. } = next? else {
            continue;
        };
        match id {
            wire::RETURN => {
                let mut fields = AmqpFieldReader(&rest);
                returned = Some((
                    fields.read_short().unwrap_or(0),
                    fields.read_text().unwrap_or_default(),
                ));
                connection.read_content().await?;
            }
            wire::ACK => {
                return Ok(match returned {
                    None => Delivery::Delivered { platform_id: None },
                    Some((NO_ROUTE, _)) => Delivery::Failed {
                        reason: "the queue that the answer was wanted in is gone".to_owned(),
                    },
                    Some((code, reason)) => Delivery::Failed {
                        reason: bounded_line(&format!("the broker returned it: {code} {reason}")),
                    },
                });
            }
            wire::NACK => {
                return Ok(Delivery::Retry {
                    after_ms: None,
                    reason: "the broker could not keep it".to_owned(),
                });
            }
            _ => {}
        }
    }
}

/// Reads frames of the broker. It never waits for the agent, so that heartbeats are always read in time.
async fn read_deliveries(
    connection: &mut AmqpConnection,
    came: &mpsc::Sender<AmqpDelivery>,
) -> Result<(), ChannelDisconnect> {
    loop {
        let frame = connection.next().await.map_err(AmqpFailure::into_disconnect)?;
        let AmqpFrame::Method { id, rest, .. } = frame else {
            continue;
        };
        match id {
            wire::DELIVER => {
                let mut fields = AmqpFieldReader(&rest);
                let read = fields
                    .read_text()
                    .and_then(|_consumer| Some((fields.read_longlong()?, fields.read_octet()? & 1 == 1)));
                let Some((tag, redelivered)) = read else {
                    return Err(ChannelDisconnect::temporary(
                        "the broker sent a delivery that can't be read",
                    ));
                };
                let (properties, body, large) = connection
                    .read_content()
                    .await
                    .map_err(AmqpFailure::into_disconnect)?;
                let delivered = AmqpDelivery {
                    tag,
                    redelivered,
                    properties,
                    body,
                    large,
                };
                if came.try_send(delivered).is_err() {
                    return Err(ChannelDisconnect::temporary(
                        "the broker gives more messages than it was asked for",
                    ));
                }
            }
            wire::CANCEL => return Err(ChannelDisconnect::temporary("the queue was deleted")),
            _ => {}
        }
    }
}

/// Takes messages in, and acknowledges each when it is stored durably.
async fn ingest_deliveries(
    queue: &QueueAdapter,
    inlet: &InboundPipeline,
    mut coming: mpsc::Receiver<AmqpDelivery>,
    out: &Mutex<WriteHalf<EgressStream>>,
) -> Result<(), ChannelDisconnect> {
    while let Some(delivered) = coming.recv().await {
        let tag = delivered.tag;
        let AmqpProperties {
            correlation,
            reply_to,
            id,
        } = delivered.properties;
        let message = QueueTriggerMessage {
            // The producer's own; without one the message has none.
            id: id
                .filter(|id| !id.is_empty() && !id.contains(char::is_control))
                .map(|id| format!("id:{id}"))
                .unwrap_or_default(), // silent-ok: it gets one of ours
            producer: None,
            redelivered: delivered.redelivered,
            large: delivered.large,
            reply: reply_to.map(|address| ReplyTo { address, correlation }),
            body: Bytes::from(delivered.body),
        };
        queue.ingest_message(inlet, message).await?;
        let ack = Method::new(wire::ACK)
            .with_longlong(tag)
            .with_octet(0)
            .into_frame(CHANNEL);
        write_locked(out, &ack)
            .await
            .map_err(AmqpFailure::into_disconnect)?;
    }
    Ok(())
}

/// Sends heartbeats.
async fn send_heartbeats(out: &Mutex<WriteHalf<EgressStream>>) -> Result<(), ChannelDisconnect> {
    let beat = wire::encode_frame(8, 0, &[]);
    loop {
        tokio::time::sleep(Duration::from_secs(u64::from(HEARTBEAT_S) / 2)).await;
        write_locked(out, &beat)
            .await
            .map_err(AmqpFailure::into_disconnect)?;
    }
}

/// Messages without an id that were taken, so that one which the broker delivers again is known by its content.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(super) struct SeenMessages(VecDeque<(String, String)>);

/// How many of them.
const SEEN: usize = 1_000;

impl SeenMessages {
    /// The id of a message by its digest: of a new one, `fresh`; of one that comes again, the id that it had.
    pub(super) fn id(&mut self, digest: &str, redelivered: bool, fresh: String) -> String {
        if redelivered && let Some((_, id)) = self.0.iter().rev().find(|(known, _)| known == digest) {
            return id.clone();
        }
        self.0.push_back((digest.to_owned(), fresh.clone()));
        if self.0.len() > SEEN {
            self.0.pop_front();
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use clawk_egress::Url;
    use clawk_secrets::EnvironmentSource;

    use super::{RabbitMqTrigger, SeenMessages};

    #[test]
    fn equal_messages_are_two_unless_the_broker_says_that_one_comes_again() {
        let mut seen = SeenMessages::default();
        assert_eq!(seen.id("d", false, "1".to_owned()), "1");
        assert_eq!(seen.id("d", false, "2".to_owned()), "2");
        assert_eq!(seen.id("d", true, "3".to_owned()), "2");
        assert_eq!(seen.id("e", true, "4".to_owned()), "4", "it never came here");
    }

    #[test]
    fn the_address_names_a_virtual_host() {
        let env = EnvironmentSource::Fixed(std::collections::BTreeMap::new());
        let vhost = |url: &str| {
            RabbitMqTrigger::new(Url::parse(url).unwrap(), "q", &env).and_then(|rabbit| rabbit.vhost())
        };
        assert_eq!(vhost("amqp://host").unwrap(), "/");
        assert_eq!(vhost("amqp://host/").unwrap(), "/");
        assert_eq!(vhost("amqp://host/%2f").unwrap(), "/");
        assert_eq!(vhost("amqp://host/shop").unwrap(), "shop");
        assert!(vhost("amqp://host/a/b").is_err());
    }
}
