use serde_json::json;

use super::*;

fn event(payload: Value) -> TraceEvent {
    serde_json::from_value(json!({
        "trace_version": "1.0", "event_id": uuid::Uuid::nil(), "trace_id": uuid::Uuid::nil(), "span_id": uuid::Uuid::nil(),
        "session_id": uuid::Uuid::nil(), "sequence": 7, "timestamp": "2026-11-21T22:00:01.123456Z",
        "event_type": "action.executed", "payload": payload, "event_hash": "0".repeat(64), "previous_event_hash": "0".repeat(64),
    }))
    .unwrap()
}

const PLAIN: LineStyle = LineStyle {
    colour: false,
    width: 0,
};

#[test]
fn a_line_says_when_what_and_the_facts() {
    let text = line(
        &event(json!({"tool": "echo", "words": "two words", "args": "ab".repeat(32), "n": 3})),
        PLAIN,
    );
    assert_eq!(
        text,
        "22:00:01.123      7  action.executed  args=abababababab… n=3 tool=echo words=\"two words\""
    );
}

#[test]
fn a_payload_cannot_steer_the_terminal() {
    let text = line(&event(json!({"x": "a\u{1b}[2Jb\u{202e}c\rd\u{9b}"})), PLAIN);
    assert!(
        text.chars().all(|c| !c.is_control() && c != '\u{202e}'),
        "{text:?}"
    );
}

#[test]
fn lines_are_cut_to_the_width() {
    let text = line(
        &event(json!({"x": "y".repeat(500)})),
        LineStyle {
            colour: false,
            width: 60,
        },
    );
    assert_eq!(text.chars().count(), 60);
    let coloured = line(
        &event(json!({})),
        LineStyle {
            colour: true,
            width: 60,
        },
    );
    assert!(coloured.contains("\u{1b}[32maction.executed"));
}
