//! JSON-RPC 2.0 frames (CKP §9.1, R24): parses an inbound text to an [`InboundRpc`] that borrows from the text.

mod scan;
#[cfg(test)]
mod tests;
mod write;

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{ErrorCode, RpcError};

pub use write::{write_error, write_notification, write_result};

/// The deepest nesting of brackets in one message, including its own braces. A deeper message could not be decoded later, so it is
/// refused as invalid JSON (-32700) at once.
pub const MAX_DEPTH: usize = 127;

/// The largest number of messages in one batch; a larger batch gets one -32600.
pub const MAX_BATCH: usize = 1024;

/// A request's id as its original JSON text: `1.0` is answered with `1.0`, and `"\u0041"` as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RpcId<'a>(Cow<'a, str>);

impl<'a> RpcId<'a> {
    /// `null`: the id of answers to messages whose id is unknown.
    pub const NULL: RpcId<'static> = RpcId(Cow::Borrowed("null"));

    fn from_raw(raw: &'a str) -> Option<Self> {
        match raw.as_bytes().first()? {
            b'"' | b'-' | b'0'..=b'9' | b'n' => Some(Self(Cow::Borrowed(raw))),
            _ => None,
        }
    }

    /// An id from its JSON text; `None` if that is not a string, a number or null.
    #[must_use]
    pub fn of_json(text: &'a str) -> Option<Self> {
        Self::from_raw(text)
    }

    /// The id as JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// The same id, independent of the text that it borrowed from.
    #[must_use]
    pub fn into_owned(self) -> RpcId<'static> {
        RpcId(Cow::Owned(self.0.into_owned()))
    }
}

/// One well-formed message. A notification has no id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// The id; absent in notifications.
    pub id: Option<RpcId<'a>>,
    /// The method, for example `claw.status`.
    pub method: Cow<'a, str>,
    /// The params as JSON text of an object or an array; each method checks their shape. Absent params are `{}`.
    pub params: &'a str,
}

/// A message that is not a request, with the answer to send.
#[derive(Debug, Clone, PartialEq)]
pub struct InvalidRpcMessage<'a> {
    /// The id for the answer.
    pub id: RpcId<'a>,
    /// The error.
    pub error: RpcError,
}

/// One parsed message.
#[derive(Debug, Clone, PartialEq)]
pub enum RpcMessage<'a> {
    /// A request or a notification.
    Request(Request<'a>),
    /// An invalid message, which must be answered with an error.
    Refused(InvalidRpcMessage<'a>),
    /// A message that is never answered: a notification whose params are not an object or array, or a response to a request that we
    /// did not send.
    Ignored,
}

/// The content of one line, frame or file.
#[derive(Debug, Clone, PartialEq)]
pub enum InboundRpc<'a> {
    /// A single message.
    One(RpcMessage<'a>),
    /// A batch of 1 to [`MAX_BATCH`] messages; answered as an array.
    Batch(Vec<RpcMessage<'a>>),
}

/// Parses one message or batch, in one pass (two for a batch's members).
///
/// Every input has a result: invalid UTF-8, invalid JSON, or nesting deeper than [`MAX_DEPTH`] gives one -32700 with `id: null`.
#[must_use]
pub fn parse(bytes: &[u8]) -> InboundRpc<'_> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) => {
            return refuse(
                ErrorCode::ParseError,
                format!("invalid UTF-8 at byte {}", e.valid_up_to()),
            );
        }
    };
    if scan::nests_deeper(text, MAX_DEPTH) {
        return refuse(
            ErrorCode::ParseError,
            format!("nested deeper than {MAX_DEPTH} levels"),
        );
    }
    match text.trim_start().as_bytes().first() {
        Some(b'{') => match serde_json::from_str(text) {
            Ok(frame) => InboundRpc::One(judge(frame)),
            Err(e) => refuse_json(&e),
        },
        Some(b'[') => match serde_json::from_str(text) {
            Ok(scan::RpcBatchMembers { too_many: true, .. }) => refuse(
                ErrorCode::InvalidRequest,
                format!("a batch may hold at most {MAX_BATCH} messages"),
            ),
            Ok(scan::RpcBatchMembers { members, .. }) if members.is_empty() => refuse(
                ErrorCode::InvalidRequest,
                "a batch must hold at least one message",
            ),
            Ok(scan::RpcBatchMembers { members, .. }) => {
                InboundRpc::Batch(members.into_iter().map(member).collect())
            }
            Err(e) => refuse_json(&e),
        },
        Some(_) | None => match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => refuse(ErrorCode::InvalidRequest, "a message must be a JSON object"),
            Err(e) => refuse_json(&e),
        },
    }
}

fn member(raw: &RawValue) -> RpcMessage<'_> {
    if !raw.get().starts_with('{') {
        return invalid(RpcId::NULL, "a message must be a JSON object");
    }
    match serde_json::from_str(raw.get()) {
        Ok(frame) => judge(frame),
        Err(e) => invalid(RpcId::NULL, format!("malformed message: {e}")),
    }
}

fn judge(frame: scan::RpcFrame<'_>) -> RpcMessage<'_> {
    if let Some(twice) = frame.twice {
        return invalid(RpcId::NULL, format!("`{twice}` stands twice in one message"));
    }
    let id = match frame.id.map(RpcId::from_raw) {
        Some(None) => return invalid(RpcId::NULL, "`id` must be a string, a number or null"),
        Some(Some(id)) => Some(id),
        None => None,
    };
    if frame.jsonrpc != Some("\"2.0\"") {
        return invalid(id.unwrap_or(RpcId::NULL), "`jsonrpc` must be \"2.0\"");
    }
    let Some(method) = frame.method else {
        if frame.response && id.is_some() {
            return RpcMessage::Ignored;
        }
        return invalid(id.unwrap_or(RpcId::NULL), "`method` is missing");
    };
    let Some(method) = scan::unquote_json(method) else {
        return invalid(id.unwrap_or(RpcId::NULL), "`method` must be a string");
    };
    match (frame.params.unwrap_or("{}"), id) {
        (params, id) if params.starts_with(['{', '[']) => RpcMessage::Request(Request { id, method, params }),
        (_, Some(id)) => invalid(id, "`params` must be an object or an array"),
        (_, None) => RpcMessage::Ignored,
    }
}

fn invalid(id: RpcId<'_>, message: impl Into<String>) -> RpcMessage<'_> {
    RpcMessage::Refused(InvalidRpcMessage {
        id,
        error: RpcError::new(ErrorCode::InvalidRequest, message),
    })
}

fn refuse<'a>(code: ErrorCode, message: impl Into<String>) -> InboundRpc<'a> {
    InboundRpc::One(RpcMessage::Refused(InvalidRpcMessage {
        id: RpcId::NULL,
        error: RpcError::new(code, message),
    }))
}

fn refuse_json<'a>(error: &serde_json::Error) -> InboundRpc<'a> {
    refuse(ErrorCode::ParseError, format!("invalid JSON: {error}"))
}

/// Writes a client request (conformance driver, control socket), without a newline.
#[must_use]
pub fn request_text(id: u64, method: &str, params: &Value) -> String {
    serde_json::json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}
