//! One attempt at a model server, from the request to the whole answer.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clawk_egress::{EgressError, Response};
use clawk_kernel::ports::{
    Audio, Completion, Delta, Embedded, FaultKind, InferRequest, Later, Provider, ProviderError, Spoken,
    Transcribed, Usage,
};
use http::header::CONTENT_TYPE;
use tokio_util::sync::CancellationToken;

use crate::draft::{Draft, OnDelta};
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::sse::{Decoder, Event};
use crate::{anthropic, embeddings, openai, speech};

/// Largest single event of a stream.
const EVENT_MAX_BYTES: usize = 8 * 1024 * 1024;
/// How long a whole answer waits for its accounting, and a counted one for the stream's proper end.
const COUNTS_WAIT: Duration = Duration::from_secs(2);
const END_WAIT: Duration = Duration::from_millis(250);

/// What the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

/// A model server over HTTP.
#[derive(Debug)]
pub(crate) struct HttpProvider {
    pub(crate) endpoint: Endpoint,
    pub(crate) dialect: Dialect,
    pub(crate) model: String,
    pub(crate) streaming: bool,
}

impl Provider for HttpProvider {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(Delta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> Later<'a, Result<Completion, ProviderError>> {
        Box::pin(self.attempt(request, on_delta, cancel))
    }

    fn embed<'a>(
        &'a self,
        model: &'a str,
        dimensions: Option<u64>,
        texts: &'a [String],
        cancel: &'a CancellationToken,
    ) -> Later<'a, Result<Embedded, ProviderError>> {
        Box::pin(async move {
            let done = match self.dialect {
                Dialect::OpenAi => {
                    embeddings::embed(&self.endpoint, (model, dimensions), texts, cancel).await
                }
                Dialect::Anthropic => Err((
                    Fault::new(
                        FaultKind::Rejected,
                        "this protocol has no embeddings; name a provider that speaks `openai-compatible`",
                    ),
                    None,
                )),
            };
            done.map_err(|(fault, usage)| self.endpoint.error(fault, usage))
        })
    }

    fn transcribe<'a>(
        &'a self,
        audio: &'a Audio,
        cancel: &'a CancellationToken,
    ) -> Later<'a, Result<Transcribed, ProviderError>> {
        Box::pin(async move {
            let done = match self.dialect {
                Dialect::OpenAi => speech::transcribe(&self.endpoint, &self.model, audio, cancel).await,
                Dialect::Anthropic => Err(no_speech()),
            };
            done.map_err(|(fault, usage)| self.endpoint.error(fault, usage))
        })
    }

    fn speak<'a>(
        &'a self,
        voice: &'a str,
        text: &'a str,
        cancel: &'a CancellationToken,
    ) -> Later<'a, Result<Spoken, ProviderError>> {
        Box::pin(async move {
            let done = match self.dialect {
                Dialect::OpenAi => speech::speak(&self.endpoint, (&self.model, voice), text, cancel).await,
                Dialect::Anthropic => Err(no_speech()),
            };
            done.map_err(|(fault, usage)| self.endpoint.error(fault, usage))
        })
    }

    fn reach(&self) -> Later<'_, Result<(), ProviderError>> {
        let last = match self.dialect {
            Dialect::OpenAi => "/chat/completions",
            Dialect::Anthropic => "/messages",
        };
        Box::pin(async move {
            let reached = self.endpoint.reach(last).await;
            reached.map_err(|fault| self.endpoint.error(fault, None))
        })
    }
}

fn no_speech() -> (Fault, Option<Usage>) {
    let why = "this protocol has no speech; name a provider that speaks `openai-compatible`";
    (Fault::new(FaultKind::Rejected, why), None)
}

impl HttpProvider {
    async fn attempt(
        &self,
        request: &InferRequest,
        on_delta: OnDelta<'_>,
        cancel: &CancellationToken,
    ) -> Result<Completion, ProviderError> {
        let body = match self.dialect {
            Dialect::OpenAi => openai::body(request, &self.model, self.streaming, &self.endpoint.url),
            Dialect::Anthropic => anthropic::body(request, &self.model, self.streaming),
        };
        let body = Bytes::from(body.to_string());
        let request_bytes = body.len();
        // Dropping the future drops the connection.
        let head = cancel.run_until_cancelled(self.endpoint.post(body)).await;
        let response = head
            .unwrap_or_else(|| Err(Fault::cancelled()))
            .map_err(|fault| self.endpoint.error(fault, None))?;

        // From here on the server works, and what it did counts whether or not the answer arrives.
        let mut draft = Draft::default();
        let read = self.read(response, &mut draft, on_delta, cancel).await;
        let spent = draft.usage(request_bytes);
        read.and_then(|()| draft.finish(request, request_bytes, &self.model))
            .map_err(|fault| self.endpoint.error(fault, Some(spent)))
    }

    /// By what the server says it sends, not by what was asked for: both occur.
    async fn read(
        &self,
        response: Response,
        draft: &mut Draft,
        on_delta: OnDelta<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok()); // silent-ok: then as asked
        let streamed = match kind {
            Some(kind) if kind.contains("text/event-stream") => true,
            Some(kind) if kind.contains("json") => false,
            _ => self.streaming,
        };
        if streamed {
            return self.read_stream(response, draft, on_delta, cancel).await;
        }
        let mut response = response;
        let mut body = BytesMut::new();
        while let Some(piece) = next(&mut response, cancel).await? {
            body.extend_from_slice(&piece);
        }
        // Not told piece by piece: nobody asked for a stream.
        match self.dialect {
            Dialect::OpenAi => openai::whole(draft, &body, &|_| {}),
            Dialect::Anthropic => anthropic::whole(draft, &body, &|_| {}),
        }
    }

    async fn read_stream(
        &self,
        mut response: Response,
        draft: &mut Draft,
        on_delta: OnDelta<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), Fault> {
        let mut decoder = Decoder::new(EVENT_MAX_BYTES);
        loop {
            let piece = match (draft.stop.is_some(), draft.is_counted()) {
                (false, _) => next(&mut response, cancel).await?,
                // The answer is whole: nothing that happens now can take it away.
                (true, counted) => {
                    let wait = if counted { END_WAIT } else { COUNTS_WAIT };
                    let rest = tokio::time::timeout(wait, next(&mut response, cancel)).await;
                    rest.unwrap_or(Ok(None)).unwrap_or(None) // silent-ok: as above
                }
            };
            let Some(piece) = piece else { return Ok(()) };
            match decoder.push(&piece, |event| self.take(draft, &event, on_delta)) {
                // What is wrong behind a whole answer is wrong with its accounting; asking again would be paid again.
                Err(_) if draft.stop.is_some() => return Ok(()),
                read => read?,
            }
        }
    }

    fn take(&self, draft: &mut Draft, event: &Event, on_delta: OnDelta<'_>) -> Result<(), Fault> {
        match self.dialect {
            Dialect::OpenAi => openai::event(draft, event, on_delta),
            Dialect::Anthropic => anthropic::event(draft, event, on_delta),
        }
    }
}

pub(crate) async fn next(
    response: &mut Response,
    cancel: &CancellationToken,
) -> Result<Option<Bytes>, Fault> {
    match cancel.run_until_cancelled(response.chunk()).await {
        None => Err(Fault::cancelled()),
        Some(Err(EgressError::Broken(_))) => Err(Fault::cut()),
        Some(piece) => Ok(piece?),
    }
}

/// A whole answer that is no answer: cut when it ends too early, else not what was agreed.
pub(crate) fn unreadable(error: serde_json::Error) -> Fault {
    if error.is_eof() {
        return Fault::cut();
    }
    Fault::malformed(format!("the answer is not what was agreed: {error}"))
}
