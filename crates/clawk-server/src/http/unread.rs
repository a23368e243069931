//! Reads what a refused request still sends. hyper closes a connection whose request body was not read to its end, without a word: a client that
//! writes head and body apart, and its next request on the same connection, saw that request fail.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use futures::StreamExt as _;
use http::HeaderValue;
use http::header::CONNECTION;
use hyper::body::{Frame, SizeHint};

/// The most that is read of a refused request's body, bytes.
const MOST_UNREAD_BYTES: usize = 64 * 1024;
/// How long a refusal waits for the rest of the body, milliseconds.
const UNREAD_BODY_MS: u64 = 1_000;

/// A request body that two hold: the handler, and the guard that reads what the handler left.
#[derive(Clone)]
pub(super) struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    /// Shares `body`.
    pub(super) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    fn with_body<T>(&self, read: impl FnOnce(&mut Body) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether nothing of the body is left, after reading at most [`MOST_UNREAD_BYTES`] of it.
    async fn read_to_end(self) -> bool {
        let mut pieces = Body::new(self).into_data_stream();
        let mut room = MOST_UNREAD_BYTES;
        while let Some(piece) = pieces.next().await {
            match piece.map(|bytes| room.checked_sub(bytes.len())) {
                Ok(Some(left)) => room = left,
                Ok(None) | Err(_) => return false, // silent-ok: the connection closes
            }
        }
        true
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.with_body(|body| Pin::new(body).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.with_body(|body| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.with_body(|body| body.size_hint())
    }
}

/// Makes the connection of a refused request usable again, or says with `Connection: close` that it isn't. A client that waits for `100 Continue`
/// is not asked for its body.
pub(super) async fn finish_unread_body(body: SharedBody, expects_continue: bool, response: &mut Response) {
    if !response.status().is_client_error() || body.is_end_stream() {
        return;
    }
    let limit = Duration::from_millis(UNREAD_BODY_MS);
    let reusable = !expects_continue
        && tokio::time::timeout(limit, body.read_to_end())
            .await
            .is_ok_and(|ended| ended);
    if !reusable {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
}
