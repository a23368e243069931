//! `claw.message.send` (R40): an extension, by which a client talks to the agent.

use serde::{Deserialize, Serialize};

use crate::id::{MessageId, RequestId, SessionId};

/// The method. It is none of the specification's fifteen; `capabilities.messages` announces it.
pub const SEND: &str = "claw.message.send";
/// The notification of a piece of an answer.
pub const DELTA: &str = "claw.message.delta";
/// The notification of a step of a turn.
pub const STEP: &str = "claw.message.step";

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[serde(expecting = "internally tagged enum Part")]
pub enum MessagePart {
    /// Words.
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
        /// What it is called.
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
        /// What it is called.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// Sound.
    Audio {
        /// For example `audio/ogg`.
        #[serde(rename = "mimeType")]
        mime_type: String,
        /// Base64 of the bytes.
        data: String,
        /// What it is called.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

impl MessagePart {
    /// What a model that reads only text gets to see of it.
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
    /// Which conversation goes on; absent: a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<String>,
    /// What is said; this or `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<MessagePart>>,
    /// What is said, where it is nothing but words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// For idempotency (R19): kept for at least seven days.
    pub request_id: RequestId,
    /// Sends `claw.message.delta` and `claw.message.step` meanwhile.
    #[serde(default)]
    pub stream: bool,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnStopCode {
    /// With an answer.
    Answered,
    /// The model declined to answer.
    Refused,
    /// Somebody cancelled it.
    Cancelled,
    /// A budget was used up; `reason` says which.
    Budget,
    /// The loop guard ended it; `reason` says why.
    Stopped,
    /// It could not be finished; `reason` says why.
    Failed,
}

/// Tokens of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Read.
    pub input_tokens: u64,
    /// Written.
    pub output_tokens: u64,
}

/// Result of `claw.message.send`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendResult {
    /// What `conversation` takes to go on with it.
    pub conversation: String,
    /// The session that it is, as the trace has it.
    pub session_id: SessionId,
    /// The turn.
    pub turn_id: MessageId,
    /// The agent's answer.
    pub parts: Vec<MessagePart>,
    /// How the turn ended.
    pub stop: TurnStopCode,
    /// Why it could not be finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the turn did by the record, with one line for people as `text`; absent where the record has nothing to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<serde_json::Value>,
    /// What it took.
    pub usage: Tokens,
}
