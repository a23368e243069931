//! R1 to R5, and the barriers of R25.

use clawk_server::ConnectionEndCause;
use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, call, fresh, initialize};

const METHODS: [&str; 12] = [
    "claw.status",
    "claw.shutdown",
    "claw.tool.call",
    "claw.tool.approve",
    "claw.tool.deny",
    "claw.swarm.delegate",
    "claw.swarm.report",
    "claw.swarm.discover",
    "claw.memory.query",
    "claw.memory.store",
    "claw.memory.compact",
    "claw.nonexistent.method",
];

fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut params = initialize();
    change(&mut params);
    params
}

#[tokio::test]
async fn initialize_says_who_answers() {
    for (level, capabilities) in [
        (1, json!({})),
        (2, json!({"tools": {}, "messages": {}})),
        (3, json!({"tools": {}, "swarm": {}, "memory": {}, "messages": {}})),
    ] {
        let mut client = Client::connect(Launched::new(level));
        let answer = client.initialize().await;
        let expected = json!({
            "protocolVersion": "0.2.0",
            "agentInfo": {"name": "tester", "version": "1.2.3"},
            "conformanceLevel": format!("level-{level}"),
            "capabilities": capabilities,
        });
        assert_eq!(answer["result"], expected);
        assert_eq!(client.state().await, "READY");
    }
}

#[tokio::test]
async fn r1_another_major_is_refused_and_the_lower_version_answered() {
    let mut client = Client::connect(Launched::new(1));
    let (code, data) = client
        .error("claw.initialize", with(|p| p["protocolVersion"] = json!("9.0.0")))
        .await;
    assert_eq!((code, &data["supported"]), (-32001, &json!(["0.2.0", "0.3.0"])));
    let result = client
        .result("claw.initialize", with(|p| p["protocolVersion"] = json!("0.7.1")))
        .await;
    assert_eq!(result["protocolVersion"], "0.3.0");
}

#[tokio::test]
async fn r2_capabilities_named_are_an_intersection() {
    let mut client = Client::connect(Launched::new(3));
    let result = client
        .result(
            "claw.initialize",
            with(|p| p["capabilities"] = json!({"memory": {}})),
        )
        .await;
    assert_eq!(result["capabilities"], json!({"memory": {}}));
}

#[tokio::test]
async fn r3_faults_of_the_manifest_are_all_in_data() {
    let mut client = Client::connect(Launched::new(1));
    let params = with(|p| p["manifest"]["metadata"]["name"] = json!("invalid"));
    let (code, data) = client.error("claw.initialize", params).await;
    assert_eq!(code, -32602);
    let paths: Vec<_> = data["errors"]
        .as_array()
        .expect("errors")
        .iter()
        .map(|e| e["path"].clone())
        .collect();
    assert_eq!(paths, [json!("/spec/identity"), json!("/spec/providers")]);
    let uri = with(|p| p["manifest"] = json!("claw://registry/agents/nowhere@1.0.0"));
    assert_eq!(client.error("claw.initialize", uri).await.0, -32061);
    let unserved = with(|p| p["manifest"]["metadata"]["name"] = json!("unserved"));
    let (code, data) = client.error("claw.initialize", unserved).await;
    assert_eq!(
        (code, &data["errors"]),
        (-32602, &json!(["tool `x` has no executor"]))
    );
    assert_eq!(client.agent.starts(), 0);
}

#[tokio::test]
async fn r3a_the_order_is_shape_then_version_then_content() {
    let mut client = Client::connect(Launched::new(1));
    let all_wrong = with(|p| {
        p["protocolVersion"] = json!("9.0.0");
        p["manifest"]["metadata"]["name"] = json!("invalid");
        p["capabilities"] = json!(null);
    });
    assert_eq!(client.error("claw.initialize", all_wrong.clone()).await.0, -32602);
    let mut shaped = all_wrong;
    shaped["capabilities"] = json!({});
    assert_eq!(client.error("claw.initialize", shaped.clone()).await.0, -32001);
    shaped["protocolVersion"] = json!("0.3.0");
    assert_eq!(client.error("claw.initialize", shaped).await.0, -32602);
}

#[tokio::test]
async fn r3a_a_refused_initialize_changes_nothing() {
    let mut client = Client::ready(2).await;
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    for refused in [
        json!({}),
        with(|p| p["protocolVersion"] = json!("9.0.0")),
        with(|p| p["manifest"]["metadata"]["name"] = json!("invalid")),
    ] {
        assert!(
            client
                .ask("claw.initialize", refused)
                .await
                .get("error")
                .is_some()
        );
    }
    let status = client.result("claw.status", json!({})).await;
    assert!(status["uptime_ms"].as_u64() >= Some(30), "{status}");
    assert_eq!(client.agent.starts(), 1);
    client.result("claw.tool.call", call("echo", &fresh())).await;
}

#[tokio::test]
async fn r4_nothing_but_initialize_is_answered_first() {
    let mut client = Client::connect(Launched::new(3));
    for method in METHODS {
        let (code, data) = client.error(method, json!({})).await;
        assert_eq!(
            (code, &data["reason"]),
            (-32600, &json!("not_initialized")),
            "{method}"
        );
    }
    client
        .send(&json!({"jsonrpc": "2.0", "method": "claw.initialized"}))
        .await;
    client.send(&json!({"jsonrpc": "2.0", "method": "claw.swarm.broadcast", "params": {"swarm": "x", "message": 1}})).await;
    client.initialize().await;
    assert_eq!(
        client.so_far().await,
        Vec::<Value>::new(),
        "notifications before initialize are dropped"
    );
}

#[tokio::test]
async fn r4_after_shutdown_only_status_and_initialize_are_answered() {
    let mut client = Client::ready(3).await;
    assert_eq!(
        client
            .result("claw.shutdown", json!({"reason": "test", "timeout_ms": 5000}))
            .await,
        json!({"drained": true})
    );
    assert_eq!(client.state().await, "STOPPED");
    for method in METHODS.iter().skip(1) {
        let (code, data) = client.error(method, json!({})).await;
        let expected = match *method {
            "claw.nonexistent.method" => (-32601, json!("unknown_method")),
            _ => (-32600, json!("stopped")),
        };
        assert_eq!((code, data["reason"].clone()), expected, "{method}");
    }
    client.initialize().await;
    assert_eq!(client.state().await, "READY");
    client.result("claw.tool.call", call("echo", &fresh())).await;
}

#[tokio::test]
async fn r4_a_second_initialize_starts_anew_after_draining() {
    let mut client = Client::ready(2).await;
    let slow = client.request("claw.tool.call", call("slow", &fresh())).await;
    let second = client.request("claw.initialize", initialize()).await;
    let first_answer = client.next().await;
    assert_eq!(
        first_answer["id"], slow,
        "what was in flight is answered before the new agent: {first_answer}"
    );
    assert!(first_answer.get("result").is_some());
    assert!(client.answer(second).await.get("result").is_some());
    assert_eq!(client.agent.starts(), 2);
    assert_eq!(client.state().await, "READY");
}

#[tokio::test]
async fn r4_a_new_start_that_fails_leaves_a_stopped_agent() {
    let mut client = Client::ready(2).await;
    let params = with(|p| p["manifest"]["metadata"]["name"] = json!("unserved"));
    assert_eq!(client.error("claw.initialize", params).await.0, -32602);
    assert_eq!(client.state().await, "STOPPED");
    client.initialize().await;
    assert_eq!(client.state().await, "READY");
}

#[tokio::test]
async fn r4_the_end_of_the_input_is_an_orderly_shutdown() {
    let mut client = Client::ready(2).await;
    let slow = client.request("claw.tool.call", call("slow", &fresh())).await;
    let agent = std::sync::Arc::clone(&client.agent);
    let (rest, ended) = client.finish().await;
    assert_eq!((ended.by, ended.drained), (ConnectionEndCause::Input, true));
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(rest[0]["id"], slow);
    assert!(rest[0].get("result").is_some());
    assert_eq!(agent.kernel().status().state.name(), "STOPPED");
}

#[tokio::test]
async fn termination_drains_what_it_can_and_answers_the_rest() {
    let mut client = Client::ready(2).await;
    let hang = client.request("claw.tool.call", call("hang", &fresh())).await;
    client.state().await;
    client.cancel.cancel();
    let (rest, ended) = client.finish().await;
    assert_eq!((ended.by, ended.drained), (ConnectionEndCause::Cancelled, false));
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(rest[0]["id"], hang);
    assert!(rest[0].get("error").is_some(), "{rest:?}");
}

#[tokio::test]
async fn a_client_that_vanishes_ends_the_run() {
    let client = Client::ready(2).await;
    let agent = std::sync::Arc::clone(&client.agent);
    let ended = client.vanish().await;
    assert!(ended.drained);
    assert_eq!(agent.kernel().status().state.name(), "STOPPED");
}

#[tokio::test]
async fn r5_uptime_counts_from_the_answered_initialize() {
    let mut client = Client::connect(Launched::new(1));
    tokio::time::sleep(std::time::Duration::from_millis(60)).await;
    client.initialize().await;
    let first = client.result("claw.status", json!({})).await["uptime_ms"]
        .as_u64()
        .expect("a number");
    assert!(first < 50, "{first}");
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    let second = client.result("claw.status", json!({})).await["uptime_ms"]
        .as_u64()
        .expect("a number");
    assert!(second >= first + 30, "{first}, then {second}");
}

#[tokio::test]
async fn r25_initialize_and_shutdown_are_barriers() {
    let mut client = Client::connect(Launched::new(2));
    let line = |id: u32, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let lines = [
        line(1, "claw.initialize", initialize()),
        line(2, "claw.status", json!({})),
        line(3, "claw.tool.call", call("slow", &fresh())),
        line(4, "claw.shutdown", json!({})),
        line(5, "claw.status", json!({})),
        line(6, "claw.initialize", initialize()),
        line(7, "claw.status", json!({})),
    ];
    client.raw(format!("{}\n", lines.join("\n")).as_bytes()).await;
    let mut answers = Vec::new();
    for _ in 0..7 {
        answers.push(client.next().await);
    }
    let ids: Vec<_> = answers
        .iter()
        .map(|answer| answer["id"].as_u64().expect("an id"))
        .collect();
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
    assert!(
        answers[2].get("result").is_some(),
        "the call was drained: {}",
        answers[2]
    );
    assert_eq!(answers[3]["result"]["drained"], true);
    assert_eq!(answers[4]["result"]["state"], "STOPPED");
    assert_eq!(answers[6]["result"]["state"], "READY");
}

#[tokio::test]
async fn shutdown_cuts_off_what_does_not_end_in_time() {
    let mut client = Client::ready(2).await;
    let hang = client.request("claw.tool.call", call("hang", &fresh())).await;
    assert_eq!(
        client.result("claw.shutdown", json!({"timeout_ms": 20})).await,
        json!({"drained": false})
    );
    assert!(client.answer(hang).await.get("error").is_some());
    for wrong in [json!({"timeout_ms": -1}), json!({"timeout_ms": "1"}), json!([])] {
        client.initialize().await;
        assert_eq!(client.error("claw.shutdown", wrong).await.0, -32602);
        assert_eq!(client.state().await, "READY", "refused, it changes nothing");
    }
}
