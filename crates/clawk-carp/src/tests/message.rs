use serde_json::{Value, json};

use super::{NOW, at, paths, request};
use crate::message::{self, RequestShape};

fn faults(change: impl Fn(&mut Value)) -> Vec<String> {
    let mut value = serde_json::to_value(request(&json!({}))).expect("JSON");
    change(&mut value);
    match message::read(&value, RequestShape::Schema) {
        Ok(_) => Vec::new(),
        Err(faults) => paths(&faults).into_iter().map(str::to_owned).collect(),
    }
}

#[test]
fn every_field_is_checked_and_all_faults_are_told() {
    assert_eq!(faults(|_| {}), [""; 0]);
    assert_eq!(faults(|v| v["request_id"] = json!("x")), ["/request_id"]);
    assert_eq!(
        faults(|v| v["request_id"] = json!("{01234567-89ab-cdef-0123-456789abcdef}")),
        ["/request_id"]
    );
    assert_eq!(
        faults(|v| v["timestamp"] = json!("2024-12-28T12:00:00")),
        ["/timestamp"]
    );
    assert_eq!(
        faults(|v| v["timestamp"] = json!("2024-12-28 12:00:00Z")),
        ["/timestamp"]
    );
    assert_eq!(faults(|v| v["operation"] = json!("resolv")), ["/operation"]);
    assert_eq!(
        faults(|v| v["requester"]["agent_id"] = json!("")),
        ["/requester/agent_id"]
    );
    assert_eq!(
        faults(|v| v["requester"]["agent_id"] = json!("a".repeat(256))),
        ["/requester/agent_id"]
    );
    assert_eq!(faults(|v| v["task"]["goal"] = json!("é".repeat(10_000))), [""; 0]);
    assert_eq!(
        faults(|v| v["task"]["goal"] = json!("é".repeat(10_001))),
        ["/task/goal"]
    );
    assert_eq!(faults(|v| v["task"]["action"] = json!("x")), ["/task/action"]);
    assert_eq!(faults(|v| v["action"] = json!("x")), ["/action"]);
    assert_eq!(
        faults(|v| v["atlas_ids"] = json!(["com.ok", "Bad"])),
        ["/atlas_ids/1"]
    );
    assert_eq!(faults(|v| v["context"] = json!({"a/b": 1})), [""; 0]);
    let many = faults(|v| *v = json!({"carp_version": "2.0", "operation": 1, "a/b": 2}));
    assert_eq!(
        many,
        [
            "/a~1b",
            "/carp_version",
            "/request_id",
            "/timestamp",
            "/operation",
            "/requester",
            "/task"
        ]
    );
}

#[test]
fn an_execute_request_may_leave_out_the_task_on_the_wire_only() {
    let value = json!({
        "carp_version": "1.0", "request_id": "01234567-89ab-cdef-0123-456789abcdef", "timestamp": NOW,
        "operation": "execute",
        "requester": {"agent_id": "a", "session_id": "01234567-89ab-cdef-0123-456789abcdef", "parent_session_id": null},
        "execution": {"resolution_id": "01234567-89ab-cdef-0123-456789abcdef", "action_id": "a.b", "parameters": {},
                      "idempotency_key": null},
    });
    assert!(message::read(&value, RequestShape::Wire).is_ok());
    assert_eq!(
        paths(&message::read(&value, RequestShape::Schema).expect_err("no task")),
        ["/task"]
    );
}

#[test]
fn a_key_given_twice_is_refused() {
    let faults = message::parse(br#"{"task": 1, "task": 2}"#, RequestShape::Wire).expect_err("twice");
    assert!(faults.to_string().contains("`task` is given twice"), "{faults}");
    assert!(message::parse(&vec![b'['; 100_000], RequestShape::Wire).is_err());
}

#[test]
fn suggestions_are_made_for_near_misses() {
    let faults = message::read(&json!({"reqester": {}}), RequestShape::Wire).expect_err("misspelt");
    assert!(
        faults.errors[0].message.contains("did you mean `requester`?"),
        "{faults}"
    );
}

#[test]
fn skew_is_measured_either_way() {
    let request = request(&json!({"timestamp": "2026-03-04T13:00:00+01:00"}));
    assert_eq!(
        message::skew_ms(&request, at("2026-03-04T12:05:00Z")),
        Ok(300_000)
    );
    assert_eq!(message::skew_ms(&request, at("2026-03-04T11:59:59Z")), Ok(1000));
}
