//! `wasi:http/outgoing-handler`: every request of a guest is sent over the call's own network access, and nowhere else.
//!
//! The network access is the egress proxy, reached through memory. It checks the name, connects, does TLS, inserts secrets and
//! removes them from answers, and records the connection. This module only implements HTTP/1.1 in absolute form, and the guest's
//! timeouts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper::client::conn::http1;
use tokio::time::{Instant, Sleep};
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use crate::launch::{EgressGate, EgressServerHandle};

/// The header of a refusal by the proxy. Only the proxy can set it.
const REFUSED: &str = "x-clawk-refused";

/// The maximum number of simultaneous requests of one guest, including those whose answers are still being read.
const MAX_REQUESTS: usize = 32;

/// The size of the buffer between guest and proxy, in each direction, in bytes.
const LANE_BYTES: usize = 64 << 10;

/// The maximum size of an answer's head, in bytes.
const MAX_HEAD_BYTES: usize = 128 << 10;

/// How many bytes of a body a guest can write at once.
const PIECE_BYTES: usize = 64 << 10;

/// The default time limit for a connection or an answer, in milliseconds.
const PATIENCE_MS: u64 = 120_000;

/// The requests of a guest.
pub(super) struct GuestRequests {
    gate: Option<EgressGate>,
    open: Arc<AtomicUsize>,
}

impl GuestRequests {
    pub(super) fn new(gate: Option<EgressGate>) -> Self {
        Self {
            gate,
            open: Arc::default(),
        }
    }
}

/// One slot of [`MAX_REQUESTS`].
struct GuestRequestSlot(Arc<AtomicUsize>);

impl GuestRequestSlot {
    fn acquire(open: &Arc<AtomicUsize>) -> Result<Self, Error> {
        let seat = Self(Arc::clone(open));
        match open.fetch_add(1, Ordering::Relaxed) < MAX_REQUESTS {
            true => Ok(seat),
            false => Err(Error::ConnectionLimitReached),
        }
    }
}

impl Drop for GuestRequestSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

type GuestConnectionDriver = Box<dyn Future<Output = Result<(), Error>> + Send>;
type GuestResponse = Result<(Response<WasiBody>, GuestConnectionDriver), Error>;

impl WasiHttpHooks for GuestRequests {
    fn send_request(
        &mut self,
        request: Request<WasiBody>,
        options: Option<RequestOptions>,
        _: GuestConnectionDriver,
    ) -> Box<dyn Future<Output = GuestResponse> + Send> {
        let seat = GuestRequestSlot::acquire(&self.open);
        let gate = self.gate.clone();
        Box::new(async move {
            let gate = gate.ok_or(Error::HttpRequestDenied)?;
            send_guest_request(&gate, seat?, request, options.unwrap_or_default()).await
        })
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        PIECE_BYTES
    }
}

/// Sends one request over its own stream. The future in the answer transfers the bytes; the stream is cut when it is dropped.
async fn send_guest_request(
    gate: &EgressGate,
    seat: GuestRequestSlot,
    request: Request<WasiBody>,
    options: RequestOptions,
) -> GuestResponse {
    let patience = |given: Option<Duration>| {
        let most = Duration::from_millis(PATIENCE_MS);
        given.map_or(most, |given| given.min(most))
    };
    let until = Instant::now() + patience(options.connect_timeout) + patience(options.first_byte_timeout);
    let (ours, theirs) = tokio::io::duplex(LANE_BYTES);
    let lane: EgressServerHandle = gate.serve_lane(theirs).ok_or(Error::HttpRequestDenied)?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake::<_, WasiBody>(TokioIo::new(ours))
        .await
        .map_err(Error::Hyper)?;
    let mut moving: Pin<GuestConnectionDriver> = Box::pin(async move {
        let _held = (lane, seat);
        connection.await.map_err(Error::Hyper)
    });
    let mut answering = std::pin::pin!(sender.send_request(request));
    let mut moved = false;
    let answered = tokio::time::timeout_at(until, async {
        loop {
            tokio::select! {
                answer = &mut answering => break answer,
                _ = &mut moving, if !moved => moved = true,
            }
        }
    });
    let answer = answered
        .await
        .map_err(|_elapsed| Error::ConnectionReadTimeout)?
        .map_err(Error::Hyper)?;
    if let Some(code) = answer.headers().get(REFUSED) {
        return Err(refusal_error(code.as_bytes(), answer.status().as_u16()));
    }
    let between = patience(options.between_bytes_timeout);
    let body = |body| IdleLimitedBody::new(body, between).boxed_unsync();
    let ending: GuestConnectionDriver = match moved {
        true => Box::new(async { Ok(()) }),
        false => Box::new(moving),
    };
    Ok((answer.map(body), ending))
}

/// Converts the proxy's refusal to a WASI error.
fn refusal_error(code: &[u8], status: u16) -> Error {
    match (code, status) {
        (b"dns", 504) => Error::DnsTimeout,
        (b"dns", _) => Error::DnsError {
            rcode: None,
            info_code: None,
        },
        (b"connect", 504) => Error::ConnectionTimeout,
        (b"connect", _) => Error::ConnectionRefused,
        (b"tls", 502) => Error::TlsProtocolError,
        (b"answer", 504) => Error::HttpResponseTimeout,
        (b"answer", _) => Error::HttpProtocolError,
        _ => Error::HttpRequestDenied,
    }
}

/// An answer's body that fails if it is silent for longer than the guest's timeout.
struct IdleLimitedBody {
    body: hyper::body::Incoming,
    between: Duration,
    silence: Pin<Box<Sleep>>,
}

impl IdleLimitedBody {
    fn new(body: hyper::body::Incoming, between: Duration) -> Self {
        Self {
            body,
            between,
            silence: Box::pin(tokio::time::sleep(between)),
        }
    }
}

impl Body for IdleLimitedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let next = Instant::now() + self.between;
                self.silence.as_mut().reset(next);
                Poll::Ready(frame.map(|frame| frame.map_err(Error::Hyper)))
            }
            Poll::Pending => match self.silence.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Some(Err(Error::ConnectionReadTimeout))),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
