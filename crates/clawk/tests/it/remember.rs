//! An agent that remembers, as a process: stores in folders, vectors of a provider, what leaves a context, what is forgotten.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::serve::Server;

/// The manifest of an agent with a scripted model, these stores and these further providers.
fn manifest(stores: &str, more: &str, window: u32) -> String {
    format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: You are tested., autonomy: autonomous, context_files: {{ memory: MEMORY.md }} }}
  providers:
    - inline: {{ name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: {{ type: none }}, limits: {{ max_context_window: {window} }} }}
{more}
  channels:
    - inline: {{ name: here, type: cli, transport: stdio, auth: {{ secret_ref: NONE }} }}
  tools:
    - inline: {{ name: context-write, description: Writes, input_schema: {{ type: object }} }}
    - inline: {{ name: memory-store, description: Stores, input_schema: {{ type: object, properties: {{ store: {{ type: string }} }} }} }}
  sandbox:
    inline: {{ level: process }}
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
  memory:
    inline:
      name: head
      stores:
{stores}
"#
    )
}

const SCRIPT: &str = r#"
scenes:
  - user: keep
    steps:
      - call: [{ name: memory-store, arguments: { store: notes, content: "The lamp in the hall is green." } }]
      - say: "kept"
  - user: learn
    steps:
      - call: [{ name: context-write, arguments: { file: MEMORY.md, content: "likes tea" } }]
      - say: "learnt"
  - user: drink
    steps:
      - call: [{ name: context-write, arguments: { file: MEMORY.md, content: "likes coffee" } }]
      - say: "learnt"
  - steps:
      - say: "Noted."
"#;

fn agent(stores: &str, more: &str, window: u32) -> Agent {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), manifest(stores, more, window)).unwrap();
    std::fs::write(agent.path("script.yaml"), SCRIPT).unwrap();
    agent
}

/// What a client says of the agent that it expects.
fn named() -> Value {
    json!({ "kind": "Claw", "claw": "0.3.0", "metadata": { "name": "tested", "version": "1.0.0" },
        "spec": { "identity": { "inline": { "personality": "x" } }, "providers": [{ "inline": {
            "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": { "type": "none" } } }] } })
}

fn said(agent: &Agent, words: &str) -> String {
    let done = agent.clawk(["run", "claw.yaml", "-m", words]).assert().success();
    text(&done.get_output().stdout)
}

fn json_of(agent: &Agent, args: &[&str]) -> Value {
    let done = agent
        .clawk([])
        .args(args)
        .args(["--format", "json"])
        .assert()
        .success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

fn anywhere(folder: &Path, needle: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(anywhere(&entry.path(), needle));
        } else if kind.is_file() {
            let bytes = std::fs::read(entry.path()).unwrap();
            if bytes.windows(needle.len()).any(|part| part == needle.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn stores_in_folders_serve_an_agent_from_end_to_end() {
    let stores = r#"        - { name: notes, type: semantic, backend: filesystem }
        - { name: talks, type: conversation, backend: filesystem, path: "~/kept/{identity_name}" }
        - { name: files, type: workspace, backend: filesystem, isolation: shared }"#;
    let agent = agent(stores, "", 100_000);
    let valid = json_of(&agent, &["validate", "claw.yaml"]);
    assert_eq!((&valid["valid"], &valid["warnings"]), (&json!(true), &json!([])));
    said(&agent, "keep");
    // A person can read it, where the manifest says.
    let notes = std::fs::read_to_string(agent.state().join("memory/notes/tested/entries.md")).unwrap();
    assert!(notes.contains("The lamp in the hall is green."), "{notes}");
    let talks = std::fs::read_to_string(agent.path("kept/tested/tested/entries.md")).unwrap();
    assert!(talks.contains("keep") && talks.contains("kept"), "{talks}");
    // A turn of another session recalls both, and the prompt is built again byte for byte.
    said(&agent, "what of the lamp in the hall?");
    let prompt = json_of(&agent, &["sessions", "prompt", "last", "--turn", "1"]);
    let system = prompt["system"].as_str().unwrap();
    assert!(
        system.contains("store=\"notes\"") && system.contains("The lamp in the hall is green."),
        "{system}"
    );
    assert_eq!(prompt["searches"][1]["used"], "static", "{prompt}");
    // The model is told which stores there are.
    let store = &prompt["tools"][1]["input_schema"]["properties"]["store"];
    assert_eq!(store["description"], "One of: notes, talks, files", "{prompt}");

    let listed = json_of(&agent, &["memory", "list", "--store", "notes"]);
    let id = listed["entries"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        json_of(&agent, &["memory", "search", "green", "lamps"])["entries"][0]["id"],
        json!(id)
    );
    let why = json_of(&agent, &["memory", "why", &id]);
    let kinds: Vec<&str> = why["chain"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["entry", "call", "message"], "{why}");
    assert_eq!(
        (&why["chain"][1]["tool"], &why["chain"][2]["text"]),
        (&json!("memory-store"), &json!("keep"))
    );

    let gone = json_of(
        &agent,
        &[
            "memory",
            "forget",
            &id,
            "--store",
            "notes",
            "--reason",
            "asked for",
        ],
    );
    assert_eq!(gone["forgotten"], json!([id]));
    assert!(gone["copies"].as_u64() > Some(0), "{gone}");
    assert_eq!(
        anywhere(&agent.state(), "in the hall is green"),
        Vec::<std::path::PathBuf>::new()
    );
    let verified = json_of(
        &agent,
        &["trace", "verify", "--state", agent.state().to_str().unwrap()],
    );
    assert_eq!(verified["valid"], true, "{verified}");
}

#[test]
fn one_command_forgets_an_entry_and_every_copy_of_it() {
    const SECRET: &str = "the wedding is on the ninth of May";
    let stores = "        - { name: talks, type: conversation }\n        - { name: notes, type: semantic }";
    let agent = agent(stores, "", 100_000);
    said(&agent, &format!("remember that {SECRET}"));
    said(&agent, "when is the wedding, in May?");
    let listed = json_of(&agent, &["memory", "list", "--store", "talks"]);
    let entries = listed["entries"].as_array().unwrap();
    let entry = entries
        .iter()
        .find(|entry| entry["content"].as_str().unwrap().contains(SECRET))
        .unwrap();
    let id = entry["id"].as_str().unwrap();
    // It was said, recalled, and stands in the second turn's record.
    assert!(!anywhere(&agent.state(), SECRET).is_empty());
    let gone = json_of(
        &agent,
        &[
            "memory",
            "forget",
            id,
            "--store",
            "talks",
            "--reason",
            "asked for",
        ],
    );
    assert!(gone["copies"].as_u64() >= Some(2), "{gone}");
    assert_eq!(anywhere(&agent.state(), SECRET), Vec::<std::path::PathBuf>::new());
    let verified = json_of(
        &agent,
        &["trace", "verify", "--state", agent.state().to_str().unwrap()],
    );
    assert_eq!(verified["valid"], true, "{verified}");
    said(&agent, "go on");
}

#[test]
fn a_long_conversation_is_compacted_and_every_prompt_is_built_again_byte_for_byte() {
    let stores = "        - { name: talks, type: conversation, compaction: { strategy: summarize } }";
    let agent = agent(stores, "", 2000);
    let mut serve = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(serve.initialize(&named())["result"].is_object());
    for n in 0..24 {
        let text = format!("fact {n} is {}", "blue and round ".repeat(20));
        let id = format!("5f3c1c62-6f3e-4d55-9a53-{n:012}");
        let told = serve.ask(
            "claw.message.send",
            &json!({ "text": text, "request_id": id, "conversation": "one" }),
        );
        assert_eq!(told["result"]["stop"], "answered", "{told}");
    }
    assert!(serve.end().success());
    let state = agent.state();
    let state = state.to_str().unwrap();
    agent
        .clawk(["trace", "export", "--state", state, "-o", "out.jsonl"])
        .assert()
        .success();
    let events = std::fs::read_to_string(agent.path("out.jsonl")).unwrap();
    let kinds: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let compacted: Vec<&Value> = kinds
        .iter()
        .filter(|event| event["event_type"] == "ckp.context.compacted")
        .collect();
    assert!(compacted.len() > 1, "{compacted:?}");
    assert_eq!(compacted[0]["payload"]["method"], "model");
    let accepted = kinds
        .iter()
        .find(|event| event["event_type"] == "ckp.message.accepted")
        .unwrap();
    let session = accepted["session_id"].as_str().unwrap();
    for turn in 1..=24 {
        let prompt = json_of(
            &agent,
            &["sessions", "prompt", session, "--turn", &turn.to_string()],
        );
        let last = prompt["messages"].as_array().unwrap().last().unwrap();
        assert!(
            last["text"]
                .as_str()
                .unwrap()
                .starts_with(&format!("fact {} ", turn - 1)),
            "turn {turn}: {last}"
        );
    }
    agent
        .clawk(["trace", "replay", "--state", state])
        .assert()
        .success();
}

#[test]
fn every_version_of_a_context_file_is_kept_and_shown() {
    let agent = agent("        - { name: notes, type: semantic }", "", 100_000);
    std::fs::write(agent.path("MEMORY.md"), "knows nothing").unwrap();
    said(&agent, "learn");
    said(&agent, "drink");
    let found = json_of(&agent, &["memory", "versions", "MEMORY.md"]);
    let versions = found["versions"].as_array().unwrap();
    assert_eq!(versions.len(), 4, "{found}");
    for (number, words) in [("1", "knows nothing"), ("2", "likes tea"), ("4", "likes coffee")] {
        let done = agent
            .clawk(["memory", "versions", "MEMORY.md", "--show", number])
            .assert()
            .success();
        assert_eq!(text(&done.get_output().stdout), words, "{found}");
    }
}

/// A strict fake of an embeddings API: three directions, by what a text speaks of.
struct Embeddings {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    over: Arc<AtomicBool>,
}

impl Embeddings {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, over) = (
            Arc::<Mutex<Vec<String>>>::default(),
            Arc::new(AtomicBool::new(false)),
        );
        let (seen, ends) = (Arc::clone(&asked), Arc::clone(&over));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                answer(stream.unwrap(), &seen);
            }
        });
        Self { port, asked, over }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Embeddings {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn answer(mut stream: TcpStream, seen: &Mutex<Vec<String>>) {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    let (head, mut body) = loop {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes.extend_from_slice(&piece[..read]),
        }
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
            break (head, bytes.split_off(end + 4));
        }
    };
    if head.starts_with("get /v1/models ") {
        // Whether it can be reached.
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")
            .unwrap();
        return;
    }
    assert!(head.starts_with("post /v1/embeddings http/1.1"), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    let length = head.split("content-length: ").nth(1).unwrap();
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    while body.len() < length {
        let read = stream.read(&mut piece).unwrap();
        body.extend_from_slice(&piece[..read]);
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    let keys: Vec<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["encoding_format", "input", "model"]);
    let texts: Vec<String> = serde_json::from_value(body["input"].clone()).unwrap();
    assert!((1..=64).contains(&texts.len()) && texts.iter().all(|text| !text.is_empty()));
    let data: Vec<Value> = (0..)
        .zip(&texts)
        .map(|(index, text)| {
            let of = |words: &[&str]| {
                if words.iter().any(|word| text.contains(word)) {
                    1.0
                } else {
                    0.05
                }
            };
            let vector = [
                of(&["physician", "doctor"]),
                of(&["bicycle", "wheels"]),
                of(&["tax", "money"]),
            ];
            json!({"object": "embedding", "index": index, "embedding": vector})
        })
        .collect();
    seen.lock().unwrap().extend(texts);
    let body = json!({"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 9, "total_tokens": 9}}).to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
}

#[test]
fn a_providers_vectors_are_paid_once_and_find_by_meaning() {
    let server = Embeddings::start();
    let more = format!(
        "    - inline: {{ name: embed, protocol: openai-compatible, endpoint: \"http://127.0.0.1:{}/v1\", model: e5, auth: {{ type: none }} }}",
        server.port
    );
    let embedding = "embedding: { provider_ref: embed, model: e5, dimensions: 3 }";
    let stores = format!(
        r#"        - {{ name: notes, type: semantic, {embedding} }}
        - {{ name: linear, type: semantic, {embedding}, search: {{ fusion: linear-combination, top_k: 1 }} }}
        - {{ name: near, type: semantic, {embedding}, search: {{ strategy: vector-only }} }}
        - {{ name: words, type: semantic, {embedding}, search: {{ strategy: fts-only }} }}
        - {{ name: folder, type: semantic, backend: filesystem, {embedding} }}"#
    );
    let agent = agent(&stores, &more, 100_000);
    let valid = json_of(&agent, &["validate", "claw.yaml"]);
    assert_eq!(valid["valid"], true, "{valid}");
    // Vectors that nothing searches by are the only thing to say.
    let warnings = valid["warnings"].as_array().unwrap();
    let paths: Vec<_> = warnings.iter().map(|warning| &warning["path"]).collect();
    assert_eq!(paths, ["/spec/memory/inline/stores/3/embedding"], "{valid}");
    let mut serve = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(serve.initialize(&named())["result"].is_object());
    let texts = [
        "Her physician is Weber.",
        "The bicycle is red.",
        "The tax is due in March.",
    ];
    let all = ["notes", "linear", "near", "words", "folder"];
    for (n, store) in all.iter().enumerate() {
        let entries: Vec<Value> = texts.iter().map(|text| json!({ "content": text })).collect();
        let context =
            json!({ "request_id": format!("dd0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested" });
        let answer = serve.ask(
            "claw.memory.store",
            &json!({ "store": store, "entries": entries, "context": context }),
        );
        assert_eq!(answer["result"]["stored"], 3, "{answer}");
        // Words find at once.
        let query = json!({ "store": store, "query": { "type": "semantic", "text": "bicycle red" } });
        let found = serve.ask("claw.memory.query", &query);
        if *store != "near" {
            assert_eq!(
                found["result"]["entries"][0]["content"], "The bicycle is red.",
                "{store}: {found}"
            );
        }
    }
    let mut ask = |store: &str| {
        let query = json!({ "store": store, "query": { "type": "semantic", "text": "a doctor" } });
        let found = serve.ask("claw.memory.query", &query);
        let entries = found["result"]["entries"].as_array().unwrap().clone();
        for entry in &entries {
            let score = entry["score"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&score), "{entry}");
        }
        entries
    };
    // Vectors come by themselves within five seconds.
    let begun = Instant::now();
    for store in ["notes", "linear", "near", "folder"] {
        loop {
            let found = ask(store);
            if found.first().is_some_and(|entry| entry["content"] == texts[0]) {
                assert!(store != "linear" || found.len() == 1, "{found:?}");
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "{store}: no vectors came: {found:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(ask("words").is_empty(), "words alone know no doctor");
    // Five stores hold the same texts, and each text was paid once.
    let asked = server.asked();
    for words in texts {
        assert_eq!(
            asked.iter().filter(|text| text.trim() == words).count(),
            1,
            "{asked:?}"
        );
    }
    assert_eq!(
        asked.iter().filter(|text| text.as_str() == "a doctor").count(),
        1,
        "{asked:?}"
    );
    assert!(serve.end().success());
    // Paid from the purse and on the record; a restart asks for nothing again.
    agent
        .clawk([
            "trace",
            "export",
            "--state",
            agent.state().to_str().unwrap(),
            "-o",
            "out.jsonl",
        ])
        .assert()
        .success();
    let events = std::fs::read_to_string(agent.path("out.jsonl")).unwrap();
    let events: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let paid = events.iter().filter(|event| {
        event["event_type"] == "ckp.provider.completed" && event["payload"]["provider"] == "embed"
    });
    assert!(paid.clone().count() > 0 && paid.clone().all(|event| event["payload"]["input_tokens"] == 9));
    let before = server.asked().len();
    said(&agent, "hello");
    let again = server.asked();
    assert_eq!(again[before..], ["hello".to_owned()], "the question alone");
}

#[test]
fn a_used_up_purse_pays_for_no_vectors_and_words_still_find() {
    let server = Embeddings::start();
    let more = format!(
        "    - inline: {{ name: embed, protocol: openai-compatible, endpoint: \"http://127.0.0.1:{}/v1\", model: e5, auth: {{ type: none }} }}",
        server.port
    );
    let stores = "        - { name: notes, type: semantic, embedding: { provider_ref: embed, model: e5, dimensions: 3 } }";
    for (budget, pays) in [
        ("[budgets.day]\ntokens = 1\n", false),
        ("[budgets.day]\ntokens = 100000\n", true),
    ] {
        let agent = agent(stores, &more, 100_000);
        std::fs::write(agent.path("clawk.toml"), budget).unwrap();
        let before = server.asked().len();
        let mut serve = Server::start(&agent, &["claw.yaml", "--stdio"]);
        assert!(serve.initialize(&named())["result"].is_object());
        let context = json!({ "request_id": "dd0e8400-e29b-41d4-a716-000000000001", "identity": "tested" });
        let entries = json!([{ "content": "The bicycle is red." }]);
        let stored = json!({ "store": "notes", "entries": entries, "context": context });
        assert_eq!(serve.ask("claw.memory.store", &stored)["result"]["stored"], 1);
        let mut found = |text: &str| {
            let query = json!({ "store": "notes", "query": { "type": "semantic", "text": text } });
            let found = serve.ask("claw.memory.query", &query);
            found["result"]["entries"][0]["content"] == "The bicycle is red."
        };
        assert!(found("bicycle"), "words find, whatever is paid");
        let until = Instant::now() + Duration::from_secs(if pays { 30 } else { 2 });
        let by_meaning = loop {
            if found("two wheels") {
                break true;
            }
            if Instant::now() > until {
                break false;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert_eq!(by_meaning, pays, "{budget}");
        assert_eq!(
            server.asked().len() > before,
            pays,
            "{budget}: {:?}",
            server.asked()
        );
        assert!(serve.end().success());
    }
}

/// Forgets what a store on a server holds, whose vectors were paid for: no vector of it is left, on the server or in the state.
fn forgets_paid_vectors(backend: &str, config: &str, secrets: &str, left: Option<&dyn Fn() -> u32>) {
    use std::os::unix::fs::PermissionsExt as _;
    let embeddings = Embeddings::start();
    let more = format!(
        "    - inline: {{ name: embed, protocol: openai-compatible, endpoint: \"http://127.0.0.1:{}/v1\", model: e5, auth: {{ type: none }} }}",
        embeddings.port
    );
    let stores = format!(
        "        - {{ name: notes, type: semantic, backend: {backend}, embedding: {{ provider_ref: embed, model: e5, dimensions: 3 }} }}"
    );
    let agent = agent(&stores, &more, 100_000);
    let file = agent.path("secrets.toml");
    std::fs::write(&file, secrets).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let config = format!("{config}\n[secrets_store]\nfile = \"secrets.toml\"\n");
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    let mut serve = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(serve.initialize(&named())["result"].is_object());
    let (gone, stays) = ("Her physician is Weber.", "The bicycle is red.");
    let entries = json!([{ "content": gone }, { "content": stays }]);
    let context = json!({ "request_id": "dd0e8400-e29b-41d4-a716-000000000001", "identity": "tested" });
    let answer = serve.ask(
        "claw.memory.store",
        &json!({ "store": "notes", "entries": entries, "context": context }),
    );
    assert_eq!(answer["result"]["stored"], 2, "{answer}");
    let id = answer["result"]["ids"][0].as_str().unwrap().to_owned();
    // The question by other words is answered once the vectors are there.
    let begun = Instant::now();
    let query = json!({ "store": "notes", "query": { "type": "semantic", "text": "a doctor" } });
    loop {
        let found = serve.ask("claw.memory.query", &query);
        if found["result"]["entries"][0]["content"] == gone {
            break;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no vectors came: {found}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(serve.end().success());
    let cached = |text: &str| {
        let script = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); \
            print(c.execute('SELECT count(*) FROM embeddings WHERE hex(digest) = upper(?)', [sys.argv[2]]).fetchone()[0])";
        let digest = clawk_recall::words::text_of(&json!(text), None);
        let digest = clawk_trace::chain::digest_of(digest.as_bytes()).to_hex();
        let mut command = std::process::Command::new("python3");
        let command = command.args(["-c", script]).arg(agent.state().join("state.db"));
        let output = command.arg(digest).output().unwrap();
        assert!(output.status.success(), "{}", crate::agent::text(&output.stderr));
        crate::agent::text(&output.stdout).trim().parse::<u32>().unwrap()
    };
    let before = left.map(|left| left());
    assert_eq!((cached(gone), cached(stays)), (1, 1));
    let args = [
        "memory",
        "forget",
        &id,
        "--store",
        "notes",
        "--reason",
        "asked for",
        "--claw",
        "claw.yaml",
    ];
    assert_eq!(json_of(&agent, &args)["forgotten"][0], json!(id));
    assert_eq!(
        cached(gone),
        0,
        "{backend}: the vector that was paid for is still in the state"
    );
    assert_eq!(cached(stays), 1, "{backend}: another entry's vector is gone");
    if let (Some(left), Some(before)) = (left, before) {
        assert_eq!(left(), before - 1, "{backend}: the server's vectors");
    }
    let mut serve = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(serve.initialize(&named())["result"].is_object());
    let found = serve.ask("claw.memory.query", &query);
    assert!(!found.to_string().contains("physician"), "{found}");
    assert!(serve.end().success());
    assert_eq!(
        anywhere(&agent.state(), "physician is Weber"),
        [] as [std::path::PathBuf; 0]
    );
}

#[cfg(feature = "postgres")]
#[test]
fn what_is_forgotten_on_postgresql_leaves_no_vector_that_was_paid_for() {
    let database = crate::postgres::database::Server::start();
    let config = format!(
        "[postgres]\nurl = \"{}\"\nsecret_ref = \"PG_PASSWORD\"\ntls = \"disable\"\nconnect_timeout_ms = 20000\noperation_timeout_ms = 30000\n",
        database.url()
    );
    let secrets = format!(
        "PG_PASSWORD = \"{}\"\n",
        crate::postgres::database::Server::PASSWORD
    );
    let left = || {
        let sql = "SELECT count(*) FROM clawk.memory_vectors WHERE model LIKE 'embed/%'";
        database.sql(sql).parse().unwrap()
    };
    for backend in ["postgresql", "pgvector"] {
        forgets_paid_vectors(backend, &config, &secrets, Some(&left));
        database.sql("DROP SCHEMA clawk CASCADE");
    }
}

#[test]
fn what_is_forgotten_on_qdrant_leaves_no_vector_that_was_paid_for() {
    let database = crate::qdrant::database::Server::start();
    let config = format!(
        "[qdrant]\nurl = \"{}\"\nsecret_ref = \"QDRANT_KEY\"\noperation_timeout_ms = 30000\n",
        database.url()
    );
    let secrets = format!("QDRANT_KEY = \"{}\"\n", crate::qdrant::database::Server::KEY);
    forgets_paid_vectors("qdrant", &config, &secrets, None);
}
