//! Whatever comes: the connection lives, and every request id is answered exactly once.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, call, fresh, initialize};

/// One line of input and the ids that it must answer.
#[derive(Debug, Clone)]
enum Line {
    Bytes(Vec<u8>),
    Request(usize),
    Batch(Vec<usize>),
}

const KINDS: usize = 12;

fn message(kind: usize, id: u64) -> Value {
    let method_and_params = [
        ("claw.status", json!({})),
        ("claw.tool.call", call("echo", &fresh())),
        ("claw.tool.call", call("slow", &fresh())),
        ("claw.tool.call", call("forbidden", &fresh())),
        ("claw.tool.call", json!({"name": 7})),
        ("claw.tool.approve", json!({"request_id": fresh()})),
        (
            "claw.memory.query",
            json!({"store": "context", "query": {"type": "key", "key": "a"}}),
        ),
        ("claw.swarm.discover", json!({})),
        ("claw.shutdown", json!({})),
        ("claw.initialize", initialize()),
        ("claw.initialize", json!({})),
        ("claw.unknown", json!([])),
    ];
    let (method, params) = &method_and_params[kind % KINDS];
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn line() -> impl Strategy<Value = Line> {
    let json_like = prop::collection::vec(
        prop_oneof![
            Just("{"),
            Just("}"),
            Just("["),
            Just("]"),
            Just("\"id\":"),
            Just("null"),
            Just("\"method\":"),
            Just("\"claw.status\""),
            Just("\"jsonrpc\":\"2.0\""),
            Just(","),
            Just("\\"),
            Just("\"")
        ],
        0..12,
    );
    prop_oneof![
        2 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Line::Bytes),
        2 => json_like.prop_map(|parts| Line::Bytes(parts.concat().into_bytes())),
        6 => (0..KINDS).prop_map(Line::Request),
        1 => prop::collection::vec(0..KINDS, 1..6).prop_map(Line::Batch),
    ]
}

fn ids(message: &Value, counts: &mut HashMap<u64, usize>) {
    for answer in message
        .as_array()
        .map_or(std::slice::from_ref(message), Vec::as_slice)
    {
        if let Some(id) = answer["id"].as_u64().filter(|id| *id >= 1_000_000) {
            *counts.entry(id).or_default() += 1;
        }
    }
}

async fn play(lines: Vec<Line>, chunk: usize) -> (HashMap<u64, usize>, u64) {
    let mut client = Client::connect(Launched::new(3));
    let mut input = Vec::new();
    let mut next = 1_000_000u64;
    let mut id = || {
        next += 1;
        next
    };
    for line in lines {
        match line {
            Line::Bytes(bytes) => input.extend(bytes.into_iter().filter(|byte| *byte != b'\n')),
            Line::Request(kind) => input.extend_from_slice(message(kind, id()).to_string().as_bytes()),
            Line::Batch(kinds) => {
                let batch: Vec<Value> = kinds.into_iter().map(|kind| message(kind, id())).collect();
                input.extend_from_slice(json!(batch).to_string().as_bytes());
            }
        }
        input.push(b'\n');
    }
    let sent = next - 1_000_000;
    for piece in input.chunks(chunk) {
        client.raw(piece).await;
    }
    // Behind it all, the connection lives.
    client.initialize().await;
    assert_eq!(client.state().await, "READY");
    let (rest, ended) = client.finish().await;
    assert!(ended.drained);
    let mut counts = HashMap::new();
    rest.iter().for_each(|message| ids(message, &mut counts));
    (counts, sent)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_answered_once_and_nothing_ends_the_connection(
        lines in prop::collection::vec(line(), 0..25),
        chunk in 1usize..400,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (counts, sent) = runtime.block_on(play(lines, chunk));
        prop_assert_eq!(counts.len() as u64, sent);
        prop_assert!(counts.values().all(|count| *count == 1), "{:?}", counts);
    }
}
