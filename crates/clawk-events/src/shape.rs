//! Values inside payloads. Their fields are in alphabetical order, as in every payload.

use std::collections::{BTreeMap, BTreeSet};

use clawk_proto::{Digest, SessionId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Files by the path that people know, each with the origins of the untrusted text in it (`web https://…`).
pub type FileOrigins = BTreeMap<String, BTreeSet<String>>;

/// The event of another session from which a forked session continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkPoint {
    /// Hash of the last event that belongs to the fork.
    pub event_hash: Digest,
    /// The continued turn keeps its original sender.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_sender: bool,
    /// Sequence number of that event.
    pub sequence: u64,
    /// The session that was forked.
    pub session_id: SessionId,
    /// Trace id of the session that was forked.
    pub trace_id: Uuid,
    /// The new id of the turn that was running at the fork and continues in this session.
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
    /// A person whom the entry point has identified.
    Person,
    /// No person: a database row, a file or a mail triggered the run.
    Trigger,
    /// Another agent.
    Agent,
}

/// Counts as a model's server gave them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenReport {
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
}

/// The part of a persistent budget that a call or a model request used, and the hour for which it counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetUse {
    /// Working time, in milliseconds.
    pub busy_ms: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Number of calls.
    pub calls: u64,
    /// The hour, as whole hours since the Unix epoch.
    pub hour: i64,
    /// Name of the budget.
    pub purse: String,
}

/// The cost of a dry run that one budget paid in one hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunCost {
    /// Cost in millionths of a US dollar.
    pub cost_microusd: u64,
    /// The hour, as whole hours since the Unix epoch.
    pub hour: i64,
    /// Name of the budget.
    pub purse: String,
    /// Number of tokens.
    pub tokens: u64,
}

/// The cause that a model server gives for its refusal (R53).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "kebab-case")]
pub enum RefusalCause {
    /// The conversation does not fit the model's window.
    TooLong {
        /// The window in tokens, if the server reports it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_tokens: Option<u64>,
    },
    /// A parameter is not supported.
    Parameter {
        /// The parameter's new name, if the server reports one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instead: Option<String>,
        /// The parameter's name on the wire.
        name: String,
    },
    /// The order of messages, or an empty message.
    Roles,
    /// The format of call ids.
    CallIds,
    /// The model takes tools only through the Responses API.
    ResponsesApi,
}

/// Changes to the format of model requests. Fields with the usual value are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestAdaptation {
    /// User and assistant messages must strictly alternate.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub alternate_roles: bool,
    /// Parameters that are not sent, by their wire names.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub omitted: BTreeSet<String>,
    /// Parameters that are sent under another name: wire name to new name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub renamed: BTreeMap<String, String>,
    /// Requests go to the Responses API.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub responses_api: bool,
    /// Call ids have exactly nine letters and digits.
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
    /// Ids of the entries.
    pub ids: Vec<String>,
    /// Name of the store.
    pub store: String,
    /// The search method that was used.
    pub used: Option<SearchMethod>,
}

/// The method of a memory search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchMethod {
    /// Vector search only, with a provider's embeddings.
    Vector,
    /// Full-text search only.
    FullText,
    /// Full-text search and vector search with a provider's embeddings.
    Hybrid,
    /// Vector search with the built-in table of word vectors.
    Static,
}

/// An entry that was forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenEntry {
    /// Id of the entry.
    pub id: String,
    /// `identity/NAME` or `channel/IDENTITY/CHANNEL`; empty: an entry for everyone.
    pub scope: String,
    /// Name of the store.
    pub store: String,
}

/// A part of a store whose entries were restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredStore {
    /// As [`ForgottenEntry::scope`].
    pub scope: String,
    /// Name of the store.
    pub store: String,
}

/// The average use that a skill's manifest estimates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillEstimates {
    /// Number of calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Duration in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Number of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// A change of a pairing (C3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairingStep {
    /// A person received a pairing code.
    Asked,
    /// An admin approved the code.
    Approved,
    /// An admin denied it.
    Denied,
    /// A paired person lost access.
    Revoked,
}

/// The decision of an Atlas about an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyResult {
    /// A policy allows it.
    Allow,
    /// A policy, or the default, denies it. Also used when a person must approve it first.
    Deny,
    /// No policy applies to the action.
    NotApplicable,
}

/// The kind of rule that an execution violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyViolation {
    /// A rate limit is used up.
    RateLimit,
    /// A budget is used up.
    Budget,
    /// A policy denies it.
    DeniedAction,
    /// The parameters do not match the action's schema.
    InvalidParameters,
    /// The action does not belong to this agent, or is not part of the resolution.
    Unauthorized,
}

/// The action that violated a policy, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViolationDetails {
    /// The action.
    pub action_id: String,
    /// The reason, as text.
    pub reason: Option<String>,
}

/// The amount that one execution took from one limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitCharge {
    /// The amount that was used.
    pub amount: u64,
    /// The key under which the limit counts.
    pub key: String,
    /// The limit's maximum.
    pub limit: u64,
    /// The limit's window, in seconds.
    pub window_seconds: u64,
}
