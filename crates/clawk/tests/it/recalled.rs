//! What joins a turn's prompt from memory and files, through the program: budgets, what is left out, files that change meanwhile.

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::planted::named;
use crate::serve::Server;

/// An agent with a scripted model, context files and stores.
fn agent(context: &str, stores: &str, window: u32) -> Agent {
    let agent = Agent::new();
    let manifest = format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: You are tested., autonomy: autonomous, context_files: {{ {context} }} }}
  providers:
    - inline: {{ name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: {{ type: none }}, limits: {{ max_context_window: {window} }} }}
  channels:
    - inline: {{ name: here, type: cli, transport: stdio, auth: {{ secret_ref: NONE }} }}
  tools:
    - inline: {{ name: context-write, description: Writes, input_schema: {{ type: object }} }}
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
  memory:
    inline: {{ name: head, stores: [{stores}] }}
"#
    );
    std::fs::write(agent.path("claw.yaml"), manifest).unwrap();
    let script = r#"scenes:
  - user: learn
    steps:
      - call: [{ name: context-write, arguments: { file: MEMORY.md, content: "likes tea" } }]
      - say: "learnt"
  - steps:
      - say: "Noted."
"#;
    std::fs::write(agent.path("script.yaml"), script).unwrap();
    agent
}

fn served(agent: &Agent) -> Server {
    let mut server = Server::start(agent, &["claw.yaml", "--stdio"]);
    assert!(server.initialize(&named())["result"].is_object());
    server
}

/// The session that took the words.
fn said(server: &mut Server, n: usize, words: &str) -> String {
    let id = format!("cc0e8400-e29b-41d4-a716-{n:012}");
    let params = json!({ "text": words, "conversation": "one", "request_id": id });
    let answer = server.ask("claw.message.send", &params);
    assert_eq!(answer["result"]["stop"], "answered", "{answer}");
    answer["result"]["session_id"].as_str().unwrap().to_owned()
}

/// The prompts of these turns, each built again and compared with the record's digest.
fn prompts(agent: &Agent, session: &str, turns: &str) -> Vec<Value> {
    let done = agent
        .clawk(["sessions", "prompt", session, "--turn", turns, "--format", "json"])
        .assert()
        .success();
    let printed = text(&done.get_output().stdout);
    let documents = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
    documents.map(Result::unwrap).collect()
}

fn events(agent: &Agent, kind: &str) -> Vec<Value> {
    let state = agent.state();
    agent
        .clawk([
            "trace",
            "export",
            "--state",
            state.to_str().unwrap(),
            "-o",
            "out.jsonl",
        ])
        .assert()
        .success();
    let events = std::fs::read_to_string(agent.path("out.jsonl")).unwrap();
    let events = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event_type"] == kind).collect()
}

#[test]
fn a_context_file_that_changes_within_a_session_is_shown_as_it_was_in_each_turn() {
    let agent = agent(
        "memory: MEMORY.md, user: USER.md",
        "{ name: notes, type: semantic }",
        32_000,
    );
    std::fs::write(agent.path("MEMORY.md"), "knows nothing").unwrap();
    let mut server = served(&agent);
    said(&mut server, 1, "hello");
    said(&mut server, 2, "learn");
    said(&mut server, 3, "hello again");
    // A person changes a file while the agent runs, and makes another one.
    std::fs::write(agent.path("MEMORY.md"), "likes coffee").unwrap();
    std::fs::write(agent.path("USER.md"), "is called Ann").unwrap();
    said(&mut server, 4, "hello once more");
    std::fs::remove_file(agent.path("USER.md")).unwrap();
    let session = said(&mut server, 5, "and again");
    assert!(server.end().success());
    let systems: Vec<String> = prompts(&agent, &session, "1-5")
        .iter()
        .map(|prompt| prompt["system"].as_str().unwrap().to_owned())
        .collect();
    let holds = [
        ("knows nothing", [true, true, false, false, false]),
        ("likes tea", [false, false, true, false, false]),
        ("likes coffee", [false, false, false, true, true]),
        ("is called Ann", [false, false, false, true, false]),
    ];
    for (words, wanted) in holds {
        let found: Vec<bool> = systems.iter().map(|system| system.contains(words)).collect();
        assert_eq!(found, wanted, "{words}");
    }
    agent
        .clawk(["trace", "replay", "--state", agent.state().to_str().unwrap()])
        .assert()
        .success();
    // What the agent replaced and what it wrote.
    let done = agent
        .clawk(["memory", "versions", "MEMORY.md", "--format", "json"])
        .assert()
        .success();
    let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(found["versions"].as_array().unwrap().len(), 2, "{found}");
}

#[test]
fn each_part_of_a_prompt_keeps_to_its_budget_and_what_is_left_out_is_counted() {
    let agent = agent(
        "memory: MEMORY.md",
        "{ name: notes, type: semantic, search: { top_k: 50 } }",
        4_000,
    );
    std::fs::write(agent.path("MEMORY.md"), "likes tea. ".repeat(2_000)).unwrap();
    let mut server = served(&agent);
    let entries: Vec<Value> = (0..40)
        .map(|n| json!({ "content": format!("The garden of house {n} has {}", ["roses", "tulips", "lilies", "ferns"][n % 4].repeat(n)) }))
        .collect();
    let context = json!({ "request_id": "dd0e8400-e29b-41d4-a716-000000000001", "identity": "tested" });
    let stored = server.ask(
        "claw.memory.store",
        &json!({ "store": "notes", "entries": entries, "context": context }),
    );
    assert_eq!(stored["result"]["stored"], 40, "{stored}");
    let session = said(&mut server, 1, "what grows in the garden of the house?");
    assert!(server.end().success());
    let prompts = prompts(&agent, &session, "1");
    let parts = prompts[0]["parts"].as_array().unwrap();
    let tokens = |kind: &str| {
        let part = parts.iter().find(|part| part["kind"] == kind).unwrap();
        part["tokens"].as_u64().unwrap()
    };
    // A quarter and an eighth of 4,000 tokens, and the marks around them.
    assert!((900..=1_050).contains(&tokens("context-file")), "{parts:?}");
    assert!((300..=550).contains(&tokens("recalled")), "{parts:?}");
    let system = prompts[0]["system"].as_str().unwrap();
    assert!(system.contains("[cut: 4000 of 22000 bytes shown]"), "{system}");
    let recalled = &events(&agent, "ckp.memory.recalled")[0]["payload"];
    let shown = recalled["searches"][0]["ids"].as_array().unwrap().len();
    assert_eq!(prompts[0]["searches"], recalled["searches"]);
    assert_eq!(recalled["left_out"], 40 - shown, "{recalled}");
    assert!(shown > 0 && shown < 40, "{recalled}");
}

#[test]
fn what_the_wire_keeps_for_a_channel_is_recalled_on_that_channel_alone() {
    let agent = agent(
        "memory: MEMORY.md",
        "{ name: notes, type: semantic, scope: per-channel }",
        32_000,
    );
    let mut server = served(&agent);
    let context = json!({ "request_id": "dd0e8400-e29b-41d4-a716-000000000001", "identity": "tested" });
    let entries = json!([{ "content": "The boat is moored at pier fourteen." }]);
    let stored = server.ask(
        "claw.memory.store",
        &json!({ "store": "notes", "entries": entries, "context": context }),
    );
    assert_eq!(stored["result"]["stored"], 1, "{stored}");
    let session = said(&mut server, 1, "where is the boat moored?");
    assert!(server.end().success());
    let system = |session: &str| {
        prompts(&agent, session, "1")[0]["system"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(system(&session).contains("pier fourteen"));
    agent
        .clawk(["run", "claw.yaml", "-m", "where is the boat moored?"])
        .assert()
        .success();
    assert!(
        !system("last").contains("pier fourteen"),
        "the terminal is another channel"
    );
}

#[test]
fn a_store_that_is_open_to_everybody_is_warned_of() {
    let agent = agent("memory: MEMORY.md", "{ name: notes, type: semantic }", 32_000);
    let validate = |args: &[&str]| {
        let done = agent.clawk([]).args(args).assert().success();
        format!(
            "{}{}",
            text(&done.get_output().stdout),
            text(&done.get_output().stderr)
        )
    };
    let warning = "`[memory.notes] across_senders`: every turn may recall";
    assert!(!validate(&["validate", "claw.yaml"]).contains(warning));
    std::fs::write(
        agent.path("clawk.toml"),
        "[memory.notes]\nacross_senders = true\n",
    )
    .unwrap();
    assert!(validate(&["validate", "claw.yaml"]).contains(warning));
    assert!(validate(&["run", "claw.yaml", "-m", "hello"]).contains(warning));
}
