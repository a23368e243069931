//! Models (CKP §5.2). One call of the port is one attempt at one endpoint; retry, fallback, limits and the record are the kernel's.

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
    /// The user's words.
    User {
        /// Text; may be empty when there are pictures.
        text: String,
        /// Pictures, in order. An adapter sends those that have their bytes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        images: Vec<Image>,
        /// What is told of the message before its words: when, where and by whom it was said, and what it repeats. An adapter sends
        /// both as [`crate::message_frame::join_frame`] joins them. Empty: nothing is told.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        frame: String,
        /// Whose words they are. The kernel's knowledge, and no part of what a model is sent.
        #[serde(skip, default = "TextAuthor::unknown")]
        author: TextAuthor,
    },
    /// The model's words and the tools it asks for.
    Assistant {
        /// Text; may be empty when there are calls.
        text: String,
        /// Calls in the order asked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolUse>,
        /// What the server handed over for safe keeping with this answer (R52).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<Box<ProviderState>>,
    },
    /// The answer to one call. Untrusted text.
    ToolResult {
        /// [`ToolUse::id`].
        call_id: String,
        /// What the model reads.
        text: String,
        /// The tool failed or was refused.
        is_error: bool,
        /// It holds what the tool said; without it, the text is the kernel's own and says why nothing ran. No part of what a model
        /// is sent.
        #[serde(skip, default = "yes")]
        from_tool: bool,
    },
}

impl ModelMessage {
    /// An assistant's words and calls that no server handed anything over with.
    #[must_use]
    pub const fn assistant(text: String, calls: Vec<ToolUse>) -> Self {
        Self::Assistant {
            text,
            calls,
            state: None,
        }
    }
}

/// What a model's server hands over for safe keeping with an answer: reasoning, signatures, extras of calls (R52). It is sent back
/// unchanged to the same provider, host and model, to nobody else, and is never shown as the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    /// The provider's name in the manifest.
    pub provider: String,
    /// The host that answered.
    pub host: String,
    /// The model that was asked, as the manifest names it.
    pub model: String,
    /// SHA-256 of the request up to this answer, as the adapter wrote it. Some servers take their parts only behind the same words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Digest>,
    /// The parts in the answer's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<StatePart>,
}

/// One part of a [`ProviderState`]. JSON is kept as the text that came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
pub enum StatePart {
    /// A member of the answer's message, for example `reasoning_content`.
    Member {
        /// Its name.
        name: String,
        /// Its JSON.
        json: String,
    },
    /// A member of one call, for example `extra_content`.
    CallMember {
        /// The call's place in [`ModelCompletion::calls`].
        call: u32,
        /// Its name.
        name: String,
        /// Its JSON.
        json: String,
    },
    /// A content block or an output item.
    Block {
        /// Its JSON.
        json: String,
    },
    /// So many bytes of the answer's text stand here.
    Text {
        /// Bytes.
        bytes: u64,
    },
    /// The call of this place stands here.
    Call {
        /// The call's place in [`ModelCompletion::calls`].
        call: u32,
    },
}

const fn yes() -> bool {
    true
}

/// A picture beside a user's words. The record has its digest; its bytes come with the request that shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Image {
    /// SHA-256 of its bytes.
    pub digest: Digest,
    /// For example `image/png`.
    pub mime_type: String,
    /// What its sender calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How many bytes it has.
    pub size_bytes: u64,
    /// Its bytes, where a provider is to be sent them.
    #[serde(skip)]
    pub data: Option<Arc<[u8]>>,
}

/// Most bytes of an id, a tool's name and a model's name in a model's answer. Adapters cut what is longer.
pub const NAME_MAX_BYTES: usize = 256;

/// A call that a model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    /// The model's own id for it; unique within the turn (made up by the adapter when the server gives none).
    pub id: String,
    /// The tool's name as offered.
    pub name: String,
    /// The arguments; `Err` holds the text that is no JSON object (bounded), which the model is told.
    pub arguments: Result<Map<String, Value>, String>,
}

/// A tool as offered to a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolOffer {
    /// Its name, `[A-Za-z0-9-]{1,63}`.
    pub name: String,
    /// For the model.
    pub description: String,
    /// JSON Schema of its arguments.
    pub input_schema: Value,
}

/// One request to a model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InferRequest {
    /// The system prompt.
    pub system: String,
    /// The conversation; the last one is the user's or tool results.
    pub messages: Vec<ModelMessage>,
    /// Tools on offer; may be empty.
    pub tools: Vec<ToolOffer>,
    /// At most so many output tokens.
    pub max_output_tokens: u64,
    /// How much the model may think; `None`: as the server does by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
    /// Requests that begin alike have the same key, for servers that keep a cache by it. It tells nothing of people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_key: Option<String>,
    /// The end of [`Self::system`] that changes from turn to turn, for example what was recalled. An adapter sends it beside the words
    /// that are answered, so that what stands before them stays the same for servers' caches. It is in the digest as part of the system
    /// prompt.
    #[serde(skip)]
    pub volatile: String,
    /// How the request's form differs from the dialect's usual one.
    #[serde(default, skip_serializing_if = "RequestAdaptation::is_empty")]
    pub adaptation: RequestAdaptation,
}

/// Tokens of one attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens read, cached ones included.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Of the input, those that the server had in its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cached_tokens: u64,
    /// Of the input, those that the server put into its cache.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// The counts are not the server's, but ours: bytes / 4. It gave none, or [`Self::told`] or [`Self::unreadable`] says why not.
    #[serde(default)]
    pub estimated: bool,
    /// What the server said, where that is far below the text that went and came: it is kept, and not believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<TokenReport>,
    /// The server sent a count that nobody can record: negative, a fraction, no number, above [`Self::TOKENS_MAX`]. The attempt is
    /// settled at what was set aside for it, or at the estimate if that is more.
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
    /// The most tokens that one count may say: a thousand times what the largest models take, and far within what the journal
    /// records (2^53) after a price has multiplied it.
    pub const TOKENS_MAX: u64 = 1_000_000_000;

    /// Both together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// It was done.
    End,
    /// It waits for tools.
    ToolUse,
    /// It hit the output bound: the text is cut.
    Length,
    /// It or its server refused.
    Refusal,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCompletion {
    /// Its words.
    pub text: String,
    /// The tools it asks for, in order.
    pub calls: Vec<ToolUse>,
    /// Why it ended.
    pub stop: StopReason,
    /// What it cost.
    pub usage: Usage,
    /// The model that the server says answered.
    pub model: String,
    /// What the server hands over for safe keeping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<ProviderState>>,
}

/// A piece of a streamed answer, for people to watch; what counts is the [`ModelCompletion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionDelta<'a> {
    /// More words.
    Text(&'a str),
    /// A call's name became known.
    Call(&'a str),
    /// What the model thinks on its way to the answer; no part of the answer.
    Thought(&'a str),
}

/// The kind of a failed attempt. It decides about retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// No connection: refused, DNS, TLS.
    Unreachable,
    /// No byte in time, or none for too long.
    Timeout,
    /// 429.
    RateLimited,
    /// 500, 502, 503, 529 and other 5xx.
    ServerFault,
    /// The stream ended before the answer did.
    Cut,
    /// The answer can't be read.
    Malformed,
    /// 401, 403, or the secret can't be resolved.
    Auth,
    /// Another 4xx: the request itself is wrong.
    Rejected,
    /// Money is limited and the model's price is not known: it was not asked.
    Unpriced,
    /// The conversation is too long for the model.
    ContextTooLong,
    /// The caller cancelled.
    Cancelled,
}

impl FaultKind {
    /// The word in the record, as serde writes it: a replay reads it back.
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

    /// The same attempt may succeed later.
    #[must_use]
    pub const fn retryable(self) -> bool {
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

/// A failed attempt. Its text holds no secret and at most 1 KiB of what the server said.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// The kind.
    pub kind: FaultKind,
    /// For people: which provider, what, where, what would mend it.
    pub message: String,
    /// HTTP status, if there was one.
    pub status: Option<u16>,
    /// The server's own wish, milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Tokens that were spent all the same, as far as known.
    pub usage: Option<Usage>,
    /// What the server names as the cause, where a changed request may be accepted.
    pub cause: Option<Box<RefusalCause>>,
}

/// Vectors of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct TextEmbeddings {
    /// One for each text, in order, of length 1.
    pub vectors: Vec<Vec<f32>>,
    /// What it cost; output is 0.
    pub usage: Usage,
}

/// A model endpoint.
pub trait ModelProvider: Send + Sync + fmt::Debug {
    /// One attempt. `on_delta` is called as pieces arrive, when the provider streams; it must not block.
    /// Every wait inside has a deadline; `cancel` ends the attempt and drops the connection.
    fn infer<'a>(
        &'a self,
        request: &'a InferRequest,
        on_delta: &'a (dyn Fn(CompletionDelta<'_>) + Send + Sync),
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<ModelCompletion, ProviderError>>;

    /// One attempt at the vectors of these texts, by an embedding model of the same endpoint. `dimensions`: the length that is wanted,
    /// where the manifest says one; a server that answers another length has failed.
    fn embed<'a>(
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

    /// One attempt at the words of a recording, by the provider's own model.
    fn transcribe<'a>(
        &'a self,
        _audio: &'a AudioRecording,
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<AudioTranscript, ProviderError>> {
        Box::pin(std::future::ready(Err(no_speech())))
    }

    /// One attempt at a text as sound, by the provider's own model, in the voice of this name.
    fn speak<'a>(
        &'a self,
        _voice: &'a str,
        _text: &'a str,
        _cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<SpokenAudio, ProviderError>> {
        Box::pin(std::future::ready(Err(no_speech())))
    }

    /// Tokens that the model's window holds, where its server says so without anything that is paid for.
    fn window_tokens(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(None))
    }

    /// Whether the endpoint can be reached, without anything that is paid for or says who asks. A model without a server can.
    fn reach(&self) -> BoxFuture<'_, Result<(), ProviderError>> {
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
