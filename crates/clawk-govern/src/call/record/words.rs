//! The trace's words for calls that did not run, or failed.

use clawk_policy::TimeoutDefault;

use crate::error::{CallError, DeniedBy};

/// Returns the trace's word for a refusal or failure.
pub(in crate::call) fn error_code(error: &CallError) -> &'static str {
    match error {
        CallError::UnknownTool { .. } => "unknown_tool",
        CallError::InvalidArguments { .. } => "invalid_parameters",
        CallError::UnknownReference { .. } => "unknown_reference",
        CallError::RequestIdReused { .. } => "request_id_reused",
        CallError::Denied {
            by: DeniedBy::Autonomy,
            ..
        } => "autonomy",
        CallError::Denied {
            by: DeniedBy::Policy, ..
        } => "policy",
        CallError::Denied {
            by: DeniedBy::Skill, ..
        } => "skill",
        CallError::Denied {
            by: DeniedBy::Atlas, ..
        } => "atlas",
        CallError::Denied {
            by: DeniedBy::Rate, ..
        } => "rate_limit",
        CallError::Denied {
            by: DeniedBy::Role, ..
        } => "role",
        CallError::Denied {
            by: DeniedBy::Stop, ..
        } => "stop",
        CallError::Denied {
            by: DeniedBy::Task, ..
        } => "task",
        CallError::ApprovalVoid { .. } => "approval_void",
        CallError::Screened { .. } => "screening",
        CallError::Quota { .. } => "quota",
        CallError::Sandbox(_) => "sandbox",
        CallError::ApprovalTimeout { .. } => "approval_timeout",
        CallError::ApprovalDenied { .. } => "approval_denied",
        CallError::ApprovalPending { .. } => "approval_pending",
        CallError::Timeout { .. } => "timeout",
        CallError::Unavailable { .. } => "unavailable",
        CallError::Unknown { .. } => "unknown",
        CallError::Cancelled { .. } => "cancelled",
        CallError::NotBegun { .. } => "not_begun",
        CallError::NotReady { .. } => "not_ready",
        CallError::Journal(_) => "journal",
    }
}

/// Returns the trace's word for the failure of a call that was decided.
pub(in crate::call) fn failure_code(error: &CallError) -> &'static str {
    match error {
        CallError::Cancelled { .. } => "not_begun",
        other => error_code(other),
    }
}

/// Returns the trace's word for the meaning of no answer.
pub(in crate::call) const fn default_word(default: TimeoutDefault) -> &'static str {
    match default {
        TimeoutDefault::Allow => "allow",
        TimeoutDefault::Deny => "deny",
    }
}
