//! One address that holds connections, or guesses tokens, shuts nobody else out.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::{HttpOptions, Scope, Token, start};

fn tokens() -> Vec<Token> {
    vec![
        Token::of_text("ann", "right-secret-of-length", vec![Scope::Admin]),
        Token::of_text("bob", "reads-secret-of-length", vec![Scope::Read]),
    ]
}

/// What a connection is held with.
const HEADS: [&str; 4] = [
    "",
    "GET /v1/sessions HTTP/1.1\r\nhost: loc",
    "GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\n\r\n",
    "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
];

#[tokio::test]
async fn an_admin_gets_in_where_one_address_holds_all_connections() {
    for head in HEADS {
        let server = start(HttpOptions {
            tokens: tokens(),
            max_connections: 8,
            ..HttpOptions::default()
        })
        .await;
        let mut held = Vec::new();
        for _ in 0..20 {
            for _ in 0..10 {
                let mut stream = TcpStream::connect(server.address).await.unwrap();
                // silent-ok: the listener may have closed it
                let _sent = stream.write_all(head.as_bytes()).await;
                held.push(stream);
            }
            for token in ["right", "reads"] {
                let (status, ..) = server.send(token, "GET", "/v1/sessions", None, "").await;
                assert_eq!(status, 200, "{token}: {head:?}");
            }
        }
    }
}

#[tokio::test]
async fn an_admins_connection_stays_open_while_others_come() {
    let server = start(HttpOptions {
        tokens: tokens(),
        max_connections: 8,
        ..HttpOptions::default()
    })
    .await;
    let ask = "GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer right-secret-of-length\r\n\r\n";
    let mut admin = TcpStream::connect(server.address).await.unwrap();
    let mut buffer = [0_u8; 4_096];
    let mut held = Vec::new();
    for _ in 0..5 {
        admin.write_all(ask.as_bytes()).await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(5), admin.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        assert!(buffer[..read].starts_with(b"HTTP/1.1 200"), "it was closed");
        for _ in 0..20 {
            held.push(TcpStream::connect(server.address).await.unwrap());
        }
    }
}

/// The status of a request from this address of the loopback network.
async fn asked_from(server: std::net::SocketAddr, from: &str, token: &str, path: &str) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn wrong_tokens_take_the_requests_of_their_own_address_alone() {
    let server = start(HttpOptions {
        tokens: tokens(),
        requests_per_second: 1,
        ..HttpOptions::default()
    })
    .await;
    let guess = async |from: &'static str| asked_from(server.address, from, "wrong", "/v1/sessions").await;
    let mut last = 0;
    for _ in 0..6 {
        last = guess("127.0.0.1").await;
    }
    assert_eq!(last, 429);
    assert_eq!(
        asked_from(
            server.address,
            "127.0.0.1",
            "right-secret-of-length",
            "/v1/sessions"
        )
        .await,
        200,
        "the right token, from the same address"
    );
    // Some other address that does not happen to share the bucket.
    let mut others = Vec::new();
    for from in ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"] {
        others.push(guess(from).await);
    }
    assert!(
        others.iter().filter(|status| **status == 401).count() >= 3,
        "{others:?}"
    );
}
