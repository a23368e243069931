//! What counts as a difference between a record and its replay, each by itself.

use clawk_proto::SessionId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::compare;
use crate::event::{digest, kind};
use crate::ports::{EventContent, RecordedEvent};
use crate::replay::ReplayDivergence;
use crate::time::Timestamp;

const TURN: &str = "0198c0de-0000-7000-8000-000000000001";

fn id(n: u128) -> String {
    Uuid::from_u128(n).to_string()
}

/// Events of one turn, in order.
fn turn(events: &[(&'static str, Value)]) -> Vec<RecordedEvent> {
    (0..)
        .zip(events)
        .map(|(sequence, (kind, payload))| {
            let mut payload = payload.clone();
            payload["turn"] = json!(TURN);
            RecordedEvent {
                row: sequence + 1,
                session: SessionId(Uuid::from_u128(9)),
                sequence,
                at: Timestamp(0),
                kind: (*kind).to_owned(),
                payload: payload.to_string(),
                content: None,
            }
        })
        .collect()
}

fn divergence(then: &[RecordedEvent], now: &[RecordedEvent]) -> Option<(u64, String, String)> {
    let (_, _, found) = compare(then, now);
    found.map(
        |ReplayDivergence {
             sequence,
             event_type,
             detail,
         }| (sequence, event_type, detail),
    )
}

/// A call from its request to its end.
fn call() -> Vec<(&'static str, Value)> {
    vec![
        (
            kind::ACTION_REQUESTED,
            json!({ "action_id": "echo", "request_id": id(1), "parameters_hash": "aa" }),
        ),
        (
            kind::ACTION_APPROVED,
            json!({ "action_id": "echo", "request_id": id(1), "rule_id": "all" }),
        ),
        (
            kind::ACTION_EXECUTED,
            json!({ "action_id": "echo", "request_id": id(1), "result_hash": "bb", "duration_ms": 5 }),
        ),
    ]
}

#[test]
fn ids_and_times_of_another_run_are_no_difference() {
    let mut other = call();
    for (_, payload) in &mut other {
        payload["request_id"] = json!(id(77));
    }
    other[2].1["duration_ms"] = json!(9_000);
    let (compared, skipped, found) = compare(&turn(&call()), &turn(&other));
    assert_eq!((compared, skipped, found), (3, 0, None));
}

#[test]
fn an_id_that_stands_for_another_one_is_a_difference() {
    let mut other = call();
    other[2].1["request_id"] = json!(id(2));
    let (sequence, event_type, detail) = divergence(&turn(&call()), &turn(&other)).unwrap();
    assert_eq!((sequence, event_type.as_str()), (2, kind::ACTION_EXECUTED));
    assert!(detail.contains("`request_id`"), "{detail}");
}

#[test]
fn every_other_member_is_compared() {
    for (at, member) in [(0, "parameters_hash"), (1, "rule_id"), (2, "result_hash")] {
        let mut other = call();
        other[at].1[member] = json!("other");
        let (sequence, _, detail) = divergence(&turn(&call()), &turn(&other)).unwrap();
        assert_eq!(sequence, at as u64);
        assert!(detail.contains(member), "{detail}");
    }
}

#[test]
fn an_event_of_another_type_is_a_difference_whatever_it_says() {
    let mut other = call();
    other[2].0 = kind::ACTION_FAILED;
    let (sequence, event_type, detail) = divergence(&turn(&call()), &turn(&other)).unwrap();
    assert_eq!((sequence, event_type.as_str()), (2, kind::ACTION_EXECUTED));
    assert!(
        detail.contains("`action.failed`") && detail.contains("in its place"),
        "{detail}"
    );
}

#[test]
fn what_does_not_come_again_and_what_comes_besides_are_differences() {
    let (whole, short) = (turn(&call()), turn(&call()[..2]));
    let (sequence, event_type, detail) = divergence(&whole, &short).unwrap();
    assert_eq!((sequence, event_type.as_str()), (2, kind::ACTION_EXECUTED));
    assert_eq!(detail, "it does not come again");
    let (sequence, event_type, detail) = divergence(&short, &whole).unwrap();
    assert_eq!((sequence, event_type.as_str()), (2, kind::ACTION_EXECUTED));
    assert!(
        detail.starts_with("the replay goes on with `action.executed`"),
        "{detail}"
    );
}

#[test]
fn the_first_of_several_differences_is_named() {
    let mut other = call();
    for (_, payload) in &mut other {
        payload["action_id"] = json!("shell");
    }
    assert_eq!(divergence(&turn(&call()), &turn(&other)).unwrap().0, 0);
}

#[test]
fn a_resolution_is_compared_too_and_named_before_what_follows_it() {
    let resolved = |policy: &str, result: &str| {
        let mut events = vec![
            (
                kind::CARP_REQUEST,
                json!({ "goal": "read", "atlas_changes": policy.len() }),
            ),
            (
                kind::POLICY_EVALUATED,
                json!({ "action_id": "echo", "policy_id": policy, "result": "allow" }),
            ),
            (kind::CARP_COMPLETED, json!({ "decision_type": "allow" })),
        ];
        events.extend(call());
        events[5].1["result_hash"] = json!(result);
        turn(&events)
    };
    assert_eq!(divergence(&resolved("one", "x"), &resolved("one", "x")), None);
    let (sequence, event_type, detail) = divergence(&resolved("one", "x"), &resolved("other", "y")).unwrap();
    assert_eq!((sequence, event_type.as_str()), (1, kind::POLICY_EVALUATED));
    assert!(
        detail.contains("`policy_id` was \"one\", is \"other\""),
        "{detail}"
    );
}

#[test]
fn how_long_a_spent_limit_asks_to_wait_is_no_difference_and_what_it_says_is() {
    let denied = |wait: u64, reason: &str| {
        let said = json!({ "Denied": { "reason": reason, "retry_after_ms": wait } });
        let bytes = said.to_string().into_bytes();
        let hash = digest(&bytes);
        let payload = json!({ "action_id": "echo", "request_id": id(1), "result_hash": hash });
        let mut events = turn(&[(kind::ACTION_DENIED, payload)]);
        events[0].content = Some(EventContent { digest: hash, bytes });
        events
    };
    assert_eq!(divergence(&denied(10, "spent"), &denied(900, "spent")), None);
    assert!(divergence(&denied(10, "spent"), &denied(10, "never")).is_some());
}

#[test]
fn an_inference_that_a_crash_cut_short_is_nobodys_answer() {
    let asked = |n: u128| {
        (
            kind::PROVIDER_REQUESTED,
            json!({ "inference_id": id(n), "provider": "main" }),
        )
    };
    let said = |n: u128| {
        (
            kind::PROVIDER_COMPLETED,
            json!({ "inference_id": id(n), "completion_hash": "cc" }),
        )
    };
    let failed = |n: u128, why: &str| {
        (
            kind::PROVIDER_FAILED,
            json!({ "inference_id": id(n), "kind": why, "estimated": true }),
        )
    };
    let replayed = turn(&[asked(5), said(5)]);
    let crashed = turn(&[asked(1), failed(1, "lost"), asked(2), said(2)]);
    let (compared, skipped, found) = compare(&crashed, &replayed);
    assert_eq!((compared, skipped, found), (2, 2, None));
    // What a provider said of itself is compared.
    let refused = turn(&[asked(1), failed(1, "timeout"), asked(2), said(2)]);
    assert_eq!(divergence(&refused, &replayed).unwrap().0, 1);
}
