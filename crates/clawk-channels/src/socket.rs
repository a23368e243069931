//! A WebSocket to a platform: frames of text or bytes, bounded, with a sign of life.

use std::fmt;
use std::time::Duration;

use clawk_egress::{EgressStream, Url};
use clawk_secrets::EnvironmentSource;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::protocol::frame::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// How long connecting may take, milliseconds, and the handshake.
const CONNECT_MS: u64 = 15_000;
const HANDSHAKE: Duration = Duration::from_secs(15);
/// How long one frame may take to be written.
const WRITE: Duration = Duration::from_secs(15);
/// Longest message, bytes.
const MAX_MESSAGE: usize = 4 << 20;

/// What a socket says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SocketMessage {
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A sign of life.
    Ping,
    /// The other side ended it: with a code and a reason, where it gave them.
    Closed(Option<u16>, String),
}

/// A connection.
pub(crate) struct Socket {
    out: Mutex<SplitSink<WebSocketStream<EgressStream>, Message>>,
    input: Mutex<SplitStream<WebSocketStream<EgressStream>>>,
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl Socket {
    /// Connects. The address may hold a ticket: it is in no error.
    ///
    /// # Errors
    /// For people.
    pub(crate) async fn connect(url: &Url, env: &EnvironmentSource) -> Result<Self, String> {
        let secure = match url.scheme() {
            "wss" => true,
            "ws" => false,
            other => return Err(format!("`{other}` is not a scheme of a WebSocket")),
        };
        let host = url.host_str().ok_or("the WebSocket's address has no host")?;
        let port = url
            .port_or_known_default()
            .unwrap_or(if secure { 443 } else { 80 });
        let bare = host.trim_matches(['[', ']']);
        let stream = EgressStream::connect(bare, port, secure, env, CONNECT_MS).await;
        let stream = stream.map_err(|error| error.to_string())?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let shaking = tokio_tungstenite::client_async_with_config(url.as_str(), stream, Some(config));
        match tokio::time::timeout(HANDSHAKE, shaking).await {
            Ok(Ok((stream, _))) => {
                let (out, input) = stream.split();
                Ok(Self {
                    out: Mutex::new(out),
                    input: Mutex::new(input),
                })
            }
            Ok(Err(_)) => Err("the platform refused the WebSocket".to_owned()),
            Err(_) => Err("the WebSocket's handshake took too long".to_owned()),
        }
    }

    /// The next thing that it says, within `silence`.
    ///
    /// # Errors
    /// It broke, or said nothing for so long.
    pub(crate) async fn next(&self, silence: Duration) -> Result<SocketMessage, String> {
        let mut input = self.input.lock().await;
        let next = tokio::time::timeout(silence, input.next()).await;
        match next {
            Err(_) => Err(format!("the WebSocket was silent for {} s", silence.as_secs())),
            Ok(None) => Ok(SocketMessage::Closed(None, String::new())),
            Ok(Some(Err(_))) => Err("the WebSocket broke".to_owned()),
            Ok(Some(Ok(Message::Text(text)))) => Ok(SocketMessage::Text(text.as_str().to_owned())),
            Ok(Some(Ok(Message::Binary(bytes)))) => Ok(SocketMessage::Bytes(bytes.to_vec())),
            Ok(Some(Ok(Message::Close(frame)))) => Ok(match frame {
                Some(CloseFrame { code, reason }) => {
                    SocketMessage::Closed(Some(code.into()), crate::api::bounded_line(reason.as_str()))
                }
                None => SocketMessage::Closed(None, String::new()),
            }),
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)))) => Ok(SocketMessage::Ping),
        }
    }

    /// Sends a text.
    ///
    /// # Errors
    /// It broke, or is not read.
    pub(crate) async fn send_text(&self, text: String) -> Result<(), String> {
        self.write(Message::text(text)).await
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The errors of [`Self::send_text`].
    pub(crate) async fn say_bytes(&self, bytes: Vec<u8>) -> Result<(), String> {
        self.write(Message::binary(bytes)).await
    }

    async fn write(&self, message: Message) -> Result<(), String> {
        let mut out = self.out.lock().await;
        match tokio::time::timeout(WRITE, out.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("the WebSocket broke".to_owned()),
            Err(_) => Err("the WebSocket is not read".to_owned()),
        }
    }

    /// Ends it with a code of our own.
    pub(crate) async fn close_with_code(&self, code: u16) {
        let frame = CloseFrame {
            code: CloseCode::from(code),
            reason: "".into(),
        };
        let _gone = self.write(Message::Close(Some(frame))).await; // silent-ok: it ends anyway
    }
}
