//! What a model's context is made of, and what screening found.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::{is_zero, payloads};
use crate::shape::FileOrigins;

payloads! {
    /// `ckp.context.trimmed`. Old messages left the model's view.
    ContextTrimmed {
        /// Messages that left.
        dropped_messages: u64,
        /// Messages that stay.
        kept_messages: u64,
        /// The provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// Results of tools that were shortened.
        #[serde(default, skip_serializing_if = "is_zero")]
        shortened_results: u64,
        /// The turn.
        turn: Uuid,
    }

    /// `ckp.context.compacted`. The oldest turns left the context; the content is their summary and the list of replaced
    /// messages.
    ContextCompacted {
        /// Messages that stay.
        kept_messages: u64,
        /// By which method.
        method: String,
        /// Messages that a summary replaces.
        replaced_messages: u64,
        /// The strategy.
        strategy: String,
        /// Digest of the summary.
        summary_hash: Digest,
        /// The turn.
        turn: Uuid,
        /// Origins of the untrusted text in it.
        untrusted: Vec<String>,
    }

    /// `ckp.context.written`. The agent wrote one of its context files.
    ContextWritten {
        /// The file.
        file: String,
        /// The request.
        request_id: String,
        /// Digest of the text.
        text_hash: Digest,
    }

    /// `ckp.context.read`. A context file differs from the session's record of it; the content is its text.
    ContextRead {
        /// The file.
        file: String,
        /// Digest of the text.
        text_hash: Option<Digest>,
        /// The turn.
        turn: Uuid,
    }

    /// `ckp.context.tainted`. A context got text of files that hold untrusted text of others.
    ContextTainted {
        /// Files, each with the origins of the untrusted text in it.
        files: FileOrigins,
        /// The request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<Uuid>,
        /// Origins of the untrusted text in it.
        untrusted: Vec<String>,
    }

    /// `ckp.screen.secret`, `ckp.screen.injection`: what kind, how many, and what was done. Never the text found.
    ScreenFinding {
        /// What was done about it.
        action: String,
        /// How many.
        count: u64,
        /// Of what kind.
        kind: String,
        /// By which method.
        method: String,
        /// Where the text came from.
        place: String,
        /// Whose text it is, for example a tool's.
        subject: String,
    }

    /// `ckp.screen.input`. A text is not valid input.
    ScreenInput {
        /// What was done about it.
        action: String,
        /// Where in the text.
        at: String,
        /// What is wrong with it.
        fault: String,
        /// Where the text came from.
        place: String,
        /// Whose text it is, for example a tool's.
        subject: String,
    }

    /// `ckp.screen.judged`. A model judged a text.
    ScreenJudged {
        /// Duration in milliseconds.
        duration_ms: u64,
        /// Where the text came from.
        place: String,
        /// The provider.
        provider: String,
        /// Whose text it is, for example a tool's.
        subject: String,
        /// What the model said.
        verdict: String,
    }

    /// `ckp.content.redacted`. Contents of the session were erased.
    ContentRedacted {
        /// Who did it.
        by: String,
        /// Digests of what was erased.
        contents: Vec<Digest>,
        /// How many.
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
