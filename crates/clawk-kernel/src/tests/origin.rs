//! R39: whose message a turn answers, and with which rights, is recorded with it and holds across crashes, stops and forks.

use std::sync::Arc;

use clawk_manifest::model::Role;
use clawk_proto::method::{DelegateContext, DelegateParams, DelegateTask};
use serde_json::{Map, Value, json};

use super::{agent, allow_all, id, params, rig};
use crate::door::EntryPoint;
use crate::error::KernelError;
use crate::notice::SessionNotice;
use crate::ports::{ModelMessage, RecordedEvent};
use crate::replay::{ReplayResult, ReplayTape, replay_tape};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{ForkPoint, Kernel, kind};

/// A model that writes before it answers, whoever asks.
fn writer() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(|request, _| {
        let done = request
            .messages
            .iter()
            .any(|m| matches!(m, ModelMessage::ToolResult { .. }));
        Ok(if done {
            says("done")
        } else {
            calls(&[("write", json!({})), ("echo", json!({"text": "x"}))])
        })
    }))
}

fn writing() -> Rig {
    let mut rig = rig(agent(allow_all()));
    rig.models.insert("model".to_owned(), writer());
    rig
}

fn channel(role: Role) -> EntryPoint {
    EntryPoint::Channel {
        channel: "slack".to_owned(),
        conversation: "C1".to_owned(),
        direct: false,
        sender: "U1".to_owned(),
        role,
    }
}

/// The same state, as the next process finds it when this one ended after `events` events.
pub(super) fn cut(rig: &Rig, events: usize) -> Rig {
    let mut after = rig.clone();
    after.journal = Arc::new(rig.journal.cut(events));
    after.runner = Arc::default();
    after.models.insert("model".to_owned(), writer());
    after
}

async fn settled(rig: &Rig, kernel: &Kernel) {
    for _ in 0..10_000 {
        if rig.journal.inbox().iter().all(|(_, end)| end.is_some()) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(kernel.shutdown("test", 5_000).await, "nothing is left in flight");
}

async fn said(rig: &Rig, door: EntryPoint) {
    let kernel = rig.start().await;
    let session = kernel.open_session(door).await.unwrap();
    session.send_text("work").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
}

#[tokio::test]
async fn a_viewers_turn_that_a_crash_cut_off_runs_no_tool_afterwards() {
    let rig = writing();
    said(&rig, channel(Role::Viewer)).await;
    let kinds = rig.journal.kinds();
    let accepted = kinds.iter().position(|k| k == kind::MESSAGE_ACCEPTED).unwrap();
    for stop in accepted + 1..=kinds.len() {
        let after = cut(&rig, stop);
        let kernel = after.start().await;
        settled(&after, &kernel).await;
        let place = format!("stopped at {stop} ({})", kinds[stop - 1]);
        assert_eq!(after.runner.runs(), [], "{place}: a viewer triggers no tool");
        assert_eq!(
            after.journal.inbox().last().unwrap().1,
            Some("answered"),
            "{place}"
        );
        assert!(
            !after.journal.kinds().contains(&kind::ACTION_APPROVED.to_owned()),
            "{place}"
        );
    }
}

/// The roles of turns that were taken up, as the record has them.
fn resumed_as(rig: &Rig) -> Vec<String> {
    let resumed = rig.journal.events().into_iter();
    let resumed = resumed.filter(|event| event.kind == kind::MESSAGE_RESUMED);
    resumed
        .map(|event| payload(&event.payload)["role"].as_str().unwrap().to_owned())
        .collect()
}

fn payload(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn accepted(rig: &Rig) -> (usize, Value) {
    let events = rig.journal.events();
    let at = events
        .iter()
        .position(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap();
    (at + 1, payload(&events[at].payload))
}

#[tokio::test]
async fn the_whole_door_is_recorded_with_each_message() {
    let rig = writing();
    said(&rig, channel(Role::User)).await;
    let (_, door) = accepted(&rig);
    for (member, value) in [
        ("door", json!("channel")),
        ("channel", json!("slack")),
        ("conversation", json!("C1")),
        ("direct", json!(false)),
        ("sender", json!("U1")),
        ("role", json!("user")),
        ("platform_ids", json!([])),
    ] {
        assert_eq!(door[member], value, "{member}");
    }
    let rig = writing();
    said(&rig, EntryPoint::Cli).await;
    let (_, door) = accepted(&rig);
    assert_eq!((&door["door"], &door["role"]), (&json!("cli"), &json!("admin")));
}

/// What the next process makes of a record whose door reads like this: the role of the turn, and the tools that ran.
async fn taken_up(tell: impl Fn(&mut Map<String, Value>)) -> (String, usize) {
    let rig = writing();
    said(&rig, EntryPoint::Cli).await;
    let (at, _) = accepted(&rig);
    let mut after = cut(&rig, at);
    after.journal = Arc::new(after.journal.retold(|kind, payload| {
        if kind == kind::MESSAGE_ACCEPTED {
            tell(payload);
        }
    }));
    let kernel = after.start().await;
    settled(&after, &kernel).await;
    (resumed_as(&after).remove(0), after.runner.runs().len())
}

#[tokio::test]
async fn a_door_of_an_earlier_version_has_no_more_rights_than_it_surely_had() {
    // As b4f763d wrote it.
    let earlier = async |door: &str| {
        let door = door.to_owned();
        taken_up(move |payload| {
            for member in [
                "channel",
                "conversation",
                "direct",
                "platform_ids",
                "role",
                "task_id",
            ] {
                payload.remove(member);
            }
            payload.insert("door".to_owned(), json!(door));
        })
        .await
    };
    for (door, role, runs) in [
        ("cli", "admin", 2),
        ("rpc", "admin", 2),
        ("peer", "viewer", 0),
        ("channel", "viewer", 0),
        ("carrier-pigeon", "viewer", 0),
        ("", "viewer", 0),
    ] {
        assert_eq!(earlier(door).await, (role.to_owned(), runs), "{door}");
    }
}

#[tokio::test]
async fn a_record_never_gives_more_than_its_words() {
    for (door, role, wanted) in [
        ("cli", json!("viewer"), "viewer"),
        ("cli", json!("owner"), "viewer"),
        ("cli", json!(""), "viewer"),
        ("rpc", json!("viewer"), "viewer"),
        ("rpc", json!("user"), "user"),
        // Not a door with all its parts: whatever role it claims.
        ("channel", json!("admin"), "viewer"),
        ("peer", json!("admin"), "viewer"),
        ("telepathy", json!("admin"), "viewer"),
    ] {
        let set = role.clone();
        let (found, runs) = taken_up(move |payload| {
            payload.insert("door".to_owned(), json!(door));
            payload.insert("role".to_owned(), set.clone());
        })
        .await;
        assert_eq!(
            (found.as_str(), runs > 0),
            (wanted, wanted != "viewer"),
            "{door}, {role}"
        );
    }
}

#[tokio::test]
async fn every_role_goes_on_as_itself_and_is_replayed_as_itself() {
    for role in Role::ALL {
        let rig = writing();
        said(&rig, channel(*role)).await;
        let runs = rig.runner.runs().len();
        assert_eq!(runs, if *role == Role::Viewer { 0 } else { 2 });
        let (at, _) = accepted(&rig);
        let after = cut(&rig, at);
        let kernel = after.start().await;
        settled(&after, &kernel).await;
        assert_eq!(resumed_as(&after), [role.as_str()]);
        assert_eq!(after.runner.runs().len(), runs, "{role}");
        let replayed = replayed(&rig).await;
        assert_eq!(replayed.divergence, None, "{role}");
        assert!(replayed.compared > 3, "{role}: {replayed:?}");
    }
}

/// The session of the rig's message, replayed from its journal.
pub(super) async fn replayed(rig: &Rig) -> ReplayResult {
    let events = rig.journal.events();
    let content = |event: &RecordedEvent| event.content.clone().unwrap().bytes;
    let message = events
        .iter()
        .find(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap();
    let facts = events
        .iter()
        .find(|event| event.kind == kind::AGENT_DESCRIBED)
        .unwrap();
    let tools = events
        .iter()
        .filter(|event| event.kind == kind::TOOL_DESCRIBED)
        .map(|event| {
            let name = payload(&event.payload)["action_id"].as_str().unwrap().to_owned();
            (name, serde_json::from_slice(&content(event)).unwrap())
        })
        .collect();
    let session = message.session;
    let own = events
        .iter()
        .filter(|event| event.session == session)
        .cloned()
        .collect();
    let tape = ReplayTape::new(
        session,
        own,
        serde_json::from_slice(&content(facts)).unwrap(),
        tools,
    )
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    replay_tape(tape, dir.path()).await.unwrap()
}

#[tokio::test]
async fn a_fork_gives_a_turn_no_rights_that_its_message_or_its_forker_had_not() {
    // Who said it, who forks it, what may run.
    for (said_by, forked_by, runs) in [
        (Role::Viewer, EntryPoint::Cli, 0),
        (Role::Admin, channel(Role::Viewer), 0),
        (Role::User, EntryPoint::Cli, 2),
    ] {
        let rig = writing();
        said(&rig, channel(said_by)).await;
        let (at, _) = accepted(&rig);
        let source = cut(&rig, at);
        let point = point(&source, at - 1);
        let kernel = source.start().await;
        settled_turns(&source).await;
        let before = source.runner.runs().len();
        let (session, goes_on) = kernel.fork_session(point, forked_by, true).await.unwrap();
        assert!(goes_on);
        while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
        assert_eq!(source.runner.runs().len() - before, runs, "{said_by}");
        // And the fork's own crash changes nothing of it.
        let events = source.journal.events();
        let forked = events
            .iter()
            .position(|event| event.session == session.id)
            .unwrap();
        let again = cut(&source, forked + 1);
        let kernel = again.start().await;
        settled(&again, &kernel).await;
        assert_eq!(again.runner.runs().len(), runs, "{said_by}, after a crash");
        assert_eq!(resumed_as(&again).last().unwrap() == "viewer", runs == 0);
    }
}

fn point(rig: &Rig, at: usize) -> ForkPoint {
    let (event, sealed) = (rig.journal.events().remove(at), rig.journal.trace().remove(at));
    ForkPoint {
        event_hash: sealed.event_hash,
        keeps_sender: false,
        sequence: event.sequence,
        session_id: event.session,
        trace_id: sealed.trace_id,
        turn: None,
    }
}

pub(super) async fn settled_turns(rig: &Rig) {
    while rig.journal.inbox().iter().any(|(_, end)| end.is_none()) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_peer_works_with_the_rights_of_who_delegated() {
    for (role, runs) in [(Role::Viewer, 0), (Role::User, 2), (Role::Admin, 2)] {
        let mut spec = agent(allow_all());
        spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
            "agents": [{"identity_ref": "hand", "role": "worker", "count": 1}],
            "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {}},
            "aggregation": {"strategy": "merge"}});
        let mut rig = rig(spec);
        rig.models.insert("model".to_owned(), writer());
        let kernel = rig.start().await;
        let door = EntryPoint::Rpc {
            client: "test".to_owned(),
            role,
        };
        let session = kernel.open_session(door).await.unwrap();
        let task = DelegateParams {
            task_id: id(8),
            task: DelegateTask {
                description: "write".to_owned(),
                input: None,
            },
            context: DelegateContext {
                request_id: id(7),
                swarm: "team".to_owned(),
                member: None,
                report_token: None,
                limits: None,
                proof: None,
            },
        };
        kernel.delegate_task(session.id, task).await.unwrap();
        let ended = |rig: &Rig| rig.journal.kinds().contains(&kind::SWARM_REPORTED.to_owned());
        while !ended(&rig) {
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.runner.runs().len(), runs, "{role}");
        let kinds = rig.journal.kinds();
        let delegated = kinds.iter().position(|k| k == kind::SWARM_DELEGATED).unwrap();
        for stop in delegated + 1..kinds.len() {
            let after = cut(&rig, stop);
            let begun = kinds[..stop]
                .iter()
                .filter(|k| *k == kind::ACTION_EXECUTED)
                .count();
            let kernel = after.start().await;
            while !ended(&after) {
                tokio::task::yield_now().await;
            }
            assert!(kernel.shutdown("test", 5_000).await);
            let ran = begun + after.runner.runs().len();
            assert!(
                ran <= runs,
                "{role}, stopped at {stop} ({}): {ran} ran",
                kinds[stop - 1]
            );
        }
    }
}

#[tokio::test]
async fn a_call_from_the_wire_has_the_role_of_its_connection() {
    for (role, runs) in [(Role::Viewer, 0), (Role::User, 1), (Role::Admin, 1)] {
        let rig = writing();
        let kernel = rig.start().await;
        let door = EntryPoint::Rpc {
            client: "test".to_owned(),
            role,
        };
        let session = kernel.open_session(door).await.unwrap();
        let outcome = kernel.call(session.id, params("write", json!({}), 1)).await;
        assert_eq!(
            (outcome.is_ok(), rig.runner.runs().len()),
            (runs == 1, runs),
            "{role}"
        );
        // A session that is not open says nothing of who calls.
        kernel.end_session(session.id, "completed").await;
        kernel
            .call(session.id, params("write", json!({}), 2))
            .await
            .unwrap_err();
        assert_eq!(rig.runner.runs().len(), runs);
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_session_speaks_for_himself_and_nobody_joins_above_his_rights() {
    let rig = writing();
    let kernel = rig.start().await;
    let session = kernel.open_session(channel(Role::User)).await.unwrap();
    rig.runner.set("write", Behaviour::Sleep(10_000));
    session.send_text("work").await.unwrap();
    while !matches!(
        session.next_notice().await,
        Some(SessionNotice::CallDecided { .. })
    ) {}
    // While a turn runs: the owner's message waits behind it, as the owner's.
    let owner = kernel.reopen_session(session.id, EntryPoint::Cli).await.unwrap();
    owner.send_text("and this").await.unwrap();
    let mut ended = 0;
    while ended < 2 {
        ended += usize::from(matches!(
            owner.next_notice().await,
            Some(SessionNotice::TurnEnded { .. })
        ));
    }
    let messages = rig.journal.events().into_iter();
    let said: Vec<_> = messages
        .filter(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .map(|event| payload(&event.payload)["role"].clone())
        .collect();
    assert_eq!(said, [json!("user"), json!("admin")]);
    let kinds = rig.journal.kinds();
    let answers = kinds.iter().filter(|kind| *kind == kind::MESSAGE_ANSWERED);
    assert_eq!(answers.count(), 2);
    let refused = kernel.reopen_session(session.id, channel(Role::Viewer)).await;
    assert!(matches!(refused, Err(KernelError::UnknownSession(_))));
}
