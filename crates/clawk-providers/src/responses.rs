//! OpenAI's Responses API: what is sent. Nothing is stored at the server: reasoning goes back sealed.

use clawk_core::ports::{Image, StatePart};
use clawk_egress::Url;
use serde_json::{Value, json};

use crate::call_ids::IdRule;
use crate::draft::arguments_again;
use crate::history::{AssistantEntry, HistoryEntry, HistoryRules, whole_history};
use crate::picture::base64;
use crate::state::json_of;
use crate::tool_schema::plain_object;
use crate::wire::{RequestContext, adapt, effort_word, set};

pub(crate) mod answer;

/// The type under which a message's `phase` is kept.
pub(crate) const PHASE: &str = "message_phase";

/// The base of an address that may end in `/responses`.
pub(crate) fn base(mut url: Url) -> Url {
    let path = url.path().trim_end_matches('/');
    if let Some(path) = path.strip_suffix("/responses").map(str::to_owned) {
        url.set_path(&path);
    }
    url
}

/// `BASE/responses`, from the address for chat completions.
pub(crate) fn url(chat: &Url) -> Url {
    let mut url = chat.clone();
    let path = chat.path().trim_end_matches('/');
    let path = path.strip_suffix("/chat/completions").unwrap_or(path);
    // Azure has one address for all deployments.
    let path = path
        .split_once("/deployments/")
        .map_or(path, |(before, _)| before);
    let path = format!("{path}/responses");
    url.set_path(&path);
    url
}

pub(crate) fn body(context: RequestContext<'_>) -> Value {
    let request = context.request;
    let rules = HistoryRules {
        ids: context.id_rule(IdRule::Responses),
        alternates: request.adaptation.alternate_roles,
        user_first: false,
    };
    let mut input: Vec<Value> = Vec::new();
    for entry in whole_history(context, rules) {
        match entry {
            HistoryEntry::User { text, images } => input.push(user(&text, &images)),
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
        set(&mut body, "instructions", context.stable_system().into());
    }
    if let Some(effort) = request.effort {
        let effort = effort_word(effort, context.owner.host);
        set(&mut body, "reasoning", json!({ "effort": effort }));
    }
    if let Some(key) = &request.cache_key {
        set(&mut body, "prompt_cache_key", key.as_str().into());
    }
    if !request.tools.is_empty() {
        // Without the word the API takes every schema for a strict one.
        let tools = request.tools.iter().map(|tool| {
            json!({
                "type": "function", "name": tool.name, "description": tool.description,
                "parameters": plain_object(&tool.input_schema), "strict": false,
            })
        });
        set(&mut body, "tools", tools.collect());
    }
    if context.streaming {
        set(&mut body, "stream", true.into());
    }
    adapt(&mut body, &request.adaptation);
    body
}

fn user(text: &str, images: &[&Image]) -> Value {
    if images.is_empty() {
        return json!({ "type": "message", "role": "user", "content": text });
    }
    let words = (!text.is_empty()).then(|| json!({ "type": "input_text", "text": text }));
    let shown = images.iter().filter_map(|image| {
        let url = format!("data:{};base64,{}", image.mime_type, base64(image)?);
        Some(json!({ "type": "input_image", "image_url": url }))
    });
    let content: Vec<Value> = words.into_iter().chain(shown).collect();
    json!({ "type": "message", "role": "user", "content": content })
}

/// The items of an answer in their order.
fn answer_items(entry: &AssistantEntry<'_>) -> Vec<Value> {
    let words = |text: &str, phase: Option<Value>| {
        let mut item = json!({ "type": "message", "role": "assistant", "content": text });
        if let Some(phase) = phase {
            set(&mut item, "phase", phase);
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
    // Words that screening changed stand together where the first of them stood.
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
                    // Of Anthropic's dialect.
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
