//! A gateway in the manner of Discord's, which QQ's follows: a hello that says how often the heart beats, events with numbers, and
//! sessions that can be gone on with.

use std::time::Duration;

use clawk_kernel::ports::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapter::{ChannelDisconnect, InboundPipeline};
use crate::socket::{Socket, SocketMessage};

/// How long the first frame may take.
const HELLO: Duration = Duration::from_secs(20);
/// A connection that ended without a code of its own.
const BROKE: u16 = 1006;

#[derive(Debug, Deserialize)]
pub(crate) struct GatewayFrame {
    pub(crate) op: u8,
    #[serde(default)]
    pub(crate) d: Value,
    #[serde(default)]
    pub(crate) s: Option<u64>,
    #[serde(default)]
    pub(crate) t: Option<String>,
}

/// What is a platform's own.
pub(crate) trait Gateway: Sync {
    /// The number of the last event that is durable here.
    fn durable_seq(&self) -> Option<u64>;

    /// Takes one frame that is not part of the heartbeat.
    fn handle_gateway_frame<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        socket: &'a Socket,
        frame: GatewayFrame,
    ) -> BoxFuture<'a, Result<(), ChannelDisconnect>>;

    /// The other side closed with this code; `told` says so.
    fn closed_by_peer(&self, code: u16, told: String) -> ChannelDisconnect;
}

/// The first frame: how often the heart beats.
pub(crate) async fn read_hello(socket: &Socket) -> Result<Duration, ChannelDisconnect> {
    let none = || ChannelDisconnect::temporary("the gateway says no hello");
    let SocketMessage::Text(text) = socket.next(HELLO).await.map_err(ChannelDisconnect::temporary)? else {
        return Err(none());
    };
    let frame: GatewayFrame = serde_json::from_str(&text).map_err(|_| none())?; // silent-ok: said
    let beat = frame.d.get("heartbeat_interval").and_then(Value::as_u64);
    let beat = beat.filter(|beat| frame.op == 10 && (100..=600_000).contains(beat));
    beat.map(Duration::from_millis).ok_or_else(none)
}

/// Says that this side lives, and what is durable here.
pub(crate) async fn send_heartbeat(gateway: &impl Gateway, socket: &Socket) -> Result<(), ChannelDisconnect> {
    let seq = gateway.durable_seq();
    let beat = json!({"op": 1, "d": seq}).to_string();
    socket.send_text(beat).await.map_err(ChannelDisconnect::temporary)
}

/// Keeps a session, with a heartbeat each `every`, the first after `first`.
pub(crate) async fn run_session(
    gateway: &impl Gateway,
    inlet: &InboundPipeline,
    socket: &Socket,
    (first, every): (Duration, Duration),
    over: &CancellationToken,
) -> Result<(), ChannelDisconnect> {
    let (mut next, mut answered) = (Instant::now() + first, true);
    loop {
        tokio::select! {
            () = over.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(next) => {
                if !std::mem::replace(&mut answered, false) {
                    return Err(ChannelDisconnect::temporary("the gateway does not answer heartbeats"));
                }
                send_heartbeat(gateway, socket).await?;
                next = Instant::now() + every;
            }
            heard = socket.next(every * 3) => match heard.map_err(ChannelDisconnect::temporary)? {
                SocketMessage::Text(text) => {
                    let frame = serde_json::from_str::<GatewayFrame>(&text);
                    let frame = frame.map_err(|_| ChannelDisconnect::temporary("a frame of the gateway can't be read"))?; // silent-ok: said
                    // Whatever comes shows that it lives; behind many events the answer to a beat comes late.
                    answered = true;
                    gateway.handle_gateway_frame(inlet, socket, frame).await?;
                }
                SocketMessage::Ping | SocketMessage::Bytes(_) => {}
                SocketMessage::Closed(code, reason) => {
                    let code = code.unwrap_or(BROKE);
                    return Err(gateway.closed_by_peer(code, format!("the gateway closed with {code} {reason}")));
                }
            },
        }
    }
}
