//! One thing that happened, as numbers, ids, digests and declared names. There is no field for free text.

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Longest label, bytes.
const MAX_LABEL_BYTES: usize = 64;

/// A short name out of a closed alphabet: letters, digits, `_`, `-`, `.`, `:`, `/`. It cannot end a line, a string or a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(String);

impl Label {
    /// Stands for every name that nobody declared.
    pub const OTHER: &'static str = "other";

    /// A name that the operator declared. Other characters become `_`, and what is too long is cut. Do not hand it text of a
    /// model, a tool or a person.
    #[must_use]
    pub fn declared(name: &str) -> Self {
        let kept = |c: char| match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | ':' | '/' => c,
            _ => '_',
        };
        Self(name.chars().take(MAX_LABEL_BYTES).map(kept).collect())
    }

    /// `word` if it is one of `words`, else `other`.
    #[must_use]
    pub fn one_of(word: &str, words: &[&'static str]) -> Self {
        let known = words.iter().find(|known| **known == word);
        Self(known.copied().unwrap_or(Self::OTHER).to_owned())
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What happened, when and where.
#[derive(Debug, Clone)]
pub struct TelemetryFact {
    /// Microseconds since the epoch.
    pub at_us: i64,
    /// The session whose chain has the event.
    pub session: Uuid,
    /// Its place there.
    pub sequence: u64,
    /// What it is.
    pub what: TelemetryFactKind,
}

/// A request to a model that ended.
#[derive(Debug, Clone)]
pub struct InferenceFact {
    /// Its own id.
    pub inference: Uuid,
    /// The try.
    pub attempt: u64,
    /// The turn that asked.
    pub turn: Uuid,
    /// The manifest's name of the provider.
    pub provider: Label,
    /// The manifest's name of the model.
    pub model: Label,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Its price, millionths of a dollar, where it is known.
    pub cost_microusd: Option<u64>,
    /// How long it took.
    pub duration_ms: u64,
    /// Why it failed.
    pub fault: Option<Label>,
}

/// A tool call that ended.
#[derive(Debug, Clone)]
pub struct ToolCallFact {
    /// The request.
    pub request: Uuid,
    /// The turn that asked, if one did.
    pub turn: Option<Uuid>,
    /// The tool.
    pub tool: Label,
    /// `executed`, `failed` or `denied`.
    pub outcome: &'static str,
    /// How long it took.
    pub duration_ms: u64,
    /// Of its result.
    pub result: Option<Digest>,
    /// The error code.
    pub fault: Option<Label>,
}

/// An error that is not the end of a call or an inference.
#[derive(Debug, Clone)]
pub struct ErrorFact {
    /// The event's type, one of the journal's own.
    pub kind: Label,
    /// The turn it belongs to.
    pub turn: Option<Uuid>,
}

/// What a fact is about.
#[derive(Debug, Clone)]
pub enum TelemetryFactKind {
    /// The agent moved from one state of its lifecycle to another.
    Lifecycle {
        /// The state before.
        from: Label,
        /// The state now.
        to: Label,
    },
    /// A turn began. `task`: digest of the id of the swarm task that it works on; the same on every host.
    TurnBegan {
        /// The turn.
        turn: Uuid,
        /// The swarm task.
        task: Option<Digest>,
    },
    /// A turn ended.
    TurnEnded {
        /// The turn.
        turn: Uuid,
        /// How long it took.
        duration_ms: u64,
        /// Tokens in and out.
        tokens: (u64, u64),
    },
    /// A request to a model ended.
    Inferred(InferenceFact),
    /// A tool call is wanted; digest of its arguments.
    CallWanted {
        /// The request.
        request: Uuid,
        /// Of its arguments.
        arguments: Digest,
    },
    /// A tool call ended.
    Called(ToolCallFact),
    /// A store was written, asked or tidied.
    Memory {
        /// `stored`, `queried`, `recalled`, `expired`, `compacted`.
        op: &'static str,
        /// The store.
        store: Label,
        /// Entries.
        count: u64,
        /// A search that found something, or nothing.
        hit: Option<bool>,
        /// The turn that asked.
        turn: Option<Uuid>,
    },
    /// A swarm's task went a step.
    Swarm {
        /// The step: the last word of the event's type.
        op: Label,
        /// The member.
        member: Option<Label>,
        /// Digest of the task's id.
        task: Option<Digest>,
        /// How it ended.
        status: Option<Label>,
        /// How long it took.
        duration_ms: u64,
    },
    /// A skill's world model foretold something.
    Planned {
        /// The skill.
        skill: Label,
        /// The world model.
        world_model: Label,
        /// Candidates weighed.
        candidates: u64,
        /// How often the plan was made anew, or given up for the fallback.
        revisions: u64,
        /// The turn.
        turn: Option<Uuid>,
    },
    /// What came of a plan.
    Compared {
        /// The skill.
        skill: Label,
        /// The world model.
        world_model: Label,
        /// How wrong it was, thousandths.
        error_permille: u64,
        /// The turn.
        turn: Option<Uuid>,
    },
    /// A skill began or ended.
    Skill {
        /// `invoked`, `repaired`, `finished`.
        op: &'static str,
        /// The skill.
        skill: Label,
        /// The turn.
        turn: Option<Uuid>,
    },
    /// Anything else that went wrong.
    Trouble(ErrorFact),
}
