//! The fifteen CKP methods with their params and results (CKP §9.3).
//!
//! Params may have unknown members (R10); the types require the mandatory ones.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::content::ContentBlock;
use crate::id::RequestId;

macro_rules! methods {
    ($($name:ident = $text:literal, $group:ident, $notification:literal;)*) => {
        /// A method of the protocol.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method { $(#[doc = $text] $name,)* }

        impl Method {
            /// All methods in the specification's order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The wire name.
            #[must_use]
            pub const fn name(self) -> &'static str { match self { $(Self::$name => $text,)* } }

            /// The capability group it belongs to.
            #[must_use]
            pub const fn group(self) -> MethodGroup { match self { $(Self::$name => MethodGroup::$group,)* } }

            /// It is sent as a notification and never answered.
            #[must_use]
            pub const fn is_notification(self) -> bool { match self { $(Self::$name => $notification,)* } }

            /// The method with this wire name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> { match name { $($text => Some(Self::$name),)* _ => None } }
        }
    };
}

/// Groups of methods, as `capabilities` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MethodGroup {
    /// Lifecycle; every level.
    Core,
    /// `claw.tool.*`; from Level 2.
    Tools,
    /// `claw.swarm.*`; Level 3.
    Swarm,
    /// `claw.memory.*`; Level 3.
    Memory,
}

methods! {
    Initialize = "claw.initialize", Core, false;
    Initialized = "claw.initialized", Core, true;
    Status = "claw.status", Core, false;
    Shutdown = "claw.shutdown", Core, false;
    Heartbeat = "claw.heartbeat", Core, true;
    ToolCall = "claw.tool.call", Tools, false;
    ToolApprove = "claw.tool.approve", Tools, false;
    ToolDeny = "claw.tool.deny", Tools, false;
    SwarmDelegate = "claw.swarm.delegate", Swarm, false;
    SwarmReport = "claw.swarm.report", Swarm, false;
    SwarmBroadcast = "claw.swarm.broadcast", Swarm, true;
    SwarmDiscover = "claw.swarm.discover", Swarm, false;
    MemoryQuery = "claw.memory.query", Memory, false;
    MemoryStore = "claw.memory.store", Memory, false;
    MemoryCompact = "claw.memory.compact", Memory, false;
}

/// The client that sent `claw.initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientInfo {
    /// The name of the operator's implementation.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// Params of `claw.initialize`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeParams {
    /// The highest version that the operator supports, semver.
    pub protocol_version: String,
    /// The client.
    pub client_info: ClientInfo,
    /// A manifest object, or a `claw://` URI as a string.
    pub manifest: Value,
    /// Empty: unrestricted. Otherwise only the named groups (R2).
    pub capabilities: Map<String, Value>,
}

/// The agent that answers `claw.initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// The Identity's name.
    pub name: String,
    /// The manifest's `metadata.version`.
    pub version: String,
}

/// Result of `claw.initialize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitializeResult {
    /// The version in use (R1).
    pub protocol_version: String,
    /// The agent.
    pub agent_info: AgentInfo,
    /// `level-1`, `level-2` or `level-3`.
    pub conformance_level: String,
    /// The groups that the agent supports and the operator requested.
    pub capabilities: Map<String, Value>,
}

/// Lifecycle states (CKP §8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LifecycleState {
    /// The manifest is being read.
    Init,
    /// The components are being connected.
    Starting,
    /// The agent serves requests.
    Ready,
    /// The agent is draining.
    Stopping,
    /// The agent has ended; it may be initialized again.
    Stopped,
    /// The agent failed; it is recovering or stopping.
    Error,
}

impl LifecycleState {
    /// The wire text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Init => "INIT",
            Self::Starting => "STARTING",
            Self::Ready => "READY",
            Self::Stopping => "STOPPING",
            Self::Stopped => "STOPPED",
            Self::Error => "ERROR",
        }
    }
}

/// Result of `claw.status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusResult {
    /// The present state.
    pub state: LifecycleState,
    /// Milliseconds since the answer to `claw.initialize` (R5).
    pub uptime_ms: u64,
}

/// Params of the `claw.heartbeat` notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatParams {
    /// The present state.
    pub state: LifecycleState,
    /// Milliseconds since the answer to `claw.initialize`.
    pub uptime_ms: u64,
    /// The time, RFC 3339, UTC.
    pub timestamp: String,
}

/// What a `claw.shutdown` ends (R38).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShutdownScope {
    /// Only this connection.
    Connection,
    /// The agent and its host, with all connections.
    Host,
}

/// Params of `claw.shutdown`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownParams {
    /// The reason, for the trace.
    #[serde(default)]
    pub reason: Option<String>,
    /// How long to drain, milliseconds.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// What ends. Default: the agent on the launcher's connection, only the connection on others.
    #[serde(default)]
    pub scope: Option<ShutdownScope>,
}

/// Result of `claw.shutdown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownResult {
    /// Everything in flight ended before the timeout.
    pub drained: bool,
}

/// `context` of `claw.tool.call`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallContext {
    /// The request id for idempotency (R19).
    pub request_id: RequestId,
    /// The calling agent's Identity.
    pub identity: String,
    /// The name of a narrower sandbox (R15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The name of an additional policy (R15).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// Params of `claw.tool.call`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallParams {
    /// The tool's name in the manifest.
    pub name: String,
    /// The arguments, valid for the tool's `input_schema`.
    pub arguments: Map<String, Value>,
    /// The caller and its restrictions.
    pub context: CallContext,
}

/// Result of `claw.tool.call` (R20, R20a).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCallResult {
    /// The content for the model.
    pub content: Vec<ContentBlock>,
    /// The tool ran and failed.
    #[serde(default, rename = "isError")]
    pub is_error: bool,
    /// Facts in addition to the text.
    #[serde(
        default,
        rename = "structuredContent",
        skip_serializing_if = "Option::is_none"
    )]
    pub structured_content: Option<Value>,
}

/// Params of `claw.tool.approve` and `claw.tool.deny`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerParams {
    /// The pending call.
    pub request_id: RequestId,
    /// The person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `{"acknowledged": bool}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "struct Acknowledged")]
pub struct AcknowledgedResult {
    /// Whether the answer was accepted.
    pub acknowledged: bool,
}

/// The task of `claw.swarm.delegate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(expecting = "struct Task")]
pub struct DelegateTask {
    /// The work, described in words.
    pub description: String,
    /// Structured input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// `context` of `claw.swarm.delegate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegateContext {
    /// The request id for idempotency.
    pub request_id: RequestId,
    /// The swarm's name.
    pub swarm: String,
    /// Only this member, identity or role; `None`: the whole swarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// A secret that the report must repeat: 128 random bits, hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_token: Option<String>,
    /// Limits for every member that works on the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TaskLimits>,
    /// The giver's signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<HostSignature>,
}

/// A host's signature of a task or a report (an extension, which agents may ignore). ADR 185 defines the signed bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(expecting = "struct Proof")]
pub struct HostSignature {
    /// The host's public key: `ed25519:` and 64 hexadecimal digits.
    pub key: String,
    /// The signature: 128 hexadecimal digits.
    pub signature: String,
    /// For a task: when it was given, milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<i64>,
}

/// The limits of a delegated task; each one only narrows (an extension, which agents may ignore).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskLimits {
    /// The role of the delegating agent: `viewer`, `user` or `admin`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The autonomy of the delegating agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autonomy: Option<String>,
    /// Only these tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// The largest number of tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The largest cost, millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// The time limit from its acceptance, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Params of `claw.swarm.delegate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DelegateParams {
    /// The task's UUID.
    pub task_id: RequestId,
    /// The work.
    pub task: DelegateTask,
    /// The swarm and the request of the task.
    pub context: DelegateContext,
}

/// How a delegated task ended (R22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// The task is done.
    Completed,
    /// The task is not done.
    Failed,
    /// The task is partly done.
    Partial,
}

/// Params of `claw.swarm.report`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportParams {
    /// The task's id.
    pub task_id: RequestId,
    /// The status at its end.
    pub status: TaskStatus,
    /// The task's own output.
    pub result: Value,
    /// The number of tokens used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_usage: Option<u64>,
    /// Wall time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The cost, millionths of a US dollar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_microusd: Option<u64>,
    /// The task's `context.report_token`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_token: Option<String>,
    /// The reporter's signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<HostSignature>,
}

/// Params of the `claw.swarm.broadcast` notification.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BroadcastParams {
    /// The swarm's name.
    pub swarm: String,
    /// The payload.
    pub message: Value,
}

/// Params of `claw.swarm.discover`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoverParams {
    /// Only this swarm.
    #[serde(default)]
    pub swarm: Option<String>,
}

/// A peer's readiness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerStatus {
    /// Accepts work.
    Ready,
    /// Has reached its limit.
    Busy,
    /// Is not reachable.
    Unavailable,
}

/// One peer of `claw.swarm.discover`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its Identity's name.
    pub identity: String,
    /// Its canonical `claw://` URI.
    pub uri: String,
    /// Its readiness.
    pub status: PeerStatus,
    /// Its name in the swarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// Its role in the swarm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Result of `claw.swarm.discover`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoverResult {
    /// The peers found.
    pub peers: Vec<Peer>,
}

/// The query of `claw.memory.query`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum MemoryQuery {
    /// A search by meaning or words.
    Semantic {
        /// The text to search for.
        text: String,
        /// The largest number of entries.
        #[serde(default)]
        top_k: Option<u32>,
    },
    /// A lookup by exact key, or by entry id in stores without keys (R21).
    Key {
        /// The key.
        key: String,
        /// The largest number of entries.
        #[serde(default)]
        top_k: Option<u32>,
    },
    /// A search by time, in chronological order.
    TimeRange {
        /// The first and last time, inclusive.
        time_range: TimeRange,
        /// The largest number of entries.
        #[serde(default)]
        top_k: Option<u32>,
    },
}

/// Two RFC 3339 times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeRange {
    /// The start, RFC 3339, inclusive.
    pub from: String,
    /// The end, RFC 3339, inclusive.
    pub to: String,
}

/// Params of `claw.memory.query`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryQueryParams {
    /// The store's name.
    pub store: String,
    /// The query.
    pub query: MemoryQuery,
}

/// An entry in the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryEntry {
    /// Its id.
    pub id: String,
    /// The content: a string or an object.
    pub content: Value,
    /// The score, 0..1, for semantic queries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The time, RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// The key, in key-value stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The metadata that was stored with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// Result of `claw.memory.query`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryQueryResult {
    /// The entries: best first, or oldest first for time ranges.
    pub entries: Vec<MemoryEntry>,
}

/// An entry to store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NewEntry {
    /// The content: a string or an object.
    pub content: Value,
    /// The key; required by key-value stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Any metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// `context` of `claw.memory.store`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryContext {
    /// The request id for idempotency (R19).
    pub request_id: RequestId,
}

/// Params of `claw.memory.store`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryStoreParams {
    /// The store's name.
    pub store: String,
    /// The entries to store.
    pub entries: Vec<NewEntry>,
    /// The request's id.
    pub context: MemoryContext,
}

/// Result of `claw.memory.store`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStoreResult {
    /// The number of stored entries.
    pub stored: u64,
    /// Their ids, in the order given.
    pub ids: Vec<String>,
}

/// Params of `claw.memory.compact`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCompactParams {
    /// The store's name.
    pub store: String,
}

/// Result of `claw.memory.compact`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCompactResult {
    /// The number of entries before.
    pub entries_before: u64,
    /// The number of entries after; never more than before.
    pub entries_after: u64,
}
