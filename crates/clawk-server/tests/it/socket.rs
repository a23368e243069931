//! CKP over WebSocket: subprotocol, close codes, slow readers, many connections.

use std::time::Duration;

use clawk_server::http::{HttpOptions, Scope, Token};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::claw::{Server, request, tokens};
use crate::wire::{LONG, call, fresh, initialize};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn connect(server: &Server, headers: &[(&'static str, &str)]) -> Result<(Socket, String), Error> {
    let url = format!("ws://{}/claw/ws", server.address);
    let mut request = url.into_client_request().expect("a request");
    for (name, value) in headers {
        request
            .headers_mut()
            .insert(*name, value.parse().expect("a value"));
    }
    let (socket, answer) = tokio_tungstenite::connect_async(request).await?;
    let chosen = answer.headers().get("sec-websocket-protocol");
    Ok((
        socket,
        chosen.map_or(String::new(), |it| it.to_str().expect("text").to_owned()),
    ))
}

const CLAW: (&str, &str) = ("sec-websocket-protocol", "claw");

async fn ask(socket: &mut Socket, text: String) -> Value {
    let id: Value = serde_json::from_str::<Value>(&text).expect("JSON")["id"].clone();
    socket.send(Message::text(text)).await.expect("sent");
    loop {
        let answer = next(socket).await.expect("an answer");
        if answer["id"] == id {
            return answer;
        }
    }
}

/// The next message, or the code with which it was closed.
async fn next(socket: &mut Socket) -> Result<Value, u16> {
    loop {
        match tokio::time::timeout(LONG, socket.next()).await.expect("in time") {
            Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).expect("one message")),
            Some(Ok(Message::Close(frame))) => return Err(frame.map_or(1005, |frame| frame.code.into())),
            Some(Ok(_)) => {}
            Some(Err(error)) => panic!("{error}"),
            None => return Err(1006),
        }
    }
}

async fn closed(socket: &mut Socket) -> u16 {
    loop {
        if let Err(code) = next(socket).await {
            return code;
        }
    }
}

async fn ready(server: &Server) -> Socket {
    let (mut socket, _) = connect(server, &[CLAW]).await.expect("opens");
    let answer = ask(&mut socket, request(1, "claw.initialize", initialize())).await;
    assert!(answer["result"].is_object(), "{answer}");
    socket
}

#[tokio::test]
async fn one_message_a_frame_and_codes_at_the_end() {
    let server = Server::start(HttpOptions::default()).await;
    let (mut socket, chosen) = connect(&server, &[CLAW]).await.expect("opens");
    assert_eq!(chosen, "claw");
    let early = ask(&mut socket, request(1, "claw.status", json!({}))).await;
    assert_eq!(early["error"]["data"]["reason"], "not_initialized");
    socket.send(Message::text("{ no JSON")).await.expect("sent");
    assert_eq!(
        next(&mut socket).await.expect("answered")["error"]["code"],
        -32700
    );
    ask(&mut socket, request(2, "claw.initialize", initialize())).await;
    let answer = ask(&mut socket, request(3, "claw.tool.call", call("echo", &fresh()))).await;
    assert!(answer["result"].is_object(), "{answer}");
    let beat = next(&mut socket).await.expect("a heartbeat");
    assert_eq!(beat["method"], "claw.heartbeat");
    // Longer than a message may be: answered, and the connection lives; longer than anything: it does not.
    let long = request(4, "claw.status", json!({"x": "x".repeat((1 << 20) + 100)}));
    socket.send(Message::text(long)).await.expect("sent");
    loop {
        let answer = next(&mut socket).await.expect("answered");
        if answer["method"].is_null() {
            assert_eq!(answer["error"]["data"]["reason"], "too_long");
            break;
        }
    }
    assert_eq!(
        ask(&mut socket, request(5, "claw.status", json!({}))).await["result"]["state"],
        "READY"
    );
    socket.send(Message::binary(vec![1, 2, 3])).await.expect("sent");
    assert_eq!(closed(&mut socket).await, 4001);
    let mut socket = ready(&server).await;
    let over = ask(&mut socket, request(6, "claw.shutdown", json!({}))).await;
    assert_eq!(over["result"]["drained"], true);
    assert_eq!(
        ask(&mut socket, request(7, "claw.status", json!({}))).await["result"]["state"],
        "STOPPED"
    );
    // The service ends: 1000, after the answers that were under way.
    let mut socket = ready(&server).await;
    socket
        .send(Message::text(request(
            8,
            "claw.tool.call",
            call("slow", &fresh()),
        )))
        .await
        .expect("sent");
    tokio::time::sleep(Duration::from_millis(10)).await;
    server.end.cancel();
    let mut answered = false;
    let code = loop {
        match next(&mut socket).await {
            Ok(answer) => answered |= answer["id"] == 8,
            Err(code) => break code,
        }
    };
    assert!(answered && code == 1000, "{answered} {code}");
    tokio::time::timeout(LONG, server.task)
        .await
        .expect("it ends")
        .expect("no panic");
}

#[tokio::test]
async fn who_is_not_let_in_is_told_by_the_code() {
    let server = Server::start(HttpOptions {
        tokens: tokens(),
        ..HttpOptions::default()
    })
    .await;
    for headers in [
        &[CLAW][..],
        &[CLAW, ("authorization", "Bearer mallory-secret-of-length")],
        &[("sec-websocket-protocol", "claw, claw.token.wrong")],
    ] {
        let (mut socket, _) = connect(&server, headers).await.expect("opens");
        assert_eq!(closed(&mut socket).await, 4002, "{headers:?}");
    }
    let refused = connect(&server, &[("sec-websocket-protocol", "graphql-ws")]).await;
    assert!(matches!(refused, Err(Error::Http(answer)) if answer.status() == 400));
    let foreign = connect(&server, &[CLAW, ("origin", "https://evil.example")]).await;
    assert!(matches!(foreign, Err(Error::Http(answer)) if answer.status() == 403));
    // A page offers its token as a subprotocol, which is not sent back.
    let offered = ("sec-websocket-protocol", "claw, claw.token.bob-secret-of-length");
    let (mut socket, chosen) = connect(&server, &[offered]).await.expect("opens");
    assert_eq!(chosen, "claw");
    ask(&mut socket, request(1, "claw.initialize", initialize())).await;
    let said = request(
        2,
        "claw.message.send",
        json!({"text": "hi", "request_id": fresh()}),
    );
    assert_eq!(
        ask(&mut socket, said).await["error"]["data"]["reason"],
        "scope_missing"
    );
    server
        .keys
        .replace_tokens(vec![Token::of_text(
            "new",
            "new-secret-of-length",
            vec![Scope::Admin],
        )])
        .expect("replaced");
    assert_eq!(closed(&mut socket).await, 4002);
}

#[tokio::test]
async fn who_does_not_read_is_slowed_and_then_cut() {
    let server = Server::start(HttpOptions {
        stall_ms: 700,
        ..HttpOptions::default()
    })
    .await;
    let (mut sink, mut frames) = ready(&server).await.split();
    let big = "x".repeat(256 * 1024);
    // Each request is answered with as much as it brings; nobody reads the answers.
    let sent = tokio::time::timeout(LONG, async {
        for id in 10..20_000 {
            let mut params = call("echo", &fresh());
            params["arguments"]["text"] = json!(big);
            if sink
                .send(Message::text(request(id, "claw.tool.call", params)))
                .await
                .is_err()
            {
                return id;
            }
        }
        panic!("five gigabytes were taken from a client that reads nothing");
    });
    let last = sent.await.expect("the connection is cut in time");
    assert!(last < 400, "{last} messages were taken");
    while let Some(Ok(_)) = frames.next().await {}
    let mut other = ready(&server).await;
    assert_eq!(
        ask(&mut other, request(2, "claw.status", json!({}))).await["result"]["state"],
        "READY"
    );
}

#[tokio::test]
async fn a_thousand_connections_come_and_go() {
    let server = Server::start(HttpOptions {
        max_sessions: 64,
        requests_per_second: 0,
        ..HttpOptions::default()
    })
    .await;
    for round in 0..1000_u32 {
        let (mut socket, _) = match connect(&server, &[CLAW]).await {
            Ok(open) => open,
            // The places of those that went are free in a moment.
            Err(Error::Http(answer)) if answer.status() == 503 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        match round % 4 {
            // Cut before, in the middle of, and after a message; and closed in order.
            0 => {}
            1 => {
                let hello = request(1, "claw.initialize", initialize());
                let half = hello.len() / 2;
                let frame = tokio_tungstenite::tungstenite::protocol::frame::Frame::message(
                    hello.as_bytes()[..half].to_vec(),
                    tokio_tungstenite::tungstenite::protocol::frame::coding::OpCode::Data(
                        tokio_tungstenite::tungstenite::protocol::frame::coding::Data::Text,
                    ),
                    false,
                );
                socket.send(Message::Frame(frame)).await.expect("sent");
            }
            2 => {
                ask(&mut socket, request(1, "claw.initialize", initialize())).await;
            }
            _ => socket.close(None).await.expect("closed"),
        }
    }
    let mut socket = loop {
        if let Ok((socket, _)) = connect(&server, &[CLAW]).await {
            break socket;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    ask(&mut socket, request(1, "claw.initialize", initialize())).await;
    assert_eq!(server.agent.starts(), 1);
    let sessions = server.agent.kernel().list_open_sessions().len();
    assert!(sessions < 64, "{sessions} sessions are open");
}
