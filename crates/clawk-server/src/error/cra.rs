//! Maps errors of CARP operations to HTTP (CRA).

use clawk_kernel::CarpError;
use http::StatusCode;
use serde_json::json;

use super::layer_name;
use crate::http::ApiError;

impl From<clawk_carp::InputFaults> for ApiError {
    fn from(faults: clawk_carp::InputFaults) -> Self {
        let errors = json!(faults.errors);
        Self::bad_request("invalid_request", clip_message(&faults.to_string())).with_detail("errors", errors)
    }
}

/// Shortens a text that the client sent, before a message repeats it.
fn clip_message(text: &str) -> String {
    const MOST: usize = 2_000;
    if text.len() <= MOST {
        return text.to_owned();
    }
    format!("{}…", text.chars().take(MOST / 4).collect::<String>())
}

impl From<CarpError> for ApiError {
    fn from(error: CarpError) -> Self {
        let text = clip_message(&error.to_string());
        match error {
            CarpError::Invalid(faults) => faults.into(),
            CarpError::ClockSkew { off_ms, limit_ms } => Self::bad_request("clock_skew", text)
                .with_detail("off_ms", json!(off_ms))
                .with_detail("limit_ms", json!(limit_ms)),
            CarpError::DuplicateRequest(_) => Self::bad_request("duplicate_request", text),
            CarpError::UnknownSession(_) => Self::new(StatusCode::NOT_FOUND, "session_not_found", text),
            CarpError::NotYours => Self::forbidden("unauthorized_agent", text),
            CarpError::UnknownAtlas(ids) => {
                Self::new(StatusCode::NOT_FOUND, "atlas_not_found", text).with_detail("atlas_ids", json!(ids))
            }
            CarpError::UnknownResolution => Self::new(StatusCode::NOT_FOUND, "resolution_not_found", text),
            CarpError::UnknownApproval(_) => Self::new(StatusCode::NOT_FOUND, "approval_not_found", text),
            CarpError::Denied {
                action_id,
                reason,
                policy_id,
                by,
                retry_after_ms,
            } => {
                let denied = Self::forbidden("action_denied", text)
                    .with_detail("action_id", json!(action_id))
                    .with_detail("reason", json!(reason))
                    .with_detail("policy_id", json!(policy_id))
                    .with_detail("denied_by", json!(by.map(layer_name)));
                match retry_after_ms {
                    // A wait without an end is not sent as a retry time.
                    Some(wait) if wait < u64::from(u32::MAX) => {
                        denied.with_detail("retry_after_ms", json!(wait)).after_ms(wait)
                    }
                    Some(_) | None => denied,
                }
            }
            CarpError::TooMany(_) => Self::too_many("too_many", text, 1_000),
            CarpError::Unseen { hidden_bytes } => Self::new(StatusCode::CONFLICT, "question_unseen", text)
                .with_detail("hidden_bytes", json!(hidden_bytes)),
            CarpError::Conflict(_) => Self::new(StatusCode::CONFLICT, "conflict", text),
            CarpError::Set(_) => Self::bad_request("invalid_atlas", text),
            CarpError::NotReady(_) => Self::unavailable(text),
            CarpError::Journal(cause) => {
                tracing::error!(%cause, "the journal refused");
                Self::unavailable("the journal can't be written; nothing was done")
            }
        }
    }
}
