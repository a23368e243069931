//! Why a client did not get its answer.

use std::time::Duration;

use clawk_proto::RpcError;

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The target names nothing that can be connected to.
    #[error("`{target}` is not a target: {reason}")]
    Target {
        /// What was given, without its secrets.
        target: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// This build does not have the transport.
    #[error("this build has no `{0}`; build with `--features {0}`")]
    Absent(&'static str),
    /// Nobody answers there.
    #[error("can't connect: {0}")]
    Connect(String),
    /// The token is missing, wrong, or may not do this.
    #[error("access refused: {0}")]
    Refused(String),
    /// The connection broke. What was asked may have been done.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// No answer came in time. What was asked may still be done.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The agent answered with an error.
    #[error("{} ({})", .0.message, .0.code)]
    Rpc(RpcError),
    /// The other side does not speak the protocol.
    #[error("the answer is not a JSON-RPC message: {0}")]
    Malformed(String),
}

impl ClientError {
    /// Whether the agent may have taken the request, so that the same request id must be used to ask again.
    #[must_use]
    pub const fn may_have_been_taken(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Silent(_))
    }
}
