//! What comes in on standard input is wrong, too long, too deep: each gets its error, and the connection goes on.

use serde_json::{Value, json};

use crate::agent::{Agent, allow, manifest, of, scripted};
use crate::wire::{Wire, call, hello, text};

fn echoing() -> Agent {
    let agent = Agent::new();
    agent.write("script.yaml", "scenes: [{ steps: [{ say: nothing }] }]\n");
    let tools = json!([{ "inline": { "name": "echo", "description": "Says it again",
        "input_schema": { "type": "object", "required": ["text"], "properties": { "text": {} } } } }]);
    agent.is(&manifest(&scripted(), &tools, &json!([allow("echo")])), "");
    agent
}

#[test]
fn lines_that_are_no_messages_are_answered_and_the_next_one_is_served() {
    let agent = echoing();
    let mut wire = Wire::open(&agent);
    let deep =
        |open: &str, close: &str| format!("{}{}\n", open.repeat(10_000), close.repeat(10_000)).into_bytes();
    let mut huge = vec![b'x'; 9 << 20];
    huge.push(b'\n');
    let mut huge_json = br#"{"jsonrpc":"2.0","id":5,"method":"claw.status","params":{"x":""#.to_vec();
    huge_json.resize(9 << 20, b'y');
    huge_json.extend(b"\"}}\n");
    let cases: [(&str, Vec<u8>, i64); 9] = [
        ("no JSON", b"hello there\n".to_vec(), -32700),
        ("cut JSON", b"{\"jsonrpc\":\"2.0\",\"id\":1,\n".to_vec(), -32700),
        (
            "invalid UTF-8",
            b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\xfe\"}\n".to_vec(),
            -32700,
        ),
        ("an empty batch", b"[]\n".to_vec(), -32600),
        (
            "no request",
            b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"claw.status\"}\n".to_vec(),
            -32600,
        ),
        ("9 MiB of nothing", huge, -32600),
        ("a 9 MiB request", huge_json, -32600),
        ("10,000 arrays", deep("[", "]"), -32700),
        (
            "10,000 objects",
            deep("{\"a\":", "}").into_iter().collect(),
            -32700,
        ),
    ];
    for (what, bytes, code) in cases {
        wire.write(&bytes);
        let answer = wire.answer(&Value::Null);
        assert_eq!(answer["error"]["code"], code, "{what}: {answer}");
        let said = answer["error"]["message"].as_str().expect("a message");
        assert!(!said.is_empty() && said.len() < 1000, "{what}: {said}");
        let echoed = wire.call("echo", &json!({ "text": what }));
        assert_eq!(text(&echoed), what);
    }
    assert!(wire.close().success());
    assert_eq!(
        of(&agent.events(), "action.executed").len(),
        9,
        "every call is in the trace, and nothing else"
    );
}

#[test]
fn arguments_10_000_deep_never_reach_a_tool() {
    let agent = echoing();
    let mut wire = Wire::open(&agent);
    let (params, _) = call("echo", &json!({ "text": "HERE" }));
    let deep = format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000));
    let line = json!({ "jsonrpc": "2.0", "id": "deep", "method": "claw.tool.call", "params": params })
        .to_string()
        .replace("\"HERE\"", &deep);
    wire.write(format!("{line}\n").as_bytes());
    let answer = wire.answer(&Value::Null);
    assert_eq!(answer["error"]["code"], -32700, "{answer}");
    assert_eq!(text(&wire.call("echo", &json!({ "text": "well" }))), "well");
    assert!(wire.close().success());
}

#[test]
fn unknown_members_are_tolerated_on_the_wire_and_errors_in_a_manifest() {
    let agent = echoing();
    let mut wire = Wire::open(&agent);
    let (mut params, _) = call("echo", &json!({ "text": "kept" }));
    params["novelty"] = json!({ "from": "a later revision" });
    assert_eq!(text(&wire.ask("claw.tool.call", &params)), "kept");
    let mut wrong = manifest(&scripted(), &json!([]), &json!([]));
    wrong["spec"]["identity"]["inline"]["autonomi"] = json!("autonomous");
    let answer = wire.ask("claw.initialize", &hello(wrong.clone()));
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(answer.to_string().contains("autonomi"), "it is named: {answer}");
    assert_eq!(wire.ask("claw.status", &json!({}))["result"]["state"], "READY");
    assert!(wire.close().success());

    agent.write("wrong.yaml", &wrong.to_string());
    let done = agent.clawk(&["validate", "wrong.yaml"]);
    assert_eq!(done.status.code(), Some(1));
    let said = done.stdout + &done.stderr;
    assert!(
        said.contains("autonomi") && said.contains("did you mean"),
        "{said}"
    );
}
