//! What is read of a request. The protocol as its clients see it: `tests/real/clients.rs` of the binary.

use http::HeaderValue;
use serde_json::json;

use super::wire::{message, parse, speaks};

#[test]
fn a_request_is_one_object_with_an_id() {
    assert!(parse(br#"{"jsonrpc":"2.0","id":1,"method":"GetTask"}"#).is_ok());
    for wrong in [
        &b"{"[..],
        b"[]",
        br#"{"id":1,"method":"GetTask"}"#,
        br#"{"jsonrpc":"2.0","method":"GetTask"}"#,
    ] {
        assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
    }
    assert!(speaks(None).is_ok() && speaks(Some(&HeaderValue::from_static("1.0"))).is_ok());
    assert!(speaks(Some(&HeaderValue::from_static("0.3"))).is_err());
}

#[test]
fn a_messages_parts_become_words() {
    let params = json!({
        "message": {"messageId": "m", "role": "ROLE_USER", "contextId": "", "parts": [
            {"text": "look"}, {"raw": "AAAA", "mediaType": "image/png", "filename": "a.png"}, {"data": {"n": 1}},
        ]},
        "configuration": {"returnImmediately": true},
    });
    let taken = message(&params).unwrap();
    assert_eq!(
        taken.text,
        "look\n\n[a file `a.png`, image/png, 3 bytes; it is not shown to you]\n\n{\"n\":1}"
    );
    assert_eq!((taken.context, taken.waits), (None, false));
    let agent = json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}});
    let push = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]},
        "configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}}});
    for wrong in [
        json!({}),
        agent,
        push,
        json!({"message": {"role": "ROLE_USER", "parts": []}}),
    ] {
        assert!(message(&wrong).is_err(), "{wrong}");
    }
}
