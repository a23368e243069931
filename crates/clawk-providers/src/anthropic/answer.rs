//! Anthropic's messages dialect: reads answers, streamed or complete.

use clawk_core::ports::StopReason;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::answer_errors::{error_in, not_agreed};
use crate::draft::{Draft, OnDelta};
use crate::fault::AttemptFault;
use crate::number::{WireNumber, parse_accounting};
use crate::sse::Event;
use crate::surrogates::read_halves;

#[derive(Deserialize)]
struct AnthropicEvent {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    index: WireNumber,
    message: Option<AnthropicMessage>,
    content_block: Option<Value>,
    delta: Option<AnthropicDelta>,
    usage: Option<Box<RawValue>>,
    error: Option<Value>,
    // Set in a complete answer only.
    model: Option<String>,
    content: Option<Vec<Value>>,
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct AnthropicMessage {
    model: Option<String>,
    usage: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct AnthropicDelta {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnthropicUsage {
    input_tokens: WireNumber,
    cache_creation_input_tokens: WireNumber,
    cache_read_input_tokens: WireNumber,
    output_tokens: WireNumber,
}

/// Takes one event of a stream. A complete answer counts as one event.
pub(crate) fn take_event(
    draft: &mut Draft,
    event: &Event,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    let data = event.data.trim();
    if data.is_empty() {
        return Ok(());
    }
    if data == "[DONE]" {
        draft.stop = draft.stop.or(Some(StopReason::End));
        return Ok(());
    }
    let data = read_halves(data);
    let piece: AnthropicEvent = serde_json::from_str(&data).map_err(|error| {
        error_in(&data, event.name == "error").unwrap_or_else(|| not_agreed(&data, &error))
    })?;
    if let Some(error) = piece.error.as_ref().filter(|error| !error.is_null()) {
        return Err(AttemptFault::of_error_object(error));
    }
    let index = piece.index.value().unwrap_or(0);
    match piece.kind.as_deref().unwrap_or(&event.name) {
        "error" => {
            return Err(error_in(&data, true).unwrap_or_else(|| AttemptFault::of_error_object(&Value::Null)));
        }
        "message_start" => {
            if let Some(answer) = piece.message {
                draft.named(answer.model.as_deref());
                // The output count of this event is a first value, not the total.
                count_usage(draft, answer.usage.as_deref(), false);
            }
        }
        "content_block_start" => {
            if let Some(block) = piece.content_block {
                start_block(draft, index, &block, false, on_delta)?;
            }
        }
        "content_block_delta" => {
            if let Some(delta) = piece.delta {
                take_delta(draft, index, delta, on_delta)?;
            }
        }
        "message_delta" => {
            count_usage(draft, piece.usage.as_deref(), true);
            let word = piece.delta.and_then(|delta| delta.stop_reason);
            draft.stop = draft.stop.or(word.as_deref().map(stop_reason));
        }
        "message_stop" => draft.stop = draft.stop.or(Some(StopReason::End)),
        _ if piece.content.is_some() => read_whole_answer(draft, piece, on_delta)?,
        // `ping`, `content_block_stop`, and events of later API versions.
        _ => {
            if let Some(fault) = error_in(&data, false) {
                return Err(fault);
            }
        }
    }
    Ok(())
}

fn take_delta(
    draft: &mut Draft,
    index: u64,
    delta: AnthropicDelta,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    match delta.kind.as_deref().unwrap_or_default() {
        "text_delta" => {
            let text = delta.text.unwrap_or_default();
            push_text(draft, index, &text, on_delta);
        }
        "thinking_delta" => {
            let text = delta.thinking.unwrap_or_default();
            draft.state.extend_block(index, "thinking", &text);
            draft.think(&text, on_delta);
        }
        "signature_delta" => {
            let text = delta.signature.unwrap_or_default();
            draft.state.extend_block(index, "signature", &text);
        }
        "input_json_delta" => {
            draft.call(
                index,
                None,
                None,
                &delta.partial_json.unwrap_or_default(),
                on_delta,
            )?;
        }
        _ => {}
    }
    Ok(())
}

/// Adds text of the answer, and records its position among the blocks.
fn push_text(draft: &mut Draft, index: u64, text: &str, on_delta: OnDelta<'_>) {
    let before = draft.text.len();
    draft.say(text, on_delta);
    draft
        .state
        .add_text(index, draft.text.len().saturating_sub(before));
}

fn read_whole_answer(
    draft: &mut Draft,
    answer: AnthropicEvent,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    for (index, block) in (0_u64..).zip(answer.content.iter().flatten()) {
        start_block(draft, index, block, true, on_delta)?;
    }
    count_usage(draft, answer.usage.as_deref(), true);
    draft.named(answer.model.as_deref());
    draft.stop = Some(answer.stop_reason.as_deref().map_or(StopReason::End, stop_reason));
    Ok(())
}

/// Begins a block. In a complete answer the block's `input` is final; in a stream it is an empty placeholder, and pieces follow.
fn start_block(
    draft: &mut Draft,
    index: u64,
    block: &Value,
    whole: bool,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    let text = |name: &str| block.get(name).and_then(Value::as_str);
    match text("type").unwrap_or_default() {
        "text" => push_text(draft, index, text("text").unwrap_or_default(), on_delta),
        "tool_use" => {
            let input = match block.get("input") {
                Some(Value::String(input)) => input.clone(),
                Some(Value::Object(members)) if !whole && members.is_empty() => String::new(),
                Some(Value::Null) | None => String::new(),
                Some(other) => other.to_string(),
            };
            let place = draft.call(index, text("id"), text("name"), &input, on_delta)?;
            draft.state.add_call(index, place);
        }
        "" => {}
        // Thoughts, encrypted or not, and any other block of the server are sent back unchanged.
        kind => {
            if kind == "thinking" {
                draft.think(text("thinking").unwrap_or_default(), on_delta);
            }
            draft.state.set_block(index, block.clone());
        }
    }
    Ok(())
}

fn count_usage(draft: &mut Draft, counts: Option<&RawValue>, last: bool) {
    let counts: AnthropicUsage = match parse_accounting(counts) {
        None => return,
        Some(Ok(counts)) => counts,
        Some(Err(_)) => return draft.miscounted(),
    };
    let input = counts.input_tokens;
    if input != WireNumber::Absent && (input != WireNumber::Given(0) || draft.input_tokens.is_none()) {
        let (written, cached) = (counts.cache_creation_input_tokens, counts.cache_read_input_tokens);
        draft.read(input.add_bounded(written).add_bounded(cached));
        draft.cached_tokens = cached.value().unwrap_or(0);
        draft.cache_write_tokens = written.value().unwrap_or(0);
    }
    if last {
        draft.wrote(counts.output_tokens);
    }
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
        "tool_use" => StopReason::ToolUse,
        "refusal" => StopReason::Refusal,
        _ => StopReason::End,
    }
}
