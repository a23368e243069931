//! Every method of CKP §9.3, as it should go and as it should be refused; R6, R14, R17, R19, R20, R21, R22.

use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, call, fresh};

#[tokio::test]
async fn status_takes_any_object() {
    let mut client = Client::ready(1).await;
    for params in [json!({}), json!({"anything": 1})] {
        assert_eq!(client.result("claw.status", params).await["state"], "READY");
    }
    client
        .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "claw.status"}))
        .await;
    assert_eq!(client.answer(1).await["result"]["state"], "READY");
    assert_eq!(client.error("claw.status", json!([])).await.0, -32602);
}

#[tokio::test]
async fn unknown_methods_are_minus_32601() {
    let mut client = Client::ready(3).await;
    for method in [
        "claw.nonexistent.method",
        "",
        "claw.tool.progress",
        "CLAW.STATUS",
        "claw.task.create",
        "rpc.discover",
    ] {
        assert_eq!(client.error(method, json!({})).await.0, -32601, "{method}");
    }
}

#[tokio::test]
async fn notification_methods_can_not_be_asked() {
    let mut client = Client::ready(3).await;
    for method in ["claw.initialized", "claw.heartbeat", "claw.swarm.broadcast"] {
        let (code, data) = client.error(method, json!({})).await;
        assert_eq!(
            (code, &data["reason"]),
            (-32600, &json!("notification_only")),
            "{method}"
        );
    }
}

#[tokio::test]
async fn r6_methods_above_the_level_are_minus_32601() {
    let tools = ["claw.tool.call", "claw.tool.approve", "claw.tool.deny"];
    let full = [
        "claw.swarm.delegate",
        "claw.swarm.report",
        "claw.swarm.discover",
        "claw.memory.query",
        "claw.memory.store",
        "claw.memory.compact",
    ];
    let mut client = Client::ready(1).await;
    for method in tools.iter().chain(&full) {
        let (code, data) = client.error(method, json!({})).await;
        assert_eq!(
            (code, &data["conformance_level"]),
            (-32601, &json!("level-1")),
            "{method}"
        );
    }
    let mut client = Client::ready(2).await;
    for method in tools {
        assert_eq!(
            client.error(method, json!({})).await.0,
            -32602,
            "{method} is served, its params are wrong"
        );
    }
    for method in full {
        assert_eq!(client.error(method, json!({})).await.0, -32601, "{method}");
    }
}

#[tokio::test]
async fn a_call_gives_content() {
    let mut client = Client::ready(2).await;
    let result = client.result("claw.tool.call", call("echo", &fresh())).await;
    assert_eq!(result["content"], json!([{"type": "text", "text": "hi"}]));
    assert_eq!(result["isError"], json!(false));
}

#[tokio::test]
async fn calls_with_wrong_params_are_minus_32602_and_run_nothing() {
    let mut client = Client::ready(2).await;
    let change = |member: &str, value: Value| {
        let mut params = call("echo", &fresh());
        *params.pointer_mut(member).expect("a member") = value;
        params
    };
    for params in [
        json!({}),
        json!([]),
        change("/name", json!(7)),
        change("/arguments", json!([])),
        change("/context", json!({})),
        change("/context/request_id", json!("not-a-uuid")),
        change("/context/identity", json!(null)),
        change("/arguments", json!({"nonexistent_field": 42})),
        change("/arguments", json!({"text": 42})),
    ] {
        assert_eq!(
            client.error("claw.tool.call", params.clone()).await.0,
            -32602,
            "{params}"
        );
    }
    assert_eq!(client.agent.runs("echo"), 0);
}

#[tokio::test]
async fn faults_of_arguments_are_in_data() {
    let mut client = Client::ready(2).await;
    let mut params = call("echo", &fresh());
    params["arguments"] = json!({"text": 42});
    let (_, data) = client.error("claw.tool.call", params.clone()).await;
    assert_eq!(data["errors"][0]["path"], "/text", "{data}");
    assert_eq!(data["request_id"], params["context"]["request_id"]);
}

#[tokio::test]
async fn r14_a_denied_call_says_tool_rule_and_action() {
    let mut client = Client::ready(2).await;
    let (code, data) = client.error("claw.tool.call", call("forbidden", &fresh())).await;
    assert_eq!((code, &data["rule_id"]), (-32011, &json!("no")));
    assert_eq!(
        (&data["tool"], &data["action"]),
        (&json!("forbidden"), &json!("deny"))
    );
    assert!(data["reason"].is_string());
    assert_eq!(client.agent.runs("forbidden"), 0);
}

#[tokio::test]
async fn r15_unknown_references_are_minus_32602_and_deny_all_denies() {
    let mut client = Client::ready(2).await;
    let mut params = call("echo", &fresh());
    params["context"]["policy"] = json!("no-such-policy");
    assert_eq!(client.error("claw.tool.call", params).await.0, -32602);
    let mut params = call("echo", &fresh());
    params["context"]["policy"] = json!("deny-all");
    let (code, data) = client.error("claw.tool.call", params).await;
    assert_eq!((code, data.get("rule_id")), (-32011, Some(&Value::Null)));
}

#[tokio::test]
async fn r17_an_unknown_tool_is_minus_32602() {
    let mut client = Client::ready(2).await;
    let (code, data) = client
        .error("claw.tool.call", call("no-such-tool", &fresh()))
        .await;
    assert_eq!((code, &data["reason"]), (-32602, &json!("unknown_tool")));
}

#[tokio::test]
async fn r19_the_same_request_is_answered_again_and_runs_once() {
    let mut client = Client::ready(2).await;
    let id = fresh();
    let first = client.result("claw.tool.call", call("echo", &id)).await;
    assert_eq!(client.result("claw.tool.call", call("echo", &id)).await, first);
    let mut other = call("echo", &id);
    other["arguments"]["text"] = json!("other");
    let (code, data) = client.error("claw.tool.call", other).await;
    assert_eq!((code, &data["reason"]), (-32602, &json!("request_id_reused")));
    let slow = fresh();
    let both = [
        client.request("claw.tool.call", call("slow", &slow)).await,
        client.request("claw.tool.call", call("slow", &slow)).await,
    ];
    for id in both {
        assert!(client.answer(id).await.get("result").is_some());
    }
    assert_eq!((client.agent.runs("echo"), client.agent.runs("slow")), (1, 1));
}

#[tokio::test]
async fn r20_a_tool_that_ran_and_failed_is_a_result() {
    let mut client = Client::ready(2).await;
    let result = client.result("claw.tool.call", call("broken", &fresh())).await;
    assert_eq!(result["isError"], true);
    let (code, data) = client.error("claw.tool.call", call("lost", &fresh())).await;
    assert_eq!(
        (code, &data["reason"]),
        (-32603, &json!("outcome_unknown")),
        "promise 4: unknown is said"
    );
}

#[tokio::test]
async fn r21_memory_keeps_finds_and_compacts() {
    let mut client = Client::ready(3).await;
    let store = |store: &str, id: &str| json!({"store": store, "entries": [{"content": "Project deadline is March 15"}], "context": {"request_id": id}});
    let id = fresh();
    let stored = client.result("claw.memory.store", store("context", &id)).await;
    assert_eq!(
        (&stored["stored"], stored["ids"].as_array().map(Vec::len)),
        (&json!(1), Some(1))
    );
    assert_eq!(
        client.result("claw.memory.store", store("context", &id)).await,
        stored,
        "R19"
    );
    let query = |store: &str| json!({"store": store, "query": {"type": "semantic", "text": "deadline"}});
    let found = client.result("claw.memory.query", query("context")).await;
    assert_eq!(found["entries"].as_array().map(Vec::len), Some(1));
    assert_eq!(found["entries"][0]["content"], "Project deadline is March 15");
    let compacted = client
        .result("claw.memory.compact", json!({"store": "context"}))
        .await;
    assert!(compacted["entries_after"].as_u64() <= compacted["entries_before"].as_u64());
    for (method, params) in [
        ("claw.memory.store", store("nowhere", &fresh())),
        ("claw.memory.query", query("nowhere")),
        ("claw.memory.compact", json!({"store": "nowhere"})),
        (
            "claw.memory.store",
            json!({"store": "context", "entries": [{"content": 1}], "context": {}}),
        ),
        (
            "claw.memory.query",
            json!({"store": "context", "query": {"type": "telepathic", "text": "x"}}),
        ),
        ("claw.memory.query", json!({"store": "context"})),
        ("claw.memory.compact", json!({})),
    ] {
        assert_eq!(
            client.error(method, params.clone()).await.0,
            -32602,
            "{method} {params}"
        );
    }
}

#[tokio::test]
async fn r22_swarm_delegates_takes_reports_and_discovers() {
    let mut client = Client::ready(3).await;
    let delegate = |swarm: &str| json!({"task_id": fresh(), "task": {"description": "Analyze"}, "context": {"request_id": fresh(), "swarm": swarm}});
    assert_eq!(
        client.result("claw.swarm.delegate", delegate("team")).await,
        json!({"acknowledged": true})
    );
    assert_eq!(
        client
            .error("claw.swarm.delegate", delegate("no-such-team"))
            .await
            .0,
        -32602
    );
    let report = |status: &str| json!({"task_id": fresh(), "status": status, "result": {"summary": "x"}});
    assert_eq!(
        client.result("claw.swarm.report", report("completed")).await,
        json!({"acknowledged": true}),
        "an orphan"
    );
    assert_eq!(client.error("claw.swarm.report", report("done")).await.0, -32602);
    for params in [json!({}), json!({"swarm": "team"})] {
        let found = client.result("claw.swarm.discover", params).await;
        let peer = &found["peers"][0];
        assert!(
            peer["uri"].as_str().is_some_and(|uri| uri.starts_with("claw://")),
            "{found}"
        );
        assert!(["ready", "busy", "unavailable"].contains(&peer["status"].as_str().expect("a status")));
    }
    assert_eq!(
        client.error("claw.swarm.discover", json!({"swarm": 7})).await.0,
        -32602
    );
    for message in [
        json!({"swarm": "team", "message": {"a": 1}}),
        json!({"swarm": "no-such-team", "message": 1}),
        json!({}),
    ] {
        client
            .send(&json!({"jsonrpc": "2.0", "method": "claw.swarm.broadcast", "params": message}))
            .await;
    }
    assert_eq!(
        client.so_far().await,
        Vec::<Value>::new(),
        "broadcasts are not answered"
    );
}

#[tokio::test]
async fn requests_without_an_id_have_no_effect() {
    let mut client = Client::ready(2).await;
    for (method, params) in [
        ("claw.tool.call", call("echo", &fresh())),
        ("claw.shutdown", json!({})),
    ] {
        client
            .send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await;
    }
    assert_eq!(client.so_far().await, Vec::<Value>::new());
    assert_eq!(
        (client.agent.runs("echo"), client.state().await.as_str()),
        (0, "READY")
    );
}

#[tokio::test]
async fn one_agent_serves_clients_of_any_level_alike() {
    let agent = Launched::new(3);
    let mut first = Client::connect(agent.clone());
    first.initialize().await;
    assert_eq!(
        first
            .host
            .current_kernel()
            .get()
            .map(|kernel| kernel.conformance_level()),
        Some(3)
    );
}
