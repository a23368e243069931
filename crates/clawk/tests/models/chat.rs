//! Servers of chat completions, each as strict as its vendor.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::server::{ModelRefusal, ModelReply, ModelRequest, PrefixCache, VendorRules, unknown_member};
use crate::story::{NextAnswer, StoryCall, StoryEntry, StoryPlace, file_name, find_place};

/// Whose rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChatVendor {
    /// A deployment of a reasoning model: `max_completion_tokens`, no `stream_options`.
    Azure,
    /// Google's OpenAI-compatible address: thought signatures.
    Gemini,
    /// `reasoning_content` of each answer with calls.
    DeepSeek,
    /// Ids of nine letters and digits, roles in order, no unknown member.
    Mistral,
    /// llama.cpp with a window of 8,192 tokens and a template whose roles alternate.
    Local,
}

/// The local server's window.
const LOCAL_WINDOW: u64 = 8192;

#[derive(Debug)]
pub(crate) struct ChatRules {
    vendor: ChatVendor,
    cache: PrefixCache,
    answers: u64,
    /// What was handed over with each call or answer, by the call's id.
    issued: BTreeMap<String, String>,
}

/// What a summary of a conversation is asked with.
const SUMMARY_ORDER: &str = "You shorten a conversation";

impl ChatRules {
    pub(crate) const fn new(vendor: ChatVendor) -> Self {
        let cache = match vendor {
            ChatVendor::DeepSeek => PrefixCache::new(64, 64),
            ChatVendor::Azure | ChatVendor::Gemini => PrefixCache::new(1024, 128),
            ChatVendor::Mistral | ChatVendor::Local => PrefixCache::new(u64::MAX, 1),
        };
        Self {
            vendor,
            cache,
            answers: 0,
            issued: BTreeMap::new(),
        }
    }

    fn refuse(&self, why: &str) -> ModelRefusal {
        let (status, body) = match self.vendor {
            ChatVendor::Azure | ChatVendor::DeepSeek => (
                400,
                json!({ "error": { "message": why, "type": "invalid_request_error", "param": null, "code": "invalid_request_error" } }),
            ),
            ChatVendor::Gemini => (
                400,
                json!([{ "error": { "code": 400, "message": why, "status": "INVALID_ARGUMENT" } }]),
            ),
            ChatVendor::Mistral => (
                400,
                json!({ "object": "error", "message": why, "type": "invalid_request_error", "param": null, "code": "3051" }),
            ),
            ChatVendor::Local => (
                500,
                json!({ "error": { "code": 500, "message": why, "type": "server_error" } }),
            ),
        };
        ModelRefusal {
            status,
            text: body.to_string(),
        }
    }

    fn refuse_parameter(&self, name: &str) -> ModelRefusal {
        match self.vendor {
            ChatVendor::Mistral => ModelRefusal {
                status: 422,
                text: json!({ "detail": [{ "type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": 1 }] }).to_string(),
            },
            ChatVendor::Gemini => self.refuse(&format!("Invalid JSON payload received. Unknown name \"{name}\": Cannot find field.")),
            ChatVendor::Azure if name == "max_tokens" => self.refuse("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."),
            ChatVendor::Azure | ChatVendor::DeepSeek | ChatVendor::Local => self.refuse(&format!("Unrecognized request argument supplied: {name}")),
        }
    }

    fn check_parameters(&self, body: &Value) -> Result<(), ModelRefusal> {
        let own: &[&str] = match self.vendor {
            ChatVendor::Azure => &["max_completion_tokens", "reasoning_effort", "prompt_cache_key"],
            ChatVendor::Gemini => &[
                "max_tokens",
                "max_completion_tokens",
                "stream_options",
                "reasoning_effort",
            ],
            ChatVendor::DeepSeek => &["max_tokens", "stream_options", "reasoning_effort", "thinking"],
            ChatVendor::Mistral => &["max_tokens"],
            ChatVendor::Local => &["max_tokens", "stream_options"],
        };
        let known: Vec<&str> = [&["model", "messages", "tools", "stream", "tool_choice"], own].concat();
        match unknown_member(body, &known) {
            Some(name) => Err(self.refuse_parameter(&name)),
            None => Ok(()),
        }
    }

    /// What every server of the dialect asks for.
    fn read(&self, messages: &[Value]) -> Result<Vec<StoryEntry>, ModelRefusal> {
        let mut entries = Vec::new();
        let mut open: BTreeSet<String> = BTreeSet::new();
        for (at, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            if !open.is_empty() && role != "tool" {
                return Err(self.refuse(&format!("An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {open:?}")));
            }
            let text = message["content"].as_str();
            match role {
                "system" if at == 0 => {}
                "user" => match text {
                    Some(text) if !text.trim().is_empty() => entries.push(StoryEntry::User(text.to_owned())),
                    _ => return Err(self.refuse("a message of the user is empty")),
                },
                "assistant" => {
                    let calls = self.read_calls(message)?;
                    if calls.is_empty() && text.unwrap_or_default().is_empty() {
                        return Err(self.refuse(
                            "Assistant message must have either content or tool_calls, but not none.",
                        ));
                    }
                    open = calls.iter().map(|call| call.id.clone()).collect();
                    if open.len() != calls.len() {
                        return Err(self.refuse("Duplicate tool call id"));
                    }
                    entries.push(StoryEntry::Assistant {
                        text: text.unwrap_or_default().to_owned(),
                        calls,
                    });
                }
                "tool" => {
                    let id = message["tool_call_id"].as_str().unwrap_or_default();
                    if !open.remove(id) {
                        return Err(self.refuse("messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."));
                    }
                    let text = text.ok_or_else(|| self.refuse("a tool's message has no text"))?;
                    entries.push(StoryEntry::ToolResult {
                        call_id: id.to_owned(),
                        text: text.to_owned(),
                    });
                }
                other => return Err(self.refuse(&format!("Invalid role: {other} at {at}"))),
            }
        }
        match open.is_empty() {
            true => Ok(entries),
            false => Err(self.refuse("the last calls have no response messages")),
        }
    }

    fn read_calls(&self, message: &Value) -> Result<Vec<StoryCall>, ModelRefusal> {
        let Some(calls) = message.get("tool_calls") else {
            return Ok(Vec::new());
        };
        let calls = calls.as_array().filter(|calls| !calls.is_empty());
        let calls = calls.ok_or_else(|| self.refuse("Invalid 'tool_calls': empty array"))?;
        let read = calls.iter().map(|call| {
            let id = call["id"].as_str().unwrap_or_default();
            if id.is_empty() || id.len() > 40 {
                return Err(self.refuse(
                    "Invalid 'tool_calls[0].id': string too long. Expected a string with maximum length 40",
                ));
            }
            let arguments = call["function"]["arguments"]
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok());
            let arguments = arguments.ok_or_else(|| self.refuse("arguments are not a JSON text"))?;
            Ok(StoryCall {
                id: id.to_owned(),
                arguments,
            })
        });
        read.collect()
    }

    /// What the vendor asks for beyond the dialect.
    fn check_messages(&self, messages: &[Value]) -> Result<(), ModelRefusal> {
        match self.vendor {
            ChatVendor::Azure => Ok(()),
            ChatVendor::Gemini => self.check_signatures(messages),
            ChatVendor::DeepSeek => self.check_reasoning(messages),
            ChatVendor::Mistral => self.check_mistral(messages),
            ChatVendor::Local => self.check_turns(messages),
        }
    }

    /// In the present turn the first call of each answer has its signature. What Google names as a stand-in for the signature of
    /// another model's call is taken, and nothing else.
    fn check_signatures(&self, messages: &[Value]) -> Result<(), ModelRefusal> {
        let present = messages
            .iter()
            .rposition(|message| message["role"] == "user")
            .unwrap_or(0);
        for (at, message) in messages.iter().enumerate() {
            let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
            for (place, call) in calls.iter().enumerate() {
                let signature = call["extra_content"]["google"]["thought_signature"].as_str();
                let id = call["id"].as_str().unwrap_or_default();
                let right = match (signature, self.issued.get(id)) {
                    (Some(signature), issued) => {
                        issued.is_some_and(|issued| issued == signature)
                            || signature == "skip_thought_signature_validator"
                    }
                    (None, _) => place > 0 || at < present,
                };
                if !right {
                    return Err(self.refuse("Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance."));
                }
            }
        }
        Ok(())
    }

    fn check_reasoning(&self, messages: &[Value]) -> Result<(), ModelRefusal> {
        for message in messages {
            let Some(call) = message["tool_calls"].get(0) else {
                continue;
            };
            let reasoning = message.get("reasoning_content").and_then(Value::as_str);
            let issued = self.issued.get(call["id"].as_str().unwrap_or_default());
            let right = match (reasoning, issued) {
                (None, _) => false,
                (Some(reasoning), Some(issued)) => reasoning == issued,
                (Some(reasoning), None) => reasoning.is_empty(),
            };
            if !right {
                return Err(self
                    .refuse("The `reasoning_content` in the thinking mode must be passed back to the API."));
            }
        }
        Ok(())
    }

    fn check_mistral(&self, messages: &[Value]) -> Result<(), ModelRefusal> {
        let mut before = "";
        for message in messages {
            let role = message["role"].as_str().unwrap_or_default();
            if before == "tool" && role == "user" {
                return Err(self.refuse("Unexpected role 'user' after role 'tool'"));
            }
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let id = call["id"].as_str().unwrap_or_default();
                if id.len() != 9 || !id.chars().all(|c| c.is_ascii_alphanumeric()) {
                    return Err(self.refuse(&format!(
                        "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."
                    )));
                }
                if let Some(name) = unknown_member(call, &["id", "type", "function", "index"]) {
                    return Err(self.refuse_parameter(&name));
                }
            }
            if let Some(name) = unknown_member(
                message,
                &["role", "content", "tool_calls", "tool_call_id", "name", "prefix"],
            ) {
                return Err(self.refuse_parameter(&name));
            }
            before = role;
        }
        match before {
            "user" | "tool" => Ok(()),
            _ => Err(self.refuse("Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant")),
        }
    }

    /// Users and assistants in turn; results belong to the assistant's part.
    fn check_turns(&self, messages: &[Value]) -> Result<(), ModelRefusal> {
        let mut before = "assistant";
        for message in messages {
            let role = message["role"].as_str().unwrap_or_default();
            let alternates = match role {
                "user" => before != "user" && before != "tool",
                "assistant" => before == "user" || before == "tool",
                _ => true,
            };
            if !alternates {
                return Err(self.refuse("Value is not callable: Conversation roles must alternate user/assistant/user/assistant/..."));
            }
            if role != "system" {
                before = role;
            }
        }
        Ok(())
    }

    fn check_window(&self, tokens: u64) -> Result<(), ModelRefusal> {
        if self.vendor != ChatVendor::Local || tokens <= LOCAL_WINDOW {
            return Ok(());
        }
        let message = format!(
            "request ({tokens} tokens) exceeds the available context size ({LOCAL_WINDOW} tokens), try increasing it"
        );
        let error = json!({ "code": 400, "message": message, "type": "exceed_context_size_error", "n_prompt_tokens": tokens, "n_ctx": LOCAL_WINDOW });
        Err(ModelRefusal {
            status: 400,
            text: json!({ "error": error }).to_string(),
        })
    }

    /// The chunks of an answer.
    fn stream(&mut self, next: &NextAnswer, usage: &Value, with_usage: bool) -> String {
        self.answers += 1;
        let mut deltas = vec![json!({ "role": "assistant", "content": "" })];
        let thought = format!("I think, for the {}th time.", self.answers);
        if self.vendor == ChatVendor::DeepSeek {
            let (one, two) = thought.split_at(7);
            deltas.extend([one, two].map(|part| json!({ "reasoning_content": part })));
        }
        let stop = match next {
            NextAnswer::Words(words) => {
                let (one, two) = words.split_at(words.len() / 2);
                if self.vendor == ChatVendor::Local {
                    deltas.push(json!({ "content": "<think>Hm.</think>" }));
                }
                deltas.extend([one, two].map(|part| json!({ "content": part })));
                "stop"
            }
            NextAnswer::Calls(files) => {
                for (index, file) in files.iter().enumerate() {
                    let id = match self.vendor {
                        ChatVendor::Mistral => format!("m{:07}{index}", self.answers),
                        ChatVendor::Local => {
                            format!("local.call:{}:{index}:{}", self.answers, "x".repeat(30))
                        }
                        ChatVendor::Azure | ChatVendor::Gemini | ChatVendor::DeepSeek => {
                            format!("call_{:?}{}_{index}", self.vendor, self.answers)
                        }
                    };
                    let id = id.chars().take(40).collect::<String>();
                    let arguments = json!({ "path": file_name(*file) }).to_string();
                    let mut call = json!({ "index": index, "id": id, "type": "function", "function": { "name": "file-read", "arguments": arguments } });
                    match self.vendor {
                        ChatVendor::Gemini if index == 0 => {
                            let signature = format!("c2ln{:08}", self.answers);
                            call["extra_content"] = json!({ "google": { "thought_signature": signature } });
                            self.issued.insert(id, signature);
                        }
                        ChatVendor::DeepSeek => {
                            self.issued.insert(id, thought.clone());
                        }
                        ChatVendor::Azure | ChatVendor::Gemini | ChatVendor::Mistral | ChatVendor::Local => {}
                    }
                    deltas.push(json!({ "tool_calls": [call] }));
                }
                "tool_calls"
            }
        };
        let mut chunks: Vec<Value> = deltas
            .into_iter()
            .map(|delta| json!({ "object": "chat.completion.chunk", "model": "m", "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }))
            .collect();
        chunks.push(json!({ "object": "chat.completion.chunk", "model": "m", "choices": [{ "index": 0, "delta": {}, "finish_reason": stop }] }));
        if with_usage {
            chunks.push(
                json!({ "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": usage }),
            );
        }
        let chunks = chunks.iter().map(|chunk| format!("data: {chunk}\n\n"));
        chunks.collect::<String>() + "data: [DONE]\n\n"
    }
}

impl VendorRules for ChatRules {
    fn name(&self) -> &'static str {
        match self.vendor {
            ChatVendor::Azure => "azure",
            ChatVendor::Gemini => "gemini",
            ChatVendor::DeepSeek => "deepseek",
            ChatVendor::Mistral => "mistral",
            ChatVendor::Local => "local",
        }
    }

    fn answer(&mut self, request: &ModelRequest) -> Result<ModelReply, ModelRefusal> {
        let body = &request.body;
        if self.vendor == ChatVendor::Local
            && let Some(looked_up) = look_up(&request.path)
        {
            return Ok(ModelReply {
                place: None,
                input_tokens: 0,
                cached_tokens: 0,
                output_tokens: 0,
                content_type: "application/json",
                text: looked_up.to_string(),
            });
        }
        if body.is_null() {
            return Err(ModelRefusal {
                status: 404,
                text: "{}".to_owned(),
            });
        }
        self.check_parameters(body)?;
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        let entries = self.read(&messages)?;
        self.check_messages(&messages)?;
        let prompt = format!("{}{}", body["tools"], body["messages"]);
        let (input_tokens, cached_tokens) = self.cache.count(prompt);
        self.check_window(input_tokens)?;
        let is_summary = messages
            .first()
            .and_then(|first| first["content"].as_str())
            .is_some_and(|text| text.contains(SUMMARY_ORDER));
        let place = match is_summary {
            true => StoryPlace {
                task: 0,
                step: 0,
                next: NextAnswer::Words("Files were read.".to_owned()),
            },
            false => find_place(&entries).map_err(|why| self.refuse(&why))?,
        };
        let output_tokens = 25;
        let usage = json!({ "prompt_tokens": input_tokens, "completion_tokens": output_tokens, "total_tokens": input_tokens + output_tokens, "prompt_tokens_details": { "cached_tokens": cached_tokens } });
        let with_usage =
            body["stream_options"]["include_usage"] == true || self.vendor == ChatVendor::Mistral;
        let text = self.stream(&place.next, &usage, with_usage);
        Ok(ModelReply {
            place: Some(place).filter(|_| !is_summary),
            input_tokens,
            cached_tokens,
            output_tokens,
            content_type: "text/event-stream",
            text,
        })
    }
}

/// What llama.cpp says of itself.
fn look_up(path: &str) -> Option<Value> {
    if path.ends_with("/props") {
        return Some(json!({ "default_generation_settings": { "n_ctx": LOCAL_WINDOW }, "total_slots": 1 }));
    }
    path.ends_with("/models")
        .then(|| json!({ "object": "list", "data": [{ "id": "qwen3-8b", "object": "model", "meta": { "n_ctx_train": 40960 } }, { "id": "gpt-5-mini" }, { "id": "next", "context_length": 12345 }] }))
}
