//! Models (CKP §5.2). One call of the port is one attempt at one endpoint. Retry, fallback, limits and the record belong to the
//! kernel.

use std::fmt;
use std::sync::Arc;

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::request::{ReasoningEffort, RefusalCause, RequestAdaptation};
use super::{AudioRecording, AudioTranscript, BoxFuture, SpokenAudio};
use crate::author::TextAuthor;
pub use clawk_events::shape::TokenReport;

/// One message of the conversation as a model sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "kebab-case")]
pub enum ModelMessage {
    /// A user message.
    User {
        /// Text; may be empty if there are images.
        text: String,
        /// Images, in order. An adapter sends those that have their bytes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        images: Vec<Image>,
        /// What is told of the message before its words: when, where and by whom it was said, and what it repeats. An adapter sends
        /// both as [`crate::message_frame::join_frame`] joins them. Empty: nothing is told.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        frame: String,
        /// The author. Known to the kernel only, never sent to a model.
        #[serde(skip, default = "TextAuthor::unknown")]
        author: TextAuthor,
    },
    /// The model's text and its tool calls.
    Assistant {
        /// Text; may be empty if there are calls.
        text: String,
        /// The calls in the model's order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolUse>,
        /// State that the server wants back with later requests (R52).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Box<ProviderState>>,
    },
    /// The result of one call. Untrusted text.
    ToolResult {
        /// [`ToolUse::id`].
        call_id: String,
        /// The text for the model.
        text: String,
        /// The tool failed or was refused.
        is_error: bool,
        /// The text contains the tool's own text. Otherwise it is the kernel's and says why nothing ran. Never sent to a model.
        #[serde(skip, default = "default_true")]
        from_tool: bool,
    },
}

impl ModelMessage {
    /// Makes an assistant message without server state.
    #[must_use]
    pub const fn assistant(text: String, calls: Vec<ToolUse>) -> Self {
        Self::Assistant {
            text,
            calls,
            state: None,
        }
    }
}

/// State that a model's server returns with an answer: reasoning, signatures, extras of calls (R52). It is sent back unchanged,
/// only to the same provider, host and model, and is never shown as part of the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    /// The provider's name in the manifest.
    pub provider: String,
    /// The host that answered.
    pub host: String,
    /// The model in the request, as the manifest names it.
    pub model: String,
    /// SHA-256 of the request up to this answer, as the adapter wrote it. Some servers accept their parts only after the same
    /// prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Digest>,
    /// The parts in the answer's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<StatePart>,
}

/// One part of a [`ProviderState`]. JSON is stored as the received text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
pub enum StatePart {
    /// A member of the answer's message, for example `reasoning_content`.
    Member {
        /// Name of the member.
        name: String,
        /// The member's JSON.
        json: String,
    },
    /// A member of one call, for example `extra_content`.
    CallMember {
        /// Index of the call in [`ModelCompletion::calls`].
        call: u32,
        /// Name of the member.
        name: String,
        /// The member's JSON.
        json: String,
    },
    /// A content block or an output item.
    Block {
        /// The block's JSON.
        json: String,
    },
    /// The position of a part of the answer's text.
    Text {
        /// Length of the text part, in bytes.
        bytes: u64,
    },
    /// The position of a call.
    Call {
        /// Index of the call in [`ModelCompletion::calls`].
        call: u32,
    },
}

const fn default_true() -> bool {
    true
}

/// An image beside a user's text. The record has its digest; its bytes are added to a request that shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// The MIME type, for example `image/png`.
    pub mime_type: String,
    /// The sender's name for the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// The bytes, if they are to be sent to a provider.
    #[serde(skip)]
    pub data: Option<Arc<[u8]>>,
}

/// Longest id, tool name and model name in a model's answer, in bytes. Adapters cut longer ones.
pub const NAME_MAX_BYTES: usize = 256;

/// A tool call of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The model's id of the call, unique within the turn. The adapter makes one if the server gives none.
    pub id: String,
    /// The tool's name as offered.
    pub name: String,
    /// The arguments. `Err` holds the text that is not a JSON object (limited in length), which the model is told.
    pub arguments: Result<Map<String, Value>, String>,
}

/// A tool as offered to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOffer {
    /// Its name, `[A-Za-z0-9-]{1,63}`.
    pub name: String,
    /// Description for the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

/// One request to a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InferRequest {
    /// The system prompt.
    pub system: String,
    /// The conversation. The last message is the user's, or tool results.
    pub messages: Vec<ModelMessage>,
    /// The offered tools; may be empty.
    pub tools: Vec<ToolOffer>,
    /// Largest number of output tokens.
    pub max_output_tokens: u64,
    /// Reasoning effort; `None`: the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
    /// Requests with the same prefix have the same key, for servers that cache by it. It reveals nothing about people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<String>,
    /// The end of [`Self::system`] that changes from turn to turn, for example recalled entries. An adapter sends it next to the
    /// answered message, so that the text before stays the same for servers' caches. It is part of the system prompt in the digest.
    #[serde(skip)]
    pub volatile: String,
    /// Changes from the dialect's usual format.
    #[serde(default, skip_serializing_if = "RequestAdaptation::is_empty")]
    pub adaptation: RequestAdaptation,
}

/// Token counts of one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Input tokens, including cached ones.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Input tokens that the server read from its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Input tokens that the server wrote into its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// The counts are clawk's estimate (bytes / 4), because the server gave none, or because of [`Self::told`] or
    /// [`Self::unreadable`].
    #[serde(default)]
    pub estimated: bool,
    /// The server's counts if they are far too low for the text. They are stored but not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<TokenReport>,
    /// The server sent a count that can't be recorded: negative, a fraction, not a number, or above [`Self::TOKENS_MAX`]. The
    /// attempt is settled at its reservation, or at the estimate if that is more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unreadable: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Usage {
    /// Largest recordable token count: a thousand times the window of the largest models, and far below the journal's limit (2^53)
    /// after multiplication by a price.
    pub const TOKENS_MAX: u64 = 1_000_000_000;

    /// Returns the sum of input and output.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// The answer is complete.
    End,
    /// The model waits for tool results.
    ToolUse,
    /// The output limit was reached, and the text is cut.
    Length,
    /// The model or its server refused.
    Refusal,
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCompletion {
    /// Text of the answer.
    pub text: String,
    /// Tool calls, in order.
    pub calls: Vec<ToolUse>,
    /// Why the model stopped.
    pub stop: StopReason,
    /// Token counts.
    pub usage: Usage,
    /// The model's name as the server reports it.
    pub model: String,
    /// State that the server wants back with later requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<ProviderState>>,
}

/// A piece of a streamed answer, for display only. The [`ModelCompletion`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionDelta<'a> {
    /// More text.
    Text(&'a str),
    /// The name of a call.
    Call(&'a str),
    /// A thought, which is not part of the answer.
    Thought(&'a str),
}

/// The kind of a failed attempt. It determines retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// No connection: refused, DNS, TLS.
    Unreachable,
    /// No first byte in time, or no further byte for too long.
    Timeout,
    /// HTTP status 429.
    RateLimited,
    /// HTTP status 500, 502, 503, 529 or another 5xx.
    ServerFault,
    /// The stream ended before the answer was complete.
    Cut,
    /// The answer can't be parsed.
    Malformed,
    /// HTTP status 401 or 403, or the secret can't be resolved.
    Auth,
    /// Another 4xx status: the request itself is wrong.
    Rejected,
    /// Money is limited and the model's price is unknown, so no request was sent.
    Unpriced,
    /// The conversation is too long for the model.
    ContextTooLong,
    /// The caller cancelled.
    Cancelled,
}

impl FaultKind {
    /// Returns the word in the record, in serde's form, which a replay reads back.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::RateLimited => "rate-limited",
            Self::ServerFault => "server-fault",
            Self::Cut => "cut",
            Self::Malformed => "malformed",
            Self::Auth => "auth",
            Self::Rejected => "rejected",
            Self::Unpriced => "unpriced",
            Self::ContextTooLong => "context-too-long",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns whether the same attempt may succeed later.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        match self {
            Self::Unreachable
            | Self::Timeout
            | Self::RateLimited
            | Self::ServerFault
            | Self::Cut
            | Self::Malformed => true,
            Self::Auth | Self::Rejected | Self::Unpriced | Self::ContextTooLong | Self::Cancelled => false,
        }
    }
}

/// A failed attempt. Its text holds no secret and at most 1 KiB of the server's text.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The kind.
    pub kind: FaultKind,
    /// Text for people: which provider, what, where, and how to fix it.
    pub message: String,
    /// HTTP status, if there was one.
    pub status: Option<u16>,
    /// The delay that the server requests, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Tokens that were spent anyway, as far as known.
    pub usage: Option<Usage>,
    /// The cause that the server names, if a changed request may succeed.
    pub cause: Option<Box<RefusalCause>>,
}

/// Vectors of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct TextEmbeddings {
    /// One vector for each text, in order, of length 1.
    pub vectors: Vec<Vec<f32>>,
    /// Token counts; output is 0.
    pub usage: Usage,
}

/// A model endpoint.
pub trait ModelProvider: Send + Sync + fmt::Debug {
    /// Makes one attempt. `on_delta` is called as pieces arrive, if the provider streams; it must not block. Every wait inside has
    /// a deadline; `cancel` ends the attempt and closes the connection.
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>>;

    /// Makes one attempt to embed these texts with an embedding model of the same endpoint. `dimensions`: the manifest's vector
    /// length, if set; another length is a failure.
    fn embed_texts<'a>(
        &'a self,
        model: &'a str,
        _dimensions: Option<u64>,
        _texts: &'a [String],
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<TextEmbeddings, ProviderError>> {
        Box::pin(std::future::ready(Err(ProviderError {
            kind: FaultKind::Rejected,
            message: format!("this provider serves no embeddings, and `{model}` is asked for"),
            status: None,
            retry_after_ms: None,
            usage: None,
            cause: None,
        })))
    }

    /// Makes one attempt to transcribe a recording with the provider's model.
    fn transcribe_audio<'a>(
        &'a self,
        _audio: &'a AudioRecording,
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<AudioTranscript, ProviderError>> {
        Box::pin(std::future::ready(Err(no_speech())))
    }

    /// Makes one attempt to convert a text to speech with the provider's model, in the named voice.
    fn synthesize_speech<'a>(
        &'a self,
        _voice: &'a str,
        _text: &'a str,
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<SpokenAudio, ProviderError>> {
        Box::pin(std::future::ready(Err(no_speech())))
    }

    /// Returns the model's window in tokens, if its server reports it without cost.
    fn window_tokens(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(None))
    }

    /// Checks that the endpoint can be reached, without cost and without identifying the client. A model without a server always
    /// can.
    fn check_reachable(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn no_speech() -> ProviderError {
    ProviderError {
        kind: FaultKind::Rejected,
        message: "this provider neither transcribes nor speaks; name one that speaks `openai-compatible`"
            .to_owned(),
        status: None,
        retry_after_ms: None,
        usage: None,
        cause: None,
    }
}
