//! The chat completions dialect, as OpenAI defines it and others bend it.

use clawk_egress::Url;
use clawk_kernel::join_frame;
use clawk_kernel::ports::{InferRequest, Message, StopReason};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::draft::{Draft, OnDelta, arguments_again};
use crate::fault::Fault;
use crate::number::{Number, accounts};
use crate::picture::base64;
use crate::sse::Event;

/// `BASE/chat/completions`; a base without a path means `/v1`.
pub(crate) fn url(base: &Url) -> Url {
    let mut url = base.clone();
    let path = base.path().trim_end_matches('/');
    let path = match path {
        "" => "/v1/chat/completions".to_owned(),
        path if path.ends_with("/chat/completions") => path.to_owned(),
        path => format!("{path}/chat/completions"),
    };
    url.set_path(&path);
    url
}

pub(crate) fn body(request: &InferRequest, model: &str, streaming: bool, base: &Url) -> Value {
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        messages.push(json!({ "role": "system", "content": request.system }));
    }
    messages.extend(request.messages.iter().map(message));
    let mut body = json!({ "model": model, "messages": messages });
    // OpenAI's newer models refuse the old name; most other servers know no other.
    let limit = if base.host_str() == Some("api.openai.com") {
        "max_completion_tokens"
    } else {
        "max_tokens"
    };
    set(&mut body, limit, request.max_output_tokens.into());
    if !request.tools.is_empty() {
        let function = |tool: &clawk_kernel::ports::ToolOffer| {
            let parameters = &tool.input_schema;
            json!({ "name": tool.name, "description": tool.description, "parameters": parameters })
        };
        let tools = request
            .tools
            .iter()
            .map(|tool| json!({ "type": "function", "function": function(tool) }));
        set(&mut body, "tools", tools.collect());
    }
    if streaming {
        set(&mut body, "stream", true.into());
        set(&mut body, "stream_options", json!({ "include_usage": true }));
    }
    body
}

fn set(body: &mut Value, name: &str, value: Value) {
    if let Some(object) = body.as_object_mut() {
        object.insert(name.to_owned(), value);
    }
}

fn message(message: &Message) -> Value {
    match message {
        Message::User { text, images, frame } if images.is_empty() => {
            json!({ "role": "user", "content": join_frame(frame, text) })
        }
        Message::User { text, images, frame } => {
            let text = join_frame(frame, text);
            let words = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
            let shown = images.iter().filter_map(|image| {
                let data = base64(image)?;
                let url = format!("data:{};base64,{data}", image.mime_type);
                Some(json!({ "type": "image_url", "image_url": { "url": url } }))
            });
            let content: Vec<Value> = words.into_iter().chain(shown).collect();
            json!({ "role": "user", "content": content })
        }
        Message::Assistant { text, calls } => {
            let content = if text.is_empty() && !calls.is_empty() {
                Value::Null
            } else {
                text.as_str().into()
            };
            let mut message = json!({ "role": "assistant", "content": content });
            if !calls.is_empty() {
                let calls = calls.iter().map(|call| {
                    let arguments = arguments_again(&call.arguments).to_string();
                    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
                });
                set(&mut message, "tool_calls", calls.collect());
            }
            message
        }
        // The dialect has no flag for a failed tool.
        Message::ToolResult {
            call_id,
            text,
            is_error,
        } => {
            let text = if *is_error {
                format!("error: {text}")
            } else {
                text.clone()
            };
            json!({ "role": "tool", "tool_call_id": call_id, "content": text })
        }
    }
}

/// A chunk of a stream, or a whole answer: the same but for `delta` and `message`.
#[derive(Deserialize)]
struct Chunk {
    model: Option<String>,
    choices: Option<Vec<Choice>>,
    usage: Option<Box<RawValue>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: Number,
    #[serde(alias = "message")]
    delta: Option<Piece>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Piece {
    content: Option<Value>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Deserialize)]
struct CallPiece {
    #[serde(default)]
    index: Number,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counts {
    prompt_tokens: Number,
    completion_tokens: Number,
    prompt_tokens_details: Option<Box<RawValue>>,
    /// As some servers call it.
    prompt_cache_hit_tokens: Number,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Number,
}

/// Takes one event of a stream.
pub(crate) fn event(draft: &mut Draft, event: &Event, on_delta: OnDelta<'_>) -> Result<(), Fault> {
    let data = event.data.trim();
    if data == "[DONE]" {
        // A server that never says why it stopped, but says that it did.
        draft.stop = draft.stop.or(Some(StopReason::End));
        return Ok(());
    }
    if data.is_empty() {
        return Ok(());
    }
    let chunk = serde_json::from_str(data).map_err(|error| {
        Fault::malformed(format!("a chunk of the stream is not what was agreed: {error}"))
    })?;
    add(draft, chunk, false, on_delta)
}

/// Takes a whole answer.
pub(crate) fn whole(draft: &mut Draft, body: &[u8], on_delta: OnDelta<'_>) -> Result<(), Fault> {
    let chunk: Chunk = serde_json::from_slice(body).map_err(crate::attempt::unreadable)?;
    if chunk.error.is_none() && chunk.choices.as_ref().is_none_or(Vec::is_empty) {
        return Err(Fault::malformed("the answer has no `choices`"));
    }
    add(draft, chunk, true, on_delta)?;
    draft.stop = draft.stop.or(Some(StopReason::End));
    Ok(())
}

/// In a whole answer each call stands alone; in a stream a piece without an index may go on with the last.
fn add(draft: &mut Draft, chunk: Chunk, whole: bool, on_delta: OnDelta<'_>) -> Result<(), Fault> {
    if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
        return Err(Fault::of_error_object(&error));
    }
    match accounts::<Counts>(chunk.usage.as_deref()) {
        Some(Ok(counts)) => count(draft, &counts),
        Some(Err(_)) => draft.miscounted(),
        None => {}
    }
    draft.named(chunk.model.as_deref());
    for choice in chunk
        .choices
        .into_iter()
        .flatten()
        .filter(|choice| choice.index.given().unwrap_or(0) == 0)
    {
        let mut refused = false;
        if let Some(piece) = choice.delta {
            draft.say(&text_of(piece.content.as_ref()), on_delta);
            if let Some(refusal) = piece.refusal.filter(|refusal| !refusal.is_empty()) {
                draft.say(&refusal, on_delta);
                refused = true;
            }
            for (position, call) in (0_u64..).zip(piece.tool_calls.into_iter().flatten()) {
                let id = call.id.as_deref();
                let index = if whole {
                    position
                } else {
                    call.index.given().unwrap_or_else(|| draft.implied_index(id))
                };
                let function = call.function;
                let name = function.as_ref().and_then(|function| function.name.as_deref());
                let arguments = function
                    .as_ref()
                    .and_then(|function| function.arguments.as_deref());
                draft.call(index, id, name, &arguments_of(arguments), on_delta)?;
            }
        }
        if refused && draft.stop.is_none() && choice.finish_reason.is_some() {
            draft.stop = Some(StopReason::Refusal);
        }
        draft.stop = draft.stop.or(choice.finish_reason.as_deref().map(stop));
    }
    Ok(())
}

fn count(draft: &mut Draft, counts: &Counts) {
    // Some servers send zeros until the last chunk.
    if counts.prompt_tokens != Number::Given(0) {
        draft.read(counts.prompt_tokens);
    }
    draft.wrote(counts.completion_tokens);
    let details = accounts::<Details>(counts.prompt_tokens_details.as_deref());
    // What came from a cache only makes it cheaper: what can't be read does not.
    let cached = details
        .and_then(Result::ok)
        .and_then(|details| details.cached_tokens.given()); // silent-ok: as above
    let cached = cached.or(counts.prompt_cache_hit_tokens.given());
    draft.cached_tokens = cached.unwrap_or(draft.cached_tokens);
}

fn stop(word: &str) -> StopReason {
    match word {
        "length" | "max_tokens" => StopReason::Length,
        "tool_calls" | "function_call" => StopReason::ToolUse,
        "content_filter" | "refusal" => StopReason::Refusal,
        _ => StopReason::End,
    }
}

/// A string, or a list of parts with text.
fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .filter_map(|part| part.get("text").and_then(Value::as_str))
            .collect(),
        _ => String::new(),
    }
}

/// A string of JSON, as agreed, or the object itself, as some servers send.
fn arguments_of(arguments: Option<&RawValue>) -> String {
    let Some(raw) = arguments.map(RawValue::get) else {
        return String::new();
    };
    if raw.starts_with('"') {
        // silent-ok: what is not a text is told to the model as it came
        return serde_json::from_str(raw).unwrap_or_else(|_| raw.to_owned());
    }
    raw.to_owned()
}
