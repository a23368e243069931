use std::collections::BTreeSet;

use clawk_proto::Digest;
use serde_json::Map;

use super::{ContextRoom, FittedContext, fit_messages, total_size};
use crate::author::TextAuthor;
use crate::event::digest;
use crate::ports::{ModelMessage, ToolUse};

fn user(text: &str) -> ModelMessage {
    ModelMessage::User {
        text: text.to_owned(),
        images: Vec::new(),
        frame: String::new(),
        author: TextAuthor::from_runtime(),
    }
}

/// One step: an answer with so many calls, and a result of so many bytes for each.
fn step(messages: &mut Vec<ModelMessage>, number: usize, calls: usize, bytes: usize) {
    let id = |at: usize| format!("call-{number}-{at}");
    let asked = (0..calls).map(|at| ToolUse {
        id: id(at),
        name: "read".to_owned(),
        arguments: Ok(Map::new()),
    });
    messages.push(ModelMessage::assistant(String::new(), asked.collect()));
    for at in 0..calls {
        messages.push(ModelMessage::ToolResult {
            call_id: id(at),
            text: "x".repeat(bytes),
            is_error: false,
            from_tool: true,
        });
    }
}

fn whole(call_id: &str) -> Option<Digest> {
    Some(digest(call_id.as_bytes()))
}

fn room(window_tokens: usize) -> ContextRoom {
    ContextRoom::new(window_tokens, "You help.", &[], true)
}

/// It begins with a user's message, and calls and results come in pairs.
fn check_well_formed(fitted: &FittedContext) {
    assert!(matches!(fitted.messages.first(), Some(ModelMessage::User { .. })));
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for message in &fitted.messages {
        match message {
            ModelMessage::Assistant { calls, .. } => {
                assert!(open.is_empty(), "calls without results: {open:?}");
                open = calls.iter().map(|call| call.id.as_str()).collect();
            }
            ModelMessage::ToolResult { call_id, .. } => assert!(open.remove(call_id.as_str()), "{call_id}"),
            ModelMessage::User { .. } => assert!(open.is_empty()),
        }
    }
    assert!(open.is_empty());
}

#[test]
fn a_turn_of_many_results_fits_windows_of_every_size() {
    for window_tokens in [2_048, 4_096, 8_192, 32_000] {
        for (steps, calls, bytes) in [
            (1, 1, 24_000),
            (20, 1, 24_000),
            (3, 8, 24_000),
            (60, 1, 900),
            (2, 30, 3_000),
        ] {
            let mut messages = vec![user("before"), user("do it")];
            for number in 0..steps {
                step(&mut messages, number, calls, bytes);
            }
            let room = room(window_tokens);
            let fitted = fit_messages(&messages, room, whole).unwrap();
            check_well_formed(&fitted);
            let least = calls * 700;
            assert!(
                total_size(&fitted.messages) <= room.conversation_bytes.max(least),
                "{window_tokens} {steps} {calls} {bytes}: {} of {}",
                total_size(&fitted.messages),
                room.conversation_bytes
            );
            assert!(fitted.messages.contains(&user("do it")));
        }
    }
}

#[test]
fn what_is_shown_stays_the_same_when_it_is_fitted_again() {
    let mut messages = vec![user("do it")];
    for number in 0..12 {
        step(&mut messages, number, 1, 6_000);
    }
    let once = fit_messages(&messages, room(8_192), whole).unwrap();
    assert_eq!(once, fit_messages(&messages, room(8_192), whole).unwrap());
    let twice = fit_messages(&once.messages, room(8_192), whole).unwrap();
    assert_eq!(once.messages, twice.messages);
}

#[test]
fn the_newest_result_is_shown_and_older_ones_say_how_to_be_read() {
    let mut messages = vec![user("do it")];
    for number in 0..8 {
        step(&mut messages, number, 1, 6_000);
    }
    let fitted = fit_messages(&messages, room(8_192), whole).unwrap();
    let texts: Vec<&str> = fitted
        .messages
        .iter()
        .filter_map(|message| match message {
            ModelMessage::ToolResult { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert!(texts[0].contains("output-read") && texts[0].contains(&whole("call-0-0").unwrap().to_string()));
    assert!(texts.last().unwrap().starts_with("xxx"));
    assert!(fitted.readable.contains(&whole("call-0-0").unwrap()));
    assert!(fitted.shortened_results > 0);
}

#[test]
fn a_message_larger_than_the_window_is_refused_in_words() {
    let error = fit_messages(&[user(&"word ".repeat(20_000))], room(8_192), whole).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("too long") && words.contains("in parts"),
        "{words}"
    );
    assert!(fit_messages(&[user("short")], room(8_192), whole).is_ok());
}

#[test]
fn old_turns_leave_before_anything_of_the_present_one() {
    let mut messages = Vec::new();
    for number in 0..10 {
        messages.push(user("a question"));
        step(&mut messages, number, 1, 3_000);
        messages.push(ModelMessage::assistant("an answer".to_owned(), Vec::new()));
    }
    messages.push(user("now"));
    step(&mut messages, 99, 1, 3_000);
    let fitted = fit_messages(&messages, room(8_192), whole).unwrap();
    check_well_formed(&fitted);
    assert!(fitted.dropped_messages > 0 && fitted.shortened_results == 0);
    assert!(total_size(&fitted.messages) <= room(8_192).conversation_bytes);
}

#[test]
fn a_record_of_an_earlier_version_is_trimmed_as_it_was() {
    let mut messages = vec![user("before")];
    step(&mut messages, 0, 1, 30_000);
    messages.push(user("do it"));
    step(&mut messages, 1, 1, 30_000);
    let room = ContextRoom::new(8_192, "You help.", &[], false);
    let fitted = fit_messages(&messages, room, whole).unwrap();
    assert_eq!(fitted.messages, messages[3..]);
    assert_eq!(fitted.dropped_messages, 3);
}
