//! What models, people and tools said, as a tape holds it.

use clawk_proto::method::ToolCallResult;
use serde_json::{Map, Value};

use super::read::{number_field, text_field};
use crate::error::CallError;
use crate::notice::ApprovalAnswer;
use crate::ports::{FaultKind, ModelCompletion, RefusalCause, TaintedFiles, TokenReport};
use crate::time::Timestamp;

/// What a model's attempt came to.
#[derive(Debug, Clone)]
pub(super) enum TapedModelAnswer {
    Completion(Box<ModelCompletion>),
    Fault {
        kind: FaultKind,
        reason: String,
        status: Option<u16>,
        retry_after_ms: Option<u64>,
        input_tokens: u64,
        output_tokens: u64,
        /// Nobody counted them.
        estimated: bool,
        told: Option<TokenReport>,
        cause: Option<RefusalCause>,
    },
}

/// A failure, from its event.
pub(super) fn fault_from_facts(facts: &Map<String, Value>) -> TapedModelAnswer {
    let own = |key: &str| text_field(facts, key).unwrap_or_default();
    TapedModelAnswer::Fault {
        kind: serde_json::from_value(Value::String(own("kind"))).unwrap_or(FaultKind::Rejected), // silent-ok: shows in the comparison
        reason: own("reason"),
        status: number_field(facts, "status").and_then(|status| u16::try_from(status).ok()), // silent-ok: as above
        retry_after_ms: number_field(facts, "retry_after_ms"),
        input_tokens: number_field(facts, "input_tokens").unwrap_or(0),
        output_tokens: number_field(facts, "output_tokens").unwrap_or(0),
        estimated: facts.get("estimated") == Some(&Value::Bool(true)),
        told: facts
            .get("told")
            .and_then(|told| serde_json::from_value(told.clone()).ok()), // silent-ok: as above
        cause: facts
            .get("cause")
            .and_then(|cause| serde_json::from_value(cause.clone()).ok()), // silent-ok: as above
    }
}

/// What a person said. No answer: the question lapsed, or was cancelled.
#[derive(Debug, Clone)]
pub(super) struct TapedReply {
    pub(super) answer: Option<ApprovalAnswer>,
    /// Later calls in the same folder, too.
    pub(super) folder: bool,
    pub(super) by: String,
    pub(super) reason: Option<String>,
    pub(super) at: Timestamp,
}

impl TapedReply {
    /// Nobody has answered yet.
    pub(super) const fn unanswered_at(at: Timestamp) -> Self {
        Self {
            answer: None,
            folder: false,
            by: String::new(),
            reason: None,
            at,
        }
    }
}

/// What a call came to, with the payload that says how it was enclosed.
#[derive(Debug, Clone)]
pub(super) struct TapedCallEnd {
    pub(super) outcome: Result<ToolCallResult, CallError>,
    pub(super) payload: Map<String, Value>,
    /// It ended before anything ran.
    pub(super) refused: bool,
    /// A person was asked about it.
    pub(super) asked: bool,
    /// The untrusted files that it could read.
    pub(super) read: TaintedFiles,
}
