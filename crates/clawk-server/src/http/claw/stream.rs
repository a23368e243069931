//! Event streams: one for notifications, and one for each request with a streamed answer. Sent events are kept for a while, so a
//! client can continue after a broken connection.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use tokio_util::sync::CancellationToken;

use crate::http::auth::ActiveTokens;
use crate::transport::outbox::OutgoingMessages;

/// Bytes of events kept per stream, besides the latest event.
const KEPT_BYTES: usize = 1 << 20;
/// The number of ended request streams that are kept.
const KEPT_STREAMS: usize = 16;
/// How often an idle stream sends a keep-alive.
const QUIET: Duration = Duration::from_secs(15);
/// The reconnection delay sent to browsers, milliseconds.
const RETRY_MS: u32 = 1_000;

/// The number of the notification stream.
const NOTICES: u64 = 0;

/// An event's id, `STREAM-NUMBER`. Streams count from 0, events from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamEventId {
    stream: u64,
    after: u64,
}

impl StreamEventId {
    pub(super) fn read(text: &str) -> Option<Self> {
        let (stream, after) = text.split_once('-')?;
        Some(Self {
            stream: stream.parse().ok()?, // silent-ok: such an id names nothing
            after: after.parse().ok()?,   // silent-ok: as above
        })
    }
}

impl fmt::Display for StreamEventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stream, self.after)
    }
}

/// The streams of one session.
#[derive(Debug)]
pub(super) struct SessionStreams {
    notices: Arc<ResumableStream>,
    requests: Mutex<RequestStreams>,
}

#[derive(Debug, Default)]
struct RequestStreams {
    last: u64,
    streams: BTreeMap<u64, Arc<ResumableStream>>,
}

/// One stream with its kept events.
#[derive(Debug)]
pub(super) struct ResumableStream {
    number: u64,
    outlet: Arc<OutgoingMessages>,
    log: Mutex<Log>,
    /// Held by the reader that takes messages from the outbox.
    taking: tokio::sync::Mutex<()>,
    /// Fires when another reader takes over.
    reader: Mutex<CancellationToken>,
}

#[derive(Debug, Default)]
struct Log {
    /// The number of events dropped from the front.
    dropped: u64,
    events: VecDeque<Bytes>,
    bytes: usize,
    finished: bool,
}

/// Reads a stream from a position on. A new reader replaces the previous one.
#[derive(Debug)]
pub(super) struct ResumableStreamReader {
    stream: Arc<ResumableStream>,
    after: u64,
    replaced: CancellationToken,
}

impl SessionStreams {
    pub(super) fn new(notices: Arc<OutgoingMessages>) -> Self {
        Self {
            notices: Arc::new(ResumableStream::new(NOTICES, notices)),
            requests: Mutex::default(),
        }
    }

    fn lock_requests(&self) -> MutexGuard<'_, RequestStreams> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the notification stream: the unread events, then new ones.
    pub(super) fn notice_reader(&self) -> ResumableStreamReader {
        let after = self.notices.lock_log().last_number();
        ResumableStreamReader::from_stream(&self.notices, after)
    }

    /// Begins the stream of a request. `first` was already taken from the outbox.
    pub(super) fn begin_stream(
        &self,
        outlet: Arc<OutgoingMessages>,
        first: Vec<u8>,
    ) -> ResumableStreamReader {
        let mut requests = self.lock_requests();
        requests.last += 1;
        let number = requests.last;
        let stream = Arc::new(ResumableStream::new(number, outlet));
        stream.lock_log().append_batch(first);
        requests.streams.insert(number, Arc::clone(&stream));
        // Only ended streams are dropped, oldest first; a request that still waits for an answer keeps its stream.
        let surplus = requests.streams.len().saturating_sub(KEPT_STREAMS);
        let ended = requests
            .streams
            .iter()
            .filter(|(_, stream)| stream.lock_log().finished);
        let ended: Vec<u64> = ended.map(|(number, _)| *number).take(surplus).collect();
        for number in ended {
            requests.streams.remove(&number);
        }
        ResumableStreamReader::from_stream(&stream, 0)
    }

    /// Continues a stream after an event. `None`: that event was dropped or never existed.
    pub(super) fn resume_stream(&self, place: StreamEventId) -> Option<ResumableStreamReader> {
        let stream = match place.stream {
            NOTICES => Arc::clone(&self.notices),
            number => self.lock_requests().streams.get(&number).cloned()?,
        };
        {
            let log = stream.lock_log();
            if place.after < log.dropped || place.after > log.last_number() {
                return None;
            }
        }
        Some(ResumableStreamReader::from_stream(&stream, place.after))
    }
}

impl ResumableStream {
    fn new(number: u64, outlet: Arc<OutgoingMessages>) -> Self {
        Self {
            number,
            outlet,
            log: Mutex::default(),
            taking: tokio::sync::Mutex::default(),
            reader: Mutex::default(),
        }
    }

    fn lock_log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event after this number; `None` at the end.
    async fn wait_event_after(&self, after: u64) -> Option<Bytes> {
        let _taking = self.taking.lock().await;
        loop {
            {
                let log = self.lock_log();
                if let Some(event) = log.event_after(after) {
                    return Some(event);
                }
                if log.finished {
                    return None;
                }
            }
            match self.outlet.next().await {
                Some(batch) => self.lock_log().append_batch(batch),
                None => self.lock_log().finished = true,
            }
        }
    }
}

impl Log {
    /// The number of the latest event.
    fn last_number(&self) -> u64 {
        self.dropped + u64::try_from(self.events.len()).unwrap_or(u64::MAX)
    }

    fn event_after(&self, after: u64) -> Option<Bytes> {
        let at = after.checked_sub(self.dropped)?;
        self.events.get(usize::try_from(at).ok()?).cloned() // silent-ok: a u64 that is no index is beyond the end
    }

    /// Adds complete messages, and drops the oldest ones above the limit.
    fn append_batch(&mut self, batch: Vec<u8>) {
        let batch = Bytes::from(batch);
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', &batch) {
            let line = batch.slice(from..end);
            from = end + 1;
            self.bytes += line.len();
            self.events.push_back(line);
        }
        while self.bytes > KEPT_BYTES && self.events.len() > 1 {
            let oldest = self.events.pop_front().unwrap_or_default();
            self.bytes -= oldest.len();
            self.dropped += 1;
        }
    }
}

impl ResumableStreamReader {
    fn from_stream(stream: &Arc<ResumableStream>, after: u64) -> Self {
        let replaced = CancellationToken::new();
        {
            let mut reader = stream.reader.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *reader, replaced.clone()).cancel();
        }
        stream.outlet.set_heard(true);
        Self {
            stream: Arc::clone(stream),
            after,
            replaced,
        }
    }

    fn event_id(&self) -> StreamEventId {
        StreamEventId {
            stream: self.stream.number,
            after: self.after,
        }
    }

    /// The next piece of the body: an event or a keep-alive; `None` at the end.
    async fn next_piece(&mut self, access: &ActiveTokens) -> Option<Bytes> {
        tokio::select! {
            biased;
            () = self.replaced.cancelled() => None,
            () = access.wait_replaced() => None,
            event = self.stream.wait_event_after(self.after) => {
                let event = event?;
                self.after += 1;
                Some(encode_event(&self.event_id().to_string(), &event))
            }
            () = tokio::time::sleep(QUIET) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}

impl Drop for ResumableStreamReader {
    fn drop(&mut self) {
        if !self.replaced.is_cancelled() {
            self.stream.outlet.set_heard(false);
        }
    }
}

/// Writes an event. A message contains no newline, so it is one line of data.
fn encode_event(id: &str, message: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(message.len() + 48);
    event.extend_from_slice(b"id: ");
    event.extend_from_slice(id.as_bytes());
    event.extend_from_slice(b"\ndata: ");
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// The stream as a response.
pub(super) fn stream_response(reader: ResumableStreamReader, access: Arc<ActiveTokens>) -> Response {
    // The position comes with the first byte, so a stream that breaks before its first event can continue too.
    let place = reader.event_id();
    let hello = Bytes::from(format!("retry: {RETRY_MS}\nid: {place}\n\n"));
    let pieces = futures::stream::unfold(
        (Some(hello), reader, access),
        |(hello, mut reader, access)| async {
            let piece = match hello {
                Some(hello) => hello,
                None => reader.next_piece(&access).await?,
            };
            Some((Ok::<Bytes, Infallible>(piece), (None, reader, access)))
        },
    );
    event_stream_response(Body::from_stream(pieces))
}

/// One event without an id: the client can't continue after it.
pub(super) fn single_event_response(message: &[u8]) -> Response {
    let mut event = b"data: ".to_vec();
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event_stream_response(Body::from(event))
}

fn event_stream_response(body: Body) -> Response {
    let kind = HeaderValue::from_static("text/event-stream");
    ([(CONTENT_TYPE, kind)], body).into_response()
}
