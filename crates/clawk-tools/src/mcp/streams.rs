//! Tests: messages on a server's own event stream, and an answer whose stream breaks.

use std::sync::{Arc, Mutex};

use clawk_kernel::ports::ToolRunner as _;
use clawk_proto::SessionId;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::bind_tools;
use crate::builtin::{AskUserHandler, UserAnswer};
use crate::testing::{Ran, host, manifest, open_plan, text};
use crate::{Runner, ToolHost};

/// What the server received, including the client's answer to its question.
#[derive(Default)]
struct ServerObservations {
    requests: Mutex<Vec<String>>,
    answer: Mutex<Option<Value>>,
    answered: Notify,
}

impl ServerObservations {
    fn add(&self, what: &str) {
        self.requests.lock().expect("a lock").push(what.to_owned());
    }

    fn contains(&self, what: &str) -> bool {
        self.requests
            .lock()
            .expect("a lock")
            .iter()
            .any(|one| one == what)
    }
}

struct Request {
    head: String,
    body: Value,
}

async fn read(stream: &mut TcpStream) -> Request {
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let read = stream.read(&mut piece).await.unwrap_or(0);
        bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if read == 0 || body.len() >= length.unwrap_or(0) {
                return Request {
                    body: serde_json::from_str(body).unwrap_or_default(),
                    head,
                };
            }
        } else if read == 0 {
            return Request {
                head: String::new(),
                body: Value::Null,
            };
        }
    }
}

const SSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

fn json_answer(id: &Value, result: &Value) -> String {
    let body = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

async fn serve_connection(mut stream: TcpStream, seen: Arc<ServerObservations>) {
    let Request { head, body } = read(&mut stream).await;
    let id = body.get("id").cloned().unwrap_or_default();
    let result = |text: &str| json!({"content": [{"type": "text", "text": text}]});
    let empty = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    let answer = if head.starts_with("get ") {
        match head.lines().find_map(|line| line.strip_prefix("last-event-id: ")) {
            Some(last) => {
                seen.add(&format!("resumed at {last}"));
                let id = last
                    .split('-')
                    .nth(1)
                    .unwrap_or_default()
                    .parse::<i64>()
                    .unwrap_or_default();
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": result("the rest")});
                format!("{SSE}id: e-{id}-2\ndata: {answer}\n\n")
            }
            None => {
                seen.add("listens");
                let question = json!({"jsonrpc": "2.0", "id": "q1", "method": "elicitation/create", "params": {
                    "message": "Which?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}});
                // The server sends its question after the call has started.
                let _ = stream.write_all(SSE.as_bytes()).await;
                while !seen.contains("asks") {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                let _ = stream
                    .write_all(format!("event: message\ndata: {question}\n\n").as_bytes())
                    .await;
                seen.answered.notified().await;
                seen.answered.notify_waiters();
                return;
            }
        }
    } else {
        match body.get("method").and_then(Value::as_str) {
            Some("initialize") => json_answer(&id, &json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "h", "version": "1"}})),
            Some("tools/list") => json_answer(&id, &json!({"tools": [{"name": "breaks"}, {"name": "asks"}, {"name": "page"}, {"name": "refused"}]})),
            Some("tools/call") => match body.pointer("/params/name").and_then(Value::as_str) {
                // The stream ends before the answer, with the position at which to continue.
                Some("breaks") => format!("{SSE}id: e-{id}-1\nretry: 10\ndata: \n\n"),
                Some("page") => "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 24\r\nConnection: close\r\n\r\n<html>Please log in</html".to_owned(),
                Some("refused") => "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 24\r\nConnection: close\r\n\r\n{\"detail\": \"quota gone\"}".to_owned(),
                _ => {
                    seen.add("asks");
                    seen.answered.notified().await;
                    let said = seen.answer.lock().expect("a lock").clone().unwrap_or_default();
                    json_answer(&id, &result(&said.to_string()))
                }
            },
            None if body.get("result").is_some() => {
                *seen.answer.lock().expect("a lock") = body.get("result").cloned();
                seen.answered.notify_waiters();
                seen.answered.notify_one();
                empty
            }
            _ => empty,
        }
    };
    let _ = stream.write_all(answer.as_bytes()).await;
}

async fn start_server() -> (String, Arc<ServerObservations>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let seen = Arc::new(ServerObservations::default());
    let shared = Arc::clone(&seen);
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_connection(stream, Arc::clone(&shared)));
        }
    });
    (url, seen)
}

fn create_runner(url: &str, dir: &std::path::Path) -> Runner {
    let mut manifest = manifest(json!([{"name": "far", "mcp_source": {"uri": url}}]), dir);
    let at = url
        .trim_start_matches("http://")
        .split('/')
        .next()
        .unwrap_or_default();
    let sandbox = json!({"name": "net", "level": "process", "capabilities": {"network": {
        "mode": "allowlist", "allowed_hosts": [at], "ssrf_protection": {"enabled": false}}}});
    manifest.sandbox = Some(serde_json::from_value(sandbox).expect("a sandbox"));
    let ask: AskUserHandler =
        Arc::new(|_question| Box::pin(std::future::ready(UserAnswer::Said("Ann".to_owned()))));
    let host = ToolHost {
        ask: Some(ask),
        ..host(dir)
    };
    bind_tools(&manifest, &serde_json::from_str("{}").expect("a config"), host).expect("all bound")
}

fn new_session() -> SessionId {
    serde_json::from_value(json!("00000000-0000-4000-8000-000000000001")).expect("a session")
}

#[tokio::test]
async fn an_answer_whose_stream_breaks_is_read_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let (url, seen) = start_server().await;
    let runner = create_runner(&url, dir.path());
    runner
        .takes_over("far")
        .await
        .expect("listed")
        .expect("taken over");
    let ran = Ran::new(open_plan())
        .run(&runner, dir.path(), "far-breaks", json!({}))
        .await;
    assert_eq!(text(&ran.expect("ran")), "the rest");
    let resumed = seen
        .requests
        .lock()
        .expect("a lock")
        .iter()
        .any(|one| one.starts_with("resumed at e-"));
    assert!(resumed, "by Last-Event-ID");
    runner.close().await;
}

#[tokio::test]
async fn a_question_on_the_servers_own_stream_is_answered() {
    let dir = tempfile::tempdir().expect("a folder");
    let (url, seen) = start_server().await;
    let runner = create_runner(&url, dir.path());
    runner
        .takes_over("far")
        .await
        .expect("listed")
        .expect("taken over");
    let ran = Ran {
        session: Some(new_session()),
        ..Ran::new(open_plan())
    };
    let said = ran
        .run(&runner, dir.path(), "far-asks", json!({}))
        .await
        .expect("ran");
    assert!(seen.contains("listens"));
    let said: Value = serde_json::from_str(&text(&said)).expect("the client's answer");
    assert_eq!(said, json!({"action": "accept", "content": {"name": "Ann"}}));
    runner.close().await;
}

#[tokio::test]
async fn a_page_and_a_refusal_answer_their_call() {
    let dir = tempfile::tempdir().expect("a folder");
    let (url, _) = start_server().await;
    let runner = create_runner(&url, dir.path());
    runner
        .takes_over("far")
        .await
        .expect("listed")
        .expect("taken over");
    for (tool, want) in [
        ("far-page", "not JSON-RPC (`text/html`): <html>Please log in"),
        ("far-refused", "HTTP 429: {\"detail\": \"quota gone\"}"),
    ] {
        let ran = Ran::new(open_plan())
            .run(&runner, dir.path(), tool, json!({}))
            .await
            .expect("answered");
        assert!(
            ran.is_error && text(&ran).contains(want),
            "{tool}: {}",
            text(&ran)
        );
    }
    runner.close().await;
}
