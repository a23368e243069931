//! How well a store finds: by words, by vectors, by both. The set is ours, `fixtures/retrieval.tsv`: in each line a fact, a remark that is
//! like it, and three questions: in other words, in the fact's own words, by a few of its words. Fusion was tuned on the first half
//! (the facts of `planted`) and not on the second. recall@5 is the share of questions whose fact is among the first five entries; MRR the
//! mean of one divided by the fact's place, 0 where it is not among the first ten.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::Agent;
use crate::planted::{Embedder, FILLERS, named};
use crate::serve::Server;

const SET: &str = include_str!("../fixtures/retrieval.tsv");

/// The facts that fusion was tuned on come first.
const TUNED: usize = 50;

/// Fact, remark, and the three questions of each line.
fn set() -> Vec<Vec<&'static str>> {
    SET.lines().map(|line| line.split('\t').collect()).collect()
}

/// Entries of each store.
const ENTRIES: usize = 2_000;

/// Entries of one request.
const BATCH: usize = 100;

/// The stores, by how they are searched: by words, by the built-in table, by a real model.
const STORES: [(&str, &str); 5] = [
    ("words", "search: { strategy: fts-only }"),
    ("static-alone", "search: { strategy: vector-only }"),
    ("static-hybrid", "search: { strategy: hybrid }"),
    (
        "model-alone",
        "search: { strategy: vector-only }, embedding: { provider_ref: embedder, model: nano, dimensions: 384 }",
    ),
    (
        "model-hybrid",
        "search: { strategy: hybrid }, embedding: { provider_ref: embedder, model: nano, dimensions: 384 }",
    ),
];

/// The model's vectors of all entries are there after this time.
const VECTORS: Duration = Duration::from_secs(1500);

fn manifest(embedder: &Embedder) -> String {
    let provider = embedder.provider();
    let stores: String = STORES
        .into_iter()
        .map(|(name, more)| format!("        - {{ name: {name}, type: semantic, scope: global, {more} }}\n"))
        .collect();
    format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: You are tested., autonomy: autonomous }}
  providers:
    - inline: {{ name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: {{ type: none }} }}
{provider}  channels:
    - inline: {{ name: here, type: cli, transport: stdio, auth: {{ secret_ref: NONE }} }}
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
  memory:
    inline:
      name: head
      stores:
{stores}"#
    )
}

fn kept(server: &mut Server, store: &str, first: usize, entries: &[Value]) {
    let context = json!({"request_id": format!("cc0e8400-e29b-41d4-a716-{first:012}"), "identity": "tested"});
    let params = json!({"store": store, "entries": entries, "context": context});
    let answer = server.ask("claw.memory.store", &params);
    assert_eq!(answer["result"]["stored"], entries.len(), "{answer}");
}

/// The score of the first entry that a text finds; 0 where it finds none.
fn score(server: &mut Server, store: &str, text: &str) -> f64 {
    let query = json!({"type": "semantic", "text": text, "top_k": 1});
    let params = json!({"store": store, "query": query, "limit": 1, "context": {"identity": "tested"}});
    let answer = server.ask("claw.memory.query", &params);
    answer["result"]["entries"][0]["score"].as_f64().unwrap_or(0.0)
}

/// The place of a fact, from 1, among the first ten entries that a question finds.
fn place(server: &mut Server, store: &str, fact: &str, question: &str) -> Option<usize> {
    let query = json!({"type": "semantic", "text": question, "top_k": 10});
    let params = json!({"store": store, "query": query, "limit": 10, "context": {"identity": "tested"}});
    let answer = server.ask("claw.memory.query", &params);
    let entries = answer["result"]["entries"]
        .as_array()
        .unwrap_or_else(|| panic!("{answer}"));
    entries
        .iter()
        .position(|entry| entry["content"] == *fact)
        .map(|at| at + 1)
}

#[test]
#[ignore = "minutes: cargo xtask soak memory"]
fn retrieval_by_words_by_vectors_and_by_both() {
    let embedder = Embedder::start();
    let agent = Agent::new();
    std::fs::write(agent.path("claw.yaml"), manifest(&embedder)).unwrap();
    std::fs::write(
        agent.path("script.yaml"),
        "scenes:\n  - steps:\n      - say: \"Noted.\"\n",
    )
    .unwrap();
    let mut server = Server::start(&agent, &["claw.yaml", "--stdio"]);
    assert!(server.initialize(&named())["result"].is_object());
    let set = set();
    let told = set.iter().flat_map(|line| line.iter().take(2));
    let mut texts: Vec<Value> = told.map(|text| json!({ "content": text })).collect();
    for n in 0..ENTRIES - texts.len() {
        texts.push(json!({"content": FILLERS[n * 7 % FILLERS.len()].replace("{n}", &n.to_string())}));
    }
    for (store, _) in STORES {
        for (n, batch) in texts.chunks(BATCH).enumerate() {
            let mark = store.bytes().map(usize::from).sum::<usize>();
            kept(&mut server, store, mark * 1000 + n, batch);
        }
    }
    // The newest get their vectors first, so that the facts, which are the oldest, get them last.
    let until = Instant::now() + VECTORS;
    for store in ["model-alone", "model-hybrid"] {
        for line in &set {
            // By words alone it has half of the points at most.
            while score(&mut server, store, line[0]) < 0.6 {
                assert!(Instant::now() < until, "{store}: no vector for `{}`", line[0]);
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }
    let mut found = std::collections::BTreeMap::new();
    for (store, _) in STORES {
        for (half, lines) in [("tuned", &set[..TUNED]), ("held out", &set[TUNED..])] {
            for (column, kind) in [(2, "other words"), (3, "own words"), (4, "by name")] {
                let places: Vec<Option<usize>> = lines
                    .iter()
                    .map(|line| place(&mut server, store, line[0], line[column]))
                    .collect();
                let of = |count: f64| count / lines.len() as f64;
                let recall = of(places.iter().flatten().filter(|place| **place <= 5).count() as f64);
                let mrr = of(places.iter().flatten().map(|place| 1.0 / *place as f64).sum());
                eprintln!("{store}, {half}, {kind}: recall@5 {recall:.2}, MRR {mrr:.2}");
                *found.entry(store).or_insert(0.0) += recall;
            }
        }
    }
    assert!(
        found["static-hybrid"] >= found["words"],
        "what is fused loses nothing that words find: {found:?}"
    );
    assert!(server.end().success());
}
