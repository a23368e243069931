//! Where a connection may go, whatever the tool calls the place.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clawk_egress::NameResolver;

use super::support::{Canary, Running, at_loopback, no_env, options, say, start, status};

/// Spellings of loopback, the metadata service and other private places.
const PRIVATE: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "0177.0.0.1",
    "0177.1",
    "017700000001",
    "127.0.0.1.",
    "0",
    "0.0.0.0",
    "0x0",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2001:0:7f00:1::]",
    "[fe80::1%25lo]",
    "[fe80::1%lo]",
    "[fd00::1]",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "10.0.0.1",
    "192.168.0.1",
    "172.16.0.1",
    "100.64.0.1",
    "%31%32%37.0.0.1",
    "127%2e0%2e0%2e1",
    "１２７.0.0.1",
    "127。0。0。1",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "here.test",
    "here.TEST.",
];

async fn open(names: NameResolver) -> (Canary, Running) {
    let canary = Canary::new();
    let port = canary.port;
    let running = start(options(&format!("hosts = ['*', '*:{port}']"), names), &no_env()).await;
    (canary, running)
}

#[tokio::test]
async fn no_spelling_of_a_private_place_is_reached() {
    let (canary, running) = open(at_loopback(&["here.test", "localhost"])).await;
    let port = canary.port;
    for host in PRIVATE {
        for request in [
            format!("GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"),
            format!(
                "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\nGET / HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
            ),
        ] {
            let answer = say(running.address, request.as_bytes()).await;
            assert!(status(&answer) >= 400, "{request:?}: {answer}");
        }
        let socks = socks_request(host, port);
        let answer = say(running.address, &socks).await;
        assert!(
            !answer.as_bytes().starts_with(&[5, 0, 5, 0]),
            "{host}: {answer:?}"
        );
    }
    for address in [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "169.254.169.254",
    ] {
        let answer = say(running.address, &socks_address(address.parse().unwrap(), port)).await;
        assert!(
            !answer.as_bytes().starts_with(&[5, 0, 5, 0]),
            "{address}: {answer:?}"
        );
    }
    assert_eq!(canary.accepted(), 0);
    let reached = running.end().await;
    let codes: Vec<_> = reached
        .connections
        .iter()
        .filter_map(|one| Some(one.refused.as_ref()?.code))
        .collect();
    assert_eq!(codes.len(), reached.connections.len());
    assert!(
        codes.contains(&"literal") && codes.contains(&"malformed"),
        "{codes:?}"
    );
}

/// Greeting and request for a name.
fn socks_request(host: &str, port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    bytes.extend_from_slice(host.as_bytes());
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes.extend_from_slice(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    bytes
}

fn socks_address(address: IpAddr, port: u16) -> Vec<u8> {
    let mut bytes = vec![5, 1, 0, 5, 1, 0];
    match address {
        IpAddr::V4(address) => {
            bytes.push(1);
            bytes.extend_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(4);
            bytes.extend_from_slice(&address.octets());
        }
    }
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes
}

#[tokio::test]
async fn one_private_address_among_public_ones_refuses_them_all() {
    let mixed: Vec<IpAddr> = vec!["8.8.8.8".parse().unwrap(), "127.0.0.1".parse().unwrap()];
    for answer in [mixed.clone(), mixed.into_iter().rev().collect()] {
        let (canary, running) = open(NameResolver::Hook(Arc::new(move |_| answer.clone()))).await;
        let port = canary.port;
        let request = format!("GET http://mixed.test:{port}/ HTTP/1.1\r\nHost: mixed.test:{port}\r\n\r\n");
        let said = say(running.address, request.as_bytes()).await;
        assert_eq!(status(&said), 403, "{said}");
        assert_eq!(canary.accepted(), 0);
        let one = running.end().await.connections.remove(0);
        assert_eq!(one.refused.unwrap().code, "address");
    }
}

#[tokio::test]
async fn a_name_that_changes_its_address_is_asked_once() {
    // Public when it is judged, loopback ever after.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let names = NameResolver::Hook(Arc::new(move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let text = if first { "192.31.196.1" } else { "127.0.0.1" };
        vec![text.parse().unwrap()]
    }));
    let (canary, running) = open(names).await;
    let port = canary.port;
    let request = format!("GET http://rebind.test:{port}/ HTTP/1.1\r\nHost: rebind.test:{port}\r\n\r\n");
    let said = say(running.address, request.as_bytes()).await;
    assert!(status(&said) >= 500, "{said}");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(canary.accepted(), 0);
    running.end().await;

    // And where the own network is open, the connection goes to the address that was judged, not to the next one.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let names = NameResolver::Hook(Arc::new(move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let text = if first { "127.0.0.1" } else { "127.0.0.2" };
        vec![text.parse().unwrap()]
    }));
    let running = start(
        options(&format!("allow_private = ['rebind.test:{port}']"), names),
        &no_env(),
    )
    .await;
    assert_eq!(status(&say(running.address, request.as_bytes()).await), 200);
    let one = running.end().await.connections.remove(0);
    assert_eq!(one.address, Some("127.0.0.1".parse().unwrap()));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn names_and_ports_are_judged() {
    let canary = Canary::new();
    let port = canary.port;
    let toml = format!("hosts = ['ok.test', '*.below.test']\nallow_private = ['inside.test:{port}']");
    let names = at_loopback(&[
        "inside.test",
        "other.test",
        "ok.test",
        "x.below.test",
        "below.test",
    ]);
    let running = start(options(&toml, names), &no_env()).await;
    let code = async |place: String| {
        let request = format!("GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n");
        let answer = say(running.address, request.as_bytes()).await;
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix("X-Clawk-Refused: "));
        line.unwrap_or("200").to_owned()
    };
    assert_eq!(code(format!("inside.test:{port}")).await, "200");
    for (place, expected) in [
        ("other.test".to_owned(), "host"),
        ("below.test".to_owned(), "host"),
        ("xbelow.test".to_owned(), "host"),
        ("ok.test.evil.test".to_owned(), "host"),
        ("inside.test:1".to_owned(), "host"),
        (format!("ok.test:{port}"), "port"),
        ("ok.test:22".to_owned(), "port"),
        ("ok.test".to_owned(), "address"),
        ("x.below.test".to_owned(), "address"),
        ("nowhere.below.test".to_owned(), "dns"),
        ("8.8.8.8".to_owned(), "literal"),
    ] {
        assert_eq!(code(place.clone()).await, expected, "{place}");
    }
    assert_eq!(canary.accepted(), 1);
}

#[tokio::test]
async fn a_redirect_is_the_clients_and_judged_anew() {
    let canary = Canary::answering(|_| {
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/meta-data/\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let port = canary.port;
    let running = start(
        options(
            &format!("allow_private = ['ok.test:{port}']"),
            at_loopback(&["ok.test"]),
        ),
        &no_env(),
    )
    .await;
    let first = format!("GET http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
    let answer = say(running.address, first.as_bytes()).await;
    assert!(answer.contains("Location: http://169.254.169.254/"), "{answer}");
    let next = "GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n";
    assert_eq!(status(&say(running.address, next.as_bytes()).await), 403);
}
