//! `clawk skill`, through the real binary: a `SKILL.md` folder becomes a Skill whose script runs as a governed tool in the box.

use std::path::Path;

use serde_json::Value;

use crate::agent::{Agent, text};

const SKILL: &str = "---
name: Word Counter
description: Counts words in a text. Use it when somebody asks how long a text is.
license: Apache-2.0
allowed-tools: Bash(wc:*), Read
metadata:
  author: somebody
  version: \"1.2\"
x-colour: blue
---

# Word counter

Run the script with the words as arguments. See references/limits.md.
";

const SCRIPT: &str = "#!/bin/sh
echo \"$# words: $1\"
( echo tampered > \"$(dirname \"$0\")/count.sh\" ) 2>/dev/null && echo TAMPERED
exit 0
";

const SCENES: &str = r#"
scenes:
  - user: count
    steps:
      - call: [{ name: skill-word-counter, arguments: {} }]
      - call: [{ name: word-counter-count, arguments: { args: ["one", "two", "three"] } }]
      - any:
          - { when: { error: true }, say: "refused: {{last_tool_text}}" }
          - say: "It says: {{last_tool_text}}"
  - user: limits
    steps:
      - call: [{ name: skill-word-counter, arguments: {} }]
      - call: [{ name: word-counter-read, arguments: { path: references/limits.md } }]
      - say: "It says: {{last_tool_text}}"
  - user: beyond
    steps:
      - call: [{ name: skill-word-counter, arguments: {} }]
      - call: [{ name: file-write, arguments: { path: out.txt, content: "x" } }]
      - say: "It says: {{last_tool_text}}"
  - user: instructions
    steps:
      - call: [{ name: skill-word-counter, arguments: {} }]
      - say: "It says: {{last_tool_text}}"
"#;

fn folder(agent: &Agent) {
    let write = |name: &str, content: &str| {
        let path = agent.path("given/word-counter").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    write("SKILL.md", SKILL);
    write("scripts/count.sh", SCRIPT);
    write("references/limits.md", "At most a million words.\n");
}

/// An agent with the tools that these lines name, and the imported skill.
fn imported(tools: &str) -> (Agent, Value) {
    let agent = Agent::new();
    folder(&agent);
    let own: Vec<String> = tools
        .split_whitespace()
        .map(|name| format!("    - inline: {{ name: {name}, description: A built-in, input_schema: {{ type: object }} }}\n"))
        .collect();
    let manifest = |more: &str, skills: &str| {
        format!(
            "  tools:\n{}{more}{skills}  sandbox:\n    inline:\n      level: process\n      capabilities:\n        \
             filesystem: {{ mode: scoped, mount_paths: [{{ path: \".\", permissions: rw }}] }}\n        shell: {{ mode: full }}\n  \
             policies:\n    - inline: {{ name: all, rules: [{{ id: all, action: allow, scope: all }}] }}\n",
            own.concat()
        )
    };
    agent.may(&manifest("", ""));
    std::fs::write(agent.path("script.yaml"), SCENES).unwrap();
    let args = [
        "skill",
        "import",
        "given/word-counter",
        "--output",
        "skills/word-counter.yaml",
        "--format",
        "json",
    ];
    let output = agent.clawk(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let more: Vec<String> = report["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| format!("    - \"./skills/{}\"\n", tool.as_str().unwrap()))
        .collect();
    agent.may(&manifest(
        &more.concat(),
        "  skills: [\"./skills/word-counter.yaml\"]\n",
    ));
    std::fs::write(agent.path("clawk.toml"), report["config"].as_str().unwrap()).unwrap();
    (agent, report)
}

fn said(agent: &Agent, message: &str) -> String {
    let output = agent.clawk(["run", "claw.yaml", "-m", message]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_skill_folder_becomes_a_skill_whose_script_runs_in_the_box() {
    let (agent, report) = imported("shell file-read file-write");
    assert_eq!(report["skill"], "word-counter");
    assert_eq!(report["kept"], serde_json::json!(["x-colour"]));
    assert_eq!(report["lacks"], serde_json::json!([]));
    let yaml = std::fs::read_to_string(agent.path("skills/word-counter.yaml")).unwrap();
    assert!(
        yaml.contains("skill-md/x-colour") && yaml.contains("skill-md/license"),
        "{yaml}"
    );
    agent.clawk(["validate", "claw.yaml"]).assert().success();
    agent.clawk(["skill", "test", "claw.yaml"]).assert().success();
    let script = agent.path("skills/word-counter.files/scripts/count.sh");
    let counted = said(&agent, "count");
    assert!(counted.contains("3 words: one"), "{counted}");
    assert!(
        !counted.contains("TAMPERED"),
        "the script can't change itself: {counted}"
    );
    assert_eq!(std::fs::read_to_string(&script).unwrap(), SCRIPT);
    assert!(said(&agent, "limits").contains("At most a million words."));
    let beyond = said(&agent, "beyond");
    assert!(beyond.contains("not one of its tools"), "{beyond}");
    assert!(!Path::new(&agent.path("out.txt")).exists());
    // The runs of the script are in the trace, which replays.
    let shown = agent
        .clawk(["trace", "show", "--agent", "tested"])
        .output()
        .unwrap();
    assert!(
        text(&shown.stdout).contains("word-counter-count"),
        "{}",
        text(&shown.stdout)
    );
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

/// The skill's file says `permissions`, and the file of its script says nothing of what the script does, unless `labelled`.
fn bounded(agent: &Agent, permissions: &str, labelled: bool) {
    let skill = agent.path("skills/word-counter.yaml");
    let mut yaml: Value = serde_saphyr::from_str(&std::fs::read_to_string(&skill).unwrap()).unwrap();
    yaml["spec"]["permissions"] = serde_json::from_str(permissions).unwrap();
    std::fs::write(&skill, yaml.to_string()).unwrap();
    let tool = agent.path("skills/word-counter.tools/word-counter-count.yaml");
    let mut yaml: Value = serde_saphyr::from_str(&std::fs::read_to_string(&tool).unwrap()).unwrap();
    yaml["metadata"]["labels"] = if labelled {
        serde_json::json!({"category": "shell"})
    } else {
        serde_json::json!({})
    };
    std::fs::write(&tool, yaml.to_string()).unwrap();
}

#[test]
fn a_skill_that_wants_more_than_its_permissions_is_stopped_and_so_is_its_script() {
    let (agent, _) = imported("shell file-read file-write");
    // The script leaves a mark where it runs.
    let script = agent.path("skills/word-counter.files/scripts/count.sh");
    std::fs::write(&script, SCRIPT.replace("exit 0", "touch ran.txt")).unwrap();
    let ran = agent.path("ran.txt");
    for (permissions, why) in [
        (r#"{"network": false, "filesystem": "full"}"#, "network"),
        (
            r#"{"network": true, "filesystem": "read-only"}"#,
            "only read files",
        ),
        (
            r#"{"network": true, "filesystem": "write-workspace"}"#,
            "in the workspace",
        ),
        ("{}", "permission"),
    ] {
        for labelled in [true, false] {
            bounded(&agent, permissions, labelled);
            let told = said(&agent, "count");
            assert!(
                told.contains("refused") && told.contains(why),
                "{permissions} {labelled}: {told}"
            );
            assert!(!ran.exists(), "{permissions} {labelled}: {told}");
        }
    }
    // The refusals are in the trace, each with the skill that is bounded.
    let shown = agent
        .clawk(["trace", "export", "--agent", "tested"])
        .output()
        .unwrap();
    let denied = text(&shown.stdout);
    let denied: Vec<&str> = denied
        .lines()
        .filter(|line| line.contains("\"action.denied\""))
        .collect();
    assert_eq!(denied.len(), 8, "{denied:#?}");
    assert!(
        denied
            .iter()
            .all(|line| line.contains("word-counter-count") && line.contains("\"by\":\"skill\"")),
        "{denied:#?}"
    );
    // With the permission, it runs.
    bounded(&agent, r#"{"network": true, "filesystem": "full"}"#, false);
    let told = said(&agent, "count");
    assert!(told.contains("3 words: one") && ran.exists(), "{told}");
}

#[test]
fn a_skill_that_lacks_tools_is_imported_with_a_warning_and_refused_with_their_names() {
    let (agent, report) = imported("file-write");
    assert_eq!(report["lacks"], serde_json::json!(["shell", "file-read"]));
    let listed = agent.clawk(["skill", "list", "claw.yaml"]).output().unwrap();
    assert!(
        text(&listed.stdout).contains("lacks: shell, file-read"),
        "{}",
        text(&listed.stdout)
    );
    let tested = agent
        .clawk(["skill", "test", "claw.yaml", "--format", "json"])
        .output()
        .unwrap();
    assert_eq!(tested.status.code(), Some(1));
    let told = said(&agent, "instructions");
    assert!(told.contains("`shell`, `file-read`"), "{told}");
    assert!(!told.contains("Run the script"), "{told}");
    let show = ["skill", "show", "word-counter", "--claw", "claw.yaml"];
    let shown = text(&agent.clawk(show).assert().success().get_output().stdout);
    assert!(
        shown.contains("lacks:") && shown.contains("Run the script"),
        "{shown}"
    );
}

const TRIED: &str = r#"  tools:
    - inline: { name: file-read, description: A built-in, input_schema: { type: object } }
    - inline: { name: file-write, description: A built-in, input_schema: { type: object } }
    - inline: { name: sleep, description: A built-in, input_schema: { type: object } }
  skills:
    - inline:
        name: sum
        description: Sums up a file.
        tools_required: [file-read, file-write]
        instruction: Sum up the file.
        input_schema: { type: object, properties: { path: { type: string } }, required: [path] }
        output_schema: { type: object, properties: { words: { type: integer } }, required: [words] }
        permissions: { filesystem: write-workspace, network: false }
        estimates: { avg_tokens: 900, avg_tool_calls: 2 }
    - inline: { name: other, description: Is never asked for., tools_required: [sleep], instruction: Wait. }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
  policies:
    - inline: { name: some, rules: [{ id: files, action: allow, scope: tool, match: { name: "file-*" } }] }
"#;

const TRIED_SCRIPT: &str = r#"
scenes:
  - system: "Sum up the file"
    user: "no numbers"
    steps:
      - say: "a few words"
  - system: "Sum up the file"
    user: "does not fit .*few words"
    steps:
      - say: "still a few words"
  - system: "Sum up the file"
    user: "does not fit .*four"
    steps:
      - say: '{"words": 4}'
  - system: "Sum up the file"
    steps:
      - call:
          - { name: file-read, arguments: { path: in.txt } }
          - { name: file-write, arguments: { path: out.txt, content: "sum" } }
          - { name: file-write, arguments: { path: ../out.txt, content: "beyond" } }
          - { name: sleep, arguments: { seconds: 0 } }
      - say: "Done: {\"words\": four}"
"#;

fn tried() -> Agent {
    let agent = Agent::new();
    agent.may(TRIED);
    std::fs::write(agent.path("script.yaml"), TRIED_SCRIPT).unwrap();
    agent
}

fn trial(agent: &Agent, more: &[&str]) -> (Option<i32>, Value) {
    let mut command = agent.clawk(["skill", "test", "claw.yaml", "--format", "json"]);
    let output = command.args(more).output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|_| panic!("{} {}", text(&output.stdout), text(&output.stderr)));
    (output.status.code(), report)
}

/// Tools and what became of their calls.
fn outcomes(report: &Value) -> Vec<(String, String)> {
    let of = |call: &Value, key: &str| call[key].as_str().unwrap().to_owned();
    let calls = report["calls"].as_array().unwrap().iter();
    calls
        .map(|call| (of(call, "tool"), of(call, "outcome")))
        .collect()
}

#[test]
fn a_skill_is_tried_with_the_agents_model_under_everything_that_binds_it() {
    let agent = tried();
    // In a dry run first: nothing is written.
    let run = ["--name", "sum", "--run", r#"{"path": "in.txt"}"#];
    let (code, report) = trial(&agent, &[run.as_slice(), &["--dry-run"]].concat());
    assert_eq!((code, &report["ok"]), (Some(0), &Value::Bool(true)), "{report:#}");
    assert!(!agent.path("out.txt").exists());
    let predicted = ("file-write".to_owned(), "predicted".to_owned());
    assert!(outcomes(&report).contains(&predicted), "{report:#}");
    // For real: the result was repaired once, and what the skill may not do was refused.
    let (code, report) = trial(&agent, &run);
    assert_eq!((code, &report["ok"]), (Some(0), &Value::Bool(true)), "{report:#}");
    assert_eq!(std::fs::read_to_string(agent.path("out.txt")).unwrap(), "sum");
    assert!(!agent.path("../out.txt").exists());
    assert_eq!(report["result"], serde_json::json!({"words": 4}));
    let all = outcomes(&report);
    for wanted in [
        ("file-read", "ran"),
        ("file-write", "ran"),
        ("file-write", "refused"),
        ("sleep", "refused"),
    ] {
        let wanted = (wanted.0.to_owned(), wanted.1.to_owned());
        assert!(all.contains(&wanted), "{wanted:?}: {all:?}");
    }
    let took = &report["took"];
    assert_eq!(
        (
            &took["fits"],
            &took["repaired"],
            &took["calls"],
            &took["estimates"]["tokens"]
        ),
        (
            &Value::Bool(true),
            &Value::Bool(true),
            &Value::from(4),
            &Value::from(900)
        ),
        "{report:#}"
    );
    // What it took is what its model was asked and answered, all of it.
    let session = report["session"].as_str().unwrap();
    let args = ["trace", "export", "--agent", "tested", "--session", session];
    let exported = text(&agent.clawk(args).output().unwrap().stdout);
    let events = exported
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let paid = events
        .filter(|event| event["event_type"] == "ckp.provider.completed")
        .map(|event| {
            let of = |key: &str| event["payload"][key].as_u64().unwrap();
            of("input_tokens") + of("output_tokens")
        });
    let paid: Vec<u64> = paid.collect();
    assert_eq!(
        (paid.len(), took["tokens"].as_u64()),
        (3, Some(paid.iter().sum())),
        "{report:#}"
    );
    // Its result never fits; an input that does not fit; a skill that the person did not name.
    let (code, report) = trial(&agent, &["--name", "sum", "--run", r#"{"path": "no numbers"}"#]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(
        report["fault"].as_str().unwrap().contains("output_schema"),
        "{report:#}"
    );
    let (code, report) = trial(&agent, &["--name", "sum", "--run", "{}"]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(report["fault"].as_str().unwrap().contains("path"), "{report:#}");
    agent
        .clawk(["skill", "test", "claw.yaml", "--run", "{}"])
        .assert()
        .failure();
    // It is in the trace, which replays.
    for verb in ["verify", "replay"] {
        agent
            .clawk(["trace", verb, "--agent", "tested"])
            .assert()
            .success();
    }
}

const KEEPING: &str = r#"  tools:
    - inline: { name: memory-store, description: A built-in, input_schema: { type: object } }
    - inline: { name: whole, description: Keeps by itself, input_schema: { type: object }, composite: true, skill_ref: keep }
  skills:
    - inline: { name: keep, description: Keeps., tools_required: [memory-store], instruction: Keep what you know. }
  memory:
    inline: { name: head, stores: [{ name: notes, type: semantic, backend: sqlite, scope: global }] }
  policies:
    - inline: { name: all, rules: [{ id: all, action: allow, scope: all }] }
"#;

const KEEPING_SCRIPT: &str = r#"
scenes:
  - system: "Keep what you know"
    steps:
      - call: [{ name: memory-store, arguments: { store: notes, content: "The gate is red." } }]
      - say: "Kept by itself."
  - user: "by hand"
    steps:
      - call: [{ name: skill-keep, arguments: {} }]
      - call: [{ name: memory-store, arguments: { store: notes, content: "The lamp is green." } }]
      - say: "Kept."
  - user: "as a whole"
    steps:
      - call: [{ name: whole, arguments: {} }]
      - say: "Done."
"#;

#[test]
fn what_a_skill_remembered_leads_back_over_the_skill_to_the_message() {
    let agent = Agent::new();
    agent.may(KEEPING);
    std::fs::write(agent.path("script.yaml"), KEEPING_SCRIPT).unwrap();
    said(&agent, "by hand");
    said(&agent, "as a whole");
    let told = |args: &[&str]| -> Value {
        let output = agent
            .clawk(["memory"])
            .args(args)
            .args(["--agent", "tested", "--format", "json"])
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{args:?}: {}", text(&output.stderr)))
    };
    let chain = |content: &str| -> Vec<(String, String)> {
        let listed = told(&["list", "--store", "notes"]);
        let entries = listed["entries"].as_array().unwrap();
        let entry = entries.iter().find(|entry| entry["content"] == content).unwrap();
        let why = told(&["why", entry["id"].as_str().unwrap()]);
        let steps = why["chain"].as_array().unwrap().iter().skip(1);
        let step = |step: &Value| {
            let name = match step["kind"].as_str().unwrap() {
                "call" => &step["tool"],
                "message" => &step["text"],
                _ => &step["name"],
            };
            (
                step["kind"].as_str().unwrap().to_owned(),
                name.as_str().unwrap().to_owned(),
            )
        };
        steps.map(step).collect()
    };
    let pairs = |wanted: &[(&str, &str)]| -> Vec<(String, String)> {
        wanted
            .iter()
            .map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()))
            .collect()
    };
    assert_eq!(
        chain("The lamp is green."),
        pairs(&[
            ("call", "memory-store"),
            ("skill", "keep"),
            ("message", "by hand")
        ])
    );
    assert_eq!(
        chain("The gate is red."),
        pairs(&[
            ("call", "memory-store"),
            ("skill", "keep"),
            ("call", "whole"),
            ("message", "as a whole")
        ])
    );
}
