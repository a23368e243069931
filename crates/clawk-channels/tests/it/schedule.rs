//! The tool `schedule`: made in a conversation, due by the clock, with an end, a budget and no more rights than the person has.

use std::collections::BTreeMap;
use std::path::Path;

use clawk_channels::{Channels, ScheduleRequest};
use clawk_kernel::testing::Rig;
use clawk_kernel::time::Clock as _;
use clawk_kernel::{EntryPoint, Kernel, Role};
use clawk_proto::SessionId;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::suite::{hook, parrot, start, until};

fn rig(allowed: &[&str]) -> Rig {
    parrot(
        json!([{"name": "hooks", "type": "webhook", "transport": "webhook", "auth": {"secret_ref": "TOKEN"},
        "access_control": {"mode": "allowlist", "allowed_ids": allowed}}]),
    )
}

async fn on(rig: &Rig, folder: &Path) -> (Kernel, Channels) {
    let kernel = rig.start().await;
    let config = json!({"admins": ["boss"]});
    let configs = BTreeMap::from([("hooks".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start(rig, kernel.clone(), configs, &[("TOKEN", "secret")], folder).await;
    (kernel, channels)
}

async fn says(channels: &Channels, id: &str, text: &str) {
    let body =
        json!({"id": id, "conversation": "room", "direct": true, "sender": {"id": "boss"}, "text": text})
            .to_string();
    let headers = [
        ("authorization", "Bearer secret"),
        ("content-type", "application/json"),
    ];
    assert_eq!(
        channels
            .receive_hook("hooks", hook(&headers, body.as_bytes()))
            .await
            .status,
        202
    );
}

/// An agent to which somebody has written once.
async fn begun() -> (Rig, TempDir, Kernel, Channels) {
    let rig = rig(&["boss"]);
    let folder = tempfile::tempdir().unwrap();
    let (kernel, channels) = on(&rig, folder.path()).await;
    says(&channels, "1", "say hi").await;
    until(|| async { rig.journal.inbox().len() == 1 }).await;
    (rig, folder, kernel, channels)
}

fn wanted(value: Value) -> ScheduleRequest {
    serde_json::from_value(value).unwrap()
}

fn session(kernel: &Kernel) -> SessionId {
    let sessions = kernel.list_open_sessions();
    sessions
        .into_iter()
        .find(|(_, door)| matches!(door, EntryPoint::Channel { .. }))
        .unwrap()
        .0
}

fn runs(rig: &Rig, what: &str) -> usize {
    let trace = rig.journal.trace();
    let facts = trace.iter().filter(|event| event.event_type == "ckp.channel.run");
    facts.filter(|event| event.payload["what"] == what).count()
}

#[tokio::test]
async fn a_schedule_runs_as_often_as_it_may_also_after_a_restart_and_never_as_an_admin() {
    let (rig, folder, kernel, channels) = begun().await;
    let until_time = rig.clock.now().plus_millis(86_400_000).to_string();
    let create = json!({"action": "create", "cron": "* * * * *", "prompt": "say tick", "until": until_time, "max_runs": 2});
    let made = channels
        .handle_schedule(session(&kernel), wanted(create), &[])
        .await
        .unwrap();
    let listed = channels
        .handle_schedule(session(&kernel), ScheduleRequest::List, &[])
        .await
        .unwrap();
    assert_eq!(listed["schedules"][0]["id"], made["id"]);
    rig.clock.advance_ms(61_000);
    until(|| async { runs(&rig, "started") == 1 }).await;
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    rig.clock.advance_ms(10 * 61_000);
    let (kernel, channels) = on(&rig, folder.path()).await;
    until(|| async { runs(&rig, "ended") == 1 }).await;
    rig.clock.advance_ms(10 * 61_000);
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    assert_eq!(
        runs(&rig, "started"),
        2,
        "its budget is two runs; what was missed is one of them"
    );
    assert_eq!(rig.journal.inbox().len(), 3);
    let roles: Vec<Value> = rig
        .journal
        .trace()
        .iter()
        .filter(|event| event.event_type == "ckp.message.accepted")
        .map(|event| event.payload["role"].clone())
        .collect();
    assert_eq!(
        roles,
        [json!("admin"), json!("user"), json!("user")],
        "{:?}",
        Role::User
    );
    let listed = channels
        .handle_schedule(session(&kernel), ScheduleRequest::List, &[])
        .await;
    assert_eq!(listed.unwrap()["schedules"], json!([]));
    channels.close().await;
}

#[tokio::test]
async fn a_schedule_is_cancelled_in_its_conversation_and_ends_with_its_persons_admission() {
    let (rig, folder, kernel, channels) = begun().await;
    let at = rig.clock.now().plus_millis(60_000).to_string();
    let create = || wanted(json!({"action": "create", "at": at, "prompt": "say once"}));
    let made = channels
        .handle_schedule(session(&kernel), create(), &[])
        .await
        .unwrap();
    let cancel = |id: &Value| ScheduleRequest::Cancel {
        id: id.as_str().unwrap().to_owned(),
    };
    assert!(
        channels
            .handle_schedule(session(&kernel), cancel(&json!("other")), &[])
            .await
            .is_err()
    );
    channels
        .handle_schedule(session(&kernel), cancel(&made["id"]), &[])
        .await
        .unwrap();
    channels
        .handle_schedule(session(&kernel), create(), &[])
        .await
        .unwrap();
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    // The person is not listed any more.
    let other = Rig {
        manifest: self::rig(&["somebody"]).manifest,
        ..rig.clone()
    };
    let kernel = other.start().await;
    let configs = BTreeMap::from([("hooks".to_owned(), serde_json::from_value(json!({})).unwrap())]);
    let channels = start(&other, kernel, configs, &[("TOKEN", "secret")], folder.path()).await;
    rig.clock.advance_ms(61_000);
    until(|| async { runs(&rig, "ended") == 1 }).await;
    assert_eq!((runs(&rig, "cancelled"), runs(&rig, "started")), (1, 0));
    assert_eq!(rig.journal.inbox().len(), 1);
    channels.close().await;
}

#[tokio::test]
async fn a_schedule_has_no_more_rights_than_its_person_has_when_it_is_due() {
    let (rig, folder, kernel, channels) = begun().await;
    let at = rig.clock.now().plus_millis(60_000).to_string();
    let create = wanted(json!({"action": "create", "at": at, "prompt": "say once"}));
    channels
        .handle_schedule(session(&kernel), create, &[])
        .await
        .unwrap();
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
    // The person may only read by now.
    let viewer = json!([{"name": "hooks", "type": "webhook", "transport": "webhook", "auth": {"secret_ref": "TOKEN"},
        "access_control": {"mode": "role-based", "roles": [{"id": "boss", "role": "viewer"}]}}]);
    let other = Rig {
        manifest: parrot(viewer).manifest,
        ..rig.clone()
    };
    let kernel = other.start().await;
    let configs = BTreeMap::from([("hooks".to_owned(), serde_json::from_value(json!({})).unwrap())]);
    let channels = start(&other, kernel, configs, &[("TOKEN", "secret")], folder.path()).await;
    rig.clock.advance_ms(61_000);
    until(|| async { runs(&rig, "started") + runs(&rig, "skipped") == 1 }).await;
    let trace = rig.journal.trace();
    let said = trace
        .iter()
        .filter(|event| event.event_type == "ckp.message.accepted");
    let roles: Vec<&Value> = said.map(|event| &event.payload["role"]).skip(1).collect();
    assert!(roles.iter().all(|role| **role == "viewer"), "{roles:?}");
    channels.close().await;
}
