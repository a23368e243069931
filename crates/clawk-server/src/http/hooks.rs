//! `/channels/NAME`: requests of platforms and pages. The platform's signature or the channel's own token replaces our token.

use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use clawk_kernel::ports::SocketFrame;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use http::header::UPGRADE;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::HttpApp;
use super::error::ApiError;
use crate::channels::{HookBody, HookSocket};

/// The prefix of the paths.
pub(super) const PREFIX: &str = "/channels/";
/// How often a socket's client is pinged. A client that misses two pings is disconnected.
const PING: Duration = Duration::from_secs(30);
const SILENT: Duration = Duration::from_secs(75);
/// How long writing a frame may take.
const WRITE: Duration = Duration::from_secs(15);
/// The buffer size of an idle socket, bytes.
const BUFFER: usize = 4 * 1024;

/// Close codes (RFC 6455 §7.4.1).
const NORMAL: u16 = 1000;
const AWAY: u16 = 1001;
const PROTOCOL_ERROR: u16 = 1002;
const TOO_LONG: u16 = 1009;

/// Passes the request to its channel.
pub(super) async fn receive_hook(
    State(app): State<HttpApp>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let Some(channels) = app.host.channels() else {
        return ApiError::not_found("no channel is served").into_response();
    };
    let (mut parts, body) = request.into_parts();
    let upgrade = if parts.headers.contains_key(UPGRADE) {
        Some(WebSocketUpgrade::from_request_parts(&mut parts, &()).await)
    } else {
        None
    };
    let limit = app.options.max_body_bytes;
    let Ok(body) = axum::body::to_bytes(body, limit).await else {
        let message = format!("a body has at most {limit} bytes and comes whole");
        return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).into_response();
    };
    let answer = channels
        .receive_hook(&name, http::Request::from_parts(parts, body))
        .await;
    let (head, body) = answer.into_parts();
    let body = match body {
        HookBody::Whole(bytes) => Body::from(bytes),
        HookBody::Stream(pieces) => {
            let pieces = futures::stream::unfold(pieces, |mut pieces| async {
                let piece = pieces.recv().await?;
                Some((Ok::<_, std::convert::Infallible>(piece), pieces))
            });
            Body::from_stream(pieces)
        }
        HookBody::Socket(ends) => {
            return match upgrade {
                Some(Ok(upgrade)) => upgrade_socket(&app, upgrade, ends),
                Some(Err(refusal)) => {
                    let text = refusal.body_text();
                    ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", text).into_response()
                }
                None => {
                    let text = "a WebSocket is wanted";
                    ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", text).into_response()
                }
            };
        }
    };
    Response::from_parts(head, body)
}

fn upgrade_socket(app: &HttpApp, upgrade: WebSocketUpgrade, ends: HookSocket) -> Response {
    let most = ends.max_frame_bytes;
    let upgrade = upgrade
        .protocols([ends.protocol])
        .read_buffer_size(BUFFER)
        .write_buffer_size(BUFFER)
        // Longer frames are read up to four times the limit, so that the sender gets an error.
        .max_message_size(most.saturating_mul(4))
        .max_frame_size(most.saturating_mul(4));
    let work = app.work.clone();
    upgrade.on_upgrade(move |socket| work.track_future(carry_frames(socket, ends)))
}

/// Passes frames in both directions until one side ends the connection.
async fn carry_frames(socket: WebSocket, ends: HookSocket) {
    let (mut sink, mut frames) = socket.split();
    let HookSocket {
        heard,
        mut said,
        max_frame_bytes,
        ..
    } = ends;
    let (code, reason) = tokio::select! {
        code = read(&mut frames, &heard, max_frame_bytes) => (code, ""),
        end = write(&mut sink, &mut said) => end,
    };
    let frame = Message::Close(Some(CloseFrame {
        code,
        reason: reason.into(),
    }));
    let farewell = async {
        // After the client's close frame no other frame may follow; only the reply to it is written.
        let _said = sink.send(frame).await;
        sink.close().await
    };
    // silent-ok: the client is gone
    let _said = timeout(WRITE, farewell).await;
}

async fn read(frames: &mut SplitStream<WebSocket>, heard: &mpsc::Sender<SocketFrame>, most: usize) -> u16 {
    loop {
        let frame = match timeout(SILENT, frames.next()).await {
            Err(_) => return AWAY, // silent-ok: it answers no ping
            Ok(None | Some(Ok(Message::Close(_)))) => return NORMAL,
            Ok(Some(Err(error))) => {
                tracing::debug!(%error, "a channel's socket broke");
                let too_long = error.to_string().contains("too long");
                return if too_long { TOO_LONG } else { PROTOCOL_ERROR };
            }
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
            Ok(Some(Ok(Message::Text(text)))) if text.len() > most => return TOO_LONG,
            Ok(Some(Ok(Message::Binary(bytes)))) if bytes.len() > most => return TOO_LONG,
            Ok(Some(Ok(Message::Text(text)))) => SocketFrame::Text(text.as_str().to_owned()),
            Ok(Some(Ok(Message::Binary(bytes)))) => SocketFrame::Bytes(bytes.to_vec()),
        };
        if heard.send(frame).await.is_err() {
            // The channel has ended the connection; its last frame gives the reason.
            std::future::pending::<()>().await;
        }
    }
}

async fn write(
    sink: &mut SplitSink<WebSocket, Message>,
    said: &mut mpsc::Receiver<SocketFrame>,
) -> (u16, &'static str) {
    let mut pings = tokio::time::interval(PING);
    pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    pings.tick().await; // the first is immediate
    loop {
        let frame = tokio::select! {
            biased;
            frame = said.recv() => match frame {
                Some(SocketFrame::Text(text)) => Message::Text(text.into()),
                Some(SocketFrame::Bytes(bytes)) => Message::Binary(bytes.into()),
                Some(SocketFrame::Close(code, reason)) => return (code, reason),
                None => return (AWAY, "the channel has ended"),
            },
            _ = pings.tick() => Message::Ping(axum::body::Bytes::new()),
        };
        match timeout(WRITE, sink.send(frame)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return (AWAY, "it does not read"), // silent-ok: it is gone
        }
    }
}
