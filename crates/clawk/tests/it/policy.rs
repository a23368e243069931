//! `clawk policy`: explanations that agree with what then happens, tests beside policies, the past under other rules.

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use crate::agent::{Agent, text};

fn json<const N: usize>(agent: &Agent, args: [&str; N]) -> Value {
    let output = agent.clawk(args).assert().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

fn explain(agent: &Agent, tool: &str, arguments: &str) -> Value {
    json(
        agent,
        [
            "policy",
            "explain",
            "claw.yaml",
            "--tool",
            tool,
            "--args",
            arguments,
            "--format",
            "json",
        ],
    )
}

/// Puts the agent's policy into a file of its own, with more lines behind its rules.
fn in_a_file(agent: &Agent, more: &str) {
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let (head, tail) = manifest.split_once("  policies:\n").unwrap();
    std::fs::write(
        agent.path("claw.yaml"),
        format!("{head}  policies: [\"./rules.yaml\"]\n"),
    )
    .unwrap();
    let rules: String = tail
        .lines()
        .skip_while(|line| !line.contains("rules:"))
        .skip(1)
        .map(|line| format!("{}\n", line.strip_prefix("      ").unwrap_or(line)))
        .collect();
    let head = "claw: \"0.3.0\"\nkind: Policy\nmetadata: { name: tested }\nspec:\n  rules:\n";
    std::fs::write(agent.path("rules.yaml"), format!("{head}{rules}{more}")).unwrap();
}

#[test]
fn an_explanation_names_the_rule_that_then_decides() {
    let agent = Agent::new();
    let told = explain(&agent, "file-read", "{\"path\": \"in.txt\"}");
    assert_eq!(told["verdict"]["effect"], "allow");
    assert_eq!(told["verdict"]["rule_id"], "reading");
    assert_eq!(told["decided_by"], "rules");
    agent
        .clawk(["run", "claw.yaml", "-m", "read"])
        .assert()
        .success()
        .stderr(contains("allowed (rule `reading`)"));

    let told = explain(
        &agent,
        "file-write",
        "{\"path\": \"out.txt\", \"content\": \"x\"}",
    );
    assert_eq!(told["verdict"]["rule_id"], "writing");
    let steps = told["layers"][1]["rules"].as_array().unwrap();
    assert_eq!(steps[0]["why_not"], "it is for tools named `file-read`");
    assert_eq!(steps[2]["decides"], true);
    assert_eq!(
        told["annotations"]["readOnlyHint"], false,
        "a built-in's own annotations count"
    );
}

#[test]
fn the_change_that_is_said_to_turn_a_verdict_turns_it() {
    let agent = Agent::new();
    let told = explain(&agent, "file-write", "{}");
    let changes = told["changes"].as_array().unwrap();
    let allow = changes.iter().find(|change| change["to"] == "allow").unwrap();
    assert_eq!(
        allow["edits"][0]["text"],
        "in policy `tested`, make rule `writing` say `allow` instead of `require-approval`"
    );
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let edited = manifest.replace("action: require-approval", "action: allow");
    std::fs::write(agent.path("claw.yaml"), edited).unwrap();
    assert_eq!(explain(&agent, "file-write", "{}")["verdict"]["effect"], "allow");
}

#[test]
fn autonomy_is_a_layer_like_any_other() {
    let agent = Agent::new();
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let observing = manifest.replace("autonomy: autonomous", "autonomy: observer");
    std::fs::write(agent.path("claw.yaml"), observing).unwrap();
    let told = explain(&agent, "file-read", "{}");
    assert_eq!(told["decided_by"], "autonomy `observer`");
    assert_eq!(told["verdict"]["effect"], "deny");
    assert_eq!(told["verdict"]["rule_id"], Value::Null);
    agent
        .clawk(["policy", "explain", "claw.yaml", "--tool", "file-read"])
        .assert()
        .success()
        .stdout(contains("decided by autonomy `observer`").and(contains("give the identity the autonomy")));
    agent
        .clawk(["policy", "explain", "claw.yaml", "--tool", "file-raed"])
        .assert()
        .code(1)
        .stderr(contains("no tool `file-raed`").and(contains("file-read")));
}

const HOLDS: &str = "cases:\n  - { tool: file-read, arguments: { path: a }, expect: allow, rule: reading }\n";
const FAILS: &str = "cases:\n  - { name: writing is free, tool: file-write, expect: allow }\n";

#[test]
fn tests_beside_a_policy_are_run_by_hand_at_start_and_at_validation() {
    let agent = Agent::new();
    in_a_file(&agent, "");
    std::fs::write(agent.path("rules.tests.yaml"), HOLDS).unwrap();
    for file in ["rules.yaml", "rules.tests.yaml", "claw.yaml"] {
        agent
            .clawk(["policy", "test", file])
            .assert()
            .success()
            .stdout(contains("1 of 1 cases hold"));
    }
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success();

    std::fs::write(agent.path("rules.tests.yaml"), FAILS).unwrap();
    agent
        .clawk(["policy", "test", "rules.yaml"])
        .assert()
        .code(1)
        .stdout(
            contains("writing is free")
                .and(contains("expected  allow"))
                .and(contains("got       require-approval by rule `writing`"))
                .and(contains("reading (allow): passed over")),
        );
    let told = json(&agent, ["policy", "test", "rules.yaml", "--format", "json"]);
    assert_eq!(told["ok"], false);
    assert_eq!(told["files"][0]["failures"][0]["expected"], "allow");
    let refused = contains("`rules.tests.yaml`, writing is free").or(contains("rules.tests.yaml"));
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .code(1)
        .stderr(refused.and(contains("writing is free")));
    agent
        .clawk(["serve", "claw.yaml", "--stdio"])
        .assert()
        .code(1)
        .stdout("")
        .stderr(contains("writing is free"));
    for file in ["rules.yaml", "claw.yaml"] {
        agent
            .clawk(["validate", file])
            .assert()
            .code(1)
            .stdout(contains("policy-test-failed").and(contains("writing is free")));
    }
}

#[test]
fn what_a_test_file_does_not_know_is_an_error_with_its_place() {
    let agent = Agent::new();
    in_a_file(&agent, "");
    agent
        .clawk(["policy", "test", "rules.yaml"])
        .assert()
        .code(1)
        .stderr(contains("has no tests"));
    let wrong = "cases:\n  - tool: file-read\n    expects: allow\n";
    std::fs::write(agent.path("rules.tests.yaml"), wrong).unwrap();
    agent
        .clawk(["policy", "test", "rules.yaml"])
        .assert()
        .code(1)
        .stderr(
            contains("rules.tests.yaml")
                .and(contains("expects"))
                .and(contains("3")),
        );
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .code(1)
        .stderr(contains("expects"));
}

#[test]
fn a_shadowed_rule_is_warned_of() {
    let agent = Agent::new();
    let late = "    - { id: too-late, action: deny, scope: tool, match: { name: file-read } }\n";
    in_a_file(&agent, late);
    let told = json(&agent, ["validate", "claw.yaml", "--format", "json"]);
    assert_eq!(told["valid"], true);
    let warning = told["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|warning| warning["code"] == "unreachable-rule")
        .unwrap();
    assert!(
        warning["message"].as_str().unwrap().contains("too-late"),
        "{warning}"
    );
    let file = std::fs::read_to_string(agent.path("rules.yaml")).unwrap();
    assert_eq!(warning["line"], file.lines().count());
    agent
        .clawk(["validate", "rules.yaml"])
        .assert()
        .success()
        .stdout(contains("too-late"));
    agent
        .clawk(["run", "claw.yaml", "-m", "hello"])
        .assert()
        .success()
        .stderr(contains("about policy rules"));
    agent
        .clawk(["doctor", "claw.yaml"])
        .assert()
        .stdout(contains("policy").and(contains("too-late")));
}

/// A policy in a file that treats reading and writing like this.
fn other_rules(agent: &Agent, reading: &str, writing: &str) {
    let text = format!(
        "claw: \"0.3.0\"\nkind: Policy\nmetadata: {{ name: other }}\nspec:\n  rules:\n\
         \x20   - {{ id: r, action: {reading}, scope: tool, match: {{ name: file-read }} }}\n\
         \x20   - {{ id: w, action: {writing}, scope: tool, match: {{ name: file-write }}, conditions: {{ path_within: . }} }}\n"
    );
    std::fs::write(agent.path("other.yaml"), text).unwrap();
}

fn what_if(agent: &Agent, more: &[&str]) -> Value {
    let state = agent.state();
    let mut command = agent.clawk(["policy", "what-if", "--policy", "other.yaml", "--format", "json"]);
    if !more.contains(&"--trace") {
        command.args(["--state", state.to_str().unwrap()]);
    }
    let output = command.args(more).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

#[test]
fn past_calls_are_decided_again() {
    let agent = Agent::new();
    for words in ["read", "read"] {
        agent.clawk(["run", "claw.yaml", "-m", words]).assert().success();
    }
    // Nobody is there to be asked: the question is refused, and it was a question all the same.
    agent
        .clawk(["run", "claw.yaml", "-m", "write", "--approve", "never"])
        .assert()
        .success();

    other_rules(&agent, "allow", "require-approval");
    let told = what_if(&agent, &["--manifest", "claw.yaml"]);
    assert_eq!((&told["judged"], &told["same"]), (&3.into(), &3.into()), "{told}");

    other_rules(&agent, "deny", "allow");
    let told = what_if(&agent, &[]);
    assert_eq!(told["would_block"], 2, "{told}");
    assert_eq!(told["would_newly_allow"], 1);
    assert_eq!(told["would_newly_ask"], 0);
    let first = &told["differences"][0];
    assert_eq!(
        (&first["was"], &first["rule_was"]),
        (&"allow".into(), &"reading".into())
    );
    assert_eq!(
        (&first["would_be"], &first["rule"]),
        (&"deny".into(), &"r".into())
    );
    let state = agent.state();
    let shown = agent
        .clawk([
            "policy",
            "what-if",
            "--policy",
            "other.yaml",
            "--state",
            state.to_str().unwrap(),
        ])
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    assert!(
        text(&shown).contains("would have blocked 2, would newly allow 1, would newly ask 0; 0 as before"),
        "{}",
        text(&shown)
    );

    // A trace alone has no arguments: what depends on them is not judged.
    let export = [
        "trace",
        "export",
        "--state",
        state.to_str().unwrap(),
        "-o",
        "past.jsonl",
    ];
    agent.clawk(export).assert().success();
    let told = what_if(&agent, &["--trace", "past.jsonl"]);
    assert_eq!(
        (&told["would_block"], &told["not_judged"]),
        (&2.into(), &1.into()),
        "{told}"
    );

    // The same when the content is erased from the state.
    std::fs::remove_dir_all(agent.state().join("blobs")).unwrap();
    let told = what_if(&agent, &[]);
    let judged = told["judged"].as_u64().unwrap() + told["not_judged"].as_u64().unwrap();
    assert_eq!(judged, 3, "{told}");
}

#[test]
fn the_ready_policies_do_what_their_tests_say() {
    let agent = Agent::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies");
    for name in ["strict", "standard", "trusting"] {
        let file = format!("{folder}/{name}.yaml");
        agent.clawk(["policy", "test", &file]).assert().success();
        agent.clawk(["validate", &file, "--strict"]).assert().success();
    }
}

#[test]
fn init_writes_the_policy_that_is_chosen() {
    let agent = Agent::new();
    for name in ["strict", "standard", "trusting"] {
        agent
            .clawk(["init", name, "--yes", "--policy", name])
            .assert()
            .success();
        let manifest = format!("{name}/claw.yaml");
        agent
            .clawk(["policy", "test", &manifest])
            .assert()
            .success()
            .stdout(contains(format!("{name}.tests.yaml")));
        agent
            .clawk(["validate", &manifest, "--strict"])
            .assert()
            .success();
        let policy = ["policy", "explain", &manifest, "--tool", "file-write"];
        let told = agent
            .clawk(policy)
            .args(["--args", "{\"path\": \"a\"}", "--format", "json"])
            .assert();
        let told: Value = serde_json::from_slice(&told.success().get_output().stdout).unwrap();
        // Supervised: whatever `trusting` allows is asked for.
        let expected = if name == "strict" {
            "deny"
        } else {
            "require-approval"
        };
        assert_eq!(told["verdict"]["effect"], expected, "{name}");
    }
    agent.clawk(["init", "usual", "--yes"]).assert().success();
    assert!(agent.path("usual/policies/standard.yaml").exists());
}

#[test]
fn a_manifest_from_the_wire_is_held_to_the_tests_beside_its_policies() {
    let agent = Agent::new();
    in_a_file(&agent, "");
    let manifest = serde_json::json!({
        "claw": "0.3.0", "kind": "Claw", "metadata": { "name": "wired", "version": "1.0.0" },
        "spec": {
            "identity": { "inline": { "name": "wired", "personality": "x", "autonomy": "autonomous" } },
            "providers": [{ "inline": { "name": "main", "protocol": "custom", "endpoint": "script:script.yaml",
                                        "model": "scripted", "auth": { "type": "none" } } }],
            "policies": ["./rules.yaml"],
        },
    });
    let request = serde_json::json!({
        "jsonrpc": "2.0", "id": 1, "method": "claw.initialize",
        "params": { "protocolVersion": "0.3.0", "manifest": manifest, "capabilities": {},
                    "clientInfo": { "name": "t", "version": "1" } },
    });
    let answer = || -> Value {
        let out = agent
            .clawk(["serve", "--stdio", "--manifest-root", "."])
            .write_stdin(format!("{request}\n"))
            .assert()
            .get_output()
            .stdout
            .clone();
        serde_json::from_slice(out.split(|byte| *byte == b'\n').next().unwrap()).unwrap()
    };
    std::fs::write(agent.path("rules.tests.yaml"), HOLDS).unwrap();
    assert!(answer()["result"].is_object(), "{}", answer());
    std::fs::write(agent.path("rules.tests.yaml"), FAILS).unwrap();
    let refused = answer();
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert!(refused.to_string().contains("writing is free"), "{refused}");
}
