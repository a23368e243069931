//! One fact: a thing that happened, as numbers, ids, digests and declared names. A fact has no field for free text.

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Longest label, in bytes.
const MAX_LABEL_BYTES: usize = 64;

/// A short name of letters, digits, `_`, `-`, `.`, `:` and `/`. It cannot end a line, a string or a label, so it needs no escaping.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(String);

impl Label {
    /// The label that replaces every undeclared name.
    pub const OTHER: &'static str = "other";

    /// Makes a label of a name that the operator declared. Other characters become `_`; a longer name is cut to 64 bytes. Do not
    /// pass text of a model, a tool or a person.
    #[must_use]
    pub fn from_declared(name: &str) -> Self {
        let kept = |c: char| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | ':' | '/' => c,
            _ => '_',
        };
        Self(name.chars().take(MAX_LABEL_BYTES).map(kept).collect())
    }

    /// Returns `word` if it is one of `words`, else `other`.
    #[must_use]
    pub fn one_of(word: &str, words: &[&'static str]) -> Self {
        let known = words.iter().find(|known| **known == word);
        Self(known.copied().unwrap_or(Self::OTHER).to_owned())
    }

    /// Returns the label's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A fact: what happened, when, and in which session.
#[derive(Debug, Clone)]
pub struct TelemetryFact {
    /// Time in microseconds since the epoch.
    pub at_us: i64,
    /// The session whose chain holds the event.
    pub session: Uuid,
    /// The event's sequence number in that chain.
    pub sequence: u64,
    /// What happened.
    pub what: TelemetryFactKind,
}

/// A request to a model that ended.
#[derive(Debug, Clone)]
pub struct InferenceFact {
    /// Id of the request.
    pub inference: Uuid,
    /// Number of the attempt.
    pub attempt: u64,
    /// Id of the turn that sent the request.
    pub turn: Uuid,
    /// The provider's name in the manifest.
    pub provider: Label,
    /// The model's name in the manifest.
    pub model: Label,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Cost in millionths of a US dollar, if the price is known.
    pub cost_microusd: Option<u64>,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// The kind of failure; `None`: the request succeeded.
    pub fault: Option<Label>,
}

/// A tool call that ended.
#[derive(Debug, Clone)]
pub struct ToolCallFact {
    /// Id of the request.
    pub request: Uuid,
    /// Id of the turn that made the call, if there is one.
    pub turn: Option<Uuid>,
    /// Name of the tool.
    pub tool: Label,
    /// `executed`, `failed` or `denied`.
    pub outcome: &'static str,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Digest of the result.
    pub result: Option<Digest>,
    /// The error code; `None`: no error.
    pub fault: Option<Label>,
}

/// An error that is not the end of a call or of a model request.
#[derive(Debug, Clone)]
pub struct ErrorFact {
    /// The event's type; always one of the journal's types.
    pub kind: Label,
    /// Id of the turn, if the error belongs to one.
    pub turn: Option<Uuid>,
}

/// What happened, with the values of each kind of fact.
#[derive(Debug, Clone)]
pub enum TelemetryFactKind {
    /// The agent's lifecycle state changed.
    Lifecycle {
        /// The state before the change.
        from: Label,
        /// The state after the change.
        to: Label,
    },
    /// A turn began. `task` is the digest of the id of the swarm task that the turn works on; it is the same on every host.
    TurnBegan {
        /// Id of the turn.
        turn: Uuid,
        /// Digest of the swarm task's id.
        task: Option<Digest>,
    },
    /// A turn ended.
    TurnEnded {
        /// Id of the turn.
        turn: Uuid,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// Input tokens and output tokens.
        tokens: (u64, u64),
    },
    /// A request to a model ended.
    Inferred(InferenceFact),
    /// A tool call was requested.
    CallWanted {
        /// Id of the request.
        request: Uuid,
        /// Digest of the call's arguments.
        arguments: Digest,
    },
    /// A tool call ended.
    Called(ToolCallFact),
    /// A memory store was written, searched or cleaned up.
    Memory {
        /// `stored`, `queried`, `recalled`, `expired`, `compacted`.
        op: &'static str,
        /// Name of the memory store.
        store: Label,
        /// Number of entries.
        count: u64,
        /// For a search: whether it found an entry.
        hit: Option<bool>,
        /// Id of the turn that used the store.
        turn: Option<Uuid>,
    },
    /// A step of a swarm's task.
    Swarm {
        /// The step: the last word of the event's type.
        op: Label,
        /// Name of the member.
        member: Option<Label>,
        /// Digest of the task's id.
        task: Option<Digest>,
        /// The status at the end.
        status: Option<Label>,
        /// Duration in milliseconds.
        duration_ms: u64,
    },
    /// A skill's world model made a prediction.
    Planned {
        /// Name of the skill.
        skill: Label,
        /// Name of the world model.
        world_model: Label,
        /// Number of candidate plans.
        candidates: u64,
        /// Number of times that the plan was made again or replaced by the fallback.
        revisions: u64,
        /// Id of the turn.
        turn: Option<Uuid>,
    },
    /// The result of a plan was compared with its prediction.
    Compared {
        /// Name of the skill.
        skill: Label,
        /// Name of the world model.
        world_model: Label,
        /// Prediction error in thousandths.
        error_permille: u64,
        /// Id of the turn.
        turn: Option<Uuid>,
    },
    /// A skill began or ended.
    Skill {
        /// `invoked`, `repaired`, `finished`.
        op: &'static str,
        /// Name of the skill.
        skill: Label,
        /// Id of the turn.
        turn: Option<Uuid>,
    },
    /// Any other error.
    Trouble(ErrorFact),
}
