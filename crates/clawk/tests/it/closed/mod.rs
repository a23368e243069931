//! The ready policies against an agent that wants a secret: whatever it calls, and whatever a person says yes to, no secret comes
//! out of what the policy refuses.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::stop::{Served, request};

/// In every file that no tool may read.
const SECRET: &str = "CANARY-5521";

/// In every file that tools may read.
const OPEN: &str = "an open word";

const TOOLS: &str = r#"  tools:
    - inline: { name: file-read, description: R, input_schema: { type: object } }
    - inline: { name: file-list, description: L, input_schema: { type: object } }
    - inline: { name: file-search, description: S, input_schema: { type: object } }
    - inline: { name: file-write, description: W, input_schema: { type: object } }
    - inline: { name: file-edit, description: E, input_schema: { type: object } }
    - inline: { name: shell, description: C, input_schema: { type: object } }
    - inline:
        name: served-read
        description: R
        labels: { category: filesystem }
        annotations: { readOnlyHint: true }
        input_schema: { type: object }
        mcp_source: { uri: "stdio://./files.py" }
    - inline:
        name: served-tree
        description: T
        labels: { category: filesystem }
        annotations: { readOnlyHint: true }
        input_schema: { type: object }
        mcp_source: { uri: "stdio://./files.py" }
  sandbox:
    inline:
      level: LEVEL
      capabilities:
        shell: { mode: full }
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
  policies: [POLICY]
"#;

const SECRETS: [&str; 4] = [".env", ".ssh/id", ".git/config", ".git/deep/hook"];

/// An agent under one of the ready policies, with secrets in its folder and other names for them.
fn agent(policy: &str, level: &str) -> Agent {
    let agent = Agent::new();
    let ready = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies");
    std::fs::copy(format!("{ready}/{policy}.yaml"), agent.path("ready.yaml")).unwrap();
    agent.may(&TOOLS.replace("LEVEL", level).replace("POLICY", "./ready.yaml"));
    std::fs::write(
        agent.path("files.py"),
        format!("#!/usr/bin/env python3\n{}", include_str!("files.py")),
    )
    .unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(agent.path("files.py"), mode).unwrap();
    for folder in [".ssh", ".git/deep", "src"] {
        std::fs::create_dir_all(agent.path(folder)).unwrap();
    }
    for secret in SECRETS {
        std::fs::write(agent.path(secret), format!("{SECRET} {OPEN}\n")).unwrap();
    }
    std::fs::write(agent.path("src/main.rs"), format!("{OPEN}\n")).unwrap();
    for (target, link) in [
        (".", "up"),
        (".env", "plain"),
        (".git", "src/g"),
        ("../.ssh", "src/keys"),
    ] {
        symlink(target, agent.path(link)).unwrap();
    }
    std::fs::hard_link(agent.path(".env"), agent.path("src/hard")).unwrap();
    agent
}

/// Every way that we know of to ask for a secret.
fn attacks() -> Vec<(&'static str, Value)> {
    let names = [
        ".env",
        "./.env",
        ".env/",
        "up/.env",
        "up/up/.env",
        "plain",
        "src/hard",
        "up/src/hard",
        ".ssh/id",
        "src/keys/id",
        ".git/config",
        "src/g/config",
        "src/g/deep/hook",
        "src/../.env",
        "up/.ssh/../.env",
    ];
    let mut all = Vec::new();
    for name in names {
        all.push(("file-read", json!({ "path": name })));
        all.push(("served-read", json!({ "path": name })));
        all.push(("served-read", json!({ "name": name, "path": "src/main.rs" })));
        all.push((
            "file-edit",
            json!({ "path": name, "old_text": OPEN, "new_text": "taken" }),
        ));
        all.push(("file-write", json!({ "path": name, "content": "taken" })));
    }
    for folder in [
        None,
        Some("."),
        Some("up"),
        Some("src"),
        Some("up/src"),
        Some(".git"),
        Some("src/g"),
        Some("src/keys"),
    ] {
        let mut arguments = json!({ "pattern": OPEN });
        let mut list = json!({ "recursive": true });
        let mut tree = json!({});
        if let Some(folder) = folder {
            for one in [&mut arguments, &mut list, &mut tree] {
                one["path"] = json!(folder);
            }
        }
        all.push(("file-search", arguments));
        all.push(("file-list", list));
        all.push(("served-tree", tree));
    }
    all
}

/// What a command line may try; a box holds it.
fn commands() -> Vec<(&'static str, Value)> {
    let commands = [
        "cat .env; cat up/.env; cat plain; cat src/hard; cat .git/config .git/deep/hook src/g/config; cat .ssh/id src/keys/id",
        "grep -r . . ; find . -type f -exec cat {} +",
        "ln -s .env l2; cat l2; ln .env l3; cat l3; cp .env l4; cat l4; mv .env l5; cat l5; mv .git g2; cat g2/config",
        "cd .git && cat config",
        "python3 -c 'print(open(\".env\").read())'",
    ];
    let mut all: Vec<_> = commands
        .iter()
        .map(|command| ("shell", json!({ "command": command })))
        .collect();
    for workdir in [".git", "src/g", ".ssh"] {
        all.push(("shell", json!({ "command": "cat *", "workdir": workdir })));
    }
    all
}

/// Makes each call, and says yes to whatever is asked.
fn answers(agent: &Agent, calls: &[(&'static str, Value)]) -> Vec<Value> {
    let mut served = Served::start(agent);
    let mut all = Vec::new();
    for (at, (tool, arguments)) in calls.iter().enumerate() {
        let id = 10 + u32::try_from(at).unwrap();
        served.call(id, tool, arguments);
        served.send(
            10_000 + id,
            "claw.tool.approve",
            &json!({ "request_id": request(id) }),
        );
        all.push(served.answer(id));
    }
    all
}

fn nothing_comes_out(policy: &str, level: &str, calls: &[(&'static str, Value)]) {
    let agent = agent(policy, level);
    for ((tool, arguments), answer) in calls.iter().zip(answers(&agent, calls)) {
        let told = answer.to_string();
        let about = format!("{policy} at level {level}: {tool} {arguments}: {answer}");
        assert!(!told.contains(SECRET), "{about}");
        let names = ["hook", "config"]
            .iter()
            .filter(|_| *tool == "file-list" && answer.get("result").is_some());
        for name in names {
            assert!(!told.contains(name), "{about}");
        }
    }
    for secret in SECRETS {
        let now = std::fs::read_to_string(agent.path(secret)).unwrap_or_default();
        assert!(
            now.contains(SECRET) && !now.contains("taken"),
            "{policy} at level {level}: {secret}: {now}"
        );
    }
}

#[test]
fn no_ready_policy_gives_a_secret_to_any_built_in_or_server() {
    for policy in ["strict", "standard", "trusting"] {
        nothing_comes_out(policy, "process", &attacks());
    }
}

#[test]
fn no_ready_policy_gives_a_secret_to_a_command_line_in_a_box() {
    for policy in ["strict", "standard", "trusting"] {
        nothing_comes_out(policy, "process", &commands());
    }
}

/// Without a box, what clawk reads itself is held all the same; what a program reads is not, and `docs` says so.
#[test]
fn without_a_box_the_file_tools_are_held_all_the_same() {
    let ours: Vec<_> = attacks()
        .into_iter()
        .filter(|(tool, _)| tool.starts_with("file-"))
        .collect();
    for policy in ["strict", "standard", "trusting"] {
        nothing_comes_out(policy, "none", &ours);
    }
}

#[test]
fn a_search_says_how_much_it_left_out_and_finds_the_rest() {
    let agent = agent("strict", "process");
    let calls = [
        ("file-search", json!({ "pattern": OPEN })),
        ("file-list", json!({})),
        ("file-read", json!({ "path": "src/main.rs" })),
        ("file-search", json!({ "pattern": OPEN, "path": ".git" })),
    ];
    let told = answers(&agent, &calls);
    let text = |at: usize| told[at]["result"].to_string();
    assert!(
        text(0).contains("src/main.rs:1:") && text(0).contains("left out"),
        "{}",
        told[0]
    );
    assert!(
        text(1).contains("src/") && text(1).contains("3 entries were left out"),
        "{}",
        told[1]
    );
    assert!(text(2).contains(OPEN), "{}", told[2]);
    assert_eq!(told[3]["error"]["code"], -32011, "{}", told[3]);
}
