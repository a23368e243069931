//! What every adapter must do alike.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_core::ports::{FaultKind, ModelProvider, StopReason, Usage};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::fixture::*;

#[derive(Debug, Clone, Copy)]
enum Case {
    Text,
    Calls,
    Length,
    BadArguments,
    RateLimited,
    Overloaded,
    Unauthorized,
    TooLong,
    Cut,
    Garbage,
    Hang,
}

#[derive(Debug, Clone, Copy)]
enum Adapter {
    OpenAi { streaming: bool },
    Anthropic { streaming: bool },
    Scripted { streaming: bool },
}

/// A provider that will play the case, and what must live as long.
struct Stage {
    provider: Arc<dyn ModelProvider>,
    server: Option<Server>,
    streaming: bool,
}

async fn stage(adapter: Adapter, case: Case) -> Stage {
    let (protocol, streaming, reply) = match adapter {
        Adapter::OpenAi { streaming } => ("openai-compatible", streaming, openai(case, streaming)),
        Adapter::Anthropic { streaming } => ("anthropic-native", streaming, anthropic(case, streaming)),
        Adapter::Scripted { streaming } => {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("s.yaml"), script(case)).unwrap();
            let spec = serde_json::from_value(spec("custom", "script:s.yaml", streaming)).unwrap();
            let provider = factory(quick(), dir.path().to_owned())
                .build_provider(&spec)
                .unwrap();
            return Stage {
                provider,
                server: None,
                streaming,
            };
        }
    };
    let server = Server::start(vec![reply]).await;
    let provider = provider(spec(protocol, &server.url(), streaming), quick());
    Stage {
        provider,
        server: Some(server),
        streaming,
    }
}

fn failure(case: Case) -> Option<Reply> {
    let bytes = match case {
        Case::RateLimited => answer(
            "429 Too Many Requests",
            "retry-after: 2\r\n",
            r#"{"error":{"message":"slow down"}}"#,
        ),
        Case::Overloaded => answer(
            "529 Overloaded",
            "",
            r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#,
        ),
        Case::Unauthorized => answer(
            "401 Unauthorized",
            "",
            &format!(r#"{{"error":"bad key {CANARY}"}}"#),
        ),
        Case::TooLong => answer(
            "400 Bad Request",
            "",
            r#"{"error":{"message":"prompt is too long: 9 > 8"}}"#,
        ),
        Case::Hang => return Some(Reply::Hold(Vec::new())),
        _ => return None,
    };
    Some(Reply::Bytes(bytes))
}

fn reply(streaming: bool, body: &Value, events: &str, case: Case) -> Reply {
    let mut bytes = if streaming { stream(events) } else { whole(body) };
    match case {
        Case::Cut => bytes.truncate(bytes.len() * 2 / 3),
        Case::Garbage if streaming => bytes = stream("data: {\"this is\": not json}\n\n"),
        Case::Garbage => {
            bytes = answer(
                "200 OK",
                "content-type: application/json\r\n",
                "{\"choices\": nonsense}",
            )
        }
        _ => {}
    }
    Reply::Bytes(bytes)
}

fn openai(case: Case, streaming: bool) -> Reply {
    if let Some(reply) = failure(case) {
        return reply;
    }
    let call = |index: u32, id: &str, arguments: &str| json!({ "index": index, "id": id, "type": "function", "function": { "name": "file-read", "arguments": arguments } });
    let (text, calls, finish) = match case {
        Case::Calls => {
            let calls = vec![call(0, "a", r#"{"path":"x"}"#), call(1, "b", r#"{"path":"y"}"#)];
            ("Let me look.", calls, "tool_calls")
        }
        Case::BadArguments => ("", vec![call(0, "a", "{\"path\": ")], "tool_calls"),
        Case::Length => ("Hello, wor", vec![], "length"),
        _ => ("Hello, world", vec![], "stop"),
    };
    let usage = json!({ "prompt_tokens": 90, "completion_tokens": 5, "total_tokens": 95 });
    let message = json!({ "role": "assistant", "content": text, "tool_calls": calls });
    let body = json!({ "model": "m-1", "choices": [{ "index": 0, "message": message, "finish_reason": finish }], "usage": usage });
    let mut events = String::new();
    let mut push = |delta: Value, finish: Value| {
        let chunk =
            json!({ "model": "m-1", "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] });
        events.push_str(&format!("data: {chunk}\n\n"));
    };
    push(json!({ "role": "assistant", "content": "" }), Value::Null);
    for piece in text.as_bytes().chunks(5) {
        push(
            json!({ "content": std::str::from_utf8(piece).unwrap() }),
            Value::Null,
        );
    }
    for call in &calls {
        push(json!({ "tool_calls": [call] }), Value::Null);
    }
    push(json!({}), finish.into());
    events.push_str(&format!(
        "data: {}\n\ndata: [DONE]\n\n",
        json!({ "choices": [], "usage": usage })
    ));
    reply(streaming, &body, &events, case)
}

fn anthropic(case: Case, streaming: bool) -> Reply {
    if let Some(reply) = failure(case) {
        return reply;
    }
    let (text, calls, stop): (_, Vec<(&str, &str)>, _) = match case {
        Case::Calls => (
            "Let me look.",
            vec![("a", r#"{"path":"x"}"#), ("b", r#"{"path":"y"}"#)],
            "tool_use",
        ),
        Case::BadArguments => ("", vec![("a", "{\"path\": ")], "tool_use"),
        Case::Length => ("Hello, wor", vec![], "max_tokens"),
        _ => ("Hello, world", vec![], "end_turn"),
    };
    let mut content = vec![json!({ "type": "text", "text": text })];
    let mut events = String::new();
    let mut push = |value: Value| {
        events.push_str(&format!(
            "event: {}\ndata: {value}\n\n",
            value["type"].as_str().unwrap()
        ))
    };
    let usage = json!({ "input_tokens": 80, "cache_read_input_tokens": 10, "output_tokens": 1 });
    push(json!({ "type": "message_start", "message": { "model": "m-1", "usage": usage } }));
    push(
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
    );
    push(json!({ "type": "ping" }));
    for piece in text.as_bytes().chunks(5) {
        let delta = json!({ "type": "text_delta", "text": std::str::from_utf8(piece).unwrap() });
        push(json!({ "type": "content_block_delta", "index": 0, "delta": delta }));
    }
    push(json!({ "type": "content_block_stop", "index": 0 }));
    for (index, (id, input)) in (1..).zip(&calls) {
        let value = serde_json::from_str(input).unwrap_or(Value::String((*input).to_owned()));
        content.push(json!({ "type": "tool_use", "id": id, "name": "file-read", "input": value }));
        let block = json!({ "type": "tool_use", "id": id, "name": "file-read", "input": {} });
        push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
        for piece in input.as_bytes().chunks(4) {
            let delta =
                json!({ "type": "input_json_delta", "partial_json": std::str::from_utf8(piece).unwrap() });
            push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        }
        push(json!({ "type": "content_block_stop", "index": index }));
    }
    push(
        json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": { "output_tokens": 5 } }),
    );
    push(json!({ "type": "message_stop" }));
    let usage = json!({ "input_tokens": 80, "cache_read_input_tokens": 10, "output_tokens": 5 });
    let body =
        json!({ "type": "message", "model": "m-1", "content": content, "stop_reason": stop, "usage": usage });
    reply(streaming, &body, &events, case)
}

fn script(case: Case) -> String {
    let step = match case {
        Case::Text => "say: 'Hello, world'",
        Case::Calls => {
            "{say: Let me look., call: [{name: file-read, arguments: {path: x}}, {name: file-read, arguments: {path: y}}]}"
        }
        Case::Length => "{say: 'Hello, wor', stop: length}",
        Case::BadArguments => "call: [{name: file-read, raw_arguments: '{\"path\": '}]",
        Case::RateLimited => "fault: {status: 429, retry_after_ms: 2000}",
        Case::Overloaded => "fault: {status: 529}",
        Case::Unauthorized => "fault: {status: 401}",
        Case::TooLong => "fault: {status: 400, message: prompt is too long}",
        Case::Cut => "{say: 'Hello, world', fault: {cut_after_chars: 5}}",
        Case::Garbage => "fault: {garbage: true}",
        Case::Hang => "fault: {hang: true}",
    };
    let step = if step.starts_with('{') {
        step.to_owned()
    } else {
        format!("{{{step}}}")
    };
    let mut script = format!("stream: {{chunk_chars: 5}}\nscenes:\n- steps:\n  - {step}\n");
    if matches!(case, Case::Text | Case::Calls | Case::Length) {
        script.push_str("    \n");
        script = script.replace("}\n    \n", ", usage: {input: 90, output: 5}}\n");
    }
    script
}

const ADAPTERS: [Adapter; 6] = [
    Adapter::OpenAi { streaming: true },
    Adapter::OpenAi { streaming: false },
    Adapter::Anthropic { streaming: true },
    Adapter::Anthropic { streaming: false },
    Adapter::Scripted { streaming: true },
    Adapter::Scripted { streaming: false },
];

const COUNTED: Usage = Usage {
    input_tokens: 90,
    output_tokens: 5,
    cached_tokens: 0,
    cache_write_tokens: 0,
    estimated: false,
    told: None,
    unreadable: false,
};

/// What each dialect says of the same usage: only Anthropic's case tells of its cache.
fn counted(adapter: Adapter) -> Usage {
    match adapter {
        Adapter::Anthropic { .. } => Usage {
            cached_tokens: 10,
            ..COUNTED
        },
        Adapter::OpenAi { .. } | Adapter::Scripted { .. } => COUNTED,
    }
}

#[tokio::test]
async fn text_arrives_whole_and_is_told_only_when_streamed() {
    for adapter in ADAPTERS {
        let stage = stage(adapter, Case::Text).await;
        let (answer, told) = ask(&stage.provider, &user("hi")).await;
        let answer = answer.unwrap_or_else(|error| panic!("{adapter:?}: {error}"));
        assert_eq!(
            (answer.text.as_str(), answer.stop, answer.usage),
            ("Hello, world", StopReason::End, counted(adapter)),
            "{adapter:?}"
        );
        assert_eq!(
            told,
            if stage.streaming { "Hello, world" } else { "" },
            "{adapter:?}"
        );
        assert!(!answer.model.is_empty());
    }
}

#[tokio::test]
async fn several_calls_in_one_answer_keep_their_order() {
    for adapter in ADAPTERS {
        let stage = stage(adapter, Case::Calls).await;
        let (answer, told) = ask(&stage.provider, &user("hi")).await;
        let answer = answer.unwrap_or_else(|error| panic!("{adapter:?}: {error}"));
        assert_eq!(
            (answer.text.as_str(), answer.stop, answer.usage),
            ("Let me look.", StopReason::ToolUse, counted(adapter))
        );
        let paths: Vec<_> = answer
            .calls
            .iter()
            .map(|call| call.arguments.as_ref().unwrap()["path"].clone())
            .collect();
        assert_eq!(paths, ["x", "y"], "{adapter:?}");
        assert!(
            answer
                .calls
                .iter()
                .all(|call| call.name == "file-read" && !call.id.is_empty())
        );
        assert_ne!(answer.calls[0].id, answer.calls[1].id);
        assert_eq!(
            told.matches("<file-read>").count(),
            if stage.streaming { 2 } else { 0 },
            "{adapter:?}"
        );
    }
}

#[tokio::test]
async fn a_cut_at_the_bound_says_so() {
    for adapter in ADAPTERS {
        let stage = stage(adapter, Case::Length).await;
        let answer = ask(&stage.provider, &user("hi")).await.0.unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.stop),
            ("Hello, wor", StopReason::Length),
            "{adapter:?}"
        );
    }
}

#[tokio::test]
async fn arguments_that_are_no_object_are_handed_on_as_text() {
    for adapter in ADAPTERS {
        let stage = stage(adapter, Case::BadArguments).await;
        let answer = ask(&stage.provider, &user("hi")).await.0.unwrap();
        let text = answer.calls[0].arguments.as_ref().unwrap_err();
        assert!(
            text.contains("{\\\"path\\\": ") || text.contains("{\"path\": "),
            "{adapter:?}: {text}"
        );
    }
}

#[tokio::test]
async fn faults_have_the_same_kind_everywhere() {
    let cases = [
        (Case::RateLimited, FaultKind::RateLimited, Some(429), Some(2000)),
        (Case::Overloaded, FaultKind::ServerFault, Some(529), None),
        (Case::Unauthorized, FaultKind::Auth, Some(401), None),
        (Case::TooLong, FaultKind::ContextTooLong, Some(400), None),
        (Case::Cut, FaultKind::Cut, None, None),
        (Case::Garbage, FaultKind::Malformed, None, None),
        (Case::Hang, FaultKind::Timeout, None, None),
    ];
    for adapter in ADAPTERS {
        for (case, kind, status, retry_after_ms) in cases {
            let stage = stage(adapter, case).await;
            let error = fault(&stage.provider, &user("hi")).await;
            let found = (error.kind, error.status, error.retry_after_ms);
            assert_eq!(
                found,
                (kind, status, retry_after_ms),
                "{adapter:?} {case:?}: {error}"
            );
            assert!(error.message.contains("`main`"), "{error}");
            if matches!((adapter, case), (_, Case::Cut)) && stage.streaming {
                assert!(
                    error
                        .usage
                        .is_some_and(|usage| usage.estimated || usage.output_tokens > 0),
                    "{adapter:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn cancelling_ends_the_attempt_and_drops_the_connection() {
    for adapter in ADAPTERS {
        let stage = stage(adapter, Case::Hang).await;
        let (request, cancel, started) = (user("hi"), CancellationToken::new(), Instant::now());
        let told = |_: clawk_core::ports::CompletionDelta<'_>| {};
        let stop = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            cancel.cancel();
        };
        let (answer, ()) = tokio::join!(stage.provider.infer(&request, &told, &cancel), stop);
        assert_eq!(answer.unwrap_err().kind, FaultKind::Cancelled, "{adapter:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{adapter:?}");
        if let Some(server) = &stage.server {
            server.dropped().await;
        }
    }
}
