//! `claw.message.send` (R40): an extension with which a client talks to the agent.

use serde::{Deserialize, Serialize};

use crate::id::{MessageId, RequestId, SessionId};

/// The method's name. The specification does not define it; `capabilities.messages` announces it.
pub const SEND: &str = "claw.message.send";
/// The notification with a piece of an answer.
pub const DELTA: &str = "claw.message.delta";
/// The notification about a step of a turn.
pub const STEP: &str = "claw.message.step";

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[serde(expecting = "internally tagged enum Part")]
pub enum MessagePart {
    /// A text.
    Text {
        /// UTF-8.
        text: String,
    },
    /// A picture.
    Image {
        /// For example `image/png`.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Base64 of the bytes.
        data: String,
        /// The file name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A file.
    File {
        /// For example `application/pdf`.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Base64 of the bytes.
        data: String,
        /// The file name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// An audio recording.
    Audio {
        /// For example `audio/ogg`.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Base64 of the bytes.
        data: String,
        /// The file name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

impl MessagePart {
    /// The part as text, for a model that accepts only text.
    #[must_use]
    pub fn as_text(&self) -> String {
        let note = |what: &str, mime_type: &str, data: &str, name: &Option<String>| {
            let name = name
                .as_deref()
                .map(|name| format!(" `{name}`"))
                .unwrap_or_default();
            format!(
                "[{what}{name}, {mime_type}, {} bytes; it is not shown to you]",
                data.len() / 4 * 3
            )
        };
        match self {
            Self::Text { text } => text.clone(),
            Self::Image {
                mime_type,
                data,
                name,
            } => note("an image", mime_type, data, name),
            Self::File {
                mime_type,
                data,
                name,
            } => note("a file", mime_type, data, name),
            Self::Audio {
                mime_type,
                data,
                name,
            } => note("a sound", mime_type, data, name),
        }
    }
}

/// Params of `claw.message.send`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendParams {
    /// The conversation to continue; `None`: a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// The message's parts. Required if there is no `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<MessagePart>>,
    /// The message, if it is only text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The request id for idempotency (R19), stored for at least seven days.
    pub request_id: RequestId,
    /// Whether to send `claw.message.delta` and `claw.message.step` during the turn.
    #[serde(default)]
    pub stream: bool,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnStopCode {
    /// The agent answered.
    Answered,
    /// The model declined to answer.
    Refused,
    /// Somebody cancelled it.
    Cancelled,
    /// A budget was used up; `reason` says which.
    Budget,
    /// The loop guard stopped it; `reason` says why.
    Stopped,
    /// The turn failed; `reason` says why.
    Failed,
}

/// The token counts of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
}

/// Result of `claw.message.send`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendResult {
    /// The value for `conversation` to continue it.
    pub conversation: String,
    /// The session's id in the trace.
    pub session_id: SessionId,
    /// The turn's id.
    pub turn_id: MessageId,
    /// The agent's answer.
    pub parts: Vec<MessagePart>,
    /// How the turn ended.
    pub stop: TurnStopCode,
    /// Why it could not be completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the turn did, from the record, with one line for people as `text`; absent if the record has nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<serde_json::Value>,
    /// The tokens that the turn used.
    pub usage: Tokens,
}
