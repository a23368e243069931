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
    /// The session is another agent's.
    #[error("the session does not belong to this agent")]
    NotYours,
    /// A request names Atlases that are not loaded.
    #[error("no such Atlas: {}", .0.join(", "))]
    UnknownAtlas(
        /// Their ids.
        Vec<String>,
    ),
    /// The resolution is not known or has expired.
    #[error("the resolution is not known or no longer valid")]
    UnknownResolution,
    /// Nothing waits under this approval id.
    #[error("no open question has the id {0}")]
    UnknownApproval(
        /// The id.
        String,
    ),
    /// A yes to a question of which a part was folded away, from who has not seen it.
    #[error(
        "{hidden_bytes} bytes of the question are folded; read the whole text, then send its digest as `seen`"
    )]
    Unseen {
        /// Bytes that were not shown.
        hidden_bytes: usize,
    },
    /// An action is not to run.
    #[error("`{action_id}` is denied: {reason}")]
    Denied {
        /// The action.
        action_id: String,
        /// Why.
        reason: String,
        /// The Atlas policy, or the manifest's.
        policy_id: Option<String>,
        /// Which layer said no.
        by: Option<DeniedBy>,
        /// For a limit: when to try again.
        retry_after_ms: Option<u64>,
    },
    /// Too much is open.
    #[error("{0}")]
    TooMany(
        /// What, and the bound.
        String,
    ),
    /// An Atlas of this id is loaded, or others need the one to be removed.
    #[error("{0}")]
    Conflict(
        /// Why.
        String,
    ),
    /// The Atlases can't be compiled together.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The agent does not take work in this state.
    #[error("the agent is {}", .0.name())]
    NotReady(LifecycleState),
    /// The journal can't be written or read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl CarpError {
    /// The word for it, in answers and in the trace.
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
