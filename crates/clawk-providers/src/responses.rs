//! OpenAI's Responses API: writes requests. The server stores nothing; reasoning is sent back encrypted.

use clawk_core::ports::{Image, StatePart};
use clawk_egress::Url;
use serde_json::{Value, json};

use crate::call_ids::IdRule;
use crate::draft::arguments_again;
use crate::history::{AssistantEntry, HistoryEntry, HistoryRules, whole_history};
use crate::picture::picture_base64;
use crate::state::json_of;
use crate::tool_schema::plain_object;
use crate::wire::{RequestContext, adapt_body, effort_word, set_member};

pub(crate) mod answer;

/// The part type under which a message's `phase` is stored.
pub(crate) const PHASE: &str = "message_phase";

/// Returns the base of a URL that may end in `/responses`.
pub(crate) fn base_url(mut url: Url) -> Url {
    let path = url.path().trim_end_matches('/');
    if let Some(path) = path.strip_suffix("/responses").map(str::to_owned) {
        url.set_path(&path);
    }
    url
}

/// Returns `BASE/responses`, derived from the URL for chat completions.
pub(crate) fn responses_url(chat: &Url) -> Url {
    let mut url = chat.clone();
    let path = chat.path().trim_end_matches('/');
    let path = path.strip_suffix("/chat/completions").unwrap_or(path);
    // Azure uses one URL for all deployments.
    let path = path
        .split_once("/deployments/")
        .map_or(path, |(before, _)| before);
    let path = format!("{path}/responses");
    url.set_path(&path);
    url
}

pub(crate) fn request_body(context: RequestContext<'_>) -> Value {
    let request = context.request;
    let rules = HistoryRules {
        ids: context.id_rule(IdRule::Responses),
        alternates: request.adaptation.alternate_roles,
        user_first: false,
    };
    let mut input: Vec<Value> = Vec::new();
    for entry in whole_history(context, rules) {
        match entry {
            HistoryEntry::User { text, images } => input.push(user_message(&text, &images)),
            HistoryEntry::Assistant(entry) => input.extend(answer_items(&entry)),
            HistoryEntry::Results(results) => input.extend(results.into_iter().map(|result| {
                let text = match result.is_error {
                    true => format!("error: {}", result.text),
                    false => result.text,
                };
                json!({ "type": "function_call_output", "call_id": result.id, "output": text })
            })),
        }
    }
    let mut body = json!({
        "model": context.owner.model,
        "input": input,
        "store": false,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": request.max_output_tokens,
    });
    if !context.stable_system().is_empty() {
        set_member(&mut body, "instructions", context.stable_system().into());
    }
    if let Some(effort) = request.effort {
        let effort = effort_word(effort, context.owner.host);
        set_member(&mut body, "reasoning", json!({ "effort": effort }));
    }
    if let Some(key) = &request.cache_key {
        set_member(&mut body, "prompt_cache_key", key.as_str().into());
    }
    if !request.tools.is_empty() {
        // Without `strict: false` the API treats every schema as strict.
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description,
                "parameters": plain_object(&tool.input_schema), "strict": false,
            })
        });
        set_member(&mut body, "tools", tools.collect());
    }
    if context.streaming {
        set_member(&mut body, "stream", true.into());
    }
    adapt_body(&mut body, &request.adaptation);
    body
}

fn user_message(text: &str, images: &[&Image]) -> Value {
    if images.is_empty() {
        return json!({ "type": "message", "role": "user", "content": text });
    }
    let words = (!text.is_empty()).then(|| json!({ "type": "input_text", "text": text }));
    let shown = images.iter().filter_map(|image| {
        let url = format!("data:{};base64,{}", image.mime_type, picture_base64(image)?);
        Some(json!({ "type": "input_image", "image_url": url }))
    });
    let content: Vec<Value> = words.into_iter().chain(shown).collect();
    json!({ "type": "message", "role": "user", "content": content })
}

/// Returns the items of an answer, in order.
fn answer_items(entry: &AssistantEntry<'_>) -> Vec<Value> {
    let words = |text: &str, phase: Option<Value>| {
        let mut item = json!({ "type": "message", "role": "assistant", "content": text });
        if let Some(phase) = phase {
            set_member(&mut item, "phase", phase);
        }
        item
    };
    let mut calls: Vec<Option<Value>> = entry
        .calls
        .iter()
        .map(|call| {
            let arguments = arguments_again(&call.call.arguments).to_string();
            Some(json!({ "type": "function_call", "call_id": call.id, "name": call.call.name, "arguments": arguments }))
        })
        .collect();
    let parts = entry.state.map_or(&[][..], |state| &state.parts);
    let sum = parts.iter().map(|part| match part {
        StatePart::Text { bytes } => usize::try_from(*bytes).unwrap_or(usize::MAX),
        StatePart::Member { .. }
        | StatePart::CallMember { .. }
        | StatePart::Block { .. }
        | StatePart::Call { .. } => 0,
    });
    // If screening changed the text, the whole text takes the place of its first part.
    let fits = sum.fold(0_usize, usize::saturating_add) == entry.text.len();
    let mut left = entry.text.as_str();
    let mut items = Vec::new();
    let mut phase = None;
    for part in parts {
        match part {
            StatePart::Block { json } => {
                let block = json_of(json);
                match block.get("type").and_then(Value::as_str).unwrap_or_default() {
                    PHASE => phase = block.get("phase").cloned(),
                    // These parts belong to Anthropic's dialect.
                    "" | "thinking" | "redacted_thinking" => {}
                    _ => items.push(block),
                }
            }
            StatePart::Text { bytes } => {
                let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
                let (now, rest) = match fits {
                    true => left.split_at_checked(bytes).unwrap_or((left, "")),
                    false => (left, ""),
                };
                if !now.is_empty() {
                    items.push(words(now, phase.take()));
                }
                left = rest;
            }
            StatePart::Call { call } => {
                let at = usize::try_from(*call).unwrap_or(usize::MAX);
                items.extend(calls.get_mut(at).and_then(Option::take));
            }
            StatePart::Member { .. } | StatePart::CallMember { .. } => {}
        }
    }
    if !left.is_empty() {
        items.push(words(left, None));
    }
    items.extend(calls.into_iter().flatten());
    items
}
