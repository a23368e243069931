//! JSON-RPC 2.0 frames (CKP §9.1, R24): one inbound text becomes one [`Inbound`].

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{ErrorCode, RpcError};

/// A request's id. Numbers keep the text they came with, so `1.0` is answered with `1.0`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// A string, already in JSON's quotes and escapes.
    Text(String),
    /// A number, as written.
    Number(String),
    /// `null`.
    Null,
}

impl Id {
    fn from_raw(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        match text.as_bytes().first()? {
            b'"' => Some(Self::Text(text.to_owned())),
            b'-' | b'0'..=b'9' => Some(Self::Number(text.to_owned())),
            b'n' => Some(Self::Null),
            _ => None,
        }
    }

    /// The id as JSON text.
    #[must_use]
    pub fn as_json(&self) -> &str {
        match self {
            Self::Text(text) | Self::Number(text) => text,
            Self::Null => "null",
        }
    }
}

impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw = RawValue::from_string(self.as_json().to_owned()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

/// One well-formed message. A notification has no id.
#[derive(Debug, Clone)]
pub struct Request {
    /// Present in requests, absent in notifications.
    pub id: Option<Id>,
    /// For example `claw.status`.
    pub method: String,
    /// Still text: the method decides what it must be. Absent params are `{}`.
    pub params: Box<RawValue>,
}

/// A message that is no request: what must be answered, or nothing for a stray response.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// The id to answer with.
    pub id: Id,
    /// Why.
    pub error: RpcError,
}

/// What one line, frame or file holds.
#[derive(Debug)]
pub enum Inbound {
    /// A single message.
    One(Result<Request, Refused>),
    /// A batch, never empty; answered as an array.
    Batch(Vec<Result<Request, Refused>>),
}

#[derive(Deserialize)]
struct RawRequest<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Reads one message or batch.
///
/// # Errors
/// The bytes are no UTF-8 or no JSON (-32700), or nested too deep: one answer with `id: null`.
pub fn parse(bytes: &[u8]) -> Result<Inbound, Refused> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| refused(ErrorCode::ParseError, format!("invalid UTF-8 at byte {}", e.valid_up_to())))?;
    let trimmed = text.trim_start();
    if trimmed.starts_with('[') {
        let parts: Vec<&RawValue> = serde_json::from_str(text).map_err(|e| parse_error(&e))?;
        if parts.is_empty() {
            return Ok(Inbound::One(Err(refused(ErrorCode::InvalidRequest, "a batch must hold at least one message"))));
        }
        return Ok(Inbound::Batch(parts.into_iter().map(one).collect()));
    }
    let raw: &RawValue = serde_json::from_str(text).map_err(|e| parse_error(&e))?;
    Ok(Inbound::One(one(raw)))
}

fn one(raw: &RawValue) -> Result<Request, Refused> {
    let invalid = |id: Id, message: &str| Refused { id, error: RpcError::new(ErrorCode::InvalidRequest, message) };
    if !raw.get().starts_with('{') {
        return Err(invalid(Id::Null, "a message must be a JSON object"));
    }
    let frame: RawRequest<'_> =
        serde_json::from_str(raw.get()).map_err(|e| invalid(Id::Null, &format!("malformed message: {e}")))?;
    // serde reads `"id": null` into an absent Option; only the raw text tells the two apart.
    let id = match frame.id {
        Some(raw_id) => {
            Some(Id::from_raw(raw_id).ok_or_else(|| invalid(Id::Null, "`id` must be a string, a number or null"))?)
        }
        None if has_null_id(raw.get()) => Some(Id::Null),
        None => None,
    };
    let answer_id = id.clone().unwrap_or(Id::Null);
    if frame.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
        return Err(invalid(answer_id, "`jsonrpc` must be \"2.0\""));
    }
    let Some(method) = frame.method else {
        return Err(invalid(answer_id, "`method` is missing"));
    };
    let Ok(method) = serde_json::from_str::<String>(method.get()) else {
        return Err(invalid(answer_id, "`method` must be a string"));
    };
    let params = match frame.params {
        None => empty_params(),
        Some(params) if params.get().starts_with(['{', '[']) => params.to_owned(),
        Some(_) => return Err(invalid(answer_id, "`params` must be an object or an array")),
    };
    Ok(Request { id, method, params })
}

fn has_null_id(text: &str) -> bool {
    #[derive(Deserialize)]
    struct OnlyId {
        #[serde(default, deserialize_with = "present")]
        id: bool,
    }
    fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| true)
    }
    text.contains("\"id\"") && serde_json::from_str::<OnlyId>(text).is_ok_and(|only| only.id)
}

fn empty_params() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn parse_error(error: &serde_json::Error) -> Refused {
    refused(ErrorCode::ParseError, format!("invalid JSON: {error}"))
}

fn refused(code: ErrorCode, message: impl Into<String>) -> Refused {
    Refused { id: Id::Null, error: RpcError::new(code, message) }
}

/// A response frame.
#[derive(Debug, Serialize)]
pub struct Response<'a> {
    jsonrpc: &'static str,
    id: &'a Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl<'a> Response<'a> {
    /// The frame that answers `id`.
    #[must_use]
    pub fn new(id: &'a Id, outcome: &'a Result<Box<RawValue>, RpcError>) -> Self {
        let (result, error) = match outcome {
            Ok(result) => (Some(&**result), None),
            Err(error) => (None, Some(error)),
        };
        Self { jsonrpc: "2.0", id, result, error }
    }
}

/// A notification that we send.
#[derive(Debug, Serialize)]
pub struct Notification<'a, P: Serialize> {
    jsonrpc: &'static str,
    /// For example `claw.heartbeat`.
    pub method: &'a str,
    /// The params.
    pub params: P,
}

impl<'a, P: Serialize> Notification<'a, P> {
    /// A frame for `method`.
    pub fn new(method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", method, params }
    }
}

/// A request that we send as a client (conformance driver, control socket).
#[must_use]
pub fn request_text(id: u64, method: &str, params: &Value) -> String {
    serde_json::json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}
