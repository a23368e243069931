//! A model that follows a script: for demos, tests and replay (`protocol: custom`).

mod script;
mod template;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clawk_core::ports::{
    BoxFuture, CompletionDelta, FaultKind, InferRequest, ModelCompletion, ModelProvider, ProviderError,
    StopReason, Usage,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::draft::{AnswerContext, Draft, OnDelta};
use crate::fault::{AttemptFault, classify_refusal};
use crate::state::StateOwner;
use script::{ScriptContext, ScriptPosition, ScriptReply, ScriptedFault};

pub use script::{ModelScript, ScriptError};

/// A scripted model. Its answer depends only on the conversation, so a turn that is interrupted by a restart continues at the same
/// step. Only a fault's `times` is counted per process.
#[derive(Debug)]
pub struct ScriptedProvider {
    name: String,
    model: String,
    streaming: bool,
    patience: Duration,
    script: ModelScript,
    faults: Mutex<BTreeMap<ScriptPosition, u32>>,
}

impl ScriptedProvider {
    /// Makes a provider named `name`. `patience_ms` is the time after which a hanging fault becomes a timeout, in milliseconds.
    #[must_use]
    pub fn new(name: &str, model: &str, streaming: bool, patience_ms: u64, script: ModelScript) -> Self {
        let (name, model, patience) = (
            name.to_owned(),
            model.to_owned(),
            Duration::from_millis(patience_ms),
        );
        Self {
            name,
            model,
            streaming,
            patience,
            script,
            faults: Mutex::default(),
        }
    }

    async fn attempt_request(
        &self,
        request: &InferRequest,
        on_delta: OnDelta<'_>,
        cancel: &CancellationToken,
    ) -> Result<ModelCompletion, ProviderError> {
        // The size of the request for another server, used for the token estimate.
        let request_bytes = serde_json::to_vec(request).map_or(0, |bytes| bytes.len());
        let mut draft = Draft::default();
        let played = cancel
            .run_until_cancelled(self.play_reply(request, &mut draft, on_delta))
            .await;
        let spent = (!draft.text.is_empty()).then(|| draft.usage(request_bytes));
        let played = played.unwrap_or_else(|| Err(AttemptFault::cancelled()));
        played
            .and_then(|()| {
                draft.finish(AnswerContext {
                    request,
                    request_bytes,
                    // A script returns no state.
                    owner: StateOwner {
                        provider: &self.name,
                        host: "",
                        model: &self.model,
                    },
                    prefix: None,
                })
            })
            .map_err(|fault| self.provider_error(fault, spent))
    }

    async fn play_reply(
        &self,
        request: &InferRequest,
        draft: &mut Draft,
        on_delta: OnDelta<'_>,
    ) -> Result<(), AttemptFault> {
        let (place, reply) = self
            .script
            .next(request)
            .map_err(|why| AttemptFault::new(FaultKind::Rejected, why))?;
        let fault = reply
            .fault
            .clone()
            .filter(|fault| self.should_fault(place, fault))
            .unwrap_or_default();
        tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
        self.play_fault(&fault).await?;

        let seen = ScriptContext::for_request(request);
        let text = template::fill_templates(&reply.say, &seen, &self.model);
        self.stream_text(draft, &text, fault.cut_after_chars, on_delta)
            .await?;
        self.add_calls(draft, reply, &seen, on_delta)?;
        draft.believed = true;
        if let Some(usage) = reply.usage {
            draft.input_tokens = Some(usage.input);
            draft.output_tokens = Some(usage.output);
        }
        draft.stop = Some(reply.stop.unwrap_or(StopReason::End));
        Ok(())
    }

    fn should_fault(&self, place: ScriptPosition, fault: &ScriptedFault) -> bool {
        let Some(times) = fault.times else { return true };
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let struck = faults.entry(place).or_default();
        *struck = struck.saturating_add(1);
        *struck <= times
    }

    async fn play_fault(&self, fault: &ScriptedFault) -> Result<(), AttemptFault> {
        if fault.hang {
            tokio::time::sleep(self.patience).await;
            return Err(AttemptFault::new(
                FaultKind::Timeout,
                "no answer: the script says to hang",
            ));
        }
        if let Some(status) = fault.status {
            let said = fault.message.as_deref().unwrap_or("the script says to fail");
            let ((kind, cause), message) = (classify_refusal(status, said), format!("HTTP {status}: {said}"));
            return Err(AttemptFault {
                status: Some(status),
                retry_after_ms: fault.retry_after_ms,
                cause,
                ..AttemptFault::new(kind, message)
            });
        }
        if fault.garbage {
            return Err(AttemptFault::malformed(
                "the answer is not what was agreed: the script says so",
            ));
        }
        Ok(())
    }

    async fn stream_text(
        &self,
        draft: &mut Draft,
        text: &str,
        cut_after_chars: Option<usize>,
        on_delta: OnDelta<'_>,
    ) -> Result<(), AttemptFault> {
        let told: OnDelta<'_> = if self.streaming { on_delta } else { &|_| {} };
        let pace = self.script.stream;
        let until = cut_after_chars.unwrap_or(usize::MAX);
        let chars: Vec<char> = text.chars().take(until).collect();
        for piece in chars.chunks(pace.chunk_chars) {
            draft.say(&piece.iter().collect::<String>(), told);
            if self.streaming && pace.chunk_delay_ms > 0 {
                tokio::time::sleep(Duration::from_millis(pace.chunk_delay_ms)).await;
            }
        }
        if cut_after_chars.is_some() {
            Err(AttemptFault::cut())
        } else {
            Ok(())
        }
    }

    fn add_calls(
        &self,
        draft: &mut Draft,
        reply: &ScriptReply,
        seen: &ScriptContext<'_>,
        on_delta: OnDelta<'_>,
    ) -> Result<(), AttemptFault> {
        let told: OnDelta<'_> = if self.streaming { on_delta } else { &|_| {} };
        for (index, call) in (0_u64..).zip(&reply.call) {
            let arguments =
                || Value::Object(template::fill_all(&call.arguments, seen, &self.model)).to_string();
            let arguments = call.raw_arguments.clone().unwrap_or_else(arguments);
            // Derive the id from the position in the conversation, so that a repeated attempt gets the same id.
            let id = format!("script-{}-{}-{index}", seen.turn, seen.step);
            draft.call(index, Some(&id), Some(&call.name), &arguments, told)?;
        }
        Ok(())
    }

    fn provider_error(&self, fault: AttemptFault, usage: Option<Usage>) -> ProviderError {
        let AttemptFault {
            kind,
            message,
            status,
            retry_after_ms,
            cause,
        } = fault;
        let message = format!("provider `{}` (scripted): {message}", self.name);
        ProviderError {
            kind,
            message,
            status,
            retry_after_ms,
            usage,
            cause: cause.map(Box::new),
        }
    }
}

impl ModelProvider for ScriptedProvider {
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>> {
        Box::pin(self.attempt_request(request, on_delta, cancel))
    }
}
