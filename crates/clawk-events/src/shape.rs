//! Values that stand inside payloads. Fields in alphabetical order, as in every payload.

use std::collections::{BTreeMap, BTreeSet};

use clawk_proto::{Digest, SessionId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Files by the path that people know, each with the origins of the untrusted text in it (`web https://…`).
pub type FileOrigins = BTreeMap<String, BTreeSet<String>>;

/// The step of another session that a session goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPoint {
    /// The hash of the last event that counts.
    pub event_hash: Digest,
    /// The turn that goes on stays its sender's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_sender: bool,
    /// Its sequence.
    pub sequence: u64,
    /// The source.
    pub session_id: SessionId,
    /// The source's trace.
    pub trace_id: Uuid,
    /// The id under which the turn that was under way there goes on here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Uuid>,
}

/// What kind of author wrote a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuthorKind {
    /// This program.
    Runtime,
    /// The agent's operator, in the manifest.
    Operator,
    /// Somebody whom an entry point knows.
    Person,
    /// Nobody: a row, a file or a mail that set off a run.
    Trigger,
    /// Another agent.
    Agent,
}

/// Counts as a model's server gave them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenReport {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

/// What a call or a request to a model took from a budget that outlives a restart, with the hour that it counts in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetUse {
    /// Time at work, in milliseconds.
    pub busy_ms: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Calls.
    pub calls: u64,
    /// Hours since the epoch.
    pub hour: i64,
    /// The budget.
    pub purse: String,
}

/// What a budget paid for a dry run in one hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunCost {
    /// Cost in millionths of a US dollar.
    pub cost_microusd: u64,
    /// Hours since the epoch.
    pub hour: i64,
    /// The budget.
    pub purse: String,
    /// Tokens.
    pub tokens: u64,
}

/// What a model's server names as the cause of its refusal (R53).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum RefusalCause {
    /// The conversation does not fit the model's window.
    TooLong {
        /// The window in tokens, where the server says it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_tokens: Option<u64>,
    },
    /// A parameter is not supported.
    Parameter {
        /// The name to use in its place, where the server says one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead: Option<String>,
        /// Its name on the wire.
        name: String,
    },
    /// The order or emptiness of messages.
    Roles,
    /// The form of call ids.
    CallIds,
    /// The model takes tools only through the Responses API.
    ResponsesApi,
}

/// Changes to the form of a request. What is in its usual form is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestAdaptation {
    /// Messages of the user and the assistant strictly alternate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alternate_roles: bool,
    /// Parameters that are left out, by their wire names.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub omitted: BTreeSet<String>,
    /// Parameters that are sent under another name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
    /// The endpoint wants the Responses API.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub responses_api: bool,
    /// Call ids have nine letters and digits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub short_call_ids: bool,
}

impl RequestAdaptation {
    /// The request is sent in its usual form.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What one store found, as ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySearch {
    /// The entries.
    pub ids: Vec<String>,
    /// The store.
    pub store: String,
    /// By what it was searched.
    pub used: Option<SearchMethod>,
}

/// By what a text was searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchMethod {
    /// By meaning alone, with a provider's embeddings.
    Vector,
    /// By words alone.
    FullText,
    /// By words and a provider's embeddings.
    Hybrid,
    /// By the built-in table of word vectors.
    Static,
}

/// An entry that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenEntry {
    /// The entry.
    pub id: String,
    /// `identity/NAME`, `channel/IDENTITY/CHANNEL`, or empty for everybody's.
    pub scope: String,
    /// The store.
    pub store: String,
}

/// A part of a store whose entries came back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredStore {
    /// As [`ForgottenEntry::scope`].
    pub scope: String,
    /// The store.
    pub store: String,
}

/// What a skill is said to take, on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillEstimates {
    /// Calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Duration in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// A change of a pairing (C3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairingStep {
    /// Somebody got a code.
    Asked,
    /// An admin approved the code.
    Approved,
    /// An admin denied it.
    Denied,
    /// Somebody who was let in is not let in any more.
    Revoked,
}

/// What an Atlas says of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyResult {
    /// A policy allows it.
    Allow,
    /// A policy, or the default, does not; also: a person is asked first.
    Deny,
    /// No policy had anything to say.
    NotApplicable,
}

/// What an execution ran against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyViolation {
    /// A rate limit is spent.
    RateLimit,
    /// A budget is spent.
    Budget,
    /// A policy denies it.
    DeniedAction,
    /// Parameters do not fit.
    InvalidParameters,
    /// Not this agent's, or not in the resolution.
    Unauthorized,
}

/// The action of a violation, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationDetails {
    /// The action.
    pub action_id: String,
    /// Why.
    pub reason: Option<String>,
}

/// One limit's part of a charge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitCharge {
    /// How much was used up.
    pub amount: u64,
    /// What the limit counts by.
    pub key: String,
    /// The limit.
    pub limit: u64,
    /// The limit's window, in seconds.
    pub window_seconds: u64,
}
