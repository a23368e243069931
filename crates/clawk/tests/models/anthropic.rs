//! Anthropic's messages: thinking with signatures, results behind their calls, a cache by marks.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Value, json};

use crate::server::{ModelRefusal, ModelReply, ModelRequest, VendorRules, tokens_of, unknown_member};
use crate::story::{NextAnswer, StoryCall, StoryEntry, StoryPlace, file_name, find_place};

const KNOWN: [&str; 13] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "thinking",
    "output_config",
    "metadata",
    "stop_sequences",
    "service_tier",
    "cache_control",
];
const SUMMARY_ORDER: &str = "You shorten a conversation";
/// Blocks before a mark that are looked up in the cache.
const LOOK_BACK: usize = 20;
/// The shortest beginning that is cached.
const LEAST_TOKENS: u64 = 1024;

#[derive(Debug)]
pub(crate) struct AnthropicRules {
    answers: u64,
    /// Thoughts by their signatures.
    signed: BTreeMap<String, String>,
    /// Calls that came behind a thought.
    thought_calls: BTreeMap<String, String>,
    cached: HashSet<String>,
}

struct Counts {
    fresh: u64,
    read: u64,
    written: u64,
}

impl AnthropicRules {
    pub(crate) fn new() -> Self {
        Self {
            answers: 0,
            signed: BTreeMap::new(),
            thought_calls: BTreeMap::new(),
            cached: HashSet::new(),
        }
    }

    fn read(&self, messages: &[Value]) -> Result<Vec<StoryEntry>, ModelRefusal> {
        let mut entries = Vec::new();
        let mut open: BTreeSet<String> = BTreeSet::new();
        let mut all: BTreeSet<String> = BTreeSet::new();
        for (at, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            let empty = Vec::new();
            let blocks = message["content"].as_array().unwrap_or(&empty);
            if blocks.is_empty() || (at == 0 && role != "user") {
                return Err(refuse(&format!(
                    "messages.{at}: all messages must have non-empty content"
                )));
            }
            let mut is_over = false;
            let (mut text, mut calls, mut signature) = (String::new(), Vec::new(), None);
            for (place, block) in blocks.iter().enumerate() {
                let member = |name: &str| block[name].as_str().unwrap_or_default();
                match (role, member("type")) {
                    ("user", "tool_result") if !is_over => {
                        if !open.remove(member("tool_use_id")) {
                            return Err(refuse(&format!(
                                "messages.{at}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.",
                                member("tool_use_id")
                            )));
                        }
                        entries.push(StoryEntry::ToolResult {
                            call_id: member("tool_use_id").to_owned(),
                            text: member("content").to_owned(),
                        });
                    }
                    (_, "text") => {
                        if member("text").trim().is_empty() {
                            return Err(refuse("messages: text content blocks must be non-empty"));
                        }
                        is_over = true;
                        match role {
                            "user" => entries.push(StoryEntry::User(member("text").to_owned())),
                            _ => text.push_str(member("text")),
                        }
                    }
                    ("assistant", "thinking") => {
                        if self
                            .signed
                            .get(member("signature"))
                            .is_none_or(|thought| thought != member("thinking"))
                        {
                            return Err(refuse(&format!(
                                "messages.{at}.content.{place}: Invalid `signature` in `thinking` block"
                            )));
                        }
                        signature = Some(member("signature"));
                    }
                    ("assistant", "tool_use") => {
                        let id = member("id");
                        let letters = id
                            .chars()
                            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
                        if id.is_empty() || !letters || !block["input"].is_object() {
                            return Err(refuse(&format!(
                                "messages.{at}.content.{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
                            )));
                        }
                        if !all.insert(id.to_owned()) {
                            return Err(refuse(&format!(
                                "messages.{at}.content.{place}: `tool_use` ids must be unique"
                            )));
                        }
                        let thought = self.thought_calls.get(id).map(String::as_str);
                        if thought != signature {
                            return Err(refuse(&format!(
                                "messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
                            )));
                        }
                        calls.push(StoryCall {
                            id: id.to_owned(),
                            arguments: block["input"].clone(),
                        });
                    }
                    (role, kind) => {
                        return Err(refuse(&format!(
                            "messages.{at}.content.{place}: `{kind}` is not allowed here in a message of {role}"
                        )));
                    }
                }
            }
            if role == "user" && !open.is_empty() {
                return Err(refuse(&format!(
                    "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {open:?}"
                )));
            }
            if role == "assistant" {
                open.extend(calls.iter().map(|call| call.id.clone()));
                entries.push(StoryEntry::Assistant { text, calls });
            }
        }
        match messages.last().map(|last| &last["role"]) {
            Some(role) if role == "user" && open.is_empty() => Ok(entries),
            _ => Err(refuse(
                "This model does not support assistant message prefill. The conversation must end with a user message.",
            )),
        }
    }

    fn check_request(&self, request: &ModelRequest) -> Result<(), ModelRefusal> {
        let body = &request.body;
        if let Some(name) = unknown_member(body, &KNOWN) {
            return Err(refuse(&format!("{name}: Extra inputs are not permitted")));
        }
        if !request.head.contains("anthropic-version: ")
            || body["max_tokens"].as_u64().is_none_or(|most| most == 0)
        {
            return Err(refuse("max_tokens: Field required"));
        }
        if let Some(budget) = body["thinking"]["budget_tokens"].as_u64() {
            return Err(refuse(&format!(
                "thinking.budget_tokens: {budget}: this model thinks adaptively"
            )));
        }
        for (at, tool) in body["tools"].as_array().into_iter().flatten().enumerate() {
            let schema = &tool["input_schema"];
            if schema["type"] != "object" {
                return Err(refuse(&format!(
                    "tools.{at}.custom.input_schema.type: Field required"
                )));
            }
            if ["oneOf", "anyOf", "allOf"]
                .iter()
                .any(|name| schema.get(name).is_some())
            {
                return Err(refuse(&format!(
                    "tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
                )));
            }
        }
        Ok(())
    }

    /// The cache reads and writes at marks only.
    fn count(&mut self, body: &Value) -> Result<Counts, ModelRefusal> {
        let empty = Vec::new();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut blocks = list(&body["tools"]);
        blocks.extend(list(&body["system"]));
        for message in body["messages"].as_array().unwrap_or(&empty) {
            blocks.extend(list(&message["content"]));
        }
        let (mut so_far, mut beginnings, mut marks) = (String::new(), Vec::new(), Vec::new());
        for (at, block) in blocks.iter_mut().enumerate() {
            let mark = block
                .as_object_mut()
                .and_then(|block| block.remove("cache_control"));
            if mark.is_some() {
                marks.push(at);
            }
            so_far.push_str(&block.to_string());
            beginnings.push((
                clawk_trace::chain::digest_of(so_far.as_bytes()).to_string(),
                tokens_of(so_far.len()),
            ));
        }
        if marks.len() > 4 {
            return Err(refuse(&format!(
                "A maximum of 4 blocks with cache_control may be provided. Found {}.",
                marks.len()
            )));
        }
        let all = tokens_of(so_far.len());
        let (mut read, mut written) = (0, 0);
        for mark in &marks {
            let looked_up = beginnings.iter().take(mark + 1).rev().take(LOOK_BACK);
            let found = looked_up
                .filter(|(digest, _)| self.cached.contains(digest))
                .map(|(_, tokens)| *tokens);
            read = found.chain([read]).max().unwrap_or(0);
        }
        for mark in marks {
            let (digest, tokens) = &beginnings[mark];
            if *tokens >= LEAST_TOKENS {
                self.cached.insert(digest.clone());
                written = *tokens;
            }
        }
        let written = written.saturating_sub(read);
        Ok(Counts {
            fresh: all - read - written,
            read,
            written,
        })
    }

    fn events(&mut self, next: &NextAnswer, counts: &Counts, output_tokens: u64) -> String {
        self.answers += 1;
        let n = self.answers;
        let (thought, signature) = (format!("I think, for the {n}th time."), format!("c2lnbmVk{n:08}"));
        self.signed.insert(signature.clone(), thought.clone());
        let usage = json!({ "input_tokens": counts.fresh, "cache_read_input_tokens": counts.read, "cache_creation_input_tokens": counts.written, "output_tokens": 1 });
        let mut events = vec![
            json!({ "type": "message_start", "message": { "id": "msg", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage } }),
            json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "thinking", "thinking": "", "signature": "" } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "thinking_delta", "thinking": thought } }),
            json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "signature_delta", "signature": signature } }),
            json!({ "type": "content_block_stop", "index": 0 }),
        ];
        let stop = match next {
            NextAnswer::Words(words) => {
                events.push(json!({ "type": "content_block_start", "index": 1, "content_block": { "type": "text", "text": "" } }));
                events.push(json!({ "type": "content_block_delta", "index": 1, "delta": { "type": "text_delta", "text": words } }));
                events.push(json!({ "type": "content_block_stop", "index": 1 }));
                "end_turn"
            }
            NextAnswer::Calls(files) => {
                for (index, file) in files.iter().enumerate() {
                    let id = format!("toolu_{n}_{index}");
                    let arguments = json!({ "path": file_name(*file) }).to_string();
                    events.push(json!({ "type": "content_block_start", "index": index + 1, "content_block": { "type": "tool_use", "id": id, "name": "file-read", "input": {} } }));
                    events.push(json!({ "type": "content_block_delta", "index": index + 1, "delta": { "type": "input_json_delta", "partial_json": arguments } }));
                    events.push(json!({ "type": "content_block_stop", "index": index + 1 }));
                    self.thought_calls.insert(id, signature.clone());
                }
                "tool_use"
            }
        };
        events.push(json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": output_tokens } }));
        events.push(json!({ "type": "message_stop" }));
        let text = events
            .iter()
            .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()));
        text.collect()
    }
}

fn refuse(why: &str) -> ModelRefusal {
    ModelRefusal {
        status: 400,
        text: json!({ "type": "error", "error": { "type": "invalid_request_error", "message": why } })
            .to_string(),
    }
}

impl VendorRules for AnthropicRules {
    fn name(&self) -> &'static str {
        "anthropic"
    }

    fn overloaded(&self) -> ModelRefusal {
        ModelRefusal {
            status: 529,
            text:
                json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } })
                    .to_string(),
        }
    }

    fn answer(&mut self, request: &ModelRequest) -> Result<ModelReply, ModelRefusal> {
        let body = &request.body;
        if body.is_null() {
            return Err(ModelRefusal {
                status: 404,
                text: "{}".to_owned(),
            });
        }
        self.check_request(request)?;
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let entries = self.read(&messages)?;
        let counts = self.count(body)?;
        let is_summary = body["system"].to_string().contains(SUMMARY_ORDER);
        let place = match is_summary {
            true => StoryPlace {
                task: 0,
                step: 0,
                next: NextAnswer::Words("Files were read.".to_owned()),
            },
            false => find_place(&entries).map_err(|why| refuse(&why))?,
        };
        let output_tokens = 25;
        let text = self.events(&place.next, &counts, output_tokens);
        Ok(ModelReply {
            place: Some(place).filter(|_| !is_summary),
            input_tokens: counts.fresh + counts.read + counts.written,
            cached_tokens: counts.read,
            output_tokens,
            content_type: "text/event-stream",
            text,
        })
    }
}
