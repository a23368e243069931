//! The content of a model's context, and the findings of screening.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::{is_zero, payloads};
use crate::shape::FileOrigins;

payloads! {
    /// `ckp.context.trimmed`. Old messages were removed from the model's context.
    ContextTrimmed {
        /// Number of messages that were removed.
        dropped_messages: u64,
        /// Number of messages that remain.
        kept_messages: u64,
        /// Name of the provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// Results of tools that were shortened.
        #[serde(default, skip_serializing_if = "is_zero")]
        shortened_results: u64,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.context.compacted`. The oldest turns left the context; the content is their summary and the list of replaced
    /// messages.
    ContextCompacted {
        /// Number of messages that remain.
        kept_messages: u64,
        /// The method, as a word.
        method: String,
        /// Messages that a summary replaces.
        replaced_messages: u64,
        /// Name of the strategy.
        strategy: String,
        /// Digest of the summary.
        summary_hash: Digest,
        /// Id of the turn.
        turn: Uuid,
        /// Sources of the untrusted text in it.
        untrusted: Vec<String>,
    }

    /// `ckp.context.written`. The agent wrote one of its context files.
    ContextWritten {
        /// Path of the file.
        file: String,
        /// Id of the request.
        request_id: String,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.context.read`. A context file differs from the session's record of it. The content is the file's new text.
    ContextRead {
        /// Path of the file.
        file: String,
        /// Digest of the text.
        text_hash: Option<Digest>,
        /// Id of the turn.
        turn: Uuid,
    }

    /// `ckp.context.tainted`. Text of files with untrusted content entered a context.
    ContextTainted {
        /// Files, each with the origins of the untrusted text in it.
        files: FileOrigins,
        /// Id of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// Id of the turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<Uuid>,
        /// Sources of the untrusted text in it.
        untrusted: Vec<String>,
    }

    /// `ckp.screen.secret`, `ckp.screen.injection`: what kind, how many, and what was done. Never the text found.
    ScreenFinding {
        /// The action that screening took.
        action: String,
        /// The count.
        count: u64,
        /// The kind, as a word.
        kind: String,
        /// The method, as a word.
        method: String,
        /// The source of the text.
        place: String,
        /// The producer of the text, for example a tool.
        subject: String,
    }

    /// `ckp.screen.input`. A text is not valid input.
    ScreenInput {
        /// The action that screening took.
        action: String,
        /// Where in the text.
        at: String,
        /// What is wrong with it.
        fault: String,
        /// The source of the text.
        place: String,
        /// The producer of the text, for example a tool.
        subject: String,
    }

    /// `ckp.screen.judged`. A model judged a text.
    ScreenJudged {
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The source of the text.
        place: String,
        /// Name of the provider.
        provider: String,
        /// The producer of the text, for example a tool.
        subject: String,
        /// What the model said.
        verdict: String,
    }

    /// `ckp.content.redacted`. Contents of the session were erased.
    ContentRedacted {
        /// The identity that did this.
        by: String,
        /// Digests of what was erased.
        contents: Vec<Digest>,
        /// The count.
        count: u64,
        /// Why. Of an earlier version: the words themselves.
        reason: String,
        /// What was to be erased.
        scope: String,
        /// Digest of the reason's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        words_hash: Option<Digest>,
    }
}
