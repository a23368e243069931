//! An event whose payload has one wrong field: it never counts as an event that says nothing.

use std::sync::Arc;

use clawk_proto::SessionId;
use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, rig};
use crate::effect::EffectLedger;
use crate::ports::{JournalError, RecordedEvent};
use crate::projection::{ProjectionFold, StoredProjections};
use crate::recover::SessionSpending;
use crate::shown::TurnRecordFold;
use crate::stop::{self, EmergencyStop, Level};
use crate::testing::{ScriptedModel, says};
use crate::time::Timestamp;
use crate::{EntryPoint, KernelError, kind};

const ID: &str = "0195f1c2-6d3e-7aaa-8bbb-0123456789ab";

fn event(kind: &str, payload: &Value) -> RecordedEvent {
    RecordedEvent {
        row: 7,
        session: SessionId(uuid::Uuid::from_u128(1)),
        sequence: 4,
        at: Timestamp(0),
        kind: kind.to_owned(),
        payload: payload.to_string(),
        content: None,
    }
}

fn executed() -> Value {
    let hash = "ab".repeat(32);
    json!({
        "action_id": "write", "attempts": 1, "duration_ms": 5, "execution_id": ID, "is_error": false, "level": "none",
        "mechanisms": [], "missing": [], "request_hash": hash, "request_id": ID, "result_hash": hash, "turn": null,
    })
}

/// The same with a field of another type.
fn damaged(field: &str) -> RecordedEvent {
    let mut payload = executed();
    payload[field] = json!({"not": "this"});
    event(kind::ACTION_EXECUTED, &payload)
}

fn told(error: &JournalError) -> String {
    let told = error.to_string();
    assert!(
        told.contains("event 4 of session") && told.contains("action.executed") && !told.contains("not\""),
        "{told}"
    );
    told
}

#[test]
fn a_sum_of_what_was_spent_is_refused() {
    let mut sums = SessionSpending::default();
    sums.apply_event(&event(kind::ACTION_EXECUTED, &executed()))
        .unwrap();
    // The field says nothing of what was spent, and the event is still not believed.
    assert!(told(&sums.apply_event(&damaged("level")).unwrap_err()).contains("`level`"));
    assert!(told(&sums.apply_event(&damaged("duration_ms")).unwrap_err()).contains("`duration_ms`"));
}

#[test]
fn a_projection_differs_and_the_event_is_named() {
    let mut fold = ProjectionFold::new(&StoredProjections::default(), true);
    fold.apply_event(&damaged("is_error"));
    let differences = fold.find_differences(&StoredProjections::default());
    assert!(
        differences
            .iter()
            .any(|said| said.contains("event 4 of session") && said.contains("`is_error`")),
        "{differences:?}"
    );
}

#[test]
fn the_ledger_of_effects_and_the_record_of_a_turn_are_refused() {
    let bad = damaged("is_error");
    let mut ledger = EffectLedger::default();
    let error = ledger
        .apply_event(&bad.kind, bad.session, "", &bad.payload)
        .unwrap_err();
    assert!(error.to_string().contains("`is_error`"), "{error}");
    assert!(told(&TurnRecordFold::default().apply_event(&bad).unwrap_err()).contains("`is_error`"));
}

#[test]
fn a_stop_that_cannot_be_read_stops_all_and_its_end_ends_nothing() {
    let brake = EmergencyStop::default();
    let engaged = json!({"by": "ann", "channel": "cli", "level": 7, "reason": null, "session": ID});
    stop::apply_event(
        &brake,
        stop::read_change(&event(kind::STOP_ENGAGED, &engaged)).unwrap(),
    );
    let stops = brake.active_stops();
    assert_eq!((stops[0].level, stops[0].session), (Level::Frozen, None));
    // Before, a session that could not be read was taken for the whole agent.
    let lifted = json!({"by": "ann", "channel": "cli", "session": 7});
    assert!(stop::read_change(&event(kind::STOP_LIFTED, &lifted)).is_none());
    let lifted = json!({"by": "ann", "channel": "cli", "session": null});
    stop::apply_event(
        &brake,
        stop::read_change(&event(kind::STOP_LIFTED, &lifted)).unwrap(),
    );
    assert!(brake.active_stops().is_empty());
}

#[tokio::test]
async fn a_session_is_not_taken_up_without_one_of_its_events() {
    let mut first = rig(agent(allow_all()));
    first.models.insert(
        "model".to_owned(),
        Arc::new(ScriptedModel::new(|_, _| Ok(says("yes")))),
    );
    let kernel = first.start().await;
    say(&kernel, "hello").await;
    let events = first.journal.events();
    let accepted = events.iter().find(|event| event.kind == kind::MESSAGE_ACCEPTED);
    let session = accepted.unwrap().session;
    kernel.shutdown("test", 1_000).await;
    for (damaged, kind_of) in [
        (true, kind::PROVIDER_COMPLETED),
        (true, kind::MESSAGE_ANSWERED),
        (false, ""),
    ] {
        let mut next = first.clone();
        next.journal = Arc::new(first.journal.retold(|kind, payload| {
            if damaged && kind == kind_of {
                payload.insert("output_tokens".to_owned(), json!("many"));
            }
        }));
        let kernel = next.start().await;
        let again = kernel.reopen_session(session, EntryPoint::Cli).await;
        match again {
            Ok(_) => assert!(!damaged, "{kind_of}"),
            Err(KernelError::Journal(error)) => {
                let told = error.to_string();
                assert!(
                    damaged && told.contains(kind_of) && told.contains("`output_tokens`"),
                    "{told}"
                );
            }
            Err(error) => panic!("{error}"),
        }
        kernel.shutdown("test", 1_000).await;
    }
}
