//! Streamable HTTP: each message is a POST whose answer is an event stream. A GET is the stream of messages that answer no request.
//! A broken stream continues at its last event.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clawk_egress::{ClientDeadlines, EgressClient, EgressError, Request, Response, Url};
use clawk_secrets::{EnvironmentSource, Secret};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::sync::mpsc;

use super::{FAREWELL, MAX_MESSAGE, TransportChannels, is_initialize};
use crate::ClientError;

const SESSION: HeaderName = HeaderName::from_static("claw-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const EVENTS: &str = "text/event-stream";
/// A call may take a day. A stream that is silent for a minute counts as broken.
const DEADLINES: ClientDeadlines = ClientDeadlines {
    connect_ms: 10_000,
    first_byte_ms: 60_000,
    idle_ms: 60_000,
    total_ms: 86_400_000,
};
/// The largest size of one stream, bytes.
const MOST: u64 = 1 << 30;
/// The largest part of an error's body that is read, bytes.
const ERROR_BYTES: usize = 1 << 20;
/// The number of attempts to continue a broken stream. `FIRST_WAIT` and `LONGEST_WAIT` bound the wait before each attempt.
const TRIES: u32 = 8;
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Prepares the client. The first message connects.
pub(super) fn open_transport(
    url: &Url,
    token: Option<&Secret>,
    ends: TransportChannels,
) -> Result<impl Future<Output = Result<(), ClientError>> + Send + use<>, ClientError> {
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.expose().trim()))
            .map_err(|_| ClientError::Refused("the token has characters that no header takes".to_owned()))?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    let client = EgressClient::for_provider(url, &EnvironmentSource::Process, DEADLINES, MOST)
        .map_err(|error| connect_error(&error))?;
    let TransportChannels { out, heard } = ends;
    let api = Arc::new(StreamableHttpTransport {
        client,
        url: url.clone(),
        headers,
        heard,
    });
    Ok(run(api, out))
}

fn connect_error(error: &EgressError) -> ClientError {
    ClientError::Connect(error.to_string())
}

struct StreamableHttpTransport {
    client: EgressClient,
    url: Url,
    headers: HeaderMap,
    heard: mpsc::Sender<String>,
}

async fn run(api: Arc<StreamableHttpTransport>, mut out: mpsc::Receiver<String>) -> Result<(), ClientError> {
    let mut session: Option<HeaderValue> = None;
    // The open streams; a session's first one is its notification stream.
    let mut reading = FuturesUnordered::new();
    loop {
        let message = tokio::select! {
            message = out.recv() => message,
            Some(read) = reading.next() => {
                let read: Result<(), ClientError> = read;
                read?;
                continue;
            }
        };
        let Some(message) = message else { break };
        let hello = is_initialize(&message);
        match api.post_message(message, session.as_ref(), hello).await? {
            PostOutcome::Done => {}
            PostOutcome::Begun(id) => {
                session = Some(id.clone());
                let api = Arc::clone(&api);
                reading.push(futures::FutureExt::boxed(async move {
                    api.follow_stream(None, &id, EventStreamCursor::default()).await
                }));
            }
            PostOutcome::Streams(response) => {
                let (api, id) = (Arc::clone(&api), session.clone());
                reading.push(futures::FutureExt::boxed(async move {
                    match id {
                        Some(id) => {
                            api.follow_stream(Some(*response), &id, EventStreamCursor::default())
                                .await
                        }
                        None => api
                            .read(*response, &mut EventStreamCursor::default())
                            .await
                            .map(drop),
                    }
                }));
            }
        }
    }
    if let Some(session) = session {
        // silent-ok: the server ends an open session after an hour
        let _ended = tokio::time::timeout(FAREWELL, api.end_session(&session)).await;
    }
    Ok(())
}

/// The result of a POST.
enum PostOutcome {
    /// The answer was received, or there is none.
    Done,
    /// The answer was received, and a session has begun.
    Begun(HeaderValue),
    /// The answer arrives as events.
    Streams(Box<Response>),
}

/// The position in a stream, for continuing it.
#[derive(Debug, Default)]
struct EventStreamCursor {
    last: Option<String>,
    /// Events have arrived since the last attempt.
    moved: bool,
}

impl StreamableHttpTransport {
    fn build_request(&self, method: Method, session: Option<&HeaderValue>, body: Bytes) -> Request {
        let mut headers = self.headers.clone();
        if let Some(session) = session {
            headers.insert(SESSION, session.clone());
        }
        headers.insert(ACCEPT, HeaderValue::from_static(EVENTS));
        Request {
            method,
            url: self.url.clone(),
            headers,
            body,
        }
    }

    /// The head of the response arrives once the agent has the message, so messages keep their order.
    async fn post_message(
        &self,
        message: String,
        session: Option<&HeaderValue>,
        hello: bool,
    ) -> Result<PostOutcome, ClientError> {
        let mut request = self.build_request(Method::POST, session, message.into());
        request
            .headers
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let response = self.client.send(request).await.map_err(|error| match error {
            EgressError::Connect(_) | EgressError::Dns { .. } | EgressError::Tls(_) => connect_error(&error),
            other => ClientError::Lost(other.to_string()),
        })?;
        let begun = response.headers().get(SESSION).cloned().filter(|_| hello);
        let events = is_events(&response);
        match (response.status(), events) {
            (StatusCode::ACCEPTED, _) => Ok(PostOutcome::Done),
            (StatusCode::OK, true) if hello => {
                self.read(response, &mut EventStreamCursor::default()).await?;
                Ok(begun.map_or(PostOutcome::Done, PostOutcome::Begun))
            }
            (StatusCode::OK, true) => Ok(PostOutcome::Streams(Box::new(response))),
            (StatusCode::OK, false) => {
                let body = response.bytes().await;
                self.forward_message(&body.map_err(|error| ClientError::Lost(error.to_string()))?)
                    .await?;
                Ok(begun.map_or(PostOutcome::Done, PostOutcome::Begun))
            }
            (status, _) => self
                .handle_error_response(status, response)
                .await
                .map(|()| PostOutcome::Done),
        }
    }

    /// Handles an HTTP error. An error of CKP is an ordinary message; an error of HTTP ends the transport.
    async fn handle_error_response(&self, status: StatusCode, response: Response) -> Result<(), ClientError> {
        let body = response.read_beginning(ERROR_BYTES).await;
        let told: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default(); // silent-ok: shown as it is then
        let text = |pointer: &str| told.pointer(pointer).and_then(serde_json::Value::as_str);
        if text("/jsonrpc") == Some("2.0") {
            if status == StatusCode::NOT_FOUND {
                return Err(ClientError::Lost("the session has ended".to_owned()));
            }
            return self.forward_message(&body).await;
        }
        let message = text("/error/message").unwrap_or("no reason was given");
        let message = format!("{status}: {message}");
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ClientError::Refused(message),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => ClientError::Lost(message),
            _ => ClientError::Connect(message),
        })
    }

    async fn forward_message(&self, message: &[u8]) -> Result<(), ClientError> {
        let text = String::from_utf8(message.to_vec());
        let text = text.map_err(|error| ClientError::Malformed(error.to_string()))?;
        let gone = |_| ClientError::Lost("nobody listens any more".to_owned());
        self.heard.send(text).await.map_err(gone)
    }

    /// Reads a stream to its end. A broken stream is requested again from its last event. Without `first`: the notification stream,
    /// which has no end.
    async fn follow_stream(
        &self,
        first: Option<Response>,
        session: &HeaderValue,
        mut place: EventStreamCursor,
    ) -> Result<(), ClientError> {
        let (notices, mut next, mut failed) = (first.is_none(), first, 0_u32);
        loop {
            let read = match next.take() {
                Some(response) => self.read(response, &mut place).await,
                None => match self.resume_stream(session, &place).await {
                    Ok(Some(response)) => self.read(response, &mut place).await,
                    Ok(None) => return Err(ClientError::Lost("the session has ended".to_owned())),
                    Err(error) => Err(error),
                },
            };
            match read {
                Ok(true) if !notices => return Ok(()),
                Ok(_) => {}
                Err(error @ (ClientError::Refused(_) | ClientError::Malformed(_))) => return Err(error),
                Err(error) if failed >= TRIES || (!notices && place.last.is_none()) => return Err(error),
                Err(error) => tracing::debug!(%error, "a stream of events broke"),
            }
            failed = if std::mem::take(&mut place.moved) {
                0
            } else {
                failed + 1
            };
            let wait = FIRST_WAIT * 2_u32.saturating_pow(failed.min(16));
            tokio::time::sleep(wait.min(LONGEST_WAIT)).await;
        }
    }

    /// Continues a stream. `None`: the session or its stream no longer exists.
    async fn resume_stream(
        &self,
        session: &HeaderValue,
        place: &EventStreamCursor,
    ) -> Result<Option<Response>, ClientError> {
        let mut request = self.build_request(Method::GET, Some(session), Bytes::new());
        if let Some(last) = place
            .last
            .as_deref()
            .and_then(|last| HeaderValue::from_str(last).ok())
        {
            // silent-ok above: the server sends no id with such characters
            request.headers.insert(LAST_EVENT, last);
        }
        let response = self.client.send(request).await;
        let response = response.map_err(|error| ClientError::Lost(error.to_string()))?;
        match response.status() {
            StatusCode::OK => Ok(Some(response)),
            StatusCode::NOT_FOUND | StatusCode::GONE => Ok(None),
            status => Err(ClientError::Lost(status.to_string())),
        }
    }

    /// Reads the events of one response. Returns `true` if it ended properly.
    async fn read(&self, mut response: Response, place: &mut EventStreamCursor) -> Result<bool, ClientError> {
        let mut events = Events::default();
        loop {
            match response.chunk().await {
                Ok(Some(piece)) => events.push_bytes(&piece),
                Ok(None) => return Ok(true),
                Err(error) => return Err(ClientError::Lost(error.to_string())),
            }
            while let Some(event) = events.next() {
                if let Some(id) = event.id {
                    place.last = Some(id);
                    place.moved = true;
                }
                if !event.data.is_empty() {
                    self.forward_message(&event.data).await?;
                }
            }
            if events.rest.len() > MAX_MESSAGE {
                let message = format!("an event has more than {MAX_MESSAGE} bytes");
                return Err(ClientError::Malformed(message));
            }
        }
    }

    async fn end_session(&self, session: &HeaderValue) -> Result<(), EgressError> {
        let request = self.build_request(Method::DELETE, Some(session), Bytes::new());
        self.client.send(request).await.map(drop)
    }
}

fn is_events(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    kind.and_then(|kind| kind.to_str().ok()) // silent-ok: an unreadable type is another one
        .is_some_and(|kind| kind.starts_with(EVENTS))
}

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    data: Vec<u8>,
}

/// Parses server-sent events from pieces of a body.
#[derive(Debug, Default)]
struct Events {
    rest: Vec<u8>,
    scanned: usize,
}

impl Events {
    fn push_bytes(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
    }

    /// The next whole event; an empty line ends an event.
    fn next(&mut self) -> Option<Event> {
        let from = self.scanned.saturating_sub(1);
        let unseen = self.rest.get(from..).unwrap_or_default();
        let Some(at) = unseen.windows(2).position(|two| two == b"\n\n") else {
            self.scanned = self.rest.len();
            return None;
        };
        let end = from + at + 2;
        let block: Vec<u8> = self.rest.drain(..end).collect();
        self.scanned = 0;
        let mut event = Event::default();
        for line in block.split(|byte| *byte == b'\n') {
            if let Some(value) = field_value(line, b"data:") {
                if !event.data.is_empty() {
                    event.data.push(b'\n');
                }
                event.data.extend_from_slice(value);
            } else if let Some(value) = field_value(line, b"id:") {
                event.id = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        Some(event)
    }
}

fn field_value<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?;
    let value = value.strip_prefix(b" ").unwrap_or(value);
    Some(value.strip_suffix(b"\r").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::{Event, Events};

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let text = b"retry: 1000\nid: 0-0\n\n:\n\nid: 0-1\ndata: {\"a\":1}\n\ndata: x\ndata: y\n\n";
        for cut in 0..text.len() {
            let mut events = Events::default();
            let mut all = Vec::new();
            for piece in [&text[..cut], &text[cut..]] {
                events.push_bytes(piece);
                while let Some(event) = events.next() {
                    all.push(event);
                }
            }
            let event = |id: Option<&str>, data: &[u8]| Event {
                id: id.map(str::to_owned),
                data: data.to_vec(),
            };
            let wanted = [
                event(Some("0-0"), b""),
                event(None, b""),
                event(Some("0-1"), b"{\"a\":1}"),
                event(None, b"x\ny"),
            ];
            assert_eq!(all, wanted, "cut at {cut}");
        }
    }
}
