//! `POST /openai/v1/chat/completions`.

use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use clawk_kernel::ports::ToolOffer;
use clawk_kernel::{ClientCall, EarlierMessage, KernelError, TurnResult};
use serde::Deserialize;
use serde_json::{Value, json};

use super::asked::{self, OpenAiContent, OpenAiPrompt, invalid_member, unsupported_member};
use super::serve::{self, OpenAiRequestContext};
use super::stream::{AnswerStreamFormat, stream_response};
use crate::http::auth::{HttpPrincipal, StreamEndSignal};
use crate::http::{ApiError, HttpApp, body};

/// The members that are read. Settings for a model provider (`temperature`, `max_tokens` …) belong to the agent's manifest and are
/// ignored here.
#[derive(Debug, Deserialize)]
struct ChatCompletionRequest {
    model: String,
    messages: Vec<ChatCompletionMessage>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    n: Option<u32>,
    #[serde(default)]
    tools: Option<Vec<ChatToolDefinition>>,
    #[serde(default)]
    tool_choice: Option<Value>,
    #[serde(default)]
    functions: Option<Value>,
    #[serde(default)]
    response_format: Option<Value>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    stop: Option<Value>,
    #[serde(default)]
    modalities: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ChatCompletionMessage {
    role: String,
    #[serde(default)]
    content: Option<OpenAiContent>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ToolCall {
    id: String,
    function: ChatFunctionCall,
}

#[derive(Debug, Deserialize)]
struct ChatFunctionCall {
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Debug, Deserialize)]
struct ChatToolDefinition {
    r#type: String,
    #[serde(default)]
    function: Option<ChatFunctionDefinition>,
}

#[derive(Debug, Deserialize)]
struct ChatFunctionDefinition {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Value>,
}

impl ChatCompletionRequest {
    /// Refuses options that would change the answer's shape and are not supported.
    fn check_supported(&self) -> Result<(), ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(unsupported_member("n", "one answer per request"));
        }
        if self.functions.is_some() {
            return Err(unsupported_member("functions", "use `tools`"));
        }
        if self.logprobs == Some(true) {
            return Err(unsupported_member(
                "logprobs",
                "an agent's answer has no log probabilities",
            ));
        }
        if self.stop.as_ref().is_some_and(|stop| !stop.is_null()) {
            return Err(unsupported_member(
                "stop",
                "an agent's answer is not cut at a word",
            ));
        }
        let kind = self
            .response_format
            .as_ref()
            .and_then(|format| format.get("type"));
        if kind.is_some_and(|kind| kind != "text") {
            return Err(unsupported_member(
                "response_format",
                "only `text`: ask the agent for the form in words",
            ));
        }
        if self
            .modalities
            .as_ref()
            .is_some_and(|all| all.iter().any(|one| one != "text"))
        {
            return Err(unsupported_member("modalities", "only `text`"));
        }
        Ok(())
    }

    fn to_prompt(&self) -> Result<OpenAiPrompt, ApiError> {
        let messages: Result<Vec<EarlierMessage>, ApiError> = self
            .messages
            .iter()
            .map(ChatCompletionMessage::to_earlier_message)
            .collect();
        let offered = asked::tool_offers(
            self.tools.as_deref(),
            self.tool_choice.as_ref(),
            ChatToolDefinition::to_tool_offer,
        )?;
        let last = self.messages.last().filter(|last| last.role == "user");
        let said = last.and_then(|last| last.content.as_ref());
        asked::split_prompt(messages?, offered, "messages")?.with_pictures(said, "messages")
    }
}

impl ChatCompletionMessage {
    fn to_earlier_message(&self) -> Result<EarlierMessage, ApiError> {
        let role = match self.role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" => "tool",
            other => {
                let shown: String = other.chars().take(64).collect();
                return Err(invalid_member(
                    "messages",
                    format!("`{shown}` is not a role that is understood here"),
                ));
            }
        };
        if role == "tool" && self.tool_call_id.is_none() {
            return Err(invalid_member(
                "messages",
                "a message of role `tool` needs a `tool_call_id`",
            ));
        }
        let text = match &self.content {
            Some(content) => content.to_text("messages")?,
            None => self.refusal.clone().unwrap_or_default(),
        };
        let calls = self.tool_calls.iter().flatten().map(|call| ClientCall {
            id: call.id.clone(),
            name: call.function.name.clone(),
            arguments: call.function.arguments.clone(),
        });
        Ok(EarlierMessage {
            role,
            text,
            calls: calls.collect(),
            answers: self.tool_call_id.clone().filter(|_| role == "tool"),
        })
    }
}

impl ChatToolDefinition {
    fn to_tool_offer(&self) -> Result<ToolOffer, ApiError> {
        let function = self.function.as_ref();
        asked::tool_offer(
            &self.r#type,
            function.map(|function| function.name.as_str()),
            function.and_then(|function| function.description.as_deref()),
            function.and_then(|function| function.parameters.as_ref()),
        )
    }
}

/// Handles one message to the agent.
pub(super) async fn complete_chat(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let chat: ChatCompletionRequest = body::read_json(&app, request).await?;
    serve::is_agent(&app, &chat.model)?;
    chat.check_supported()?;
    let asked = chat.to_prompt()?;
    let place = OpenAiRequestContext {
        principal,
        conversation: chat.user.clone(),
        headers,
    };
    let turn = serve::ask_agent(&app, place, asked)?;
    let usage = chat
        .stream_options
        .and_then(|options| options.include_usage)
        .unwrap_or(false);
    let head = ChatCompletionHead {
        id: format!("chatcmpl-{}", turn.id.simple()),
        created: turn.created,
        model: chat.model,
    };
    if chat.stream == Some(true) {
        return Ok(stream_response(
            ChatCompletionChunks { head, usage },
            turn,
            StreamEndSignal::for_app(&app),
        ));
    }
    let answer = turn.wait_answer().await?;
    Ok(Json(head.full_response(&answer)).into_response())
}

/// The members that all objects of one answer share.
#[derive(Debug, Clone)]
struct ChatCompletionHead {
    id: String,
    created: i64,
    model: String,
}

impl ChatCompletionHead {
    fn full_response(&self, answer: &serve::OpenAiAnswer) -> Value {
        let calls = &answer.told.calls;
        let mut message = json!({"role": "assistant", "content": answer.text, "refusal": null});
        if let (false, Some(message)) = (calls.is_empty(), message.as_object_mut()) {
            message.insert("tool_calls".into(), calls.iter().map(call).collect());
            if answer.text.is_empty() {
                message.insert("content".into(), Value::Null);
            }
        }
        let whole = json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{
                "index": 0,
                "message": message,
                "logprobs": null,
                "finish_reason": finish_reason(&answer.told),
            }],
            "usage": serve::usage_json(&answer.told, ["prompt_tokens", "completion_tokens"]),
        });
        serve::with_record(whole, &answer.told)
    }

    fn chunk_json(&self, delta: &Value, finish: Option<&str>) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}],
        })
    }

    fn usage_json(&self, told: &TurnResult) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [],
            "usage": serve::usage_json(told, ["prompt_tokens", "completion_tokens"]),
        })
    }
}

/// Writes a streamed answer, chunk by chunk.
#[derive(Debug)]
struct ChatCompletionChunks {
    head: ChatCompletionHead,
    /// The usage is sent in a separate chunk.
    usage: bool,
}

impl AnswerStreamFormat for ChatCompletionChunks {
    fn begin_events(&mut self) -> Vec<Event> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        vec![json_event(&self.head.chunk_json(&delta, None))]
    }

    fn text_events(&mut self, more: &str) -> Vec<Event> {
        vec![json_event(&self.head.chunk_json(&json!({"content": more}), None))]
    }

    fn failure_event(&mut self, error: &ApiError) -> Event {
        json_event(&error.openai_body())
    }

    fn end_events(&mut self, outcome: &Result<TurnResult, KernelError>) -> Vec<Event> {
        match serve::completed_turn(outcome) {
            Ok(told) => {
                let mut events = Vec::new();
                for (index, handed) in told.calls.iter().enumerate() {
                    let mut piece = call(handed);
                    if let Some(piece) = piece.as_object_mut() {
                        piece.insert("index".into(), index.into());
                    }
                    events.push(json_event(
                        &self.head.chunk_json(&json!({"tool_calls": [piece]}), None),
                    ));
                }
                let last = self.head.chunk_json(&json!({}), Some(finish_reason(&told)));
                events.push(json_event(&serve::with_record(last, &told)));
                if self.usage {
                    events.push(json_event(&self.head.usage_json(&told)));
                }
                events.push(Event::default().data("[DONE]"));
                events
            }
            Err(error) => vec![json_event(&error.openai_body())],
        }
    }
}

/// A call that the client must run.
fn call(call: &ClientCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

fn finish_reason(told: &TurnResult) -> &'static str {
    if told.calls.is_empty() {
        "stop"
    } else {
        "tool_calls"
    }
}

fn json_event(value: &Value) -> Event {
    Event::default().data(value.to_string())
}
