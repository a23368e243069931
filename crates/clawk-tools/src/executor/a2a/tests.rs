//! Tests.

use serde_json::json;

use super::{A2aTask, message_text, new_result, old_request, rpc_interface};

#[test]
fn a_card_of_either_version_tells_where_json_rpc_is_spoken() {
    let old =
        json!({"protocolVersion": "0.3.0", "url": "https://a.example/rpc", "preferredTransport": "JSONRPC"});
    assert_eq!(rpc_interface(&old), Some(("https://a.example/rpc".into(), true)));
    let other = json!({"protocolVersion": "0.3.0", "url": "https://a.example/grpc", "preferredTransport": "GRPC",
        "additionalInterfaces": [{"transport": "HTTP+JSON", "url": "https://a.example/rest"},
            {"transport": "JSONRPC", "url": "https://a.example/rpc"}]});
    assert_eq!(
        rpc_interface(&other),
        Some(("https://a.example/rpc".into(), true))
    );
    let both = json!({"protocolVersion": "0.3.0", "url": "https://a.example/old", "supportedInterfaces": [
        {"protocolBinding": "JSONRPC", "protocolVersion": "0.3.0", "url": "https://a.example/old"},
        {"protocolBinding": "JSONRPC", "protocolVersion": "1.0", "url": "https://a.example/new"}]});
    assert_eq!(
        rpc_interface(&both),
        Some(("https://a.example/new".into(), false))
    );
    for none in [
        json!({"url": "https://a.example/rpc"}),
        json!({"protocolVersion": "0.2.6", "url": "https://a.example/rpc"}),
        json!({"protocolVersion": "0.3.0", "url": "https://a.example/grpc", "preferredTransport": "GRPC"}),
    ] {
        assert_eq!(rpc_interface(&none), None, "{none}");
    }
}

/// Shapes as an agent of 0.3 takes and gives them.
#[test]
fn a_request_of_0_3_and_its_result_have_the_shapes_of_0_3() {
    let params = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
        "configuration": {"returnImmediately": true, "acceptedOutputModes": ["text/plain"]}});
    let (method, params) = old_request("SendMessage", &params).unwrap();
    assert_eq!(method, "message/send");
    assert_eq!(
        params,
        json!({"message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "hi"}]},
            "configuration": {"blocking": false, "acceptedOutputModes": ["text/plain"]}})
    );
    let task = json!({"kind": "task", "id": "t", "contextId": "c", "status": {"state": "input-required"},
        "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": "x"}]}]});
    let task = A2aTask::read(&new_result("SendMessage", &task)["task"]).unwrap();
    assert_eq!(
        (task.state().as_str(), task.text.as_str(), task.is_at_rest()),
        ("input_required", "x", true)
    );
    let said = json!({"kind": "message", "messageId": "n", "role": "agent", "parts": [{"kind": "text", "text": "y"}]});
    assert_eq!(message_text(&new_result("SendMessage", &said)["message"]), "y");
    assert_eq!(old_request("ListTasks", &json!({})), None);
}

#[test]
fn a_task_is_read_with_its_words_and_its_state() {
    let task = json!({"id": "t", "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": {"parts": [{"text": "which?"}]}},
        "artifacts": [{"parts": [{"text": "one"}, {"data": {"n": 1}}, {"url": "https://x.example/a", "mediaType": "image/png"}]}]});
    let task = A2aTask::read(&task).unwrap();
    assert!(task.is_at_rest());
    let outcome = task.into_outcome();
    assert!(outcome.is_error);
    let said = serde_json::to_string(&outcome.content).unwrap();
    for part in ["one", "which?", "input_required", "not shown to you"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(A2aTask::read(&json!({"status": {}})).is_none());
    assert_eq!(message_text(&json!({})), "");
}
