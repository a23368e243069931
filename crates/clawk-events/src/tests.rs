//! Every recorded event is read and written with the same bytes; every malformed field is told by name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::event::field_names;
use crate::{AddedField, Event, EventError, KINDS, PayloadFault, WrittenEvent, kind};

/// Every type with every field that it may have, made by hand.
const EVERY_FIELD: &str = include_str!("../tests/fixtures/every-field.jsonl");
/// Events of each form that runs of this version's tests recorded.
const RECORDED: &str = include_str!("../tests/fixtures/recorded.jsonl");
/// All events of the state that the program of commit b4f763d left.
const B4F763D: &str = include_str!("../tests/fixtures/state-b4f763d.jsonl");

#[derive(serde::Deserialize)]
struct RecordedEvent {
    kind: String,
    payload: Box<RawValue>,
}

fn events_of(lines: &str) -> Vec<(String, String)> {
    let read = |line| serde_json::from_str::<RecordedEvent>(line).unwrap();
    let lines = lines.lines().map(read);
    lines
        .map(|event| (event.kind, event.payload.get().to_owned()))
        .collect()
}

fn all_events() -> Vec<(String, String)> {
    [EVERY_FIELD, RECORDED, B4F763D]
        .into_iter()
        .flat_map(events_of)
        .collect()
}

#[test]
fn every_recorded_event_is_written_with_the_bytes_it_was_read_from() {
    for (kind, payload) in all_events() {
        let event = Event::read(&kind, &payload).unwrap_or_else(|error| panic!("{error}: {payload}"));
        assert!(
            !matches!(event, Event::Unknown { .. } | Event::Shortened { .. }),
            "{kind}: {payload}"
        );
        assert_eq!(event.kind(), kind);
        assert_eq!(event.canonical_payload().get(), payload, "{kind}");
    }
}

#[test]
fn every_event_of_b4f763d_is_among_them() {
    assert_eq!(events_of(B4F763D).len(), 58);
}

#[test]
fn every_type_has_a_line_with_every_field() {
    let lines: BTreeMap<String, String> = events_of(EVERY_FIELD).into_iter().collect();
    let kinds: BTreeSet<&str> = lines.keys().map(String::as_str).collect();
    assert_eq!(kinds, KINDS.iter().copied().collect::<BTreeSet<&str>>());
    for (kind, payload) in &lines {
        let members: Map<String, Value> = serde_json::from_str(payload).unwrap();
        let members: Vec<&str> = members.keys().map(String::as_str).collect();
        assert_eq!(members, field_names(kind), "{kind}: in this order");
    }
}

#[test]
fn a_field_with_a_value_of_another_type_is_told_by_type_name_and_place() {
    for (kind, payload) in events_of(EVERY_FIELD) {
        for field in field_names(&kind) {
            let mut members: Map<String, Value> = serde_json::from_str(&payload).unwrap();
            members.insert(field.to_owned(), json!([["words of somebody"]]));
            let payload = Value::Object(members).to_string();
            let error = Event::read(&kind, &payload).unwrap_err();
            let (told, place) = (error.to_string(), payload.find("[[\"words").unwrap());
            let PayloadFault::WrongField {
                field: named, offset, ..
            } = error.fault
            else {
                panic!("{told}");
            };
            assert_eq!((error.kind.as_str(), named), (kind.as_str(), field), "{told}");
            assert!((place..place + 30).contains(&offset), "{told}: it is at {place}");
            assert!(
                told.contains(&kind) && told.contains(field) && !told.contains("somebody"),
                "{told}"
            );
        }
    }
}

#[test]
fn a_field_that_is_missing_is_told_by_name_or_was_not_always_written() {
    let mut required = 0;
    for (kind, payload) in events_of(EVERY_FIELD) {
        for field in field_names(&kind) {
            let mut members: Map<String, Value> = serde_json::from_str(&payload).unwrap();
            members.remove(field);
            match Event::read(&kind, &Value::Object(members).to_string()) {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.fault, PayloadFault::MissingField { field }, "{error}");
                    required += 1;
                }
            }
        }
    }
    assert!(required > 300, "{required}");
}

/// A reader of an older version passes over what a later one writes besides.
#[test]
fn fields_of_later_versions_are_passed_over() {
    for (kind, payload) in events_of(EVERY_FIELD) {
        let later = payload.replacen('{', r#"{"a_later_field":{"x":[1]},"#, 1);
        let event = Event::read(&kind, &later).unwrap();
        assert_eq!(event.canonical_payload().get(), payload, "{kind}");
    }
}

#[test]
fn an_event_of_a_later_version_keeps_its_payload() {
    let event = Event::read("ckp.later.thing", r#"{"z":1.5,"a":[]}"#).unwrap();
    let Event::Unknown { kind, raw } = &event else {
        panic!("{event:?}");
    };
    assert_eq!(
        (kind.as_str(), raw.get()),
        ("ckp.later.thing", r#"{"z":1.5,"a":[]}"#)
    );
    assert_eq!(event.kind(), "ckp.later.thing");
}

fn fault(kind: &str, payload: &str) -> String {
    let error: EventError = Event::read(kind, payload).unwrap_err();
    error.to_string()
}

#[test]
fn what_is_not_an_object_is_told() {
    for kind in ["session.ended", "ckp.later.thing"] {
        let told = |payload| fault(kind, payload);
        assert_eq!(
            told("[1]"),
            format!("the payload of `{kind}`: an array in place of an object")
        );
        assert_eq!(
            told("null"),
            format!("the payload of `{kind}`: null in place of an object")
        );
        assert_eq!(
            told("{\"a\":"),
            format!("the payload of `{kind}`: not JSON, from byte 4")
        );
        assert_eq!(
            told(""),
            format!("the payload of `{kind}`: not JSON, from byte 0")
        );
    }
}

#[test]
fn messages_say_what_is_wrong_and_where() {
    assert_eq!(
        fault("session.ended", r#"{"duration_ms":"long","reason":"x"}"#),
        "the payload of `session.ended`: the field `duration_ms` at byte 20 is a string; expected u64"
    );
    assert_eq!(
        fault("session.ended", r#"{"duration_ms":1}"#),
        "the payload of `session.ended`: the field `reason` is missing"
    );
    assert_eq!(
        fault(
            "session.ended",
            r#"{"duration_ms":1,"duration_ms":2,"reason":"x"}"#
        ),
        "the payload of `session.ended`: the field `duration_ms` occurs twice"
    );
}

/// What [`clawk_trace::bounded`] cuts is no fault: the event is read as one that was cut, and written as it is.
#[test]
fn an_event_that_was_cut_to_size_is_read_as_such() {
    let origins: Vec<String> = (0..40_000)
        .map(|n| format!("web https://host-{n}.example/"))
        .collect();
    let whole = json!({ "context": { "x": origins }, "goal": "g", "operation": "resolve",
        "request_id": "0195f1c2-6d3e-7aaa-8bbb-0123456789ab" });
    let nested = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for text in [whole.to_string(), format!(r#"{{"context":{nested}}}"#)] {
        let cut = clawk_trace::bounded(RawValue::from_string(text).unwrap());
        let event = Event::read("carp.request.received", cut.get()).unwrap();
        assert!(
            matches!(
                event,
                Event::Shortened {
                    kind: "carp.request.received",
                    ..
                }
            ),
            "{event:?}"
        );
        assert_eq!(
            (event.kind(), event.canonical_payload().get()),
            ("carp.request.received", cut.get())
        );
        let error = crate::payload::CarpRequestReceived::read(event.kind(), cut.get()).unwrap_err();
        assert_eq!(error.fault, PayloadFault::Shortened);
    }
    // A text may be cut and is a text still.
    let long = json!({ "duration_ms": 1, "reason": "x".repeat(100_000) }).to_string();
    let cut = clawk_trace::bounded(RawValue::from_string(long).unwrap());
    let event = Event::read("session.ended", cut.get()).unwrap();
    assert!(matches!(event, Event::SessionEnded(_)), "{event:?}");
    assert_eq!(event.canonical_payload().get(), cut.get());
}

#[test]
fn a_field_that_was_added_later_is_absent_null_or_a_value() {
    let read = |field: &str| {
        let payload = format!(
            r#"{{"action_id":"a","answer":"allow","by":"ann","channel":"cli","reason":null,"request_id":"r","role":"admin"{field}}}"#
        );
        let event = Event::read("ckp.approval.answered", &payload).unwrap();
        assert_eq!(event.canonical_payload().get(), payload);
        let Event::ApprovalAnswered(answered) = event else {
            panic!("{event:?}");
        };
        answered.seen
    };
    assert_eq!(read(""), AddedField::Absent);
    assert_eq!(read(r#","seen":null"#), AddedField::from(None));
    assert_eq!(read(r#","seen":"it""#).value().map(String::as_str), Some("it"));
}

/// The store names two types itself: it writes them without the kernel.
#[test]
fn every_type_that_the_store_names_is_known() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut named = BTreeSet::new();
    for source in ["clawk-store/src/erase.rs", "clawk-store/src/memory/look.rs"] {
        let text = std::fs::read_to_string(crates.join(source)).unwrap();
        let consts = text.split("const ").skip(1);
        let values = consts.filter_map(|rest| rest.split_once(": &str = \"")?.1.split_once('"'));
        named.extend(values.map(|(kind, _)| kind.to_owned()));
    }
    let known: BTreeSet<String> = KINDS.iter().map(|kind| (*kind).to_owned()).collect();
    assert!(named.len() >= 2 && named.is_subset(&known), "{named:?}");
}

/// What the journal's writer takes has the type and the bytes that the reader's enum has.
#[test]
fn what_is_written_is_what_the_enum_writes() {
    let fixture: BTreeMap<String, String> = events_of(EVERY_FIELD).into_iter().collect();
    fn bytes(event: &dyn WrittenEvent) -> (&'static str, String) {
        (event.event_kind(), event.canonical_payload().get().to_owned())
    }
    let line = |kind: &'static str| (kind, fixture[kind].clone());
    let own = crate::payload::ActionFailed::read(kind::ACTION_FAILED, &fixture[kind::ACTION_FAILED]).unwrap();
    assert_eq!(bytes(&own), line(kind::ACTION_FAILED));
    let stored =
        crate::payload::MemoryWrite::read(kind::MEMORY_STORED, &fixture[kind::MEMORY_STORED]).unwrap();
    assert_eq!(bytes(&stored.as_stored()), line(kind::MEMORY_STORED));
    let tried = crate::payload::SwarmProgress::read(kind::SWARM_TRY, &fixture[kind::SWARM_TRY]).unwrap();
    assert_eq!(bytes(&tried.as_try()), line(kind::SWARM_TRY));
}
