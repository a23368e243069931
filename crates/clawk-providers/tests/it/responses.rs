//! OpenAI's Responses API.

use clawk_core::ports::{FaultKind, ReasoningEffort, StopReason};
use clawk_providers::{ProviderConfig, ProviderDialect};
use serde_json::{Value, json};

use crate::fixture::*;
use crate::kept_parts::{behind, whole_answer};

fn config() -> ProviderConfig {
    ProviderConfig {
        dialect: Some(ProviderDialect::Responses),
        ..quick()
    }
}

fn events(values: &[Value]) -> Vec<u8> {
    let text = values.iter().map(|value| {
        format!(
            "event: {}\ndata: {value}\n\n",
            value["type"].as_str().unwrap_or_default()
        )
    });
    stream(&text.collect::<String>())
}

fn output() -> Vec<Value> {
    vec![
        json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk" }),
        json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary", "content": [{ "type": "output_text", "text": "Let me look.", "annotations": [] }] }),
        json!({ "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "file-read", "arguments": "{\"path\":\"a\"}", "status": "completed" }),
        json!({ "type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "file-read", "arguments": "{\"path\":\"b\"}", "status": "completed" }),
    ]
}

fn usage() -> Value {
    json!({ "input_tokens": 90, "input_tokens_details": { "cached_tokens": 64 }, "output_tokens": 30, "output_tokens_details": { "reasoning_tokens": 20 }, "total_tokens": 120 })
}

fn response(status: &str, output: &[Value]) -> Value {
    json!({ "object": "response", "id": "resp_1", "model": "gpt-x", "status": status, "output": output, "usage": usage(), "error": null, "incomplete_details": null })
}

/// As OpenAI streams it.
fn streamed() -> Vec<Value> {
    let mut out = vec![
        json!({ "type": "response.created", "response": { "model": "gpt-x", "status": "in_progress", "output": [] } }),
        json!({ "type": "response.in_progress", "response": { "model": "gpt-x", "status": "in_progress", "output": [] } }),
    ];
    for (index, item) in output().iter().enumerate() {
        let mut begun = item.clone();
        begun["status"] = "in_progress".into();
        match item["type"].as_str().unwrap() {
            "function_call" => {
                begun["arguments"] = "".into();
                out.push(
                    json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
                );
                let (one, two) = item["arguments"].as_str().unwrap().split_at(4);
                out.push(json!({ "type": "response.function_call_arguments.delta", "output_index": index, "item_id": item["id"], "delta": one }));
                out.push(json!({ "type": "response.function_call_arguments.delta", "output_index": index, "item_id": item["id"], "delta": two }));
                out.push(json!({ "type": "response.function_call_arguments.done", "output_index": index, "item_id": item["id"], "arguments": item["arguments"] }));
            }
            "message" => {
                begun["content"] = json!([]);
                out.push(
                    json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
                );
                out.push(json!({ "type": "response.content_part.added", "output_index": index, "content_index": 0, "part": { "type": "output_text", "text": "" } }));
                out.push(json!({ "type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": "Let me " }));
                out.push(json!({ "type": "response.output_text.delta", "output_index": index, "content_index": 0, "delta": "look." }));
                out.push(json!({ "type": "response.output_text.done", "output_index": index, "content_index": 0, "text": "Let me look." }));
                out.push(json!({ "type": "response.content_part.done", "output_index": index, "content_index": 0, "part": { "type": "output_text", "text": "Let me look." } }));
            }
            _ => {
                begun["encrypted_content"] = Value::Null;
                out.push(
                    json!({ "type": "response.output_item.added", "output_index": index, "item": begun }),
                );
                out.push(json!({ "type": "response.reasoning_summary_text.delta", "output_index": index, "delta": "musing" }));
            }
        }
        out.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
    }
    out.push(json!({ "type": "response.completed", "response": response("completed", &output()) }));
    out
}

#[tokio::test]
async fn an_answer_is_read_streamed_and_whole_and_its_items_go_back() {
    for (reply, streaming) in [
        (events(&streamed()), true),
        (whole(&response("completed", &output())), false),
        // A server that streams nothing but its end.
        (
            events(&[json!({ "type": "response.completed", "response": response("completed", &output()) })]),
            true,
        ),
    ] {
        let server = Server::start(vec![Reply::Bytes(reply)]).await;
        let provider = provider(spec("openai-compatible", &server.url(), streaming), config());
        let (answer, told) = ask(&provider, &user("hi")).await;
        let answer = answer.unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.stop, answer.model.as_str()),
            ("Let me look.", StopReason::ToolUse, "gpt-x")
        );
        let calls: Vec<_> = answer
            .calls
            .iter()
            .map(|call| (call.id.as_str(), call.arguments.clone().unwrap()["path"].clone()))
            .collect();
        assert_eq!(calls, [("call_1", json!("a")), ("call_2", json!("b"))]);
        assert_eq!(
            (
                answer.usage.input_tokens,
                answer.usage.output_tokens,
                answer.usage.cached_tokens,
                answer.usage.estimated
            ),
            (90, 30, 64, false)
        );
        assert_eq!(
            told,
            if streaming {
                "Let me look.<file-read><file-read>"
            } else {
                ""
            }
        );
        whole_answer(&provider, &behind(user("hi"), &answer)).await;
        let sent = server.requests().remove(1).1;
        let expected = json!([
            { "type": "message", "role": "user", "content": "hi" },
            output()[0],
            { "type": "message", "role": "assistant", "content": "Let me look.", "phase": "commentary" },
            { "type": "function_call", "call_id": "call_1", "name": "file-read", "arguments": "{\"path\":\"a\"}" },
            { "type": "function_call", "call_id": "call_2", "name": "file-read", "arguments": "{\"path\":\"b\"}" },
            { "type": "function_call_output", "call_id": "call_1", "output": "done" },
            { "type": "function_call_output", "call_id": "call_2", "output": "done" },
        ]);
        assert_eq!(sent["input"], expected);
    }
}

#[tokio::test]
async fn requests_have_the_agreed_form() {
    let text = json!({ "type": "message", "content": [{ "type": "output_text", "text": "ok" }] });
    for (base, path, dialect) in [
        ("/v1", "/v1/responses", true),
        ("", "/v1/responses", true),
        ("/v1/responses", "/v1/responses", true),
        (
            "/openai/v1?api-version=preview",
            "/openai/v1/responses?api-version=preview",
            true,
        ),
        // Found by the refusal of the other form.
        ("/v1", "/v1/responses", false),
        (
            "/openai/deployments/d/chat/completions?api-version=1",
            "/openai/responses?api-version=1",
            false,
        ),
    ] {
        let server = Server::start(vec![Reply::Bytes(whole(&response(
            "completed",
            std::slice::from_ref(&text),
        )))])
        .await;
        let address = format!("http://127.0.0.1:{}{base}", server.port);
        let mut spec = spec("openai-compatible", &address, false);
        spec["auth"]["type"] = "api-key-header".into();
        let provider = provider(spec, if dialect { config() } else { quick() });
        let mut request = user("hi");
        request.adaptation.responses_api = !dialect;
        request.effort = Some(ReasoningEffort::High);
        request.cache_key = Some("k".to_owned());
        assert_eq!(whole_answer(&provider, &request).await.text, "ok");
        let (head, sent) = server.requests().remove(0);
        assert!(head.starts_with(&format!("post {path} http/1.1\r\n")), "{head}");
        assert!(head.contains(&format!("api-key: {}\r\n", CANARY.to_lowercase())));
        let expected = json!({
            "model": "test-model", "instructions": "Be brief.", "max_output_tokens": 100, "store": false,
            "include": ["reasoning.encrypted_content"], "reasoning": { "effort": "high" }, "prompt_cache_key": "k",
            "input": [{ "type": "message", "role": "user", "content": "hi" }],
            "tools": [{
                "type": "function", "name": "file-read", "description": "Reads a file.", "strict": false,
                "parameters": { "type": "object", "properties": { "path": { "type": "string" } } },
            }],
        });
        assert_eq!(sent, expected);
    }
}

#[tokio::test]
async fn what_ends_otherwise_is_told_as_such() {
    let text = json!([{ "type": "message", "content": [{ "type": "output_text", "text": "Hello, wor" }] }]);
    let refusal = json!([{ "type": "message", "content": [{ "type": "refusal", "refusal": "I will not" }] }]);
    let mut cut = response("incomplete", text.as_array().unwrap());
    cut["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    let mut filtered = response("incomplete", text.as_array().unwrap());
    filtered["incomplete_details"] = json!({ "reason": "content_filter" });
    let refused = response("completed", refusal.as_array().unwrap());
    for (end, kind, said, stop) in [
        (cut, "response.incomplete", "Hello, wor", StopReason::Length),
        (filtered, "response.incomplete", "Hello, wor", StopReason::Refusal),
        (refused, "response.completed", "I will not", StopReason::Refusal),
    ] {
        let streamed = json!({ "type": kind, "response": end });
        for reply in [events(&[streamed]), whole(&end)] {
            let server = Server::start(vec![Reply::Bytes(reply)]).await;
            let answer = whole_answer(
                &provider(spec("openai-compatible", &server.url(), true), config()),
                &user("hi"),
            )
            .await;
            assert_eq!((answer.text.as_str(), answer.stop), (said, stop));
        }
    }
    let failed = json!({ "code": "rate_limit_exceeded", "message": "slow down" });
    let part = json!({ "type": "response.output_text.delta", "output_index": 0, "delta": "par" });
    for (values, kind) in [
        (
            vec![
                part.clone(),
                json!({ "type": "response.failed", "response": { "status": "failed", "error": failed } }),
            ],
            FaultKind::RateLimited,
        ),
        (
            vec![
                json!({ "type": "error", "code": "context_length_exceeded", "message": "too long", "param": null }),
            ],
            FaultKind::ContextTooLong,
        ),
        (
            vec![json!({ "type": "error", "error": { "type": "server_error", "message": "boom" } })],
            FaultKind::ServerFault,
        ),
        (
            vec![json!({ "error": { "message": "boom", "code": 500 } })],
            FaultKind::ServerFault,
        ),
        (vec![part.clone()], FaultKind::Cut),
    ] {
        let server = Server::start(vec![Reply::Bytes(events(&values))]).await;
        let failed = fault(
            &provider(spec("openai-compatible", &server.url(), true), config()),
            &user("hi"),
        )
        .await;
        assert_eq!(failed.kind, kind, "{values:?}: {failed}");
    }
    let refusal = json!({ "type": "response.refusal.delta", "output_index": 0, "delta": "I will not" });
    let end =
        json!({ "type": "response.completed", "response": { "status": "completed", "usage": usage() } });
    let server = Server::start(vec![Reply::Bytes(events(&[refusal, end]))]).await;
    let answer = whole_answer(
        &provider(spec("openai-compatible", &server.url(), true), config()),
        &user("hi"),
    )
    .await;
    assert_eq!(
        (answer.text.as_str(), answer.stop),
        ("I will not", StopReason::Refusal)
    );
}

#[tokio::test]
async fn reasoning_that_is_not_sealed_goes_back_without_an_id() {
    let open = json!({ "type": "reasoning", "id": "rs_9", "summary": [], "content": [{ "type": "reasoning_text", "text": "musing" }], "encrypted_content": null, "status": null });
    let empty = json!({ "type": "reasoning", "id": "rs_8", "summary": [], "encrypted_content": null });
    let call = output()[2].clone();
    let server = Server::start(vec![Reply::Bytes(whole(&response(
        "completed",
        &[empty, open, call],
    )))])
    .await;
    let provider = provider(spec("openai-compatible", &server.url(), false), config());
    let answer = whole_answer(&provider, &user("hi")).await;
    whole_answer(&provider, &behind(user("hi"), &answer)).await;
    let input = server.requests().remove(1).1["input"].clone();
    let reasoning: Vec<_> = input
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["type"] == "reasoning")
        .collect();
    assert_eq!(
        reasoning,
        [
            &json!({ "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "musing" }] })
        ]
    );
}
