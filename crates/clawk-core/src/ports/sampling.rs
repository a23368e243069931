//! MCP sampling as data: a server's question to a model, its answer, and how a question is put.

use std::sync::Arc;

use clawk_proto::SessionId;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::BoxFuture;

/// A server's question to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// The server, as the operator knows it.
    pub server: String,
    /// The manifest's provider that answers; none: the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The system prompt that the server wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation, at most 64 messages; the last one is the user's.
    pub messages: Vec<SampleMessage>,
    /// Output tokens at most.
    pub max_tokens: u64,
}

/// One message of a server's question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleMessage {
    /// Whose words these are.
    pub role: SampleRole,
    /// The words.
    pub text: String,
}

/// The author of a [`SampleMessage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SampleRole {
    /// Said to the model.
    User,
    /// Said by the model.
    Assistant,
}

/// A model's answer to a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleAnswer {
    /// Its words.
    pub text: String,
    /// The model, as its server names it.
    pub model: String,
    /// The text was cut at `max_tokens`.
    pub cut: bool,
}

/// Puts a server's question to a model, for the session whose call runs at the server.
pub type SamplingHandler = Arc<
    dyn Fn(SessionId, SampleRequest, CancellationToken) -> BoxFuture<'static, Result<SampleAnswer, String>>
        + Send
        + Sync,
>;
