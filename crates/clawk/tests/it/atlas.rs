//! `clawk atlas` and `clawk resolve`: what is found, what is answered, and a trace that verifies.

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::{Value, json};

use crate::agent::Agent;

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/atlas");
const NOW: &str = "2026-01-05T12:00:00Z";

fn put(agent: &Agent, name: &str, value: &Value) {
    let path = agent.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, value.to_string()).unwrap();
}

fn manifest(id: &str, action: &str) -> Value {
    json!({
        "atlas_version": "1.0", "atlas_id": id, "version": "1.0.0", "name": "Tested", "description": "For tests",
        "actions": [{ "action_id": action, "name": "It", "description": "Does it" }],
    })
}

fn request(capabilities: &[&str]) -> Value {
    let text = std::fs::read_to_string(format!("{EXAMPLE}/request.json")).unwrap();
    let mut request: Value = serde_json::from_str(&text).unwrap();
    request["task"]["required_capabilities"] = json!(capabilities);
    request
}

fn told<const N: usize>(agent: &Agent, args: [&str; N], code: i32) -> Value {
    let output = agent.clawk(args).assert().code(code).get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

/// Resolves against the one Atlas of a folder.
fn resolution(agent: &Agent, atlas: &str, request: &Value) -> Value {
    put(agent, "asked.json", request);
    let args = [
        "resolve",
        "--atlas",
        atlas,
        "--request",
        "asked.json",
        "--now",
        NOW,
        "--format",
        "json",
    ];
    told(agent, args, 0)
}

fn ids(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap();
    list.iter()
        .map(|one| one["action_id"].as_str().unwrap())
        .collect()
}

#[test]
fn the_example_is_valid_without_a_warning() {
    let agent = Agent::new();
    let report = told(&agent, ["atlas", "validate", EXAMPLE, "--format", "json"], 0);
    let one = &report["atlases"][0];
    assert_eq!(report["valid"], true);
    assert_eq!(one["atlas_id"], "com.example.library");
    assert_eq!((&one["errors"], &one["warnings"]), (&json!([]), &json!([])));
    agent
        .clawk(["atlas", "validate", EXAMPLE])
        .assert()
        .success()
        .stdout(contains("is valid: com.example.library 1.2.0"));
}

#[test]
fn everything_wrong_is_said_at_once_with_its_pointer_and_a_cure() {
    let agent = Agent::new();
    let mut bad = manifest("com.example.bad", "do.it");
    bad["versoin"] = json!("1");
    bad["actions"][0]["risk_tier"] = json!("hihg");
    bad["actions"][0]["name"] = Value::Null;
    put(&agent, "bad/atlas.json", &bad);
    let report = told(&agent, ["atlas", "validate", "bad", "--format", "json"], 1);
    let errors = report["atlases"][0]["errors"].as_array().unwrap();
    let paths: Vec<&str> = errors
        .iter()
        .map(|error| error["path"].as_str().unwrap())
        .collect();
    for path in ["/versoin", "/actions/0/risk_tier", "/actions/0/name"] {
        assert!(paths.contains(&path), "{path}: {paths:?}");
    }
    agent
        .clawk(["atlas", "validate", "bad", EXAMPLE])
        .assert()
        .code(1)
        .stdout(
            contains("/versoin: unknown field `versoin` (did you mean `version`?)")
                .and(contains("bad is not valid"))
                .and(contains("is valid: com.example.library")),
        );
    agent
        .clawk(["atlas", "validate", "nowhere"])
        .assert()
        .code(1)
        .stdout(contains("nowhere").and(contains("give a folder")));
    agent
        .clawk(["atlas", "show", "bad"])
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("/actions/0/risk_tier"));
}

#[test]
fn atlases_are_checked_together() {
    let agent = Agent::new();
    put(&agent, "one/atlas.json", &manifest("com.example.one", "do.it"));
    let mut two = manifest("com.example.two", "do.it");
    two["dependencies"] = json!({ "com.example.one": "^2", "com.example.three": "^1" });
    put(&agent, "two/atlas.json", &two);
    let report = told(&agent, ["atlas", "validate", "one", "two", "--format", "json"], 1);
    let codes = |list: &Value| -> Vec<String> {
        let list = list.as_array().unwrap();
        list.iter()
            .map(|one| one["code"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(
        codes(&report["together"]["errors"]),
        ["dependency", "action_twice"]
    );
    assert_eq!(codes(&report["together"]["warnings"]), ["missing_dependency"]);
    agent
        .clawk(["resolve", "--atlas", "one", "two", "--request", "none.json"])
        .assert()
        .code(1)
        .stderr(contains("com.example.three"));
    // One that needs another is fine alone.
    agent
        .clawk(["atlas", "validate", "two"])
        .assert()
        .success()
        .stdout(contains("warning[missing_dependency]"));
}

#[test]
fn show_has_policies_in_the_order_of_evaluation() {
    let agent = Agent::new();
    let shown = told(&agent, ["atlas", "show", EXAMPLE, "--format", "json"], 0);
    let policies = shown["policies"].as_array().unwrap();
    let kinds: Vec<&str> = policies
        .iter()
        .map(|policy| policy["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["deny", "require_approval", "rate_limit", "allow", "allow"]
    );
    assert_eq!(policies[4]["conditions"], json!({ "agents": ["desk-*"] }));
    assert_eq!(
        policies[2]["limit"],
        json!({ "max_calls": 20, "window_seconds": 3600 })
    );
    assert_eq!(shown["actions"][1]["risk_tier"], "critical");
    assert_eq!(
        shown["context_packs"][0]["blocks"],
        json!(["house-rules/context/house-rules.md"])
    );

    // Higher priority first, whatever the manifest's order.
    let mut sorted = manifest("com.example.sorted", "do.it");
    sorted["policies"] = json!([
        { "policy_id": "late", "type": "deny" },
        { "policy_id": "early", "type": "deny", "priority": 5, "conditions": { "risk_tiers": ["high", "low"] } },
    ]);
    sorted["dependencies"] = json!({ "com.example.other": "^1.2" });
    put(&agent, "sorted/atlas.json", &sorted);
    let shown = told(&agent, ["atlas", "show", "sorted", "--format", "json"], 0);
    assert_eq!(shown["policies"][0]["policy_id"], "early");
    assert_eq!(
        shown["policies"][0]["conditions"],
        json!({ "risk_tiers": ["low", "high"] })
    );
    assert_eq!(shown["dependencies"], json!({ "com.example.other": "^1.2" }));
    agent.clawk(["atlas", "show", EXAMPLE]).assert().success().stdout(
        contains("critical")
            .and(contains("records-stay"))
            .and(contains("house-rules: priority 200")),
    );
}

#[test]
fn the_example_resolves_in_part() {
    let agent = Agent::new();
    let resolution = resolution(&agent, EXAMPLE, &request(&[]));
    assert_eq!(resolution["decision"]["type"], "partial");
    assert_eq!(
        ids(&resolution["allowed_actions"]),
        ["catalogue.search", "reader.read", "loan.extend"]
    );
    assert_eq!(
        ids(&resolution["denied_actions"]),
        ["catalogue.delete", "fee.waive"]
    );
    assert_eq!(resolution["timestamp"], "2026-01-05T12:00:00.000000Z");
    agent
        .clawk(["resolve", "--atlas", EXAMPLE, "--request", "-"])
        .write_stdin(request(&[]).to_string())
        .assert()
        .success()
        .stdout(
            contains("partial: 3 of 5 actions are allowed")
                .and(contains("records of the library"))
                .and(contains("policy `money-is-asked-for`"))
                .and(contains("not-too-many-loans")),
        );
}

#[test]
fn allow_deny_and_approval() {
    let agent = Agent::new();
    for (policies, decision) in [
        (json!([{ "policy_id": "p", "type": "allow" }]), "allow"),
        (
            json!([{ "policy_id": "p", "type": "deny", "parameters": { "reason": "no" } }]),
            "deny",
        ),
        (
            json!([{ "policy_id": "p", "type": "require_approval" }]),
            "requires_approval",
        ),
    ] {
        let mut atlas = manifest("com.example.one", "do.it");
        atlas["policies"] = policies;
        put(&agent, "one/atlas.json", &atlas);
        let resolution = resolution(&agent, "one", &request(&[]));
        assert_eq!(resolution["decision"]["type"], decision);
        let asks = resolution["decision"]["approval_id"].is_string();
        assert_eq!(asks, decision == "requires_approval");
    }
}

#[test]
fn strict_denies_what_no_policy_mentions() {
    let agent = Agent::new();
    put(&agent, "one/atlas.json", &manifest("com.example.one", "do.it"));
    assert_eq!(
        resolution(&agent, "one", &request(&[]))["decision"]["type"],
        "allow"
    );
    let args = [
        "resolve",
        "--atlas",
        "one",
        "--request",
        "asked.json",
        "--strict",
        "--format",
        "json",
    ];
    assert_eq!(told(&agent, args, 0)["decision"]["type"], "deny");
}

#[test]
fn the_time_that_is_given_decides() {
    let agent = Agent::new();
    let mut atlas = manifest("com.example.one", "do.it");
    let window = json!({ "start": "09:00", "end": "17:00", "timezone": "UTC" });
    atlas["policies"] =
        json!([{ "policy_id": "p", "type": "allow", "conditions": { "time_window": window } }]);
    put(&agent, "one/atlas.json", &atlas);
    put(&agent, "asked.json", &request(&[]));
    for (now, decision) in [(NOW, "allow"), ("2026-01-05T20:00:00Z", "deny")] {
        let args = [
            "resolve",
            "--atlas",
            "one",
            "--request",
            "asked.json",
            "--now",
            now,
            "--format",
            "json",
        ];
        assert_eq!(told(&agent, args, 0)["decision"]["type"], decision);
    }
    agent
        .clawk([
            "resolve",
            "--atlas",
            "one",
            "--request",
            "asked.json",
            "--now",
            "noon",
        ])
        .assert()
        .code(2)
        .stderr(contains("RFC 3339"));
}

#[test]
fn a_request_that_is_wrong_is_refused_with_pointers() {
    let agent = Agent::new();
    let mut wrong = request(&[]);
    wrong["requester"]["session_id"] = json!("none");
    wrong.as_object_mut().unwrap().remove("task");
    put(&agent, "asked.json", &wrong);
    let args = [
        "resolve",
        "--atlas",
        EXAMPLE,
        "--request",
        "asked.json",
        "--trace",
        "out.jsonl",
    ];
    agent
        .clawk(args)
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("/requester/session_id").and(contains("/task")));
    let mut other = request(&[]);
    other["operation"] = json!("validate");
    put(&agent, "asked.json", &other);
    agent
        .clawk(args)
        .assert()
        .code(1)
        .stderr(contains("only `resolve`"));
    let mut unknown = request(&[]);
    unknown["atlas_ids"] = json!(["com.example.nowhere"]);
    put(&agent, "asked.json", &unknown);
    agent
        .clawk(args)
        .assert()
        .code(1)
        .stderr(contains("no such Atlas: com.example.nowhere"));
    assert!(!agent.path("out.jsonl").exists(), "no resolution, no trace");
}

#[test]
fn the_trace_verifies_and_has_the_order_of_the_protocol() {
    let agent = Agent::new();
    put(&agent, "asked.json", &request(&["lending"]));
    let args = [
        "resolve",
        "--atlas",
        EXAMPLE,
        "--request",
        "asked.json",
        "--trace",
        "out.trace.jsonl",
        "--format",
        "json",
    ];
    let resolution = told(&agent, args, 0);
    agent
        .clawk(["trace", "verify", "out.trace.jsonl"])
        .assert()
        .success();
    let text = std::fs::read_to_string(agent.path("out.trace.jsonl")).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let types: Vec<&str> = events
        .iter()
        .map(|event| event["event_type"].as_str().unwrap())
        .collect();
    let expected = [
        "session.started",
        "carp.request.received",
        "policy.evaluated",
        "policy.evaluated",
        "context.injected",
        "context.injected",
        "carp.resolution.completed",
        "session.ended",
    ];
    assert_eq!(types, expected);
    let payload = |at: usize| &events[at]["payload"];
    assert_eq!(payload(0)["agent_id"], "desk-1");
    assert_eq!(payload(1)["required_capabilities"], json!(["lending"]));
    assert_eq!(payload(1)["risk_tier"], "medium");
    assert_eq!(payload(1).get("context"), None, "what was not given is left out");
    assert_eq!(
        payload(2),
        &json!({ "action_id": "loan.extend", "policy_id": "lending-at-the-desk", "result": "allow" })
    );
    assert_eq!(
        payload(3),
        &json!({ "action_id": "fee.waive", "policy_id": "money-is-asked-for", "result": "deny" })
    );
    let blocks = resolution["context_blocks"].as_array().unwrap();
    for (at, block) in blocks.iter().enumerate() {
        assert_eq!(payload(4 + at)["block_id"], block["block_id"]);
        assert_eq!(payload(4 + at)["token_count"], block["token_estimate"]);
    }
    assert_eq!(payload(6)["resolution_id"], resolution["resolution_id"]);
    assert_eq!(
        (&payload(6)["allowed_count"], &payload(6)["denied_count"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(payload(7)["reason"], "completed");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["trace_id"], resolution["trace_id"]);
        assert_eq!(event["session_id"], "0194362f-7a00-7c31-9d58-3b1f0a6c2e10");
        assert_eq!(event["parent_span_id"].is_null(), at == 0);
    }

    // One changed word, and the proof fails.
    std::fs::write(
        agent.path("out.trace.jsonl"),
        text.replace("\"deny\"", "\"allow\""),
    )
    .unwrap();
    agent
        .clawk(["trace", "verify", "out.trace.jsonl"])
        .assert()
        .code(1);
}
