//! Checks which methods may be called now, and by which client (R4, R6, R43).

use std::sync::Arc;

use clawk_proto::method::{LifecycleState, Method, MethodGroup};
use clawk_proto::{ErrorCode, RpcError};
use serde_json::json;

use super::{ClientRun, ConnectionPhase};
use crate::access::{ClientRights, Scope};
use crate::error::ckp as error;

/// Admits a request, or returns the error.
pub(super) fn admit_method(
    phase: &ConnectionPhase,
    rights: &ClientRights,
    name: &str,
) -> Result<Method, RpcError> {
    let method = Method::from_name(name);
    match phase {
        ConnectionPhase::Fresh => match method {
            Some(Method::Initialize) => Ok(Method::Initialize),
            Some(_) | None => Err(not_now(
                "`claw.initialize` must be answered before anything else",
                "not_initialized",
            )),
        },
        ConnectionPhase::Stopped(_) => admit_after_shutdown(method, name),
        ConnectionPhase::Running(run) if run.kernel.goes_on() && method != Some(Method::Status) => {
            Err(error::state_unavailable())
        }
        // An authorized client has ended the agent under this connection.
        ConnectionPhase::Running(run) if run.kernel.status().state == LifecycleState::Stopped => {
            admit_after_shutdown(method, name)
        }
        ConnectionPhase::Running(run) => {
            let Some(method) = method else {
                return Err(unknown_method(name));
            };
            if method.is_notification() {
                let message = format!("`{name}` is a notification: send it without an `id`");
                return Err(not_now(&message, "notification_only"));
            }
            if let Some(scope) = required_scope(method).filter(|scope| !rights.has_scope(*scope)) {
                return Err(error::scope_missing(scope));
            }
            if method.group() != MethodGroup::Core && !run.kernel.serves_group(method.group()) {
                return Err(unserved_method(
                    name,
                    run.kernel.conformance_level(),
                    method.group(),
                ));
            }
            Ok(method)
        }
    }
}

/// Admits a method that the specification does not define, at every level (R40), or returns the error.
pub(super) fn admit_extension<'a>(
    phase: &'a ConnectionPhase,
    rights: &ClientRights,
    scope: Scope,
) -> Result<&'a Arc<ClientRun>, RpcError> {
    // The same order as for other methods: the phase first, then the rights.
    admit_method(phase, rights, Method::Status.name())?;
    match phase {
        // The agent restarts in a moment; nobody has shut it down.
        ConnectionPhase::Running(run) if run.kernel.goes_on() => Err(error::state_unavailable()),
        ConnectionPhase::Running(run) if run.kernel.status().state != LifecycleState::Stopped => {
            if rights.has_scope(scope) {
                Ok(run)
            } else {
                Err(error::scope_missing(scope))
            }
        }
        ConnectionPhase::Fresh | ConnectionPhase::Running(_) | ConnectionPhase::Stopped(_) => {
            Err(shut_down_error())
        }
    }
}

fn shut_down_error() -> RpcError {
    not_now(
        "the agent was shut down; only `claw.status` and `claw.initialize` are answered",
        "stopped",
    )
}

/// The check after `claw.shutdown`.
fn admit_after_shutdown(method: Option<Method>, name: &str) -> Result<Method, RpcError> {
    match method {
        Some(method @ (Method::Initialize | Method::Status)) => Ok(method),
        // Even now an unknown method gets its own error: test harnesses ask for one right after a shutdown.
        None => Err(unknown_method(name)),
        Some(_) => Err(shut_down_error()),
    }
}

/// The scope that a method needs; `None`: every client may call it.
const fn required_scope(method: Method) -> Option<Scope> {
    match method {
        Method::Initialize | Method::Initialized | Method::Status | Method::Shutdown | Method::Heartbeat => {
            None
        }
        Method::ToolCall => Some(Scope::Tool),
        Method::ToolApprove | Method::ToolDeny => Some(Scope::Approve),
        Method::SwarmDelegate | Method::SwarmReport | Method::SwarmBroadcast | Method::SwarmDiscover => {
            Some(Scope::Swarm)
        }
        Method::MemoryQuery | Method::MemoryStore | Method::MemoryCompact => Some(Scope::Memory),
    }
}

fn not_now(message: &str, reason: &str) -> RpcError {
    RpcError::new(ErrorCode::InvalidRequest, message).with(json!({"reason": reason}))
}

fn unknown_method(name: &str) -> RpcError {
    const SHOWN: usize = 128;
    let shown: String = name.chars().take(SHOWN).collect();
    RpcError::new(ErrorCode::MethodNotFound, format!("unknown method `{shown}`"))
        .with(json!({"reason": "unknown_method", "method": shown}))
}

fn unserved_method(name: &str, level: u8, group: MethodGroup) -> RpcError {
    let missing = match group {
        MethodGroup::Core => "",
        MethodGroup::Tools => "tools need the primitives of Level 2: Channel, Tool, Sandbox and Policy",
        MethodGroup::Swarm => "it declares no Swarm primitive",
        MethodGroup::Memory => "it declares no Memory primitive",
    };
    RpcError::new(
        ErrorCode::MethodNotFound,
        format!("this agent does not serve `{name}`: {missing}"),
    )
    .with(json!({"reason": "not_served", "method": name, "conformance_level": format!("level-{level}")}))
}
