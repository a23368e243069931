//! Anthropic's messages dialect: writes requests.

use clawk_core::ports::{ReasoningEffort, StatePart};
use clawk_egress::Url;
use clawk_proto::Digest;
use serde_json::{Value, json};

use crate::call_ids::IdRule;
use crate::draft::arguments_again;
use crate::history::{AssistantEntry, HistoryEntry, HistoryRules, whole_history};
use crate::picture::picture_base64;
use crate::state::{PrefixDigest, json_of};
use crate::tool_schema::plain_object;
use crate::wire::{RequestContext, adapt_body, set_member};

pub(crate) mod answer;

/// The API version that this module uses.
pub(crate) const VERSION: &str = "2023-06-01";
/// The JSON member that marks the end of a prefix for the server's cache.
const MARK: &str = "cache_control";
/// Smallest thinking budget that the API accepts, in tokens.
const THOUGHTS_MIN: u64 = 1024;

/// `BASE/v1/messages`, whether or not the base ends in `/v1`.
pub(crate) fn messages_url(base: &Url) -> Url {
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

/// Returns the request body, and the digest of the prefix that the answer is bound to.
pub(crate) fn request_body(context: RequestContext<'_>) -> (Value, Digest) {
    let request = context.request;
    let rules = HistoryRules {
        ids: context.id_rule(IdRule::Anthropic),
        alternates: false,
        user_first: true,
    };
    let entries = whole_history(context, rules);
    let tools: Value = request
        .tools
        .iter()
        .map(|tool| {
            let schema = plain_object(&tool.input_schema);
            json!({ "name": tool.name, "description": tool.description, "input_schema": schema })
        })
        .collect();
    let system = Value::from(context.stable_system());
    let mut prefix = PrefixDigest::for_prompt(&system, &tools);
    let bound = binds_thoughts(context.owner.model);
    let mut messages: Vec<Value> = Vec::new();
    for entry in &entries {
        let (role, blocks) = match entry {
            HistoryEntry::User { text, images } => ("user", user_blocks(text, images)),
            HistoryEntry::Assistant(entry) => {
                let same = entry
                    .state
                    .is_some_and(|state| !bound || state.prefix == Some(prefix.digest()));
                ("assistant", assistant_blocks(entry, same))
            }
            HistoryEntry::Results(results) => {
                let results = results.iter().map(|result| {
                    json!({ "type": "tool_result", "tool_use_id": result.id, "content": result.text, "is_error": result.is_error })
                });
                ("user", results.collect())
            }
        };
        let message = json!({ "role": role, "content": blocks });
        prefix.add_message(&message);
        // The API wants all results of one answer, and the user's text after them, in one message.
        match messages.last_mut() {
            Some(last) if last.get("role").and_then(Value::as_str) == Some(role) => {
                if let Some(so_far) = last.get_mut("content").and_then(Value::as_array_mut) {
                    so_far.extend(blocks);
                }
            }
            _ => messages.push(message),
        }
    }
    let mut body = json!({ "model": context.owner.model, "max_tokens": request.max_output_tokens });
    if !context.stable_system().is_empty() {
        set_member(
            &mut body,
            "system",
            json!([{ "type": "text", "text": context.stable_system() }]),
        );
    }
    if !request.tools.is_empty() {
        set_member(&mut body, "tools", tools);
    }
    if let Some(effort) = request.effort {
        set_effort(&mut body, effort, context, thinks_on(&entries));
    }
    set_member(&mut body, "messages", messages.into());
    if context.streaming {
        set_member(&mut body, "stream", true.into());
    }
    if !context.omits_member(MARK) {
        mark_cache_points(&mut body);
    }
    adapt_body(&mut body, &request.adaptation);
    (body, prefix.digest())
}

/// Marks the stable prefix (tools, system prompt) and the last two user messages for the server's cache. The server writes the
/// newest prefix into the cache and finds the one before it there.
fn mark_cache_points(body: &mut Value) {
    for place in ["tools", "system"] {
        let last = body.get_mut(place).and_then(Value::as_array_mut);
        if let Some(last) = last.and_then(|list| list.last_mut()) {
            set_member(last, MARK, json!({ "type": "ephemeral" }));
        }
    }
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    let users = messages.into_iter().flatten().rev().filter_map(|message| {
        let is_user = message.get("role").and_then(Value::as_str) == Some("user");
        let content = message.get_mut("content").and_then(Value::as_array_mut)?;
        content.last_mut().filter(|_| is_user)
    });
    for block in users.take(2) {
        let is_empty = block.get("text").and_then(Value::as_str) == Some("");
        if !is_empty {
            set_member(block, MARK, json!({ "type": "ephemeral" }));
        }
    }
}

fn user_blocks(text: &str, images: &[&clawk_core::ports::Image]) -> Vec<Value> {
    let shown = images.iter().filter_map(|image| {
        let source =
            json!({ "type": "base64", "media_type": image.mime_type, "data": picture_base64(image)? });
        Some(json!({ "type": "image", "source": source }))
    });
    let mut blocks: Vec<Value> = shown.collect();
    // The API refuses empty text.
    if !text.is_empty() || blocks.is_empty() {
        blocks.push(json!({ "type": "text", "text": text }));
    }
    blocks
}

/// Returns the answer's blocks in their order. `same`: include the blocks that this server returned.
fn assistant_blocks(entry: &AssistantEntry<'_>, same: bool) -> Vec<Value> {
    let words = |text: &str| json!({ "type": "text", "text": text });
    let mut calls: Vec<Option<Value>> = entry
        .calls
        .iter()
        .map(|call| {
            let input = arguments_again(&call.call.arguments);
            Some(json!({ "type": "tool_use", "id": call.id, "name": call.call.name, "input": input }))
        })
        .collect();
    let mut left = entry.text.as_str();
    let mut blocks = Vec::new();
    let parts = entry.state.filter(|_| same).map_or(&[][..], |state| &state.parts);
    // If screening changed the text, its length differs. Then the whole text takes the place of the first text block.
    let sum = parts.iter().map(|part| match part {
        StatePart::Text { bytes } => usize::try_from(*bytes).unwrap_or(usize::MAX),
        StatePart::Member { .. }
        | StatePart::CallMember { .. }
        | StatePart::Block { .. }
        | StatePart::Call { .. } => 0,
    });
    let fits = sum.fold(0_usize, usize::saturating_add) == left.len();
    for part in parts {
        match part {
            StatePart::Block { json } => blocks.extend(own_block(json)),
            StatePart::Text { bytes } => {
                let bytes = usize::try_from(*bytes).unwrap_or(usize::MAX);
                let (now, rest) = match fits {
                    true => left.split_at_checked(bytes).unwrap_or((left, "")),
                    false => (left, ""),
                };
                if !now.is_empty() {
                    blocks.push(words(now));
                }
                left = rest;
            }
            StatePart::Call { call } => {
                let at = usize::try_from(*call).unwrap_or(usize::MAX);
                blocks.extend(calls.get_mut(at).and_then(Option::take));
            }
            StatePart::Member { .. } | StatePart::CallMember { .. } => {}
        }
    }
    if !left.is_empty() {
        blocks.push(words(left));
    }
    blocks.extend(calls.into_iter().flatten());
    blocks
}

/// Parses a stored block of this dialect. Returns `None` for a block without content.
fn own_block(json: &str) -> Option<Value> {
    let block = json_of(json);
    let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
    let is_empty = text("type") == "thinking" && text("thinking").is_empty() && text("signature").is_empty();
    (block.is_object() && text("type") != "reasoning" && !is_empty).then_some(block)
}

/// Returns whether the current turn may continue with thinking: there is no answer yet, or the last answer with calls begins with a
/// thought.
fn thinks_on(entries: &[HistoryEntry<'_>]) -> bool {
    let last = entries.iter().rev().find_map(|entry| match entry {
        HistoryEntry::User { .. } => Some(true),
        HistoryEntry::Assistant(entry) => {
            Some(entry.calls.is_empty() || entry.state.is_some_and(|state| !state.parts.is_empty()))
        }
        HistoryEntry::Results(_) => None,
    });
    last.unwrap_or(true)
}

/// Returns whether the model's thoughts are valid only after the exact prefix they were made for. The server refuses them after any
/// other text.
fn binds_thoughts(model: &str) -> bool {
    const NAMES: [&str; 6] = [
        "fable",
        "mythos",
        "opus-5-5",
        "opus-5.5",
        "sonnet-5-5",
        "haiku-5-5",
    ];
    NAMES.iter().any(|name| model.contains(name))
}

/// Returns whether the model's thinking has no budget, so that only the effort setting controls it.
fn is_adaptive(model: &str) -> bool {
    let Some((_, rest)) = model.split_once("claude-") else {
        return false;
    };
    let numbers = rest
        .split(['-', '.', '_'])
        .filter_map(|word| word.parse::<u32>().ok()) // silent-ok: names are no numbers
        .take_while(|number| *number < 1000);
    match numbers.collect::<Vec<_>>().as_slice() {
        [major, minor, ..] => (*major, *minor) >= (4, 6),
        [major] => *major >= 5,
        [] => rest.contains("fable") || rest.contains("mythos"),
    }
}

/// Writes the reasoning effort in the form the model accepts. `goes_on`: the current turn allows a thinking budget.
fn set_effort(body: &mut Value, effort: ReasoningEffort, context: RequestContext<'_>, goes_on: bool) {
    let model = context.owner.model;
    let always = binds_thoughts(model) || model.contains("opus-4-7");
    if is_adaptive(model) {
        let word = match effort {
            ReasoningEffort::None | ReasoningEffort::Minimal | ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
            ReasoningEffort::Max => "max",
        };
        let kind = match effort {
            ReasoningEffort::None if !always => "disabled",
            ReasoningEffort::None
            | ReasoningEffort::Minimal
            | ReasoningEffort::Low
            | ReasoningEffort::Medium
            | ReasoningEffort::High
            | ReasoningEffort::Max => "adaptive",
        };
        set_member(body, "thinking", json!({ "type": kind }));
        set_member(body, "output_config", json!({ "effort": word }));
        return;
    }
    let budget = match effort {
        ReasoningEffort::None => 0,
        ReasoningEffort::Minimal => THOUGHTS_MIN,
        ReasoningEffort::Low => 2 * THOUGHTS_MIN,
        ReasoningEffort::Medium => 8 * THOUGHTS_MIN,
        ReasoningEffort::High => 16 * THOUGHTS_MIN,
        ReasoningEffort::Max => 32 * THOUGHTS_MIN,
    };
    // The thinking budget counts towards the output limit, so the answer needs a share of it.
    let budget = budget.min(context.request.max_output_tokens / 4 * 3);
    let thinking = match budget >= THOUGHTS_MIN && goes_on {
        true => json!({ "type": "enabled", "budget_tokens": budget }),
        false => json!({ "type": "disabled" }),
    };
    set_member(body, "thinking", thinking);
}

#[cfg(test)]
mod tests {
    use super::is_adaptive;

    #[test]
    fn models_with_budgets_of_thoughts_are_known_by_their_names() {
        for (model, adaptive) in [
            ("claude-opus-4-6", true),
            ("claude-opus-4-7", true),
            ("claude-sonnet-5", true),
            ("claude-opus-5-5", true),
            ("claude-fable-5-1", true),
            ("anthropic/claude-opus-5.5", true),
            ("claude-sonnet-4-5-20250929", false),
            ("claude-haiku-4-5", false),
            ("claude-opus-4-20250514", false),
            ("claude-3-7-sonnet-20250219", false),
            ("MiniMax-M3", false),
        ] {
            assert_eq!(is_adaptive(model), adaptive, "{model}");
        }
    }
}
