//! OpenAI's chat completions dialect: reads answers, streamed or complete.

use clawk_core::ports::StopReason;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::WRITTEN_THOUGHTS;
use crate::answer_errors::{error_in, not_agreed};
use crate::call_slots::CallPiece;
use crate::draft::{Draft, OnDelta};
use crate::fault::AttemptFault;
use crate::number::{WireNumber, parse_accounting};
use crate::sse::Event;
use crate::state::{CALL_MEMBERS, MESSAGE_MEMBERS, THOUGHT_MEMBERS};
use crate::surrogates::read_halves;

/// A chunk of a stream, or a complete answer. They differ only in `delta` and `message`.
#[derive(Deserialize)]
struct Chunk {
    model: Option<Value>,
    choices: Option<Vec<Option<ChatChoice>>>,
    usage: Option<Box<RawValue>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct ChatChoice {
    #[serde(default)]
    index: WireNumber,
    delta: Option<Value>,
    message: Option<Value>,
    /// The member's name in completions without a chat.
    text: Option<Value>,
    finish_reason: Option<Value>,
    error: Option<Value>,
    /// Some servers put the token counts here.
    usage: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChatUsage {
    #[serde(alias = "input_tokens")]
    prompt_tokens: WireNumber,
    #[serde(alias = "output_tokens")]
    completion_tokens: WireNumber,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Box<RawValue>>,
    // Some servers use these names for tokens read from the cache and written into it.
    prompt_cache_hit_tokens: WireNumber,
    cached_tokens: WireNumber,
    cache_read_input_tokens: WireNumber,
    cache_creation_input_tokens: WireNumber,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ChatTokenDetails {
    cached_tokens: WireNumber,
    #[serde(alias = "cache_creation_tokens")]
    cache_write_tokens: WireNumber,
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
        // Some servers never send a stop reason, only the end marker.
        draft.stop = draft.stop.or(Some(StopReason::End));
        return Ok(());
    }
    if event.name == "error" {
        return Err(error_in(data, true)
            .unwrap_or_else(|| AttemptFault::malformed(format!("the server reports an error: {data}"))));
    }
    let data = read_halves(data);
    match serde_json::from_str::<Chunk>(&data) {
        Ok(chunk) => take_chunk(draft, &data, chunk, on_delta),
        // The event holds several JSON texts.
        Err(error) => match data.split_once('\n') {
            Some(_) if data.lines().all(|line| line.len() < data.len()) && !error.is_eof() => {
                take_lines(draft, &data, on_delta)
            }
            Some(_) | None => Err(error_in(&data, false).unwrap_or_else(|| not_agreed(&data, &error))),
        },
    }
}

fn take_lines(draft: &mut Draft, data: &str, on_delta: OnDelta<'_>) -> Result<(), AttemptFault> {
    for line in data.lines() {
        let line = line.strip_prefix("data:").unwrap_or(line);
        let event = Event {
            name: String::new(),
            data: line.to_owned(),
        };
        take_event(draft, &event, on_delta)?;
    }
    Ok(())
}

fn take_chunk(
    draft: &mut Draft,
    data: &str,
    chunk: Chunk,
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    if let Some(error) = chunk.error.filter(is_error) {
        return Err(AttemptFault::of_error_object(&error));
    }
    let choices = chunk.choices.unwrap_or_default();
    if choices.is_empty()
        && chunk.usage.is_none()
        && let Some(fault) = error_in(data, false)
    {
        return Err(fault);
    }
    count_usage(draft, chunk.usage.as_deref());
    draft.named(chunk.model.as_ref().and_then(Value::as_str));
    for choice in choices.into_iter().flatten() {
        if choice.index.value().unwrap_or(0) == 0 {
            take_choice(draft, choice, on_delta)?;
        }
    }
    Ok(())
}

fn is_error(error: &Value) -> bool {
    match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Array(_) | Value::Number(_) | Value::Bool(true) => true,
    }
}

fn take_choice(draft: &mut Draft, choice: ChatChoice, on_delta: OnDelta<'_>) -> Result<(), AttemptFault> {
    if let Some(error) = choice.error.filter(is_error) {
        return Err(AttemptFault::of_error_object(&error));
    }
    count_usage(draft, choice.usage.as_deref());
    let finish = choice.finish_reason.as_ref().and_then(Value::as_str);
    let mut refused = false;
    match (choice.delta, choice.message) {
        (Some(Value::Object(piece)), _) if !piece.is_empty() => {
            refused = take_piece(draft, &piece, false, on_delta)?;
        }
        // Some servers send the complete answer after its pieces. Take it only if the draft is empty.
        (_, Some(Value::Object(piece))) if draft.is_blank() => {
            refused = take_piece(draft, &piece, true, on_delta)?;
            draft.stop = draft.stop.or(finish.is_none().then_some(StopReason::End));
        }
        (Some(Value::String(text)), _) => draft.say(&text, on_delta),
        _ => {
            if let Some(Value::String(text)) = &choice.text {
                draft.say(text, on_delta);
            }
        }
    }
    if let Some(word) = finish.filter(|word| !word.is_empty()) {
        if refused && draft.stop.is_none() {
            draft.stop = Some(StopReason::Refusal);
        }
        let stop = stop_reason(word).ok_or_else(|| {
            AttemptFault::of_error_object(
                &serde_json::json!({ "message": format!("the answer ended with `{word}`") }),
            )
        })?;
        draft.stop = draft.stop.or(Some(stop));
    }
    Ok(())
}

/// Adds a message or a delta. In a complete answer each call is complete; in a stream a piece may continue an earlier call. Returns
/// `true` if the model refuses.
fn take_piece(
    draft: &mut Draft,
    piece: &Map<String, Value>,
    whole: bool,
    on_delta: OnDelta<'_>,
) -> Result<bool, AttemptFault> {
    for name in MESSAGE_MEMBERS {
        let Some(value) = piece.get(name).filter(|value| is_worth(value)) else {
            continue;
        };
        if let (true, Value::String(text)) = (THOUGHT_MEMBERS.contains(&name), value) {
            draft.think(text, on_delta);
        }
        draft.state.add_member(name, repair_surrogates(value));
    }
    take_content(draft, piece.get("content"), on_delta);
    let refusal = piece
        .get("refusal")
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty());
    draft.say(refusal.unwrap_or_default(), on_delta);
    let calls = match piece.get("tool_calls") {
        Some(Value::Array(calls)) => calls.as_slice(),
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) | None => &[],
    };
    for (position, call) in calls.iter().enumerate().filter(|(_, call)| call.is_object()) {
        take_call(draft, call, (position, whole), on_delta)?;
    }
    // The format before `tool_calls` existed.
    if let Some(call) = piece.get("function_call").filter(|call| call.is_object()) {
        take_call(draft, call, (0, whole), on_delta)?;
    }
    Ok(refusal.is_some())
}

/// Returns whether a member has content. An empty member is dropped, because the server may refuse it when it is sent back.
fn is_worth(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Returns the value with lone surrogates in its text repaired.
fn repair_surrogates(value: &Value) -> Value {
    match value {
        Value::String(text) => crate::surrogates::join_halves(text).into(),
        other => other.clone(),
    }
}

fn take_call(
    draft: &mut Draft,
    call: &Value,
    (position, whole): (usize, bool),
    on_delta: OnDelta<'_>,
) -> Result<(), AttemptFault> {
    let number = |value: &Value| {
        let text = value.as_str().and_then(|text| text.trim().parse::<u64>().ok()); // silent-ok: no number is no index
        value.as_u64().or(text)
    };
    let function = call
        .get("function")
        .filter(|function| function.is_object())
        .unwrap_or(call);
    let id = match call.get("id") {
        Some(Value::String(id)) => id.clone(),
        Some(Value::Number(id)) => id.to_string(),
        Some(Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_)) | None => String::new(),
    };
    let arguments = arguments_of(function.get("arguments"));
    let piece = CallPiece {
        index: match whole {
            true => u64::try_from(position).ok(), // silent-ok: there are never so many
            false => call.get("index").and_then(number),
        },
        position,
        id: &id,
        name: function.get("name").and_then(Value::as_str).unwrap_or_default(),
        arguments: &arguments,
    };
    let place = draft.call_piece(&piece, on_delta)?;
    for name in CALL_MEMBERS {
        if let Some(value) = call.get(name).filter(|value| is_worth(value)) {
            draft.state.add_call_member(place, name, value.clone());
        }
    }
    Ok(())
}

/// Returns the arguments as text: a JSON string as specified, or an object as some servers send it.
fn arguments_of(arguments: Option<&Value>) -> String {
    match arguments {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Takes the content: a string, or a list of parts with text and thoughts.
fn take_content(draft: &mut Draft, content: Option<&Value>, on_delta: OnDelta<'_>) {
    match content {
        Some(Value::String(text)) => draft.say(text, on_delta),
        Some(Value::Array(parts)) => {
            for part in parts {
                let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
                match kind.contains("think") || kind.contains("reason") {
                    true => draft.think(&words_of(part), on_delta),
                    false => draft.say(&words_of(part), on_delta),
                }
            }
        }
        Some(part @ Value::Object(_)) => draft.say(&words_of(part), on_delta),
        Some(Value::Null | Value::Bool(_) | Value::Number(_)) | None => {}
    }
}

fn words_of(part: &Value) -> String {
    match part {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(words_of).collect(),
        Value::Object(members) => ["text", "thinking", "content", "refusal"]
            .iter()
            .find_map(|name| members.get(*name))
            .map(words_of)
            .unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) => String::new(),
    }
}

/// Keeps thoughts that were part of the text, for a model that wants them back.
pub(crate) fn keep_written_thoughts(draft: &mut Draft) {
    let thoughts = std::mem::take(&mut draft.written_thoughts);
    if !thoughts.is_empty() {
        draft.state.add_member(WRITTEN_THOUGHTS, thoughts.into());
    }
}

fn count_usage(draft: &mut Draft, usage: Option<&RawValue>) {
    let counts: ChatUsage = match parse_accounting(usage) {
        None => return,
        Some(Ok(counts)) => counts,
        Some(Err(_)) => return draft.miscounted(),
    };
    // Some servers send zeros until the last chunk.
    if counts.prompt_tokens != WireNumber::Given(0) {
        draft.read(counts.prompt_tokens);
    }
    draft.wrote(counts.completion_tokens);
    // A cached count only lowers the cost. An unreadable one is ignored.
    let details =
        parse_accounting::<ChatTokenDetails>(counts.prompt_tokens_details.as_deref()).and_then(Result::ok); // silent-ok: as above
    let cached = [
        details
            .as_ref()
            .map_or(WireNumber::Absent, |details| details.cached_tokens),
        counts.prompt_cache_hit_tokens,
        counts.cached_tokens,
        counts.cache_read_input_tokens,
    ];
    let cached = cached.into_iter().find_map(WireNumber::value);
    draft.cached_tokens = cached.unwrap_or(draft.cached_tokens);
    let written = [
        details.map_or(WireNumber::Absent, |details| details.cache_write_tokens),
        counts.cache_creation_input_tokens,
    ];
    let written = written.into_iter().find_map(WireNumber::value);
    draft.cache_write_tokens = written.unwrap_or(draft.cache_write_tokens);
}

/// Maps a stop reason; `None` means that the server failed.
fn stop_reason(word: &str) -> Option<StopReason> {
    Some(match word.to_ascii_lowercase().as_str() {
        "length" | "max_tokens" | "max_output_tokens" | "model_length" => StopReason::Length,
        "tool_calls" | "tool_call" | "function_call" | "tool_use" => StopReason::ToolUse,
        "content_filter" | "refusal" | "safety" | "recitation" | "prohibited_content" | "blocklist"
        | "spii" | "sensitive" => StopReason::Refusal,
        "error"
        | "network_error"
        | "abort"
        | "aborted"
        | "cancelled"
        | "insufficient_system_resource"
        | "malformed_function_call"
        | "failed" => return None,
        _ => StopReason::End,
    })
}
