//! `claw.heartbeat` (CKP §9.3.1).

use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::Launched;
use crate::wire::{Client, initialize};

fn beats(messages: &[Value]) -> usize {
    messages
        .iter()
        .filter(|message| message["method"] == "claw.heartbeat")
        .count()
}

#[tokio::test]
async fn heartbeats_come_at_the_manifests_interval() {
    let mut client = Client::connect(Launched::beating(1, Some(20)));
    tokio::time::sleep(Duration::from_millis(60)).await;
    client.initialize().await;
    let mut last = 0;
    for _ in 0..3 {
        let beat = client.notification("claw.heartbeat").await;
        assert_eq!(beat["params"]["state"], "READY");
        let uptime = beat["params"]["uptime_ms"].as_u64().expect("a number");
        assert!(uptime >= last + 15, "{uptime} after {last}");
        last = uptime;
        let at = beat["params"]["timestamp"].as_str().expect("a time");
        assert!(at.ends_with('Z') && at.parse::<jiff::Timestamp>().is_ok(), "{at}");
    }
}

#[tokio::test]
async fn there_are_none_before_initialize_nor_after_shutdown() {
    let mut client = Client::connect(Launched::beating(1, Some(10)));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let first = client.ask("claw.status", json!({})).await;
    assert_eq!(first["error"]["code"], -32600);
    assert_eq!(beats(&client.so_far().await), 0, "before initialize");
    client.initialize().await;
    client.notification("claw.heartbeat").await;
    let down = client.request("claw.shutdown", json!({})).await;
    client.answer(down).await;
    client.so_far().await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(beats(&client.so_far().await), 0, "after shutdown");
    client.initialize().await;
    client.notification("claw.heartbeat").await;
}

#[tokio::test]
async fn r3a_a_refused_initialize_leaves_them_going() {
    let mut client = Client::connect(Launched::beating(1, Some(20)));
    client.initialize().await;
    let mut refused = initialize();
    refused["manifest"]["metadata"]["name"] = json!("invalid");
    client.error("claw.initialize", refused).await;
    client.notification("claw.heartbeat").await;
}

#[tokio::test]
async fn the_default_interval_is_not_short() {
    let mut client = Client::ready(1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(beats(&client.so_far().await), 0);
    assert_eq!(client.agent.kernel().heartbeat_interval_ms(), 30_000);
}
