//! CKP §9.3: names, groups and the shapes of params.

use serde_json::json;

use super::*;

#[test]
fn every_method_is_found_by_its_name_and_sits_in_its_group() {
    assert_eq!(Method::ALL.len(), 15);
    for &method in Method::ALL {
        assert_eq!(Method::from_name(method.name()), Some(method));
        let expected = match method.name().split('.').nth(1) {
            Some("tool") => MethodGroup::Tools,
            Some("swarm") => MethodGroup::Swarm,
            Some("memory") => MethodGroup::Memory,
            _ => MethodGroup::Core,
        };
        assert_eq!(method.group(), expected, "{}", method.name());
    }
    assert_eq!(Method::from_name("claw.nonexistent.method"), None);
    let notifications: Vec<_> = Method::ALL
        .iter()
        .filter(|m| m.is_notification())
        .map(|m| m.name())
        .collect();
    assert_eq!(
        notifications,
        ["claw.initialized", "claw.heartbeat", "claw.swarm.broadcast"]
    );
}

#[test]
fn r10_params_tolerate_unknown_members() {
    let params: ToolCallParams = serde_json::from_value(json!({
        "name": "echo", "arguments": {"text": "hi"}, "extra": 1,
        "context": {"request_id": "AAAAAAAA-bbbb-cccc-dddd-eeeeeeeeeeee", "identity": "x", "more": {}},
    }))
    .expect("tolerated");
    assert_eq!(
        params.context.request_id.as_str(),
        "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    );
}

#[test]
fn required_members_are_required() {
    let context = json!({"request_id": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "identity": "x"});
    for wrong in [
        json!({"arguments": {}, "context": context}),
        json!({"name": "echo", "context": context}),
        json!({"name": "echo", "arguments": []  , "context": context}),
        json!({"name": "echo", "arguments": {}}),
        json!({"name": "echo", "arguments": {}, "context": {"identity": "x"}}),
        json!({"name": "echo", "arguments": {}, "context": {"request_id": "no uuid", "identity": "x"}}),
        json!({"name": "echo", "arguments": {}, "context": {"request_id": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"}}),
    ] {
        assert!(
            serde_json::from_value::<ToolCallParams>(wrong.clone()).is_err(),
            "{wrong}"
        );
    }
    let time_range = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"});
    for (query, fits) in [
        (json!({"type": "semantic", "text": "a"}), true),
        (json!({"type": "semantic", "key": "a"}), false),
        (json!({"type": "key", "key": "a", "top_k": 3}), true),
        (json!({"type": "key", "key": "a", "top_k": -1}), false),
        (json!({"type": "key"}), false),
        (json!({"type": "time-range", "time_range": time_range}), true),
        (
            json!({"type": "time-range", "time_range": {"from": "2026-01-01T00:00:00Z"}}),
            false,
        ),
        (json!({"type": "fuzzy", "text": "a"}), false),
        (json!({"text": "a"}), false),
    ] {
        assert_eq!(
            serde_json::from_value::<MemoryQuery>(query.clone()).is_ok(),
            fits,
            "{query}"
        );
    }
}

#[test]
fn r22_a_report_has_one_of_three_statuses() {
    for (status, fits) in [
        ("completed", true),
        ("failed", true),
        ("partial", true),
        ("done", false),
        ("Completed", false),
    ] {
        let report =
            json!({"task_id": "a1b2c3d4-e5f6-7890-abcd-ef1234567890", "status": status, "result": null});
        assert_eq!(
            serde_json::from_value::<ReportParams>(report).is_ok(),
            fits,
            "{status}"
        );
    }
}

#[test]
fn results_have_the_wire_names() {
    let result = ToolCallResult {
        content: vec![ContentBlock::text("hi")],
        is_error: false,
        structured_content: None,
    };
    let expected = json!({"content": [{"type": "text", "text": "hi"}], "isError": false});
    assert_eq!(serde_json::to_value(result).expect("JSON"), expected);
    let status = StatusResult {
        state: LifecycleState::Ready,
        uptime_ms: 7,
    };
    assert_eq!(
        serde_json::to_value(status).expect("JSON"),
        json!({"state": "READY", "uptime_ms": 7})
    );
    let init = InitializeResult {
        protocol_version: "0.2.0".into(),
        agent_info: AgentInfo {
            name: "a".into(),
            version: "1.0.0".into(),
        },
        conformance_level: "level-1".into(),
        capabilities: Map::new(),
    };
    let expected = json!({"protocolVersion": "0.2.0", "agentInfo": {"name": "a", "version": "1.0.0"},
        "conformanceLevel": "level-1", "capabilities": {}});
    assert_eq!(serde_json::to_value(init).expect("JSON"), expected);
}
