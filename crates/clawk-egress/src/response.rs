//! A response whose body is read with limits.

use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use reqwest::Url;
use tokio::time::Instant;

use crate::error::classify_error;
use crate::record::OpenConnection;
use crate::{ClientDeadlines, DeadlinePhase, EgressError};

/// The head of a response. Read the body with [`Response::chunk`] or [`Response::bytes`]. Dropping it closes the connection.
pub struct Response {
    inner: reqwest::Response,
    clock: Clock,
    left: u64,
    max_bytes: u64,
    /// The record, which is completed when this is dropped.
    open: OpenConnection,
}

impl Response {
    pub(crate) fn new(
        inner: reqwest::Response,
        clock: Clock,
        max_bytes: u64,
        open: OpenConnection,
    ) -> Result<Self, EgressError> {
        if inner.content_length().is_some_and(|length| length > max_bytes) && inner.status().is_success() {
            return Err(EgressError::TooLarge(max_bytes));
        }
        Ok(Self {
            inner,
            clock,
            left: max_bytes,
            max_bytes,
            open,
        })
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        self.inner.status()
    }

    /// The response's headers.
    pub fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    /// The URL that answered, after redirects.
    pub fn url(&self) -> &Url {
        self.inner.url()
    }

    /// Reads the next piece of the body; `None` at its regular end.
    ///
    /// # Errors
    /// [`EgressError::TooLarge`], [`EgressError::Timeout`] or [`EgressError::Broken`] (also if the body ends early).
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, EgressError> {
        let piece = self
            .clock
            .run_limited(DeadlinePhase::Idle, self.inner.chunk())
            .await?;
        let Some(piece) = piece.map_err(|error| classify_error(error, self.clock.deadlines.connect_ms))?
        else {
            return Ok(None);
        };
        let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        self.open.counts.bytes_in.fetch_add(length, Ordering::Relaxed);
        self.left = self
            .left
            .checked_sub(length)
            .ok_or(EgressError::TooLarge(self.max_bytes))?;
        Ok(Some(piece))
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// The same errors as [`Response::chunk`].
    pub async fn bytes(mut self) -> Result<Bytes, EgressError> {
        let mut body = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            body.extend_from_slice(&piece);
        }
        Ok(body.freeze())
    }

    /// Reads the first `max_bytes` bytes of the body. Errors are ignored: this is for bodies of error answers.
    pub async fn read_beginning(mut self, max_bytes: usize) -> Bytes {
        let mut body = BytesMut::new();
        while body.len() < max_bytes {
            // silent-ok: only the data before the break can be shown
            let Ok(Some(piece)) = self.chunk().await else {
                break;
            };
            body.extend_from_slice(&piece);
        }
        body.truncate(max_bytes);
        body.freeze()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({})", self.status())
    }
}

/// The deadlines of one exchange.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) deadlines: ClientDeadlines,
    until: Instant,
}

impl Clock {
    pub(crate) fn start(deadlines: ClientDeadlines) -> Self {
        Self {
            deadlines,
            until: Instant::now() + Duration::from_millis(deadlines.total_ms),
        }
    }

    /// Runs `work` for at most as long as `phase` allows, and never past the deadline of the whole exchange.
    pub(crate) async fn run_limited<T>(
        &self,
        phase: DeadlinePhase,
        work: impl Future<Output = T>,
    ) -> Result<T, EgressError> {
        let deadlines = self.deadlines;
        let ms = match phase {
            DeadlinePhase::Connect => deadlines.connect_ms,
            DeadlinePhase::FirstByte => deadlines.first_byte_ms,
            DeadlinePhase::Idle => deadlines.idle_ms,
            DeadlinePhase::Total => deadlines.total_ms,
        };
        let end = Instant::now() + Duration::from_millis(ms);
        let (end, phase, ms) = if end > self.until {
            (self.until, DeadlinePhase::Total, deadlines.total_ms)
        } else {
            (end, phase, ms)
        };
        tokio::time::timeout_at(end, work)
            .await
            .map_err(|_| EgressError::Timeout { phase, ms })
    }
}
