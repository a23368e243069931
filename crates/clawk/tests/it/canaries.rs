//! Words in plain: an encrypted agent works at a terminal, with everything that keeps words beside the journal's contents, and afterwards
//! no file of its state and no export holds any of them.

use std::path::PathBuf;

use crate::agent::{Agent, text};
use crate::sealed::{OLD, anywhere};

/// Every word that is planted begins with it.
const CANARY: &str = "quetzal";

const MANIFEST: &str = r#"claw: "0.3.0"
kind: Claw
metadata: { name: tested, version: "1.0.0" }
spec:
  identity:
    inline: { name: tested, personality: You are tested., autonomy: autonomous }
  providers:
    - inline: { name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: { type: none } }
  channels:
    - inline: { name: here, type: cli, transport: stdio, auth: { secret_ref: NONE } }
  tools:
    - inline: { name: memory-store, description: Stores, input_schema: { type: object } }
    - inline: { name: file-read, description: Reads, input_schema: { type: object } }
    - inline: { name: file-write, description: Writes, input_schema: { type: object } }
  sandbox:
    inline: { level: process, capabilities: { filesystem: { mode: scoped, mount_paths: [{ path: "./work", permissions: rw }] } } }
  policies:
    - inline:
        name: tested
        audit: { log_inputs: true, log_outputs: true, log_approvals: true, destination: file }
        rules:
          - { id: writing, action: require-approval, scope: tool, match: { name: file-write }, reason: Files are precious, approval: { timeout_seconds: 60 } }
          - { id: rest, action: audit-only, scope: all }
  memory:
    inline:
      name: head
      stores:
        - { name: talks, type: conversation, encryption: true }
        - { name: notes, type: semantic, encryption: true }
        - { name: diary, type: semantic, encryption: true, backend: filesystem }
"#;

const SCRIPT: &str = r#"
scenes:
  - user: quetzal-asked
    steps:
      - say: "quetzal-said"
        call: [{ name: file-write, arguments: { path: work/a, content: "quetzal-argument" } }]
      - say: "Not written, quetzal-answer."
  - user: quetzal-granted
    steps:
      - call: [{ name: file-write, arguments: { path: work/a, content: "quetzal-granted" } }]
      - call: [{ name: memory-store, arguments: { store: notes, content: "quetzal-note" } }]
      - call: [{ name: memory-store, arguments: { store: diary, content: "quetzal-diary" } }]
      - call: [{ name: file-read, arguments: { path: work/missing } }]
      - call: [{ name: file-read, arguments: { path: [quetzal-shape] } }]
      - say: "Done, quetzal."
  - user: quetzal-broken
    steps:
      - fault: { status: 400, message: "no such model: quetzal-server" }
  - steps:
      - say: "quetzal-rest"
"#;

fn agent() -> Agent {
    let agent = Agent::new();
    std::fs::create_dir(agent.path("work")).unwrap();
    std::fs::write(agent.path("work/a"), "quetzal-before").unwrap();
    std::fs::write(agent.path("claw.yaml"), MANIFEST).unwrap();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    std::fs::write(
        agent.path("clawk.toml"),
        "[memory]\nencryption_key = \"MEMORY_KEY\"\n",
    )
    .unwrap();
    agent
}

#[test]
fn no_file_of_an_encrypted_state_and_no_export_holds_a_word_in_plain() {
    let agent = agent();
    // `env` gives the terminal's program its key.
    let mut terminal = agent.terminal_with(&[("MEMORY_KEY", OLD)], &["run", "claw.yaml"]);
    terminal.expect("you ▸");
    terminal.line("quetzal-asked");
    terminal.expect("hy ▸");
    terminal.line("n quetzal-refusal");
    terminal.expect("Not written");
    terminal.expect("you ▸");
    terminal.line("quetzal-granted");
    terminal.expect("hy ▸");
    terminal.line("a");
    terminal.expect("Done, quetzal.");
    terminal.expect("you ▸");
    terminal.line("quetzal-broken");
    terminal.expect("no such model");
    terminal.expect("you ▸");
    let with_key = |args: &[&str]| {
        let mut command = agent.clawk([]);
        let output = command.args(args).env("MEMORY_KEY", OLD).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let granted = with_key(&["approvals", "--agent", "tested", "--granted"]);
    assert!(granted.contains("exactly: write work/a"), "{granted}");
    with_key(&["stop", "--all", "--agent", "tested", "--reason", "quetzal-stop"]);
    let stopped = with_key(&["stop", "--agent", "tested", "--status"]);
    assert!(stopped.contains("quetzal-stop"), "{stopped}");
    terminal.line("/quit");
    terminal.end();

    assert_eq!(anywhere(&agent.state(), CANARY), [] as [PathBuf; 0]);
    let audited = std::fs::read_to_string(agent.state().join("audit/tested.jsonl")).unwrap();
    assert!(
        audited.contains("ckp.approval.answered") && audited.contains("result_hash"),
        "{audited}"
    );
    std::fs::create_dir(agent.path("exports")).unwrap();
    for form in ["jsonl", "otlp", "html"] {
        let file = format!("exports/{form}");
        with_key(&[
            "trace", "export", "--agent", "tested", "--as", form, "--output", &file,
        ]);
    }
    assert_eq!(anywhere(&agent.path("exports"), CANARY), [] as [PathBuf; 0]);

    // Who has the key reads the words where they are looked for; the record is whole.
    let letters = with_key(&["dead-letters", "list", "--agent", "tested"]);
    assert!(letters.contains("quetzal-server"), "{letters}");
    let shown = with_key(&["trace", "show", "--agent", "tested"]);
    for words in ["quetzal-refusal", "quetzal-server", "quetzal-stop"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(with_key(&["trace", "verify", "--agent", "tested"]).contains("valid"));
    // Reasons that a person gives to verbs are contents, too.
    let listed = with_key(&[
        "memory", "list", "--agent", "tested", "--store", "notes", "--format", "json",
    ]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let id = listed["entries"][0]["id"].as_str().unwrap();
    with_key(&[
        "memory",
        "forget",
        id,
        "--agent",
        "tested",
        "--reason",
        "quetzal-forgotten",
    ]);
    let shown = with_key(&["trace", "show", "--agent", "tested", "--session", "last"]);
    assert!(shown.contains("quetzal-forgotten"), "{shown}");
    with_key(&[
        "trace",
        "redact",
        "--agent",
        "tested",
        "--session",
        "last",
        "--reason",
        "quetzal-redacted",
    ]);
    let shown = with_key(&["trace", "show", "--agent", "tested", "--session", "last"]);
    // The reasons of erasures outlive the session's contents: they say why these are gone.
    assert!(shown.contains("quetzal-redacted"), "{shown}");
    assert_eq!(anywhere(&agent.state(), CANARY), [] as [PathBuf; 0]);
    with_key(&[
        "trace",
        "export",
        "--agent",
        "tested",
        "--session",
        "last",
        "--as",
        "jsonl",
        "--output",
        "exports/last",
    ]);
    assert_eq!(anywhere(&agent.path("exports"), CANARY), [] as [PathBuf; 0]);
    // Without the key the codes stand there.
    let bare = agent
        .clawk(["trace", "show", "--agent", "tested"])
        .output()
        .unwrap();
    let bare = text(&bare.stdout);
    assert!(bare.contains("in_content") && !bare.contains(CANARY), "{bare}");
}
