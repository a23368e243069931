//! `db-trigger` on a SQLite file: every change once, also those made while the agent was down; none twice; bounded runs; removal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawk_channels::Channels;
use clawk_kernel::Kernel;
use clawk_kernel::ports::Message;
use clawk_kernel::testing::{Behaviour, Rig, ScriptedModel, calls, manifest, says};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::suite::{start, until};

fn rig(trigger: &Value) -> Rig {
    governed(trigger, &json!({"id": "all", "action": "allow", "scope": "all"}))
}

fn governed(trigger: &Value, rule: &Value) -> Rig {
    let mut rig = Rig::new(manifest(json!({
        "channels": [{"name": "shop-orders", "type": "db-trigger", "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": trigger}],
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [rule]}],
    })));
    let model = ScriptedModel::new(|request, _| {
        Ok(match request.messages.last() {
            Some(Message::User { text, .. }) => calls(&[("write", json!({ "event": text }))]),
            _ => says("done"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

async fn on(rig: &Rig, folder: &Path) -> (Kernel, Channels) {
    let kernel = rig.start().await;
    let config = json!({"url": "sqlite:shop.db", "prompt": "Order: {event}"});
    let configs = BTreeMap::from([("shop-orders".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start(rig, kernel.clone(), configs, &[], folder).await;
    (kernel, channels)
}

async fn ready(channels: &Channels) {
    until(|| async { channels.report().await.unwrap()[0].state.as_str() == "ready" }).await;
}

fn ended(rig: &Rig) -> usize {
    rig.journal
        .inbox()
        .iter()
        .filter(|(_, end)| end.is_some())
        .count()
}

/// What the tool was told, run by run.
fn told(rig: &Rig) -> Vec<String> {
    let runs = rig.runner.runs();
    runs.iter()
        .map(|run| run.1["event"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_change_begins_one_run_also_those_made_while_the_agent_was_down() {
    let rig = rig(&json!({"table": "orders", "max_parallel": 2}));
    rig.runner.set("write", Behaviour::Sleep(30));
    let folder = tempfile::tempdir().unwrap();
    let shop = Connection::open(folder.path().join("shop.db")).unwrap();
    shop.execute_batch("create table orders (id integer primary key, note text, raw blob); insert into orders(note) values ('before')").unwrap();
    let (kernel, channels) = on(&rig, folder.path()).await;
    ready(&channels).await;
    shop.execute_batch("insert into orders(note, raw) values ('first', x'00ff'); update orders set note = 'changed' where note = 'first'; delete from orders where note = 'before'").unwrap();
    // A change that is taken back is no change.
    shop.execute_batch("begin; insert into orders(note) values ('gone'); rollback")
        .unwrap();
    until(|| async { ended(&rig) == 3 }).await;
    let all = told(&rig).join("\n");
    for words in [
        "INSERT in orders",
        "UPDATE in orders",
        "DELETE in orders",
        "\"note\":\"first\"",
        "\"raw\":\"00FF\"",
        "\"note\":\"changed\"",
        "\"note\":\"before\"",
    ] {
        assert!(all.contains(words), "{words}: {all}");
    }
    assert!(!all.contains("gone"), "{all}");
    channels.close().await;
    kernel.shutdown("test", 2_000).await;
    // Down: the trigger goes on.
    shop.execute_batch("insert into orders(note) values ('meanwhile'), ('and again')")
        .unwrap();
    // The table gets a column; the trigger follows at the start.
    shop.execute_batch("alter table orders add column extra text")
        .unwrap();
    let (_kernel, channels) = on(&rig, folder.path()).await;
    until(|| async { ended(&rig) == 5 }).await;
    shop.execute_batch("insert into orders(note, extra) values ('later', 'more')")
        .unwrap();
    until(|| async { ended(&rig) == 6 }).await;
    assert!(told(&rig).join("\n").contains("\"extra\":\"more\""));
    until(|| async {
        shop.query_row("select count(*) from clawk_shop_orders", [], |row| {
            row.get::<_, i64>(0)
        })
        .unwrap()
            == 0
    })
    .await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(rig.journal.inbox().len(), 6, "none twice");
    // What the channel installed is taken away, and writes go on.
    let removed = channels.remove("shop-orders").await.unwrap();
    assert_eq!(removed.len(), 4, "{removed:?}");
    let left: i64 = shop
        .query_row(
            "select count(*) from sqlite_master where name like 'clawk%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(left, 0);
    shop.execute_batch("insert into orders(note) values ('free')")
        .unwrap();
    channels.close().await;
}

#[tokio::test]
async fn a_burst_waits_in_the_table_and_no_more_run_than_may() {
    // A run that waits for a person goes on over a restart.
    let asks = json!({"id": "ask", "action": "require-approval", "scope": "all", "reason": "look first", "approval": {"timeout_seconds": 300}});
    let rig = governed(
        &json!({"table": "orders", "events": ["INSERT"], "max_parallel": 1}),
        &asks,
    );
    let folder = tempfile::tempdir().unwrap();
    let shop = Connection::open(folder.path().join("shop.db")).unwrap();
    shop.execute_batch("create table orders (note text)").unwrap();
    let (kernel, channels) = on(&rig, folder.path()).await;
    ready(&channels).await;
    shop.execute_batch(
        "insert into orders values ('a'), ('b'), ('c'); update orders set note = 'x' where note = 'b'",
    )
    .unwrap();
    until(|| async { kernel.pending().len() == 1 }).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(rig.journal.inbox().len(), 1, "one place, one run");
    let waits = |shop: &Connection| {
        shop.query_row("select count(*) from clawk_shop_orders", [], |row| {
            row.get::<_, i64>(0)
        })
        .unwrap()
    };
    assert_eq!(waits(&shop), 2, "an UPDATE was not asked for");
    // The process is gone while the run goes on: it keeps its place in the next one.
    channels.close().await;
    let mut rig = rig;
    rig.journal = Arc::new(rig.journal.cut(rig.journal.events().len()));
    drop(kernel);
    let (_kernel, channels) = on(&rig, folder.path()).await;
    ready(&channels).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(waits(&shop), 2, "its place is taken");
    channels.close().await;
}

#[tokio::test]
async fn a_database_that_is_not_there_is_never_made() {
    let rig = rig(&json!({"table": "orders"}));
    let folder = tempfile::tempdir().unwrap();
    let (_kernel, channels) = on(&rig, folder.path()).await;
    until(|| async {
        channels.report().await.unwrap()[0]
            .reason
            .as_deref()
            .is_some_and(|reason| reason.contains("can't be opened"))
    })
    .await;
    assert!(!folder.path().join("shop.db").exists());
    channels.close().await;
}
