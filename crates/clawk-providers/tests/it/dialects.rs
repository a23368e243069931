//! What is sent, and the bends of real servers that are understood.

use clawk_core::ports::{FaultKind, Image, InferRequest, ModelMessage, StopReason};
use clawk_proto::Digest;
use serde_json::{Value, json};

use crate::fixture::*;

async fn openai(
    events: &str,
) -> (
    Result<clawk_core::ports::ModelCompletion, clawk_core::ports::ProviderError>,
    String,
) {
    let server = Server::start(vec![Reply::Bytes(stream(events))]).await;
    ask(
        &provider(spec("openai-compatible", &server.url(), true), quick()),
        &user("hi"),
    )
    .await
}

#[tokio::test]
async fn openai_requests_have_the_agreed_form() {
    let server = Server::start(vec![Reply::Bytes(stream("data: [DONE]\n\n"))]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    ask(&provider, &long()).await.0.unwrap();
    let (head, body) = server.requests().remove(0);
    assert!(
        head.starts_with("post /v1/chat/completions http/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains(&format!("authorization: bearer {}\r\n", CANARY.to_lowercase())));
    let function = |arguments: &str| json!({ "name": "file-read", "arguments": arguments });
    let expected = json!({
        "model": "test-model", "max_tokens": 100, "stream": true, "stream_options": { "include_usage": true },
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "read two files" },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "fn.x:0", "type": "function", "function": function("{\"path\":\"a\"}") },
                { "id": "c1", "type": "function", "function": function("{\"invalid_arguments\":\"{bad\"}") },
            ] },
            { "role": "tool", "tool_call_id": "fn.x:0", "content": "contents of a" },
            { "role": "tool", "tool_call_id": "c1", "content": "error: bad arguments" },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "file-read", "description": "Reads a file.",
            "parameters": { "type": "object", "properties": { "path": { "type": "string" } } },
        } }],
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn anthropic_requests_have_the_agreed_form() {
    let body = json!({ "content": [], "stop_reason": "end_turn" });
    for (base, path) in [
        ("", "/v1/messages"),
        ("/", "/v1/messages"),
        ("/v1", "/v1/messages"),
        ("/x/v1/", "/x/v1/messages"),
        ("/x", "/x/v1/messages"),
    ] {
        let server = Server::start(vec![Reply::Bytes(whole(&body))]).await;
        let mut spec = spec(
            "anthropic-native",
            &format!("http://127.0.0.1:{}{base}", server.port),
            false,
        );
        spec["auth"]["type"] = "api-key-header".into();
        ask(&provider(spec, quick()), &long()).await.0.unwrap();
        let (head, sent) = server.requests().remove(0);
        assert!(head.starts_with(&format!("post {path} http/1.1\r\n")), "{head}");
        assert!(head.contains("anthropic-version: 2023-06-01\r\n"));
        assert!(
            head.contains(&format!("x-api-key: {}\r\n", CANARY.to_lowercase()))
                && !head.contains("authorization")
        );
        let mark = json!({ "type": "ephemeral" });
        let id = sent["messages"][1]["content"][0]["id"].clone();
        assert!(
            id.as_str().is_some_and(|id| id.len() == 9),
            "an id in the dialect's own letters: {id}"
        );
        let expected = json!({
            "model": "test-model", "max_tokens": 100, "system": [{ "type": "text", "text": "Be brief.", "cache_control": mark }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "read two files", "cache_control": mark }] },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": id, "name": "file-read", "input": { "path": "a" } },
                    { "type": "tool_use", "id": "c1", "name": "file-read", "input": { "invalid_arguments": "{bad" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": id, "content": "contents of a", "is_error": false },
                    { "type": "tool_result", "tool_use_id": "c1", "content": "bad arguments", "is_error": true, "cache_control": mark },
                ] },
            ],
            "tools": [{
                "name": "file-read", "description": "Reads a file.",
                "input_schema": { "type": "object", "properties": { "path": { "type": "string" } } },
                "cache_control": mark,
            }],
        });
        assert_eq!(sent, expected);
    }
}

#[tokio::test]
async fn openai_servers_may_leave_things_out() {
    let text = r#"data: {"choices":[{"delta":{"content":"hi"}}]}"#;
    let finish = r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#;
    for events in [
        // No [DONE], no usage; an empty `choices`; comments; a null everything.
        format!("{text}\n\n{finish}\n\n"),
        format!(": x\n\ndata: {{\"choices\":[]}}\n\n{text}\n\n: ping\n\n{finish}\n\ndata: [DONE]\n\n"),
        format!(
            "data: {{\"choices\":null,\"usage\":null,\"error\":null,\"model\":null}}\n\n{text}\n\ndata: [DONE]\n\n"
        ),
        format!("\n\n{text}\r\n\r\ndata:\r\n\r\n{finish}\r\rdata:[DONE]\r\r"),
    ] {
        let (answer, told) = openai(&events).await;
        let answer = answer.unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.stop, told.as_str()),
            ("hi", StopReason::End, "hi"),
            "{events}"
        );
        assert!(answer.usage.estimated && answer.usage.input_tokens > 10 && answer.usage.output_tokens == 1);
        assert_eq!(answer.model, "test-model");
    }
}

#[tokio::test]
async fn openai_calls_in_odd_shapes() {
    let delta = |calls: Value| {
        format!(
            "data: {}\n\n",
            json!({ "choices": [{ "delta": { "tool_calls": calls } }] })
        )
    };
    let stop = "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n";
    // No index: a new id is a new call. Arguments as an object. No id at all. The name repeated in each piece.
    let cases = [
        delta(json!([{ "id": "a", "function": { "name": "one", "arguments": "{" } }]))
            + &delta(json!([{ "function": { "arguments": "}" } }]))
            + &delta(json!([{ "id": "b", "function": { "name": "two", "arguments": "{}" } }])),
        delta(
            json!([{ "index": 0, "function": { "name": "one", "arguments": {} } }, { "index": 1, "function": { "name": "two" } }]),
        ),
        delta(json!([{ "index": 3, "id": "x", "function": { "name": "one", "arguments": "{" } }]))
            + &delta(json!([{ "index": 3, "id": "x", "function": { "name": "one", "arguments": "}" } }]))
            + &delta(json!([{ "index": 9, "id": "x", "function": { "name": "two", "arguments": null } }])),
    ];
    for events in cases {
        let answer = openai(&format!("{events}{stop}")).await.0.unwrap();
        let names: Vec<_> = answer.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(
            (names.as_slice(), answer.stop),
            (["one", "two"].as_slice(), StopReason::ToolUse),
            "{events}"
        );
        assert!(
            answer
                .calls
                .iter()
                .all(|call| call.arguments.as_ref().is_ok_and(|map| map.is_empty()))
        );
        assert_ne!(answer.calls[0].id, answer.calls[1].id);
    }
    let many: Vec<_> = (0..200)
        .map(|n| json!({ "index": n, "function": { "name": "x" } }))
        .collect();
    assert_eq!(
        openai(&delta(many.into())).await.0.unwrap_err().kind,
        FaultKind::Malformed
    );
    let nameless = delta(json!([{ "index": 0, "function": { "arguments": "{}" } }])) + stop;
    assert_eq!(openai(&nameless).await.0.unwrap_err().kind, FaultKind::Malformed);
}

#[tokio::test]
async fn made_up_ids_are_new_to_the_conversation() {
    let message = json!({ "tool_calls": [{ "function": { "name": "one" } }, { "id": "c1", "function": { "name": "two" } }] });
    let server = Server::start(vec![Reply::Bytes(whole(
        &json!({ "choices": [{ "message": message }] }),
    ))])
    .await;
    let answer = ask(
        &provider(spec("openai-compatible", &server.url(), false), quick()),
        &long(),
    )
    .await
    .0
    .unwrap();
    let ids: Vec<_> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["call-0", "call-1"]);
}

#[tokio::test]
async fn errors_inside_a_stream_are_errors() {
    for (error, kind) in [
        (
            json!({ "message": "boom", "type": "server_error" }),
            FaultKind::ServerFault,
        ),
        (
            json!({ "message": "slow", "type": "rate_limit_exceeded" }),
            FaultKind::RateLimited,
        ),
        (json!({ "message": "no", "code": 401 }), FaultKind::Auth),
        (
            json!({ "message": "too big", "code": "context_length_exceeded" }),
            FaultKind::ContextTooLong,
        ),
        (json!("just words"), FaultKind::ServerFault),
    ] {
        let events = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"par\"}}}}]}}\n\ndata: {}\n\n",
            json!({ "error": error })
        );
        let failed = openai(&events).await.0.unwrap_err();
        assert_eq!(failed.kind, kind, "{error}");
        assert!(failed.usage.is_some());
        let server = Server::start(vec![Reply::Bytes(whole(&json!({ "error": error })))]).await;
        let failed = fault(
            &provider(spec("openai-compatible", &server.url(), false), quick()),
            &user("hi"),
        )
        .await;
        assert_eq!(failed.kind, kind, "{error}");
    }
    for (word, kind) in [
        ("overloaded_error", FaultKind::ServerFault),
        ("rate_limit_error", FaultKind::RateLimited),
    ] {
        let event = json!({ "type": "error", "error": { "type": word, "message": "m" } });
        let server = Server::start(vec![Reply::Bytes(stream(&format!(
            "event: error\ndata: {event}\n\n"
        )))])
        .await;
        let failed = fault(
            &provider(spec("anthropic-native", &server.url(), true), quick()),
            &user("hi"),
        )
        .await;
        assert_eq!(failed.kind, kind);
    }
}

#[tokio::test]
async fn the_servers_content_type_decides_not_the_wish() {
    let body = json!({ "choices": [{ "message": { "content": "hi" }, "finish_reason": "stop" }] });
    let server = Server::start(vec![Reply::Bytes(whole(&body))]).await;
    let answer = ask(
        &provider(spec("openai-compatible", &server.url(), true), quick()),
        &user("x"),
    )
    .await
    .0
    .unwrap();
    assert_eq!(answer.text, "hi");
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}\n\n";
    let server = Server::start(vec![Reply::Bytes(stream(events))]).await;
    let answer = ask(
        &provider(spec("openai-compatible", &server.url(), false), quick()),
        &user("x"),
    )
    .await
    .0
    .unwrap();
    assert_eq!(answer.text, "hi");
}

#[tokio::test]
async fn a_whole_answer_does_not_wait_for_a_server_that_never_closes() {
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n";
    let server = Server::start(vec![Reply::Hold(stream(events))]).await;
    let started = std::time::Instant::now();
    let answer = ask(
        &provider(spec("openai-compatible", &server.url(), true), Default::default()),
        &user("x"),
    )
    .await
    .0
    .unwrap();
    assert_eq!(answer.text, "hi");
    assert!(started.elapsed() < std::time::Duration::from_millis(1500));
}

#[tokio::test]
async fn refusals_are_told_as_such() {
    let events = "data: {\"choices\":[{\"delta\":{\"refusal\":\"I will not\"}}]}\n\ndata: {\"choices\":[{\"finish_reason\":\"content_filter\"}]}\n\n";
    let answer = openai(events).await.0.unwrap();
    assert_eq!(
        (answer.text.as_str(), answer.stop),
        ("I will not", StopReason::Refusal)
    );
}

/// Words and a picture, with its bytes or without.
fn picture(text: &str, data: Option<&[u8]>) -> InferRequest {
    let mut request = user(text);
    if let Some(ModelMessage::User { images, .. }) = request.messages.first_mut() {
        images.push(Image {
            digest: Digest::ZERO,
            mime_type: "image/png".to_owned(),
            name: Some("chart.png".to_owned()),
            size_bytes: 3,
            data: data.map(Into::into),
        });
    }
    request
}

async fn sent(protocol: &str, request: &InferRequest) -> Value {
    let body = match protocol {
        "anthropic-native" => {
            json!({ "content": [{ "type": "text", "text": "ok" }], "stop_reason": "end_turn" })
        }
        _ => json!({ "choices": [{ "message": { "content": "ok" }, "finish_reason": "stop" }] }),
    };
    let server = Server::start(vec![Reply::Bytes(whole(&body))]).await;
    ask(&provider(spec(protocol, &server.url(), false), quick()), request)
        .await
        .0
        .unwrap();
    server.requests().remove(0).1["messages"].clone()
}

#[tokio::test]
async fn pictures_go_out_in_the_form_of_each_dialect() {
    let shown = picture("what is this?", Some(b"abc"));
    let messages = sent("openai-compatible", &shown).await;
    assert_eq!(
        messages[1],
        json!({ "role": "user", "content": [
            { "type": "text", "text": "what is this?" },
            { "type": "image_url", "image_url": { "url": "data:image/png;base64,YWJj" } },
        ] })
    );
    let messages = sent("anthropic-native", &shown).await;
    let image =
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "YWJj" } });
    assert_eq!(
        messages[0],
        json!({ "role": "user", "content": [image, { "type": "text", "text": "what is this?", "cache_control": { "type": "ephemeral" } }] })
    );
    // Without words there is no empty text, and a picture that came without its bytes is not sent.
    let silent = picture("", Some(b"abc"));
    assert_eq!(
        sent("anthropic-native", &silent).await[0]["content"][0]["source"],
        image["source"]
    );
    let messages = sent("openai-compatible", &silent).await;
    assert_eq!(messages[1]["content"].as_array().map(Vec::len), Some(1));
    let messages = sent("anthropic-native", &picture("hi", None)).await;
    assert_eq!(messages[0]["content"][0]["text"], "hi");
}
