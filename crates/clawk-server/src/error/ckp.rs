//! Maps errors to JSON-RPC (CKP §9.4, runtime profile §4).

#[cfg(test)]
mod tests;

use clawk_kernel::ports::{JournalError, MemoryError};
use clawk_kernel::{CallError, KernelError, StartError};
use clawk_proto::{ErrorCode, RequestId, RpcError};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::layer_name;
use crate::access::Scope;
use crate::agent::InitFailure;

/// Parses the params of a method from JSON text.
///
/// # Errors
/// -32602: they do not have the method's shape.
pub(crate) fn decode<T: DeserializeOwned>(method: &str, params: &str) -> Result<T, RpcError> {
    let invalid = |message: String| {
        RpcError::new(ErrorCode::InvalidParams, message)
            .with(json!({"reason": "invalid_params", "method": method}))
    };
    if !params.starts_with('{') {
        return Err(invalid(format!("the params of `{method}` must be an object")));
    }
    super::shape::read(params.as_bytes())
        .map_err(|what| invalid(format!("the params of `{method}` are wrong: {what}")))
}

/// The error of a call that did not run or was interrupted.
pub(crate) fn from_call(error: &CallError, request_id: &RequestId) -> RpcError {
    let (code, mut data) = call_facts(error);
    if let Value::Object(facts) = &mut data {
        facts.insert("request_id".into(), json!(request_id));
    }
    sentence(code, &error.to_string()).with(data)
}

fn call_facts(error: &CallError) -> (ErrorCode, Value) {
    use {CallError as E, ErrorCode as Code};
    match error {
        E::UnknownTool { tool, hint: _ } => (
            Code::InvalidParams,
            json!({"reason": "unknown_tool", "tool": tool}),
        ),
        E::InvalidArguments { tool, faults } => (
            Code::InvalidParams,
            json!({"reason": "invalid_arguments", "tool": tool, "errors": faults}),
        ),
        E::UnknownReference { member, name } => (
            Code::InvalidParams,
            json!({"reason": "unknown_reference", "member": member, "name": name}),
        ),
        E::RequestIdReused { request_id: _ } => (Code::InvalidParams, json!({"reason": "request_id_reused"})),
        E::Denied {
            tool,
            by,
            rule_id,
            policy,
            reason,
            retry_after_ms,
        } => {
            let data = json!({"rule_id": rule_id, "policy": policy, "tool": tool, "action": "deny",
                "reason": reason, "denied_by": layer_name(*by)});
            (Code::PolicyDenied, with_wait(data, *retry_after_ms))
        }
        E::Screened { tool, reason, detail } => screened(Some(tool), reason, detail),
        E::Quota {
            scope,
            limit_name,
            limit,
            used,
            wanted,
            resets_at,
            rule_id,
        } => {
            let mut data = json!({"reason": limit_name, "scope": scope, "limit": limit, "used": used, "wanted": wanted,
                "resets_at": resets_at});
            if let (Some(rule_id), Some(data)) = (rule_id, data.as_object_mut()) {
                data.insert("rule_id".to_owned(), json!(rule_id));
            }
            (Code::QuotaExceeded, data)
        }
        E::Sandbox(refusal) => (Code::SandboxDenied, refusal.error_data()),
        E::ApprovalTimeout { .. }
        | E::ApprovalVoid { .. }
        | E::ApprovalDenied { .. }
        | E::ApprovalPending { .. } => approval_facts(error),
        E::Timeout { tool, timeout_ms } => {
            (Code::ToolTimeout, json!({"tool": tool, "timeout_ms": timeout_ms}))
        }
        E::Unavailable { tool, reason } => internal("tool_unavailable", tool, reason),
        E::Unknown { tool, reason } => internal("outcome_unknown", tool, reason),
        E::Cancelled { tool } => (Code::Internal, json!({"reason": "cancelled", "tool": tool})),
        E::NotBegun { tool, reason: _ } => (
            Code::MemoryBackend,
            json!({"reason": "state_unavailable", "tool": tool}),
        ),
        E::NotReady { state } => (
            Code::InvalidRequest,
            json!({"reason": "not_ready", "state": state}),
        ),
        E::Journal(why) => of_journal(why),
    }
}

/// The error of a journal that accepts no more events (R48). `session_moved`: another host has the agent now, and the same request
/// gets its answer there. `state_unavailable`: the state's server is unreachable.
fn of_journal(error: &JournalError) -> (ErrorCode, Value) {
    let (code, reason) = match error {
        JournalError::Fenced { .. } => (ErrorCode::Internal, "session_moved"),
        JournalError::Away(_) => (ErrorCode::MemoryBackend, "state_unavailable"),
        JournalError::Unmet(_) => (ErrorCode::Internal, "in_progress_elsewhere"),
        JournalError::Full { .. } | JournalError::Unwritable(_) | JournalError::Unreadable(_) => {
            (ErrorCode::Internal, "journal")
        }
    };
    (code, json!({"reason": reason}))
}

/// The agent's state is or was unreachable. The agent restarts, and the same request then gets its answer.
pub(crate) fn state_unavailable() -> RpcError {
    let error = JournalError::Away("the agent begins anew on what is recorded".to_owned());
    let (code, data) = of_journal(&error);
    sentence(code, &error.to_string()).with(data)
}

/// The code and details of a question that ended without a run.
fn approval_facts(error: &CallError) -> (ErrorCode, Value) {
    use {CallError as E, ErrorCode as Code};
    match error {
        E::ApprovalTimeout {
            tool,
            timeout_ms,
            rule_id,
        } => (
            Code::ApprovalTimeout,
            json!({"tool": tool, "timeout_ms": timeout_ms, "rule_id": rule_id, "action": "require-approval"}),
        ),
        E::ApprovalVoid { tool, changed } => (
            Code::ApprovalTimeout,
            json!({"reason": "approval_void", "tool": tool, "changed": changed, "action": "require-approval"}),
        ),
        E::ApprovalDenied { tool, by, reason } => (
            Code::ApprovalDenied,
            json!({"tool": tool, "denied_by": by, "reason": reason}),
        ),
        // Only CRA clients are asked to try again; see the HTTP API.
        E::ApprovalPending {
            tool,
            approval_id,
            expires_at,
        } => (
            Code::ApprovalTimeout,
            json!({"tool": tool, "approval_id": approval_id, "expires_at": expires_at, "action": "require-approval"}),
        ),
        E::UnknownTool { .. }
        | E::InvalidArguments { .. }
        | E::UnknownReference { .. }
        | E::RequestIdReused { .. }
        | E::Denied { .. }
        | E::Screened { .. }
        | E::Quota { .. }
        | E::Sandbox(_)
        | E::Timeout { .. }
        | E::Unavailable { .. }
        | E::Unknown { .. }
        | E::Cancelled { .. }
        | E::NotBegun { .. }
        | E::NotReady { .. }
        | E::Journal(_) => (Code::Internal, Value::Null),
    }
}

fn internal(reason: &str, tool: &str, detail: &str) -> (ErrorCode, Value) {
    let data = json!({"reason": reason, "tool": tool, "detail": detail});
    (ErrorCode::Internal, data)
}

/// Screening refused the text (R16a). `reason` is a stable identifier.
fn screened(tool: Option<&String>, reason: &str, detail: &str) -> (ErrorCode, Value) {
    let data = json!({"rule_id": null, "policy": null, "tool": tool, "action": "deny", "reason": reason,
        "detail": detail, "denied_by": "screening"});
    (ErrorCode::PolicyDenied, data)
}

/// Adds the wait time. Only rate limits have one (R16a).
fn with_wait(mut data: Value, retry_after_ms: Option<u64>) -> Value {
    if let (Value::Object(facts), Some(wait)) = (&mut data, retry_after_ms) {
        facts.insert("retry_after_ms".into(), json!(wait));
    }
    data
}

/// The error of a failed memory or swarm operation.
pub(crate) fn from_kernel(error: &KernelError) -> RpcError {
    let (code, data) = match error {
        KernelError::NotReady(state) => (
            ErrorCode::InvalidRequest,
            json!({"reason": "not_ready", "state": state}),
        ),
        KernelError::UnknownStore { name, known: _ } => (
            ErrorCode::InvalidParams,
            json!({"reason": "unknown_store", "store": name}),
        ),
        KernelError::UnknownSwarm { name } => (
            ErrorCode::InvalidParams,
            json!({"reason": "unknown_swarm", "swarm": name}),
        ),
        KernelError::UnknownSession(session) => (
            ErrorCode::InvalidParams,
            json!({"reason": "unknown_session", "session": session}),
        ),
        KernelError::BadParameter { member, reason: _ } => (
            ErrorCode::InvalidParams,
            json!({"reason": "invalid_params", "member": member}),
        ),
        KernelError::RequestIdReused(id) => (
            ErrorCode::InvalidParams,
            json!({"reason": "request_id_reused", "request_id": id}),
        ),
        KernelError::Refused(reason) | KernelError::Full(reason) => (
            ErrorCode::PolicyDenied,
            json!({"rule_id": null, "action": "deny", "reason": reason}),
        ),
        KernelError::Screened { reason, detail } => screened(None, reason, detail),
        KernelError::Swarm {
            code,
            swarm,
            task_id,
            reason,
            message: _,
        } => (
            ErrorCode::from_code(*code).unwrap_or(ErrorCode::InvalidParams),
            json!({"reason": reason, "swarm": swarm, "task_id": task_id, "member": null, "attempts": 0}),
        ),
        KernelError::Memory(MemoryError::Backend(_)) => {
            (ErrorCode::MemoryBackend, json!({"reason": "memory_backend"}))
        }
        KernelError::Memory(MemoryError::Query(_)) => {
            (ErrorCode::MemoryQuery, json!({"reason": "memory_query"}))
        }
        KernelError::Memory(MemoryError::Conflict(_)) => {
            (ErrorCode::MemoryBackend, json!({"reason": "memory_conflict"}))
        }
        KernelError::Memory(MemoryError::Entry { index, reason: _ }) => (
            ErrorCode::InvalidParams,
            json!({"reason": "invalid_entry", "index": index}),
        ),
        KernelError::Journal(why) => of_journal(why),
    };
    sentence(code, &error.to_string()).with(data)
}

/// The error of a failed `claw.initialize` (R3, R3a).
pub(crate) fn from_init(error: &InitFailure) -> RpcError {
    let (code, data) = match error {
        InitFailure::Manifest(faults) => (
            ErrorCode::InvalidParams,
            json!({"reason": "invalid_manifest", "errors": faults}),
        ),
        InitFailure::Unresolvable { uri, reason: _ } => (
            ErrorCode::PrimitiveNotFound,
            json!({"reason": "unresolvable_uri", "uri": uri}),
        ),
        InitFailure::Start(StartError::Unserved(parts)) => (
            ErrorCode::InvalidParams,
            json!({"reason": "unserved", "errors": parts}),
        ),
        InitFailure::Start(StartError::Sandbox(refusal)) => (ErrorCode::SandboxDenied, refusal.error_data()),
        InitFailure::Start(StartError::Journal(why)) => of_journal(why),
    };
    sentence(code, &error.to_string()).with(data)
}

/// The connection lacks this scope (R43).
pub(crate) fn scope_missing(scope: Scope) -> RpcError {
    let message = format!("this needs the scope `{}`", scope.name());
    let data = json!({"rule_id": null, "action": "deny", "reason": "scope_missing", "scope": scope.name()});
    sentence(ErrorCode::PolicyDenied, &message).with(data)
}

/// The code's title, then the message.
fn sentence(code: ErrorCode, message: &str) -> RpcError {
    if code == ErrorCode::Internal {
        tracing::error!(error = message, "a request failed for a reason of ours");
    }
    RpcError::new(code, format!("{}: {message}", code.title()))
}
