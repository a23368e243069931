//! Schedules: overlap, parallel runs, missed ones, where answers go.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_channels::{Channels, NotDone};
use clawk_kernel::testing::{Behaviour, Rig, ScriptedModel, calls, manifest, says};
use serde_json::{Value, json};

use crate::suite::{start, until};

fn rig(trigger: Value) -> Rig {
    let mut rig = Rig::new(manifest(json!({
        "channels": [{"name": "tick", "type": "cron", "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": trigger}],
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}],
    })));
    let model = ScriptedModel::new(|request, _| {
        Ok(match request.messages.last() {
            Some(clawk_kernel::ports::ModelMessage::User { .. }) => calls(&[("write", json!({}))]),
            _ => says("done"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

async fn on(rig: &Rig, config: Value, folder: &std::path::Path) -> (clawk_kernel::Kernel, Channels) {
    let kernel = rig.start().await;
    let configs = BTreeMap::from([("tick".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start(rig, kernel.clone(), configs, &[], folder).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    (kernel, channels)
}

fn facts(rig: &Rig, what: &str) -> usize {
    let trace = rig.journal.trace();
    let runs = trace.iter().filter(|event| event.event_type == "ckp.channel.run");
    runs.filter(|event| event.payload["what"] == what).count()
}

#[tokio::test]
async fn runs_never_overlap_more_than_they_may() {
    for (policy, then) in [("skip", 2), ("queue", 3), ("allow", 2)] {
        let rig = rig(json!({"schedule": "0 0 1 1 *", "max_parallel": 2, "overlap_policy": policy}));
        rig.runner.set("write", Behaviour::Sleep(600));
        let folder = tempfile::tempdir().unwrap();
        let (_kernel, channels) = on(&rig, json!({}), folder.path()).await;
        channels.fire_trigger("tick").await.unwrap();
        channels.fire_trigger("tick").await.unwrap();
        let third = channels.fire_trigger("tick").await;
        assert_eq!(third.is_ok(), policy == "queue", "{policy}: {third:?}");
        assert!(
            matches!(channels.fire_trigger("tick").await, Err(NotDone::Failed(_))),
            "{policy}"
        );
        until(|| async { rig.runner.runs().len() == 2 }).await;
        until(|| async {
            rig.journal
                .inbox()
                .iter()
                .filter(|(_, end)| end.is_some())
                .count()
                == then
        })
        .await;
        assert_eq!(rig.runner.runs().len(), then, "{policy}");
        assert_eq!(facts(&rig, "started"), then, "{policy}");
        assert_eq!(
            facts(&rig, "skipped"),
            if policy == "queue" { 1 } else { 2 },
            "{policy}"
        );
        channels.close().await;
    }
}

#[tokio::test]
async fn a_missed_run_is_made_up_for_once_or_skipped_and_places_outlive_the_process() {
    for (missed, runs) in [("once", 1), ("skip", 0)] {
        let rig = rig(json!({"schedule": "0 * * * *"}));
        let folder = tempfile::tempdir().unwrap();
        let (kernel, channels) = on(&rig, json!({"missed": missed}), folder.path()).await;
        assert_eq!(
            rig.journal.inbox(),
            [],
            "nothing was missed before the first start"
        );
        channels.close().await;
        kernel.shutdown("test", 100).await;
        // Three hours without the agent.
        rig.clock.advance_ms(3 * 3_600_000 + 600_000);
        let (kernel, channels) = on(&rig, json!({"missed": missed}), folder.path()).await;
        until(|| async { facts(&rig, "missed") >= 1 }).await;
        until(|| async {
            rig.journal
                .inbox()
                .iter()
                .filter(|(_, end)| end.is_some())
                .count()
                == runs
        })
        .await;
        channels.close().await;
        kernel.shutdown("test", 100).await;
        let (_kernel, channels) = on(&rig, json!({"missed": missed}), folder.path()).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert_eq!(rig.journal.inbox().len(), runs, "not again: {missed}");
        channels.close().await;
    }
}

#[tokio::test]
async fn with_skip_nothing_runs_late_however_little() {
    for (missed, runs) in [("once", 1), ("skip", 0)] {
        let rig = rig(json!({"schedule": "* * * * *"}));
        let folder = tempfile::tempdir().unwrap();
        let (kernel, channels) = on(&rig, json!({"missed": missed}), folder.path()).await;
        channels.close().await;
        kernel.shutdown("test", 100).await;
        // Over the next full minute, by less than a minute.
        rig.clock.advance_ms(60_000);
        let (kernel, channels) = on(&rig, json!({"missed": missed}), folder.path()).await;
        until(|| async { facts(&rig, if missed == "skip" { "missed" } else { "started" }) >= 1 }).await;
        assert_eq!(rig.journal.inbox().len(), runs, "{missed}");
        channels.close().await;
        kernel.shutdown("test", 100).await;
    }
}

#[tokio::test]
async fn a_run_under_way_keeps_its_place_over_a_restart() {
    let mut rig = rig(json!({"schedule": "0 0 1 1 *"}));
    rig.runner.set("write", Behaviour::Sleep(60_000));
    // It writes for ever, also when the second process takes the run up.
    let writes = ScriptedModel::new(|_, asked| Ok(calls(&[("write", json!({"asked": asked}))])));
    rig.models.insert("model".to_owned(), Arc::new(writes));
    let folder = tempfile::tempdir().unwrap();
    let (kernel, channels) = on(&rig, json!({}), folder.path()).await;
    channels.fire_trigger("tick").await.unwrap();
    until(|| async { rig.runner.runs().len() == 1 }).await;
    channels.close().await;
    // The process is gone.
    rig.journal = Arc::new(rig.journal.cut(rig.journal.events().len()));
    drop(kernel);
    let (_kernel, channels) = on(&rig, json!({}), folder.path()).await;
    assert!(
        matches!(channels.fire_trigger("tick").await, Err(NotDone::Failed(_))),
        "its place is taken"
    );
    channels.close().await;
}
