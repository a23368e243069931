//! The messages dialect of Anthropic.

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

/// The revision of the API that this module speaks.
pub(crate) const VERSION: &str = "2023-06-01";

/// `BASE/v1/messages`, whether or not the base ends in `/v1`.
pub(crate) fn url(base: &Url) -> Url {
    let mut url = base.clone();
    let path = base.path().trim_end_matches('/');
    let path = if path.ends_with("/messages") {
        path.to_owned()
    } else if path.ends_with("/v1") {
        format!("{path}/messages")
    } else {
        format!("{path}/v1/messages")
    };
    url.set_path(&path);
    url
}

pub(crate) fn body(request: &InferRequest, model: &str, streaming: bool) -> Value {
    let mut body =
        json!({ "model": model, "max_tokens": request.max_output_tokens, "messages": messages(request) });
    let Some(object) = body.as_object_mut() else {
        return body;
    };
    if !request.system.is_empty() {
        object.insert("system".to_owned(), request.system.as_str().into());
    }
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            json!({ "name": tool.name, "description": tool.description, "input_schema": tool.input_schema })
        });
        object.insert("tools".to_owned(), tools.collect());
    }
    if streaming {
        object.insert("stream".to_owned(), true.into());
    }
    body
}

/// Neighbours of one role become one message: the API wants roles in turn, and all results of one answer together.
fn messages(request: &InferRequest) -> Vec<Value> {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in &request.messages {
        let (role, blocks) = match message {
            Message::User { text, images, frame } => {
                let text = join_frame(frame, text);
                let shown = images.iter().filter_map(|image| {
                    let source =
                        json!({ "type": "base64", "media_type": image.mime_type, "data": base64(image)? });
                    Some(json!({ "type": "image", "source": source }))
                });
                let mut blocks: Vec<Value> = shown.collect();
                // The API takes no empty text.
                if !text.is_empty() || blocks.is_empty() {
                    blocks.push(json!({ "type": "text", "text": text }));
                }
                ("user", blocks)
            }
            Message::Assistant { text, calls } => {
                let mut blocks = Vec::new();
                if !text.is_empty() {
                    blocks.push(json!({ "type": "text", "text": text }));
                }
                blocks.extend(calls.iter().map(|call| {
                    let input = arguments_again(&call.arguments);
                    json!({ "type": "tool_use", "id": api_id(&call.id), "name": call.name, "input": input })
                }));
                ("assistant", blocks)
            }
            Message::ToolResult {
                call_id,
                text,
                is_error,
            } => {
                let id = api_id(call_id);
                (
                    "user",
                    vec![
                        json!({ "type": "tool_result", "tool_use_id": id, "content": text, "is_error": is_error }),
                    ],
                )
            }
        };
        match messages.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, so_far)) if *last == role => so_far.extend(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    messages
        .into_iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect()
}

/// An id in the API's alphabet: an earlier provider of the chain may have made it up in another.
fn api_id(id: &str) -> String {
    id.chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '_' || c == '-' {
                c
            } else {
                '_'
            }
        })
        .collect()
}

#[derive(Deserialize)]
struct Piece {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    index: Number,
    message: Option<Answer>,
    content_block: Option<Block>,
    delta: Option<Delta>,
    usage: Option<Box<RawValue>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Answer {
    model: Option<String>,
    content: Option<Vec<Block>>,
    stop_reason: Option<String>,
    usage: Option<Box<RawValue>>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
    partial_json: Option<String>,
    stop_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counts {
    input_tokens: Number,
    cache_creation_input_tokens: Number,
    cache_read_input_tokens: Number,
    output_tokens: Number,
}

/// Takes one event of a stream.
pub(crate) fn event(draft: &mut Draft, event: &Event, on_delta: OnDelta<'_>) -> Result<(), Fault> {
    if event.data.trim().is_empty() {
        return Ok(());
    }
    let piece: Piece = serde_json::from_str(&event.data).map_err(|error| {
        Fault::malformed(format!("an event of the stream is not what was agreed: {error}"))
    })?;
    let index = piece.index.given().unwrap_or(0);
    match piece.kind.as_deref().unwrap_or(&event.name) {
        "error" => return Err(Fault::of_error_object(&piece.error.unwrap_or_default())),
        "message_start" => {
            if let Some(answer) = piece.message {
                draft.named(answer.model.as_deref());
                // Its output count is a beginning, not a sum.
                count(draft, answer.usage.as_deref(), false);
            }
        }
        "content_block_start" => {
            if let Some(block) = piece.content_block {
                start(draft, index, &block, false, on_delta)?;
            }
        }
        "content_block_delta" => match piece.delta {
            Some(Delta {
                kind: Some(kind),
                text,
                ..
            }) if kind == "text_delta" => {
                draft.say(&text.unwrap_or_default(), on_delta);
            }
            Some(Delta {
                kind: Some(kind),
                partial_json,
                ..
            }) if kind == "input_json_delta" => {
                draft.call(index, None, None, &partial_json.unwrap_or_default(), on_delta)?;
            }
            _ => {}
        },
        "message_delta" => {
            count(draft, piece.usage.as_deref(), true);
            let word = piece.delta.and_then(|delta| delta.stop_reason);
            draft.stop = draft.stop.or(word.as_deref().map(stop));
        }
        "message_stop" => draft.stop = draft.stop.or(Some(StopReason::End)),
        // `ping`, `content_block_stop`, and what later revisions add.
        _ => {}
    }
    Ok(())
}

/// Takes a whole answer.
pub(crate) fn whole(draft: &mut Draft, body: &[u8], on_delta: OnDelta<'_>) -> Result<(), Fault> {
    let answer: Answer = serde_json::from_slice(body).map_err(crate::attempt::unreadable)?;
    if let Some(error) = answer.error.filter(|error| !error.is_null()) {
        return Err(Fault::of_error_object(&error));
    }
    let Some(blocks) = answer.content else {
        return Err(Fault::malformed("the answer has no `content`"));
    };
    for (index, block) in (0_u64..).zip(&blocks) {
        start(draft, index, block, true, on_delta)?;
    }
    count(draft, answer.usage.as_deref(), true);
    draft.named(answer.model.as_deref());
    draft.stop = Some(answer.stop_reason.as_deref().map_or(StopReason::End, stop));
    Ok(())
}

/// In a whole answer a block's `input` is final; in a stream it is an empty placeholder, and pieces follow.
fn start(
    draft: &mut Draft,
    index: u64,
    block: &Block,
    whole: bool,
    on_delta: OnDelta<'_>,
) -> Result<(), Fault> {
    match block.kind.as_str() {
        "text" => draft.say(block.text.as_deref().unwrap_or_default(), on_delta),
        "tool_use" => {
            let given = block.input.as_deref().map(RawValue::get);
            let input = given
                .filter(|input| whole || holds_members(input))
                .unwrap_or_default();
            draft.call(index, block.id.as_deref(), block.name.as_deref(), input, on_delta)?;
        }
        _ => {}
    }
    Ok(())
}

/// Whether this is an object that is not empty.
fn holds_members(input: &str) -> bool {
    input
        .strip_prefix('{')
        .is_some_and(|rest| rest.trim_start() != "}")
}

fn count(draft: &mut Draft, counts: Option<&RawValue>, last: bool) {
    let counts: Counts = match accounts(counts) {
        None => return,
        Some(Ok(counts)) => counts,
        Some(Err(_)) => return draft.miscounted(),
    };
    let input = counts.input_tokens;
    if input != Number::Absent && (input != Number::Given(0) || draft.input_tokens.is_none()) {
        let (written, cached) = (counts.cache_creation_input_tokens, counts.cache_read_input_tokens);
        draft.read(input.plus(written).plus(cached));
        draft.cached_tokens = cached.given().unwrap_or(0);
        draft.cache_write_tokens = written.given().unwrap_or(0);
    }
    if last {
        draft.wrote(counts.output_tokens);
    }
}

fn stop(word: &str) -> StopReason {
    match word {
        "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
        "tool_use" => StopReason::ToolUse,
        "refusal" => StopReason::Refusal,
        _ => StopReason::End,
    }
}
