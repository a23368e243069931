//! `kill -9` in the middle of storing, compacting, expiring and summarising, against the real program: what was acknowledged is
//! there, and nothing is there twice.

#![expect(clippy::print_stderr, reason = "numbers for whoever runs it by hand")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, text};
use crate::serve::Server;

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
  policies:
    - inline: { name: tested, rules: [{ id: all, action: allow, scope: all }] }
  memory:
    inline:
      name: head
      stores:
        - { name: facts, type: key-value }
        - { name: plain, type: semantic }
        - { name: notes, type: semantic, retention: { max_entries: 24 }, compaction: { strategy: summarize } }
        - { name: window, type: semantic, retention: { max_entries: 30 }, compaction: { strategy: sliding-window } }
        - { name: young, type: semantic, retention: { max_age: 1s } }
        - { name: folder, type: semantic, backend: filesystem, retention: { max_entries: 24 }, compaction: { strategy: summarize } }
"#;

const STORES: [&str; 6] = ["facts", "plain", "notes", "window", "young", "folder"];

/// Requests after which every store was compacted.
const ENOUGH: u64 = 100;

/// Those that compaction concerns.
const COMPACTED: [&str; 3] = ["notes", "window", "folder"];

fn named() -> Value {
    json!({ "kind": "Claw", "claw": "0.3.0", "metadata": { "name": "tested", "version": "1.0.0" },
        "spec": { "identity": { "inline": { "personality": "x" } }, "providers": [{ "inline": {
            "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": { "type": "none" } } }] } })
}

/// A request with an id of its own; the same number is the same request.
fn request(n: u64) -> (&'static str, Value) {
    let index = usize::try_from(n).unwrap();
    let store = STORES[index % STORES.len()];
    let context = json!({ "request_id": format!("aa0e8400-e29b-41d4-a716-{n:012}"), "identity": "tested" });
    if n % 13 == 12 {
        return (
            "claw.memory.compact",
            json!({ "store": COMPACTED[index % 3], "context": context }),
        );
    }
    let entry = match store {
        "facts" => json!({ "key": format!("key-{n}"), "content": format!("value-{n}.") }),
        _ => json!({ "content": format!("value-{n}.") }),
    };
    (
        "claw.memory.store",
        json!({ "store": store, "entries": [entry], "context": context }),
    )
}

/// Numbers that look random and are the same each time.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// What each store holds: in sight and set aside, by the number in its text; summaries apart.
fn held(agent: &Agent) -> BTreeMap<String, Vec<u64>> {
    let mut held: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for aside in [false, true] {
        let mut command = agent.clawk(["memory", "list", "--limit", "100000", "--format", "json"]);
        let done = command.args(aside.then_some("--aside")).assert().success();
        let listed: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
        let mut ids = BTreeSet::new();
        for entry in listed["entries"].as_array().unwrap() {
            let store = entry["store"].as_str().unwrap();
            assert!(
                ids.insert((store.to_owned(), entry["id"].clone().to_string())),
                "twice: {entry}"
            );
            if entry["metadata"].get("summary_of").is_none() {
                let text = entry["content"].as_str().unwrap();
                let number = text.strip_prefix("value-").unwrap().strip_suffix('.').unwrap();
                held.entry(store.to_owned())
                    .or_default()
                    .push(number.parse().unwrap());
            }
        }
    }
    held
}

fn check(agent: &Agent, acknowledged: &BTreeSet<u64>, round: u64) {
    let held = held(agent);
    for (store, numbers) in &held {
        let different: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(
            different.len(),
            numbers.len(),
            "round {round}: something is twice in `{store}`"
        );
    }
    for n in acknowledged {
        let (method, params) = request(*n);
        let store = params["store"].as_str().unwrap();
        if method == "claw.memory.store" && store != "young" {
            let there = held.get(store).is_some_and(|numbers| numbers.contains(n));
            assert!(
                there,
                "round {round}: {n} was acknowledged and is not in `{store}`"
            );
        }
    }
}

fn killed(rounds: u64) {
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), MANIFEST).unwrap();
    std::fs::write(
        agent.path("script.yaml"),
        "scenes:\n  - steps:\n      - say: \"A summary.\"\n",
    )
    .unwrap();
    let (mut acknowledged, mut n, mut seed) = (BTreeSet::new(), 0, 0x9e37_79b9_7f4a_7c15);
    let (mut cut_off, mut round) = (0, 0);
    // A busy machine answers little before it is killed: then there are more rounds.
    while round < rounds || (n <= ENOUGH.max(rounds * 2) && round < rounds * 8) {
        let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
        assert!(server.initialize(&named())["result"].is_object());
        let (pid, wait) = (
            server.id().to_string(),
            Duration::from_micros(next(&mut seed) % 250_000),
        );
        let killer = std::thread::spawn(move || {
            std::thread::sleep(wait);
            let done = std::process::Command::new("kill").args(["-9", &pid]).status();
            assert!(done.unwrap().success());
        });
        // The first request is the one that nobody answered: it is the same request.
        loop {
            let (method, params) = request(n);
            let Some(answer) = server.try_ask(method, &params) else {
                cut_off += 1;
                break;
            };
            assert!(answer["result"].is_object(), "{method} {params}: {answer}");
            acknowledged.insert(n);
            n += 1;
        }
        killer.join().unwrap();
        drop(server);
        if round % 20 == 19 {
            check(&agent, &acknowledged, round);
        }
        round += 1;
    }
    check(&agent, &acknowledged, rounds);
    assert_eq!(cut_off, round);
    assert!(n > rounds * 2, "the rounds did real work: {n} requests");
    // Summaries were made and stand for what is set aside; it comes back, each once.
    for store in ["notes", "window", "folder"] {
        let done = agent
            .clawk(["memory", "restore", "--all", "--store", store])
            .assert()
            .success();
        assert!(text(&done.get_output().stdout).contains("are back"));
    }
    check(&agent, &acknowledged, rounds);
    eprintln!(
        "{round} kills, {} acknowledged of {n} requests",
        acknowledged.len()
    );
    let verified = agent.clawk(["trace", "verify"]).assert().success();
    assert!(!verified.get_output().stdout.is_empty());
}

#[test]
fn nothing_remembered_is_lost_or_doubled_by_kill_9() {
    killed(12);
}

#[test]
#[ignore = "200 kills take minutes: `cargo nextest run -p clawk --run-ignored only -E 'test(two_hundred_kills)'`"]
fn two_hundred_kills_lose_and_double_nothing() {
    killed(200);
}
