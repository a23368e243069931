//! What a server hands over goes back to it unchanged, and to nobody else (R52).

use std::sync::Arc;

use clawk_core::ports::{InferRequest, ModelCompletion, ModelMessage, ModelProvider};
use serde_json::{Value, json};

use crate::fixture::*;

fn events(values: &[Value]) -> Vec<u8> {
    stream(
        &values
            .iter()
            .map(|value| format!("data: {value}\n\n"))
            .collect::<String>(),
    )
}

/// The conversation behind an answer, with a result for each of its calls. It goes through JSON, as the journal keeps it.
pub(crate) fn behind(mut request: InferRequest, answer: &ModelCompletion) -> InferRequest {
    let answer: ModelCompletion = serde_json::from_str(&serde_json::to_string(answer).unwrap()).unwrap();
    let calls = answer.calls.clone();
    request.messages.push(ModelMessage::Assistant {
        text: answer.text,
        calls: answer.calls,
        state: answer.state,
    });
    request
        .messages
        .extend(calls.into_iter().map(|call| ModelMessage::ToolResult {
            call_id: call.id,
            text: "done".to_owned(),
            is_error: false,
            from_tool: true,
        }));
    request
}

pub(crate) async fn whole_answer(
    provider: &Arc<dyn ModelProvider>,
    request: &InferRequest,
) -> ModelCompletion {
    ask(provider, request)
        .await
        .0
        .unwrap_or_else(|error| panic!("{error}"))
}

fn last_assistant(body: &Value) -> Value {
    let messages = body["messages"].as_array().unwrap();
    let found = messages
        .iter()
        .rev()
        .find(|message| message["role"] == "assistant");
    found.cloned().unwrap_or_default()
}

const ARGUMENTS: &str = "{\"path\":\"a\"}";

fn call() -> Value {
    json!({ "index": 0, "id": "c1", "type": "function", "function": { "name": "file-read", "arguments": ARGUMENTS } })
}

/// What the same server and another one are sent after this answer.
async fn sent_after(protocol: &str, reply: Vec<u8>, streaming: bool) -> (Value, Value) {
    let last = match protocol {
        "anthropic-native" => {
            whole(&json!({ "content": [{ "type": "text", "text": "ok" }], "stop_reason": "end_turn" }))
        }
        _ => whole(&json!({ "choices": [{ "message": { "content": "ok" }, "finish_reason": "stop" }] })),
    };
    let server = Server::start(vec![Reply::Bytes(reply), Reply::Bytes(last.clone())]).await;
    let own = provider(spec(protocol, &server.url(), streaming), quick());
    let answer = whole_answer(&own, &user("hi")).await;
    let request = behind(user("hi"), &answer);
    whole_answer(&own, &request).await;
    let other_server = Server::start(vec![Reply::Bytes(last)]).await;
    let mut other = spec(protocol, &other_server.url(), streaming);
    other["model"] = "another-model".into();
    whole_answer(&provider(other, quick()), &request).await;
    (server.requests().remove(1).1, other_server.requests().remove(0).1)
}

#[tokio::test]
async fn members_of_chat_completions_go_back_to_their_server_only() {
    let details = json!([{ "type": "reasoning.encrypted", "data": "b3BhcXVl", "id": "r1", "format": "x-v1", "index": 0 }]);
    let pieces = json!([{ "type": "reasoning.text", "text": "I see", "index": 0 }]);
    let members: Vec<(&str, Value, Vec<Value>)> = vec![
        (
            "reasoning_content",
            json!("I should look."),
            vec![json!("I should "), json!("look.")],
        ),
        (
            "reasoning",
            json!("I should look."),
            vec![json!("I "), json!("should look.")],
        ),
        ("reasoning_details", details.clone(), vec![details]),
        (
            "reasoning_details",
            pieces,
            vec![
                json!([{ "type": "reasoning.text", "text": "I ", "index": 0 }]),
                json!([{ "type": "reasoning.text", "text": "see", "index": 0 }]),
            ],
        ),
        ("reasoning_opaque", json!("c2VhbGVk"), vec![json!("c2VhbGVk")]),
        (
            "extra_content",
            json!({ "google": { "thought_signature": "c2ln" } }),
            vec![json!({ "google": { "thought_signature": "c2ln" } })],
        ),
        (
            "thinking_blocks",
            json!([{ "type": "thinking", "thinking": "I see", "signature": "c2ln" }]),
            vec![json!([{ "type": "thinking", "thinking": "I see", "signature": "c2ln" }])],
        ),
    ];
    for (name, value, deltas) in members {
        let mut message = json!({ "role": "assistant", "content": null, "tool_calls": [call()] });
        message[name] = value.clone();
        let whole_reply =
            whole(&json!({ "choices": [{ "message": message, "finish_reason": "tool_calls" }] }));
        let mut chunks: Vec<Value> = deltas
            .into_iter()
            .map(|delta| json!({ "choices": [{ "delta": { name: delta } }] }))
            .collect();
        chunks.push(json!({ "choices": [{ "delta": { "tool_calls": [call()], name: null } }] }));
        chunks.push(json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }));
        for (reply, streaming) in [(whole_reply, false), (events(&chunks), true)] {
            let (own, other) = sent_after("openai-compatible", reply, streaming).await;
            assert_eq!(last_assistant(&own)[name], value, "{name} {streaming}");
            assert_eq!(last_assistant(&own)["tool_calls"][0]["id"], "c1");
            let foreign = last_assistant(&other);
            assert!(foreign.get(name).is_none(), "{foreign}");
            let id = foreign["tool_calls"][0]["id"].as_str().unwrap();
            assert!(
                id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()),
                "{id}"
            );
        }
    }
}

#[tokio::test]
async fn geminis_signatures_go_back_with_each_call() {
    let signed = |at: u32, signature: &str| {
        let mut call = json!({ "id": format!("function-call-{at}"), "type": "function", "function": { "name": "file-read", "arguments": ARGUMENTS } });
        if !signature.is_empty() {
            call["extra_content"] = json!({ "google": { "thought_signature": signature } });
        }
        call
    };
    // As Gemini's OpenAI address streams: whole calls, index 0 for all or none, the signature on the first.
    let shapes = [
        vec![
            json!({ "choices": [{ "delta": { "role": "assistant", "tool_calls": [signed(1, "c2ln"), signed(2, "")] }, "finish_reason": "tool_calls", "index": 0 }] }),
        ],
        vec![
            json!({ "choices": [{ "delta": { "role": "assistant", "tool_calls": [signed(1, "c2ln")] }, "index": 0 }] }),
            json!({ "choices": [{ "delta": { "role": "assistant", "tool_calls": [signed(2, "c2ln2")] }, "finish_reason": "stop", "index": 0 }] }),
        ],
    ];
    for (chunks, second) in shapes.iter().zip([Value::Null, json!("c2ln2")]) {
        let (own, other) = sent_after("openai-compatible", events(chunks), true).await;
        let calls = last_assistant(&own)["tool_calls"].clone();
        assert_eq!(
            calls[0]["extra_content"]["google"]["thought_signature"], "c2ln",
            "{calls}"
        );
        assert_eq!(
            calls[1]["extra_content"]["google"]["thought_signature"], second,
            "{calls}"
        );
        assert!(!other.to_string().contains("extra_content"), "{other}");
    }
}

#[tokio::test]
async fn thoughts_of_a_turn_without_tools_are_not_sent_again() {
    let message = json!({ "content": "It is 4.", "reasoning_content": "musing" });
    let server = Server::start(vec![Reply::Bytes(whole(
        &json!({ "choices": [{ "message": message }] }),
    ))])
    .await;
    let provider = provider(spec("openai-compatible", &server.url(), false), quick());
    let answer = whole_answer(&provider, &user("2+2?")).await;
    assert_eq!(answer.text, "It is 4.");
    let mut request = behind(user("2+2?"), &answer);
    request.messages.push(ModelMessage::User {
        text: "thanks".to_owned(),
        images: Vec::new(),
        frame: String::new(),
        author: clawk_core::author::TextAuthor::from_runtime(),
    });
    whole_answer(&provider, &request).await;
    let sent = server.requests().remove(1).1;
    assert!(!sent.to_string().contains("musing"), "{sent}");
    // A refusal that names a member leaves it out.
    let message = json!({ "tool_calls": [call()], "reasoning_content": "musing" });
    let server = Server::start(vec![Reply::Bytes(whole(
        &json!({ "choices": [{ "message": message }] }),
    ))])
    .await;
    let provider = crate::fixture::provider(spec("openai-compatible", &server.url(), false), quick());
    let mut request = behind(user("hi"), &whole_answer(&provider, &user("hi")).await);
    request.adaptation.omitted.insert("reasoning_content".to_owned());
    whole_answer(&provider, &request).await;
    assert!(!server.requests().remove(1).1.to_string().contains("musing"));
}

fn anthropic_blocks() -> Vec<Value> {
    vec![
        json!({ "type": "thinking", "thinking": "First I look.", "signature": "c2lnbmVk" }),
        json!({ "type": "redacted_thinking", "data": "c2VhbGVk" }),
        json!({ "type": "text", "text": "Let me look." }),
        json!({ "type": "tool_use", "id": "toolu_1", "name": "file-read", "input": { "path": "a" } }),
        json!({ "type": "thinking", "thinking": "And then?", "signature": "bW9yZQ==" }),
        json!({ "type": "text", "text": "Again." }),
        json!({ "type": "tool_use", "id": "toolu_2", "name": "file-read", "input": { "path": "b" } }),
    ]
}

/// The same blocks as a stream.
fn anthropic_stream(blocks: &[Value]) -> Vec<u8> {
    let mut out = vec![
        json!({ "type": "message_start", "message": { "model": "m", "usage": { "input_tokens": 9, "output_tokens": 1 } } }),
    ];
    for (index, block) in blocks.iter().enumerate() {
        let delta = |delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
        let start =
            |block: Value| json!({ "type": "content_block_start", "index": index, "content_block": block });
        match block["type"].as_str().unwrap() {
            "thinking" => {
                let (one, two) = block["thinking"].as_str().unwrap().split_at(5);
                out.push(start(
                    json!({ "type": "thinking", "thinking": "", "signature": "" }),
                ));
                out.push(delta(json!({ "type": "thinking_delta", "thinking": one })));
                out.push(delta(json!({ "type": "thinking_delta", "thinking": two })));
                out.push(delta(
                    json!({ "type": "signature_delta", "signature": block["signature"] }),
                ));
            }
            "text" => {
                out.push(start(json!({ "type": "text", "text": "" })));
                out.push(delta(json!({ "type": "text_delta", "text": block["text"] })));
            }
            "tool_use" => {
                out.push(start(
                    json!({ "type": "tool_use", "id": block["id"], "name": block["name"], "input": {} }),
                ));
                out.push(delta(
                    json!({ "type": "input_json_delta", "partial_json": block["input"].to_string() }),
                ));
            }
            _ => out.push(start(block.clone())),
        }
        out.push(json!({ "type": "content_block_stop", "index": index }));
    }
    out.push(json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": { "output_tokens": 9 } }));
    out.push(json!({ "type": "message_stop" }));
    events(&out)
}

#[tokio::test]
async fn anthropics_blocks_go_back_in_their_order() {
    let blocks = anthropic_blocks();
    let body = json!({ "content": blocks, "stop_reason": "tool_use", "usage": { "input_tokens": 9, "output_tokens": 9 } });
    for (reply, streaming) in [(whole(&body), false), (anthropic_stream(&blocks), true)] {
        let (own, other) = sent_after("anthropic-native", reply, streaming).await;
        assert_eq!(last_assistant(&own)["content"], json!(blocks), "{streaming}");
        let foreign = other.to_string();
        assert!(
            !foreign.contains("thinking") && !foreign.contains("c2VhbGVk"),
            "{foreign}"
        );
        assert!(
            foreign.contains("Let me look.") && foreign.contains("toolu_2"),
            "{foreign}"
        );
    }
}

#[tokio::test]
async fn words_that_screening_changed_stand_beside_unchanged_blocks() {
    let blocks = anthropic_blocks();
    let body = json!({ "content": blocks, "stop_reason": "tool_use" });
    let last = json!({ "content": [{ "type": "text", "text": "ok" }], "stop_reason": "end_turn" });
    let server = Server::start(vec![Reply::Bytes(whole(&body)), Reply::Bytes(whole(&last))]).await;
    let provider = provider(spec("anthropic-native", &server.url(), false), quick());
    let mut answer = whole_answer(&provider, &user("hi")).await;
    answer.text = "[redacted] and more".to_owned();
    whole_answer(&provider, &behind(user("hi"), &answer)).await;
    let content = last_assistant(&server.requests().remove(1).1)["content"].clone();
    let kinds: Vec<_> = content
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        kinds,
        [
            "thinking",
            "redacted_thinking",
            "text",
            "tool_use",
            "thinking",
            "tool_use"
        ]
    );
    assert_eq!(content[0], blocks[0]);
    assert_eq!(content[2]["text"], "[redacted] and more");
}

#[tokio::test]
async fn thoughts_bound_to_their_prefix_go_back_behind_it_only() {
    let blocks = &anthropic_blocks()[..4];
    let body = json!({ "content": blocks, "stop_reason": "tool_use" });
    for (model, bound) in [
        ("claude-fable-5-1", true),
        ("claude-opus-5-5", true),
        ("claude-opus-4-6", false),
    ] {
        let server = Server::start(vec![Reply::Bytes(whole(&body))]).await;
        let mut spec = spec("anthropic-native", &server.url(), false);
        spec["model"] = model.into();
        let provider = provider(spec, quick());
        let request = behind(user("hi"), &whole_answer(&provider, &user("hi")).await);
        whole_answer(&provider, &request).await;
        let mut changed = request.clone();
        changed.system = "Be brief, and kind.".to_owned();
        whole_answer(&provider, &changed).await;
        let requests = server.requests();
        assert_eq!(
            last_assistant(&requests[1].1)["content"],
            json!(blocks),
            "{model}"
        );
        let behind_other_words = last_assistant(&requests[2].1).to_string().contains("c2lnbmVk");
        assert_eq!(behind_other_words, !bound, "{model}");
    }
}

#[tokio::test]
async fn the_beginning_of_a_request_stays_the_same_from_step_to_step() {
    let body = json!({ "content": anthropic_blocks(), "stop_reason": "tool_use" });
    let server = Server::start(vec![Reply::Bytes(whole(&body))]).await;
    let provider = provider(spec("anthropic-native", &server.url(), false), quick());
    let mut request = user("hi");
    for _ in 0..5 {
        let answer = whole_answer(&provider, &request).await;
        request = behind(request, &answer);
    }
    let strip = |mut message: Value| {
        for block in message["content"].as_array_mut().unwrap() {
            block.as_object_mut().unwrap().remove("cache_control");
        }
        message
    };
    let requests: Vec<Value> = server.requests().into_iter().map(|(_, body)| body).collect();
    for pair in requests.windows(2) {
        assert_eq!(
            (&pair[0]["system"], &pair[0]["tools"]),
            (&pair[1]["system"], &pair[1]["tools"])
        );
        let (before, after) = (
            pair[0]["messages"].as_array().unwrap(),
            pair[1]["messages"].as_array().unwrap(),
        );
        for (one, two) in before.iter().zip(after) {
            assert_eq!(strip(one.clone()).to_string(), strip(two.clone()).to_string());
        }
        let marks = pair[1].to_string().matches("cache_control").count();
        assert!((3..=4).contains(&marks), "{marks} marks");
        // What was written into the cache last is marked again, and so is found.
        let newest = before.last().unwrap();
        let again = &after[before.len() - 1];
        assert_eq!(
            newest["content"].as_array().unwrap().last().unwrap()["cache_control"],
            again["content"].as_array().unwrap().last().unwrap()["cache_control"]
        );
    }
}

#[tokio::test]
async fn what_changes_from_turn_to_turn_stands_beside_the_newest_words() {
    let recalled = "<recalled>likes tea</recalled>";
    for protocol in ["openai-compatible", "anthropic-native"] {
        let reply = match protocol {
            "anthropic-native" => {
                json!({ "content": [{ "type": "text", "text": "ok" }], "stop_reason": "end_turn" })
            }
            _ => json!({ "choices": [{ "message": { "content": "ok" }, "finish_reason": "stop" }] }),
        };
        let server = Server::start(vec![Reply::Bytes(whole(&reply))]).await;
        let provider = provider(spec(protocol, &server.url(), false), quick());
        let plain = user("hi");
        let mut changed = plain.clone();
        changed.system.push_str("\n\n");
        changed.system.push_str(recalled);
        changed.volatile = recalled.to_owned();
        whole_answer(&provider, &plain).await;
        whole_answer(&provider, &changed).await;
        let (one, two) = (server.requests().remove(0).1, server.requests().remove(1).1);
        assert_eq!(one["system"], two["system"], "{protocol}");
        assert_eq!(
            one["messages"][0]["role"] == "system",
            protocol == "openai-compatible"
        );
        if protocol == "openai-compatible" {
            assert_eq!(one["messages"][0], two["messages"][0]);
        }
        let last = two["messages"].as_array().unwrap().last().unwrap().to_string();
        assert!(last.contains("<recalled>likes tea</recalled>\\n\\nhi"), "{last}");
        assert_eq!(two.to_string().matches("likes tea").count(), 1);
    }
}
