//! `clawk memory`: what an agent remembers, of one that runs and of one that does not.

mod everywhere;
mod silent;

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::serve::Server;

const REST: &str = r#"  tools:
    - inline: { name: sleep, description: Waits, input_schema: { type: object } }
  sandbox:
    inline: { level: process }
  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
  memory:
    inline:
      name: head
      stores:
        - { name: notes, type: semantic, backend: sqlite }
        - { name: facts, type: key-value, backend: sqlite, scope: global }
"#;

const CANARY: &str = "KAEL-4711";

/// An agent that was told some things, still running.
fn told(agent: &Agent) -> Server {
    agent.may(REST);
    let mut server = Server::start(agent, &["claw.yaml", "--stdio"]);
    let manifest = json!({ "kind": "Claw", "claw": "0.3.0", "metadata": { "name": "tested", "version": "1.0.0" },
        "spec": { "identity": { "inline": { "personality": "x" } }, "providers": [{ "inline": {
            "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": { "type": "none" } } }] } });
    assert!(server.initialize(&manifest)["result"].is_object());
    let mut remember = |n: u32, store: &str, entries: Value| {
        let context =
            json!({ "request_id": format!("dd0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested" });
        let params = json!({ "store": store, "entries": entries, "context": context });
        let answer = server.ask("claw.memory.store", &params);
        assert!(answer["result"]["stored"].as_u64() > Some(0), "{answer}");
    };
    remember(
        1,
        "notes",
        json!([{ "content": "The lamp in the hall is green." }, { "content": "The dog barks.\u{1b}[2J" }]),
    );
    remember(
        2,
        "facts",
        json!([{ "key": "lamp-code", "content": { "code": CANARY }, "metadata": { "from": "ann" } }]),
    );
    server
}

fn json_of(agent: &Agent, args: &[&str]) -> Value {
    let done = agent
        .clawk(["memory"])
        .args(args)
        .args(["--format", "json"])
        .assert()
        .success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn contents(found: &Value) -> Vec<String> {
    let entries = found["entries"].as_array().unwrap();
    entries.iter().map(|entry| entry["content"].to_string()).collect()
}

#[test]
fn memory_is_listed_searched_shown_and_exported_while_the_agent_runs() {
    let agent = Agent::new();
    let server = told(&agent);
    let listed = json_of(&agent, &["list"]);
    let stores: Vec<(&str, &str, u64)> = listed["stores"]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| {
            (
                part["store"].as_str().unwrap(),
                part["scope"].as_str().unwrap(),
                part["entries"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(stores, [("facts", "", 1), ("notes", "identity/tested", 2)]);
    assert_eq!(contents(&listed).len(), 3);
    assert_eq!(contents(&json_of(&agent, &["list", "--limit", "1"])).len(), 2);
    assert_eq!(contents(&json_of(&agent, &["list", "--store", "facts"])).len(), 1);

    let found = json_of(&agent, &["search", "green", "lamps"]);
    assert_eq!(found["entries"][0]["content"], "The lamp in the hall is green.");
    assert!(found["entries"][0]["score"].as_f64().unwrap() > 0.0, "{found}");
    let shown = json_of(&agent, &["show", "lamp-code"]);
    let fact = &shown["entries"][0];
    assert_eq!(
        (&fact["content"]["code"], &fact["metadata"]["from"]),
        (&json!(CANARY), &json!("ann"))
    );
    let id = found["entries"][0]["id"].as_str().unwrap();
    assert_eq!(json_of(&agent, &["show", id])["entries"][0]["store"], "notes");

    // For people: the same, and nothing that steers their terminal.
    let done = agent.clawk(["memory", "list"]).assert().success();
    let human = text(&done.get_output().stdout);
    assert!(
        human.contains("lamp-code") && human.contains("`notes` of identity/tested"),
        "{human}"
    );
    assert!(
        human.contains("The dog barks.·[2J") && !human.contains('\u{1b}'),
        "{human}"
    );

    agent
        .clawk(["memory", "export", "-o", "out.jsonl"])
        .assert()
        .success();
    let lines = std::fs::read_to_string(agent.path("out.jsonl")).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0], *fact);
    // What was exported before is not written over.
    agent
        .clawk(["memory", "export", "-o", "out.jsonl"])
        .assert()
        .failure();

    for (args, code, why) in [
        (vec!["show", "nobody"], 1, "nothing is remembered as `nobody`"),
        (
            vec!["list", "--store", "other"],
            1,
            "there is: `facts` of everybody, `notes` of identity/tested",
        ),
        (vec!["search", "unheard-of"], 1, "nothing is found"),
        (vec!["forget", "lamp-code", "--reason", "asked for"], 1, "running"),
        (vec!["forget", "lamp-code"], 2, "--reason"),
    ] {
        let done = agent.clawk(["memory"]).args(&args).assert().code(code);
        let said = text(&done.get_output().stdout) + &text(&done.get_output().stderr);
        assert!(
            said.contains(why) || (why == "running" && said.contains("what is to be forgotten")),
            "{args:?}: {said}"
        );
    }
    assert!(server.end().success());
}

#[test]
fn what_is_forgotten_is_gone_from_the_files_and_on_the_record() {
    let agent = Agent::new();
    assert!(told(&agent).end().success());
    // One name that is not there: nothing is forgotten.
    agent
        .clawk(["memory", "forget", "lamp-code", "nobody", "--reason", "x"])
        .assert()
        .code(1);
    assert_eq!(contents(&json_of(&agent, &["list"])).len(), 3);

    let gone = json_of(
        &agent,
        &["forget", "lamp-code", "lamp-code", "--reason", "asked for"],
    );
    assert_eq!(gone["forgotten"].as_array().unwrap().len(), 1);
    let left = json_of(&agent, &["list"]);
    assert_eq!(contents(&left).len(), 2);
    assert_eq!(left["stores"][0]["entries"], 0);
    assert!(!left.to_string().contains(CANARY));
    // The agent itself finds it no more, and the other things still.
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    let manifest = json!({ "kind": "Claw", "claw": "0.3.0", "metadata": { "name": "tested", "version": "1.0.0" },
        "spec": { "identity": { "inline": { "personality": "x" } }, "providers": [{ "inline": {
            "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": { "type": "none" } } }] } });
    server.initialize(&manifest);
    let mut query = |store: &str, query: Value| {
        server.ask("claw.memory.query", &json!({ "store": store, "query": query }))
    };
    let fact = query("facts", json!({ "type": "key", "key": "lamp-code" }));
    assert_eq!(fact["result"]["entries"], json!([]), "{fact}");
    let note = query("notes", json!({ "type": "semantic", "text": "lamp" }));
    assert_eq!(contents(&note["result"]).len(), 1, "{note}");
    assert!(server.end().success());

    let state = agent.state().display().to_string();
    let done = agent
        .clawk(["trace", "verify", "--state", &state])
        .assert()
        .success();
    assert!(text(&done.get_output().stdout).contains("valid"));
    let done = agent
        .clawk(["trace", "export", "--state", &state, "-o", "out.trace.jsonl"])
        .assert()
        .success();
    drop(done);
    let events = std::fs::read_to_string(agent.path("out.trace.jsonl")).unwrap();
    let forgotten: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["event_type"] == "ckp.memory.forgotten")
        .collect();
    let [event] = &forgotten[..] else {
        panic!("{forgotten:?}")
    };
    let payload = &event["payload"];
    assert_eq!(
        (&payload["reason"], &payload["count"]),
        (&json!("in_content"), &json!(1)),
        "the reason's words are a content"
    );
    let shown = agent
        .clawk(["trace", "show", "--state", &state])
        .assert()
        .success();
    assert!(text(&shown.get_output().stdout).contains("asked for"));
    assert_eq!(payload["entries"][0]["store"], "facts");

    // What the trace keeps of how it came is another matter, and has its own verb; then it is nowhere.
    let sessions = agent.clawk(["sessions", "--format", "json"]).assert().success();
    let sessions: Value = serde_json::from_slice(&sessions.get_output().stdout).unwrap();
    for session in sessions["sessions"].as_array().unwrap() {
        let id = session["session"].as_str().unwrap();
        // Sessions without content have nothing to erase.
        let mut redact = agent.clawk(["trace", "redact", "--state", &state, "--session", id]);
        redact.args(["--reason", "asked for"]).output().unwrap();
    }
    for entry in walk(&agent.state()) {
        let bytes = std::fs::read(&entry).unwrap();
        let found = bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes());
        assert!(!found, "{} still holds it", entry.display());
    }
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => files.extend(walk(&entry.path())),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
    files
}
