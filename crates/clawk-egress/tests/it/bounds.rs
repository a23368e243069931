//! What a hostile tool can't use up.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::support::{Canary, at_loopback, listen, no_env, options, say, start, status};

fn with(canary: &Canary) -> clawk_egress::proxy::Options {
    options(
        &format!("allow_private = ['ok.test:{}']", canary.port),
        at_loopback(&["ok.test"]),
    )
}

#[tokio::test]
async fn a_slow_request_is_given_up() {
    let canary = Canary::new();
    let mut slow = with(&canary);
    slow.limits.head_ms = 300;
    let running = start(slow, &no_env()).await;
    for start in ["", "G", "\u{5}", "\u{5}\u{1}\u{0}"] {
        let began = Instant::now();
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        listen(&mut stream).await;
        assert!(began.elapsed() < Duration::from_secs(5), "{start:?}");
    }
    // One byte at a time helps nobody: the limit is on the whole head.
    let began = Instant::now();
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    for byte in "GET http://ok.test/ HTTP/1.1\r\nX: aaaaaaaaaaaaaaaaaaaaaaaa".bytes() {
        if stream.write_all(&[byte]).await.is_err() || began.elapsed() > Duration::from_secs(3) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    listen(&mut stream).await;
    assert!(began.elapsed() < Duration::from_secs(3));
    assert_eq!(canary.accepted(), 0);
}

/// This process has its own limits: each test runs in one.
#[tokio::test]
async fn calls_that_ask_nothing_take_no_room_from_others() {
    let few = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let canary = Canary::new();
    let mut calls = Vec::new();
    // A quarter of the descriptors is for connections: there are more calls than that.
    for _ in 0..24 {
        calls.push(start(with(&canary), &no_env()).await);
        tokio::task::yield_now().await;
    }
    let mut stream = TcpStream::connect(calls.last().unwrap().address).await.unwrap();
    stream
        .write_all(b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n")
        .await
        .unwrap();
    let answer = listen(&mut stream).await;
    assert!(
        answer.starts_with("HTTP/1.1 403"),
        "the last call has no room: {answer}"
    );
}

#[tokio::test]
async fn a_large_head_is_refused() {
    let canary = Canary::new();
    let running = start(with(&canary), &no_env()).await;
    let first = format!(
        "GET http://ok.test:{0}/ HTTP/1.1\r\nHost: ok.test:{0}\r\n",
        canary.port
    );
    for more in [
        "X: 1\r\n".repeat(10_000),
        format!("X: {}\r\n", "a".repeat(100_000)),
        "X: 1\r\n".repeat(200),
    ] {
        let answer = say(running.address, format!("{first}{more}\r\n").as_bytes()).await;
        assert_eq!(status(&answer), 431, "{answer}");
    }
    let long = format!(
        "GET http://ok.test:{0}/{1} HTTP/1.1\r\nHost: ok.test:{0}\r\n\r\n",
        canary.port,
        "a".repeat(100_000)
    );
    assert_eq!(status(&say(running.address, long.as_bytes()).await), 431);
    assert_eq!(canary.accepted(), 0);
}

#[tokio::test]
async fn an_endless_body_ends_at_the_cap() {
    let canary = Canary::answering(|request| {
        if request.starts_with("GET /big") {
            let mut answer = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
            answer.resize(4 << 20, b'x');
            return answer;
        }
        super::support::HELLO.into()
    });
    let mut capped = with(&canary);
    capped.limits.max_bytes_out = 1 << 20;
    capped.limits.max_bytes_in = 1 << 20;
    let running = start(capped, &no_env()).await;
    let head = format!(
        "POST http://ok.test:{0}/ HTTP/1.1\r\nHost: ok.test:{0}\r\nTransfer-Encoding: chunked\r\n\r\n",
        canary.port
    );
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let mut sent = 0_u64;
    while sent < 64 << 20 {
        let writing = stream.write_all(chunk.as_bytes());
        match tokio::time::timeout(Duration::from_secs(4), writing).await {
            Ok(Ok(())) => sent += 0x10000,
            _ => break,
        }
    }
    assert!(sent < 32 << 20, "{sent}");
    drop(stream);
    let big = format!(
        "GET http://ok.test:{0}/big HTTP/1.1\r\nHost: ok.test:{0}\r\n\r\n",
        canary.port
    );
    let answer = say(running.address, big.as_bytes()).await;
    assert!(answer.len() < 2 << 20, "{}", answer.len());
    let reached = running.end().await;
    assert!(
        reached
            .connections
            .iter()
            .all(|one| one.bytes_out <= (1 << 20) + (256 << 10)),
        "{reached:?}"
    );
}

#[tokio::test]
async fn five_hundred_at_once_are_served_a_few_at_a_time() {
    let canary = Canary::new();
    let mut few = with(&canary);
    few.limits.max_connections = 16;
    let running = start(few, &no_env()).await;
    let request = format!(
        "GET http://ok.test:{0}/ HTTP/1.1\r\nHost: ok.test:{0}\r\n\r\n",
        canary.port
    );
    // Idle ones hold their places until their time is up.
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(TcpStream::connect(running.address).await.unwrap());
    }
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..500 {
        let (address, request) = (running.address, request.clone());
        all.spawn(async move { status(&say(address, request.as_bytes()).await) });
    }
    let codes = all.join_all().await;
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 500);
    drop(idle);
    let reached = running.end().await;
    assert_eq!(reached.connections.len(), clawk_egress::ConnectionLedger::KEPT);
    assert_eq!(reached.more.connected + 64, 500);
    assert!(reached.bytes_out() > 500 * 50);
}

#[tokio::test]
async fn what_is_cut_is_told() {
    let canary = Canary::answering(|_| {
        std::thread::sleep(Duration::from_secs(5));
        Vec::new()
    });
    let running = start(with(&canary), &no_env()).await;
    let request = format!(
        "GET http://ok.test:{0}/ HTTP/1.1\r\nHost: ok.test:{0}\r\n\r\n",
        canary.port
    );
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    while canary.hits().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let address = running.address;
    let reached = running.end().await;
    assert_eq!(reached.connections.len(), 1);
    assert!(reached.connections[0].bytes_out > 0);
    // Nobody listens any more.
    assert!(TcpStream::connect(address).await.is_err());
}
