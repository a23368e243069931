//! Errors of CRA requests. Only `clawk-server` maps them to status codes.

use clawk_carp::InputFaults;
use clawk_carp::set::SetError;
use clawk_proto::method::LifecycleState;

use crate::error::DeniedBy;
use crate::ports::JournalError;

/// Why a CRA request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CarpError {
    /// The request or its parameters are not valid.
    #[error("{0}")]
    Invalid(InputFaults),
    /// The timestamp differs too much from the clock.
    #[error(
        "the request's timestamp is {off_ms} ms away from this runtime's clock; {limit_ms} ms are tolerated"
    )]
    ClockSkew {
        /// The difference in milliseconds.
        off_ms: u64,
        /// The allowed difference in milliseconds.
        limit_ms: u64,
    },
    /// The `request_id` was used before in this session.
    #[error("request_id {0} was used before in this session")]
    DuplicateRequest(
        /// The id.
        String,
    ),
    /// The session does not exist or has ended.
    #[error("there is no live session {0}")]
    UnknownSession(
        /// The requested id.
        String,
    ),
    /// The session belongs to another agent.
    #[error("the session does not belong to this agent")]
    NotYours,
    /// The request names Atlases that are not loaded.
    #[error("no such Atlas: {}", .0.join(", "))]
    UnknownAtlas(
        /// Their ids.
        Vec<String>,
    ),
    /// The resolution is unknown or has expired.
    #[error("the resolution is not known or no longer valid")]
    UnknownResolution,
    /// No approval request waits under this id.
    #[error("no open question has the id {0}")]
    UnknownApproval(
        /// The id.
        String,
    ),
    /// A yes to a request with a hidden part, from a person who has not seen it.
    #[error(
        "{hidden_bytes} bytes of the question are folded; read the whole text, then send its digest as `seen`"
    )]
    Unseen {
        /// Number of hidden bytes.
        hidden_bytes: usize,
    },
    /// The action must not run.
    #[error("`{action_id}` is denied: {reason}")]
    Denied {
        /// The action.
        action_id: String,
        /// The reason.
        reason: String,
        /// The Atlas policy, or the manifest's.
        policy_id: Option<String>,
        /// The layer that refused.
        by: Option<DeniedBy>,
        /// For a limit: time until a retry is possible, in milliseconds.
        retry_after_ms: Option<u64>,
    },
    /// Too many objects are open.
    #[error("{0}")]
    TooMany(
        /// The kind of object, and the limit.
        String,
    ),
    /// An Atlas with this id is loaded, or others need the one to be removed.
    #[error("{0}")]
    Conflict(
        /// The reason.
        String,
    ),
    /// The Atlases can't be compiled together.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The agent accepts no work in this state.
    #[error("the agent is {}", .0.name())]
    NotReady(LifecycleState),
    /// The journal can't be written or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl CarpError {
    /// Returns the error's word in answers and in the trace.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid_request",
            Self::ClockSkew { .. } => "clock_skew",
            Self::DuplicateRequest(_) => "duplicate_request",
            Self::UnknownSession(_) => "session_not_found",
            Self::NotYours => "unauthorized_agent",
            Self::UnknownAtlas(_) => "atlas_not_found",
            Self::UnknownResolution => "resolution_not_found",
            Self::UnknownApproval(_) => "approval_not_found",
            Self::Unseen { .. } => "question_unseen",
            Self::Denied { .. } => "denied",
            Self::TooMany(_) => "too_many",
            Self::Conflict(_) => "conflict",
            Self::Set(_) => "invalid_atlas",
            Self::NotReady(_) => "not_ready",
            Self::Journal(_) => "journal",
        }
    }
}
