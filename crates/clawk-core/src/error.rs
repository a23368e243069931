//! Errors of the kernel. Only `clawk-server` maps them to wire codes.

use clawk_plan::SandboxRefusal;
use clawk_proto::RequestId;
use clawk_proto::method::LifecycleState;
use serde::{Deserialize, Serialize};

use crate::ports::{JournalError, MemoryError};

/// The layer that refused a call (R12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedBy {
    /// The Identity's autonomy (R13).
    Autonomy,
    /// A rule, or the default when none matched (R14).
    Policy,
    /// The permissions of an active skill.
    Skill,
    /// `requests_per_minute` and other rates (R16a).
    Rate,
    /// The sender's role (CKP §5.3).
    Role,
    /// An emergency stop.
    Stop,
    /// An Atlas's policy, or the resolution under which an action was called.
    Atlas,
    /// The limits of a swarm member's task.
    Task,
}

/// A fault of one argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentFault {
    /// JSON pointer into the arguments; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// A call that did not run, or was interrupted (R20). It is stored with its `request_id`, so that a repeated request gets the same
/// error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum CallError {
    /// The tool does not exist (R17).
    #[error("unknown tool `{tool}`{hint}")]
    UnknownTool {
        /// The requested name.
        tool: String,
        /// ` (did you mean …)`, or empty.
        hint: String,
    },
    /// The arguments do not match the tool's `input_schema` (CKP §5.4).
    #[error("invalid arguments for `{tool}`: {}", faults.iter().map(|f| format!("{} {}", f.path, f.message)).collect::<Vec<_>>().join("; "))]
    InvalidArguments {
        /// The tool.
        tool: String,
        /// Every fault, at most 16.
        faults: Vec<ArgumentFault>,
    },
    /// `context.sandbox`, `context.policy` or `context.identity` names an unknown object (R15).
    #[error("`context.{member}` names `{name}`, which this agent does not have")]
    UnknownReference {
        /// The member of `context`.
        member: String,
        /// The name.
        name: String,
    },
    /// The request id was used with other arguments (R19).
    #[error("request_id {request_id} was used for another call")]
    RequestIdReused {
        /// The id.
        request_id: RequestId,
    },
    /// A layer refused the call (-32011).
    #[error("`{tool}` is denied: {reason}")]
    Denied {
        /// The tool.
        tool: String,
        /// The layer.
        by: DeniedBy,
        /// The rule, if one matched.
        rule_id: Option<String>,
        /// Its policy.
        policy: Option<String>,
        /// Why.
        reason: String,
        /// For rates: time until a retry is possible, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// The text itself was refused (-32011, R16a), whatever the rules say.
    #[error("`{tool}` is denied: {detail}")]
    Screened {
        /// The tool.
        tool: String,
        /// A stable word: `null_byte`, `secret`, `prompt_injection` …
        reason: String,
        /// Description for people: what was found and where, never the text.
        detail: String,
    },
    /// A limit is used up (-32021).
    #[error("{scope}: {limit_name} is {limit}, {used} used{}{}", if *wanted == 0 { String::new() } else { format!(", {wanted} more wanted") }, resets_at.as_ref().map(|at| format!("; it begins anew at {at}")).unwrap_or_default())]
    Quota {
        /// `provider NAME`, or the policy's rule.
        scope: String,
        /// For example `tokens_per_day`.
        limit_name: String,
        /// The limit's maximum.
        limit: u64,
        /// The amount used in the window.
        used: u64,
        /// The amount that this call would use; 0 if unknown.
        wanted: u64,
        /// End of the window, RFC 3339.
        resets_at: Option<String>,
        /// The policy rule with the limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule_id: Option<Box<str>>,
    },
    /// The sandbox refused the call (-32010).
    #[error("{0}")]
    Sandbox(SandboxRefusal),
    /// Nobody answered the approval request in time (-32012).
    #[error("nobody answered within {timeout_ms} ms whether `{tool}` may run")]
    ApprovalTimeout {
        /// The tool.
        tool: String,
        /// Waiting time in milliseconds.
        timeout_ms: u64,
        /// The rule that asked.
        rule_id: Option<String>,
    },
    /// A precondition of the approval changed, so nothing ran (-32012).
    #[error("the approval of `{tool}` is void: {changed}; ask again")]
    ApprovalVoid {
        /// The tool.
        tool: String,
        /// What changed between the approval request and the run.
        changed: String,
    },
    /// A person denied the call (-32013).
    #[error("`{tool}` was denied by {by}{}", reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default())]
    ApprovalDenied {
        /// The tool.
        tool: String,
        /// The person who denied it.
        by: String,
        /// The person's reason.
        reason: Option<String>,
    },
    /// The call needs an approval, and the caller does not wait for it (CRA).
    #[error("`{tool}` waits for approval {approval_id}")]
    ApprovalPending {
        /// The action.
        tool: String,
        /// Id of the approval request.
        approval_id: String,
        /// Time of expiry, RFC 3339.
        expires_at: String,
    },
    /// The call exceeded its time limit (-32014).
    #[error(
        "`{tool}` was ended after {timeout_ms} ms, its `timeout_ms`; what it had begun may have been done"
    )]
    Timeout {
        /// The tool.
        tool: String,
        /// The time limit in milliseconds.
        timeout_ms: u64,
    },
    /// The executor can't be started or reached; nothing ran.
    #[error("`{tool}` can't run: {reason}")]
    Unavailable {
        /// The tool.
        tool: String,
        /// The reason, and how to fix it.
        reason: String,
    },
    /// The call began and its outcome is unknown (promise 4).
    #[error(
        "`{tool}` may have been done, its outcome is unknown: {reason}; find out before it is done again (`clawk effects --unknown` lists it)"
    )]
    Unknown {
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// The call was cancelled before it ran.
    #[error("`{tool}` was cancelled before it ran")]
    Cancelled {
        /// The tool.
        tool: String,
    },
    /// The host had no right to begin: its lease or the state's server was unavailable for a moment.
    #[error("`{tool}` did not run: {reason}; send the same request again")]
    NotBegun {
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// The agent accepts no work in this state.
    #[error("the agent is {}", state.name())]
    NotReady {
        /// The agent's lifecycle state.
        state: LifecycleState,
    },
    /// The decision can't be recorded, so nothing ran.
    #[error(transparent)]
    Journal(JournalError),
}

impl CallError {
    /// The agent ended, or might not begin, before the call did. This is not the answer to its request: the same request, sent again,
    /// runs.
    pub const fn is_no_answer(&self) -> bool {
        matches!(self, Self::NotReady { .. } | Self::NotBegun { .. })
    }

    /// Its text may hold words of the tool, its server or its program; without that, all of it is the kernel's own.
    pub const fn may_quote_tool(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Unknown { .. } | Self::Unavailable { .. } => true,
            Self::UnknownTool { .. }
            | Self::InvalidArguments { .. }
            | Self::UnknownReference { .. }
            | Self::RequestIdReused { .. }
            | Self::Denied { .. }
            | Self::Screened { .. }
            | Self::Quota { .. }
            | Self::Sandbox(_)
            | Self::ApprovalTimeout { .. }
            | Self::ApprovalVoid { .. }
            | Self::ApprovalDenied { .. }
            | Self::ApprovalPending { .. }
            | Self::Cancelled { .. }
            | Self::NotBegun { .. }
            | Self::NotReady { .. }
            | Self::Journal(_) => false,
        }
    }

    /// Whether the call may have done its work, or a part of it.
    pub const fn may_have_run(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Unknown { .. } => true,
            Self::UnknownTool { .. }
            | Self::InvalidArguments { .. }
            | Self::UnknownReference { .. }
            | Self::RequestIdReused { .. }
            | Self::Denied { .. }
            | Self::Screened { .. }
            | Self::Quota { .. }
            | Self::Sandbox(_)
            | Self::ApprovalTimeout { .. }
            | Self::ApprovalVoid { .. }
            | Self::ApprovalDenied { .. }
            | Self::ApprovalPending { .. }
            | Self::Unavailable { .. }
            | Self::Cancelled { .. }
            | Self::NotBegun { .. }
            | Self::NotReady { .. }
            | Self::Journal(_) => false,
        }
    }
}

impl From<JournalError> for CallError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// Why a memory or swarm operation, or a message, failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KernelError {
    /// The agent accepts no work in this state.
    #[error("the agent is {}", .0.name())]
    NotReady(LifecycleState),
    /// The memory store does not exist (R21).
    #[error("unknown store `{name}`; this agent has {known}")]
    UnknownStore {
        /// The name.
        name: String,
        /// The existing stores.
        known: String,
    },
    /// The swarm does not exist (R22).
    #[error("unknown swarm `{name}`")]
    UnknownSwarm {
        /// The name.
        name: String,
    },
    /// The session does not exist.
    #[error("unknown session {0}")]
    UnknownSession(String),
    /// A parameter is wrong.
    #[error("{member}: {reason}")]
    BadParameter {
        /// The member of params.
        member: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The request id was used with other arguments (R19).
    #[error("request_id {0} was used for another request")]
    RequestIdReused(RequestId),
    /// The message is too long or empty. It was refused, and the refusal is recorded.
    #[error("message refused: {0}")]
    Refused(String),
    /// The mailbox is full. A channel's message is not recorded; its platform keeps it and sends it again.
    #[error("message refused: {0}")]
    Full(String),
    /// The text itself was refused (-32011, R16a), and the refusal is recorded.
    #[error("refused: {detail}")]
    Screened {
        /// A stable word: `null_byte`, `secret`, `prompt_injection` …
        reason: String,
        /// Description for people: what was found and where, never the text.
        detail: String,
    },
    /// The swarm refuses the task (-32040, -32602).
    #[error("{message}")]
    Swarm {
        /// The error code on the wire.
        code: i64,
        /// The swarm.
        swarm: String,
        /// The task.
        task_id: RequestId,
        /// A stable word: `busy`, `circuit_open`, `unknown_member` …
        reason: String,
        /// Text for people.
        message: String,
    },
    /// The memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Why an agent does not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// Parts of the manifest can't be used here. Lists all of them, each with a fix.
    #[error("the agent can't start: {}", .0.join("; "))]
    Unserved(Vec<String>),
    /// A sandbox that the manifest requires is not available here (R32). Holds the reason and a fix.
    #[error("the agent can't start: {0}")]
    Sandbox(SandboxRefusal),
    /// The journal can't be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
