//! One attempt at a model server: from the request to the complete answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clawk_core::ports::{
    AudioRecording, AudioTranscript, BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion,
    ModelProvider, ProviderError, SpokenAudio, TextEmbeddings, Usage,
};
use clawk_egress::{EgressError, Response};
use tokio_util::sync::CancellationToken;

use crate::draft::{AnswerContext, Draft, OnDelta, estimate};
use crate::endpoint::Endpoint;
use crate::fault::AttemptFault;
use crate::sse::{Decoder, Event};
use crate::state::StateOwner;
use crate::wire::{RequestContext, opens_thought, wants_written_thoughts};
use crate::{anthropic, embeddings, openai, responses, speech, window};

/// Largest event of a stream, in bytes.
const EVENT_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Longest wait after a complete answer: for the token counts, or, if they are known, for the stream's regular end.
const COUNTS_WAIT: Duration = Duration::from_secs(2);
const END_WAIT: Duration = Duration::from_millis(250);

/// The API dialect that a server uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiDialect {
    OpenAi,
    /// OpenAI's Responses API.
    Responses,
    Anthropic,
}

/// A model server over HTTP.
#[derive(Debug)]
pub(crate) struct HttpProvider {
    pub(crate) endpoint: Endpoint,
    pub(crate) dialect: ApiDialect,
    pub(crate) model: String,
    pub(crate) streaming: bool,
    /// Set when the server's template opened a thought before this model's answer began.
    pub(crate) opens_thought: AtomicBool,
}

impl ModelProvider for HttpProvider {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(self.attempt_request(request, on_delta, cancel))
    }

    fn embed_texts<'a>(
        &'a self,
        model: &'a str,
        dimensions: Option<u64>,
        texts: &'a [String],
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<TextEmbeddings, ProviderError>> {
        Box::pin(async move {
            let done = match self.dialect {
                ApiDialect::OpenAi | ApiDialect::Responses => {
                    embeddings::embed_texts(&self.endpoint, (model, dimensions), texts, cancel).await
                }
                ApiDialect::Anthropic => Err((
                    AttemptFault::new(
                        FaultKind::Rejected,
                        "this protocol has no embeddings; name a provider that speaks `openai-compatible`",
                    ),
                    None,
                )),
            };
            done.map_err(|(fault, usage)| self.endpoint.provider_error(fault, usage))
        })
    }

    fn transcribe_audio<'a>(
        &'a self,
        audio: &'a AudioRecording,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<AudioTranscript, ProviderError>> {
        Box::pin(async move {
            let done = match self.dialect {
                ApiDialect::OpenAi | ApiDialect::Responses => {
                    speech::transcribe_audio(&self.endpoint, &self.model, audio, cancel).await
                }
                ApiDialect::Anthropic => Err(no_speech()),
            };
            done.map_err(|(fault, usage)| self.endpoint.provider_error(fault, usage))
        })
    }

    fn synthesize_speech<'a>(
        &'a self,
        voice: &'a str,
        text: &'a str,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<SpokenAudio, ProviderError>> {
        Box::pin(async move {
            let done = match self.dialect {
                ApiDialect::OpenAi | ApiDialect::Responses => {
                    speech::speak_text(&self.endpoint, (&self.model, voice), text, cancel).await
                }
                ApiDialect::Anthropic => Err(no_speech()),
            };
            done.map_err(|(fault, usage)| self.endpoint.provider_error(fault, usage))
        })
    }

    fn window_tokens(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(async move {
            match self.dialect {
                ApiDialect::OpenAi | ApiDialect::Responses => {
                    window::ask_window(&self.endpoint, "/chat/completions", &self.model).await
                }
                ApiDialect::Anthropic => None,
            }
        })
    }

    fn check_reachable(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        let last = match self.dialect {
            ApiDialect::OpenAi | ApiDialect::Responses => "/chat/completions",
            ApiDialect::Anthropic => "/messages",
        };
        Box::pin(async move {
            let reached = self.endpoint.check_reachable(last).await;
            reached.map_err(|fault| self.endpoint.provider_error(fault, None))
        })
    }
}

fn no_speech() -> (AttemptFault, Option<Usage>) {
    let why = "this protocol has no speech; name a provider that speaks `openai-compatible`";
    (AttemptFault::new(FaultKind::Rejected, why), None)
}

impl HttpProvider {
    /// Returns the dialect of this request. A refusal may have asked for another dialect than the configured one.
    const fn dialect_of(&self, request: &InferRequest) -> ApiDialect {
        match self.dialect {
            ApiDialect::OpenAi if request.adaptation.responses_api => ApiDialect::Responses,
            ApiDialect::OpenAi => ApiDialect::OpenAi,
            ApiDialect::Responses => ApiDialect::Responses,
            ApiDialect::Anthropic => ApiDialect::Anthropic,
        }
    }

    fn state_owner(&self) -> StateOwner<'_> {
        StateOwner {
            provider: &self.endpoint.name,
            host: self.endpoint.url.host_str().unwrap_or_default(),
            model: &self.model,
        }
    }

    async fn attempt_request(
        &self,
        request: &InferRequest,
        on_delta: OnDelta<'_>,
        cancel: &CancellationToken,
    ) -> Result<ModelCompletion, ProviderError> {
        let dialect = self.dialect_of(request);
        let context = RequestContext {
            request,
            owner: self.state_owner(),
            streaming: self.streaming,
        };
        let (body, prefix) = match dialect {
            ApiDialect::OpenAi => (openai::request_body(context), None),
            ApiDialect::Responses => (responses::request_body(context), None),
            ApiDialect::Anthropic => {
                let (body, prefix) = anthropic::request_body(context);
                (body, Some(prefix))
            }
        };
        let url = match dialect {
            ApiDialect::Responses => responses::responses_url(&self.endpoint.url),
            ApiDialect::OpenAi | ApiDialect::Anthropic => self.endpoint.url.clone(),
        };
        let body = Bytes::from(body.to_string());
        let request_bytes = body.len();
        // Dropping the future drops the connection.
        let head = cancel.run_until_cancelled(self.endpoint.post_to(url, body)).await;
        let response = head
            .unwrap_or_else(|| Err(AttemptFault::cancelled()))
            .map_err(|fault| {
                let spent = sent_only(fault.kind, request_bytes);
                self.endpoint.provider_error(fault, spent)
            })?;

        // From here on the server works. The cost counts even if the answer never arrives.
        let mut draft = match dialect {
            ApiDialect::OpenAi | ApiDialect::Responses => {
                let learnt = self.opens_thought.load(Ordering::Relaxed);
                Draft::with_thoughts(learnt || opens_thought(&self.model))
            }
            ApiDialect::Anthropic => Draft::default(),
        };
        // Without streaming, no pieces are reported.
        let told: OnDelta<'_> = if self.streaming { on_delta } else { &|_| {} };
        let read = self.read((dialect, response), &mut draft, told, cancel).await;
        if read.is_ok() {
            draft.end_text(told);
        }
        if draft.was_opened() {
            self.opens_thought.store(true, Ordering::Relaxed);
        }
        if wants_written_thoughts(&self.model) {
            openai::answer::keep_written_thoughts(&mut draft);
        }
        let spent = draft.usage(request_bytes);
        let context = AnswerContext {
            request,
            request_bytes,
            owner: self.state_owner(),
            prefix,
        };
        read.and_then(|()| draft.finish(context))
            .map_err(|fault| self.endpoint.provider_error(fault, Some(spent)))
    }

    /// Reads the answer in the format that arrives. Servers send formats that differ from the request and from their own headers.
    async fn read(
        &self,
        (dialect, mut response): (ApiDialect, Response),
        draft: &mut Draft,
        on_delta: OnDelta<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), AttemptFault> {
        let mut decoder = Decoder::new(EVENT_MAX_BYTES);
        let mut begun = false;
        loop {
            let piece = match (draft.stop.is_some(), draft.is_counted()) {
                (false, _) => next(&mut response, cancel).await?,
                // The answer is complete: later errors do not change it.
                (true, counted) => {
                    let wait = if counted { END_WAIT } else { COUNTS_WAIT };
                    let rest = tokio::time::timeout(wait, next(&mut response, cancel)).await;
                    rest.unwrap_or(Ok(None)).unwrap_or(None) // silent-ok: as above
                }
            };
            let Some(piece) = piece else {
                let last = decoder.finish(|event| apply_event(dialect, draft, &event, on_delta));
                return match last {
                    Err(_) if draft.stop.is_some() => Ok(()),
                    last => last,
                };
            };
            if !begun {
                let first = piece.iter().find(|byte| !byte.is_ascii_whitespace());
                begun = first.is_some();
                if first == Some(&b'<') {
                    return Err(web_page());
                }
            }
            match decoder.push(&piece, |event| apply_event(dialect, draft, &event, on_delta)) {
                // A fault after a complete answer concerns the token counts only. A retry would cost the same again.
                Err(_) if draft.stop.is_some() => return Ok(()),
                read => read?,
            }
        }
    }
}

fn apply_event(
    dialect: ApiDialect,
    draft: &mut Draft,
    event: &Event,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    match dialect {
        ApiDialect::OpenAi => openai::answer::take_event(draft, event, on_delta),
        ApiDialect::Responses => responses::answer::take_event(draft, event, on_delta),
        ApiDialect::Anthropic => anthropic::answer::take_event(draft, event, on_delta),
    }
}

/// Returns the usage of a request whose answer did not begin: the sent tokens, if the server may have worked on the request.
fn sent_only(kind: FaultKind, request_bytes: usize) -> Option<Usage> {
    matches!(kind, FaultKind::Timeout | FaultKind::Cut | FaultKind::Cancelled).then(|| Usage {
        input_tokens: estimate(request_bytes),
        estimated: true,
        ..Usage::default()
    })
}

/// Returns the fault for a web page, for example of a login or a proxy. It is not retried, because the same page would come again.
fn web_page() -> AttemptFault {
    let why = "the server answered with a web page in the place of an answer; check `endpoint`, and whether a proxy or a login stands before it";
    AttemptFault::new(FaultKind::Rejected, why)
}

pub(crate) async fn next(
    response: &mut Response,
    cancel: &CancellationToken,
) -> Result<Option<Bytes>, AttemptFault> {
    match cancel.run_until_cancelled(response.chunk()).await {
        None => Err(AttemptFault::cancelled()),
        Some(Err(EgressError::Broken(_))) => Err(AttemptFault::cut()),
        Some(piece) => Ok(piece?),
    }
}

/// Returns the fault for a complete answer that can't be parsed. An answer that ends too early counts as interrupted, any other as
/// malformed.
pub(crate) fn unreadable_answer(error: serde_json::Error) -> AttemptFault {
    if error.is_eof() {
        return AttemptFault::cut();
    }
    AttemptFault::malformed(format!("the answer is not what was agreed: {error}"))
}
