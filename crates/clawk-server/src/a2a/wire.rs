//! A2A messages: reading, writing and errors.

use clawk_kernel::AttachedPicture;
use clawk_proto::message::MessagePart;
use http::HeaderValue;
use serde_json::{Value, json};

use super::push::BookError;
use super::tasks::{AgentTask, AgentTaskError, AgentTaskView};
use crate::telling::RECORD;

/// The largest number of parts in one message.
const MAX_PARTS: usize = 1_024;
/// The id of a task's only artifact.
const ANSWER: &str = "answer";

/// A JSON-RPC error of A2A.
#[derive(Debug)]
pub(super) struct A2aError {
    code: i64,
    message: String,
}

impl A2aError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(super) fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn unknown_task(id: &str) -> Self {
        let shown: String = id.chars().take(100).collect();
        Self::new(-32001, format!("there is no task `{shown}`"))
    }

    pub(super) fn too_late(id: &str) -> Self {
        let shown: String = id.chars().take(100).collect();
        Self::new(-32002, format!("the task `{shown}` has ended"))
    }

    pub(super) fn no_push() -> Self {
        Self::new(
            -32003,
            "push notifications are not sent (`[http] push_hosts`): follow the task with `SubscribeToTask`",
        )
    }

    pub(super) fn unsupported(message: &str) -> Self {
        Self::new(-32004, message)
    }

    pub(super) fn no_method(name: &str) -> Self {
        let shown: String = name.chars().take(64).collect();
        Self::new(-32601, format!("unknown method `{shown}`"))
    }

    pub(super) fn to_response(&self, id: &Value) -> Value {
        json!({"jsonrpc": "2.0", "id": id, "error": {"code": self.code, "message": self.message}})
    }
}

impl std::fmt::Display for A2aError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<BookError> for A2aError {
    fn from(error: BookError) -> Self {
        match error {
            BookError::Full => Self::invalid_params(error.to_string()),
            BookError::Sql(_) | BookError::Seal(_) | BookError::Json(_) | BookError::Thread(_) => {
                tracing::warn!(%error, "a push receiver is not kept");
                Self::new(-32603, "the receiver can't be kept")
            }
        }
    }
}

impl From<AgentTaskError> for A2aError {
    fn from(fault: AgentTaskError) -> Self {
        let text = fault.to_string();
        match fault {
            AgentTaskError::Unknown(_) => Self::new(-32001, text),
            AgentTaskError::Reused(_) | AgentTaskError::Invalid(_) => Self::invalid_params(text),
            AgentTaskError::Full => Self::new(-32603, text),
            AgentTaskError::Kernel(error) => Self::new(crate::error::ckp::from_kernel(&error).code, text),
        }
    }
}

/// Parses a request into id, method and params.
pub(super) fn parse(bytes: &[u8]) -> Result<(Value, String, Value), A2aError> {
    let parsed: Value =
        serde_json::from_slice(bytes).map_err(|error| A2aError::new(-32700, format!("no JSON: {error}")))?;
    let id = parsed.get("id").cloned().unwrap_or_default();
    let method = parsed.get("method").and_then(Value::as_str);
    let fits =
        parsed.get("jsonrpc").is_some_and(|version| version == "2.0") && (id.is_string() || id.is_number());
    match method {
        Some(method) if fits => {
            let params = parsed.get("params").cloned().unwrap_or_else(|| json!({}));
            Ok((id, method.to_owned(), params))
        }
        Some(_) | None => Err(A2aError::new(
            -32600,
            "one JSON-RPC 2.0 request with an id is wanted",
        )),
    }
}

/// Checks the caller's version, if it sends one: 1.x for methods of 1.0, 0.3 for methods of 0.3 (`old`).
pub(super) fn check_version(version: Option<&HeaderValue>, old: bool) -> Result<(), A2aError> {
    let Some(version) = version else { return Ok(()) };
    let version = version.to_str().unwrap_or_default(); // silent-ok: an unreadable version is none of ours
    let mut numbers = version.split('.');
    let is_known = match (numbers.next(), numbers.next()) {
        (Some("1"), _) => !old,
        (Some("0"), Some("3")) => old,
        _ => false,
    };
    if is_known {
        return Ok(());
    }
    let shown: String = version.chars().take(32).collect();
    Err(A2aError::new(
        -32009,
        format!("version `{shown}` has no such method here; 1.0 is spoken, and 0.3 with its own methods"),
    ))
}

/// A required text parameter.
pub(super) fn required_text(params: &Value, name: &str) -> Result<String, A2aError> {
    let text = params
        .get(name)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| A2aError::invalid_params(format!("{name}: is missing")))
}

/// A parsed message.
#[derive(Debug, PartialEq)]
pub(super) struct A2aMessage {
    pub(super) id: String,
    pub(super) context: Option<String>,
    pub(super) task: Option<String>,
    pub(super) text: String,
    /// Pictures of the message.
    pub(super) images: Vec<AttachedPicture>,
    /// The push configuration that came with the message.
    pub(super) push: Option<Value>,
    /// The request waits for the answer.
    pub(super) waits: bool,
}

pub(super) fn parse_message(params: &Value) -> Result<A2aMessage, A2aError> {
    let message = params
        .get("message")
        .ok_or_else(|| A2aError::invalid_params("message: is missing"))?;
    let optional = |name: &str| {
        let text = message.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    if optional("role").as_deref() != Some("ROLE_USER") {
        return Err(A2aError::invalid_params("message.role: must be ROLE_USER"));
    }
    let parts = message
        .get("parts")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    if parts.is_empty() || parts.len() > MAX_PARTS {
        return Err(A2aError::invalid_params(format!(
            "message.parts: 1 to {MAX_PARTS}"
        )));
    }
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for part in parts {
        match parse_picture(part)? {
            Some(image) => images.push(image),
            None => texts.push(part_text(part)?),
        }
    }
    let configuration = params.get("configuration");
    let wants = |name: &str| configuration.and_then(|all| all.get(name));
    Ok(A2aMessage {
        id: required_text(message, "messageId")?,
        context: optional("contextId"),
        task: optional("taskId"),
        text: texts.join("\n\n"),
        images,
        push: wants("taskPushNotificationConfig")
            .filter(|config| !config.is_null())
            .cloned(),
        waits: wants("returnImmediately") != Some(&Value::Bool(true)),
    })
}

/// A part that holds a picture of a type that models accept, with its bytes.
fn parse_picture(part: &Value) -> Result<Option<AttachedPicture>, A2aError> {
    let at = |name: &str| part.get(name).and_then(Value::as_str);
    let (Some(mime_type), Some(data), None) = (at("mediaType"), at("raw"), at("text")) else {
        return Ok(None);
    };
    let read = AttachedPicture::read(mime_type, at("filename"), data);
    read.map_err(|reason| A2aError::invalid_params(format!("message.parts: {reason}")))
}

/// A part as text.
fn part_text(part: &Value) -> Result<String, A2aError> {
    let at = |name: &str| part.get(name).and_then(Value::as_str).map(str::to_owned);
    if let Some(text) = at("text") {
        return Ok(text);
    }
    if let Some(data) = at("raw") {
        let file = MessagePart::File {
            mime_type: at("mediaType").unwrap_or_else(|| "application/octet-stream".to_owned()),
            data,
            name: at("filename"),
        };
        return Ok(file.as_text());
    }
    if let Some(url) = at("url") {
        return Ok(format!("[a file at {url}; it is not shown to you]"));
    }
    match part.get("data") {
        Some(data) => Ok(data.to_string()),
        None => Err(A2aError::invalid_params(
            "message.parts: a part has none of `text`, `raw`, `url`, `data`",
        )),
    }
}

/// The filter of a task list: the context and the state.
pub(super) fn parse_filter(params: &Value) -> Result<(Option<String>, Option<String>), A2aError> {
    let optional = |name: &str| {
        let text = params.get(name).and_then(Value::as_str);
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    if params.get("statusTimestampAfter").is_some() {
        return Err(A2aError::invalid_params("statusTimestampAfter: is not served"));
    }
    let state = optional("status").filter(|state| state != "TASK_STATE_UNSPECIFIED");
    Ok((optional("contextId"), state))
}

/// Writes a task.
pub(super) fn task_json(view: &AgentTaskView) -> Value {
    let mut task = json!({"id": view.id, "status": status_json(view)});
    if let Some(facts) = task.as_object_mut() {
        if let Some(context) = &view.context {
            facts.insert("contextId".into(), context.as_str().into());
        }
        if !view.text.is_empty() {
            facts.insert("artifacts".into(), json!([artifact_json(&view.text)]));
        }
        if let Some(record) = &view.record {
            facts.insert("metadata".into(), json!({RECORD: record}));
        }
    }
    task
}

fn artifact_json(text: &str) -> Value {
    json!({"artifactId": ANSWER, "name": ANSWER, "parts": [{"text": text, "mediaType": "text/plain"}]})
}

fn status_json(view: &AgentTaskView) -> Value {
    let phase = &view.phase;
    let mut status = json!({"state": phase.state.a2a_name(), "timestamp": phase.at.to_string()});
    if let (Some(reason), Some(facts)) = (&phase.reason, status.as_object_mut()) {
        facts.insert(
            "message".into(),
            json!({"messageId": format!("{}-status", view.id), "role": "ROLE_AGENT", "parts": [{"text": reason}]}),
        );
    }
    status
}

/// Writes an artifact update with a piece of the answer.
pub(super) fn artifact_update(task: &AgentTask, piece: &str, append: bool) -> Value {
    json!({"artifactUpdate": {
        "taskId": task.id,
        "contextId": task.context,
        "artifact": artifact_json(piece),
        "append": append,
    }})
}

/// Writes a change of state.
pub(super) fn status_update(view: &AgentTaskView) -> Value {
    let mut update = json!({"taskId": view.id, "contextId": view.context, "status": status_json(view)});
    if let (Some(record), Some(update)) = (&view.record, update.as_object_mut()) {
        update.insert("metadata".into(), json!({RECORD: record}));
    }
    json!({ "statusUpdate": update })
}
