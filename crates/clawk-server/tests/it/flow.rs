//! R25: concurrency, its bounds, and a peer that does not read.

use std::collections::HashSet;
use std::time::Duration;

use clawk_server::Options;
use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, call, fresh};

#[tokio::test]
async fn r25_answers_come_as_they_are_ready() {
    let mut client = Client::ready(2).await;
    let hang = client.request("claw.tool.call", call("hang", &fresh())).await;
    let slow = client.request("claw.tool.call", call("slow", &fresh())).await;
    let quick = client.request("claw.tool.call", call("echo", &fresh())).await;
    let order = [
        client.next().await["id"].clone(),
        client.next().await["id"].clone(),
    ];
    assert_eq!(order, [json!(quick), json!(slow)]);
    client.result("claw.shutdown", json!({"timeout_ms": 1})).await;
    assert!(client.answer(hang).await.get("error").is_some());
}

#[tokio::test]
async fn r25_many_calls_in_flight_are_each_answered_once() {
    let mut client = Client::ready(2).await;
    let mut expected = HashSet::new();
    for _ in 0..500 {
        expected.insert(client.request("claw.tool.call", call("slow", &fresh())).await);
    }
    let mut seen = HashSet::new();
    while seen.len() < expected.len() {
        let answer = client.next().await;
        assert!(answer.get("result").is_some(), "{answer}");
        assert!(
            seen.insert(answer["id"].as_u64().expect("an id")),
            "answered twice: {answer}"
        );
    }
    assert_eq!(seen, expected);
    let (rest, _) = client.finish().await;
    assert_eq!(rest, Vec::<Value>::new());
}

#[tokio::test]
async fn r25_reading_pauses_when_all_places_are_taken_and_goes_on() {
    let mut client = Client::ready(2).await;
    let mut hanging = Vec::new();
    for _ in 0..256 {
        hanging.push(client.request("claw.tool.call", call("hang", &fresh())).await);
    }
    assert_eq!(
        client.state().await,
        "READY",
        "256 calls still leave the reader free"
    );
    let one_more = client.request("claw.tool.call", call("echo", &fresh())).await;
    let status = client.request("claw.status", json!({})).await;
    let paused = tokio::time::timeout(Duration::from_millis(100), client.answer(status)).await;
    assert!(paused.is_err(), "the 257th call was read: {paused:?}");
    client.cancel.cancel();
    let (rest, ended) = client.finish().await;
    assert!(!ended.drained);
    let ids: HashSet<u64> = rest
        .iter()
        .map(|answer| answer["id"].as_u64().expect("an id"))
        .collect();
    assert!(
        hanging.iter().all(|id| ids.contains(id)),
        "every call that was taken is answered"
    );
    assert!(!ids.contains(&one_more), "what was not read has had no effect");
    assert_eq!(ids.len(), rest.len());
}

#[tokio::test]
async fn r25_a_peer_that_does_not_read_stops_reading_but_not_the_work() {
    let agent = Launched::beating(2, Some(1));
    let mut client = Client::with(
        agent,
        Options {
            drain_timeout_ms: 500,
            ..Options::default()
        },
    );
    client.initialize().await;
    let text = "x".repeat(60_000);
    let mut sent = 0u64;
    // Without reading: until our own sending is held up.
    loop {
        let mut params = call("echo", &fresh());
        params["arguments"]["text"] = json!(text);
        let message = json!({"jsonrpc": "2.0", "id": sent, "method": "claw.tool.call", "params": params});
        let line = format!("{message}\n");
        if tokio::time::timeout(Duration::from_millis(300), client.raw(line.as_bytes()))
            .await
            .is_err()
        {
            break;
        }
        sent += 1;
        assert!(sent < 1000, "60 MB were read for a peer that reads nothing");
    }
    let ran = client.agent.runs("echo") as u64;
    assert!(ran + 8 >= sent, "what was read was worked on: {ran} of {sent}");
    let mut answered = HashSet::new();
    let mut beats = 0;
    while (answered.len() as u64) < sent {
        let message = client.next().await;
        match message["id"].as_u64() {
            Some(id) => assert!(answered.insert(id) && message.get("result").is_some(), "{id}"),
            None => beats += 1,
        }
    }
    assert!(beats < 2000, "heartbeats are dropped while nobody reads: {beats}");
}

#[tokio::test]
async fn answers_that_nobody_reads_do_not_keep_the_process() {
    let mut client = Client::ready(2).await;
    let mut params = call("echo", &fresh());
    params["arguments"]["text"] = json!("x".repeat(500_000));
    client.request("claw.tool.call", params).await;
    client.cancel.cancel();
    let ended = client.vanish().await;
    assert!(ended.drained);
}
