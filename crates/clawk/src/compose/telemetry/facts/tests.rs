//! An event that can't be read is a trouble of its own, and not a row of zeros.

use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_telemetry::TelemetryFactKind;
use uuid::Uuid;

use super::*;

fn fact(kind: &str, payload: &str) -> Option<TelemetryFactKind> {
    let event = RecordedEvent {
        row: 1,
        session: SessionId(Uuid::nil()),
        sequence: 0,
        at: Timestamp(0),
        kind: kind.to_owned(),
        payload: payload.to_owned(),
        content: None,
    };
    of(&event, &mut DeclaredNames::default()).map(|fact| fact.what)
}

const ANSWERED: &str = r#"{"duration_ms":7,"end":"answered","input_tokens":3,"message_id":"0195f1c2-6d3e-7aaa-8bbb-0123456789ab","output_tokens":4,"text_hash":"0000000000000000000000000000000000000000000000000000000000000000"}"#;

#[test]
fn an_event_that_cannot_be_read_is_a_trouble_and_not_a_row_of_zeros() {
    let read = fact(kind::MESSAGE_ANSWERED, ANSWERED);
    assert!(
        matches!(
            read,
            Some(TelemetryFactKind::TurnEnded {
                duration_ms: 7,
                tokens: (3, 4),
                ..
            })
        ),
        "{read:?}"
    );
    let damaged = ANSWERED.replace(r#""input_tokens":3"#, r#""input_tokens":"3""#);
    for payload in [damaged.as_str(), "[]", "{}"] {
        let read = fact(kind::MESSAGE_ANSWERED, payload);
        assert!(
            matches!(&read, Some(TelemetryFactKind::Trouble(trouble)) if trouble.kind.as_str() == UNREADABLE),
            "{payload}: {read:?}"
        );
    }
}

#[test]
fn every_type_that_telemetry_asks_for_tells_something() {
    let lines = include_str!("../../../../../clawk-events/tests/fixtures/every-field.jsonl");
    for line in lines.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let kind = line["kind"].as_str().unwrap();
        let mut payload = line["payload"].clone();
        if payload.get("request_id").is_some() {
            payload["request_id"] = "0195f1c2-6d3e-7aaa-8bbb-0123456789ab".into();
        }
        let told = fact(kind, &payload.to_string());
        let asked_for = KINDS.contains(&kind) && kind != kind::TOOL_DESCRIBED;
        assert_eq!(told.is_some(), asked_for, "{kind}: {told:?}");
    }
}
