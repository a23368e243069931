//! Tests: handshakes, lists, schemas, lines and results in the forms that real servers send.

use std::time::{Duration, Instant};

use clawk_kernel::ports::ToolRunner as _;
use serde_json::{Value, json};

use super::tests::{Bench, tools};
use crate::testing::{Ran, open_plan, runner, text};

/// A server that gives these answers, and its tools.
fn shaped_bench(shapes: Value, config: &str) -> Bench {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("shapes.json");
    std::fs::write(&file, shapes.to_string()).expect("written");
    let option = format!("shapes={}", file.display());
    let runner = runner(tools(&["srv"], &[&option]), config, dir.path());
    Bench {
        dir,
        runner,
        ran: Ran::new(open_plan()),
    }
}

#[tokio::test]
async fn a_line_that_cannot_be_read_answers_its_own_call_at_once() {
    let tool = json!({"name": "t", "inputSchema": {"type": "object"}});
    for (line, want) in [
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[tru]}}"#,
            "can't be read",
        ),
        (
            r#"{"jsonrpc":"2.0","result":{"content":[{]},"id":$ID}"#,
            "can't be read",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"x \ud83d y"}]}}"#,
            "x \u{fffd} y",
        ),
        (
            r#"{"jsonrpc":"2.0","id":"$ID","result":{"content":[{"type":"text","text":"by text"}]}}"#,
            "by text",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID.0,"result":{"content":[{"type":"text","text":"by number"}]}}"#,
            "by number",
        ),
        (
            r#"{"id":$ID,"result":{"content":[{"type":"text","text":"no version"}]}}"#,
            "no version",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"error":"out of luck"}"#,
            "out of luck",
        ),
        (
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":"E1","message":"nobody's"}}"#,
            "nobody's",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32602,"message":null,"data":"why"}}"#,
            "why",
        ),
        (
            r#"[{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"in a batch"}]}}]"#,
            "in a batch",
        ),
        (
            r#"ready {"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"after words"}]}}"#,
            "after words",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"n"}],"structuredContent":{"a":NaN}}}"#,
            "n",
        ),
        (
            r#"{"jsonrpc":"2.0","id":$ID,"result":"only words"}"#,
            "only words",
        ),
        (r#"{"jsonrpc":"2.0","id":$ID}"#, "answered with nothing"),
    ] {
        let bench = shaped_bench(json!({"tools": [tool], "line": line}), "{}");
        let names = bench
            .runner
            .takes_over("srv")
            .await
            .expect("listed")
            .expect("taken over");
        assert_eq!(names, ["srv-t"]);
        let started = Instant::now();
        let said = bench.call("srv-t", json!({})).await.expect(line);
        assert!(text(&said).contains(want), "{line}: {}", text(&said));
        assert!(started.elapsed() < Duration::from_secs(10), "{line}");
        bench.runner.close().await;
    }
}

#[tokio::test]
async fn one_odd_tool_costs_itself_alone() {
    let fine = json!({"name": "fine", "inputSchema": {"type": "object"}});
    let long = "x".repeat(2_000);
    let big = json!({"type": "object", "properties": {"a": {"description": "y".repeat(70_000)}}});
    let odd = json!([null, 1, "x", [], {}, {"name": ""}, {"name": null}, {"name": long}, {"name": "fine"},
        {"name": "hints", "annotations": {"destructiveHint": "yes", "readOnlyHint": true, "x": 1}},
        {"name": "bare"}, {"name": "nulls", "description": null, "inputSchema": null, "annotations": null},
        {"name": 7, "inputSchema": []}, {"name": "big", "inputSchema": big, "description": "d".repeat(9_000)},
        {"name": "hidden", "description": "a\u{200b}b \u{202e}c\u{e0041} ⚠\u{fe0f} line\nnext"}]);
    let mut all = vec![fine];
    all.extend(odd.as_array().cloned().expect("a list"));
    let bench = shaped_bench(json!({"tools": all}), r#"{"srv": {"trust_annotations": true}}"#);
    let names = bench
        .runner
        .takes_over("srv")
        .await
        .expect("listed")
        .expect("taken over");
    assert_eq!(
        names,
        [
            "srv-7",
            "srv-bare",
            "srv-big",
            "srv-fine",
            "srv-hidden",
            "srv-hints",
            "srv-nulls"
        ]
    );
    let hints = bench.runner.describe_tool("srv-hints").await.expect("described");
    assert_eq!(
        Value::Object(hints.trusted_annotations),
        json!({"readOnlyHint": true})
    );
    let big = bench.runner.describe_tool("srv-big").await.expect("described");
    assert!(big.description.len() < 4_200 && big.description.ends_with("[cut at 4096 bytes]"));
    assert_eq!(big.input_schema, Value::Null, "70 KB of schema are not shown");
    let hidden = bench
        .runner
        .describe_tool("srv-hidden")
        .await
        .expect("described")
        .description;
    assert_eq!(hidden, "a⟨U+200B⟩b ⟨U+202E⟩c⟨U+E0041⟩ ⚠\u{fe0f} line\nnext");
}

#[tokio::test]
async fn lists_in_every_form_end() {
    let tool = |name: &str| json!({"name": name, "inputSchema": {"type": "object"}});
    for (pages, want) in [
        (json!([{"tools": [tool("a")], "nextCursor": ""}]), 1),
        (json!([{"tools": [tool("a")], "nextCursor": null}]), 1),
        (
            json!([{"tools": [tool("a")], "nextCursor": 1}, {"tools": [tool("b")]}]),
            2,
        ),
        (
            json!([{"tools": [tool("a")], "nextCursor": "1"}, {"tools": [], "nextCursor": "2"}, {"tools": [tool("c")]}]),
            2,
        ),
        (json!([{"tools": [tool("a")], "nextCursor": "0"}]), 1),
        (
            json!([{"tools": [tool("a")], "nextCursor": "1"}, {"tools": [tool("b")], "nextCursor": "0"}]),
            2,
        ),
        (json!([{"tools": {"a": {"inputSchema": {}}, "b": {}}}]), 2),
        (json!([[tool("a"), tool("b")]]), 2),
        (json!([{"tools": null}]), 0),
        (json!([{}]), 0),
        (
            json!([{"tools": [tool("a")], "nextCursor": "1"}, "not a page"]),
            1,
        ),
    ] {
        let bench = shaped_bench(json!({"pages": pages}), "{}");
        let names = bench
            .runner
            .takes_over("srv")
            .await
            .expect("listed")
            .expect("taken over");
        assert_eq!(names.len(), want, "{pages}: {names:?}");
        bench.runner.close().await;
    }
}

#[tokio::test]
async fn handshakes_in_every_form_begin_a_session() {
    for handshake in [
        json!({"protocolVersion": "2031-01-01", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}),
        json!({"protocolVersion": 20241105, "capabilities": [], "serverInfo": {"name": "n", "version": 1}}),
        json!({"protocolVersion": "2026-07-28", "capabilities": {"tools": [], "logging": []}, "serverInfo": null}),
        json!({"capabilities": {"tools": true, "experimental": {"a": 1}}}),
        json!({"protocolVersion": "2024-11-05", "capabilities": {"tools": {"listChanged": "yes"}}, "serverInfo": {}}),
        json!({"protocolVersion": "2025-06-18", "capabilities": null, "instructions": ["x"], "serverInfo": {"name": "n"}}),
        json!({}),
    ] {
        let bench = shaped_bench(
            json!({"initialize": handshake, "before": ["{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":null}",
                "INFO started", "", "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}"], "tools": [{"name": "t"}]}),
            "{}",
        );
        let names = bench.runner.takes_over("srv").await;
        assert_eq!(
            names.expect("listed").expect("taken over"),
            ["srv-t"],
            "{handshake}"
        );
        bench.runner.close().await;
    }
}

#[tokio::test]
async fn resources_and_prompts_are_tools_of_the_server() {
    let shapes = json!({"tools": [{"name": "t"}],
        "initialize": {"capabilities": {"tools": {}, "resources": {}, "prompts": {}}},
        "results": {
            "resources/list": {"resources": [{"uri": "note://a", "name": "A", "description": "First\u{200b}"}, 7]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "note://{id}", "name": "any"}]},
            "resources/read": {"contents": [{"uri": "note://a", "mimeType": "text/plain", "text": "the words"}]},
            "prompts/list": {"prompts": [{"name": "review", "arguments": [{"name": "code", "required": true}, {"name": "style"}]}]},
            "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "Review it"}}]}}});
    let bench = shaped_bench(shapes, "{}");
    let names = bench
        .runner
        .takes_over("srv")
        .await
        .expect("listed")
        .expect("taken over");
    assert_eq!(names, ["srv-prompt-get", "srv-resource-read", "srv-t"]);
    let about = bench
        .runner
        .describe_tool("srv-resource-read")
        .await
        .expect("described");
    assert!(
        about.description.contains("- note://a: First⟨U+200B⟩"),
        "{}",
        about.description
    );
    assert!(about.trusted_annotations.is_empty(), "nobody trusts the server");
    let read = bench
        .call("srv-resource-read", json!({"uri": "note://a"}))
        .await
        .expect("read");
    assert_eq!(text(&read), "[resource note://a]\nthe words");
    let listed = bench.call("srv-resource-read", json!({})).await.expect("listed");
    assert!(text(&listed).contains("note://{id}"), "{}", text(&listed));
    let about = bench
        .runner
        .describe_tool("srv-prompt-get")
        .await
        .expect("described");
    assert!(
        about.description.contains("- review (code, style?)"),
        "{}",
        about.description
    );
    let got = bench
        .call(
            "srv-prompt-get",
            json!({"name": "review", "arguments": {"code": "x"}}),
        )
        .await;
    assert_eq!(text(&got.expect("got")), "[user]\nReview it");
}
