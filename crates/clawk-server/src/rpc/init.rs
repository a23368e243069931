//! The checks of `claw.initialize` without I/O: shape, version, capabilities (R1, R2, R3a).

#[cfg(test)]
mod tests;

use clawk_kernel::Kernel;
use clawk_proto::method::{InitializeParams, MethodGroup};
use clawk_proto::uri::ClawUri;
use clawk_proto::{ErrorCode, RpcError};
use semver::Version;
use serde_json::{Map, Value, json};

use crate::error::ckp as error;

/// Our protocol version.
const OURS: Version = Version::new(0, 3, 0);
/// The content of `data.supported`.
const SUPPORTED: [&str; 2] = ["0.2.0", "0.3.0"];
/// The groups that `capabilities` may name, with their names on the wire.
const GROUPS: [(&str, MethodGroup); 3] = [
    ("tools", MethodGroup::Tools),
    ("swarm", MethodGroup::Swarm),
    ("memory", MethodGroup::Memory),
];

/// The extension `claw.message.send` (R40).
const MESSAGES: &str = "messages";

/// A valid `claw.initialize` with a supported version.
#[derive(Debug)]
pub(super) struct InitializeRequest {
    pub(super) params: InitializeParams,
    /// The version for the answer.
    pub(super) version: String,
    /// `capabilities.tools.approvals = "notify"` (R18a).
    pub(super) notify_questions: bool,
    /// `capabilities.swarm` is present: the client accepts reports of its delegated tasks.
    pub(super) takes_reports: bool,
}

/// Checks the shape, then the version. The factory checks the manifest (R3a).
pub(super) fn judge(params: &str) -> Result<InitializeRequest, RpcError> {
    let params: InitializeParams = error::decode("claw.initialize", params)?;
    let requested = Version::parse(&params.protocol_version).map_err(|e| {
        malformed(format!("`protocolVersion` is not a valid semantic version: {e}"))
            .with(json!({"reason": "invalid_params", "member": "protocolVersion", "supported": SUPPORTED}))
    })?;
    match &params.manifest {
        Value::Object(_) => {}
        Value::String(uri) => {
            ClawUri::parse_canonical(uri)
                .map_err(|e| malformed(format!("`manifest` is not a canonical `claw://` URI: {e}")))?;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err(malformed(
                "`manifest` must be a manifest object or a `claw://` URI".into(),
            ));
        }
    }
    for name in GROUPS.map(|(name, _)| name).into_iter().chain([MESSAGES]) {
        if params
            .capabilities
            .get(name)
            .is_some_and(|value| !value.is_object())
        {
            return Err(malformed(format!("`capabilities.{name}` must be an object")));
        }
    }
    if requested.major != OURS.major {
        return Err(RpcError::new(
            ErrorCode::ProtocolVersion,
            format!(
                "Protocol version not supported: {requested}; this agent speaks {}",
                SUPPORTED.join(" and ")
            ),
        )
        .with(json!({"supported": SUPPORTED, "requested": params.protocol_version})));
    }
    let version = if requested.cmp_precedence(&OURS).is_lt() {
        params.protocol_version.clone()
    } else {
        OURS.to_string()
    };
    let notify_questions = params
        .capabilities
        .get("tools")
        .and_then(|tools| tools.get("approvals"))
        == Some(&Value::String("notify".into()));
    let takes_reports = params.capabilities.contains_key("swarm");
    Ok(InitializeRequest {
        params,
        version,
        notify_questions,
        takes_reports,
    })
}

/// The capabilities for the answer (R2): those that the agent has; if the client asked for some, only those.
pub(super) fn capabilities(asked: &InitializeRequest, kernel: &Kernel) -> Map<String, Value> {
    let mut served = negotiate(asked, |group| kernel.serves_group(group));
    // R40: Level 1 has this extension without announcing it (R2).
    let wanted = &asked.params.capabilities;
    if kernel.conformance_level() >= 2 && (wanted.is_empty() || wanted.contains_key(MESSAGES)) {
        served.insert(MESSAGES.to_owned(), json!({}));
    }
    served
}

fn negotiate(asked: &InitializeRequest, serves: impl Fn(MethodGroup) -> bool) -> Map<String, Value> {
    let wanted = &asked.params.capabilities;
    GROUPS
        .into_iter()
        .filter(|(name, group)| (wanted.is_empty() || wanted.contains_key(*name)) && serves(*group))
        .map(|(name, group)| {
            let details = if group == MethodGroup::Tools && asked.notify_questions {
                json!({"approvals": "notify"})
            } else {
                json!({})
            };
            (name.to_owned(), details)
        })
        .collect()
}

fn malformed(message: String) -> RpcError {
    RpcError::new(ErrorCode::InvalidParams, message).with(json!({"reason": "invalid_params"}))
}
