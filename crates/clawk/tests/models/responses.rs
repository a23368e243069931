//! OpenAI as its reasoning models are served: function tools by the Responses API alone, reasoning items sealed and sent back with
//! the items that follow them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::server::{ModelRefusal, ModelReply, ModelRequest, PrefixCache, VendorRules, unknown_member};
use crate::story::{NextAnswer, StoryCall, StoryEntry, StoryPlace, file_name, find_place};

const KNOWN: [&str; 16] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "store",
    "include",
    "stream",
    "stream_options",
    "max_output_tokens",
    "reasoning",
    "prompt_cache_key",
    "text",
    "truncation",
    "metadata",
];
const SUMMARY_ORDER: &str = "You shorten a conversation";

#[derive(Debug)]
pub(crate) struct OpenAiRules {
    /// By the cache key.
    caches: BTreeMap<String, PrefixCache>,
    answers: u64,
    /// Reasoning items by id, and the calls that each came with.
    reasoning: BTreeMap<String, String>,
    reasoned_calls: BTreeMap<String, String>,
}

impl OpenAiRules {
    pub(crate) const fn new() -> Self {
        Self {
            caches: BTreeMap::new(),
            answers: 0,
            reasoning: BTreeMap::new(),
            reasoned_calls: BTreeMap::new(),
        }
    }

    fn read(&self, input: &[Value]) -> Result<Vec<StoryEntry>, ModelRefusal> {
        let mut entries = Vec::new();
        let mut open: BTreeSet<String> = BTreeSet::new();
        let mut all: BTreeSet<String> = BTreeSet::new();
        let mut thought: Option<&str> = None;
        let mut last_thought = None;
        for item in input {
            let text = |name: &str| item[name].as_str().unwrap_or_default();
            match text("type") {
                "message" | "" => {
                    if !open.is_empty() {
                        return Err(refuse(&format!(
                            "No tool output found for function call {open:?}."
                        )));
                    }
                    let words = item["content"].as_str().unwrap_or_default();
                    if words.is_empty() {
                        return Err(refuse("Invalid 'input': empty content"));
                    }
                    match (text("role"), thought) {
                        ("user", Some(id)) => {
                            return Err(refuse(&format!(
                                "Item '{id}' of type 'reasoning' was provided without its required following item."
                            )));
                        }
                        ("user", None) => entries.push(StoryEntry::User(words.to_owned())),
                        _ => entries.push(StoryEntry::Assistant {
                            text: words.to_owned(),
                            calls: Vec::new(),
                        }),
                    }
                    thought = None;
                    last_thought = None;
                }
                "reasoning" => {
                    let sealed = self.reasoning.get(text("id"));
                    if sealed.is_none_or(|sealed| *sealed != text("encrypted_content")) {
                        return Err(refuse(
                            "The encrypted content could not be verified. Reason: Encrypted content could not be decrypted or parsed.",
                        ));
                    }
                    if let Some(id) = thought {
                        return Err(refuse(&format!(
                            "Item '{id}' of type 'reasoning' was provided without its required following item."
                        )));
                    }
                    thought = Some(text("id"));
                    last_thought = thought;
                }
                "function_call" => {
                    let id = text("call_id");
                    if id.is_empty() || id.len() > 64 || !all.insert(id.to_owned()) {
                        return Err(refuse(&format!("Invalid 'input[].call_id': '{id}'.")));
                    }
                    if self.reasoned_calls.get(id).map(String::as_str) != last_thought {
                        return Err(refuse(&format!(
                            "Item '{id}' of type 'function_call' was provided without its required 'reasoning' item."
                        )));
                    }
                    let arguments = serde_json::from_str(text("arguments"))
                        .map_err(|_| refuse("arguments are not a JSON text"))?;
                    let call = StoryCall {
                        id: id.to_owned(),
                        arguments,
                    };
                    match (thought.take(), open.is_empty(), entries.last_mut()) {
                        (None, false, Some(StoryEntry::Assistant { calls, .. })) => calls.push(call),
                        _ => entries.push(StoryEntry::Assistant {
                            text: String::new(),
                            calls: vec![call],
                        }),
                    }
                    open.insert(id.to_owned());
                }
                "function_call_output" => {
                    if !open.remove(text("call_id")) {
                        return Err(refuse(&format!(
                            "No tool call found for function call output with call_id {}.",
                            text("call_id")
                        )));
                    }
                    last_thought = None;
                    entries.push(StoryEntry::ToolResult {
                        call_id: text("call_id").to_owned(),
                        text: text("output").to_owned(),
                    });
                }
                other => {
                    return Err(refuse(&format!(
                        "Invalid value: '{other}'. Supported values are: 'message', 'reasoning', 'function_call', …"
                    )));
                }
            }
        }
        match open.is_empty() {
            true => Ok(entries),
            false => Err(refuse(&format!(
                "No tool output found for function call {open:?}."
            ))),
        }
    }

    fn output(&mut self, next: &NextAnswer) -> Vec<Value> {
        self.answers += 1;
        let n = self.answers;
        let (reasoning, sealed) = (format!("rs_{n}"), format!("gAAAA{n:08}"));
        let mut output =
            vec![json!({ "type": "reasoning", "id": reasoning, "summary": [], "encrypted_content": sealed })];
        match next {
            NextAnswer::Words(words) => output.push(json!({ "type": "message", "id": format!("msg_{n}"), "role": "assistant", "status": "completed", "content": [{ "type": "output_text", "text": words, "annotations": [] }] })),
            NextAnswer::Calls(files) => output.extend(files.iter().enumerate().map(|(index, file)| {
                let arguments = json!({ "path": file_name(*file) }).to_string();
                let id = format!("call_{n}_{index}");
                self.reasoned_calls.insert(id.clone(), reasoning.clone());
                json!({ "type": "function_call", "id": format!("fc_{n}_{index}"), "call_id": id, "name": "file-read", "arguments": arguments, "status": "completed" })
            })),
        }
        self.reasoning.insert(reasoning, sealed);
        output
    }
}

fn refuse(why: &str) -> ModelRefusal {
    ModelRefusal {
        status: 400,
        text: json!({ "error": { "message": why, "type": "invalid_request_error", "param": null, "code": null } }).to_string(),
    }
}

fn events(output: &[Value], usage: &Value) -> String {
    let mut events = vec![
        json!({ "type": "response.created", "response": { "model": "m", "status": "in_progress", "output": [] } }),
    ];
    for (index, item) in output.iter().enumerate() {
        let mut begun = item.clone();
        match item["type"].as_str().unwrap() {
            "function_call" => {
                begun["arguments"] = "".into();
                events.push(
                    json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
                );
                events.push(json!({ "type": "response.function_call_arguments.delta", "output_index": index, "item_id": item["id"], "delta": item["arguments"] }));
            }
            "message" => {
                begun["content"] = json!([]);
                events.push(
                    json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
                );
                events.push(json!({ "type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": item["content"][0]["text"] }));
            }
            _ => events
                .push(json!({ "type": "response.output_item.added", "output_index": index, "item": begun })),
        }
        events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
    }
    let response = json!({ "object": "response", "id": "resp_1", "model": "m", "status": "completed", "output": output, "usage": usage, "error": null, "incomplete_details": null });
    events.push(json!({ "type": "response.completed", "response": response }));
    let text = events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap()));
    text.collect()
}

impl VendorRules for OpenAiRules {
    fn name(&self) -> &'static str {
        "openai"
    }

    fn answer(&mut self, request: &ModelRequest) -> Result<ModelReply, ModelRefusal> {
        let body = &request.body;
        if body.is_null() {
            return Err(ModelRefusal {
                status: 404,
                text: "{}".to_owned(),
            });
        }
        if request.path.ends_with("/chat/completions") {
            if let Some(name) = body.get("max_tokens").map(|_| "max_tokens") {
                return Err(refuse(&format!(
                    "Unsupported parameter: '{name}' is not supported with this model. Use 'max_completion_tokens' instead."
                )));
            }
            return Err(refuse(
                "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
            ));
        }
        if let Some(name) = unknown_member(body, &KNOWN) {
            return Err(refuse(&format!("Unknown parameter: '{name}'.")));
        }
        if body["max_output_tokens"].as_u64().is_none_or(|most| most < 16) {
            return Err(refuse(
                "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16",
            ));
        }
        for tool in body["tools"].as_array().into_iter().flatten() {
            let schema = &tool["parameters"];
            let refused = ["oneOf", "anyOf", "allOf", "enum", "not"];
            if schema["type"] != "object" || refused.iter().any(|name| schema.get(name).is_some()) {
                return Err(refuse(&format!(
                    "Invalid schema for function {}: schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
                    tool["name"]
                )));
            }
        }
        let input = body["input"].as_array().cloned().unwrap_or_default();
        let entries = self.read(&input)?;
        let key = body["prompt_cache_key"].as_str().unwrap_or_default().to_owned();
        let cache = self
            .caches
            .entry(key)
            .or_insert_with(|| PrefixCache::new(1024, 128));
        let (input_tokens, cached_tokens) = cache.count(format!(
            "{}{}{}",
            body["tools"], body["instructions"], body["input"]
        ));
        let is_summary = body["instructions"]
            .as_str()
            .is_some_and(|text| text.contains(SUMMARY_ORDER));
        let place = match is_summary {
            true => StoryPlace {
                task: 0,
                step: 0,
                next: NextAnswer::Words("Files were read.".to_owned()),
            },
            false => find_place(&entries).map_err(|why| refuse(&why))?,
        };
        let output_tokens = 25;
        let output = self.output(&place.next);
        let usage = json!({ "input_tokens": input_tokens, "input_tokens_details": { "cached_tokens": cached_tokens }, "output_tokens": output_tokens, "output_tokens_details": { "reasoning_tokens": 5 }, "total_tokens": input_tokens + output_tokens });
        Ok(ModelReply {
            place: Some(place).filter(|_| !is_summary),
            input_tokens,
            cached_tokens,
            output_tokens,
            content_type: "text/event-stream",
            text: events(&output, &usage),
        })
    }
}
