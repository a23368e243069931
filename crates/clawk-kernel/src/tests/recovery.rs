//! A restart goes on with the interrupted turn, whatever event the machine stopped at.

use std::sync::Arc;

use serde_json::json;

use super::limits::say;
use super::{agent, allow_all, rig};
use crate::kind;
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::{ModelMessage, RecordedEvent};
use crate::testing::{Behaviour, Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel};

/// A model whose answer depends on the conversation alone, as a real one's does.
fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(|request, _| {
        let results = request
            .messages
            .iter()
            .filter(|m| matches!(m, ModelMessage::ToolResult { .. }))
            .count();
        Ok(match results {
            0 => calls(&[("write", json!({"step": 1}))]),
            1 => calls(&[("write", json!({"step": 2})), ("echo", json!({"text": "3"}))]),
            _ => says("all done"),
        })
    }))
}

fn two_step_rig() -> Rig {
    let mut rig = rig(agent(allow_all()));
    rig.models.insert("model".to_owned(), model());
    rig
}

/// Waits until every message has ended, then stops.
async fn settled(rig: &Rig, kernel: &Kernel) {
    for _ in 0..10_000 {
        if rig.journal.inbox().iter().all(|(_, end)| end.is_some()) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(kernel.shutdown("test", 5_000).await, "nothing is left in flight");
}

#[tokio::test]
async fn a_turn_stopped_at_any_event_is_finished_without_repeating_an_effect() {
    let rig = two_step_rig();
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "work").await.0, TurnEnd::Answered);
    let kinds = rig.journal.kinds();
    let accepted = kinds.iter().position(|k| k == kind::MESSAGE_ACCEPTED).unwrap();
    for stop in accepted + 1..=kinds.len() {
        let done_before: Vec<String> = rig.journal.events()[..stop]
            .iter()
            .filter(|e| e.kind == kind::ACTION_APPROVED && e.payload.contains(r#""action_id":"write""#))
            .map(|e| e.payload.clone())
            .collect();
        let mut after = rig.clone();
        after.journal = Arc::new(rig.journal.cut(stop));
        after.runner = Arc::default();
        after.models.insert("model".to_owned(), model());
        let kernel = after.start().await;
        settled(&after, &kernel).await;
        assert!(
            after
                .journal
                .inbox()
                .iter()
                .all(|(_, end)| *end == Some("answered")),
            "stopped at {stop} ({}): {:?}",
            kinds[stop - 1],
            after.journal.inbox()
        );
        let steps = after
            .runner
            .runs()
            .iter()
            .filter(|(tool, _)| tool == "write")
            .count();
        assert_eq!(
            done_before.len() + steps,
            2,
            "each effect is begun once (stopped at {stop})"
        );
        let report = clawk_trace::verify_events(after.journal.trace());
        assert!(report.valid, "stopped at {stop}: {report:?}");
    }
}

#[tokio::test]
async fn an_unfinished_effect_is_told_to_the_model_as_unknown() {
    let rig = two_step_rig();
    let kernel = rig.start().await;
    say(&kernel, "work").await;
    let decided = rig
        .journal
        .kinds()
        .iter()
        .position(|k| k == kind::ACTION_APPROVED)
        .unwrap();
    let mut after = rig.clone();
    after.journal = Arc::new(rig.journal.cut(decided + 1));
    after.models.insert("model".to_owned(), model());
    let kernel = after.start().await;
    settled(&after, &kernel).await;
    let asked = after.models["model"].asked();
    let told = asked[0].messages.iter().any(
        |m| matches!(m, ModelMessage::ToolResult { text, is_error: true, .. } if text.contains("unknown")),
    );
    assert!(told, "{:?}", asked[0].messages);
}

#[tokio::test]
async fn a_turn_that_kills_the_process_again_and_again_is_given_up() {
    let rig = two_step_rig();
    let kernel = rig.start().await;
    say(&kernel, "work").await;
    let accepted = rig
        .journal
        .kinds()
        .iter()
        .position(|k| k == kind::MESSAGE_ACCEPTED)
        .unwrap();
    let mut journal = Arc::new(rig.journal.cut(accepted + 1));
    for _ in 0..4 {
        let mut after = rig.clone();
        after.journal = Arc::clone(&journal);
        after.models.insert("model".to_owned(), model());
        let kernel = after.start().await;
        settled(&after, &kernel).await;
        // The machine stops right after the turn was taken up.
        let kinds = after.journal.kinds();
        let Some(at) = kinds.iter().rposition(|k| k == kind::MESSAGE_RESUMED) else {
            break;
        };
        if kinds.contains(&kind::MESSAGE_DEAD.to_owned()) {
            break;
        }
        journal = Arc::new(after.journal.cut(at + 1));
    }
    let mut last = rig.clone();
    last.journal = journal;
    last.models.insert("model".to_owned(), model());
    let kernel = last.start().await;
    settled(&last, &kernel).await;
    assert_eq!(last.journal.inbox().last().unwrap().1, Some("dead"));
}

/// A session in which `first` hangs in a tool, and `second` waits behind it.
async fn one_hangs_and_one_waits(rig: &Rig, kernel: &Kernel) {
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("first").await.unwrap();
    session.send_text("second").await.unwrap();
    for _ in 0..10_000 {
        if !rig.runner.runs().is_empty() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the first turn has not begun its call");
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_behind_a_turn_that_the_end_of_the_agent_cuts_off() {
    let mut rig = two_step_rig();
    let kernel = rig.start().await;
    rig.runner.set("write", Behaviour::Sleep(60_000));
    one_hangs_and_one_waits(&rig, &kernel).await;
    kernel.shutdown("test", 0).await;
    // Both are taken up, and the first one hangs again.
    let waiting = Behaviour::Sleep(60_000);
    rig.runner = Arc::default();
    rig.runner.set("echo", waiting.clone());
    rig.runner.set("write", waiting);
    let kernel = rig.start().await;
    for _ in 0..10_000 {
        if !rig.runner.runs().is_empty() {
            break;
        }
        tokio::task::yield_now().await;
    }
    kernel.shutdown("test", 0).await;
    rig.runner = Arc::default();
    let kernel = rig.start().await;
    settled(&rig, &kernel).await;
    let ends: Vec<_> = rig.journal.inbox().into_iter().map(|(_, end)| end).collect();
    assert_eq!(ends, [Some("answered"); 2]);
    let events = rig.journal.events();
    let answered = events.iter().filter(|event| event.kind == kind::MESSAGE_ANSWERED);
    let order: Vec<_> = answered.map(|event| event.payload.clone()).collect();
    let first = rig.journal.inbox()[0].0.to_string();
    assert!(order[0].contains(&first), "in the order in which they came");
    let taken_up =
        |event: &&RecordedEvent| event.kind == kind::MESSAGE_RESUMED && !event.payload.contains(&first);
    assert_eq!(
        events.iter().filter(taken_up).count(),
        1,
        "the second was taken up when it was its turn"
    );
}

#[tokio::test]
async fn a_turn_whose_end_was_not_recorded_is_not_forgotten_when_another_one_followed() {
    let mut rig = two_step_rig();
    let (journal, times) = (Arc::clone(&rig.journal), std::sync::atomic::AtomicUsize::new(0));
    rig.runner.watch(move |_, _| {
        // The disk is full while the first tool runs.
        if times.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0 {
            journal.fail_after(0);
        }
    });
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("first").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    rig.journal.recover();
    session.send_text("second").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    let ends = || {
        rig.journal
            .inbox()
            .into_iter()
            .map(|(_, end)| end)
            .collect::<Vec<_>>()
    };
    assert_eq!(ends(), [None, Some("answered")], "the first is open");
    kernel.shutdown("test", 1_000).await;
    rig.runner = Arc::default();
    let kernel = rig.start().await;
    settled(&rig, &kernel).await;
    let ends: Vec<_> = rig.journal.inbox().into_iter().map(|(_, end)| end).collect();
    assert_eq!(ends, [Some("answered"); 2]);
}

#[tokio::test]
async fn a_message_that_was_taken_up_twice_sees_the_conversation_once() {
    let mut rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    for text in ["my name is Ann", "who am I?"] {
        session.send_text(text).await.unwrap();
        while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    }
    let nth = |of: &str, n: usize| {
        let kinds = rig.journal.kinds();
        let mut at = kinds.iter().enumerate().filter(|(_, found)| *found == of);
        at.nth(n).map(|(at, _)| at + 1).unwrap()
    };
    // The machine stops when the second message has come, and again when it was taken up.
    let come = nth(kind::MESSAGE_ACCEPTED, 1);
    rig.journal = Arc::new(rig.journal.cut(come));
    let kernel = rig.start().await;
    settled(&rig, &kernel).await;
    let kinds = rig.journal.kinds();
    let taken_up = kinds
        .iter()
        .position(|found| found == kind::MESSAGE_RESUMED)
        .unwrap()
        + 1;
    rig.journal = Arc::new(rig.journal.cut(taken_up));
    let kernel = rig.start().await;
    settled(&rig, &kernel).await;
    let last = rig.models["model"].asked().pop().unwrap();
    assert_eq!(last.messages.len(), 3, "{:?}", last.messages);
}
