//! The control socket beside a running agent.

use std::time::Duration;

use clawk_server::{ControlClient, ControlError, ControlSocket};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::Launched;
use crate::wire::{Client, LONG, call, fresh};

struct Socket {
    dir: tempfile::TempDir,
    over: CancellationToken,
    serving: JoinHandle<()>,
}

impl Socket {
    fn beside(client: &Client) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let control = ControlSocket::bind(dir.path(), client.host.clone()).expect("bound");
        let over = CancellationToken::new();
        let serving = tokio::spawn(control.serve(over.clone()));
        Self { dir, over, serving }
    }

    async fn connect(&self) -> ControlClient {
        ControlClient::connect(self.dir.path()).await.expect("connected")
    }

    async fn end(self) {
        self.over.cancel();
        self.serving.await.expect("no panic");
        assert_eq!(
            std::fs::read_dir(self.dir.path()).expect("readable").count(),
            0,
            "the socket file is gone"
        );
    }
}

/// Until so many questions wait: the control socket is no turn in the line of the agent's own requests.
async fn asked(client: &Client, questions: usize) {
    let waits = async {
        while client.agent.kernel().pending_questions().len() != questions {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LONG, waits)
        .await
        .expect("the questions are put");
}

#[tokio::test]
async fn another_process_lists_approves_and_denies() {
    let mut client = Client::ready(2).await;
    let socket = Socket::beside(&client);
    let mut control = socket.connect().await;
    let nothing = control
        .call_method("clawk.approvals.list", &json!({}))
        .await
        .expect("answered");
    assert_eq!(nothing, json!({"approvals": []}));

    let (yes, no) = (fresh(), fresh());
    let approved = client.request("claw.tool.call", call("ask", &yes)).await;
    let denied = client.request("claw.tool.call", call("ask", &no)).await;
    asked(&client, 2).await;
    let listed = control
        .call_method("clawk.approvals.list", &json!({}))
        .await
        .expect("answered");
    let listed = listed["approvals"].as_array().expect("a list");
    assert_eq!(listed.len(), 2);
    assert!(
        listed
            .iter()
            .all(|question| question["tool"] == "ask" && question["preview"][0].is_string())
    );

    let answer = control
        .call_method("clawk.approve", &json!({"request_id": yes}))
        .await
        .expect("answered");
    assert_eq!(answer, json!({"acknowledged": true}));
    let answer = control
        .call_method("clawk.deny", &json!({"request_id": no, "reason": "not today"}))
        .await
        .expect("answered");
    assert_eq!(answer, json!({"acknowledged": true}));
    let again = control
        .call_method("clawk.approve", &json!({"request_id": no}))
        .await
        .expect("answered");
    assert_eq!(
        again,
        json!({"acknowledged": false}),
        "R18: the first answer counts"
    );

    assert!(client.answer(approved).await.get("result").is_some());
    let error = client.answer(denied).await["error"].take();
    assert_eq!(
        (&error["code"], &error["data"]["reason"]),
        (&json!(-32013), &json!("not today"))
    );
    assert!(
        error["data"]["denied_by"]
            .as_str()
            .is_some_and(|by| by.starts_with("local user ")),
        "{error}"
    );
    socket.end().await;
}

#[tokio::test]
async fn a_tool_may_be_approved_for_the_session() {
    let mut client = Client::ready(2).await;
    let socket = Socket::beside(&client);
    let id = fresh();
    let answered = client.request("claw.tool.call", call("ask", &id)).await;
    asked(&client, 1).await;
    let params = json!({"request_id": id, "for_session": true});
    socket
        .connect()
        .await
        .call_method("clawk.approve", &params)
        .await
        .expect("answered");
    assert!(client.answer(answered).await.get("result").is_some());
    client.result("claw.tool.call", call("ask", &fresh())).await;
    socket.end().await;
}

#[tokio::test]
async fn status_names_the_agent_through_its_lives() {
    let mut client = Client::connect(Launched::new(3));
    let socket = Socket::beside(&client);
    let mut control = socket.connect().await;
    let early = control
        .call_method("clawk.status", &json!({}))
        .await
        .expect_err("no agent yet");
    assert!(matches!(early, ControlError::Refused(error) if error.code == -32600));
    client.initialize().await;
    let status = control
        .call_method("clawk.status", &json!({}))
        .await
        .expect("answered");
    assert_eq!(
        (&status["agent"], &status["state"]),
        (&json!("tester"), &json!("READY"))
    );
    assert_eq!(
        (&status["conformance_level"], &status["approvals_pending"]),
        (&json!("level-3"), &json!(0))
    );
    let sessions = control
        .call_method("clawk.sessions", &json!({}))
        .await
        .expect("answered");
    assert_eq!(
        (&sessions["sessions"][0]["door"], &sessions["sessions"][0]["who"]),
        (&json!("rpc"), &json!("tests"))
    );
    client.result("claw.shutdown", json!({})).await;
    assert_eq!(
        control
            .call_method("clawk.status", &json!({}))
            .await
            .expect("answered")["state"],
        "STOPPED"
    );
    socket.end().await;
}

#[tokio::test]
async fn wrong_requests_are_answered_and_the_socket_lives() {
    let client = Client::ready(1).await;
    let socket = Socket::beside(&client);
    let mut stream = tokio::net::UnixStream::connect(socket.dir.path().join("control.sock"))
        .await
        .expect("connected");
    let long = "x".repeat(9_000_000);
    let lines = [
        "nonsense",
        "",
        "[]",
        "[1]",
        r#"{"jsonrpc":"2.0","id":1,"method":"claw.status"}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"clawk.approve","params":{}}"#,
        r#"{"jsonrpc":"2.0","method":"clawk.status"}"#,
        long.as_str(),
        r#"{"jsonrpc":"2.0","id":3,"method":"clawk.status"}"#,
    ];
    stream
        .write_all(lines.join("\n").as_bytes())
        .await
        .expect("written");
    stream.shutdown().await.expect("ended");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("read");
    let codes: Vec<_> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|answer| answer["error"]["code"].as_i64().unwrap_or(0))
        .collect();
    // A batch is answered as an array (R24); the protocol's own methods wait for `claw.initialize` (R4).
    assert_eq!(codes, [0, -32700, -32600, -32600, -32602, -32600, 0]);
    socket.end().await;
}

#[tokio::test]
async fn connections_are_bounded_and_later_ones_wait() {
    let client = Client::ready(1).await;
    let socket = Socket::beside(&client);
    let mut first = Vec::new();
    for _ in 0..64 {
        let mut control = socket.connect().await;
        control
            .call_method("clawk.status", &json!({}))
            .await
            .expect("answered");
        first.push(control);
    }
    let mut late = socket.connect().await;
    let params = json!({});
    let waiting = tokio::time::timeout(
        std::time::Duration::from_millis(100),
        late.call_method("clawk.status", &params),
    );
    assert!(waiting.await.is_err(), "the 65th was served");
    first.clear();
    let mut later = socket.connect().await;
    later
        .call_method("clawk.status", &json!({}))
        .await
        .expect("answered");
    socket.end().await;
}

#[tokio::test]
async fn the_control_socket_speaks_the_protocol_too() {
    let client = Client::ready(2).await;
    let socket = Socket::beside(&client);
    let mut control = socket.connect().await;
    let early = control
        .call_method("claw.status", &json!({}))
        .await
        .expect_err("R4");
    assert!(matches!(early, ControlError::Refused(error) if error.code == -32600));
    let hello = control
        .call_method("claw.initialize", &crate::wire::initialize())
        .await
        .expect("answered");
    assert_eq!(hello["agentInfo"]["name"], "tester");
    assert_eq!(client.agent.starts(), 1, "it joined the agent that runs");
    let ran = control
        .call_method("claw.tool.call", &call("echo", &fresh()))
        .await
        .expect("answered");
    assert_ne!(ran["isError"], true, "{ran}");
    // Orders go on working on the same connection.
    let status = control
        .call_method("clawk.status", &json!({}))
        .await
        .expect("answered");
    assert_eq!(status["state"], "READY");
    socket.end().await;
}

#[tokio::test]
async fn orders_are_for_the_control_socket_alone() {
    let mut client = Client::ready(2).await;
    let (code, _) = client.error("clawk.stop", json!({"level": "frozen"})).await;
    assert_eq!(code, -32601);
}
