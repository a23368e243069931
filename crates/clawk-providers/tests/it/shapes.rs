//! Streams as servers and proxies really write them: the shapes that are read, and those that are told as errors.

use clawk_core::ports::{FaultKind, ModelCompletion, ProviderError, StopReason};
use serde_json::{Value, json};

use crate::fixture::*;

fn chunk(delta: Value) -> String {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }).to_string()
}

fn end(word: &str) -> String {
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": word }] }).to_string()
}

async fn answered(
    kind: &str,
    body: &[u8],
    streaming: bool,
) -> (Result<ModelCompletion, ProviderError>, String) {
    let mut reply =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: {kind}\r\n\r\n").into_bytes();
    reply.extend_from_slice(body);
    let server = Server::start(vec![Reply::Bytes(reply)]).await;
    ask(
        &provider(spec("openai-compatible", &server.url(), streaming), quick()),
        &user("hi"),
    )
    .await
}

/// Calls from pieces, in a stream that ends with `tool_calls`.
async fn calls(pieces: &[Value]) -> Vec<(String, Value)> {
    let mut events: String = pieces
        .iter()
        .map(|piece| format!("data: {}\n\n", chunk(json!({ "tool_calls": piece }))))
        .collect();
    events.push_str(&format!("data: {}\n\ndata: [DONE]\n\n", end("tool_calls")));
    let answer = answered("text/event-stream", events.as_bytes(), true).await.0;
    let answer = answer.unwrap_or_else(|error| panic!("{pieces:?}: {error}"));
    let ids: std::collections::BTreeSet<_> = answer.calls.iter().map(|call| &call.id).collect();
    assert_eq!(ids.len(), answer.calls.len(), "{pieces:?}");
    answer
        .calls
        .into_iter()
        .map(|call| {
            (
                call.name,
                call.arguments.map_or_else(Value::String, Value::Object),
            )
        })
        .collect()
}

fn piece(index: Value, id: Value, name: Value, arguments: Value) -> Value {
    json!([{ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }])
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
async fn two_calls_are_two_calls_in_every_shape() {
    const N: Value = Value::Null;
    let (a, b) = (r#"{"n":1}"#, r#"{"n":2}"#);
    let one =
        |index: Value, id: &str, arguments: &str| piece(index, id.into(), "one".into(), arguments.into());
    let two =
        |index: Value, id: &str, arguments: &str| piece(index, id.into(), "two".into(), arguments.into());
    let tail = |index: Value, arguments: &str| piece(index, N, N, arguments.into());
    let shapes: Vec<(&str, Vec<Value>)> = vec![
        (
            "heads first, tails by index",
            vec![
                one(0.into(), "a", ""),
                two(1.into(), "b", ""),
                tail(0.into(), a),
                tail(1.into(), b),
            ],
        ),
        (
            "interleaved tails",
            vec![
                one(0.into(), "a", ""),
                two(1.into(), "b", ""),
                tail(0.into(), "{\"n\""),
                tail(1.into(), "{\"n\""),
                tail(0.into(), ":1}"),
                tail(1.into(), ":2}"),
            ],
        ),
        (
            "one index, heads first, tails behind",
            vec![
                one(0.into(), "a", ""),
                two(0.into(), "b", ""),
                tail(0.into(), a),
                tail(0.into(), b),
            ],
        ),
        (
            "one index, other ids, arguments in pieces",
            vec![
                one(0.into(), "a", "{\"n\""),
                tail(0.into(), ":1}"),
                two(0.into(), "b", "{"),
                tail(0.into(), "\"n\":2}"),
            ],
        ),
        (
            "head at 0, tail at 1, twice",
            vec![
                one(0.into(), "a", ""),
                tail(1.into(), a),
                two(0.into(), "b", ""),
                tail(1.into(), b),
            ],
        ),
        (
            "an id anew in every piece",
            vec![
                one(0.into(), "a", ""),
                piece(0.into(), "x".into(), N, a.into()),
                two(1.into(), "b", ""),
                piece(1.into(), "y".into(), N, b.into()),
            ],
        ),
        (
            "id and name in every piece",
            vec![
                one(0.into(), "a", "{\"n\""),
                one(0.into(), "a", ":1}"),
                two(1.into(), "b", "{\"n\""),
                two(1.into(), "b", ":2}"),
            ],
        ),
        (
            "no index, id and name in every piece",
            vec![
                one(N, "a", "{\"n\""),
                one(N, "a", ":1}"),
                two(N, "b", "{\"n\""),
                two(N, "b", ":2}"),
            ],
        ),
        ("neither, names alone", vec![one(N, "", a), two(N, "", b)]),
        (
            "neither, in one list",
            vec![
                json!([{ "function": { "name": "one", "arguments": a } }, { "function": { "name": "two", "arguments": b } }]),
            ],
        ),
        (
            "neither, arguments in pieces",
            vec![one(N, "", ""), tail(N, a), two(N, "", ""), tail(N, b)],
        ),
        (
            "arguments as objects",
            vec![
                piece(0.into(), "a".into(), "one".into(), json!({ "n": 1 })),
                piece(1.into(), "b".into(), "two".into(), json!({ "n": 2 })),
            ],
        ),
        (
            "an empty object before the pieces",
            vec![
                one(0.into(), "a", "{}"),
                tail(0.into(), a),
                two(1.into(), "b", "{}"),
                tail(1.into(), b),
            ],
        ),
        (
            "the same id for both",
            vec![one(0.into(), "a", a), two(1.into(), "a", b)],
        ),
        (
            "the same id for both, no index",
            vec![one(N, "a", a), two(N, "a", b)],
        ),
        (
            "ids as numbers",
            vec![
                piece(0.into(), 7.into(), "one".into(), a.into()),
                piece(1.into(), 8.into(), "two".into(), b.into()),
            ],
        ),
        (
            "indexes as text",
            vec![one("0".into(), "a", a), two("1".into(), "b", b)],
        ),
        (
            "name and arguments beside the id",
            vec![
                json!([{ "index": 0, "id": "a", "name": "one", "arguments": a }]),
                json!([{ "index": 1, "id": "b", "name": "two", "arguments": b }]),
            ],
        ),
        (
            "the whole call once more at its end",
            vec![
                one(0.into(), "a", ""),
                tail(0.into(), a),
                one(0.into(), "a", a),
                two(1.into(), "b", b),
            ],
        ),
        (
            "no list around one call",
            vec![
                json!({ "index": 0, "id": "a", "function": { "name": "one", "arguments": a } }),
                json!({ "index": 1, "id": "b", "function": { "name": "two", "arguments": b } }),
            ],
        ),
        (
            "arguments as a text in a text",
            vec![
                one(0.into(), "a", &json!(a).to_string()),
                two(1.into(), "b", &json!(b).to_string()),
            ],
        ),
    ];
    for (name, pieces) in shapes {
        let found = calls(&pieces).await;
        let wanted = [
            ("one".to_owned(), json!({ "n": 1 })),
            ("two".to_owned(), json!({ "n": 2 })),
        ];
        assert_eq!(found, wanted, "{name}");
    }
}

#[tokio::test]
async fn the_same_tool_twice_is_two_calls_and_no_arguments_are_none() {
    for (name, pieces) in [
        (
            "by index",
            vec![
                piece(0.into(), "a".into(), "one".into(), "{\"n\":1}".into()),
                piece(1.into(), "b".into(), "one".into(), "{\"n\":2}".into()),
            ],
        ),
        (
            "by id",
            vec![
                piece(0.into(), "a".into(), "one".into(), "{\"n\":1}".into()),
                piece(0.into(), "b".into(), "one".into(), "{\"n\":2}".into()),
            ],
        ),
        (
            "by name",
            vec![
                piece(Value::Null, Value::Null, "one".into(), "{\"n\":1}".into()),
                piece(Value::Null, Value::Null, "one".into(), "{\"n\":2}".into()),
            ],
        ),
    ] {
        let found = calls(&pieces).await;
        assert_eq!(
            found,
            [
                ("one".to_owned(), json!({ "n": 1 })),
                ("one".to_owned(), json!({ "n": 2 }))
            ],
            "{name}"
        );
    }
    for nothing in [
        json!(""),
        json!("{}"),
        json!("null"),
        Value::Null,
        json!({}),
        json!("[]"),
        json!("\"\""),
        json!("  "),
        json!([]),
    ] {
        let found = calls(&[piece(0.into(), "a".into(), "one".into(), nothing.clone())]).await;
        assert_eq!(found, [("one".to_owned(), json!({}))], "{nothing}");
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
async fn an_answer_is_read_in_every_frame() {
    let pieces = [
        chunk(json!({ "role": "assistant", "content": "" })),
        chunk(json!({ "content": "naïve " })),
        chunk(json!({ "content": "😀" })),
        end("stop"),
    ];
    let lines = |between: &str| {
        pieces
            .iter()
            .map(|piece| format!("data: {piece}{between}"))
            .collect::<String>()
    };
    let message = json!({ "role": "assistant", "content": "naïve 😀" });
    let whole =
        json!({ "object": "chat.completion", "choices": [{ "message": message, "finish_reason": "stop" }] });
    let pretty = serde_json::to_string_pretty(&whole).unwrap();
    let sse = "text/event-stream";
    let frames: Vec<(&str, &str, Vec<u8>)> = vec![
        ("LF", sse, lines("\n\n").into_bytes()),
        ("CRLF", sse, lines("\r\n\r\n").into_bytes()),
        ("CR", sse, lines("\r\r").into_bytes()),
        ("no blank lines", sse, lines("\n").into_bytes()),
        (
            "no blank line at the end",
            sse,
            lines("\n\n").trim_end().as_bytes().to_vec(),
        ),
        (
            "events named, no blank lines",
            sse,
            pieces
                .iter()
                .map(|piece| format!("event: m\ndata: {piece}\n"))
                .collect::<String>()
                .into_bytes(),
        ),
        (
            "no space behind the colon",
            sse,
            lines("\n\n").replace("data: ", "data:").into_bytes(),
        ),
        (
            "a BOM",
            sse,
            [b"\xef\xbb\xbf".to_vec(), lines("\n\n").into_bytes()].concat(),
        ),
        (
            "keep-alives",
            sse,
            lines("\n\n: ping\n\n\n\nretry: 3\n\n").into_bytes(),
        ),
        ("ndjson", "application/x-ndjson", pieces.join("\n").into_bytes()),
        (
            "ndjson as a stream of events",
            sse,
            pieces.join("\n").into_bytes(),
        ),
        (
            "no kind of content",
            "application/octet-stream",
            lines("\n\n").into_bytes(),
        ),
        ("events as json", "application/json", lines("\n\n").into_bytes()),
        (
            "a whole answer",
            "application/json",
            whole.to_string().into_bytes(),
        ),
        (
            "a whole answer over lines",
            "application/json; charset=utf-8",
            pretty.clone().into_bytes(),
        ),
        ("a whole answer as a stream of events", sse, pretty.into_bytes()),
        (
            "a whole answer as an event",
            sse,
            format!("data: {whole}\n\ndata: [DONE]\n\n").into_bytes(),
        ),
        (
            "a whole answer behind its pieces",
            sse,
            format!("{}data: {whole}\n\n", lines("\n\n")).into_bytes(),
        ),
        (
            "DONE alone at the end",
            sse,
            format!("{}data: [DONE]", lines("\n\n").replace("\"stop\"", "null")).into_bytes(),
        ),
        (
            "blank lines before",
            sse,
            format!("\n\n\r\n{}", lines("\n\n")).into_bytes(),
        ),
        (
            "null choices, empty chunks",
            sse,
            format!(
                "data: {{}}\n\ndata: {{\"choices\":[null]}}\n\n{}data: {{\"choices\":null}}\n\n",
                lines("\n\n")
            )
            .into_bytes(),
        ),
    ];
    for (name, kind, body) in frames {
        for streaming in [true, false] {
            let (answer, told) = answered(kind, &body, streaming).await;
            let answer = answer.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                (answer.text.as_str(), answer.stop),
                ("naïve 😀", StopReason::End),
                "{name}"
            );
            assert_eq!(told, if streaming { "naïve 😀" } else { "" }, "{name}");
        }
    }
}

#[tokio::test]
async fn words_come_in_parts_halves_and_between_tags() {
    let parts = json!([{ "type": "thinking", "thinking": [{ "type": "text", "text": "musing" }] }, { "type": "text", "text": "It is 4." }]);
    for (delta, more) in [
        (json!({ "content": parts }), vec![]),
        (
            json!({ "content": [{ "type": "text", "text": "It is " }, "4."] }),
            vec![],
        ),
        (
            json!({ "content": { "type": "text", "text": "It is 4." } }),
            vec![],
        ),
        (json!({ "content": "<think>musing</think>\n\nIt is 4." }), vec![]),
        (
            json!({ "content": "<th" }),
            vec![
                json!({ "content": "ink>musing</thi" }),
                json!({ "content": "nk>It is" }),
                json!({ "content": " 4." }),
            ],
        ),
        (json!({ "content": "musing\n</think>\n\nIt is 4." }), vec![]),
        (
            json!({ "reasoning_content": "musing" }),
            vec![json!({ "content": "It is 4." })],
        ),
        (
            json!({ "reasoning": "musing", "content": null }),
            vec![json!({ "content": "It is 4.", "reasoning": null })],
        ),
    ] {
        let events: String = std::iter::once(&delta)
            .chain(&more)
            .map(|delta| format!("data: {}\n\n", chunk(delta.clone())))
            .collect();
        let events = format!("{events}data: {}\n\n", end("stop"));
        let (answer, told) = answered("text/event-stream", events.as_bytes(), true).await;
        let answer = answer.unwrap_or_else(|error| panic!("{events}: {error}"));
        assert_eq!(
            (answer.text.as_str(), told.as_str()),
            ("It is 4.", "It is 4."),
            "{events}"
        );
    }
    // JSON has no half characters; servers write them all the same.
    let half = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
    let events = format!(
        "{}{}{}data: {}\n\n",
        half("Hi \\ud83d"),
        half("\\ude00!"),
        half(" cut \\ud83d"),
        end("stop")
    );
    let answer = answered("text/event-stream", events.as_bytes(), true)
        .await
        .0
        .unwrap();
    assert_eq!(answer.text, "Hi 😀! cut \u{fffd}");
    let found = calls(&[piece(
        0.into(),
        "a".into(),
        "one".into(),
        "{\"path\":\"a.txt\",\"text\":\"cut \\ud83d\"}".into(),
    )])
    .await;
    assert_eq!(found[0].1, json!({ "path": "a.txt", "text": "cut \u{fffd}" }));
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
async fn errors_in_the_place_of_an_answer_are_told() {
    let sse = "text/event-stream";
    let json_kind = "application/json";
    let data = |value: Value| format!("data: {value}\n\n");
    let part = data(serde_json::from_str(&chunk(json!({ "content": "par" }))).unwrap());
    for (name, kind, body, fault) in [
        (
            "an error behind words",
            sse,
            part.clone() + &data(json!({ "error": { "message": "overloaded", "code": 502 } })),
            FaultKind::ServerFault,
        ),
        (
            "an error's event",
            sse,
            "event: error\ndata: {\"message\":\"slow down\",\"type\":\"rate_limit_error\"}\n\n".to_owned(),
            FaultKind::RateLimited,
        ),
        (
            "an error in words",
            sse,
            data(json!({ "error": "upstream is gone" })),
            FaultKind::ServerFault,
        ),
        (
            "an object that is an error",
            sse,
            data(json!({ "object": "error", "message": "prompt is too long", "code": 400 })),
            FaultKind::ContextTooLong,
        ),
        (
            "a type that is an error",
            json_kind,
            json!({ "type": "error", "error": { "type": "authentication_error", "message": "no" } })
                .to_string(),
            FaultKind::Auth,
        ),
        (
            "a list with an error",
            json_kind,
            json!([{ "error": { "code": 400, "message": "bad", "status": "INVALID_ARGUMENT" } }]).to_string(),
            FaultKind::Rejected,
        ),
        (
            "several errors",
            json_kind,
            json!({ "success": false, "errors": [{ "message": "no route", "code": 7000 }] }).to_string(),
            FaultKind::ServerFault,
        ),
        (
            "a detail",
            json_kind,
            json!({ "detail": "Not ready" }).to_string(),
            FaultKind::ServerFault,
        ),
        (
            "MiniMax",
            json_kind,
            json!({ "choices": null, "base_resp": { "status_code": 1004, "status_msg": "login fail" } })
                .to_string(),
            FaultKind::ServerFault,
        ),
        (
            "a choice with an error",
            sse,
            part.clone()
                + &data(
                    json!({ "choices": [{ "delta": {}, "finish_reason": "error", "error": { "code": 429, "message": "busy" } }] }),
                ),
            FaultKind::RateLimited,
        ),
        (
            "finish_reason error",
            sse,
            part.clone() + &data(serde_json::from_str(&end("error")).unwrap()),
            FaultKind::ServerFault,
        ),
        (
            "finish_reason network_error",
            sse,
            part.clone() + &data(serde_json::from_str(&end("network_error")).unwrap()),
            FaultKind::ServerFault,
        ),
        (
            "words in the place of a chunk",
            sse,
            "data: Internal Server Error\n\n".to_owned(),
            FaultKind::Malformed,
        ),
        ("nothing at all", sse, String::new(), FaultKind::Cut),
        (
            "comments alone",
            sse,
            ": ping\n\n: ping\n\n".to_owned(),
            FaultKind::Cut,
        ),
        (
            "a web page",
            "text/html",
            "<!DOCTYPE html><html><title>Sign in</title></html>".to_owned(),
            FaultKind::Rejected,
        ),
        (
            "a web page as a stream of events",
            sse,
            "\n <html>login</html>".to_owned(),
            FaultKind::Rejected,
        ),
        (
            "cut in the middle",
            sse,
            part.clone() + "data: {\"choices\":[{\"de",
            FaultKind::Cut,
        ),
    ] {
        for streaming in [true, false] {
            let failed = answered(kind, body.as_bytes(), streaming).await.0;
            let failed = failed.err().unwrap_or_else(|| panic!("{name}: no error"));
            assert_eq!(failed.kind, fault, "{name}: {failed}");
            // What went and came is counted, and not more.
            let usage = failed.usage.unwrap_or_else(|| panic!("{name}: no usage"));
            assert!(
                usage.input_tokens > 10 && usage.input_tokens < 500 && usage.output_tokens < 100,
                "{name}: {usage:?}"
            );
        }
    }
    let filtered = format!("{part}data: {}\n\n", end("content_filter"));
    let answer = answered(sse, filtered.as_bytes(), true).await.0.unwrap();
    assert_eq!((answer.text.as_str(), answer.stop), ("par", StopReason::Refusal));
    // A call that a filter has stopped is not run.
    let call = chunk(json!({ "tool_calls": piece(0.into(), "a".into(), "one".into(), "{}".into()) }));
    let filtered = format!("data: {call}\n\ndata: {}\n\n", end("content_filter"));
    assert!(
        answered(sse, filtered.as_bytes(), true)
            .await
            .0
            .unwrap()
            .calls
            .is_empty()
    );
}

#[tokio::test]
async fn cached_tokens_are_counted_by_every_name() {
    for usage in [
        json!({ "prompt_tokens": 100, "completion_tokens": 9, "prompt_tokens_details": { "cached_tokens": 80 } }),
        json!({ "prompt_tokens": 100, "completion_tokens": 9, "prompt_cache_hit_tokens": 80, "prompt_cache_miss_tokens": 20 }),
        json!({ "prompt_tokens": 100, "completion_tokens": 9, "cached_tokens": 80 }),
        json!({ "prompt_tokens": 100, "completion_tokens": 9, "cache_read_input_tokens": 80 }),
        json!({ "input_tokens": 100, "output_tokens": 9, "input_tokens_details": { "cached_tokens": 80 } }),
    ] {
        let body = json!({ "choices": [{ "message": { "content": "hi" }, "finish_reason": "stop" }], "usage": usage });
        let answer = answered("application/json", body.to_string().as_bytes(), false)
            .await
            .0
            .unwrap();
        let found = (
            answer.usage.input_tokens,
            answer.usage.output_tokens,
            answer.usage.cached_tokens,
        );
        assert_eq!(found, (100, 9, 80), "{usage}");
    }
    // More than was read did not come from a cache: it would be cheaper than nothing.
    let usage = json!({ "prompt_tokens": 100, "completion_tokens": 9, "cached_tokens": 900 });
    let body = json!({ "choices": [{ "message": { "content": "hi" } }], "usage": usage });
    let answer = answered("application/json", body.to_string().as_bytes(), false)
        .await
        .0
        .unwrap();
    assert_eq!(answer.usage.cached_tokens, 100);
}
