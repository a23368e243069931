//! R24, member by member.

use super::{
    InboundRpc, MAX_BATCH, MAX_DEPTH, Request, RpcId, RpcMessage, parse, write_error, write_notification,
    write_result,
};
use crate::error::{ErrorCode, RpcError};

fn request(text: &str) -> Request<'_> {
    match parse(text.as_bytes()) {
        InboundRpc::One(RpcMessage::Request(request)) => request,
        other => panic!("`{text}` should be a request, is {other:?}"),
    }
}

/// The code and the id that a refused text is answered with.
fn refused(bytes: &[u8]) -> (i64, String) {
    match parse(bytes) {
        InboundRpc::One(RpcMessage::Refused(refused)) => {
            (refused.error.code, refused.id.as_json().to_owned())
        }
        other => panic!(
            "{:?} should be refused, is {other:?}",
            String::from_utf8_lossy(bytes)
        ),
    }
}

#[test]
fn ids_come_back_as_they_were_written() {
    for id in [
        "1",
        "-7",
        "1.0",
        "1e3",
        "0.1e-7",
        "123456789012345678901234567890",
        "\"a\"",
        "\"\\u0041\\n\"",
        "\"\"",
        "null",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"claw.status"}}"#);
        assert_eq!(
            request(&text).id.map(|id| id.as_json().to_owned()),
            Some(id.to_owned())
        );
    }
}

#[test]
fn an_absent_id_is_a_notification_and_a_null_id_is_not() {
    assert_eq!(
        request(r#"{"jsonrpc":"2.0","method":"claw.initialized"}"#).id,
        None
    );
    let with_null = r#"{"jsonrpc":"2.0","id":null,"method":"claw.status"}"#;
    assert_eq!(request(with_null).id, Some(RpcId::NULL));
}

#[test]
fn absent_params_are_an_empty_object_and_given_ones_stay_text() {
    assert_eq!(request(r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#).params, "{}");
    assert_eq!(
        request(r#"{"params": {"a" : [1.50]} ,"jsonrpc":"2.0","id":1,"method":"m"}"#).params,
        r#"{"a" : [1.50]}"#
    );
    assert_eq!(
        request(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#).params,
        "[1]"
    );
}

#[test]
fn escapes_in_keys_and_methods_are_read() {
    let text = r#"{"jsonrpc":"2.0","id":1,"\u006dethod":"claw.st\u0061tus"}"#;
    assert_eq!(request(text).method, "claw.status");
}

#[test]
fn unknown_members_are_tolerated_whatever_they_hold() {
    let text = r#"{"x":[{"method":"no"}],"jsonrpc":"2.0","id":1,"method":"claw.status","y":null}"#;
    assert_eq!(request(text).method, "claw.status");
}

#[test]
fn what_is_no_json_is_a_parse_error_without_id() {
    let broken: [&[u8]; 10] = [
        br#"{"jsonrpc": "2.0", "id": 51, "method": "claw.status""#,
        b"",
        b"hello",
        b"{]",
        b"{\"id\":1,}",
        b"{} {}",
        b"[1,",
        b"\xff\xfe",
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc3\x28\"}",
        b"{\"a\":\"\x01\"}",
    ];
    for bytes in broken {
        assert_eq!(
            refused(bytes),
            (-32700, "null".into()),
            "{:?}",
            String::from_utf8_lossy(bytes)
        );
    }
}

#[test]
fn nesting_is_bounded_wherever_it_stands() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let filler = if open == "[" { "" } else { "1" };
        let nested = |depth: usize| format!("{}{filler}{}", open.repeat(depth), close.repeat(depth));
        let message = |depth| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":{}}}}}"#,
                nested(depth)
            )
        };
        assert_eq!(refused(message(10_000).as_bytes()), (-32700, "null".into()));
        assert_eq!(
            refused(message(MAX_DEPTH - 1).as_bytes()),
            (-32700, "null".into())
        );
        let deepest = message(MAX_DEPTH - 2);
        let params: serde_json::Value =
            serde_json::from_str(request(&deepest).params).expect("decodes in full");
        assert!(params.is_object());
    }
    assert_eq!(refused("[".repeat(10_000).as_bytes()), (-32700, "null".into()));
    let only_text = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"a":"\"{}"}}}}"#,
        "[".repeat(500)
    );
    assert_eq!(request(&only_text).method, "m");
}

#[test]
fn malformed_messages_are_invalid_requests_with_the_id_that_can_be_told() {
    for (text, id) in [
        (r#"{"jsonrpc":"2.0","id":50,"params":{}}"#, "50"),
        (r#"{"jsonrpc":"1.0","id":"a","method":"m"}"#, "\"a\""),
        (r#"{"id":3,"method":"m"}"#, "3"),
        (r#"{"jsonrpc":2.0,"id":3,"method":"m"}"#, "3"),
        (r#"{"jsonrpc":"2.0","id":4,"method":7}"#, "4"),
        (r#"{"jsonrpc":"2.0","id":4,"method":null}"#, "4"),
        (r#"{"jsonrpc":"2.0","id":5,"method":"m","params":7}"#, "5"),
        (r#"{"jsonrpc":"2.0","id":5,"method":"m","params":null}"#, "5"),
        (r#"{"jsonrpc":"2.0","id":true,"method":"m"}"#, "null"),
        (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, "null"),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"m"}"#, "null"),
        (r#"{"jsonrpc":"2.0","method":1,"params":"bar"}"#, "null"),
        (r#"{"foo":"boo"}"#, "null"),
        ("{}", "null"),
        ("1", "null"),
        ("null", "null"),
        (r#""text""#, "null"),
        ("[]", "null"),
        (" [ ] ", "null"),
    ] {
        assert_eq!(refused(text.as_bytes()), (-32600, id.into()), "{text}");
    }
}

#[test]
fn a_member_that_stands_twice_is_refused() {
    for text in [
        r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"claw.status","method":"claw.shutdown"}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{},"params":{"a":1}}"#,
        r#"{"jsonrpc":"2.0","id":1,"method":"m","\u006dethod":"n"}"#,
    ] {
        assert_eq!(refused(text.as_bytes()), (-32600, "null".into()), "{text}");
    }
}

#[test]
fn wrong_notifications_and_stray_responses_get_no_answer() {
    for text in [
        r#"{"jsonrpc":"2.0","method":"claw.initialized","params":5}"#,
        r#"{"jsonrpc":"2.0","method":"nonsense","params":null}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}"#,
    ] {
        assert_eq!(
            parse(text.as_bytes()),
            InboundRpc::One(RpcMessage::Ignored),
            "{text}"
        );
    }
}

#[test]
fn batches_are_judged_member_by_member() {
    let text =
        r#" [1, {"foo":"boo"}, {"jsonrpc":"2.0","method":"n"}, {"jsonrpc":"2.0","id":9,"method":"m"}, []] "#;
    let InboundRpc::Batch(members) = parse(text.as_bytes()) else {
        panic!("a batch")
    };
    let shapes: Vec<&str> = members
        .iter()
        .map(|member| match member {
            RpcMessage::Request(Request { id: Some(_), .. }) => "request",
            RpcMessage::Request(Request { id: None, .. }) => "notification",
            RpcMessage::Refused(_) => "refused",
            RpcMessage::Ignored => "ignored",
        })
        .collect();
    assert_eq!(
        shapes,
        ["refused", "refused", "notification", "request", "refused"]
    );
}

#[test]
fn batches_are_bounded() {
    let batch = |n: usize| format!("[{}]", vec!["1"; n].join(","));
    assert_eq!(refused(batch(MAX_BATCH + 1).as_bytes()), (-32600, "null".into()));
    assert!(
        matches!(parse(batch(MAX_BATCH).as_bytes()), InboundRpc::Batch(members) if members.len() == MAX_BATCH)
    );
    let unfinished = format!("[{},", vec!["1"; MAX_BATCH + 1].join(","));
    assert_eq!(refused(unfinished.as_bytes()), (-32700, "null".into()));
}

#[test]
fn frames_are_written_whole_and_append() {
    let mut out = b"kept".to_vec();
    write_result(&mut out, &RpcId::NULL, &serde_json::json!({"a": 1}));
    assert_eq!(
        String::from_utf8(out).expect("UTF-8"),
        r#"kept{"jsonrpc":"2.0","id":null,"result":{"a":1}}"#
    );

    let mut out = Vec::new();
    let error = RpcError::new(ErrorCode::PolicyDenied, "no\nno").with(serde_json::json!({"rule_id": null}));
    let id = request(r#"{"jsonrpc":"2.0","id":"x","method":"m"}"#)
        .id
        .expect("an id")
        .into_owned();
    write_error(&mut out, &id, &error);
    assert_eq!(
        String::from_utf8(out).expect("UTF-8"),
        r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32011,"message":"no\nno","data":{"rule_id":null}}}"#
    );

    let mut out = Vec::new();
    assert!(write_notification(
        &mut out,
        "claw.heartbeat",
        &serde_json::json!({})
    ));
    assert_eq!(out, br#"{"jsonrpc":"2.0","method":"claw.heartbeat","params":{}}"#);
}

#[test]
fn a_result_that_is_no_json_becomes_an_error_of_the_same_id() {
    let not_json = std::collections::BTreeMap::from([((1u8, 2u8), 3u8)]);
    let mut out = Vec::new();
    write_result(&mut out, &RpcId::NULL, &not_json);
    let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
    assert_eq!(value["error"]["code"], -32603);
}
