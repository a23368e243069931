use proptest::prelude::*;
use serde_json::Map;

use super::{Effect, Event, Turn, TurnOutcome};
use crate::author::TextAuthor;
use crate::ports::{ModelCompletion, ModelMessage, StopReason, ToolUse, Usage};

fn completion(calls: Vec<ToolUse>) -> ModelCompletion {
    ModelCompletion {
        text: String::new(),
        calls,
        stop: StopReason::End,
        usage: Usage::default(),
        model: "m".to_owned(),
        state: None,
    }
}

fn wanted(id: usize, good: bool) -> ToolUse {
    let arguments = if good {
        Ok(Map::new())
    } else {
        Err("[1".to_owned())
    };
    ToolUse {
        id: format!("c{id}"),
        name: "t".to_owned(),
        arguments,
    }
}

/// Every call of every assistant message has exactly one result, before the next assistant or user message.
fn well_formed(messages: &[ModelMessage]) -> bool {
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        match message {
            ModelMessage::Assistant { calls, .. } => {
                if !open.is_empty() {
                    return false;
                }
                open = calls.iter().map(|call| call.id.clone()).collect();
            }
            ModelMessage::ToolResult { call_id, .. } => match open.iter().position(|id| id == call_id) {
                Some(at) => drop(open.remove(at)),
                None => return false,
            },
            ModelMessage::User { .. } if !open.is_empty() => return false,
            ModelMessage::User { .. } => {}
        }
    }
    open.is_empty()
}

#[test]
fn arguments_that_are_no_object_are_told_to_the_model_without_a_call() {
    let mut turn = Turn::start(Vec::new(), "x".to_owned(), TextAuthor::from_runtime());
    assert_eq!(
        turn.handle_event(Event::Inferred(completion(vec![wanted(0, false)]))),
        [Effect::Infer]
    );
    assert!(matches!(
        turn.messages().last(),
        Some(ModelMessage::ToolResult { is_error: true, .. })
    ));
}

proptest! {
    /// Whatever the model asks for and whenever the turn ends, the conversation stays well-formed and the turn ends.
    #[test]
    fn a_conversation_is_always_well_formed(
        rounds in prop::collection::vec(prop::collection::vec(any::<bool>(), 0..4), 0..6),
        stop_after in 0usize..24,
    ) {
        let mut turn = Turn::start(Vec::new(), "x".to_owned(), TextAuthor::from_runtime());
        let mut effects = vec![Effect::Infer];
        let mut rounds = rounds.into_iter();
        let mut id = 0;
        let mut ended = None;
        for step in 0..100 {
            let Some(effect) = effects.pop() else { break };
            let event = match effect {
                Effect::Done(end) => { ended = Some(end); break; }
                Effect::Say(_) => continue,
                _ if step == stop_after => Event::Cancelled,
                Effect::Infer => {
                    let calls = rounds.next().unwrap_or_default();
                    let calls = calls.into_iter().map(|good| { id += 1; wanted(id, good) }).collect();
                    Event::Inferred(completion(calls))
                }
                Effect::Call(call) => Event::CallDone { call_id: call.id, text: "ok".to_owned(), is_error: false, from_tool: true },
            };
            effects = turn.handle_event(event);
            effects.reverse();
        }
        // Calls of no arguments with one answer: the loop guard may end the turn.
        let guarded = turn.loop_stop().is_some() && matches!(ended, Some(TurnOutcome::Failed(_)));
        prop_assert!(guarded || matches!(ended, Some(TurnOutcome::Answered | TurnOutcome::Cancelled)));
        prop_assert!(well_formed(turn.messages()));
        prop_assert!(turn.handle_event(Event::Cancelled).is_empty());
    }
}
