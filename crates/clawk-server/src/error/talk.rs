//! Maps errors of messages to the agent to HTTP.

use clawk_kernel::KernelError;
use http::StatusCode;
use serde_json::json;

use crate::http::ApiError;

impl From<&KernelError> for ApiError {
    fn from(error: &KernelError) -> Self {
        let text = error.to_string();
        match error {
            KernelError::NotReady(_) => Self::unavailable(text),
            KernelError::UnknownStore { .. }
            | KernelError::UnknownSwarm { .. }
            | KernelError::UnknownSession(_) => Self::new(StatusCode::NOT_FOUND, "not_found", text),
            KernelError::BadParameter { member, reason: _ } => {
                Self::bad_request("invalid_value", text).with_detail("param", json!(member))
            }
            KernelError::RequestIdReused(_) => Self::new(StatusCode::CONFLICT, "request_id_reused", text),
            KernelError::Refused(_) | KernelError::Full(_) => Self::bad_request("message_refused", text),
            KernelError::Screened { reason, detail: _ } => {
                Self::bad_request("message_screened", text).with_detail("reason", json!(reason))
            }
            KernelError::Swarm { reason, .. } if reason == "busy" => {
                Self::too_many("peers_busy", text, 1_000)
            }
            KernelError::Swarm { reason, .. } => {
                Self::bad_request("swarm_refused", text).with_detail("reason", json!(reason))
            }
            KernelError::Memory(_) => Self::internal(&text),
            KernelError::Journal(cause) => {
                tracing::error!(%cause, "the journal refused");
                Self::unavailable("the journal can't be written; nothing was done")
            }
        }
    }
}
