use clawk_proto::SessionId;
use clawk_proto::trace::{EVENT_MAX_BYTES, PAYLOAD_MAX_BYTES};
use proptest::prelude::*;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{EXACT_MAX, TEXT_MAX_BYTES, bounded};
use crate::canonical::is_payload;
use crate::chain::{Draft, HashBuffer, SessionChain};
use crate::verify::verify;

fn of(payload: &Value) -> Value {
    serde_json::from_str(bounded(to_raw_value(payload).unwrap()).get()).unwrap()
}

/// The event as a line, after what a journal does with it.
fn line(payload: &RawValue) -> Vec<u8> {
    let mut chain = SessionChain::new(SessionId(Uuid::from_u128(1)), Uuid::from_u128(2));
    let draft = Draft {
        event_id: Uuid::from_u128(3),
        span: Uuid::from_u128(4),
        parent: None,
        timestamp: "2026-01-02T03:04:05.000006Z",
        event_type: "action.executed",
        payload: payload.get(),
    };
    let mut line =
        serde_json::to_vec(&chain.link_event(&draft, &mut HashBuffer::default()).unwrap()).unwrap();
    line.push(b'\n');
    line
}

#[test]
fn what_fits_is_left_alone_to_the_byte() {
    for payload in [
        json!({}),
        json!({"a": 1, "b": [null, true, "x"]}),
        json!({"text": "é".repeat(10_000)}),
    ] {
        let raw = to_raw_value(&payload).unwrap();
        assert_eq!(bounded(raw.clone()).get(), raw.get());
    }
}

#[test]
fn a_long_text_becomes_its_beginning_its_length_and_its_digest() {
    let long = "é".repeat(TEXT_MAX_BYTES);
    let payload = of(&json!({ "action_id": long, "request_id": "r" }));
    let text = payload["action_id"].as_str().unwrap();
    assert!(text.starts_with("éé") && text.len() < 1200, "{}", text.len());
    assert!(text.contains("… [131072 bytes, sha256:"), "{text}");
    assert_eq!(payload["request_id"], "r", "the rest stays");
    assert_eq!(
        payload,
        of(&json!({ "action_id": long, "request_id": "r" })),
        "and it is always the same"
    );
}

#[test]
fn a_list_of_many_gives_way_before_the_names_beside_it() {
    let many: Vec<String> = (0..200_000).map(|n| format!("mechanism {n}")).collect();
    let payload = of(&json!({ "mechanisms": many, "request_id": "r", "turn": 7 }));
    assert!(
        payload["mechanisms"]
            .as_str()
            .unwrap()
            .starts_with("[\"mechanism 0\"")
    );
    assert_eq!(
        (&payload["request_id"], &payload["turn"]),
        (&json!("r"), &json!(7))
    );
}

#[test]
fn numbers_without_an_agreed_text_become_ones_that_have_one() {
    let payload = of(&json!({ "a": u64::MAX, "b": i64::MIN, "c": 1.5, "d": [EXACT_MAX, EXACT_MAX + 1] }));
    assert_eq!(payload["a"], EXACT_MAX);
    assert_eq!(payload["b"].as_i64().unwrap().unsigned_abs(), EXACT_MAX);
    assert_eq!(
        (&payload["c"], &payload["d"]),
        (&json!("1.5"), &json!([EXACT_MAX, EXACT_MAX]))
    );
}

fn leaf() -> impl Strategy<Value = Value> {
    let text = (any::<char>(), prop_oneof![0usize..40, 1000usize..100_000])
        .prop_map(|(c, count)| Value::String(c.to_string().repeat(count)));
    prop_oneof![
        4 => text,
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(3, 40, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            prop::collection::hash_map("[a-zé\u{1F600}]{1,4}", inner, 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn no_event_is_larger_than_the_limit_and_each_verifies(
        members in prop::collection::hash_map("[a-z_]{1,12}", value(), 0..20),
        keys in prop_oneof![9 => Just(0usize), 1 => 1000usize..60_000],
    ) {
        let mut payload = Value::Object(members.into_iter().collect());
        for n in 0..keys {
            payload[format!("key {n} of a very long list of members")] = n.into();
        }
        let payload = bounded(to_raw_value(&payload).unwrap());
        prop_assert!(is_payload(payload.get()));
        prop_assert!(payload.get().len() <= PAYLOAD_MAX_BYTES, "{} bytes", payload.get().len());
        let line = line(&payload);
        prop_assert!(line.len() <= EVENT_MAX_BYTES, "{} bytes", line.len());
        prop_assert!(verify(line.as_slice()).unwrap().valid);
        let again = bounded(payload.clone());
        prop_assert_eq!(again.get(), payload.get(), "bounded once is bounded");
    }
}
