use clawk_events::KINDS;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{ActivityDescriber, ActivityPlace, LogFormat};

const TURN: &str = "0d6a7a3e-4c51-4b5c-8f0e-1f2a3b4c5d6e";
const CANARY: &str = "quetzal said so";

fn digest() -> Value {
    json!("0".repeat(64))
}

fn lines_of(describer: &mut ActivityDescriber, kind: &str, payload: &Value) -> Option<(String, Value)> {
    let line = describer.describe_event(kind, &payload.to_string())?;
    let place = ActivityPlace {
        at: "2026-11-28T00:00:00.000000Z".to_owned(),
        session: Uuid::nil(),
        sequence: 7,
    };
    let text = line.format_line(kind, &place, LogFormat::Text).unwrap();
    let object = line.format_line(kind, &place, LogFormat::Json).unwrap();
    assert_eq!(line.format_line(kind, &place, LogFormat::Off), None);
    Some((text, serde_json::from_str(&object).unwrap()))
}

fn completed(cost: Option<u64>) -> Value {
    json!({ "attempt": 1, "bytes_out": 1, "cached_tokens": 0, "call_count": 0, "completion_hash": digest(), "cost_microusd": cost,
        "duration_ms": 5, "estimated": false, "inference_id": TURN, "input_tokens": 3, "model": "m", "output_tokens": 4,
        "provider": "main", "request_hash": digest(), "stop": "end", "turn": TURN })
}

fn answered() -> Value {
    json!({ "duration_ms": 12, "end": "answered", "input_tokens": 3, "message_id": TURN, "output_tokens": 4, "text_hash": digest() })
}

#[test]
fn a_turns_end_says_its_time_tokens_and_the_cost_of_all_its_requests() {
    let mut describer = ActivityDescriber::default();
    for _ in 0..2 {
        lines_of(
            &mut describer,
            "ckp.provider.completed",
            &completed(Some(1_500_000)),
        )
        .unwrap();
    }
    let (text, object) = lines_of(&mut describer, "ckp.message.answered", &answered()).unwrap();
    assert_eq!(
        text,
        format!(
            "2026-11-28T00:00:00.000000Z INFO  turn ended end=answered ms=12 input_tokens=3 output_tokens=4 cost=$3.000000 \
             session={} turn={TURN}",
            Uuid::nil()
        )
    );
    assert_eq!(object["trace_id"], TURN.replace('-', ""));
    assert_eq!(object["cost_microusd"], 3_000_000);
    assert_eq!(
        (&object["level"], &object["sequence"]),
        (&json!("info"), &json!(7))
    );
    // The next turn of this id has its own cost; a turn without a known price has none.
    let (text, _) = lines_of(&mut describer, "ckp.message.answered", &answered()).unwrap();
    assert!(!text.contains("cost="), "{text}");
}

#[test]
fn a_tool_that_only_a_model_named_is_other() {
    let mut describer = ActivityDescriber::default();
    let denied = |tool: &str| {
        json!({ "action_id": tool, "by": "main", "policy_id": null, "reason": CANARY, "request_hash": digest(), "request_id": TURN,
            "result_hash": digest(), "rule_id": null, "turn": TURN })
    };
    let (text, _) = lines_of(&mut describer, "action.denied", &denied("quetzal")).unwrap();
    assert!(text.contains("WARN  call denied tool=other"), "{text}");
    let described = json!({ "action_id": "file-read", "tool_hash": digest() });
    assert_eq!(lines_of(&mut describer, "ckp.tool.described", &described), None);
    let (text, _) = lines_of(&mut describer, "action.denied", &denied("file-read")).unwrap();
    assert!(text.contains("tool=file-read"), "{text}");
}

/// Payloads that hold free text wherever a payload may, also as earlier versions wrote it.
#[expect(clippy::too_many_lines, reason = "a table of payloads")]
fn with_words() -> Vec<(&'static str, Value)> {
    vec![
        (
            "action.denied",
            json!({ "action_id": CANARY, "by": CANARY, "policy_id": null, "reason": CANARY, "request_hash": digest(),
            "request_id": CANARY, "result_hash": digest(), "rule_id": null, "turn": TURN }),
        ),
        (
            "action.failed",
            json!({ "action_id": CANARY, "duration_ms": 1, "error_code": CANARY, "error_message": CANARY,
            "request_hash": digest(), "request_id": CANARY, "result_hash": digest(), "turn": TURN }),
        ),
        (
            "ckp.message.accepted",
            json!({ "door": CANARY, "message_id": TURN, "role": CANARY, "sender": CANARY, "size_bytes": 1,
            "text_hash": digest(), "task_id": CANARY, "conversation": CANARY }),
        ),
        (
            "ckp.message.refused",
            json!({ "door": "cli", "message_id": TURN, "reason": CANARY, "size_bytes": 1 }),
        ),
        (
            "ckp.message.dead",
            json!({ "message_id": TURN, "reason": CANARY, "why": CANARY }),
        ),
        (
            "ckp.turn.stopped",
            json!({ "guard": "steps", "reason": CANARY, "turn": TURN }),
        ),
        (
            "ckp.delivery.ended",
            json!({ "attempt": 1, "channel": "tg", "dead": true, "message_id": TURN, "next_at": null,
            "outcome": CANARY, "platform_id": CANARY, "reason": CANARY }),
        ),
        (
            "ckp.provider.failed",
            json!({ "attempt": 1, "bytes_out": 1, "cost_microusd": null, "duration_ms": 1, "estimated": false,
            "inference_id": TURN, "input_tokens": 1, "kind": CANARY, "output_tokens": 1, "provider": "main", "reason": CANARY,
            "status": 400, "turn": TURN }),
        ),
        (
            "ckp.provider.unreachable",
            json!({ "provider": "main", "reason": CANARY }),
        ),
        (
            "ckp.approval.requested",
            json!({ "action_id": CANARY, "default_if_timeout": "deny", "expires_at": CANARY, "policy_id": null,
            "question_hash": digest(), "reason": CANARY, "request_hash": digest(), "request_id": CANARY, "rule_id": null }),
        ),
        (
            "ckp.approval.answered",
            json!({ "action_id": CANARY, "answer": CANARY, "by": CANARY, "channel": "tg", "reason": CANARY,
            "request_id": CANARY, "role": CANARY }),
        ),
        (
            "ckp.stop.engaged",
            json!({ "by": CANARY, "channel": "tg", "level": CANARY, "reason": CANARY, "session": null }),
        ),
        (
            "ckp.channel.refused",
            json!({ "channel": "tg", "conversation": CANARY, "count": 1, "fact": CANARY, "reason": CANARY,
            "sender": CANARY }),
        ),
        (
            "ckp.egress.refused",
            json!({ "action_id": CANARY, "address": CANARY, "bytes_in": 1, "bytes_out": 1, "code": CANARY,
            "duration_ms": 1, "host": "quetzal.example", "port": 1, "reason": CANARY, "request_id": CANARY, "rule": null,
            "via": CANARY }),
        ),
        (
            "error.occurred",
            json!({ "error_code": CANARY, "error_message": CANARY, "request_id": TURN }),
        ),
        (
            "ckp.memory.forgotten",
            json!({ "by": CANARY, "count": 1, "entries": [], "reason": CANARY }),
        ),
        (
            "ckp.content.redacted",
            json!({ "by": CANARY, "contents": [], "count": 1, "reason": CANARY, "scope": CANARY }),
        ),
        ("session.ended", json!({ "duration_ms": 1, "reason": CANARY })),
    ]
}

#[test]
fn no_line_has_words_of_a_person_a_model_or_a_tool() {
    let mut lines = 0;
    for (kind, payload) in with_words() {
        let Some((text, object)) = lines_of(&mut ActivityDescriber::default(), kind, &payload) else {
            continue;
        };
        lines += 1;
        assert!(!text.contains("an event can't be read"), "{kind} {payload}");
        let all = object.to_string();
        assert!(
            !text.contains("quetzal") && !all.contains("quetzal"),
            "{text} {all}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    assert!(lines > 15, "{lines}");
    // What can't be read is said without its bytes.
    for kind in KINDS {
        let (text, object) = lines_of(&mut ActivityDescriber::default(), kind, &json!([CANARY])).unwrap();
        assert!(
            text.contains("an event can't be read") && !text.contains("quetzal"),
            "{text}"
        );
        assert!(!object.to_string().contains("quetzal"), "{object}");
    }
}
