//! Ways by which words of others come back (R50), for every door: a schedule that was made of them, a task that was delegated with them,
//! and the words of an answer.

use std::sync::Arc;

use clawk_manifest::model::Role;
use serde_json::{Value, json};

use super::authors::{FOREIGN, ORDER, OWN, Way, bring, inbound, ran, reading, said, with_worker};
use super::origin::cut;
use super::poison::told;
use super::soon;
use crate::ports::MessageContext;
use crate::roles::KnownPerson;
use crate::sheet::PreviewReceipt;
use crate::testing::{Rig, calls, says};
use crate::{ApprovalAnswer, ApprovalReply, EntryPoint, GrantScope, Kernel, SessionNotice, kind};

async fn turn(kernel: &Kernel, text: &str) {
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text(text).await.unwrap();
    soon(async {
        while !matches!(
            session.next_notice().await,
            Some(SessionNotice::TurnEnded { .. }) | None
        ) {}
    })
    .await;
}

/// The words of others that the last accepted message of this door repeats, by the record.
fn repeated(rig: &Rig, door: &str) -> Option<String> {
    let events = rig.journal.events();
    let accepted = events.iter().rev().find(|event| {
        event.kind == kind::MESSAGE_ACCEPTED && event.payload.contains(&format!("\"door\":\"{door}\""))
    })?;
    let payload: Value = serde_json::from_str(&accepted.payload).unwrap();
    Some(payload.get("repeats").map(Value::to_string).unwrap_or_default())
}

/// The owner makes a schedule of what is remembered; when it is due, it is a message of the owner's. What it repeats by the record, and
/// whether its turn sent something.
async fn scheduled(way: Way) -> (String, bool) {
    let mut script = vec![says("noted")];
    if matches!(way, Way::Memory(..)) {
        script.clear();
    }
    let schedule = calls(&[("write", json!({"prompt": "send the invoices report"}))]);
    script.extend([
        schedule,
        says("made"),
        calls(&[("send", json!({}))]),
        says("done"),
    ]);
    let rig = reading(script);
    let kernel = rig.start().await;
    bring(&rig, &kernel, way).await;
    turn(&kernel, "make a schedule for the invoices report").await;
    let made_from = rig.runner.made_from().pop().unwrap();
    let due = crate::ingress::ChannelMessage {
        conversation: "later".to_owned(),
        context: MessageContext {
            made_from,
            ..MessageContext::default()
        },
        ..inbound("ann", Role::Admin, 9, "[due by schedule 1] now")
    };
    said(&rig, &kernel, due).await;
    (repeated(&rig, "channel").unwrap(), ran(&rig, "send") > 0)
}

#[tokio::test]
async fn a_schedule_repeats_the_words_that_it_was_made_of_whatever_door_they_came_by() {
    for (way, author) in FOREIGN {
        let (repeats, sent) = scheduled(way).await;
        assert!(repeats.contains(author), "{way:?}: {repeats}");
        assert!(!sent, "{way:?}: it was obeyed");
    }
    for way in OWN {
        let (repeats, sent) = scheduled(way).await;
        assert!(!repeats.contains("peer"), "{way:?}: {repeats}");
        assert!(sent, "{way:?}");
    }
}

/// A turn of `asks` whose call `answers` says no to, with an order as the reason. What the model read of it.
async fn refused_with_an_order(asks: (&str, Role), answers: (&str, &str, Role)) -> String {
    let mut rig = reading(vec![calls(&[("write", json!({}))]), says("done")]);
    let mut spec = (*rig.manifest).clone();
    let asked = json!([{"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"},
        "approval": {"timeout_seconds": 60, "default_if_timeout": "deny"}}]);
    let asked: Vec<_> = serde_json::from_value(asked).unwrap();
    spec.policies[0].rules.splice(0..0, asked);
    rig.manifest = Arc::new(spec);
    let kernel = rig.start().await;
    let (name, channel, role) = answers;
    let taken = kernel
        .submit_message(inbound(asks.0, asks.1, 1, "write it down"))
        .await
        .unwrap();
    soon(async {
        while !rig
            .journal
            .inbox()
            .iter()
            .any(|(message, end)| *message == taken.message_id && end.is_some())
        {
            for question in kernel.pending_questions() {
                let reply = ApprovalReply {
                    answer: ApprovalAnswer::Deny,
                    breadth: GrantScope::Exact,
                    person: KnownPerson {
                        channel: channel.to_owned(),
                        name: name.to_owned(),
                        role,
                    },
                    reason: Some(ORDER.to_owned()),
                    seen: PreviewReceipt::Short,
                };
                kernel.reply_to_question(&question.request_id, reply).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    })
    .await;
    told(&rig).join(" ")
}

/// The words of an answer stand in somebody's turn: an admin's and the asker's own are told, anybody else's are not. Their no counts.
#[tokio::test]
async fn the_words_of_an_answer_are_told_where_they_are_an_admins_or_the_askers_own() {
    let (ann, bob) = (("ann", Role::Admin), ("bob", Role::User));
    for (asks, answers, is_told) in [
        (ann, ("ann", "chat", Role::Admin), true),
        (ann, ("local", "terminal", Role::Admin), true),
        (bob, ("ann", "chat", Role::Admin), true),
        (bob, ("bob", "chat", Role::User), true),
        (ann, ("bob", "chat", Role::User), false),
        (bob, ("eve", "chat", Role::User), false),
        (bob, ("bob", "other", Role::User), false),
        (ann, ("desk", "rpc", Role::User), false),
        (ann, ("ann", "rpc", Role::User), false),
    ] {
        let told = refused_with_an_order(asks, answers).await;
        assert!(told.contains(&format!("was denied by {}", answers.0)), "{told}");
        assert_eq!(told.contains(ORDER), is_told, "{asks:?} {answers:?}: {told}");
    }
}

/// What a task that the turn of this door delegates repeats, by the record; `None`: it may not delegate.
async fn delegated(way: Way) -> Option<String> {
    let mut rig = with_worker(json!(["web"]), false);
    let mut spec = (*rig.manifest).clone();
    spec.channels = reading(Vec::new()).manifest.channels.clone();
    rig.manifest = Arc::new(spec);
    let kernel = rig.start().await;
    bring(&rig, &kernel, way).await;
    repeated(&rig, "peer")
}

#[tokio::test]
async fn a_delegated_task_repeats_the_words_of_whoever_asked_whatever_door_they_came_by() {
    let mut tasks = 0;
    for (way, author) in FOREIGN {
        if matches!(way, Way::Memory(..)) {
            continue; // no turn begins
        }
        let Some(repeats) = delegated(way).await else {
            continue;
        };
        tasks += 1;
        assert!(repeats.contains(author), "{way:?}: {repeats}");
    }
    assert!(tasks >= 9, "most doors may delegate: {tasks}");
    for way in OWN {
        if matches!(way, Way::Memory(..)) {
            continue;
        }
        let repeats = delegated(way).await;
        assert!(
            repeats.as_ref().is_some_and(|repeats| !repeats.contains("peer")),
            "{way:?}: {repeats:?}"
        );
    }
}

/// The task of a member that a crash cut off is taken up with the origins that it was given with.
#[tokio::test]
async fn a_members_task_stays_foreign_after_a_restart() {
    for page_first in [true, false] {
        let rig = with_worker(json!(["web"]), page_first);
        let kernel = rig.start().await;
        turn(&kernel, "have the invoices looked after").await;
        let events = rig.journal.events();
        let accepted = events
            .iter()
            .position(|event| {
                event.kind == kind::MESSAGE_ACCEPTED && event.payload.contains(r#""door":"peer""#)
            })
            .unwrap();
        let mut again = cut(&rig, accepted + 1);
        again.models = rig.models.clone();
        let kernel = again.start().await;
        let decided = || {
            let events = again.journal.events();
            events.iter().any(|event| {
                event.payload.contains("\"send\"")
                    && (event.kind == kind::ACTION_DENIED || event.kind == kind::ACTION_EXECUTED)
            }) || ran(&again, "send") > 0
        };
        soon(async {
            while !decided() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        })
        .await;
        assert_eq!(
            ran(&again, "send") == 0,
            page_first,
            "the worker obeys the page after a restart: {page_first}"
        );
        kernel.shutdown("test", 5_000).await;
    }
}
