//! A message that is said again, and a memory that is asked over the wire: neither gives anybody more than the record gives them.

use clawk_manifest::model::Role;
use clawk_proto::method::{
    MemoryContext, MemoryQuery, MemoryQueryParams, MemoryStoreParams, NewEntry, TimeRange,
};
use serde_json::{Value, json};
use std::sync::Arc;

use super::{agent, allow_all, id, rig};
use crate::door::Origin;
use crate::error::KernelError;
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, SessionNotice, kind};

/// Each turn calls a tool and answers.
fn acting() -> Rig {
    let mut rig = rig(agent(allow_all()));
    let turn = || vec![calls(&[("write", json!({"n": 1}))]), says("done")];
    let script = turn().into_iter().chain(turn()).collect();
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::turns(script)));
    rig
}

fn accepted(rig: &Rig) -> Vec<String> {
    let events = rig.journal.events().into_iter();
    let accepted = events.filter(|event| event.kind == kind::MESSAGE_ACCEPTED);
    accepted.map(|event| event.payload.clone()).collect()
}

fn from_group(role: Role) -> EntryPoint {
    EntryPoint::Channel {
        channel: "slack".to_owned(),
        conversation: "C1".to_owned(),
        direct: false,
        sender: "U1".to_owned(),
        role,
    }
}

#[tokio::test]
async fn a_message_said_again_keeps_its_door_its_sender_and_its_role() {
    let client = |role| EntryPoint::Rpc {
        client: "tok".to_owned(),
        role,
    };
    for (door, may_act) in [
        (from_group(Role::Viewer), false),
        (from_group(Role::User), true),
        (client(Role::Viewer), false),
        (client(Role::Admin), true),
        (EntryPoint::Cli, true),
    ] {
        let rig = acting();
        let kernel = rig.start().await;
        let session = kernel.open_session(door.clone()).await.unwrap();
        session.send_text("do it").await.unwrap();
        while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
        let before = rig.runner.runs().len();
        // The owner says it again at the terminal.
        let owner = kernel.reopen_session(session.id, EntryPoint::Cli).await.unwrap();
        let first = accepted(&rig).remove(0);
        owner.send_again(&first, "do it").await.unwrap();
        while !matches!(owner.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
        let ran = rig.runner.runs().len() - before;
        assert_eq!(ran > 0, may_act, "{door:?}");
        let all = accepted(&rig);
        let (first, again): (Value, Value) = (
            serde_json::from_str(&first).unwrap(),
            serde_json::from_str(&all[1]).unwrap(),
        );
        for member in ["door", "sender", "role", "channel", "conversation"] {
            assert_eq!(first[member], again[member], "{door:?}: {member}");
        }
        assert_ne!(first["message_id"], again["message_id"]);
    }
}

#[tokio::test]
async fn who_says_it_again_lends_it_nothing() {
    let rig = acting();
    let kernel = rig.start().await;
    let session = kernel.open_session(from_group(Role::Viewer)).await.unwrap();
    let admin = r#"{"door": "cli", "sender": "owner", "role": "admin"}"#;
    session.send_again(admin, "do it").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    assert_eq!(rig.runner.runs(), []);
    for (record, why) in [
        ("no JSON", "can't be read"),
        (
            r#"{"door": "peer", "sender": "w", "role": "user", "task_id": "t"}"#,
            "swarm's task",
        ),
    ] {
        let refused = session.send_again(record, "do it").await;
        assert!(
            matches!(&refused, Err(KernelError::Refused(reason)) if reason.contains(why)),
            "{refused:?}"
        );
    }
    // A record that says too little gives the least.
    session
        .send_again(r#"{"door": "channel", "sender": "x"}"#, "do it")
        .await
        .unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    assert_eq!(rig.runner.runs(), []);
}

/// Who forks a turn hears of it, and gets no rights that its message had not.
#[test]
fn a_fork_keeps_the_rights_of_its_message_as_a_bound() {
    for role in [Role::Viewer, Role::User, Role::Admin] {
        let recorded = Origin::from(from_group(role));
        let forked = recorded.forked_by(&Origin::from(EntryPoint::Cli));
        assert_eq!((forked.role, forked.door.sender()), (role, "owner"));
        assert_eq!(
            forked.sender_door().sender(),
            "U1",
            "the words stay their sender's"
        );
        let again = forked.forked_by(&Origin::from(EntryPoint::Cli));
        assert_eq!(again.sender_door().sender(), "U1", "also in a fork of the fork");
    }
    let by_a_viewer = Origin::from(EntryPoint::Cli).forked_by(&Origin::from(from_group(Role::Viewer)));
    assert_eq!(
        (by_a_viewer.role, by_a_viewer.door.sender()),
        (Role::Viewer, "U1")
    );
    // Who may know less than the sender takes the turn over, and recalls nothing of the sender's.
    assert_eq!(by_a_viewer.sender_door(), &by_a_viewer.door);
    let by_an_equal = Origin::from(from_group(Role::User)).forked_by(&Origin::from(EntryPoint::Rpc {
        client: "other".to_owned(),
        role: Role::User,
    }));
    assert_eq!(by_an_equal.sender_door().sender(), "other");
}

async fn stores(kernel: &Kernel, door: EntryPoint, number: u32, text: &str) {
    let session = kernel.open_session(door).await.unwrap();
    let entry = NewEntry {
        content: json!(text),
        key: None,
        metadata: None,
    };
    let params = MemoryStoreParams {
        store: "notes".to_owned(),
        entries: vec![entry],
        context: MemoryContext {
            request_id: id(number),
        },
    };
    kernel.memory_store(session.id, params).await.unwrap();
}

/// What a client is told of a store, by words and by time.
async fn told(kernel: &Kernel, door: EntryPoint) -> Vec<String> {
    let session = kernel.open_session(door).await.unwrap();
    let whole = TimeRange {
        from: "1970-01-01T00:00:00Z".to_owned(),
        to: "9999-01-01T00:00:00Z".to_owned(),
    };
    let mut found = Vec::new();
    for query in [
        MemoryQuery::Semantic {
            text: "note".to_owned(),
            top_k: Some(50),
        },
        MemoryQuery::TimeRange {
            time_range: whole.clone(),
            top_k: Some(50),
        },
    ] {
        let params = MemoryQueryParams {
            store: "notes".to_owned(),
            query,
        };
        let entries = kernel.memory_query(session.id, params).await.unwrap().entries;
        let mut texts: Vec<String> = entries
            .iter()
            .map(|entry| entry.content.as_str().unwrap_or_default().to_owned())
            .collect();
        texts.sort();
        found.push(texts.join(" | "));
    }
    found
}

#[tokio::test]
async fn a_client_is_told_its_own_entries_and_everybodys() {
    for across in [false, true] {
        let mut spec = agent(allow_all());
        spec["memory"] = json!({"name": "memory", "stores": [{"name": "notes", "type": "semantic"}]});
        let rig = rig(spec);
        let mut parts = rig.parts();
        parts
            .options
            .across_senders
            .extend(across.then(|| "notes".to_owned()));
        let kernel = Kernel::start(parts).await.unwrap();
        let token = |client: &str, role| EntryPoint::Rpc {
            client: client.to_owned(),
            role,
        };
        stores(&kernel, token("anna", Role::User), 1, "note of anna").await;
        stores(&kernel, token("ben", Role::User), 2, "note of ben").await;
        stores(&kernel, token("root", Role::Admin), 3, "note of all").await;
        let all = "note of all | note of anna | note of ben";
        for (client, role, own) in [
            ("anna", Role::User, "note of all | note of anna"),
            ("ben", Role::User, "note of all | note of ben"),
            ("carl", Role::User, "note of all"),
            ("root", Role::Admin, all),
        ] {
            let wanted = if across { all } else { own };
            let told = told(&kernel, token(client, role)).await;
            assert_eq!(told, [wanted, wanted], "{client}, across: {across}");
        }
    }
}
