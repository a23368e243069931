//! Streams of events: one of notices, and one for each request whose answer is streamed. What was sent is kept for a while, so
//! that a client whose connection broke can go on where it was.

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

/// Bytes of events that are kept of one stream, beside the latest one.
const KEPT_BYTES: usize = 1 << 20;
/// Streams of requests that are kept after their end.
const KEPT_STREAMS: usize = 16;
/// How often a quiet stream says that it is there.
const QUIET: Duration = Duration::from_secs(15);
/// How long a browser waits before it connects again, milliseconds.
const RETRY_MS: u32 = 1_000;

/// The number of the stream of notices.
const NOTICES: u64 = 0;

/// An event's id, `STREAM-NUMBER`: both count from 0, events from 1.
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

/// One stream.
#[derive(Debug)]
pub(super) struct ResumableStream {
    number: u64,
    outlet: Arc<OutgoingMessages>,
    log: Mutex<Log>,
    /// Who takes out of the outlet.
    taking: tokio::sync::Mutex<()>,
    /// Fires for a reader when another one takes its place.
    reader: Mutex<CancellationToken>,
}

#[derive(Debug, Default)]
struct Log {
    /// How many events were dropped from the front.
    dropped: u64,
    events: VecDeque<Bytes>,
    bytes: usize,
    finished: bool,
}

/// Somebody who reads a stream from a place on. A new one takes the place of the one before.
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

    fn requests(&self) -> MutexGuard<'_, RequestStreams> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events from now on, and the unread earlier ones.
    pub(super) fn notices(&self) -> ResumableStreamReader {
        let after = self.notices.log().last();
        ResumableStreamReader::of(&self.notices, after)
    }

    /// The stream of a request; `first` was taken out already.
    pub(super) fn begin(&self, outlet: Arc<OutgoingMessages>, first: Vec<u8>) -> ResumableStreamReader {
        let mut requests = self.requests();
        requests.last += 1;
        let number = requests.last;
        let stream = Arc::new(ResumableStream::new(number, outlet));
        stream.log().append(first);
        requests.streams.insert(number, Arc::clone(&stream));
        // Those that have ended, the oldest first; whoever still waits for an answer keeps its stream.
        let surplus = requests.streams.len().saturating_sub(KEPT_STREAMS);
        let ended = requests
            .streams
            .iter()
            .filter(|(_, stream)| stream.log().finished);
        let ended: Vec<u64> = ended.map(|(number, _)| *number).take(surplus).collect();
        for number in ended {
            requests.streams.remove(&number);
        }
        ResumableStreamReader::of(&stream, 0)
    }

    /// A stream after an event; `None` when that event was dropped, or never was.
    pub(super) fn resume(&self, place: StreamEventId) -> Option<ResumableStreamReader> {
        let stream = match place.stream {
            NOTICES => Arc::clone(&self.notices),
            number => self.requests().streams.get(&number).cloned()?,
        };
        {
            let log = stream.log();
            if place.after < log.dropped || place.after > log.last() {
                return None;
            }
        }
        Some(ResumableStreamReader::of(&stream, place.after))
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

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event after this one; `None` at the end.
    async fn after(&self, after: u64) -> Option<Bytes> {
        let _taking = self.taking.lock().await;
        loop {
            {
                let log = self.log();
                if let Some(event) = log.after(after) {
                    return Some(event);
                }
                if log.finished {
                    return None;
                }
            }
            match self.outlet.next().await {
                Some(batch) => self.log().append(batch),
                None => self.log().finished = true,
            }
        }
    }
}

impl Log {
    /// The number of the latest event.
    fn last(&self) -> u64 {
        self.dropped + u64::try_from(self.events.len()).unwrap_or(u64::MAX)
    }

    fn after(&self, after: u64) -> Option<Bytes> {
        let at = after.checked_sub(self.dropped)?;
        self.events.get(usize::try_from(at).ok()?).cloned() // silent-ok: a u64 that is no index is beyond the end
    }

    /// Takes whole messages, and lets go of the oldest beyond the bound.
    fn append(&mut self, batch: Vec<u8>) {
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
    fn of(stream: &Arc<ResumableStream>, after: u64) -> Self {
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

    fn place(&self) -> StreamEventId {
        StreamEventId {
            stream: self.stream.number,
            after: self.after,
        }
    }

    /// The next piece of the body: an event, or a sign of life; `None` at the end.
    async fn piece(&mut self, access: &ActiveTokens) -> Option<Bytes> {
        tokio::select! {
            biased;
            () = self.replaced.cancelled() => None,
            () = access.replaced() => None,
            event = self.stream.after(self.after) => {
                let event = event?;
                self.after += 1;
                Some(framed(&self.place().to_string(), &event))
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

/// A message has no newline in it, so it is one line of data.
fn framed(id: &str, message: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(message.len() + 48);
    event.extend_from_slice(b"id: ");
    event.extend_from_slice(id.as_bytes());
    event.extend_from_slice(b"\ndata: ");
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// The stream as a response.
pub(super) fn response(reader: ResumableStreamReader, access: Arc<ActiveTokens>) -> Response {
    // The place from the first byte on: a stream that breaks before its first event can go on, too.
    let place = reader.place();
    let hello = Bytes::from(format!("retry: {RETRY_MS}\nid: {place}\n\n"));
    let pieces = futures::stream::unfold(
        (Some(hello), reader, access),
        |(hello, mut reader, access)| async {
            let piece = match hello {
                Some(hello) => hello,
                None => reader.piece(&access).await?,
            };
            Some((Ok::<Bytes, Infallible>(piece), (None, reader, access)))
        },
    );
    events(Body::from_stream(pieces))
}

/// One event without an id, so that a client can't resume after it.
pub(super) fn whole(message: &[u8]) -> Response {
    let mut event = b"data: ".to_vec();
    event.extend_from_slice(message);
    event.extend_from_slice(b"\n\n");
    events(Body::from(event))
}

fn events(body: Body) -> Response {
    let kind = HeaderValue::from_static("text/event-stream");
    ([(CONTENT_TYPE, kind)], body).into_response()
}
