//! Each error of the kernel has its code and its facts.

use clawk_kernel::ports::{JournalError, MemoryError};
use clawk_kernel::{ArgumentFault, CallError, DeniedBy, KernelError};
use clawk_plan::{Level, SandboxRefusal};
use clawk_proto::RequestId;
use clawk_proto::method::LifecycleState;
use serde_json::{Value, json};

use super::{decode, from_call, from_init, from_kernel};
use crate::agent::{InitFailure, ManifestFault};

fn id() -> RequestId {
    RequestId::parse("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee").expect("a UUID")
}

fn call(error: &CallError) -> (i64, Value) {
    let error = from_call(error, &id());
    let data = error.data.expect("data");
    assert_eq!(
        data["request_id"],
        id().as_str(),
        "every error of a call names the call"
    );
    (error.code, data)
}

fn denied(by: DeniedBy, rule_id: Option<&str>, retry_after_ms: Option<u64>) -> CallError {
    CallError::Denied {
        tool: "shell".into(),
        by,
        rule_id: rule_id.map(Into::into),
        policy: rule_id.map(|_| "main".into()),
        reason: "why".into(),
        retry_after_ms,
    }
}

#[test]
fn r14_a_denial_without_a_rule_says_rule_id_null() {
    let (code, data) = call(&denied(DeniedBy::Policy, None, None));
    assert_eq!(code, -32011);
    assert_eq!(data.get("rule_id"), Some(&Value::Null));
    assert_eq!(
        (&data["tool"], &data["action"], &data["reason"]),
        (&json!("shell"), &json!("deny"), &json!("why"))
    );
    assert_eq!(data.get("retry_after_ms"), None);
}

#[test]
fn r16a_a_rate_says_when_to_try_again() {
    let (code, data) = call(&denied(DeniedBy::Rate, Some("r1"), Some(1500)));
    assert_eq!(
        (code, &data["retry_after_ms"], &data["rule_id"]),
        (-32011, &json!(1500), &json!("r1"))
    );
    assert_eq!(
        call(&denied(DeniedBy::Autonomy, None, None)).1["denied_by"],
        "autonomy"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn errors_of_a_call_have_the_codes_of_the_table() {
    let tool = || "t".to_owned();
    let faults = vec![ArgumentFault {
        path: "/text".into(),
        message: "is required".into(),
    }];
    for (error, code, reason) in [
        (
            CallError::UnknownTool {
                tool: tool(),
                hint: String::new(),
            },
            -32602,
            json!("unknown_tool"),
        ),
        (
            CallError::InvalidArguments { tool: tool(), faults },
            -32602,
            json!("invalid_arguments"),
        ),
        (
            CallError::UnknownReference {
                member: "policy".into(),
                name: "x".into(),
            },
            -32602,
            json!("unknown_reference"),
        ),
        (
            CallError::RequestIdReused { request_id: id() },
            -32602,
            json!("request_id_reused"),
        ),
        (
            CallError::ApprovalTimeout {
                tool: tool(),
                timeout_ms: 1,
                rule_id: None,
            },
            -32012,
            Value::Null,
        ),
        (
            CallError::ApprovalDenied {
                tool: tool(),
                by: "me".into(),
                reason: Some("no".into()),
            },
            -32013,
            json!("no"),
        ),
        (
            CallError::Timeout {
                tool: tool(),
                timeout_ms: 100,
            },
            -32014,
            Value::Null,
        ),
        (
            CallError::Unavailable {
                tool: tool(),
                reason: "x".into(),
            },
            -32603,
            json!("tool_unavailable"),
        ),
        (
            CallError::Unknown {
                tool: tool(),
                reason: "x".into(),
            },
            -32603,
            json!("outcome_unknown"),
        ),
        (CallError::Cancelled { tool: tool() }, -32603, json!("cancelled")),
        (
            CallError::NotBegun {
                tool: tool(),
                reason: "away".to_owned(),
            },
            -32030,
            json!("state_unavailable"),
        ),
        (
            CallError::NotReady {
                state: LifecycleState::Stopping,
            },
            -32600,
            json!("not_ready"),
        ),
        (
            CallError::Journal(JournalError::Unwritable("disk full".into())),
            -32603,
            json!("journal"),
        ),
        (
            CallError::Journal(JournalError::Away("gone".into())),
            -32030,
            json!("state_unavailable"),
        ),
        (
            CallError::Journal(JournalError::Fenced { host: "a".into() }),
            -32603,
            json!("session_moved"),
        ),
    ] {
        let (got, data) = call(&error);
        assert_eq!(
            (got, data.get("reason").unwrap_or(&Value::Null)),
            (code, &reason),
            "{error:?}"
        );
    }
    let quota = CallError::Quota {
        scope: "provider p".into(),
        limit_name: "tokens_per_day".into(),
        limit: 1000,
        used: 1000,
        wanted: 0,
        resets_at: None,
        rule_id: None,
    };
    let (code, data) = call(&quota);
    assert_eq!(
        (code, &data["limit"], &data["used"]),
        (-32021, &json!(1000), &json!(1000))
    );
}

#[test]
fn r32_a_sandbox_refusal_says_what_is_missing_and_the_cure() {
    let refusal = SandboxRefusal::Unavailable {
        level: Level::Vm,
        mechanism: "kvm".into(),
        missing: "/dev/kvm".into(),
        hint: "load the module".into(),
    };
    let (code, data) = call(&CallError::Sandbox(refusal));
    assert_eq!(code, -32010);
    for member in ["level", "mechanism", "missing", "hint"] {
        assert!(data[member].is_string(), "{member}: {data}");
    }
}

#[test]
fn arguments_are_answered_with_every_fault() {
    let faults = vec![
        ArgumentFault {
            path: "/a".into(),
            message: "one".into(),
        },
        ArgumentFault {
            path: "/b".into(),
            message: "two".into(),
        },
    ];
    let (_, data) = call(&CallError::InvalidArguments {
        tool: "t".into(),
        faults,
    });
    assert_eq!(
        data["errors"],
        json!([{"path": "/a", "message": "one"}, {"path": "/b", "message": "two"}])
    );
}

#[test]
fn errors_of_memory_and_swarm_have_the_codes_of_the_table() {
    for (error, code) in [
        (KernelError::NotReady(LifecycleState::Stopped), -32600),
        (
            KernelError::UnknownStore {
                name: "x".into(),
                known: "y".into(),
            },
            -32602,
        ),
        (KernelError::UnknownSwarm { name: "x".into() }, -32602),
        (KernelError::UnknownSession("x".into()), -32602),
        (
            KernelError::BadParameter {
                member: "query",
                reason: "x".into(),
            },
            -32602,
        ),
        (KernelError::RequestIdReused(id()), -32602),
        (KernelError::Refused("too long".into()), -32011),
        (
            KernelError::Swarm {
                code: -32040,
                swarm: "x".into(),
                task_id: clawk_proto::RequestId::from(uuid::Uuid::nil()),
                reason: "busy".into(),
                message: "x".into(),
            },
            -32040,
        ),
        (KernelError::Memory(MemoryError::Backend("x".into())), -32030),
        (KernelError::Memory(MemoryError::Query("x".into())), -32031),
        (KernelError::Memory(MemoryError::Conflict("x".into())), -32030),
        (
            KernelError::Memory(MemoryError::Entry {
                index: 2,
                reason: "no key".into(),
            }),
            -32602,
        ),
    ] {
        let wire = from_kernel(&error);
        assert_eq!(wire.code, code, "{error:?}");
        assert!(wire.message.ends_with(&error.to_string()), "{}", wire.message);
        assert!(wire.data.is_some());
    }
}

#[test]
fn r3_an_invalid_manifest_is_answered_with_all_its_faults() {
    let fault = |path: &str| ManifestFault {
        path: path.into(),
        message: "is required".into(),
        code: "missing".into(),
    };
    let faults: Vec<ManifestFault> = ["/a", "/b", "/c", "/d"].map(fault).into();
    let wire = from_init(&InitFailure::Manifest(faults));
    assert_eq!(wire.code, -32602);
    assert!(wire.message.ends_with("and 1 more"), "{}", wire.message);
    assert_eq!(
        wire.data.expect("data")["errors"].as_array().map(Vec::len),
        Some(4)
    );
    let unresolvable = InitFailure::Unresolvable {
        uri: "claw://local/claw/x".into(),
        reason: "unknown".into(),
    };
    assert_eq!(from_init(&unresolvable).code, -32061);
}

#[test]
fn params_must_be_an_object() {
    for params in ["[]", "[1]"] {
        assert_eq!(
            decode::<Value>("claw.x", params).expect_err("refused").code,
            -32602
        );
    }
    assert!(decode::<Value>("claw.x", "{}").is_ok());
}
