//! A guest's request through memory: judged, bounded and told like one from a box.

use std::time::{Duration, Instant};

use clawk_egress::proxy::{Limits, Options, REFUSED};
use clawk_egress::{ConnectionReport, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::support::{Canary, at_loopback, no_env, options};

fn with(canary: &Canary, limits: Limits) -> Options {
    let options = options(
        &format!("allow_private = ['ok.test:{}']", canary.port),
        at_loopback(&["ok.test"]),
    );
    Options { limits, ..options }
}

/// What came back, and what was told.
async fn lane(options: Options, request: &str) -> (String, ConnectionReport) {
    let call = Proxy::new(options, &no_env()).unwrap().call(&["shell"]).unwrap();
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let asking = async move {
        let _ = ours.write_all(request.as_bytes()).await;
        let mut all = Vec::new();
        let _ = ours.read_to_end(&mut all).await;
        String::from_utf8_lossy(&all).into_owned()
    };
    let serving = call.serve_guest(theirs, std::future::pending());
    let (answer, ()) = tokio::join!(asking, serving);
    (answer, call.ledger().take_report())
}

fn quick() -> Limits {
    super::support::quick()
}

#[tokio::test]
async fn a_body_that_is_too_long_is_cut_and_told_in_both_directions() {
    let canary = Canary::answering(|_| {
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n{}",
            "x".repeat(500_000)
        )
        .into_bytes()
    });
    let get = format!(
        "GET http://ok.test:{0}/ HTTP/1.1\r\nHost: ok.test:{0}\r\n\r\n",
        canary.port
    );
    let (answer, reached) = lane(with(&canary, quick()), &get).await;
    assert!(answer.len() > 500_000);
    assert_eq!(reached.connections[0].refused, None);
    assert_eq!(reached.connections[0].via.as_str(), "wasi-http");
    let little = Limits {
        max_bytes_in: 100_000,
        ..quick()
    };
    let (answer, reached) = lane(with(&canary, little), &get).await;
    assert!(answer.len() < 120_000, "{}", answer.len());
    let told = reached.connections[0].refused.as_ref().map(|denial| denial.code);
    assert_eq!(told, Some("too-large"));

    let little = Limits {
        max_bytes_out: 1_000,
        ..quick()
    };
    let post = format!(
        "POST http://ok.test:{0}/ HTTP/1.1\r\nHost: ok.test:{0}\r\nContent-Length: 600000\r\n\r\n{1}",
        canary.port,
        "y".repeat(600_000)
    );
    let (_, reached) = lane(with(&canary, little), &post).await;
    let told = reached.connections[0].refused.as_ref().map(|denial| denial.code);
    assert_eq!(told, Some("too-large"));
    assert!(
        canary
            .hits()
            .iter()
            .all(|hit| hit.matches('y').count() <= 100_000)
    );
}

#[tokio::test]
async fn what_a_guest_may_not_ask_never_arrives() {
    let canary = Canary::new();
    let port = canary.port;
    let head =
        |target: &str, host: &str, more: &str| format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    let own = format!("ok.test:{port}");
    for request in [
        head("/", &own, ""),
        head(&format!("http://{own}/"), "other.test", ""),
        head(&format!("ftp://{own}/"), &own, ""),
        head(&format!("HTTPS://{own}/"), &own, ""),
        head(&format!("http://me@{own}/"), &own, ""),
        head(&format!("http://{own}#/"), &own, ""),
        head(&format!("http://{own}/"), &own, "Upgrade: websocket\r\n"),
        head(
            &format!("http://{own}/"),
            &own,
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        ),
        head("http://ok.test:443/", "ok.test:443", ""),
        head("https://ok.test:80/", "ok.test:80", ""),
        format!("CONNECT {own} HTTP/1.1\r\nHost: {own}\r\n\r\n"),
        format!("TRACE http://{own}/ HTTP/1.1\r\nHost: {own}\r\n\r\n"),
        "\u{5}\u{1}\u{0}\r\n\r\n".to_owned(),
    ] {
        let (answer, reached) = lane(with(&canary, quick()), &request).await;
        assert!(
            answer.to_ascii_lowercase().contains(REFUSED),
            "{request}: {answer}"
        );
        assert!(reached.connections[0].refused.is_some(), "{request}");
    }
    assert_eq!(canary.accepted(), 0);
    let fine = head(&format!("http://{own}/"), &own, "");
    let (answer, _) = lane(with(&canary, quick()), &fine).await;
    assert!(answer.ends_with("hello"), "{answer}");
}

#[tokio::test]
async fn a_closed_proxy_tells_whoever_asks_and_a_lane_ends_when_it_is_cut() {
    let call = Proxy::deny_all().unwrap().call(&["shell"]).unwrap();
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    ours.write_all(b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n")
        .await
        .unwrap();
    let answer = async move {
        let mut all = String::new();
        let _ = ours.read_to_string(&mut all).await;
        all
    };
    let (answer, ()) = tokio::join!(answer, call.serve_guest(theirs, std::future::pending()));
    assert!(answer.contains("403") && answer.contains("ok.test"), "{answer}");
    assert_eq!(call.ledger().take_report().connections[0].host, "ok.test");

    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = options(
        &format!("allow_private = ['ok.test:{port}']"),
        at_loopback(&["ok.test"]),
    );
    let call = Proxy::new(options, &no_env()).unwrap().call(&["shell"]).unwrap();
    let (mut ours, theirs) = tokio::io::duplex(1 << 16);
    let text = format!("GET http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
    ours.write_all(text.as_bytes()).await.unwrap();
    let began = Instant::now();
    call.serve_guest(theirs, tokio::time::sleep(Duration::from_millis(200)))
        .await;
    assert!(
        began.elapsed() < Duration::from_millis(1_500),
        "{:?}",
        began.elapsed()
    );
    let reached = call.ledger().take_report();
    assert_eq!(
        (reached.connections.len(), reached.connections[0].port),
        (1, port)
    );
}
