//! What is read of a request. The protocol as its clients see it: `tests/real/clients.rs` of the binary.

use clawk_kernel::testing::{Rig, manifest};
use http::HeaderValue;
use serde_json::json;

use super::wire::{check_version, parse, parse_message};

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
    let says =
        |version: &'static str, old| check_version(Some(&HeaderValue::from_static(version)), old).is_ok();
    assert!(check_version(None, false).is_ok() && check_version(None, true).is_ok());
    assert!(says("1.0", false) && says("0.3", true) && says("0.3.0", true));
    assert!(!says("0.3", false) && !says("1.0", true) && !says("0.2", true) && !says("2.0", false));
}

/// The first bytes of a PNG, in base64.
const PNG: &str = "iVBORw0KGgo=";

#[test]
fn a_messages_parts_become_words() {
    let params = json!({
        "message": {"messageId": "m", "role": "ROLE_USER", "contextId": "", "parts": [
            {"text": "look"}, {"raw": "AAAA", "mediaType": "application/pdf", "filename": "a.pdf"}, {"data": {"n": 1}},
            {"raw": PNG, "mediaType": "image/png", "filename": "a.png"},
        ]},
        "configuration": {"returnImmediately": true},
    });
    let taken = parse_message(&params).unwrap();
    assert_eq!(
        taken.text,
        "look\n\n[a file `a.pdf`, application/pdf, 3 bytes; it is not shown to you]\n\n{\"n\":1}"
    );
    assert_eq!((taken.context, taken.waits), (None, false));
    assert_eq!(taken.images.len(), 1, "a picture is shown, not described");
    assert_eq!(taken.images[0].name.as_deref(), Some("a.png"));
    let lying = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"raw": "AAAA", "mediaType": "image/png"}]}});
    assert!(parse_message(&lying).is_err(), "it is not a PNG");
    let agent = json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}});
    let push = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]},
        "configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}}});
    assert!(parse_message(&push).unwrap().push.is_some());
    for wrong in [
        json!({}),
        agent,
        json!({"message": {"role": "ROLE_USER", "parts": []}}),
    ] {
        assert!(parse_message(&wrong).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn the_card_names_what_the_identity_announces() {
    let spec = json!({
        "identity": {"name": "desk", "personality": "x", "capabilities": ["sorting", "digest"]},
        "skills": [{"name": "digest", "description": "Tells", "tools_required": ["echo"], "instruction": "i"}],
        "tools": [{"name": "echo", "description": "e", "input_schema": {"type": "object"}}],
    });
    let kernel = Rig::new(manifest(spec)).start().await;
    let card = super::card::agent_card(&kernel, "host", false, false);
    let skills: Vec<_> = card["skills"].as_array().unwrap().iter().collect();
    assert_eq!(skills.len(), 2, "one that is a Skill stands there once");
    assert_eq!(
        (&skills[0]["id"], &skills[0]["description"]),
        (&json!("digest"), &json!("Tells"))
    );
    assert_eq!(
        (&skills[1]["id"], &skills[1]["tags"]),
        (&json!("sorting"), &json!(["capability"]))
    );
}
