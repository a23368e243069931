//! Messages of channels: taken once, in one session per conversation, answered, and owed until they are delivered (C1, C2, C5).

mod delivery;
mod kills;

use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::Role;
use serde_json::json;

use super::{agent, allow_all, rig, soon};
use crate::door::REMEMBERED_DAYS;
use crate::error::KernelError;
use crate::ingress::{AcceptedMessage, ChannelMessage};
use crate::mailbox::MAILBOX;
use crate::ports::{Journal as _, MessageContext, ModelMessage, OutgoingAnswer};
use crate::testing::{Behaviour, Rig, ScriptedChannel, ScriptedModel, calls, says};
use crate::{KnownPerson, kind, stop};

fn inbound(conversation: &str, id: &str, text: &str) -> ChannelMessage {
    ChannelMessage {
        channel: "chat".to_owned(),
        conversation: conversation.to_owned(),
        direct: false,
        sender: "ann".to_owned(),
        role: Role::User,
        platform_ids: vec![id.to_owned()],
        remembered_days: REMEMBERED_DAYS,
        text: text.to_owned(),
        images: Vec::new(),
        context: MessageContext::default(),
    }
}

/// An agent that repeats what it is told, and has no tool with side effects: its answers carry no record line.
fn parrot() -> Rig {
    let mut spec = agent(allow_all());
    spec["tools"]
        .as_array_mut()
        .unwrap()
        .retain(|tool| tool["name"] == "echo");
    let mut rig = rig(spec);
    let model = ScriptedModel::new(|request, _| {
        let said = request.messages.iter().rev().find_map(|message| match message {
            ModelMessage::User { text, .. } => Some(text.clone()),
            _ => None,
        });
        Ok(says(&format!("re: {}", said.unwrap())))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

async fn answered(rig: &Rig, messages: usize) {
    soon(async {
        while rig
            .journal
            .inbox()
            .iter()
            .filter(|(_, end)| end.is_some())
            .count()
            < messages
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn empty(rig: &Rig) {
    soon(async {
        while !rig.journal.read_outbox(9).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

fn texts(sent: &[OutgoingAnswer]) -> Vec<&str> {
    sent.iter().map(|out| out.text.as_str()).collect()
}

fn restarted(rig: &Rig, events: usize) -> Rig {
    let mut after = rig.clone();
    after.journal = Arc::new(rig.journal.cut(events));
    after
}

#[tokio::test]
async fn a_message_is_answered_and_its_answer_delivered_to_where_it_came_from() {
    let rig = parrot();
    let kernel = rig.start().await;
    let port = Arc::new(ScriptedChannel::default());
    let _deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
    let taken = kernel
        .submit_message(inbound("room", "p1", "hello"))
        .await
        .unwrap();
    assert!(!taken.duplicate);
    answered(&rig, 1).await;
    empty(&rig).await;
    let sent = port.sent();
    assert_eq!(texts(&sent), ["re: hello"]);
    let out = &sent[0];
    assert_eq!(out.id, taken.message_id);
    assert_eq!(
        (out.channel.as_str(), out.conversation.as_str()),
        ("chat", "room")
    );
    assert_eq!(
        (out.reply_to.as_deref(), out.attempt, out.repeat),
        (Some("p1"), 1, false)
    );
    // Nothing of it is left to do after a restart.
    kernel.shutdown("test", 1000).await;
    let kernel = rig.start().await;
    let again = Arc::new(ScriptedChannel::default());
    let _deliveries = kernel.deliver_channel("chat", Arc::clone(&again) as _);
    kernel.shutdown("test", 1000).await;
    assert_eq!(again.sent(), []);
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

/// Before it is accepted, after, answered and not delivered, delivered and not recorded: every event is a crash point, and the
/// platform, which heard of no acceptance, sends the message again.
#[tokio::test]
async fn a_crash_at_any_event_loses_no_message_and_repeats_no_answer_unmarked() {
    let rig = parrot();
    let kernel = rig.start().await;
    let begun = rig.journal.kinds().len();
    let port = Arc::new(ScriptedChannel::default());
    let deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
    kernel
        .submit_message(inbound("room", "p1", "hello"))
        .await
        .unwrap();
    answered(&rig, 1).await;
    empty(&rig).await;
    drop((deliveries, kernel));
    let kinds = rig.journal.kinds();
    let at = |kind: &str| kinds.iter().position(|k| k == kind).unwrap();
    for stop in begun..=kinds.len() {
        let place = format!("stopped at {stop} ({})", kinds[stop - 1]);
        let after = restarted(&rig, stop);
        let kernel = after.start().await;
        let port = Arc::new(ScriptedChannel::default());
        let _deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
        let again = kernel
            .submit_message(inbound("room", "p1", "hello"))
            .await
            .unwrap();
        assert_eq!(again.duplicate, stop > at(kind::MESSAGE_ACCEPTED), "{place}");
        answered(&after, 1).await;
        empty(&after).await;
        assert_eq!(after.journal.inbox().len(), 1, "{place}: one turn");
        let sent = port.sent();
        if stop > at(kind::DELIVERY_ENDED) {
            assert_eq!(sent, [], "{place}: it was delivered");
        } else {
            assert_eq!(texts(&sent), ["re: hello"], "{place}");
            let begun = stop > at(kind::DELIVERY_STARTED);
            assert_eq!(
                sent[0].repeat, begun,
                "{place}: a repeat is marked, and nothing else is"
            );
        }
        assert!(clawk_trace::verify_events(after.journal.trace()).valid, "{place}");
    }
}

#[tokio::test]
async fn a_platforms_retry_is_one_turn_for_seven_days() {
    let rig = parrot();
    let kernel = rig.start().await;
    let mut two_ids = inbound("room", "event-1", "hello");
    two_ids.platform_ids.push("ts-1".to_owned());
    let first = kernel.submit_message(two_ids).await.unwrap();
    for id in ["event-1", "ts-1"] {
        let again = kernel.submit_message(inbound("room", id, "hello")).await.unwrap();
        assert!(again.duplicate, "{id}");
        assert_eq!(
            (again.message_id, again.session_id),
            (first.message_id, first.session_id)
        );
    }
    // Another channel's id of that name is another message.
    let mut elsewhere = inbound("room", "event-1", "hello");
    elsewhere.channel = "mail".to_owned();
    assert!(!kernel.submit_message(elsewhere).await.unwrap().duplicate);
    answered(&rig, 2).await;
    kernel.shutdown("test", 1000).await;
    let day = 86_400_000;
    for (days, duplicate) in [(6, true), (1, false)] {
        rig.clock.advance_ms(days * day);
        let kernel = rig.start().await;
        let again = kernel
            .submit_message(inbound("room", "event-1", "hello"))
            .await
            .unwrap();
        assert_eq!(again.duplicate, duplicate, "after {days} days more");
        kernel.shutdown("test", 1000).await;
    }
}

#[tokio::test]
async fn the_same_message_from_many_hands_at_once_is_one() {
    let rig = parrot();
    let kernel = rig.start().await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let kernel = kernel.clone();
            tokio::spawn(async move {
                kernel
                    .submit_message(inbound("room", "p1", "hello"))
                    .await
                    .unwrap()
            })
        })
        .collect();
    let mut taken: Vec<AcceptedMessage> = Vec::new();
    for task in tasks {
        taken.push(task.await.unwrap());
    }
    assert_eq!(taken.iter().filter(|taken| !taken.duplicate).count(), 1);
    assert!(taken.iter().all(|one| one.message_id == taken[0].message_id));
    answered(&rig, 1).await;
    assert_eq!(rig.journal.inbox().len(), 1);
}

#[tokio::test]
async fn one_conversation_is_one_session_and_each_message_has_its_own_senders_rights() {
    let mut rig = rig(agent(allow_all()));
    let model = ScriptedModel::new(|request, _| {
        Ok(match request.messages.last() {
            Some(ModelMessage::User { .. }) => calls(&[("write", json!({}))]),
            _ => says("done"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let by = |sender: &str, role, id: &str, direct| ChannelMessage {
        direct,
        sender: sender.to_owned(),
        role,
        ..inbound("room", id, "do it")
    };
    let kernel = rig.start().await;
    let first = kernel
        .submit_message(by("ann", Role::User, "1", false))
        .await
        .unwrap();
    answered(&rig, 1).await;
    assert_eq!(rig.runner.runs().len(), 1);
    // Another sender in the same room, who may only watch.
    let second = kernel
        .submit_message(by("eve", Role::Viewer, "2", false))
        .await
        .unwrap();
    answered(&rig, 2).await;
    assert_eq!(second.session_id, first.session_id);
    assert_eq!(
        rig.runner.runs().len(),
        1,
        "a viewer's message has a viewer's rights, whoever opened the room"
    );
    // In direct messages the sender is part of the conversation.
    let ann = kernel
        .submit_message(by("ann", Role::User, "3", true))
        .await
        .unwrap();
    let bob = kernel
        .submit_message(by("bob", Role::User, "4", true))
        .await
        .unwrap();
    assert!(ann.session_id != first.session_id && bob.session_id != ann.session_id);
    answered(&rig, 4).await;
    kernel.shutdown("test", 1000).await;
    let kernel = rig.start().await;
    for (message, session) in [
        (by("bob", Role::Viewer, "5", false), first.session_id),
        (by("ann", Role::User, "6", true), ann.session_id),
        (by("bob", Role::User, "7", true), bob.session_id),
    ] {
        assert_eq!(
            kernel.submit_message(message).await.unwrap().session_id,
            session,
            "after a restart"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_conversation_leaves_memory_and_goes_on_where_it_stood() {
    let rig = parrot();
    let kernel = rig.start().await;
    let first = kernel
        .submit_message(inbound("room", "1", "my name is Ann"))
        .await
        .unwrap();
    answered(&rig, 1).await;
    assert_eq!(kernel.list_open_sessions().len(), 1);
    tokio::time::sleep(Duration::from_millis(rig.inbox.idle_ms + 1000)).await;
    assert_eq!(kernel.list_open_sessions().len(), 0, "nobody needs it");
    assert!(
        !rig.journal.kinds().contains(&kind::SESSION_ENDED.to_owned()),
        "it has not ended"
    );
    let second = kernel
        .submit_message(inbound("room", "2", "who am I?"))
        .await
        .unwrap();
    assert_eq!(second.session_id, first.session_id);
    answered(&rig, 2).await;
    let last = rig.models["model"].asked().pop().unwrap();
    assert!(
        matches!(last.messages.first(), Some(ModelMessage::User { text, .. }) if text == "my name is Ann")
    );
    assert_eq!(last.messages.len(), 3);
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

#[tokio::test(start_paused = true)]
async fn what_waits_beyond_the_mailbox_keeps_its_order_and_its_text_and_more_is_refused() {
    let mut rig = parrot();
    rig.inbox.waiting = 20;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let kernel = rig.start().await;
    // One turn that does not end: everything else waits.
    kernel
        .engage_stop(
            None,
            stop::Level::Frozen,
            &KnownPerson::admin("test", "ann"),
            None,
        )
        .await
        .unwrap();
    let mut taken = Vec::new();
    let mut refused = 0;
    for n in 0..100 {
        match kernel
            .submit_message(inbound("room", &format!("p{n}"), &format!("message {n}")))
            .await
        {
            Ok(_) => taken.push(format!("message {n}")),
            Err(KernelError::Full(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        tokio::task::yield_now().await;
    }
    drop(gate);
    let most = MAILBOX + rig.inbox.waiting;
    assert!((most..=most + 1).contains(&taken.len()), "{}", taken.len());
    assert_eq!(taken.len() + refused, 100);
    // A platform that sends a refused one again is heard once there is room.
    kernel
        .lift_stop(None, &KnownPerson::admin("test", "ann"))
        .await
        .unwrap();
    answered(&rig, taken.len()).await;
    assert!(
        !kernel
            .submit_message(inbound("room", "p99", "message 99"))
            .await
            .unwrap()
            .duplicate
    );
    answered(&rig, taken.len() + 1).await;
    taken.push("message 99".to_owned());
    let asked = rig.models["model"].asked().into_iter();
    let asked: Vec<String> = asked
        .filter_map(|request| match request.messages.last() {
            Some(ModelMessage::User { text, .. }) => Some(text.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(asked, taken);
}

#[tokio::test(start_paused = true)]
async fn no_more_turns_run_at_once_than_there_are_seats() {
    let mut rig = rig(agent(allow_all()));
    rig.inbox.turns = 4;
    rig.runner.set("write", Behaviour::Sleep(10_000));
    let model = ScriptedModel::new(|request, _| {
        Ok(match request.messages.last() {
            Some(ModelMessage::User { .. }) => calls(&[("write", json!({}))]),
            _ => says("done"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let kernel = rig.start().await;
    for n in 0..12 {
        kernel
            .submit_message(inbound(&format!("room {n}"), &format!("p{n}"), "go"))
            .await
            .unwrap();
    }
    for round in 1..=3 {
        tokio::time::sleep(Duration::from_millis(5_000)).await;
        assert_eq!(rig.runner.runs().len(), 4 * round);
        tokio::time::sleep(Duration::from_millis(5_000)).await;
    }
    answered(&rig, 12).await;
}

#[tokio::test]
async fn names_that_no_platform_gives_are_refused() {
    let rig = parrot();
    let kernel = rig.start().await;
    let wrong = [
        ChannelMessage {
            channel: String::new(),
            ..inbound("room", "1", "x")
        },
        ChannelMessage {
            sender: "x".repeat(2000),
            ..inbound("room", "1", "x")
        },
        ChannelMessage {
            conversation: String::new(),
            ..inbound("room", "1", "x")
        },
        ChannelMessage {
            platform_ids: vec![String::new()],
            ..inbound("room", "1", "x")
        },
        ChannelMessage {
            platform_ids: vec!["a".to_owned(); 41],
            ..inbound("room", "1", "x")
        },
    ];
    for inbound in wrong {
        assert!(matches!(
            kernel.submit_message(inbound).await,
            Err(KernelError::BadParameter { .. })
        ));
    }
    assert!(matches!(
        kernel.submit_message(inbound("room", "1", "  ")).await,
        Err(KernelError::Refused(_))
    ));
    assert_eq!(rig.journal.inbox(), []);
}

#[tokio::test]
async fn a_fork_of_a_channels_turn_answers_who_forked_it_and_not_the_channel() {
    let rig = parrot();
    let kernel = rig.start().await;
    kernel
        .submit_message(inbound("room", "1", "hello"))
        .await
        .unwrap();
    answered(&rig, 1).await;
    let events = rig.journal.events();
    let at = events
        .iter()
        .position(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap();
    let (message, sealed) = (&events[at], &rig.journal.trace()[at]);
    let point = crate::ForkPoint {
        event_hash: sealed.event_hash,
        keeps_sender: false,
        sequence: message.sequence,
        session_id: message.session,
        trace_id: sealed.trace_id,
        turn: None,
    };
    let (session, goes_on) = kernel
        .fork_session(point, crate::EntryPoint::Cli, true)
        .await
        .unwrap();
    assert!(goes_on);
    let events = rig.journal.events();
    let first = events.iter().find(|event| event.session == session.id).unwrap();
    assert!(
        first.payload.contains("\"keeps_sender\":true"),
        "the record says so: {}",
        first.payload
    );
    while !matches!(
        session.next_notice().await,
        Some(crate::SessionNotice::TurnEnded { .. })
    ) {}
    let port = Arc::new(ScriptedChannel::default());
    let _deliveries = kernel.deliver_channel("chat", Arc::clone(&port) as _);
    soon(async {
        while !rig.journal.owed_answers("chat", 9).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(texts(&port.sent()), ["re: hello"], "once, to the room");
    let here = kernel.undelivered_answers("cli").await.unwrap();
    assert_eq!(here.len(), 1);
    assert_eq!(
        (here[0].session, here[0].text.as_deref()),
        (session.id, Ok("re: hello"))
    );
    kernel.mark_delivered(session.id, here[0].message).await.unwrap();
    assert_eq!(kernel.undelivered_answers("cli").await.unwrap(), []);
}
