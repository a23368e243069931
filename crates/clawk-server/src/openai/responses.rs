//! `POST /openai/v1/responses`.

use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use clawk_kernel::ports::ToolOffer;
use clawk_kernel::{ClientCall, EarlierMessage, KernelError, TurnResult};
use serde::Deserialize;
use serde_json::{Value, json};

use super::asked::{self, OpenAiContent, OpenAiPrompt, invalid_member, unsupported_member};
use super::serve::{self, OpenAiRequestContext, Turn};
use super::stream::{AnswerStreamFormat, stream_response};
use crate::http::auth::{HttpPrincipal, StreamEndSignal};
use crate::http::{ApiError, HttpApp, body};

/// The members that are read; see [`super::chat`] for the ignored ones.
#[derive(Debug, Deserialize)]
struct ResponsesRequest {
    model: String,
    input: ResponsesInput,
    #[serde(default)]
    instructions: Option<String>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    tools: Option<Vec<ResponsesToolDefinition>>,
    #[serde(default)]
    tool_choice: Option<Value>,
    #[serde(default)]
    previous_response_id: Option<String>,
    #[serde(default)]
    conversation: Option<Value>,
    #[serde(default)]
    background: Option<bool>,
    #[serde(default)]
    text: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ResponsesInput {
    Text(String),
    Items(Vec<ResponsesInputItem>),
}

#[derive(Debug, Deserialize)]
struct ResponsesInputItem {
    #[serde(default)]
    r#type: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Option<OpenAiContent>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
    #[serde(default)]
    output: Option<OpenAiContent>,
}

#[derive(Debug, Deserialize)]
struct ResponsesToolDefinition {
    r#type: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<Value>,
}

impl ResponsesRequest {
    fn check_supported(&self) -> Result<(), ApiError> {
        if self.background == Some(true) {
            return Err(unsupported_member(
                "background",
                "an answer is waited for, or streamed",
            ));
        }
        if self.previous_response_id.is_some() {
            let message =
                "the agent keeps the conversation itself: name it with `user`, and send what is new";
            return Err(unsupported_member("previous_response_id", message));
        }
        if self.conversation.as_ref().is_some_and(|given| !given.is_null()) {
            return Err(unsupported_member(
                "conversation",
                "name the conversation with `user`",
            ));
        }
        let format = self.text.as_ref().and_then(|text| text.pointer("/format/type"));
        if format.is_some_and(|kind| kind != "text") {
            return Err(unsupported_member(
                "text",
                "only `text`: ask the agent for the form in words",
            ));
        }
        Ok(())
    }

    fn to_prompt(&self) -> Result<OpenAiPrompt, ApiError> {
        let said = |role: &'static str, text: &str| EarlierMessage {
            role,
            text: text.to_owned(),
            calls: Vec::new(),
            answers: None,
        };
        let mut all: Vec<EarlierMessage> = self
            .instructions
            .iter()
            .map(|text| said("system", text))
            .collect();
        match &self.input {
            ResponsesInput::Text(text) => all.push(said("user", text)),
            ResponsesInput::Items(items) => {
                for item in items {
                    all.extend(item.to_earlier_message()?);
                }
            }
        }
        let offered = asked::tool_offers(
            self.tools.as_deref(),
            self.tool_choice.as_ref(),
            ResponsesToolDefinition::to_tool_offer,
        )?;
        let last = match &self.input {
            ResponsesInput::Text(_) => None,
            ResponsesInput::Items(items) => items.last(),
        };
        let said = last.filter(|last| last.role.as_deref() == Some("user"));
        asked::split_prompt(all, offered, "input")?
            .with_pictures(said.and_then(|said| said.content.as_ref()), "input")
    }
}

impl ResponsesInputItem {
    fn to_earlier_message(&self) -> Result<Option<EarlierMessage>, ApiError> {
        let text = |content: &Option<OpenAiContent>| match content {
            Some(content) => content.to_text("input"),
            None => Ok(String::new()),
        };
        let lacks = |what: &str| invalid_member("input", format!("an item lacks its `{what}`"));
        let kind = self.r#type.as_deref().unwrap_or("message");
        Ok(Some(match kind {
            "message" => EarlierMessage {
                role: match self.role.as_deref() {
                    Some("system" | "developer") => "system",
                    Some("user") => "user",
                    Some("assistant") => "assistant",
                    Some(_) | None => {
                        return Err(invalid_member(
                            "input",
                            "a message's role is `user`, `assistant`, `system` or `developer`",
                        ));
                    }
                },
                text: text(&self.content)?,
                calls: Vec::new(),
                answers: None,
            },
            "function_call" => EarlierMessage {
                role: "assistant",
                text: String::new(),
                calls: vec![ClientCall {
                    id: self.call_id.clone().ok_or_else(|| lacks("call_id"))?,
                    name: self.name.clone().ok_or_else(|| lacks("name"))?,
                    arguments: self.arguments.clone().unwrap_or_default(),
                }],
                answers: None,
            },
            "function_call_output" => EarlierMessage {
                role: "tool",
                text: text(&self.output)?,
                calls: Vec::new(),
                answers: Some(self.call_id.clone().ok_or_else(|| lacks("call_id"))?),
            },
            // A model's reasoning is ignored; some clients send it back.
            "reasoning" => return Ok(None),
            other => {
                let shown: String = other.chars().take(64).collect();
                return Err(invalid_member(
                    "input",
                    format!("an item of type `{shown}` is not understood here"),
                ));
            }
        }))
    }
}

impl ResponsesToolDefinition {
    fn to_tool_offer(&self) -> Result<ToolOffer, ApiError> {
        let (name, description) = (self.name.as_deref(), self.description.as_deref());
        asked::tool_offer(&self.r#type, name, description, self.parameters.as_ref())
    }
}

/// Handles one message to the agent.
pub(super) async fn create_response(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let wanted: ResponsesRequest = body::read_json(&app, request).await?;
    serve::is_agent(&app, &wanted.model)?;
    wanted.check_supported()?;
    let asked = wanted.to_prompt()?;
    let place = OpenAiRequestContext {
        principal,
        conversation: wanted.user.clone(),
        headers,
    };
    let turn = serve::ask_agent(&app, place, asked)?;
    let head = ResponsesHead {
        turn,
        model: wanted.model,
        user: wanted.user,
    };
    if wanted.stream == Some(true) {
        let turn = head.turn.clone();
        let events = Events {
            head,
            sent: 0,
            opened: false,
        };
        return Ok(stream_response(events, turn, StreamEndSignal::for_app(&app)));
    }
    let answer = head.turn.wait_answer().await?;
    Ok(Json(head.full_response("completed", &answer.text, Some(&answer.told), None)).into_response())
}

#[derive(Debug)]
struct ResponsesHead {
    turn: Turn,
    model: String,
    user: Option<String>,
}

impl ResponsesHead {
    fn output_item(&self, status: &str, text: &str) -> Value {
        let content = match status {
            "in_progress" => json!([]),
            _ => json!([text_part(text)]),
        };
        json!({"id": self.item_id(), "type": "message", "status": status, "role": "assistant", "content": content})
    }

    fn item_id(&self) -> String {
        format!("msg_{}", self.turn.id.simple())
    }

    fn full_response(
        &self,
        status: &str,
        text: &str,
        told: Option<&TurnResult>,
        error: Option<&ApiError>,
    ) -> Value {
        let mut output = Vec::new();
        if let Some(told) = told {
            if !text.is_empty() {
                output.push(self.output_item("completed", text));
            }
            output.extend(told.calls.iter().map(|call| function_call(call, "completed")));
        }
        let whole = json!({
            "id": format!("resp_{}", self.turn.id.simple()),
            "object": "response",
            "created_at": self.turn.created,
            "status": status,
            "error": error.map(|error| json!({"code": "server_error", "message": error.message()})),
            "incomplete_details": null,
            "instructions": null,
            "metadata": {},
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "user": self.user,
            "usage": told.map(usage_json),
        });
        match told {
            Some(told) => serve::with_record(whole, told),
            None => whole,
        }
    }
}

/// A call that the client must run.
fn function_call(call: &ClientCall, status: &str) -> Value {
    let arguments = if status == "completed" {
        call.arguments.as_str()
    } else {
        ""
    };
    json!({"id": item_id(call), "type": "function_call", "status": status, "call_id": call.id, "name": call.name,
        "arguments": arguments})
}

fn item_id(call: &ClientCall) -> String {
    format!("fc_{}", call.id)
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage_json(told: &TurnResult) -> Value {
    let mut usage = serve::usage_json(told, ["input_tokens", "output_tokens"]);
    if let Some(facts) = usage.as_object_mut() {
        facts.insert(
            "input_tokens_details".into(),
            json!({"cached_tokens": told.usage.cached_tokens}),
        );
        facts.insert("output_tokens_details".into(), json!({"reasoning_tokens": 0}));
    }
    usage
}

/// Writes a streamed answer, event by event.
#[derive(Debug)]
struct Events {
    head: ResponsesHead,
    /// The number of sent events.
    sent: u64,
    /// The message was announced.
    opened: bool,
}

impl Events {
    fn next_event(&mut self, kind: &str, mut facts: Value) -> Event {
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("type".into(), kind.into());
            facts.insert("sequence_number".into(), self.sent.into());
        }
        self.sent += 1;
        Event::default().event(kind).data(facts.to_string())
    }

    /// An event about the only content part.
    fn content_event(&mut self, kind: &str, mut facts: Value) -> Event {
        if let Some(facts) = facts.as_object_mut() {
            facts.insert("item_id".into(), self.head.item_id().into());
            facts.insert("output_index".into(), 0.into());
            facts.insert("content_index".into(), 0.into());
        }
        self.next_event(kind, facts)
    }

    /// Announces the message that holds the text. A response with calls only has none.
    fn open_message(&mut self) -> Vec<Event> {
        if std::mem::replace(&mut self.opened, true) {
            return Vec::new();
        }
        let item = self.head.output_item("in_progress", "");
        vec![
            self.next_event(
                "response.output_item.added",
                json!({"output_index": 0, "item": item}),
            ),
            self.content_event("response.content_part.added", json!({"part": text_part("")})),
        ]
    }

    /// The events of a call that the client must run, sent at once.
    fn call_events(&mut self, at: usize, call: &ClientCall) -> [Event; 4] {
        let (begun, whole) = (
            function_call(call, "in_progress"),
            function_call(call, "completed"),
        );
        let about =
            |more: (&str, &str)| json!({"item_id": item_id(call), "output_index": at, more.0: more.1});
        [
            self.next_event(
                "response.output_item.added",
                json!({"output_index": at, "item": begun}),
            ),
            self.next_event(
                "response.function_call_arguments.delta",
                about(("delta", &call.arguments)),
            ),
            self.next_event(
                "response.function_call_arguments.done",
                about(("arguments", &call.arguments)),
            ),
            self.next_event(
                "response.output_item.done",
                json!({"output_index": at, "item": whole}),
            ),
        ]
    }
}

impl AnswerStreamFormat for Events {
    fn begin_events(&mut self) -> Vec<Event> {
        let response = self.head.full_response("in_progress", "", None, None);
        vec![
            self.next_event("response.created", json!({"response": response})),
            self.next_event("response.in_progress", json!({"response": response})),
        ]
    }

    fn text_events(&mut self, more: &str) -> Vec<Event> {
        let mut events = self.open_message();
        let delta = json!({"delta": more, "logprobs": []});
        events.push(self.content_event("response.output_text.delta", delta));
        events
    }

    fn end_events(&mut self, outcome: &Result<TurnResult, KernelError>) -> Vec<Event> {
        let told = match serve::completed_turn(outcome) {
            Ok(told) => told,
            Err(error) => return vec![self.failure_event(&error)],
        };
        let text = self.head.turn.telling.text();
        let response = self.head.full_response("completed", &text, Some(&told), None);
        let mut events = Vec::new();
        if self.opened {
            let item = self.head.output_item("completed", &text);
            events
                .push(self.content_event("response.output_text.done", json!({"text": text, "logprobs": []})));
            events.push(self.content_event("response.content_part.done", json!({"part": text_part(&text)})));
            events.push(self.next_event(
                "response.output_item.done",
                json!({"output_index": 0, "item": item}),
            ));
        }
        for (at, call) in (usize::from(self.opened)..).zip(&told.calls) {
            events.extend(self.call_events(at, call));
        }
        events.push(self.next_event("response.completed", json!({"response": response})));
        events
    }

    fn failure_event(&mut self, error: &ApiError) -> Event {
        let response = self.head.full_response("failed", "", None, Some(error));
        self.next_event("response.failed", json!({"response": response}))
    }
}
