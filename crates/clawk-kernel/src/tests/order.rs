//! Promises 1–3: one path, decided before done, fail closed.

use clawk_trace::verify_events;
use serde_json::json;

use super::{agent, allow_all, params, rig, rpc};
use crate::error::{CallError, DeniedBy};
use crate::kind;

#[tokio::test]
async fn a_call_is_requested_approved_and_executed_in_that_order() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let result = kernel
        .call(session, params("echo", json!({"text": "hello"}), 1))
        .await
        .unwrap();
    assert_eq!(result.content[0].as_model_text(), "hello");
    let kinds = rig.journal.kinds();
    let calls: Vec<&str> = kinds
        .iter()
        .map(String::as_str)
        .filter(|k| k.starts_with("action."))
        .collect();
    assert_eq!(
        calls,
        [
            kind::ACTION_REQUESTED,
            kind::ACTION_APPROVED,
            kind::ACTION_EXECUTED
        ]
    );
    assert!(verify_events(rig.journal.trace()).valid);
}

#[tokio::test]
async fn when_the_decision_cannot_be_recorded_nothing_runs() {
    for tool in ["write", "echo"] {
        let rig = rig(agent(allow_all()));
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        rig.journal.fail_after(0);
        let error = kernel
            .call(session, params(tool, json!({"text": "x"}), 1))
            .await
            .unwrap_err();
        assert!(matches!(error, CallError::Journal(_)), "{error}");
        if tool == "write" {
            assert_eq!(rig.runner.runs().len(), 0, "an effect ran without a record");
        }
        rig.journal.recover();
        kernel.call(session, params("write", json!({}), 2)).await.unwrap();
    }
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_is_not_told_as_done_and_not_run_again() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    // The tool described, requested, approved.
    rig.journal.fail_after(3);
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("ran"), "{error}");
    rig.journal.recover();
    let again = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert_eq!(error, again);
    assert_eq!(rig.runner.runs().len(), 1);
}

#[tokio::test]
async fn r14_without_a_policy_or_a_matching_rule_everything_is_denied() {
    let none = json!({"tools": agent(json!([]))["tools"].clone()});
    for spec in [
        none,
        agent(json!([{"id": "other", "action": "allow", "scope": "tool", "match": {"name": "else"}}])),
    ] {
        let rig = rig(spec);
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let error = kernel
            .call(session, params("echo", json!({"text": "x"}), 1))
            .await
            .unwrap_err();
        let CallError::Denied { rule_id, by, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((rule_id, by), (None, DeniedBy::Policy));
        assert_eq!(rig.runner.runs(), []);
        assert!(rig.journal.kinds().contains(&kind::ACTION_DENIED.to_owned()));
    }
}

#[tokio::test]
async fn r13_an_observer_runs_nothing_whatever_a_rule_allows() {
    let mut spec = agent(allow_all());
    spec["identity"] = json!({"name": "tester", "personality": "x", "autonomy": "observer"});
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("echo", json!({"text": "x"}), 1))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            CallError::Denied {
                by: DeniedBy::Autonomy,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(rig.runner.runs(), []);
}

#[tokio::test]
async fn arguments_are_judged_before_the_policy_and_every_fault_is_named() {
    let rig = rig(agent(json!([{"id": "no", "action": "deny", "scope": "all"}])));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("echo", json!({"nonexistent_field": 42}), 1))
        .await
        .unwrap_err();
    let CallError::InvalidArguments { faults, .. } = error else {
        panic!("{error}")
    };
    assert!(faults[0].message.contains("text"), "{faults:?}");
}

#[tokio::test]
async fn r15_overrides_only_narrow() {
    let mut spec = agent(allow_all());
    spec["policies"].as_array_mut().unwrap().push(json!(
        {"name": "tight", "rules": [{"id": "no-echo", "action": "deny", "scope": "tool", "match": {"name": "echo"}},
                                     {"id": "rest", "action": "allow", "scope": "all"}]}));
    spec["sandbox"] = json!({"name": "box", "level": "process"});
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let named = |n: u32, policy: Option<&str>, sandbox: Option<&str>| {
        let mut params = params("echo", json!({"text": "x"}), n);
        params.context.policy = policy.map(str::to_owned);
        params.context.sandbox = sandbox.map(str::to_owned);
        kernel.call(session, params)
    };
    let denied = |error: CallError| matches!(error, CallError::Denied { .. });
    assert!(denied(named(1, Some("tight"), None).await.unwrap_err()));
    assert!(denied(named(2, Some("deny-all"), None).await.unwrap_err()));
    assert!(denied(named(3, None, Some("deny-all")).await.unwrap_err()));
    assert!(matches!(
        named(4, Some("nope"), None).await,
        Err(CallError::UnknownReference { .. })
    ));
    assert!(matches!(
        named(5, None, Some("nope")).await,
        Err(CallError::UnknownReference { .. })
    ));
    named(6, Some("policy"), Some("box")).await.unwrap();
}

#[tokio::test]
async fn r17_an_unknown_tool_is_named_unless_a_rule_denies_its_name() {
    let rules = json!([{"id": "no-shell", "action": "deny", "scope": "tool", "match": {"name": "shell"}},
                       {"id": "rest", "action": "allow", "scope": "all"}]);
    let rig = rig(agent(rules));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let shell = kernel
        .call(session, params("shell", json!({}), 1))
        .await
        .unwrap_err();
    assert!(
        matches!(shell, CallError::Denied { rule_id: Some(ref id), .. } if id == "no-shell"),
        "{shell}"
    );
    let ecko = kernel
        .call(session, params("ecko", json!({}), 2))
        .await
        .unwrap_err();
    assert_eq!(ecko.to_string(), "unknown tool `ecko` (did you mean `echo`?)");
}

#[tokio::test]
async fn r16_audit_only_allows_and_leaves_an_audit_event() {
    let rig = rig(agent(
        json!([{"id": "watch", "action": "audit-only", "scope": "all"}]),
    ));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel.call(session, params("write", json!({}), 1)).await.unwrap();
    assert!(rig.journal.kinds().contains(&kind::AUDIT.to_owned()));
    // Without a place for its records nothing that must be audited runs.
    rig.audit_writable
        .store(false, std::sync::atomic::Ordering::SeqCst);
    let error = kernel
        .call(session, params("write", json!({}), 2))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("audit"), "{error}");
    assert_eq!(rig.runner.runs().len(), 1);
}

#[tokio::test]
async fn a_sandbox_that_is_not_to_be_had_is_a_refusal() {
    let mut spec = agent(allow_all());
    spec["sandbox"] =
        json!({"name": "box", "level": "process", "capabilities": {"filesystem": {"denied_paths": ["["]}}});
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Sandbox(_)), "{error}");
    assert_eq!(rig.runner.runs(), []);
}

#[tokio::test]
async fn payloads_are_canonical() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(
            session,
            params("write", json!({"z": 1, "a": {"y": 2, "b": [1, 2]}}), 1),
        )
        .await
        .unwrap();
    let _ = kernel.call(session, params("nope", json!({}), 2)).await;
    kernel.shutdown("test", 1000).await;
    for event in rig.journal.events() {
        let value: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
        let canonical = clawk_trace::canonical::payload_of(value.as_object().unwrap()).unwrap();
        assert_eq!(canonical.get(), event.payload, "{}", event.kind);
    }
}

#[tokio::test]
async fn a_pattern_built_to_be_slow_costs_nothing() {
    let mut spec = agent(allow_all());
    spec["tools"][0]["input_schema"]["properties"]["text"]["pattern"] = json!("^(a+)+$");
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let text = format!("{}!", "a".repeat(50_000));
    let call = kernel.call(session, params("echo", json!({ "text": text }), 1));
    let error = tokio::time::timeout(std::time::Duration::from_secs(20), call)
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, CallError::InvalidArguments { .. }));
}
