//! R24: what a line may be.

use clawk_server::Options;
use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, call, fresh};

fn codes(answers: &[Value]) -> Vec<(i64, Value)> {
    answers
        .iter()
        .map(|answer| {
            (
                answer["error"]["code"].as_i64().unwrap_or(0),
                answer["id"].clone(),
            )
        })
        .collect()
}

#[tokio::test]
async fn r24_what_is_no_message_is_refused_and_the_connection_lives() {
    let mut client = Client::ready(2).await;
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let nested = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"claw.status","params":{{"a":{deep}}}}}"#);
    let cases: [(&[u8], i64, Value); 11] = [
        (
            br#"{"jsonrpc": "2.0", "id": 51, "method": "claw.status""#,
            -32700,
            Value::Null,
        ),
        (b"\xff\xfe\x00", -32700, Value::Null),
        (deep.as_bytes(), -32700, Value::Null),
        (nested.as_bytes(), -32700, Value::Null),
        (b"[]", -32600, Value::Null),
        (b"7", -32600, Value::Null),
        (br#"{"jsonrpc":"2.0","id":50,"params":{}}"#, -32600, json!(50)),
        (
            br#"{"jsonrpc":"2.0","id":{"a":1},"method":"claw.status"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":true,"method":"claw.status"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":1,"id":2,"method":"claw.status"}"#,
            -32600,
            Value::Null,
        ),
        (
            br#"{"jsonrpc":"2.0","id":"x","method":"claw.status","params":"p"}"#,
            -32600,
            json!("x"),
        ),
    ];
    for (line, code, id) in cases {
        client.raw(line).await;
        client.raw(b"\n").await;
        let answer = client.next().await;
        assert_eq!(
            (answer["error"]["code"].as_i64(), &answer["id"]),
            (Some(code), &id),
            "{answer}"
        );
        assert_eq!(client.state().await, "READY");
    }
}

#[tokio::test]
async fn r24_ids_come_back_as_written() {
    let mut client = Client::ready(1).await;
    for id in [
        "\"a\\u0041\"",
        "1.0",
        "-0",
        "1e2",
        "null",
        "123456789012345678901234567890",
        "\"\"",
    ] {
        client
            .raw(format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"claw.status\"}}\n").as_bytes())
            .await;
        let answer = client.next().await;
        let expected: Value = serde_json::from_str(id).expect("JSON");
        assert_eq!(answer["id"], expected, "{id}");
    }
}

#[tokio::test]
async fn blank_lines_and_carriage_returns_do_not_matter() {
    let mut client = Client::ready(1).await;
    client
        .raw(b"\n\r\n   \n{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"claw.status\"}\r\n")
        .await;
    assert_eq!(client.next().await["id"], 1);
    assert_eq!(client.so_far().await, Vec::<Value>::new());
}

#[tokio::test]
async fn r24_a_long_line_is_one_error_wherever_it_is_cut() {
    let max = 300;
    let options = Options {
        max_message_bytes: max,
        drain_timeout_ms: 500,
        ..Options::default()
    };
    let mut client = Client::with(Launched::new(2), options);
    let mut initialize = crate::wire::initialize();
    initialize["clientInfo"]["name"] = json!("t");
    client.result("claw.initialize", initialize).await;
    let status = r#"{"jsonrpc":"2.0","id":1,"method":"claw.status"}"#;
    for (length, at_a_time) in [
        (max, 1),
        (max + 1, 1),
        (max + 1, 300),
        (max * 50, 299),
        (max * 50, 100_000),
    ] {
        let line = format!("{status:length$}\n");
        for piece in line.as_bytes().chunks(at_a_time) {
            client.raw(piece).await;
            if at_a_time < 1000 {
                tokio::task::yield_now().await;
            }
        }
        let answer = client.next().await;
        if length <= max {
            assert_eq!(answer["result"]["state"], "READY");
        } else {
            assert_eq!(codes(std::slice::from_ref(&answer)), [(-32600, Value::Null)]);
            assert_eq!(answer["error"]["data"]["max_message_bytes"], max);
        }
        assert_eq!(client.so_far().await, Vec::<Value>::new(), "one answer");
    }
}

#[tokio::test]
async fn r24_the_default_limit_is_8_mib() {
    let mut client = Client::ready(1).await;
    let status = r#"{"jsonrpc":"2.0","id":1,"method":"claw.status"}"#;
    let length = 8 * 1024 * 1024;
    let padded = format!("{status}{}", " ".repeat(length - status.len()));
    client.raw(format!("{padded}\n").as_bytes()).await;
    assert_eq!(client.next().await["result"]["state"], "READY");
    client.raw(format!("{padded} \n").as_bytes()).await;
    assert_eq!(client.next().await["error"]["code"], -32600);
    assert_eq!(client.state().await, "READY");
}

#[tokio::test]
async fn r24_batches_are_answered_as_arrays() {
    let mut client = Client::ready(2).await;
    let one = |id: u32, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let note = json!({"jsonrpc": "2.0", "method": "claw.initialized"});
    client
        .send(&json!([
            one(1, "claw.tool.call", call("slow", &fresh())),
            note,
            one(2, "claw.status", json!({})),
            7,
            one(3, "claw.tool.call", call("echo", &fresh())),
            one(4, "claw.nonexistent", json!({})),
        ]))
        .await;
    let answers = client.next().await;
    let answers = answers.as_array().expect("an array");
    assert_eq!(answers.len(), 5, "{answers:?}");
    let by_id = |id: Value| {
        answers
            .iter()
            .find(|answer| answer["id"] == id)
            .expect("answered")
    };
    assert_eq!(by_id(json!(2))["result"]["state"], "READY");
    assert!(by_id(json!(1)).get("result").is_some() && by_id(json!(3)).get("result").is_some());
    assert_eq!(by_id(json!(4))["error"]["code"], -32601);
    assert_eq!(by_id(Value::Null)["error"]["code"], -32600);

    client
        .send(&json!([note, note, {"jsonrpc": "2.0", "method": "claw.unknown", "params": 7}]))
        .await;
    assert_eq!(
        client.so_far().await,
        Vec::<Value>::new(),
        "a batch of notifications has no answer"
    );

    client
        .send(&json!(vec![one(1, "claw.status", json!({})); 1025]))
        .await;
    assert_eq!(codes(&[client.next().await]), [(-32600, Value::Null)]);
    client
        .send(&json!(vec![one(1, "claw.status", json!({})); 1024]))
        .await;
    assert_eq!(client.next().await.as_array().map(Vec::len), Some(1024));
}

#[tokio::test]
async fn r24_a_batch_may_hold_a_call_and_its_approval_and_barriers() {
    let mut client = Client::connect(Launched::new(2));
    let id = fresh();
    let one = |n: u32, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": n, "method": method, "params": params});
    client
        .send(&json!([
            one(1, "claw.initialize", crate::wire::initialize()),
            one(2, "claw.tool.call", call("ask", &id)),
            one(3, "claw.tool.approve", json!({"request_id": id})),
            one(4, "claw.shutdown", json!({})),
            one(5, "claw.status", json!({})),
        ]))
        .await;
    let answers = client.next().await;
    let ids: Vec<_> = answers
        .as_array()
        .expect("an array")
        .iter()
        .map(|answer| answer["id"].as_u64())
        .collect();
    assert_eq!(ids.len(), 5);
    assert!(
        answers
            .as_array()
            .expect("an array")
            .iter()
            .all(|answer| answer.get("result").is_some()),
        "{answers}"
    );
    assert_eq!(answers[4]["result"]["state"], "STOPPED");
}

#[tokio::test]
async fn r24_notifications_are_never_answered() {
    let mut client = Client::ready(3).await;
    for (method, params) in [
        ("claw.initialized", json!({})),
        ("claw.initialized", json!([1, 2])),
        ("claw.heartbeat", json!({})),
        ("claw.tool.progress", json!({"x": 1})),
        ("claw.unknown", json!({})),
        ("claw.swarm.broadcast", json!({"swarm": 7})),
        ("claw.tool.approve", json!({})),
        ("claw.initialize", json!({})),
        ("", json!({})),
    ] {
        client
            .send(&json!({"jsonrpc": "2.0", "method": method, "params": params}))
            .await;
    }
    client
        .raw(b"{\"jsonrpc\":\"2.0\",\"method\":\"claw.initialized\",\"params\":7}\n")
        .await;
    assert_eq!(client.so_far().await, Vec::<Value>::new());
}

#[tokio::test]
async fn the_last_line_needs_no_newline() {
    let mut client = Client::ready(1).await;
    client
        .raw(b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"claw.status\"}")
        .await;
    let (rest, _) = client.finish().await;
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0]["id"], 9);
}
