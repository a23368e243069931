//! A tool of a real MCP server that a rule asks for, answered from another process.

use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, ask, in_order, manifest, of, scripted};
use crate::parts::{part, stdio};
use crate::process::until;
use crate::wire::{Wire, call, text};

/// The tool `current-time`, which is the PyPI time server's `get_current_time`.
pub(crate) fn current_time() -> Value {
    json!({ "inline": { "name": "current-time", "description": "Get the current time in a timezone",
        "mcp_source": { "uri": stdio(&part("py/bin/mcp-server-time"), &[]), "tool_name": "get_current_time" },
        "input_schema": { "type": "object", "required": ["timezone"],
            "properties": { "timezone": { "type": "string", "description": "For example Europe/Zurich" } } } } })
}

#[test]
fn another_process_says_yes_and_another_no() {
    let agent = Agent::new();
    agent.write("script.yaml", "scenes: [{ steps: [{ say: nothing }] }]\n");
    let tools = json!([current_time()]);
    agent.is(&manifest(&scripted(), &tools, &json!([ask("current-time")])), "");
    let mut wire = Wire::open(&agent);

    let (params, request) = call("current-time", &json!({ "timezone": "UTC" }));
    let id = wire.send("claw.tool.call", &params);
    waits(&agent, &request);
    agent
        .clawk(&[
            "approve",
            &request,
            "--state",
            &state(&agent),
            "--reason",
            "it is only the time",
        ])
        .ok();
    let answer = wire.answer(&json!(id));
    assert!(text(&answer).contains("datetime"), "{answer}");

    let (params, request) = call("current-time", &json!({ "timezone": "UTC" }));
    let id = wire.send("claw.tool.call", &params);
    waits(&agent, &request);
    agent
        .clawk(&[
            "deny",
            &request,
            "--state",
            &state(&agent),
            "--reason",
            "not twice",
        ])
        .ok();
    assert_eq!(wire.answer(&json!(id))["error"]["code"], -32013);
    assert!(wire.close().success());

    let events = agent.events();
    in_order(
        &events,
        &[
            "action.requested",
            "ckp.approval.requested",
            "ckp.approval.answered",
            "action.approved",
            "action.executed",
            "ckp.approval.answered",
            "action.denied",
        ],
    );
    let answers = of(&events, "ckp.approval.answered");
    let facts: Vec<_> = answers
        .iter()
        .map(|answered| (&answered["answer"], &answered["reason"]))
        .collect();
    assert_eq!(
        facts,
        [
            // What they said is in the content.
            (&json!("approve"), &json!("in_content")),
            (&json!("deny"), &json!("in_content"))
        ]
    );
    for answered in answers {
        let by = answered["by"].as_str().expect("somebody");
        assert!(
            !by.is_empty() && by != "policy",
            "who answered is recorded: {answered}"
        );
    }
}

fn state(agent: &Agent) -> String {
    agent.state().display().to_string()
}

/// Until `clawk approvals` shows the question, with the rule that asks.
fn waits(agent: &Agent, request: &str) {
    let listed = until(Duration::from_secs(60), "no question waits", || {
        let listed = agent
            .clawk(&["approvals", "--state", &state(agent), "--format", "json"])
            .ok();
        let listed: Value = serde_json::from_str(&listed.stdout).expect("JSON");
        let questions = listed["approvals"].as_array().expect("a list").clone();
        questions
            .into_iter()
            .find(|question| question["request_id"] == request)
    });
    assert_eq!(listed["tool"], "current-time");
    assert_eq!(listed["rule_id"], "ask-current-time");
}
