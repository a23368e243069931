//! A restart goes on with the interrupted turn, whatever event the machine stopped at.

use std::sync::Arc;

use serde_json::json;

use super::limits::say;
use super::{agent, allow_all, rig};
use crate::Kernel;
use crate::kind;
use crate::notice::TurnEnd;
use crate::ports::Message;
use crate::testing::{Rig, ScriptedModel, calls, says};

/// A model whose answer depends on the conversation alone, as a real one's does.
fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(|request, _| {
        let results = request
            .messages
            .iter()
            .filter(|m| matches!(m, Message::ToolResult { .. }))
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
    let told = asked[0]
        .messages
        .iter()
        .any(|m| matches!(m, Message::ToolResult { text, is_error: true, .. } if text.contains("unknown")));
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
