//! Asking models: limits before, the record after, retries with back-off, and the fallback chain in order (CKP §5.2).

use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::{Backoff, Provider as Spec};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::agent::Agent;
use crate::event::{ProviderCompleted, ProviderFailed, Thread, canonical, digest, kind};
use crate::notice::Notice;
use crate::ports::{Completion, Delta, FaultKind, InferRequest, ProviderError, StopReason, Usage};
use crate::quota::NoRoom;
use crate::session::Notices;

/// The longest wait between two attempts, milliseconds (runtime profile §5).
const MAX_DELAY_MS: u64 = 30_000;
/// The longest wait that a server's `Retry-After` or our own rate may impose, milliseconds.
const MAX_IMPOSED_MS: u64 = 60_000;

/// Why no model answered.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    Cancelled,
    /// For people: why, and what would mend it.
    Failed(String),
}

/// Where an inference belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) thread: Thread,
    pub(crate) turn: Uuid,
    pub(crate) notices: &'a Notices,
}

/// The wait before attempt `attempt + 1`, milliseconds; jittered by up to a quarter.
pub(crate) fn backoff_ms(backoff: Backoff, initial_ms: u64, attempt: u32, random: u64) -> u64 {
    let attempt = attempt.max(1);
    let base = match backoff {
        Backoff::Exponential => initial_ms.saturating_mul(1u64 << (attempt - 1).min(20)),
        Backoff::Linear => initial_ms.saturating_mul(u64::from(attempt)),
        Backoff::Constant => initial_ms,
    };
    let base = base.min(MAX_DELAY_MS);
    base - random % (base / 4 + 1)
}

/// One answer, from the first provider of the chain that gives one.
pub(crate) async fn infer(
    agent: &Agent,
    place: Place<'_>,
    provider: &str,
    request: InferRequest,
    cancel: &CancellationToken,
) -> Result<Completion, NoAnswer> {
    let chain = agent.chain(provider);
    let mut troubles = Vec::new();
    for (at, spec) in chain.iter().enumerate() {
        let next = chain.get(at + 1).map(|next| next.name.as_str());
        match exhaust(agent, place, spec, next, &request, cancel).await? {
            Ok(completion) => return Ok(completion),
            Err(trouble) => troubles.push(format!("`{}`: {trouble}", spec.name)),
        }
    }
    Err(NoAnswer::Failed(format!(
        "no provider answered: {}",
        troubles.join("; ")
    )))
}

/// All attempts at one provider. The outer error ends the whole chain, the inner one only this provider.
async fn exhaust(
    agent: &Agent,
    place: Place<'_>,
    spec: &Spec,
    next: Option<&str>,
    request: &InferRequest,
    cancel: &CancellationToken,
) -> Result<Result<Completion, String>, NoAnswer> {
    let retry = spec.retry.clone().unwrap_or_default();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let error = match once(agent, place, spec, attempt, request, cancel).await? {
            Ok(completion) => return Ok(Ok(completion)),
            Err(error) => error,
        };
        let again = error.kind.retryable() && attempt < retry.max_attempts.max(1);
        let imposed = error.retry_after_ms.unwrap_or(0);
        let wait_ms = backoff_ms(
            retry.backoff,
            retry.initial_delay_ms,
            attempt,
            agent.clock().random(),
        )
        .max(imposed);
        if !again || imposed > MAX_IMPOSED_MS {
            if let Some(next) = next {
                tell(place, spec, &error, 0, next).await;
            }
            return Ok(Err(error.message));
        }
        tell(place, spec, &error, wait_ms, &spec.name).await;
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
            () = cancel.cancelled() => return Err(NoAnswer::Cancelled),
        }
    }
}

async fn tell(place: Place<'_>, spec: &Spec, error: &ProviderError, wait_ms: u64, next: &str) {
    let notice = Notice::Retrying {
        provider: spec.name.clone(),
        reason: error.message.clone(),
        wait_ms,
        next: next.to_owned(),
    };
    place.notices.send(notice).await;
}

/// One attempt, reserved before and recorded after.
async fn once(
    agent: &Agent,
    place: Place<'_>,
    spec: &Spec,
    attempt: u32,
    request: &InferRequest,
    cancel: &CancellationToken,
) -> Result<Result<Completion, ProviderError>, NoAnswer> {
    let Some(provider) = agent.providers.get(&spec.name).map(Arc::clone) else {
        return Ok(Err(fault(
            FaultKind::Rejected,
            "is not connected".to_owned(),
            None,
        )));
    };
    let bytes = canonical(request);
    let estimate = u64::try_from(bytes.len() / 4).unwrap_or(u64::MAX);
    let reservation = match agent.ledger.reserve(&spec.name, estimate, agent.scribe.now()) {
        Ok(reservation) => reservation,
        Err(NoRoom::Later { wait_ms }) => {
            return Ok(Err(fault(
                FaultKind::RateLimited,
                "requests_per_minute is used up".to_owned(),
                Some(wait_ms),
            )));
        }
        // A token limit is the operator's word, not a fault: no fallback goes around it.
        Err(NoRoom::Quota(error)) => return Err(NoAnswer::Failed(error.to_string())),
    };
    let request = InferRequest {
        max_output_tokens: reservation.max_output_tokens,
        ..request.clone()
    };
    let started_us = agent.clock().monotonic_us();
    let notices = place.notices.clone();
    let on_delta = move |delta: Delta<'_>| match delta {
        Delta::Text(text) => notices.delta(text),
        Delta::Call(_) => {}
    };
    let outcome = provider.infer(&request, &on_delta, cancel).await;
    let duration_ms = agent.clock().monotonic_us().saturating_sub(started_us) / 1000;
    let spent = match &outcome {
        Ok(completion) => completion.usage,
        Err(error) => error.usage.unwrap_or_default(),
    };
    reservation.settle(spent, agent.scribe.now());
    let recorded = match &outcome {
        Ok(completion) => {
            completed(
                agent,
                place,
                spec,
                attempt,
                completion,
                digest(&bytes),
                duration_ms,
            )
            .await
        }
        Err(error) => failed(agent, place, spec, attempt, error, spent).await,
    };
    // What a model said counts only once it is recorded: a restart must find the same conversation.
    recorded.map_err(|error| NoAnswer::Failed(error.to_string()))?;
    match outcome {
        Err(error) if error.kind == FaultKind::Cancelled => Err(NoAnswer::Cancelled),
        outcome => Ok(outcome),
    }
}

fn fault(kind: FaultKind, message: String, retry_after_ms: Option<u64>) -> ProviderError {
    ProviderError {
        kind,
        message,
        status: None,
        retry_after_ms,
        usage: None,
    }
}

async fn completed(
    agent: &Agent,
    place: Place<'_>,
    spec: &Spec,
    attempt: u32,
    completion: &Completion,
    request_hash: clawk_proto::Digest,
    duration_ms: u64,
) -> Result<(), crate::ports::JournalError> {
    let bytes = canonical(completion);
    let completion_hash = digest(&bytes);
    let payload = ProviderCompleted {
        attempt,
        call_count: completion.calls.len(),
        completion_hash,
        duration_ms,
        estimated: completion.usage.estimated,
        input_tokens: completion.usage.input_tokens,
        model: &completion.model,
        output_tokens: completion.usage.output_tokens,
        provider: &spec.name,
        request_hash,
        stop: match completion.stop {
            StopReason::End => "end",
            StopReason::ToolUse => "tool-use",
            StopReason::Length => "length",
            StopReason::Refusal => "refusal",
        },
        turn: place.turn,
    };
    let draft = agent
        .scribe
        .entry(&place.thread, kind::PROVIDER_COMPLETED, &payload)
        .content(completion_hash, bytes);
    agent.scribe.write(vec![draft]).await
}

async fn failed(
    agent: &Agent,
    place: Place<'_>,
    spec: &Spec,
    attempt: u32,
    error: &ProviderError,
    spent: Usage,
) -> Result<(), crate::ports::JournalError> {
    let kind_text = serde_json::to_value(error.kind).ok(); // silent-ok: an enum always serialises
    let payload = ProviderFailed {
        attempt,
        input_tokens: spent.input_tokens,
        kind: kind_text
            .as_ref()
            .and_then(serde_json::Value::as_str)
            .unwrap_or("fault"),
        output_tokens: spent.output_tokens,
        provider: &spec.name,
        reason: &error.message,
        status: error.status,
        turn: place.turn,
    };
    let draft = agent.scribe.entry(&place.thread, kind::PROVIDER_FAILED, &payload);
    agent.scribe.write(vec![draft]).await
}
