//! A stream cut at every byte: an error that says so, or the whole answer; never a part of it passed off as one.

use clawk_core::ports::{FaultKind, ModelCompletion};
use serde_json::{Value, json};

use crate::fixture::*;

fn openai() -> String {
    let chunk = |delta: Value, finish: Value| {
        format!(
            "data: {}\r\n\r\n",
            json!({ "model": "m", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
        )
    };
    let call = |id: Value, name: Value, arguments: &str, index: u32| json!({ "tool_calls": [{ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }] });
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 300, "completion_tokens": 4 } });
    [
        ": keep-alive\r\n\r\n".to_owned(),
        chunk(json!({ "content": "Grüß " }), Value::Null),
        chunk(json!({ "content": "Gott" }), Value::Null),
        chunk(call("a".into(), "one".into(), "{\"x\":", 0), Value::Null),
        chunk(call(Value::Null, Value::Null, "1}", 0), Value::Null),
        chunk(call("b".into(), "two".into(), "", 1), Value::Null),
        chunk(json!({}), "tool_calls".into()),
        format!("data: {usage}\r\n\r\ndata: [DONE]\r\n\r\n"),
    ]
    .concat()
}

fn anthropic() -> String {
    let event = |value: Value| format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap());
    let delta = |index: u32, delta: Value| {
        event(json!({ "type": "content_block_delta", "index": index, "delta": delta }))
    };
    let tool = |id: &str, name: &str| json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
    let start = |index: u32, block: Value| {
        event(json!({ "type": "content_block_start", "index": index, "content_block": block }))
    };
    [
        event(json!({ "type": "message_start", "message": { "model": "m", "usage": { "input_tokens": 300, "output_tokens": 1 } } })),
        start(0, json!({ "type": "text", "text": "" })),
        event(json!({ "type": "ping" })),
        delta(0, json!({ "type": "text_delta", "text": "Grüß " })),
        delta(0, json!({ "type": "text_delta", "text": "Gott" })),
        start(1, tool("a", "one")),
        delta(1, json!({ "type": "input_json_delta", "partial_json": "{\"x\":" })),
        delta(1, json!({ "type": "input_json_delta", "partial_json": "1}" })),
        start(2, tool("b", "two")),
        event(json!({ "type": "content_block_stop", "index": 2 })),
        event(json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 4 } })),
        event(json!({ "type": "message_stop" })),
    ]
    .concat()
}

fn is_whole(answer: &ModelCompletion) {
    assert_eq!(answer.text, "Grüß Gott");
    let calls: Vec<_> = answer
        .calls
        .iter()
        .map(|call| (call.name.as_str(), call.arguments.clone().unwrap()))
        .collect();
    assert_eq!(calls[0].1["x"], 1);
    assert_eq!(
        (calls.len(), calls[0].0, calls[1].0, calls[1].1.len()),
        (2, "one", "two", 0)
    );
    assert!(answer.usage.estimated || (answer.usage.input_tokens, answer.usage.output_tokens) == (300, 4));
}

async fn cut_everywhere(protocol: &str, bytes: Vec<u8>) {
    let replies = (0..=bytes.len())
        .map(|at| Reply::Bytes(bytes[..at].to_vec()))
        .collect();
    let server = Server::start(replies).await;
    let provider = provider(spec(protocol, &server.url(), true), quick());
    let request = user("hi");
    let mut wholes = 0;
    for at in 0..=bytes.len() {
        match ask(&provider, &request).await.0 {
            Ok(answer) => {
                is_whole(&answer);
                wholes += 1;
            }
            Err(error) => {
                assert_eq!(
                    error.kind,
                    FaultKind::Cut,
                    "cut at {at} of {}: {error}",
                    bytes.len()
                );
                assert_eq!(wholes, 0, "cut at {at}: a longer stream must not be worth less");
            }
        }
    }
    assert!(wholes >= 1);
}

#[tokio::test]
async fn openai_closed() {
    cut_everywhere("openai-compatible", stream(&openai())).await;
}

#[tokio::test]
async fn openai_chunked() {
    cut_everywhere("openai-compatible", chunked_stream(&openai())).await;
}

#[tokio::test]
async fn anthropic_closed() {
    cut_everywhere("anthropic-native", stream(&anthropic())).await;
}

#[tokio::test]
async fn anthropic_chunked() {
    cut_everywhere("anthropic-native", chunked_stream(&anthropic())).await;
}

#[tokio::test]
async fn whole_answers_cut_everywhere() {
    let message = json!({ "content": "Grüß Gott", "tool_calls": [
        { "id": "a", "function": { "name": "one", "arguments": "{\"x\":1}" } }, { "id": "b", "function": { "name": "two" } },
    ] });
    let openai = json!({ "choices": [{ "message": message, "finish_reason": "tool_calls" }] });
    let content = json!([
        { "type": "text", "text": "Grüß Gott" }, { "type": "tool_use", "id": "a", "name": "one", "input": { "x": 1 } },
        { "type": "tool_use", "id": "b", "name": "two", "input": {} },
    ]);
    let anthropic = json!({ "content": content, "stop_reason": "tool_use" });
    for (protocol, body) in [("openai-compatible", openai), ("anthropic-native", anthropic)] {
        cut_everywhere(protocol, whole(&body)).await;
        // Without a length, only the JSON's own end tells.
        let open =
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n{body}");
        cut_everywhere(protocol, open.into_bytes()).await;
    }
}

#[tokio::test]
async fn pieces_of_any_size_make_the_same_answer() {
    for (protocol, body) in [("openai-compatible", openai()), ("anthropic-native", anthropic())] {
        for size in [1, 2, 3, 7, 64] {
            let server = Server::start(vec![Reply::Pieces(chunked_stream(&body), size)]).await;
            let provider = provider(spec(protocol, &server.url(), true), quick());
            let (answer, told) = ask(&provider, &user("hi")).await;
            is_whole(&answer.unwrap());
            assert_eq!(told, "Grüß Gott<one><two>");
        }
    }
}
