//! Promise 5: every message ends answered, refused with a reason, or in the dead-letter box; turns are serial.

use serde_json::json;

use super::limits::say;
use super::{agent, allow_all, rig};
use crate::EntryPoint;
use crate::error::KernelError;
use crate::kind;
use crate::mailbox::MAILBOX;
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::{FaultKind, ModelMessage};
use crate::session::MAX_MESSAGE_BYTES;
use crate::testing::{Behaviour, ScriptedModel, calls, says};

#[tokio::test]
async fn a_turn_calls_tools_and_answers() {
    let mut rig = rig(agent(allow_all()));
    let script = vec![
        calls(&[("echo", json!({"text": "one"})), ("write", json!({"n": 2}))]),
        says("done"),
    ];
    rig.models.insert(
        "model".to_owned(),
        std::sync::Arc::new(ScriptedModel::turns(script)),
    );
    let kernel = rig.start().await;
    let (end, told) = say(&kernel, "go").await;
    assert_eq!(end, TurnEnd::Answered);
    assert!(told.contains(&SessionNotice::Said("done".to_owned())));
    let asked = rig.models["model"].asked();
    let results: Vec<&ModelMessage> = asked[1]
        .messages
        .iter()
        .filter(|m| matches!(m, ModelMessage::ToolResult { .. }))
        .collect();
    assert_eq!(results.len(), 2);
    assert!(matches!(results[0], ModelMessage::ToolResult { text, is_error: false, .. } if text == "one"));
    assert_eq!(
        rig.journal
            .inbox()
            .iter()
            .map(|(_, end)| *end)
            .collect::<Vec<_>>(),
        [Some("answered")]
    );
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

#[tokio::test]
async fn a_denied_call_is_told_to_the_model_and_the_turn_goes_on() {
    let mut rig = rig(agent(
        json!([{"id": "no", "action": "deny", "scope": "all", "reason": "not here"}]),
    ));
    let script = vec![calls(&[("write", json!({}))]), says("I may not")];
    rig.models.insert(
        "model".to_owned(),
        std::sync::Arc::new(ScriptedModel::turns(script)),
    );
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "go").await.0, TurnEnd::Answered);
    let asked = rig.models["model"].asked();
    let Some(ModelMessage::ToolResult {
        text, is_error: true, ..
    }) = asked[1].messages.last()
    else {
        panic!()
    };
    assert!(text.contains("not here"), "{text}");
    assert_eq!(rig.runner.runs(), []);
}

#[tokio::test]
async fn a_turn_that_no_model_answers_lies_in_the_dead_letter_box() {
    let mut rig = rig(agent(allow_all()));
    let down = ScriptedModel::new(|_, _| Err(ScriptedModel::fault(FaultKind::Auth, "no key")));
    rig.models.insert("model".to_owned(), std::sync::Arc::new(down));
    let kernel = rig.start().await;
    let (end, _) = say(&kernel, "hello?").await;
    assert!(
        matches!(end, TurnEnd::Failed(ref why) if why.contains("no key")),
        "{end:?}"
    );
    let dead = kernel.dead_letters(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert!(dead[0].reason.contains("no key"));
    assert_eq!(rig.journal.inbox()[0].1, Some("dead"));
}

#[tokio::test]
async fn refusals_have_a_reason_and_a_record() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    for text in [
        String::new(),
        "  \n".to_owned(),
        "x".repeat(MAX_MESSAGE_BYTES + 1),
    ] {
        assert!(matches!(
            session.send_text(text).await,
            Err(KernelError::Refused(_))
        ));
    }
    let refused = rig
        .journal
        .kinds()
        .iter()
        .filter(|k| *k == kind::MESSAGE_REFUSED)
        .count();
    assert_eq!(refused, 3);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_bounded_and_the_counts_add_up() {
    let mut rig = rig(agent(allow_all()));
    rig.inbox.waiting = 10;
    rig.runner.set("write", Behaviour::Sleep(1000));
    let model = ScriptedModel::new(|request, _| {
        Ok(match request.messages.last() {
            Some(ModelMessage::User { .. }) => calls(&[("write", json!({}))]),
            _ => says("ok"),
        })
    });
    rig.models.insert("model".to_owned(), std::sync::Arc::new(model));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    let mut taken = 0;
    let mut refused = 0;
    for n in 0..200 {
        match session.send_text(format!("message {n}")).await {
            Ok(_) => taken += 1,
            Err(KernelError::Full(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    let most = MAILBOX + rig.inbox.waiting;
    assert!((most..=most + 2).contains(&taken), "{taken}");
    assert_eq!(taken + refused, 200);
    let mut ended = 0;
    while ended < taken {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            assert_eq!(end, TurnEnd::Answered);
            ended += 1;
        }
    }
    assert!(
        rig.journal
            .inbox()
            .iter()
            .all(|(_, end)| *end == Some("answered"))
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_the_turn_and_not_the_session() {
    let mut rig = rig(agent(allow_all()));
    rig.runner.set("write", Behaviour::Sleep(60_000));
    let model = ScriptedModel::new(|request, _| {
        let asks = matches!(request.messages.last(), Some(ModelMessage::User { text, .. }) if text == "slow");
        Ok(if asks {
            calls(&[("write", json!({})), ("echo", json!({"text": "never"}))])
        } else {
            says("fine")
        })
    });
    rig.models.insert("model".to_owned(), std::sync::Arc::new(model));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("slow").await.unwrap();
    while !matches!(
        session.next_notice().await,
        Some(SessionNotice::CallDecided { .. })
    ) {}
    session.cancel_turn();
    loop {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            assert_eq!(end, TurnEnd::Cancelled);
            break;
        }
    }
    session.send_text("still there?").await.unwrap();
    loop {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            assert_eq!(end, TurnEnd::Answered);
            break;
        }
    }
    // Every call of the cancelled turn has its answer in the conversation.
    let last = rig.models["model"].asked().pop().unwrap();
    let results = last
        .messages
        .iter()
        .filter(|m| matches!(m, ModelMessage::ToolResult { .. }))
        .count();
    assert_eq!(results, 2);
}

#[tokio::test]
async fn an_endless_turn_ends_with_an_explanation() {
    let mut rig = rig(agent(allow_all()));
    let model = ScriptedModel::new(|_, n| Ok(calls(&[("echo", json!({"text": format!("again {n}")}))])));
    rig.models.insert("model".to_owned(), std::sync::Arc::new(model));
    let kernel = rig.start().await;
    let (end, _) = say(&kernel, "loop").await;
    assert!(
        matches!(end, TurnEnd::Failed(ref why) if why.contains("limit")),
        "{end:?}"
    );
}

#[tokio::test]
async fn a_session_is_taken_up_again_with_its_conversation() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("my name is Ann").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    let id = session.id;
    kernel.shutdown("test", 1000).await;
    let kernel = rig.start().await;
    let session = kernel.reopen_session(id, EntryPoint::Cli).await.unwrap();
    session.send_text("who am I?").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    let last = rig.models["model"].asked().pop().unwrap();
    assert!(
        matches!(last.messages.first(), Some(ModelMessage::User { text, .. }) if text == "my name is Ann")
    );
    assert_eq!(last.messages.len(), 3);
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
    let unknown = kernel
        .reopen_session(clawk_proto::SessionId(uuid::Uuid::nil()), EntryPoint::Cli)
        .await;
    assert!(matches!(unknown, Err(KernelError::UnknownSession(_))));
}
