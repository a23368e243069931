//! OpenAI's chat completions dialect, with the variations of other servers: writes requests.

use std::borrow::Cow;

use clawk_core::ports::{Image, StatePart};
use clawk_egress::Url;
use serde_json::{Value, json};

use crate::call_ids::IdRule;
use crate::draft::arguments_again;
use crate::history::{AssistantEntry, HistoryEntry, HistoryRules, whole_history};
use crate::picture::picture_base64;
use crate::state::{THOUGHT_MEMBERS, json_of};
use crate::tool_schema::plain_object;
use crate::wire::{RequestContext, adapt_body, effort_word, has_domain, set_member};

pub(crate) mod answer;

/// Name of the state member that holds thoughts as they were written in the text.
pub(crate) const WRITTEN_THOUGHTS: &str = "written_thoughts";

/// The answer's member that holds its thoughts.
const REASONING: &str = "reasoning_content";
/// The call's member that holds its signature at Google's servers.
const EXTRA: &str = "extra_content";
/// The signature for calls that another model than Gemini made.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// Returns `BASE/chat/completions`. A base without a path means `/v1`.
pub(crate) fn completions_url(base: &Url) -> Url {
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

pub(crate) fn request_body(context: RequestContext<'_>) -> Value {
    let request = context.request;
    let rules = HistoryRules {
        ids: context.id_rule(IdRule::Chat),
        alternates: context.requires_alternation(),
        user_first: false,
    };
    let entries = whole_history(context, rules);
    let mut messages = Vec::with_capacity(entries.len() + 1);
    if !context.stable_system().is_empty() {
        messages.push(json!({ "role": "system", "content": context.stable_system() }));
    }
    let mut behind_results = false;
    for entry in &entries {
        match entry {
            HistoryEntry::User { text, images } => messages.push(user_message(text, images)),
            HistoryEntry::Assistant(entry) => {
                messages.push(assistant_message(entry, behind_results, context))
            }
            HistoryEntry::Results(results) => messages.extend(results.iter().map(|result| {
                // The dialect has no flag for a failed tool call.
                let text = match result.is_error {
                    true => format!("error: {}", result.text),
                    false => result.text.clone(),
                };
                json!({ "role": "tool", "tool_call_id": result.id, "content": text })
            })),
        }
        behind_results = matches!(entry, HistoryEntry::Results(_));
    }
    let mut body = json!({ "model": context.owner.model, "messages": messages });
    // OpenAI's newer models refuse the old parameter name; most other servers know only that one.
    let limit = match has_domain(context.owner.host, "api.openai.com") {
        true => "max_completion_tokens",
        false => "max_tokens",
    };
    set_member(&mut body, limit, request.max_output_tokens.into());
    if let Some(effort) = request.effort {
        set_member(
            &mut body,
            "reasoning_effort",
            effort_word(effort, context.owner.host).into(),
        );
    }
    if let Some(key) = context.chat_cache_key() {
        set_member(&mut body, "prompt_cache_key", key.into());
    }
    if !request.tools.is_empty() {
        // OpenAI refuses alternatives at the top level of a schema; other servers build their grammar from them.
        let plain = context.is_openai();
        let function = |tool: &clawk_core::ports::ToolOffer| {
            let parameters = match plain {
                true => plain_object(&tool.input_schema),
                false => Cow::Borrowed(&tool.input_schema),
            };
            json!({ "name": tool.name, "description": tool.description, "parameters": parameters })
        };
        let tools = request
            .tools
            .iter()
            .map(|tool| json!({ "type": "function", "function": function(tool) }));
        set_member(&mut body, "tools", tools.collect());
    }
    if context.streaming {
        set_member(&mut body, "stream", true.into());
        set_member(&mut body, "stream_options", json!({ "include_usage": true }));
    }
    adapt_body(&mut body, &request.adaptation);
    body
}

fn user_message(text: &str, images: &[&Image]) -> Value {
    if images.is_empty() {
        return json!({ "role": "user", "content": text });
    }
    let words = (!text.is_empty()).then(|| json!({ "type": "text", "text": text }));
    let shown = images.iter().filter_map(|image| {
        let data = picture_base64(image)?;
        let url = format!("data:{};base64,{data}", image.mime_type);
        Some(json!({ "type": "image_url", "image_url": { "url": url } }))
    });
    let content: Vec<Value> = words.into_iter().chain(shown).collect();
    json!({ "role": "user", "content": content })
}

fn assistant_message(entry: &AssistantEntry<'_>, behind_results: bool, context: RequestContext<'_>) -> Value {
    let content = match entry.text.is_empty() && !entry.calls.is_empty() {
        true => Value::Null,
        false => entry.text.as_str().into(),
    };
    let mut message = json!({ "role": "assistant", "content": content });
    let mut calls: Vec<Value> = entry
        .calls
        .iter()
        .map(|call| {
            let arguments = arguments_again(&call.call.arguments).to_string();
            let function = json!({ "name": call.call.name, "arguments": arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        })
        .collect();
    // Only turns with tools need reasoning. Elsewhere servers ignore or refuse it.
    let with_tools = behind_results || !calls.is_empty();
    for part in entry.state.map_or(&[][..], |state| &state.parts) {
        match part {
            StatePart::Member { name, json } if name == WRITTEN_THOUGHTS => {
                let thoughts = json_of(json);
                let thoughts = thoughts.as_str().unwrap_or_default();
                let content = format!("<think>{thoughts}</think>\n\n{}", entry.text);
                set_member(&mut message, "content", content.into());
            }
            StatePart::Member { name, json } => {
                let is_thought = THOUGHT_MEMBERS.contains(&name.as_str());
                if !context.omits_member(name) && (with_tools || !is_thought) {
                    set_member(&mut message, name, json_of(json));
                }
            }
            StatePart::CallMember { call, name, json } => {
                let call = usize::try_from(*call).ok().and_then(|call| calls.get_mut(call)); // silent-ok: no such call
                if let Some(call) = call.filter(|_| !context.omits_member(name)) {
                    set_member(call, name, json_of(json));
                }
            }
            // These parts belong to another dialect.
            StatePart::Block { .. } | StatePart::Text { .. } | StatePart::Call { .. } => {}
        }
    }
    if let Some(first) = calls.first_mut() {
        add_stand_ins(&mut message, first, entry, context);
    }
    if !calls.is_empty() {
        set_member(&mut message, "tool_calls", calls.into());
    }
    message
}

/// Adds placeholders that a model requires with calls of another model, or with calls without state: an empty `reasoning_content`,
/// or the word that Google accepts as a signature.
fn add_stand_ins(
    message: &mut Value,
    first_call: &mut Value,
    entry: &AssistantEntry<'_>,
    context: RequestContext<'_>,
) {
    if context.wants_reasoning() && !context.omits_member(REASONING) && message.get(REASONING).is_none() {
        set_member(message, REASONING, "".into());
    }
    let is_foreign = entry.is_foreign || entry.state.is_none();
    if context.wants_signatures() && is_foreign && !context.omits_member(EXTRA) {
        let signature = json!({ "google": { "thought_signature": NO_SIGNATURE } });
        set_member(first_call, EXTRA, signature);
    }
}
