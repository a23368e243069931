//! `db-trigger` on a SQLite file: every change once, also those made while the agent was down; none twice; bounded runs; removal.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clawk_channels::Channels;
use clawk_kernel::Kernel;
use clawk_kernel::ports::ModelMessage;
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
            Some(ModelMessage::User { text, .. }) => calls(&[("write", json!({ "event": text }))]),
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
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
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
    until(|| async { kernel.pending_questions().len() == 1 }).await;
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
        channels.channel_reports().await.unwrap()[0]
            .reason
            .as_deref()
            .is_some_and(|reason| reason.contains("can't be opened"))
    })
    .await;
    assert!(!folder.path().join("shop.db").exists());
    channels.close().await;
}

#[cfg(feature = "postgres")]
#[path = "../../../../tests/parts/postgres.rs"]
mod server;

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;

    async fn on(rig: &Rig, url: &str, password: &str, folder: &Path) -> (Kernel, Channels) {
        let kernel = rig.start().await;
        let config = json!({"url": url, "prompt": "Order: {event}"});
        let configs = BTreeMap::from([("shop-orders".to_owned(), serde_json::from_value(config).unwrap())]);
        let channels = start(rig, kernel.clone(), configs, &[("NONE", password)], folder).await;
        (kernel, channels)
    }

    fn address(server: &server::Server) -> String {
        // Without the password, which is a secret.
        server
            .url()
            .replace(&format!(":{}", server::Server::PASSWORD), "")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_change_begins_one_run_also_one_that_is_committed_late() {
        let mut server = server::Server::start();
        server.sql("create table orders (id serial primary key, note text)");
        server.sql("insert into orders(note) values ('before')");
        let rig = rig(&json!({"table": "orders", "max_parallel": 3}));
        let folder = tempfile::tempdir().unwrap();
        // A wrong password is a person's to mend, and is in no reason.
        let (kernel, channels) = on(&rig, &address(&server), "wrong-password", folder.path()).await;
        until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "failed" }).await;
        let reason = channels.channel_reports().await.unwrap()[0]
            .reason
            .clone()
            .unwrap();
        assert!(!reason.contains("wrong-password"), "{reason}");
        channels.close().await;
        kernel.shutdown("test", 1_000).await;

        let (kernel, channels) = on(&rig, &address(&server), server::Server::PASSWORD, folder.path()).await;
        ready(&channels).await;
        server.sql("insert into orders(note) values ('first'); update orders set note = 'changed' where note = 'first'; delete from orders where note = 'before'");
        server.sql("begin; insert into orders(note) values ('gone'); rollback");
        until(|| async { ended(&rig) == 3 }).await;
        let all = told(&rig).join("\n");
        for words in [
            "INSERT in orders",
            "UPDATE in orders",
            "DELETE in orders",
            "\"note\": \"first\"",
            "\"note\": \"changed\"",
            "\"note\": \"before\"",
        ] {
            assert!(all.contains(words), "{words}: {all}");
        }
        assert!(!all.contains("gone"), "{all}");
        // Its number is drawn first, and it is committed last: no position loses it.
        let late = server
            .psql("begin; insert into orders(note) values ('late'); select pg_sleep(2); commit")
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.sql("insert into orders(note) values ('early')");
        until(|| async { told(&rig).join("\n").contains("early") }).await;
        let mut late = late;
        assert!(late.wait().unwrap().success());
        until(|| async { told(&rig).join("\n").contains("late") }).await;
        // A thousand rows of one transaction are a thousand events.
        server.sql("insert into orders(note) select 'many ' || n from generate_series(1, 200) n");
        until(|| async { ended(&rig) == 205 }).await;
        // Down: the trigger goes on. And the server itself may go and come.
        channels.close().await;
        kernel.shutdown("test", 2_000).await;
        server.sql("insert into orders(note) values ('meanwhile')");
        let (_kernel, channels) = on(&rig, &address(&server), server::Server::PASSWORD, folder.path()).await;
        until(|| async { ended(&rig) == 206 }).await;
        server.stop();
        until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "degraded" }).await;
        server.again();
        ready(&channels).await;
        server.sql("insert into orders(note) values ('afterwards')");
        until(|| async { ended(&rig) == 207 }).await;
        assert_eq!(rig.journal.inbox().len(), 207, "none twice");
        until(|| async { server.sql("select count(*) from clawk_shop_orders").trim() == "0" }).await;
        // What the channel installed is taken away, and writes go on.
        let removed = channels.remove("shop-orders").await.unwrap();
        assert_eq!(removed.len(), 3, "{removed:?}");
        let left = server.sql("select count(*) from pg_class where relname like 'clawk%'");
        assert_eq!(left.trim(), "0");
        server.sql("insert into orders(note) values ('free')");
        channels.close().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_may_write_to_the_table_need_not_know_ours_and_only_wanted_events_count() {
        let server = server::Server::start();
        server.sql("create schema shop; create table shop.orders (note text); create role clerk login; grant usage on schema shop to clerk; grant insert, update on shop.orders to clerk");
        let rig = rig(&json!({"table": "shop.orders", "events": ["INSERT"], "max_parallel": 2}));
        let folder = tempfile::tempdir().unwrap();
        let (_kernel, channels) = on(&rig, &address(&server), server::Server::PASSWORD, folder.path()).await;
        ready(&channels).await;
        server.sql("set role clerk; insert into shop.orders values ('by a clerk'); update shop.orders set note = 'x'");
        until(|| async { ended(&rig) == 1 }).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(rig.journal.inbox().len(), 1, "an UPDATE was not asked for");
        channels.close().await;
    }
}

#[tokio::test]
async fn a_channel_without_a_table_is_named_with_its_cure() {
    for (kind, field, trigger) in [
        ("db-trigger", "table", json!({"table": ""})),
        ("db-trigger", "table", json!({})),
        ("queue", "queue_name", json!({})),
        ("cron", "schedule", json!({"schedule": " "})),
    ] {
        let spec = json!({"name": "c", "type": kind, "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": trigger});
        let channel: clawk_manifest::model::Channel = serde_json::from_value(spec).unwrap();
        let faults = clawk_channels::faults(&BTreeMap::new(), &[channel], &[]);
        assert!(
            faults.iter().any(|fault| fault.contains(&format!("trigger.{field}")) && fault.contains("write `trigger:")),
            "{kind}: {faults:?}"
        );
    }
    let channel = |kind: &str| -> clawk_manifest::model::Channel {
        serde_json::from_value(
            json!({"name": "c", "type": kind, "transport": "polling", "auth": {"secret_ref": "T"},
            "trigger": {"schedule": "* * * * *", "queue_name": "q", "table": "t"}}),
        )
        .unwrap()
    };
    for (kind, config, word) in [
        (
            "discord",
            json!({"settings": {"intents": "many"}}),
            "settings.intents",
        ),
        ("telegram", json!({"base_url": "api.telegram.org"}), "base_url"),
        (
            "telegram",
            json!({"settings": {"colour": "red"}}),
            "settings.colour",
        ),
        ("telegram", json!({"max_attachment_mb": 0}), "max_attachment_mb"),
        (
            "telegram",
            json!({"max_attachment_mb": 4000}),
            "max_attachment_mb",
        ),
        ("queue", json!({"url": "kafka://x"}), "url"),
        ("db-trigger", json!({"url": "mysql://x"}), "url"),
        ("cron", json!({"timezone": "Mars/Base"}), "timezone"),
        ("cron", json!({"url": "x"}), "`url` means nothing"),
        ("email", json!({"smtp_url": "mail.example.org"}), "smtp_url"),
    ] {
        let configs = BTreeMap::from([("c".to_owned(), serde_json::from_value(config.clone()).unwrap())]);
        let faults = clawk_channels::faults(&configs, &[channel(kind)], &[]);
        assert!(
            faults
                .iter()
                .any(|fault| fault.contains("channels.c") && fault.contains(word)),
            "{kind} {config}: {faults:?}"
        );
    }
}
