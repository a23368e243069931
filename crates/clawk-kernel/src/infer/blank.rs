//! Blank answers: an answer without text or calls counts as an error.

use clawk_manifest::model::Provider as Spec;

use super::provider_error;
use crate::ports::{FaultKind, ModelCompletion, ProviderError, StopReason};

/// Turns a blank answer into an error.
pub(super) fn refuse_blank(spec: &Spec, outcome: &mut Result<ModelCompletion, ProviderError>) {
    if let Ok(completion) = outcome
        && let Some(error) = blank_answer_error(spec, completion)
    {
        *outcome = Err(error);
    }
}

/// Returns the error for a blank answer; `None`: it is not blank.
fn blank_answer_error(spec: &Spec, completion: &ModelCompletion) -> Option<ProviderError> {
    if !completion.text.trim().is_empty() || !completion.calls.is_empty() {
        return None;
    }
    let name = &spec.name;
    let why = match completion.stop {
        // The turn reports this to the person.
        StopReason::Refusal => return None,
        StopReason::Length => format!(
            "the model used all of its {} output tokens before it said a word (a thinking model thinks in them, too); \
             allow it more with `[providers.{name}] max_output_tokens` of clawk.toml, or less effort",
            completion.usage.output_tokens
        ),
        StopReason::End | StopReason::ToolUse => {
            "the model answered without a word and without a call".to_owned()
        }
    };
    let mut error = provider_error(FaultKind::Malformed, format!("provider `{name}`: {why}"), None);
    error.usage = Some(completion.usage);
    Some(error)
}
