//! CKP over HTTP (CKP §9.2, R42): `/claw` is Streamable HTTP with server-sent events, `/claw/ws` a WebSocket.
//!
//! `POST /claw` sends one message or batch. The answer is JSON, or an event stream if it takes longer or if notifications precede
//! it. `GET /claw` is the stream of messages that answer no request. After a broken connection both streams continue at
//! `Last-Event-ID`. `DELETE /claw` ends the session.

mod session;
mod socket;
mod stream;

use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use clawk_proto::method::Method;
use clawk_proto::rpc::{InboundRpc, RpcId, RpcMessage, parse, write_error};
use clawk_proto::{ErrorCode, RpcError};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use tokio::time::timeout;

use super::auth::{ActiveTokens, HttpPrincipal};
use super::{ApiError, HttpApp, body};
use crate::clients::AddressedMessage;
use crate::transport::outbox::{Outbox, OutgoingMessages};
use session::CkpHttpSession;
pub(crate) use session::CkpHttpSessions;
use stream::StreamEventId;

/// The header with the session's id, in the answer to `claw.initialize` and in every later request.
const SESSION: HeaderName = HeaderName::from_static("claw-session-id");
/// The header that says where a stream continues.
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// An answer within this time is JSON, if the client accepts both forms.
const SOON: Duration = Duration::from_secs(1);

/// The routes of the door `claw`.
pub(super) fn routes() -> Router<HttpApp> {
    Router::new()
        .route("/claw", post(handle_post).get(handle_get).delete(handle_delete))
        .route("/claw/ws", get(socket::open_socket))
}

/// The query of `GET /claw?session=…`. A browser's `EventSource` can't send headers.
#[derive(Debug, Default, Deserialize)]
struct CkpSessionQuery {
    session: Option<String>,
}

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `claw.initialize` alone: begins a session if there is none.
    Hello,
    /// Expects an answer.
    Asks,
    /// Expects nothing: only notifications.
    Tells,
}

/// Handles `POST /claw`.
async fn handle_post(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Extension(access): Extension<Arc<ActiveTokens>>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let limit = app.host.options().max_message_bytes;
    let message = match body::json_within(request, limit).await {
        Ok(message) => message,
        Err(refusal) if refusal.status == StatusCode::PAYLOAD_TOO_LARGE => {
            let error = RpcError::new(
                ErrorCode::InvalidRequest,
                format!("a message may have at most {limit} bytes"),
            );
            let error = error.with(json!({"reason": "too_long", "max_message_bytes": limit}));
            return Ok(refusal_response(refusal.status, &error));
        }
        Err(refusal) => return Err(refusal),
    };
    let kind = match kind(&message) {
        Ok(kind) => kind,
        Err(answer) => return Ok(json_answer(StatusCode::BAD_REQUEST, answer.into())),
    };
    let wants = AnswerForm::from_headers(&headers)?;
    let named = match session_id(&headers) {
        Ok(named) => named,
        Err(refusal) => return Ok(*refusal),
    };
    match (named, kind) {
        (Some(id), _) => {
            let Some(session) = app.claw.find_session(&id, &principal) else {
                return Ok(unknown_session());
            };
            handle_message(&session, message, kind, wants).await
        }
        (None, Kind::Hello) => {
            let session = app.claw.begin_session(&app, &principal, access)?;
            begin_session(&app, session, message, wants).await
        }
        (None, Kind::Asks | Kind::Tells) => Ok(refusal_response(
            StatusCode::BAD_REQUEST,
            &RpcError::new(
                ErrorCode::InvalidRequest,
                "`claw.initialize` must be answered before anything else; send its `Claw-Session-Id` back",
            )
            .with(json!({"reason": "not_initialized"})),
        )),
    }
}

/// Begins a session. The session counts only if `claw.initialize` succeeds.
async fn begin_session(
    app: &HttpApp,
    session: Arc<CkpHttpSession>,
    message: Bytes,
    wants: AnswerForm,
) -> Result<Response, ApiError> {
    let outlet = send_message(&session, message).await?;
    let Some(answer) = last_line(&outlet).await else {
        return Err(ApiError::internal("`claw.initialize` got no answer"));
    };
    let begun = serde_json::from_slice::<serde_json::Value>(&answer)
        .is_ok_and(|answer| answer.get("result").is_some()); // silent-ok: our own answers always read
    let mut response = match wants {
        AnswerForm::Json | AnswerForm::Either => json_answer(StatusCode::OK, answer),
        AnswerForm::Events => stream::single_event_response(&answer),
    };
    if begun {
        if let Ok(id) = HeaderValue::from_str(session.id()) {
            response.headers_mut().insert(SESSION, id);
        }
        app.claw.add_session(&session);
    } else {
        session.end_session();
    }
    Ok(response)
}

/// Handles a message of a session.
async fn handle_message(
    session: &Arc<CkpHttpSession>,
    message: Bytes,
    kind: Kind,
    wants: AnswerForm,
) -> Result<Response, ApiError> {
    let outlet = match send_message(session, message).await {
        Ok(outlet) => outlet,
        Err(_) => return Ok(unknown_session()), // silent-ok: it ended in this very moment
    };
    if kind == Kind::Tells {
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    let first = match wants {
        AnswerForm::Json => return Ok(answer_response(last_line(&outlet).await)),
        AnswerForm::Events => Vec::new(),
        AnswerForm::Either => match timeout(SOON, outlet.next()).await {
            Ok(None) => return Ok(answer_response(None)),
            Ok(Some(batch)) if is_answer(&batch) => return Ok(answer_response(Some(batch.into()))),
            Ok(Some(batch)) => batch,
            Err(_) => Vec::new(), // silent-ok: it takes longer, so it is streamed
        },
    };
    let place = session.streams().begin_stream(outlet, first);
    Ok(session.follow_stream(place))
}

async fn send_message(session: &CkpHttpSession, message: Bytes) -> Result<Arc<OutgoingMessages>, ApiError> {
    let reply = Arc::new(Outbox::default());
    let outlet = reply.outlet();
    if session
        .client()
        .send_message(AddressedMessage { message, reply })
        .await
    {
        Ok(outlet)
    } else {
        Err(ApiError::unavailable("the session has ended"))
    }
}

/// Handles `GET /claw`: streams messages that answer no request. With `Last-Event-ID`, continues any stream of this session.
async fn handle_get(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Query(query): Query<CkpSessionQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if AnswerForm::from_headers(&headers)? == AnswerForm::Json {
        let message = "this is a stream: accept `text/event-stream`";
        return Err(ApiError::new(
            StatusCode::NOT_ACCEPTABLE,
            "not_acceptable",
            message,
        ));
    }
    let named = match session_id(&headers) {
        Ok(named) => named.or(query.session),
        Err(refusal) => return Ok(*refusal),
    };
    let Some(id) = named else {
        return Err(ApiError::bad_request(
            "session_missing",
            "`Claw-Session-Id` is wanted",
        ));
    };
    let Some(session) = app.claw.find_session(&id, &principal) else {
        return Ok(unknown_session());
    };
    let place = match headers.get(LAST_EVENT).map(HeaderValue::to_str) {
        None => session.streams().notice_reader(),
        Some(given) => {
            let place = given.ok().and_then(StreamEventId::read); // silent-ok: such an id names nothing
            let place = place.and_then(|place| session.streams().resume_stream(place));
            place.ok_or_else(|| {
                let message =
                    "`Last-Event-ID` names nothing that is still kept; ask again with the same `request_id`";
                ApiError::new(StatusCode::GONE, "event_gone", message)
            })?
        }
    };
    Ok(session.follow_stream(place))
}

/// Handles `DELETE /claw`: ends the session. Requests in flight may finish.
async fn handle_delete(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let named = match session_id(&headers) {
        Ok(named) => named,
        Err(refusal) => return Ok(*refusal),
    };
    let Some(id) = named else {
        return Err(ApiError::bad_request(
            "session_missing",
            "`Claw-Session-Id` is wanted",
        ));
    };
    match app.claw.find_session(&id, &principal) {
        Some(session) => {
            session.end_session();
            app.claw.forget_session(session.id());
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        None => Ok(unknown_session()),
    }
}

/// The form of answer that the client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerForm {
    Json,
    Events,
    Either,
}

impl AnswerForm {
    /// Reads the `Accept` headers; without any, the form is JSON.
    fn from_headers(headers: &HeaderMap) -> Result<Self, ApiError> {
        let (mut json, mut events, mut any) = (false, false, false);
        for value in headers.get_all(ACCEPT) {
            any = true;
            let value = value.to_str().unwrap_or_default(); // silent-ok: an unreadable type is none that we have
            for kind in value.split(',') {
                match kind.split(';').next().unwrap_or_default().trim() {
                    "application/json" | "application/*" => json = true,
                    "text/event-stream" | "text/*" => events = true,
                    "*/*" => json = true,
                    _ => {}
                }
            }
        }
        match (json || !any, events) {
            (true, true) => Ok(Self::Either),
            (true, false) => Ok(Self::Json),
            (false, true) => Ok(Self::Events),
            (false, false) => Err(ApiError::new(
                StatusCode::NOT_ACCEPTABLE,
                "not_acceptable",
                "accept `application/json`, `text/event-stream` or both",
            )),
        }
    }
}

/// The kind of the message, or the error answer for bytes that are not a valid message.
fn kind(bytes: &[u8]) -> Result<Kind, Vec<u8>> {
    let refusal = |id: &RpcId<'_>, error: &RpcError| {
        let mut answer = Vec::new();
        write_error(&mut answer, id, error);
        answer
    };
    match parse(bytes) {
        InboundRpc::One(RpcMessage::Refused(refused)) => Err(refusal(&refused.id, &refused.error)),
        InboundRpc::One(RpcMessage::Request(request)) => Ok(match request.id {
            Some(_) if request.method == Method::Initialize.name() => Kind::Hello,
            Some(_) => Kind::Asks,
            None => Kind::Tells,
        }),
        InboundRpc::One(RpcMessage::Ignored) => Ok(Kind::Tells),
        InboundRpc::Batch(messages) => {
            let is_answered = |message: &RpcMessage<'_>| match message {
                RpcMessage::Request(request) => request.id.is_some(),
                RpcMessage::Refused(_) => true,
                RpcMessage::Ignored => false,
            };
            Ok(if messages.iter().any(is_answered) {
                Kind::Asks
            } else {
                Kind::Tells
            })
        }
    }
}

/// The session id in the headers. Two different ids count as none.
fn session_id(headers: &HeaderMap) -> Result<Option<String>, Box<Response>> {
    let mut given = headers.get_all(&SESSION).iter();
    match (given.next(), given.next()) {
        (None, _) => Ok(None),
        (Some(one), None) => match one.to_str() {
            Ok(id) => Ok(Some(id.to_owned())),
            Err(_) => Err(Box::new(unknown_session())), // silent-ok: such a name is no session's
        },
        (Some(_), Some(_)) => Err(Box::new(refusal_response(
            StatusCode::BAD_REQUEST,
            &RpcError::new(ErrorCode::InvalidRequest, "`Claw-Session-Id` stands twice"),
        ))),
    }
}

fn unknown_session() -> Response {
    let error = RpcError::new(
        ErrorCode::InvalidRequest,
        "there is no such session; begin one with `claw.initialize`",
    );
    refusal_response(
        StatusCode::NOT_FOUND,
        &error.with(json!({"reason": "unknown_session"})),
    )
}

/// A JSON-RPC error without a request id.
fn refusal_response(status: StatusCode, error: &RpcError) -> Response {
    let mut answer = Vec::new();
    write_error(&mut answer, &RpcId::NULL, error);
    json_answer(status, answer.into())
}

fn answer_response(answer: Option<Bytes>) -> Response {
    match answer {
        Some(answer) => json_answer(StatusCode::OK, answer),
        None => unknown_session(),
    }
}

fn json_answer(status: StatusCode, answer: Bytes) -> Response {
    let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, kind, Body::from(answer)).into_response()
}

/// The answer itself, which is the last line. Notifications before it are dropped, since the client accepts no events.
async fn last_line(outlet: &OutgoingMessages) -> Option<Bytes> {
    let mut last = None;
    while let Some(batch) = outlet.next().await {
        let mut lines = batch.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        last = lines.next_back().map(Bytes::copy_from_slice).or(last);
    }
    last
}

/// Whether this is a single line that is not a notification.
fn is_answer(batch: &[u8]) -> bool {
    let lines = memchr::memchr_iter(b'\n', batch).count();
    lines == 1 && !batch.starts_with(br#"{"jsonrpc":"2.0","method":"#)
}
