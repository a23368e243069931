//! Reads a server's messages before the protocol library does. Messages are repaired if their meaning is clear, and the results of
//! lists and calls stay raw, so that one invalid member does not lose the rest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{
    CallToolResult, ClientJsonRpcMessage, ClientNotification, ClientRequest, CustomResult, ErrorCode,
    ErrorData, InitializeResult, JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage,
    ServerResult,
};
use serde_json::{Map, Value, json};

use super::repair::{find_id, read_values};
use crate::call::truncate_text;

/// The member that carries a raw result through the library.
const RAW: &str = "clawk/raw";
/// How many bytes of a server's text are in an error.
const MAX_ERROR_BYTES: usize = 4 << 10;
/// JSON-RPC error code: the message can't be parsed.
const UNREADABLE: i32 = -32700;
/// JSON-RPC error code: an internal error of the server.
const INTERNAL: i32 = -32603;

/// How the result of a request is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultShape {
    /// The library parses it: `initialize`.
    Handshake,
    /// The raw result of a tool call.
    Call,
    /// Other raw results: lists, resources, prompts.
    Raw,
    /// The result is ignored: `ping`.
    Empty,
}

/// The requests that wait for an answer from one server.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingRequests(Arc<Mutex<BTreeMap<i64, ResultShape>>>);

impl PendingRequests {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, ResultShape>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tracks an outgoing message: a request waits from now on, a cancelled one no longer.
    pub(super) fn note_sent(&self, message: &ClientJsonRpcMessage) {
        match message {
            JsonRpcMessage::Request(request) => {
                let RequestId::Number(id) = request.id else { return };
                let shape = match &request.request {
                    ClientRequest::InitializeRequest(_) => ResultShape::Handshake,
                    ClientRequest::CallToolRequest(_) => ResultShape::Call,
                    ClientRequest::PingRequest(_) => ResultShape::Empty,
                    _ => ResultShape::Raw,
                };
                self.lock().insert(id, shape);
            }
            JsonRpcMessage::Notification(told) => {
                if let ClientNotification::CancelledNotification(cancelled) = &told.notification
                    && let Some(RequestId::Number(id)) = cancelled.params.request_id
                {
                    self.lock().remove(&id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
    }

    /// The waiting request, if there is exactly one.
    fn only_pending(&self) -> Option<i64> {
        let pending = self.lock();
        let mut ids = pending.keys();
        let first = ids.next().copied();
        first.filter(|_| ids.next().is_none())
    }

    /// The waiting request with this `id`. A number sent as text, or with a zero fraction, counts as that number.
    fn match_id(&self, id: Option<&Value>) -> Option<i64> {
        let id = match id? {
            Value::Number(number) => number.as_i64().or_else(|| whole_number(number.as_f64()?)),
            Value::String(text) => text.trim().parse().ok(), // silent-ok: not one of our ids
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }?;
        self.lock().contains_key(&id).then_some(id)
    }

    /// Parses a line, a body or an event from a server. Other text is skipped. A message that can't be parsed answers the request
    /// that it names with an error.
    pub(super) fn read(&self, raw: &[u8]) -> Vec<ServerJsonRpcMessage> {
        let values = match read_values(raw) {
            Ok(values) => values,
            Err(reason) => {
                tracing::debug!(%reason, "a line of an MCP server is no message");
                let id = find_id(raw).filter(|id| self.lock().contains_key(id));
                let said = format!("the server's answer can't be read as JSON: {reason}");
                return id.map(|id| self.fail_request(id, said)).into_iter().collect();
            }
        };
        let single = values.into_iter().flat_map(|value| match value {
            Value::Array(batch) => batch,
            other => vec![other],
        });
        single.filter_map(|value| self.parse_message(value)).collect()
    }

    /// Handles a message of more than `limit` bytes, given its first and last bytes: its request gets an error at once.
    pub(super) fn read_oversized(
        &self,
        first: &[u8],
        last: &[u8],
        limit: usize,
    ) -> Option<ServerJsonRpcMessage> {
        let id = find_id(first).or_else(|| find_id(last));
        let id = id.filter(|id| self.lock().contains_key(id))?;
        let said = format!(
            "the server answered with more than {limit} bytes, which is the limit of one message (`MAX_MESSAGE_BYTES`). \
             The request was served; its answer was not kept. Ask for less at a time"
        );
        Some(self.fail_request(id, said))
    }

    /// Creates an error answer to a request in place of the server.
    pub(super) fn fail_request(&self, id: i64, said: String) -> ServerJsonRpcMessage {
        self.lock().remove(&id);
        let error = ErrorData::new(ErrorCode(UNREADABLE), said, None);
        ServerJsonRpcMessage::error(error, Some(RequestId::Number(id)))
    }

    /// Creates an error answer to this message, if it is a waiting request.
    pub(super) fn failed_request(
        &self,
        message: &ClientJsonRpcMessage,
        said: &str,
    ) -> Option<ServerJsonRpcMessage> {
        match message {
            JsonRpcMessage::Request(request) => match request.id {
                RequestId::Number(id) => Some(self.fail_request(id, said.to_owned())),
                RequestId::String(_) => None,
            },
            JsonRpcMessage::Response(_) | JsonRpcMessage::Notification(_) | JsonRpcMessage::Error(_) => None,
        }
    }

    /// The messages in the body of a refusal. An error without an `id` answers the refused request.
    pub(super) fn read_refusal(
        &self,
        message: &ClientJsonRpcMessage,
        body: &[u8],
    ) -> Vec<ServerJsonRpcMessage> {
        let all = self.read(body);
        let JsonRpcMessage::Request(request) = message else {
            return Vec::new();
        };
        if !all.is_empty() {
            return all;
        }
        let values = read_values(body).unwrap_or_default(); // silent-ok: a page is no error of the protocol
        let error = values.into_iter().find_map(|mut value| {
            let of_protocol = value.get("jsonrpc").is_some();
            value.get_mut("error").filter(|_| of_protocol).map(Value::take)
        });
        let (Some(error), RequestId::Number(id)) = (error, &request.id) else {
            return Vec::new();
        };
        self.lock().remove(id);
        vec![ServerJsonRpcMessage::error(
            error_of(error),
            Some(request.id.clone()),
        )]
    }

    fn parse_message(&self, value: Value) -> Option<ServerJsonRpcMessage> {
        let Value::Object(mut members) = value else {
            return None;
        };
        if members.get("method").is_some_and(Value::is_string) {
            return parse_request(members);
        }
        let id = self.match_id(members.get("id"));
        if let Some(error) = members.remove("error").filter(|error| !error.is_null()) {
            let id = id.or_else(|| {
                self.only_pending()
                    .filter(|_| members.get("id").is_none_or(Value::is_null))
            })?;
            self.lock().remove(&id);
            return Some(ServerJsonRpcMessage::error(
                error_of(error),
                Some(RequestId::Number(id)),
            ));
        }
        let (id, result) = (id?, members.remove("result").unwrap_or_default());
        let shape = self.lock().remove(&id)?;
        Some(ServerJsonRpcMessage::response(
            result_of(shape, result),
            RequestId::Number(id),
        ))
    }
}

/// A server's message in the form in which the library reads it from an event stream.
pub(super) fn as_event(message: &ServerJsonRpcMessage) -> Option<String> {
    serde_json::to_string(message).ok() // silent-ok: what was read can be written
}

fn whole_number(number: f64) -> Option<i64> {
    let text = format!("{number:.0}");
    let back: i64 = text.parse().ok()?; // silent-ok: not one of our ids
    (number.fract() == 0.0).then_some(back)
}

/// Parses a request or notification from the server.
fn parse_request(mut members: Map<String, Value>) -> Option<ServerJsonRpcMessage> {
    members.insert("jsonrpc".to_owned(), json!("2.0"));
    members.retain(|name, _| matches!(name.as_str(), "jsonrpc" | "id" | "method" | "params"));
    if members.get("params").is_some_and(|params| !params.is_object()) {
        members.remove("params");
    }
    if members.get("id").is_some_and(Value::is_null) {
        members.remove("id");
    }
    match serde_json::from_value(Value::Object(members)) {
        Ok(message) => Some(message),
        Err(error) => {
            tracing::debug!(%error, "a message of an MCP server is passed over");
            None
        }
    }
}

/// Parses an error in any of the forms that servers use.
fn error_of(error: Value) -> ErrorData {
    let Value::Object(mut members) = error else {
        let said = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
        return ErrorData::new(
            ErrorCode(INTERNAL),
            truncate_text(&said, MAX_ERROR_BYTES).0.to_owned(),
            None,
        );
    };
    let code = match members.get("code") {
        Some(Value::Number(code)) => code.as_i64(),
        Some(Value::String(code)) => code.trim().parse().ok(), // silent-ok: a code in words is no number
        Some(_) | None => None,
    };
    let code = code.and_then(|code| i32::try_from(code).ok()).unwrap_or(INTERNAL); // silent-ok: as above
    let said = match members.remove("message") {
        Some(Value::String(said)) if !said.trim().is_empty() => said,
        _ => Value::Object(members).to_string(),
    };
    ErrorData::new(
        ErrorCode(code),
        truncate_text(&said, MAX_ERROR_BYTES).0.to_owned(),
        None,
    )
}

fn result_of(shape: ResultShape, result: Value) -> ServerResult {
    match shape {
        ResultShape::Handshake => {
            let mended = repair_handshake(&result);
            match serde_json::from_value::<InitializeResult>(mended) {
                Ok(read) => ServerResult::InitializeResult(read),
                // The library then reports that the handshake is invalid.
                Err(_unreadable) => ServerResult::CustomResult(CustomResult::new(result)),
            }
        }
        ResultShape::Call => {
            let mut call = CallToolResult::success(Vec::new());
            call.structured_content = Some(json!({ RAW: result }));
            ServerResult::CallToolResult(call)
        }
        ResultShape::Raw => ServerResult::CustomResult(CustomResult::new(json!({ RAW: result }))),
        ResultShape::Empty => ServerResult::empty(()),
    }
}

/// The raw result of a call.
pub(super) fn raw_call(result: CallToolResult) -> Value {
    unwrap_raw(result.structured_content.unwrap_or_default())
}

/// The raw result of any other request.
pub(super) fn raw_result(result: ServerResult) -> Value {
    match result {
        ServerResult::CustomResult(CustomResult(value)) => unwrap_raw(value),
        other => serde_json::to_value(&other).unwrap_or_default(),
    }
}

fn unwrap_raw(value: Value) -> Value {
    match value {
        Value::Object(mut members) => members.remove(RAW).unwrap_or(Value::Object(members)),
        other => other,
    }
}

/// Repairs the answer to `initialize`, so that the library can parse it: an unknown revision is replaced by the requested one, and
/// members of a wrong type are dropped.
fn repair_handshake(result: &Value) -> Value {
    let asked_for = ProtocolVersion::LATEST_WITH_INITIALIZE;
    let said = result
        .get("protocolVersion")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let known = ProtocolVersion::KNOWN_VERSIONS.iter();
    let version = known
        .filter(|version| version.has_initialize())
        .find(|version| version.as_str() == said)
        .unwrap_or(&asked_for);
    let mut capabilities = Map::new();
    for name in ["tools", "resources", "prompts", "logging", "completions"] {
        match result.pointer(&format!("/capabilities/{name}")) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(given) => {
                let flags = given.as_object().cloned().unwrap_or_default();
                let flags = flags.into_iter().filter(|(_, flag)| flag.is_boolean());
                capabilities.insert(name.to_owned(), Value::Object(flags.collect()));
            }
        }
    }
    let word = |path: &str, none: &str| match result.pointer(path) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => none.to_owned(),
    };
    json!({
        "protocolVersion": version.as_str(),
        "capabilities": capabilities,
        "serverInfo": {"name": word("/serverInfo/name", "unnamed"), "version": word("/serverInfo/version", "0")},
    })
}
