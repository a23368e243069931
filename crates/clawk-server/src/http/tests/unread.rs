//! A refused request leaves its connection usable, or says that it closes.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{HttpOptions, Scope, Token, start};

/// The next answer of a connection: its head in lower case and its body.
async fn next_answer(stream: &mut TcpStream) -> Option<String> {
    let mut text = String::new();
    let read = async {
        loop {
            let mut piece = [0_u8; 4_096];
            let count = stream.read(&mut piece).await.ok()?;
            if count == 0 {
                return None;
            }
            text.push_str(&String::from_utf8_lossy(&piece[..count]).to_lowercase());
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head.split("content-length: ").nth(1)?;
            let length: usize = length.lines().next()?.trim().parse().ok()?;
            if body.len() >= length {
                return Some(text);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), read).await.ok()?
}

fn options() -> HttpOptions {
    HttpOptions {
        tokens: vec![Token::of_text(
            "ann",
            "right-secret-of-length",
            vec![Scope::Admin],
        )],
        ..HttpOptions::default()
    }
}

fn post_head(path: &str, length: usize, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n"
    )
}

const LIST: &str =
    "GET /v1/sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer right-secret-of-length\r\n\r\n";

#[tokio::test]
async fn a_connection_serves_on_after_a_refusal_whose_body_came_late() {
    let server = start(options()).await;
    let refused = [
        ("/v1/resolve", "", "401"),
        ("/v1/resolve", "authorization: Bearer wrong\r\n", "401"),
        ("/v1/resolve", "origin: https://evil.example\r\n", "403"),
        (
            "/no/such/path",
            "authorization: Bearer right-secret-of-length\r\n",
            "404",
        ),
        (
            "/healthz",
            "authorization: Bearer right-secret-of-length\r\n",
            "405",
        ),
    ];
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for (path, more, status) in refused {
        stream
            .write_all(post_head(path, 30_000, more).as_bytes())
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.write_all(&[b' '; 30_000]).await.unwrap();
        let answer = next_answer(&mut stream).await.expect("an answer");
        assert!(
            answer.starts_with(&format!("http/1.1 {status}")),
            "{path}: {answer}"
        );
        assert!(!answer.contains("connection: close"), "{answer}");
        stream.write_all(LIST.as_bytes()).await.unwrap();
        let answer = next_answer(&mut stream)
            .await
            .expect("the same connection serves");
        assert!(answer.starts_with("http/1.1 200"), "{path} {more}: {answer}");
    }
}

#[tokio::test]
async fn a_refusal_whose_body_is_not_read_says_that_the_connection_closes() {
    let server = start(options()).await;
    // Too long; never sent; not asked for.
    for (length, more, sent) in [
        (10_000_000, "", 200_000),
        (1_000, "", 0),
        (1_000, "expect: 100-continue\r\n", 0),
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream
            .write_all(post_head("/v1/resolve", length, more).as_bytes())
            .await
            .unwrap();
        // silent-ok: the server may have closed it already
        let _written = stream.write_all(&vec![b' '; sent]).await;
        let answer = next_answer(&mut stream).await.expect("an answer");
        assert!(answer.starts_with("http/1.1 401"), "{length}: {answer}");
        assert!(answer.contains("connection: close"), "{length}: {answer}");
        assert_eq!(next_answer(&mut stream).await, None, "it is closed");
    }
}
