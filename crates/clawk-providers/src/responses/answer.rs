//! OpenAI's Responses API: reads answers, streamed or complete.

use clawk_core::ports::StopReason;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::PHASE;
use crate::answer_errors::{error_in, not_agreed};
use crate::draft::{Draft, OnDelta};
use crate::fault::AttemptFault;
use crate::number::{WireNumber, parse_accounting};
use crate::sse::Event;
use crate::surrogates::read_halves;

/// One event of a stream, or a complete response.
#[derive(Deserialize)]
struct ResponsesEvent {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    output_index: WireNumber,
    delta: Option<Value>,
    arguments: Option<String>,
    item: Option<Value>,
    response: Option<Response>,
    error: Option<Value>,
    // Set in a complete response only.
    model: Option<String>,
    status: Option<String>,
    output: Option<Vec<Value>>,
    usage: Option<Box<RawValue>>,
    incomplete_details: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Response {
    model: Option<String>,
    status: Option<String>,
    output: Option<Vec<Value>>,
    usage: Option<Box<RawValue>>,
    incomplete_details: Option<Value>,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponsesUsage {
    input_tokens: WireNumber,
    output_tokens: WireNumber,
    input_tokens_details: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponsesTokenDetails {
    cached_tokens: WireNumber,
}

/// Takes one event of a stream. A complete response counts as one event.
pub(crate) fn take_event(
    draft: &mut Draft,
    event: &Event,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    let data = event.data.trim();
    if data.is_empty() || data == "[DONE]" {
        return Ok(());
    }
    let data = read_halves(data);
    let piece: ResponsesEvent = serde_json::from_str(&data).map_err(|error| {
        error_in(&data, event.name == "error").unwrap_or_else(|| not_agreed(&data, &error))
    })?;
    let kind = piece.kind.clone().unwrap_or_else(|| event.name.clone());
    match kind.as_str() {
        "error" | "response.error" => {
            return Err(error_in(&data, true).unwrap_or_else(|| AttemptFault::of_error_object(&Value::Null)));
        }
        "response.created" | "response.in_progress" | "response.queued" => {
            draft.named(piece.response.and_then(|response| response.model).as_deref());
        }
        "response.completed"
        | "response.incomplete"
        | "response.failed"
        | "response.done"
        | "response.cancelled" => {
            let response = piece.response.unwrap_or_default();
            end_response(draft, response, on_delta)?;
        }
        kind if kind.starts_with("response.") => take_piece(draft, kind, piece, on_delta)?,
        _ if piece.output.is_some() => {
            let response = Response {
                model: piece.model,
                status: piece.status,
                output: piece.output,
                usage: piece.usage,
                incomplete_details: piece.incomplete_details,
                error: piece.error,
            };
            end_response(draft, response, on_delta)?;
        }
        // Events of later API versions.
        _ => {
            if let Some(fault) = error_in(&data, false) {
                return Err(fault);
            }
        }
    }
    Ok(())
}

fn take_piece(
    draft: &mut Draft,
    kind: &str,
    piece: ResponsesEvent,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    let index = piece.output_index.value().unwrap_or(0);
    let delta = match &piece.delta {
        Some(Value::String(text)) => text.as_str(),
        Some(other) => other.get("text").and_then(Value::as_str).unwrap_or_default(),
        None => "",
    };
    match kind {
        "response.output_text.delta" | "response.text.delta" => push_text(draft, index, delta, on_delta),
        "response.refusal.delta" => {
            draft.refused = true;
            push_text(draft, index, delta, on_delta);
        }
        "response.reasoning_text.delta"
        | "response.reasoning_summary_text.delta"
        | "response.reasoning_summary.delta"
        | "response.reasoning.delta" => draft.think(delta, on_delta),
        "response.function_call_arguments.delta" => {
            draft.call(index, None, None, delta, on_delta)?;
        }
        "response.function_call_arguments.done" => {
            if let Some(arguments) = piece.arguments {
                let place = draft.call(index, None, None, "", on_delta)?;
                draft.set_arguments(place, &arguments);
            }
        }
        "response.output_item.added" => {
            // A call's name is reported early. All other data is read at the end of the item.
            if let Some(item) = piece.item.filter(|item| kind_of(item) == "function_call") {
                take_call(draft, index, &item, on_delta)?;
            }
        }
        "response.output_item.done" => {
            if let Some(item) = piece.item {
                take_item(draft, index, &item, on_delta)?;
            }
        }
        // Starts and ends of parts, searches, and events of later API versions.
        _ => {}
    }
    Ok(())
}

fn kind_of(item: &Value) -> &str {
    item.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn push_text(draft: &mut Draft, index: u64, text: &str, on_delta: OnDelta<'_>) {
    let before = draft.text.len();
    draft.say(text, on_delta);
    draft
        .state
        .add_text(index, draft.text.len().saturating_sub(before));
}

fn take_call(draft: &mut Draft, index: u64, item: &Value, on_delta: OnDelta<'_>) -> Result<(), AttemptFault> {
    let text = |name: &str| item.get(name).and_then(Value::as_str);
    let id = text("call_id").or_else(|| text("id"));
    let place = draft.call(index, id, text("name"), "", on_delta)?;
    draft.state.add_call(index, place);
    match item.get("arguments") {
        Some(Value::String(arguments)) if !arguments.is_empty() => draft.set_arguments(place, arguments),
        Some(arguments @ Value::Object(_)) => draft.set_arguments(place, &arguments.to_string()),
        _ => {}
    }
    Ok(())
}

/// Takes a complete output item.
fn take_item(draft: &mut Draft, index: u64, item: &Value, on_delta: OnDelta<'_>) -> Result<(), AttemptFault> {
    match kind_of(item) {
        "function_call" => take_call(draft, index, item, on_delta)?,
        "message" => {
            // The item's text may have arrived in pieces before.
            let told = draft.state.has_block(index);
            let parts = item.get("content").and_then(Value::as_array);
            for part in parts.into_iter().flatten() {
                let refusal = part.get("refusal").and_then(Value::as_str);
                draft.refused |= refusal.is_some();
                let text = part.get("text").and_then(Value::as_str).or(refusal);
                if let (Some(text), false) = (text, told) {
                    push_text(draft, index, text, on_delta);
                }
            }
            if let Some(phase) = item.get("phase").filter(|phase| phase.is_string()) {
                let kept = json!({ "type": PHASE, "phase": phase });
                draft.state.set_block_before(index, kept);
            }
        }
        "reasoning" => {
            if let Some(kept) = kept_reasoning(item) {
                draft.state.set_block(index, kept);
            }
        }
        // Searches and other items that were not requested.
        _ => {}
    }
    Ok(())
}

/// Returns a reasoning item in the form that is sent back: without empty members, and with its id only if it is encrypted.
fn kept_reasoning(item: &Value) -> Option<Value> {
    let mut kept = item.clone();
    let members = kept.as_object_mut()?;
    members.retain(|_, member| !member.is_null());
    let filled = |name: &str| match members.get(name) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        _ => false,
    };
    let sealed = filled("encrypted_content");
    if !sealed && !filled("content") && !filled("summary") {
        return None;
    }
    members.remove("status");
    if !sealed {
        members.remove("id");
    }
    members.entry("summary").or_insert_with(|| json!([]));
    Some(kept)
}

/// Ends the response: reads the token counts and the items that did not arrive in pieces.
fn end_response(draft: &mut Draft, response: Response, on_delta: OnDelta<'_>) -> Result<(), AttemptFault> {
    count_usage(draft, response.usage.as_deref());
    draft.named(response.model.as_deref());
    if let Some(error) = response.error.filter(|error| !error.is_null()) {
        return Err(AttemptFault::of_error_object(&error));
    }
    let status = response.status.as_deref().unwrap_or("completed");
    if matches!(status, "failed" | "cancelled") {
        let message = format!("the response ended as `{status}`");
        return Err(AttemptFault::of_error_object(&json!({ "message": message })));
    }
    for (index, item) in (0_u64..).zip(response.output.iter().flatten()) {
        if !draft.state.has_block(index) {
            take_item(draft, index, item, on_delta)?;
        }
    }
    let why = response
        .incomplete_details
        .as_ref()
        .and_then(|details| details.get("reason"))
        .and_then(Value::as_str);
    let stop = match (status, why) {
        ("incomplete", Some("content_filter")) => StopReason::Refusal,
        ("incomplete", _) => StopReason::Length,
        _ if draft.refused => StopReason::Refusal,
        _ => StopReason::End,
    };
    draft.stop = draft.stop.or(Some(stop));
    Ok(())
}

fn count_usage(draft: &mut Draft, usage: Option<&RawValue>) {
    let counts: ResponsesUsage = match parse_accounting(usage) {
        None => return,
        Some(Ok(counts)) => counts,
        Some(Err(_)) => return draft.miscounted(),
    };
    draft.read(counts.input_tokens);
    draft.wrote(counts.output_tokens);
    let details = parse_accounting::<ResponsesTokenDetails>(counts.input_tokens_details.as_deref())
        .and_then(Result::ok); // silent-ok: a cache only makes it cheaper
    let cached = details.and_then(|details| details.cached_tokens.value());
    draft.cached_tokens = cached.unwrap_or(draft.cached_tokens);
}
