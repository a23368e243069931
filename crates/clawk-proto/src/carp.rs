//! CARP wire types: requests, resolutions, execute answers (CRA PROTOCOL §3).
//!
//! `clawk-carp` reads requests field by field and reports every fault with its pointer; these types are its result. They are
//! closed: an unknown member is an error. Output contains `null` where the golden files do.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::id::SessionId;

/// The `carp_version` that we speak.
pub const CARP_VERSION: &str = "1.0";

/// How much harm a task or an action can do; ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum RiskTier {
    /// The default.
    #[default]
    Low,
    /// Can be undone with effort.
    Medium,
    /// Hard to undo.
    High,
    /// Cannot be undone.
    Critical,
}

impl RiskTier {
    /// All tiers, rising.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];

    /// The wire text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", schema(as = Operation))]
pub enum CarpOperation {
    /// Which context and actions are there for a goal.
    Resolve,
    /// Run one action of an earlier resolution.
    Execute,
    /// Check a request without any effect.
    Validate,
}

impl CarpOperation {
    /// The wire text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Execute => "execute",
            Self::Validate => "validate",
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(as = Requester))]
pub struct CarpRequester {
    /// 1–255 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub agent_id: String,
    /// The session it asks in.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub session_id: SessionId,
    /// The session above, for nested agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<uuid::Uuid>))]
    pub parent_session_id: Option<SessionId>,
}

/// What it wants to do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(as = Task))]
pub struct CarpTask {
    /// 1–10,000 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 10000))]
    pub goal: String,
    /// `low` when absent.
    #[serde(default)]
    pub risk_tier: RiskTier,
    /// A hint that names a context pack includes that pack whatever its conditions say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub context_hints: Vec<String>,
    /// Only actions of these capabilities are candidates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub required_capabilities: Vec<String>,
}

/// Which action to run, and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(as = Execution))]
pub struct CarpExecution {
    /// The resolution that allowed it.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub resolution_id: Uuid,
    /// The action.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub action_id: String,
    /// Its arguments.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: Map<String, Value>,
    /// At most 255 characters; the same key is answered with the same response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub idempotency_key: Option<String>,
}

/// A CARP request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// "1.0".
    #[cfg_attr(feature = "openapi", schema(pattern = "^1\\.0$"))]
    pub carp_version: String,
    /// Unique within its session.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub request_id: Uuid,
    /// RFC 3339 with zone, as sent.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub timestamp: String,
    /// What is asked for.
    pub operation: CarpOperation,
    /// Who asks.
    pub requester: CarpRequester,
    /// Required by the schema; `execute` may leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<CarpTask>,
    /// Required for `execute`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<CarpExecution>,
    /// The Atlases to look in, in this order; empty: all, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>, max_items = 1000))]
    pub atlas_ids: Vec<String>,
    /// Facts that policies may match.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub context: Map<String, Value>,
}

/// What a resolution says as a whole (R30).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DecisionType {
    /// Every candidate is allowed.
    Allow,
    /// None is.
    Deny,
    /// Some are.
    Partial,
    /// None is, but some wait for a person.
    RequiresApproval,
}

impl DecisionType {
    /// The wire text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Partial => "partial",
            Self::RequiresApproval => "requires_approval",
        }
    }
}

/// The decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Which.
    #[serde(rename = "type")]
    pub kind: DecisionType,
    /// Why, where there is something to say.
    #[serde(default)]
    pub reason: Option<String>,
    /// What a person answers, with `requires_approval`.
    #[serde(default)]
    pub approval_id: Option<String>,
    /// RFC 3339: when the approval is no longer wanted.
    #[serde(default)]
    pub expires_at: Option<String>,
}

/// How a context block is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ContentType {
    /// Markdown.
    #[serde(rename = "text/markdown")]
    Markdown,
    /// Plain text.
    #[serde(rename = "text/plain")]
    Plain,
    /// JSON.
    #[serde(rename = "application/json")]
    Json,
}

/// A piece of context for the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ContextBlock {
    /// Unique within its source: the pack and the file.
    pub block_id: String,
    /// The Atlas's id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub source: Arc<str>,
    /// How to read it.
    pub content_type: ContentType,
    /// The text.
    pub content: String,
    /// 0–1000, high first.
    #[cfg_attr(feature = "openapi", schema(maximum = 1000))]
    pub priority: u16,
    /// Bytes over four, rounded up.
    pub token_estimate: u64,
    /// `source_pack`, `file`, and `truncated` where the pack's `max_tokens` cut it.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: Map<String, Value>,
}

/// At most so many calls in any window of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// At least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub max_calls: u64,
    /// At least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub window_seconds: u64,
}

/// An action that may be executed under the resolution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AllowedAction {
    /// Its id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub action_id: Arc<str>,
    /// Its name for people.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its parameters; `{}` when the Atlas gives none.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters_schema: Value,
    /// JSON Schema of what it returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub returns_schema: Option<Value>,
    /// Its own tier.
    #[serde(default)]
    pub risk_tier: RiskTier,
    /// Ask the user before each call.
    #[serde(default)]
    pub requires_confirmation: bool,
    /// Twice is as good as once.
    #[serde(default)]
    pub idempotent: bool,
    /// Its own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
}

/// An action that may not, and who said so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeniedAction {
    /// Its id.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub action_id: Arc<str>,
    /// The policy's `parameters.reason`, or a code such as `rate_limit_exceeded`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reason: Arc<str>,
    /// The deciding policy; absent when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, nullable = false))]
    pub policy_id: Option<Arc<str>>,
}

/// Kinds of constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ConstraintType {
    /// So many calls in a window.
    RateLimit,
    /// So much cost in a window.
    Budget,
    /// Only at these hours.
    TimeWindow,
    /// A person is asked first.
    RequireApproval,
    /// Nothing outside these actions.
    Scope,
}

/// Something that execution will hold the agent to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(as = Constraint))]
pub struct CarpConstraint {
    /// The id of the policy, with a suffix where one policy makes two.
    pub constraint_id: String,
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: ConstraintType,
    /// The kind's facts.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: Map<String, Value>,
}

/// A CARP resolution: what the agent may see and do for its goal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", schema(as = Resolution))]
pub struct CarpResolution {
    /// "1.0".
    pub carp_version: String,
    /// Its own id; an execute request names it.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub resolution_id: Uuid,
    /// The request it answers.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub request_id: Uuid,
    /// RFC 3339, UTC, microseconds.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub timestamp: String,
    /// The whole in one word.
    pub decision: Decision,
    /// High priority first.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<ContextBlock>))]
    pub context_blocks: Vec<Arc<ContextBlock>>,
    /// In candidate order.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<AllowedAction>))]
    pub allowed_actions: Vec<Arc<AllowedAction>>,
    /// In candidate order.
    pub denied_actions: Vec<DeniedAction>,
    /// Further conditions of the grant.
    pub constraints: Vec<CarpConstraint>,
    /// 0–86,400; valid for so long after `timestamp`.
    #[cfg_attr(feature = "openapi", schema(maximum = 86400))]
    pub ttl_seconds: u32,
    /// The session's trace.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub trace_id: Uuid,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ExecutionStatus {
    /// It ran.
    Success,
    /// It ran and failed.
    Error,
    /// It was not run.
    Denied,
    /// A person has not answered yet.
    PendingApproval,
}

/// Why an execution did not succeed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecutionError {
    /// For machines.
    pub code: String,
    /// For people.
    pub message: String,
    /// More facts.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub details: Map<String, Value>,
}

/// The answer to an execute request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ExecuteResponse {
    /// "1.0".
    pub carp_version: String,
    /// Its own id.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub execution_id: Uuid,
    /// The request it answers.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub request_id: Uuid,
    /// The resolution it ran under.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub resolution_id: Uuid,
    /// RFC 3339, UTC, microseconds.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub timestamp: String,
    /// How it ended.
    pub status: ExecutionStatus,
    /// What the action gave, or `null`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub result: Option<Value>,
    /// What went wrong, or `null`.
    #[serde(default)]
    pub error: Option<ExecutionError>,
    /// The session's trace.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub trace_id: Uuid,
}

/// One thing that is wrong with a message or an Atlas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(as = Fault))]
pub struct CarpFault {
    /// JSON Pointer; of a missing field, the pointer it would have.
    pub path: String,
    /// For machines, for example `missing`, `unknown_field`, `pattern`.
    pub code: String,
    /// What is wrong and what would mend it.
    pub message: String,
}

/// The answer to a validate request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ValidateResponse {
    /// "1.0".
    pub carp_version: String,
    /// The request it answers.
    #[cfg_attr(feature = "openapi", schema(value_type = uuid::Uuid))]
    pub request_id: Uuid,
    /// RFC 3339, UTC, microseconds.
    #[cfg_attr(feature = "openapi", schema(format = DateTime))]
    pub timestamp: String,
    /// Nothing is wrong.
    pub valid: bool,
    /// All that is wrong.
    pub errors: Vec<CarpFault>,
}
