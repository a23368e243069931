//! `/v1/traces/stream`: sends a session's events as they become durable, each as one JSON text message.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Query, State};
use axum::response::Response;
use clawk_proto::SessionId;
use http::StatusCode;
use tokio::sync::watch;
use tokio::time::timeout;

use super::auth::{self, ActiveTokens, HttpPrincipal};
use super::error::ApiError;
use super::model::StreamQuery;
use super::sessions::bad_query;
use super::shares::{NoPlace, PlaceGuard};
use super::traces::{readable_session, sequence_after};
use super::{HttpApp, Page};

/// How long to wait for more events before the chain is read again, so that a busy journal is not read for every commit.
const GATHER: Duration = Duration::from_millis(10);
/// How often an idle stream is pinged.
const PING: Duration = Duration::from_secs(30);
/// The largest number of events in one read.
const PAGE: usize = 100;
/// The longest message from a client, bytes. Clients should send only control frames.
const MAX_INBOUND: usize = 4_096;
/// The largest backlog for a slow client, bytes.
const MAX_BEHIND: usize = 1 << 20;

/// A session's events as they come, over a WebSocket.
#[utoipa::path(
    get, path = "/v1/traces/stream", tag = "traces", params(StreamQuery),
    responses(
        (status = 101, description = "Each message is one event."),
        (status = 426, description = "A WebSocket is wanted.", body = super::model::Error),
    ),
)]
pub(crate) async fn stream_trace(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Extension(access): Extension<Arc<ActiveTokens>>,
    query: Result<Query<StreamQuery>, QueryRejection>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query.map_err(|error| bad_query(&error))?;
    let session = readable_session(&app, &principal, &query.session_id).await?;
    let upgrade = upgrade.map_err(|error| {
        ApiError::new(
            StatusCode::UPGRADE_REQUIRED,
            "upgrade_required",
            error.body_text(),
        )
    })?;
    let place = app.streams.take_place(Some(&principal)).map_err(|none| {
        let most = app.options.max_streams;
        let message = match none {
            NoPlace::Full => format!("{most} streams are open"),
            NoPlace::ShareUsedUp => format!("this client's share of the {most} streams is used up"),
        };
        ApiError::too_many("too_many_streams", message, 1_000)
    })?;
    let since = sequence_after(query.since_sequence);
    let until = auth::token_deadline(&app, &principal);
    let upgrade = upgrade
        .max_message_size(MAX_INBOUND)
        .max_frame_size(MAX_INBOUND)
        .max_write_buffer_size(MAX_BEHIND);
    Ok(upgrade.on_upgrade(move |socket| send_trace(app, (access, until), socket, session, since, place)))
}

/// Sends events until the client disconnects, stops reading, or the server ends.
async fn send_trace(
    app: HttpApp,
    (access, until): (Arc<ActiveTokens>, Option<tokio::time::Instant>),
    mut socket: WebSocket,
    session: SessionId,
    since: u64,
    place: PlaceGuard,
) {
    let end = tokio::select! {
        biased;
        () = auth::wait_until(until) => TraceStreamEnd::Over,
        end = send_all(&app, &access, &mut socket, session, since) => end,
    };
    let code = match end {
        TraceStreamEnd::Gone => return,
        TraceStreamEnd::Stalled => close_code::POLICY,
        TraceStreamEnd::Over => close_code::AWAY,
        TraceStreamEnd::Failed => close_code::ERROR,
    };
    let frame = CloseFrame {
        code,
        reason: "".into(),
    };
    // silent-ok: the client is gone or stuck
    let _said = timeout(
        Duration::from_millis(500),
        socket.send(Message::Close(Some(frame))),
    )
    .await;
    drop(place);
}

enum TraceStreamEnd {
    Gone,
    Stalled,
    Over,
    Failed,
}

async fn send_all(
    app: &HttpApp,
    access: &ActiveTokens,
    socket: &mut WebSocket,
    session: SessionId,
    mut since: u64,
) -> TraceStreamEnd {
    let stall = Duration::from_millis(app.options.stall_ms);
    let mut commits = app.traces.watch();
    loop {
        // A commit after this line wakes the wait below.
        commits.mark_unchanged();
        let page = Page {
            session,
            since,
            kinds: Vec::new(),
            limit: PAGE,
        };
        let events = match app.traces.page(page).await {
            Ok(events) => events,
            Err(cause) => {
                tracing::error!(cause, "a stream could not be read");
                return TraceStreamEnd::Failed;
            }
        };
        for event in &events {
            let Ok(text) = serde_json::to_string(event) else {
                return TraceStreamEnd::Failed;
            };
            match timeout(stall, socket.send(Message::Text(text.into()))).await {
                Ok(Ok(())) => since = event.sequence + 1,
                Ok(Err(_)) => return TraceStreamEnd::Gone, // silent-ok: the client went
                Err(_) => return TraceStreamEnd::Stalled,
            }
        }
        if events.len() == PAGE {
            continue;
        }
        if let Err(end) = wait_commit(app, socket, &mut commits, access).await {
            return end;
        }
    }
}

/// Waits for the next commit. Messages from the client are read and ignored.
async fn wait_commit(
    app: &HttpApp,
    socket: &mut WebSocket,
    commits: &mut watch::Receiver<u64>,
    access: &ActiveTokens,
) -> Result<(), TraceStreamEnd> {
    let stall = Duration::from_millis(app.options.stall_ms);
    loop {
        tokio::select! {
            () = app.over.cancelled() => return Err(TraceStreamEnd::Over),
            // The tokens were replaced: a client that still has access connects again.
            () = access.wait_replaced() => return Err(TraceStreamEnd::Over),
            Ok(()) = commits.changed() => {
                tokio::time::sleep(GATHER).await;
                return Ok(());
            }
            () = tokio::time::sleep(PING) => match timeout(stall, socket.send(Message::Ping(Bytes::new()))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(TraceStreamEnd::Gone), // silent-ok: the client went
                Err(_) => return Err(TraceStreamEnd::Stalled),
            },
            message = socket.recv() => match message {
                None | Some(Err(_) | Ok(Message::Close(_))) => return Err(TraceStreamEnd::Gone),
                Some(Ok(_)) => {}
            },
        }
    }
}
