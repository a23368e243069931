//! Streamable HTTP: rmcp implements the transport, and `clawk-egress` sends the requests.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use clawk_egress::{EgressClient, EgressError, Request, Response, Url};
use clawk_kernel::sheet::visible_text;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    HttpStatusError, StreamableHttpClient, StreamableHttpClientTransport,
    StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Error as SseError, Sse, SseStream};

use super::inbound::{PendingRequests, as_event};
use super::reopening::ReopenBackoff;
use crate::call::truncate_text;
use crate::oauth::{OAuthError, Tokens};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// How many bytes of a server's text are in an error.
const MAX_WORDS_BYTES: usize = 300;

/// How many bytes of a failed answer's body are read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Creates the transport for one endpoint.
pub(super) fn http_transport(
    client: EgressClient,
    url: &Url,
    headers: &HeaderMap,
    tokens: Option<Arc<Tokens>>,
) -> StreamableHttpClientTransport<McpHttpClient> {
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    StreamableHttpClientTransport::with_client(
        McpHttpClient {
            client,
            fixed: headers.clone(),
            tokens: tokens.filter(|_| !headers.contains_key(header::AUTHORIZATION)),
            pending: PendingRequests::default(),
            reopening: Arc::default(),
        },
        config,
    )
}

/// The egress client, adapted to rmcp's trait.
#[derive(Debug, Clone)]
pub(super) struct McpHttpClient {
    client: EgressClient,
    /// Headers that the operator set, including secrets.
    fixed: HeaderMap,
    /// The tokens of `clawk mcp login`. Not used if the operator sets a token.
    tokens: Option<Arc<Tokens>>,
    /// Requests that have no answer yet.
    pending: PendingRequests,
    /// Limits how often the server's own event stream is reopened.
    reopening: Arc<ReopenBackoff>,
}

type WireError = StreamableHttpError<EgressError>;

impl McpHttpClient {
    async fn send_request(
        &self,
        method: Method,
        uri: &str,
        session: Option<&str>,
        custom: HashMap<HeaderName, HeaderValue>,
        body: Bytes,
    ) -> Result<Response, WireError> {
        let url = Url::parse(uri).map_err(|_invalid| unusable_error("the endpoint is not a valid URL"))?;
        let mut headers = self.fixed.clone();
        let accept = if method == Method::GET {
            "text/event-stream"
        } else {
            "application/json, text/event-stream"
        };
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(session) = session {
            headers.insert(
                SESSION,
                HeaderValue::from_str(session)
                    .map_err(|_bad| unusable_error("the session id is not a valid header"))?,
            );
        }
        headers.extend(custom.into_iter().map(|(name, value)| (Some(name), value)));
        let request = Request {
            method,
            url,
            headers,
            body,
        };
        self.with_token(request).await
    }

    /// Sends the request with the present token. A server that refuses the token has done nothing, so the request is sent once more
    /// with a renewed token.
    async fn with_token(&self, mut request: Request) -> Result<Response, WireError> {
        let mut token = match &self.tokens {
            Some(tokens) => tokens.bearer().await.map_err(no_token)?,
            None => None,
        };
        loop {
            if let Some(token) = &token {
                let value = HeaderValue::from_str(&format!("Bearer {token}"));
                // silent-ok: the reason would repeat the token
                let mut value = value.map_err(|_| unusable_error("the token is not a valid header"))?;
                value.set_sensitive(true);
                request.headers.insert(header::AUTHORIZATION, value);
            }
            let answer = self
                .client
                .send(request.clone())
                .await
                .map_err(StreamableHttpError::Client)?;
            let renewed = match (answer.status(), &self.tokens, &token) {
                (StatusCode::UNAUTHORIZED, Some(tokens), Some(old)) => {
                    tokens.renewed(old).await.map_err(no_token)?
                }
                (StatusCode::UNAUTHORIZED, Some(_), None) => None,
                _ => return Ok(answer),
            };
            let renewed = renewed.filter(|fresh| Some(fresh) != token.as_ref());
            token =
                Some(renewed.ok_or_else(|| {
                    unusable_error("it wants a token: agree to one with `clawk mcp login`")
                })?);
        }
    }
}

fn unusable_error(text: &'static str) -> WireError {
    StreamableHttpError::UnexpectedServerResponse(Cow::from(text))
}

fn no_token(error: OAuthError) -> WireError {
    StreamableHttpError::UnexpectedServerResponse(Cow::from(error.to_string()))
}

impl StreamableHttpClient for McpHttpClient {
    type Error = EgressError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, WireError> {
        let body = Bytes::from(serde_json::to_vec(&message)?);
        self.pending.note_sent(&message);
        let response = self
            .send_request(Method::POST, &uri, session_id.as_deref(), custom_headers, body)
            .await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let text = |name: &HeaderName| {
            response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let session = text(&SESSION);
        let kind = text(&header::CONTENT_TYPE)
            .unwrap_or_default()
            .to_ascii_lowercase();
        let wants_answer = matches!(message, ClientJsonRpcMessage::Request(_));
        if !status.is_success() {
            let body = response.read_beginning(MAX_ERROR_BYTES).await;
            return self.refused_response(&message, status, &body, session);
        }
        if kind.starts_with("text/event-stream") {
            let events = repair_events(body_events(response), self.pending.clone());
            return Ok(StreamableHttpPostResponse::Sse(events, session));
        }
        if !wants_answer {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let said = match response.bytes().await {
            Ok(body) => match self.pending.read(&body) {
                all if all.is_empty() => unreadable_body_error(&kind, &body),
                all => return Ok(response_from_messages(all, session)),
            },
            // The request was processed; only its answer is lost.
            Err(error @ EgressError::TooLarge(_)) => format!("the server's answer is not kept: {error}"),
            Err(error) => return Err(StreamableHttpError::Client(error)),
        };
        match self.pending.failed_request(&message, &said) {
            Some(failed) => Ok(StreamableHttpPostResponse::Json(failed, session)),
            None => Err(StreamableHttpError::UnexpectedServerResponse(Cow::from(said))),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), WireError> {
        self.send_request(
            Method::DELETE,
            &uri,
            Some(&session_id),
            custom_headers,
            Bytes::new(),
        )
        .await
        .map(drop)
    }

    /// Reads the server's own event stream, or the rest of an answer whose stream broke (`Last-Event-ID`).
    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        mut custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, WireError> {
        match &last_event_id {
            Some(id) => {
                let id = HeaderValue::from_str(id);
                let id =
                    id.map_err(|_bad| unusable_error("the id of the last event is not a valid header"))?;
                custom_headers.insert(LAST_EVENT, id);
            }
            None => self.reopening.wait().await,
        }
        let sent = self.send_request(
            Method::GET,
            &uri,
            session_id.as_deref(),
            custom_headers,
            Bytes::new(),
        );
        let response = sent.await?;
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE);
        let streams = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if status.is_success() && streams {
            return Ok(repair_events(body_events(response), self.pending.clone()));
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() && last_event_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        if status.is_server_error() {
            return Err(HttpStatusError::new(status.as_u16(), None).into());
        }
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

impl McpHttpClient {
    /// Converts an error answer. A JSON-RPC error in its body says more than the status. After a refusal (4xx) the server has done
    /// nothing. After 5xx the outcome is unknown.
    fn refused_response(
        &self,
        message: &ClientJsonRpcMessage,
        status: StatusCode,
        body: &[u8],
        session: Option<String>,
    ) -> Result<StreamableHttpPostResponse, WireError> {
        let all = self.pending.read_refusal(message, body);
        if !all.is_empty() {
            return Ok(response_from_messages(all, session));
        }
        let words = String::from_utf8_lossy(body);
        let words = if words.trim_start().starts_with('<') {
            ""
        } else {
            words.trim()
        };
        let said = format!(
            "the server refused with HTTP {}: {}",
            status.as_u16(),
            visible_text(truncate_text(words, MAX_WORDS_BYTES).0)
        );
        let handshake = matches!(message, ClientJsonRpcMessage::Request(request)
            if matches!(request.request, ClientRequest::InitializeRequest(_)));
        let refused = status.is_client_error() && !handshake;
        match self
            .pending
            .failed_request(message, said.trim_end_matches(": "))
            .filter(|_| refused)
        {
            Some(failed) => Ok(StreamableHttpPostResponse::Json(failed, session)),
            None => Err(HttpStatusError::new(status.as_u16(), None).into()),
        }
    }
}

/// The messages of one body.
fn response_from_messages(
    mut all: Vec<ServerJsonRpcMessage>,
    session: Option<String>,
) -> StreamableHttpPostResponse {
    if all.len() == 1
        && let Some(one) = all.pop()
    {
        return StreamableHttpPostResponse::Json(one, session);
    }
    let events = all
        .into_iter()
        .filter_map(|message| as_event(&message).map(sse_event))
        .map(Ok);
    let events: Vec<Result<Sse, SseError>> = events.collect();
    StreamableHttpPostResponse::Sse(futures::stream::iter(events).boxed(), session)
}

fn sse_event(data: String) -> Sse {
    Sse {
        event: None,
        data: Some(data),
        id: None,
        retry: None,
    }
}

/// The reason why a body is not an answer, with its first bytes.
fn unreadable_body_error(kind: &str, body: &[u8]) -> String {
    let words = String::from_utf8_lossy(body);
    let words = words.trim();
    if words.is_empty() {
        return "the server's answer is empty".to_owned();
    }
    format!(
        "the server's answer is not JSON-RPC (`{}`): {}",
        visible_text(truncate_text(kind, 80).0),
        visible_text(truncate_text(words, MAX_WORDS_BYTES).0)
    )
}

/// Parses events with the same repairs as in other transports. An event without a message keeps only its `id` and `retry`.
fn repair_events(
    events: BoxStream<'static, Result<Sse, SseError>>,
    pending: PendingRequests,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let one = move |given: Result<Sse, SseError>| {
        let mut all = Vec::new();
        match given {
            Ok(mut given)
                if given
                    .event
                    .as_deref()
                    .is_none_or(|name| matches!(name, "" | "message")) =>
            {
                let data = given.data.take().unwrap_or_default();
                if !data.trim().is_empty() {
                    let read = pending.read(data.as_bytes());
                    all.extend(read.iter().filter_map(as_event).map(sse_event));
                }
                // The last message has the position at which reading continues.
                match all.last_mut() {
                    Some(last) => (last.id, last.retry) = (given.id, given.retry),
                    None => all.push(given),
                }
            }
            Ok(other) => all.push(other),
            Err(error) => return futures::stream::iter(vec![Err(error)]),
        }
        futures::stream::iter(all.into_iter().map(Ok).collect::<Vec<_>>())
    };
    events.flat_map(one).boxed()
}

/// The events of a body. The client's size limit applies to all of them together.
fn body_events(response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
    let pieces = futures::stream::unfold(Some(response), |response| async move {
        let mut response = response?;
        match response.chunk().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(response))),
            Ok(None) => None,
            Err(error) => Some((Err(std::io::Error::other(error)), None)),
        }
    });
    SseStream::from_bytes_stream(pieces).boxed()
}
