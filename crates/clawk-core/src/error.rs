//! Why the kernel refused or failed. `clawk-server` alone maps these to wire codes.

use clawk_plan::SandboxRefusal;
use clawk_proto::RequestId;
use clawk_proto::method::LifecycleState;
use serde::{Deserialize, Serialize};

use crate::ports::{JournalError, MemoryError};

/// Which layer said no (R12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeniedBy {
    /// The Identity's autonomy (R13).
    Autonomy,
    /// A rule, or the default when none matched (R14).
    Policy,
    /// A skill's permissions, while it runs.
    Skill,
    /// `requests_per_minute` and other rates (R16a).
    Rate,
    /// The sender's role (CKP §5.3).
    Role,
    /// An emergency stop.
    Stop,
    /// An Atlas's policy, or the resolution that an action was called under.
    Atlas,
    /// What the task of a swarm's member was given with.
    Task,
}

/// What is wrong with one argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentFault {
    /// JSON pointer into the arguments; empty for the whole.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// A call that did not run, or was cut short (R20). Kept with its `request_id`, so a repeated request gets the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum CallError {
    /// R17.
    #[error("unknown tool `{tool}`{hint}")]
    UnknownTool {
        /// The name asked for.
        tool: String,
        /// ` (did you mean …)`, or empty.
        hint: String,
    },
    /// The arguments do not fit the tool's `input_schema` (CKP §5.4).
    #[error("invalid arguments for `{tool}`: {}", faults.iter().map(|f| format!("{} {}", f.path, f.message)).collect::<Vec<_>>().join("; "))]
    InvalidArguments {
        /// The tool.
        tool: String,
        /// Every fault, at most 16.
        faults: Vec<ArgumentFault>,
    },
    /// `context.sandbox`, `context.policy` or `context.identity` names nothing (R15).
    #[error("`context.{member}` names `{name}`, which this agent does not have")]
    UnknownReference {
        /// The member of `context`.
        member: String,
        /// The name.
        name: String,
    },
    /// R19: the same id with other arguments.
    #[error("request_id {request_id} was used for another call")]
    RequestIdReused {
        /// The id.
        request_id: RequestId,
    },
    /// -32011.
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
        /// For rates: when it may be tried again.
        retry_after_ms: Option<u64>,
    },
    /// -32011: the text itself is refused (R16a), whatever the rules say.
    #[error("`{tool}` is denied: {detail}")]
    Screened {
        /// The tool.
        tool: String,
        /// A stable word: `null_byte`, `secret`, `prompt_injection` …
        reason: String,
        /// For people: what and where, never the text found.
        detail: String,
    },
    /// -32021.
    #[error("{scope}: {limit_name} is {limit}, {used} used{}{}", if *wanted == 0 { String::new() } else { format!(", {wanted} more wanted") }, resets_at.as_ref().map(|at| format!("; it begins anew at {at}")).unwrap_or_default())]
    Quota {
        /// `provider NAME`, or the policy's rule.
        scope: String,
        /// For example `tokens_per_day`.
        limit_name: String,
        /// The bound.
        limit: u64,
        /// Spent in the window.
        used: u64,
        /// What this call would take; 0 when not known.
        wanted: u64,
        /// When the window ends, RFC 3339.
        resets_at: Option<String>,
        /// The policy's rule whose limit it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule_id: Option<Box<str>>,
    },
    /// -32010.
    #[error("{0}")]
    Sandbox(SandboxRefusal),
    /// -32012.
    #[error("nobody answered within {timeout_ms} ms whether `{tool}` may run")]
    ApprovalTimeout {
        /// The tool.
        tool: String,
        /// How long was waited.
        timeout_ms: u64,
        /// The rule that asked.
        rule_id: Option<String>,
    },
    /// -32012: what was approved is not what would run; nothing ran.
    #[error("the approval of `{tool}` is void: {changed}; ask again")]
    ApprovalVoid {
        /// The tool.
        tool: String,
        /// What changed between the question and the run.
        changed: String,
    },
    /// -32013.
    #[error("`{tool}` was denied by {by}{}", reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default())]
    ApprovalDenied {
        /// The tool.
        tool: String,
        /// Who.
        by: String,
        /// Their words.
        reason: Option<String>,
    },
    /// A person is to answer first, and the caller does not wait for it (CRA).
    #[error("`{tool}` waits for approval {approval_id}")]
    ApprovalPending {
        /// The action.
        tool: String,
        /// What is to be answered.
        approval_id: String,
        /// Until when, RFC 3339.
        expires_at: String,
    },
    /// -32014.
    #[error(
        "`{tool}` was ended after {timeout_ms} ms, its `timeout_ms`; what it had begun may have been done"
    )]
    Timeout {
        /// The tool.
        tool: String,
        /// Its bound.
        timeout_ms: u64,
    },
    /// The executor can't be started or reached; nothing ran.
    #[error("`{tool}` can't run: {reason}")]
    Unavailable {
        /// The tool.
        tool: String,
        /// Why, and the cure.
        reason: String,
    },
    /// The call began and its outcome is not known (promise 4).
    #[error(
        "`{tool}` may have been done, its outcome is unknown: {reason}; find out before it is done again (`clawk effects --unknown` lists it)"
    )]
    Unknown {
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// Cancelled before it ran.
    #[error("`{tool}` was cancelled before it ran")]
    Cancelled {
        /// The tool.
        tool: String,
    },
    /// The host might begin nothing: its place beside the others, or the server of its state, was gone for a moment.
    #[error("`{tool}` did not run: {reason}; send the same request again")]
    NotBegun {
        /// The tool.
        tool: String,
        /// Why.
        reason: String,
    },
    /// The agent does not take work in this state.
    #[error("the agent is {}", state.name())]
    NotReady {
        /// The state.
        state: LifecycleState,
    },
    /// The decision can't be recorded: nothing ran.
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

/// Why a memory or swarm operation, or a message, was not done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KernelError {
    /// The agent does not take work in this state.
    #[error("the agent is {}", .0.name())]
    NotReady(LifecycleState),
    /// No such store (R21).
    #[error("unknown store `{name}`; this agent has {known}")]
    UnknownStore {
        /// The name.
        name: String,
        /// The stores there are.
        known: String,
    },
    /// No such swarm (R22).
    #[error("unknown swarm `{name}`")]
    UnknownSwarm {
        /// The name.
        name: String,
    },
    /// No such session.
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
    /// R19.
    #[error("request_id {0} was used for another request")]
    RequestIdReused(RequestId),
    /// The message is too long or empty: it was refused, and recorded as refused.
    #[error("message refused: {0}")]
    Refused(String),
    /// The mailbox is full. Of a channel, the message is on no record: its platform keeps it and brings it again.
    #[error("message refused: {0}")]
    Full(String),
    /// -32011: the text itself is refused (R16a), and recorded as refused.
    #[error("refused: {detail}")]
    Screened {
        /// A stable word: `null_byte`, `secret`, `prompt_injection` …
        reason: String,
        /// For people: what and where, never the text found.
        detail: String,
    },
    /// The swarm does not take the task (-32040, -32602).
    #[error("{message}")]
    Swarm {
        /// The wire's number.
        code: i64,
        /// The swarm.
        swarm: String,
        /// The task.
        task_id: RequestId,
        /// A stable word: `busy`, `circuit_open`, `unknown_member` …
        reason: String,
        /// For people.
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
    /// A part of the manifest can't be served here, with the cure; all of them.
    #[error("the agent can't start: {}", .0.join("; "))]
    Unserved(Vec<String>),
    /// A sandbox that the manifest asks for can't be had here (R32), with the cure.
    #[error("the agent can't start: {0}")]
    Sandbox(SandboxRefusal),
    /// The journal can't be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}
