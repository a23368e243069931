//! R18, R18a, and the lanes of R25: a person's answer always gets through.

use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, call, fresh, initialize};

fn about(request_id: &str) -> Value {
    json!({"request_id": request_id, "reason": "because"})
}

#[tokio::test]
async fn r18_a_pipelined_approval_is_not_lost() {
    let mut client = Client::ready(2).await;
    for round in 0..20 {
        let id = fresh();
        let line = |n: u64, method: &str, params: Value| {
            json!({"jsonrpc": "2.0", "id": n, "method": method, "params": params}).to_string()
        };
        let lines = [
            line(1, "claw.tool.call", call("ask", &id)),
            line(2, "claw.tool.approve", about(&id)),
        ];
        client.raw(format!("{}\n", lines.join("\n")).as_bytes()).await;
        assert_eq!(
            client.answer(2).await["result"],
            json!({"acknowledged": true}),
            "round {round}"
        );
        assert!(client.answer(1).await.get("result").is_some());
    }
}

#[tokio::test]
async fn r18_a_denial_ends_the_call_with_minus_32013() {
    let mut client = Client::ready(2).await;
    let id = fresh();
    let asked = client.request("claw.tool.call", call("ask", &id)).await;
    assert_eq!(
        client.result("claw.tool.deny", about(&id)).await,
        json!({"acknowledged": true})
    );
    let answer = client.answer(asked).await;
    assert_eq!(answer["error"]["code"], -32013);
    let data = &answer["error"]["data"];
    assert_eq!(
        (&data["reason"], &data["tool"], &data["request_id"]),
        (&json!("because"), &json!("ask"), &json!(id))
    );
    assert_eq!(client.agent.runs("ask"), 0);
}

#[tokio::test]
async fn r18_the_first_answer_counts() {
    let mut client = Client::ready(2).await;
    let id = fresh();
    let asked = client.request("claw.tool.call", call("ask-hang", &id)).await;
    assert_eq!(
        client.result("claw.tool.approve", about(&id)).await,
        json!({"acknowledged": true})
    );
    assert_eq!(
        client.result("claw.tool.deny", about(&id)).await,
        json!({"acknowledged": false})
    );
    assert_eq!(
        client.result("claw.tool.approve", about(&id)).await,
        json!({"acknowledged": false})
    );
    client.result("claw.shutdown", json!({"timeout_ms": 10})).await;
    assert_ne!(
        client.answer(asked).await["error"]["code"],
        -32013,
        "it had been approved"
    );
}

#[tokio::test]
async fn r18_an_answer_to_nothing_is_not_acknowledged_and_approves_no_later_call() {
    let mut client = Client::ready(2).await;
    let id = fresh();
    assert_eq!(
        client.result("claw.tool.approve", about(&id)).await,
        json!({"acknowledged": false})
    );
    let asked = client.request("claw.tool.call", call("ask", &id)).await;
    // What the call would touch is looked at first, on another thread.
    for _ in 0..500 {
        if client.agent.kernel().pending_questions().len() == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(
        client.agent.kernel().pending_questions().len(),
        1,
        "it still asks"
    );
    client.result("claw.tool.deny", about(&id)).await;
    assert_eq!(client.answer(asked).await["error"]["code"], -32013);
    let done = fresh();
    client.result("claw.tool.call", call("echo", &done)).await;
    assert_eq!(
        client.result("claw.tool.approve", about(&done)).await,
        json!({"acknowledged": false})
    );
    for wrong in [
        json!({}),
        json!({"request_id": "x"}),
        json!({"request_id": id, "reason": 7}),
    ] {
        assert_eq!(
            client.error("claw.tool.approve", wrong.clone()).await.0,
            -32602,
            "{wrong}"
        );
        assert_eq!(
            client.error("claw.tool.deny", wrong.clone()).await.0,
            -32602,
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn r18a_questions_go_to_clients_that_asked_for_them() {
    let mut client = Client::connect(Launched::new(2));
    let mut params = initialize();
    params["capabilities"] = json!({"tools": {"approvals": "notify"}});
    let result = client.result("claw.initialize", params).await;
    assert_eq!(result["capabilities"], json!({"tools": {"approvals": "notify"}}));
    let ids = [fresh(), fresh()];
    for id in &ids {
        client.request("claw.tool.call", call("ask", id)).await;
        let told = client.notification("claw.tool.pending").await["params"].take();
        assert_eq!(
            (&told["request_id"], &told["tool"], &told["rule_id"]),
            (&json!(id), &json!("ask"), &json!("ask"))
        );
        assert_eq!(told["arguments"], json!({"text": "hi"}));
        assert!(
            told["preview"].as_array().is_some_and(|lines| !lines.is_empty()),
            "{told}"
        );
        assert!(
            told["expires_at"].as_str().is_some_and(|at| at.ends_with('Z')),
            "{told}"
        );
    }
    client.result("claw.tool.approve", about(&ids[0])).await;
    let rest = client.so_far().await;
    assert!(
        rest.iter().all(|message| message.get("method").is_none()),
        "told once each: {rest:?}"
    );
}

#[tokio::test]
async fn r18a_nobody_else_is_told() {
    let mut client = Client::ready(2).await;
    let id = fresh();
    client.request("claw.tool.call", call("ask", &id)).await;
    client.result("claw.tool.approve", about(&id)).await;
    assert!(
        client
            .so_far()
            .await
            .iter()
            .all(|message| message.get("method").is_none())
    );
}

#[tokio::test]
async fn r25_calls_that_wait_for_a_person_do_not_block_reading() {
    let mut client = Client::ready(2).await;
    let ids: Vec<String> = (0..600).map(|_| fresh()).collect();
    let mut asked = Vec::new();
    for id in &ids {
        asked.push(client.request("claw.tool.call", call("ask", id)).await);
    }
    // All places would be taken twice over; status, calls and answers still pass.
    assert_eq!(client.state().await, "READY");
    client.result("claw.tool.call", call("echo", &fresh())).await;
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while client.agent.kernel().pending_questions().len() < ids.len() {
        assert!(tokio::time::Instant::now() < end, "every call asks");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    for (id, request) in ids.iter().zip(asked) {
        assert_eq!(
            client.result("claw.tool.approve", about(id)).await,
            json!({"acknowledged": true})
        );
        assert!(client.answer(request).await.get("result").is_some());
    }
}

#[tokio::test]
async fn r19_duplicates_of_a_call_that_waits_for_a_person_do_not_block_reading() {
    let mut client = Client::ready(2).await;
    let id = fresh();
    let mut asked = Vec::new();
    for _ in 0..400 {
        asked.push(client.request("claw.tool.call", call("ask", &id)).await);
    }
    assert_eq!(
        client.result("claw.tool.approve", about(&id)).await,
        json!({"acknowledged": true})
    );
    for request in asked {
        assert!(client.answer(request).await.get("result").is_some());
    }
    assert_eq!(client.agent.runs("ask"), 1);
}

#[tokio::test]
async fn shutdown_ends_calls_that_wait_for_a_person() {
    let mut client = Client::ready(2).await;
    let asked = client.request("claw.tool.call", call("ask", &fresh())).await;
    assert_eq!(
        client.result("claw.shutdown", json!({"timeout_ms": 20})).await,
        json!({"drained": false})
    );
    assert!(client.answer(asked).await.get("error").is_some());
    assert_eq!(client.agent.runs("ask"), 0);
}
