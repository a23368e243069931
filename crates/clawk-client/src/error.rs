//! Errors of a client.

use std::time::Duration;

use clawk_proto::RpcError;

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The address is not valid.
    #[error("`{target}` is not a target: {reason}")]
    Target {
        /// The given address without its secrets.
        target: String,
        /// What is wrong, and a valid form.
        reason: String,
    },
    /// This build does not have the transport.
    #[error("this build has no `{0}`; build with `--features {0}`")]
    Absent(&'static str),
    /// The agent can't be reached.
    #[error("can't connect: {0}")]
    Connect(String),
    /// The token is missing, wrong, or lacks the right.
    #[error("access refused: {0}")]
    Refused(String),
    /// The connection broke. The call may have been executed.
    #[error("the connection broke: {0}")]
    Lost(String),
    /// No answer came in time. The call may still be executed.
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The agent answered with an error.
    #[error("{} ({})", .0.message, .0.code)]
    Rpc(RpcError),
    /// The other side does not follow the protocol.
    #[error("the answer is not a JSON-RPC message: {0}")]
    Malformed(String),
}

impl ClientError {
    /// Whether the agent may have received the request. A repetition must then use the same request id.
    #[must_use]
    pub const fn may_have_been_taken(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Silent(_))
    }
}
