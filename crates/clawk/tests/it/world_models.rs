//! World models, through the real binary: a provider or a program foretells, and what cannot be foretold does not happen.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::agent::{Agent, text};

const SKILL: &str = r#"  tools:
    - inline: { name: file-read, description: A built-in, input_schema: { type: object } }
    - inline: { name: file-write, description: A built-in, input_schema: { type: object } }
    - inline: { name: future, description: Foretells, input_schema: { type: object }, timeout_ms: 20000 }
  skills:
    - inline:
        name: tidy
        description: Tidies.
        tools_required: [file-read, file-write]
        instruction: Read in.txt, then write out.txt.
        world_model_ref: wm
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
        shell: { mode: full }
  policies:
    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }
"#;

const SCRIPT: &str = r#"
scenes:
  - system: "^You are a world model"
    user: "propose"
    steps:
      - say: '{"candidates": [{"steps": [{"tool": "file-read"}, {"tool": "file-write"}], "risk": 0.1, "cost": {"tokens": 90}}]}'
  - steps:
      - call: [{ name: skill-tidy, arguments: {} }]
      - call: [{ name: file-read, arguments: { path: in.txt } }]
      - call: [{ name: file-write, arguments: { path: out.txt, content: "tidy\n" } }]
      - any:
          - { when: { error: true }, say: "Stopped: {{last_tool_text}}" }
          - say: "Tidy."
"#;

fn world(model: &str) -> Agent {
    let agent = Agent::new();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    agent.may(&format!("{SKILL}  world_models:\n    - inline: {model}\n"));
    agent
}

fn said(agent: &Agent) -> String {
    let output = agent.clawk(["run", "claw.yaml", "-m", "go"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The payload of the first event of this type.
fn event(agent: &Agent, kind: &str) -> Value {
    let args = ["trace", "export", "--agent", "tested", "--session", "last"];
    let exported = agent.clawk(args).output().unwrap();
    let events = text(&exported.stdout);
    let events = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut events = events.filter(|event| event["event_type"] == kind);
    events.next().unwrap_or_else(|| panic!("no {kind}"))["payload"].clone()
}

fn holds(agent: &Agent) {
    agent
        .clawk(["trace", "verify", "--agent", "tested"])
        .assert()
        .success();
    let replayed = agent
        .clawk(["trace", "replay", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(
        replayed.status.success(),
        "{} {}",
        text(&replayed.stdout),
        text(&replayed.stderr)
    );
}

#[test]
fn a_provider_foretells_and_the_trace_replays() {
    let agent = world(
        "{ name: wm, paradigm: implicit, backend: { type: provider, ref: main }, predicts: { risk: true, cost: true } }",
    );
    agent.clawk(["validate", "claw.yaml"]).assert().success();
    let told = said(&agent);
    assert!(told.contains("Tidy."), "{told}");
    let planned = event(&agent, "ckp.world_model.planned");
    assert_eq!(
        (&planned["choice"], &planned["risk_permille"]),
        (&Value::from(0), &Value::from(100)),
        "{planned}"
    );
    let compared = event(&agent, "ckp.world_model.compared");
    assert_eq!(
        (&compared["calls"], &compared["errors"]),
        (&Value::from(2), &Value::from(0)),
        "{compared}"
    );
    holds(&agent);
    let shown = agent
        .clawk(["skill", "show", "tidy", "--claw", "claw.yaml"])
        .output()
        .unwrap();
    assert!(
        text(&shown.stdout).contains("world model: wm"),
        "{}",
        text(&shown.stdout)
    );
}

#[test]
fn a_program_foretells_and_garbage_leaves_only_what_reads() {
    let model =
        "{ name: wm, paradigm: implicit, backend: { type: tool, ref: future }, predicts: { risk: true } }";
    for (answer, wrote) in [
        (
            r#"{"candidates": [{"steps": [{"tool": "file-write"}], "risk": 0.2}]}"#,
            true,
        ),
        (
            r#"{"candidates": [{"steps": [{"tool": "file-write"}], "risk": 0.8}]}"#,
            false,
        ),
        ("the cards are unclear", false),
    ] {
        let agent = world(model);
        let program = agent.path("future.sh");
        std::fs::write(
            &program,
            format!("#!/bin/sh\ncat > question.json\necho '{answer}'\n"),
        )
        .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(
            agent.path("clawk.toml"),
            "[tools.future]\ncommand = [\"./future.sh\"]\n",
        )
        .unwrap();
        let told = said(&agent);
        assert_eq!(agent.path("out.txt").exists(), wrote, "{answer}: {told}");
        assert_eq!(told.contains("no plan"), !wrote, "{answer}: {told}");
        let question = std::fs::read_to_string(agent.path("question.json")).unwrap();
        let question: Value = serde_json::from_str(&question).unwrap();
        assert_eq!(
            (&question["ask"], &question["skill"]["name"]),
            (&Value::from("propose"), &Value::from("tidy"))
        );
        holds(&agent);
    }
}

#[test]
fn what_this_version_cannot_do_is_refused_with_a_code() {
    for (model, code) in [
        (
            "{ name: wm, paradigm: implicit, backend: { type: custom, ref: x } }",
            "unserved",
        ),
        (
            "{ name: wm, paradigm: implicit, backend: { type: provider, ref: main }, update: { mode: batch } }",
            "unserved",
        ),
        (
            "{ name: wm, paradigm: implicit, backend: { type: provider, ref: main }, update: { mode: online } }",
            "config",
        ),
    ] {
        let agent = world(model);
        let output = agent
            .clawk(["validate", "claw.yaml", "--format", "json"])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = [&report["errors"], &report["warnings"]]
            .map(Value::to_string)
            .concat();
        assert!(told.contains(&format!("\"{code}\"")), "{model}: {told}");
        let run = agent.clawk(["run", "claw.yaml", "-m", "go"]).output().unwrap();
        assert!(!run.status.success(), "{model}");
    }
}
