//! Everything that can go wrong on the way, told apart, shortened, without secrets.

use clawk_core::ports::FaultKind;
use clawk_providers::ProviderConfig;
use serde_json::json;
use tokio::net::TcpListener;

use crate::fixture::*;

async fn status(line: &str, headers: &str, body: &str) -> clawk_core::ports::ProviderError {
    let server = Server::start(vec![Reply::Bytes(answer(line, headers, body))]).await;
    fault(
        &provider(spec("openai-compatible", &server.url(), true), quick()),
        &user("hi"),
    )
    .await
}

#[tokio::test]
async fn statuses_have_kinds() {
    for (line, kind) in [
        ("302 Found", FaultKind::Rejected),
        ("400 Bad Request", FaultKind::Rejected),
        ("403 Forbidden", FaultKind::Auth),
        ("404 Not Found", FaultKind::Rejected),
        ("408 Request Timeout", FaultKind::Timeout),
        ("413 Payload Too Large", FaultKind::ContextTooLong),
        ("422 Unprocessable", FaultKind::Rejected),
        ("429 Too Many Requests", FaultKind::RateLimited),
        ("500 Internal Server Error", FaultKind::ServerFault),
        ("502 Bad Gateway", FaultKind::ServerFault),
        ("503 Service Unavailable", FaultKind::ServerFault),
        ("599 Odd", FaultKind::ServerFault),
    ] {
        let error = status(line, "", "{}").await;
        assert_eq!(
            (error.kind, error.status),
            (kind, line[..3].parse().ok()),
            "{line}: {error}"
        );
    }
    for body in [
        r#"{"error":{"message":"x","code":"context_length_exceeded"}}"#,
        r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
        "This model's maximum context length is 10 tokens",
    ] {
        assert_eq!(
            status("400 Bad Request", "", body).await.kind,
            FaultKind::ContextTooLong,
            "{body}"
        );
    }
}

#[tokio::test]
async fn a_wait_is_read_in_every_form() {
    for (headers, ms) in [
        ("retry-after: 3\r\n", Some(3_000)),
        ("retry-after: 1.5\r\n", Some(2_000)),
        ("retry-after-ms: 250\r\nretry-after: 9\r\n", Some(250)),
        (
            "date: Sat, 01 Jan 2028 00:00:00 GMT\r\nretry-after: Sat, 01 Jan 2028 00:01:00 GMT\r\n",
            Some(60_000),
        ),
        (
            "date: Sat, 01 Jan 2028 00:00:00 GMT\r\nretry-after: Fri, 31 Dec 2027 00:01:00 GMT\r\n",
            Some(0),
        ),
        ("retry-after: 999999999999\r\n", Some(86_400_000)),
        ("retry-after: soon\r\n", None),
        ("retry-after: -1\r\n", None),
        ("", None),
    ] {
        assert_eq!(
            status("429 Slow", headers, "").await.retry_after_ms,
            ms,
            "{headers}"
        );
    }
}

#[tokio::test]
async fn bodies_of_errors_are_short_and_clean() {
    let long = "word ".repeat(40_000);
    let error = status("500 Oops", "content-type: text/html\r\n", &long).await;
    assert!(error.message.len() <= 1024 + 64 && error.message.ends_with('…'));
    let quoted = json!({ "error": { "message": format!("key {CANARY} is wrong") } }).to_string();
    for body in [
        CANARY.to_owned(),
        quoted,
        format!("{}{CANARY}", "x".repeat(1010)),
        "c2stY2FuYXJ5LTdReC85Mytsb".to_owned() + "Q==",
        "?key=sk-canary-7Qx%2F93%2Blm".to_owned(),
    ] {
        let error = status("401 Unauthorized", "", &body).await;
        assert!(!error.message.contains("Y2FuYXJ5"), "{error}");
    }
}

#[tokio::test]
async fn there_may_be_no_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for url in [
        format!("http://127.0.0.1:{port}/v1"),
        "http://name.invalid/v1".to_owned(),
    ] {
        let error = fault(
            &provider(spec("openai-compatible", &url, true), quick()),
            &user("hi"),
        )
        .await;
        assert_eq!(error.kind, FaultKind::Unreachable, "{error}");
        assert!(error.usage.is_none());
    }
}

#[tokio::test]
async fn each_wait_has_its_end() {
    let some = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    for (sent, words) in [(Vec::new(), "first byte"), (stream(some), "next piece")] {
        let server = Server::start(vec![Reply::Hold(sent)]).await;
        let error = fault(
            &provider(spec("openai-compatible", &server.url(), true), quick()),
            &user("hi"),
        )
        .await;
        assert_eq!(error.kind, FaultKind::Timeout);
        assert!(error.message.contains(words), "{error}");
        server.dropped().await;
    }
    let config = ProviderConfig {
        total_timeout_ms: 100,
        ..ProviderConfig::default()
    };
    let server = Server::start(vec![Reply::Hold(stream(some))]).await;
    let error = fault(
        &provider(spec("openai-compatible", &server.url(), true), config),
        &user("hi"),
    )
    .await;
    assert!(
        error.kind == FaultKind::Timeout && error.message.contains("whole exchange"),
        "{error}"
    );
}

#[tokio::test]
async fn answers_are_bounded() {
    let config = ProviderConfig {
        max_response_bytes: 2_000,
        ..quick()
    };
    let event = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    for bytes in [
        stream(&event.repeat(100)),
        whole(&json!({ "choices": [], "x": "y".repeat(3_000) })),
    ] {
        let server = Server::start(vec![Reply::Bytes(bytes)]).await;
        let error = fault(
            &provider(spec("openai-compatible", &server.url(), true), config.clone()),
            &user("hi"),
        )
        .await;
        assert_eq!(error.kind, FaultKind::Malformed, "{error}");
        assert!(error.message.contains("larger than 2000 bytes"), "{error}");
    }
}

#[tokio::test]
async fn garbage_is_named_as_such() {
    let deep = format!("data: {}\n\n", "[".repeat(5_000));
    for events in [
        "data: <html>\n\n",
        "data: []\n\n",
        "data: {\"choices\":7}\n\n",
        deep.as_str(),
        "data: \u{0}\n\n",
    ] {
        for protocol in ["openai-compatible", "anthropic-native"] {
            let server = Server::start(vec![Reply::Bytes(stream(events))]).await;
            let error = fault(
                &provider(spec(protocol, &server.url(), true), quick()),
                &user("hi"),
            )
            .await;
            assert!(
                matches!(error.kind, FaultKind::Malformed | FaultKind::Cut),
                "{protocol} {events}: {error}"
            );
        }
    }
    let server = Server::start(vec![Reply::Bytes(b"SSH-2.0-nothing\r\n".to_vec())]).await;
    let error = fault(
        &provider(spec("openai-compatible", &server.url(), true), quick()),
        &user("hi"),
    )
    .await;
    assert!(error.kind.is_retryable(), "{error}");
}
