//! `/claw/ws`: one JSON-RPC message per text frame (runtime profile §6.1).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use tokio::time::timeout;

use crate::http::auth::{self, ActiveTokens, HttpPrincipal};
use crate::http::{ApiError, HttpApp};
use crate::rpc::RpcConnection;
use crate::transport::converse::{ConnectionEndCause, IDLE, MessageSource, serve_client};
use crate::transport::outbox::OutgoingMessages;

/// The name of the subprotocol.
const PROTOCOL: &str = "claw";
/// The prefix of the second subprotocol, which holds the token: a browser can't send headers.
const TOKEN: &str = "claw.token.";
/// How often the client is pinged.
const PING: Duration = Duration::from_secs(30);
/// A client that answers no ping for this long is disconnected.
const SILENT: Duration = Duration::from_secs(75);
/// How long sending the last frame may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// The buffer size of an idle connection, bytes.
const BUFFER: usize = 4 * 1024;

/// Close codes (runtime profile §6.1).
const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 4001;
const UNAUTHORIZED: u16 = 4002;

/// Opens the socket. A client without a valid token gets a close code, since a page in a browser can't read the status.
pub(super) async fn open_socket(
    State(app): State<HttpApp>,
    principal: Option<Extension<HttpPrincipal>>,
    Extension(access): Extension<Arc<ActiveTokens>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|error| {
        let text = error.body_text();
        ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", text)
    })?;
    let offered: Vec<&str> = upgrade
        .requested_protocols()
        .filter_map(|it| it.to_str().ok())
        .collect(); // silent-ok: not ours
    if !offered.is_empty() && !offered.contains(&PROTOCOL) {
        let message = "the subprotocol is `claw`";
        return Err(ApiError::bad_request("unknown_subprotocol", message));
    }
    let token = offered
        .iter()
        .find_map(|it| it.strip_prefix(TOKEN))
        .map(str::to_owned);
    let principal = match (principal, token) {
        (Some(Extension(principal)), _) => Some(principal),
        // silent-ok: the close code reports it
        (None, Some(token)) => auth::authenticate_token(&app, &access, token.as_bytes())
            .await
            .ok(),
        (None, None) => None,
    };
    let place = app.claw.place(principal.as_ref())?;
    let most = app.host.options().max_message_bytes;
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        // Messages above the limit are read up to twice the limit, so that they get an error answer.
        .max_message_size(most.saturating_mul(2))
        .max_frame_size(most.saturating_mul(2));
    let work = app.work.clone();
    Ok(upgrade.on_upgrade(move |socket| {
        work.track_future(async move {
            match principal {
                Some(principal) => serve_socket(&app, access, socket, &principal).await,
                None => refuse_socket(socket).await,
            }
            drop(place);
        })
    }))
}

async fn refuse_socket(mut socket: WebSocket) {
    let frame = Message::Close(Some(CloseFrame {
        code: UNAUTHORIZED,
        reason: "a valid token is wanted".into(),
    }));
    // silent-ok: the client is gone
    let _said = timeout(FAREWELL, socket.send(frame)).await;
}

async fn serve_socket(
    app: &HttpApp,
    access: Arc<ActiveTokens>,
    socket: WebSocket,
    principal: &HttpPrincipal,
) {
    let connection = RpcConnection::new(app.host.clone(), principal.rights());
    let outlet = connection.0.outbox().outlet();
    let (sink, frames) = socket.split();
    let code = Arc::new(AtomicU16::new(NORMAL));
    let source = WebSocketFrames {
        frames,
        until: auth::token_deadline(app, principal),
        access,
        code: Arc::clone(&code),
        most: app.host.options().max_message_bytes,
    };
    let writing = write(outlet, sink, code);
    let ended = serve_client(connection, source, writing, app.over.clone()).await;
    tracing::debug!(by = ?ended.by, "a socket has closed");
}

struct WebSocketFrames {
    frames: SplitStream<WebSocket>,
    access: Arc<ActiveTokens>,
    /// When the client's token expires.
    until: Option<tokio::time::Instant>,
    code: Arc<AtomicU16>,
    most: usize,
}

impl WebSocketFrames {
    fn close_with_code(&self, code: u16) -> ConnectionEndCause {
        self.code.store(code, Ordering::Relaxed);
        ConnectionEndCause::Input
    }
}

impl MessageSource for WebSocketFrames {
    async fn read(&mut self, connection: &mut RpcConnection) -> ConnectionEndCause {
        loop {
            connection.flush();
            connection.room().await;
            let patience = if connection.may_idle() { SILENT } else { IDLE };
            let frame = tokio::select! {
                biased;
                // The tokens were replaced: a client that still has access connects again.
                () = self.access.wait_replaced() => return self.close_with_code(UNAUTHORIZED),
                () = auth::wait_until(self.until) => return self.close_with_code(UNAUTHORIZED),
                frame = timeout(patience, self.frames.next()) => frame,
            };
            match frame {
                Ok(Some(Ok(Message::Text(text)))) if text.len() > self.most => connection.too_long(self.most),
                Ok(Some(Ok(Message::Text(text)))) => connection.handle_line(text.as_bytes()).await,
                Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
                Ok(Some(Ok(Message::Binary(_)))) => return self.close_with_code(PROTOCOL_ERROR),
                Ok(None | Some(Ok(Message::Close(_)))) => return ConnectionEndCause::PeerGone,
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "a socket broke");
                    return self.close_with_code(PROTOCOL_ERROR);
                }
                // silent-ok: its answers are still in flight
                Err(_) if connection.is_busy() && !connection.may_idle() => {}
                Err(_) if connection.may_idle() => return ConnectionEndCause::PeerGone,
                Err(_) => return self.close_with_code(PROTOCOL_ERROR), // silent-ok: it never said `claw.initialize`
            }
        }
    }
}

/// Writes messages until the outbox closes, then closes the socket.
async fn write(
    outlet: Arc<OutgoingMessages>,
    mut sink: SplitSink<WebSocket, Message>,
    code: Arc<AtomicU16>,
) -> io::Result<()> {
    let mut pings = tokio::time::interval(PING);
    pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    pings.tick().await; // the first is immediate
    loop {
        tokio::select! {
            biased;
            batch = outlet.next() => match batch {
                Some(batch) => send_batch(&mut sink, batch.into()).await?,
                None => break,
            },
            _ = pings.tick() => sink.send(Message::Ping(Bytes::new())).await.map_err(io::Error::other)?,
        }
    }
    let frame = CloseFrame {
        code: code.load(Ordering::Relaxed),
        reason: "".into(),
    };
    timeout(FAREWELL, sink.send(Message::Close(Some(frame))))
        .await?
        .map_err(io::Error::other)
}

async fn send_batch(sink: &mut SplitSink<WebSocket, Message>, batch: Bytes) -> io::Result<()> {
    let mut from = 0;
    for end in memchr::memchr_iter(b'\n', &batch) {
        let text = Utf8Bytes::try_from(batch.slice(from..end)).map_err(io::Error::other)?;
        from = end + 1;
        sink.feed(Message::Text(text)).await.map_err(io::Error::other)?;
    }
    sink.flush().await.map_err(io::Error::other)
}
