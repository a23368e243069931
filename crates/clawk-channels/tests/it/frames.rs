//! `web` over a WebSocket: who gets in, what is accepted, what comes again, questions. The listener's part is tried in `clawk-server`
//! and through the program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clawk_channels::{Channels, HookRequest, HookResponse, HookWebSocket, OutFile};
use clawk_kernel::ports::{Delivery, ModelMessage, SocketFrame};
use clawk_kernel::testing::{Behaviour, Rig, ScriptedModel, calls, manifest, says};
use clawk_kernel::time::Clock as _;
use clawk_proto::MessageId;
use serde_json::{Value, json};

use crate::suite::{asking, parrot, until};

pub(crate) const LONG: Duration = Duration::from_secs(20);
const TOKENS: [(&str, &str); 3] = [
    ("TOKEN", "shared-token"),
    ("ANN", "token-of-ann"),
    ("BOB", "token-of-bob"),
];

async fn serve(rig: &Rig, to: &str, folder: &Path) -> Channels {
    let kernel = rig.start().await;
    let config = json!({"users": {"ann": "ANN", "bob": "BOB"}, "admins": ["ann"], "public_url": "https://chat.example/x"});
    let configs = BTreeMap::from([("page".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = asking(rig, kernel, configs, &TOKENS, (folder, to)).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    channels
}

fn rig(access: Value) -> Rig {
    parrot(
        json!([{"name": "page", "type": "web", "transport": "websocket", "auth": {"secret_ref": "TOKEN"},
        "access_control": access, "processing": {"max_message_length": 100}}]),
    )
}

async fn asks(channels: &Channels, headers: &[(&'static str, &str)]) -> HookResponse {
    let mut map = http::HeaderMap::new();
    map.insert("host", "127.0.0.1:8080".parse().unwrap());
    map.insert("upgrade", "websocket".parse().unwrap());
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    let hook = HookRequest {
        method: http::Method::GET,
        query: String::new(),
        headers: map,
        body: bytes::Bytes::new(),
    };
    channels.serve_hook("page", hook).await
}

const V1: (&str, &str) = ("sec-websocket-protocol", "clawk.v1");

pub(crate) struct Client(pub(crate) HookWebSocket);

impl Client {
    pub(crate) async fn open(channels: &Channels, token: &str) -> Self {
        let bearer = format!("Bearer {token}");
        let served = asks(channels, &[V1, ("authorization", &bearer)]).await;
        Self(served.talk.unwrap_or_else(|| panic!("{:?}", served.reply)))
    }

    /// A socket that has said hello: the answer to it.
    pub(crate) async fn hello(
        channels: &Channels,
        token: &str,
        session: Value,
        after: Value,
    ) -> (Self, Value) {
        let mut client = Self::open(channels, token).await;
        client
            .say(json!({"type": "hello", "session": session, "after": after}))
            .await;
        let hello = client.next().await.unwrap();
        assert_eq!(hello["type"], "hello", "{hello}");
        (client, hello)
    }

    pub(crate) async fn say(&self, frame: Value) {
        self.0
            .heard
            .send(SocketFrame::Text(frame.to_string()))
            .await
            .unwrap();
    }

    pub(crate) async fn message(&self, id: &str, text: &str) {
        self.say(json!({"type": "message", "id": id, "text": text})).await;
    }

    /// The next frame, or how it was closed.
    pub(crate) async fn next(&mut self) -> Result<Value, u16> {
        match tokio::time::timeout(LONG, self.0.said.recv())
            .await
            .expect("in time")
        {
            Some(SocketFrame::Text(text)) => Ok(serde_json::from_str(&text).unwrap()),
            Some(SocketFrame::Bytes(_)) => panic!("bytes"),
            Some(SocketFrame::Close(code, _)) => Err(code),
            None => Err(0),
        }
    }

    pub(crate) async fn all(&mut self, count: usize) -> Vec<Value> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.next().await.unwrap());
        }
        all
    }

    pub(crate) async fn is_quiet(&mut self) {
        let more = tokio::time::timeout(Duration::from_millis(300), self.0.said.recv()).await;
        assert!(more.is_err(), "{more:?}");
    }
}

#[tokio::test]
async fn a_socket_wants_a_token_a_subprotocol_and_no_other_sites_page() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, "", folder.path()).await;
    let status = async |headers: &[(&'static str, &str)]| asks(&channels, headers).await.reply.status;
    let ann = ("authorization", "Bearer token-of-ann");
    assert_eq!(status(&[V1]).await, 401);
    assert_eq!(status(&[V1, ("authorization", "Bearer guess")]).await, 401);
    assert_eq!(status(&[ann]).await, 400, "no subprotocol");
    for origin in [
        "https://evil.example",
        "null",
        "http://127.0.0.1:8081",
        "file://127.0.0.1:8080",
    ] {
        assert_eq!(status(&[V1, ann, ("origin", origin)]).await, 403, "{origin}");
    }
    for origin in ["http://127.0.0.1:8080", "https://chat.example"] {
        assert_eq!(status(&[V1, ann, ("origin", origin)]).await, 101, "{origin}");
    }
    // A browser's page can say its token only as a subprotocol.
    let offered = format!("clawk.v1, bearer.{}", URL_SAFE_NO_PAD.encode("token-of-ann"));
    assert_eq!(status(&[("sec-websocket-protocol", &offered)]).await, 101);
    assert_eq!(
        status(&[("sec-websocket-protocol", "clawk.v1, bearer.%%%")]).await,
        401
    );
    for _ in 0..4 {
        assert_eq!(status(&[V1, ("authorization", "Bearer guess")]).await, 401);
    }
    assert_eq!(
        status(&[V1, ann]).await,
        429,
        "after five wrong ones none is looked at"
    );
    channels.close().await;
}

#[tokio::test]
async fn what_is_accepted_is_answered_once_and_comes_again_until_it_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, "", folder.path()).await;
    let (mut client, hello) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    let session = hello["session"].as_str().unwrap().to_owned();
    assert!(!hello["sender"].as_str().unwrap().contains(&session));
    client.message("m1", "say **one**").await;
    let told = client.all(2).await;
    assert_eq!(told[0], json!({"type": "accepted", "id": "m1"}));
    assert_eq!(
        rig.journal.inbox().len(),
        1,
        "it was durable when it was accepted"
    );
    let record = "_Record: no action was taken for this answer._";
    assert_eq!(
        told[1],
        json!({"type": "message", "seq": 1, "of": "m1", "text": format!("**one**\n\n{record}")}),
        "Markdown, not our page's HTML"
    );
    // Sent again: accepted again, no second turn.
    client.message("m1", "say **one**").await;
    assert_eq!(
        client.next().await.unwrap(),
        json!({"type": "accepted", "id": "m1"})
    );
    client.message("m2", "say two").await;
    let told = client.all(2).await;
    assert_eq!((&told[1]["seq"], &told[1]["of"]), (&json!(2), &json!("m2")));
    assert_eq!(rig.journal.inbox().len(), 2);
    // What is too long is refused with the reason.
    client.message("m3", &"x".repeat(101)).await;
    let told = client.all(2).await;
    let refused = told.iter().find(|frame| frame["type"] == "refused").unwrap();
    assert_eq!(refused["id"], "m3");
    let notice = told.iter().find(|frame| frame["type"] == "message").unwrap();
    assert_eq!(notice["of"], Value::Null, "{notice}");
    client.message("no id", "x").await;
    assert_eq!(client.next().await.unwrap()["type"], "refused");
    client.say(json!({"type": "ack", "seq": 1})).await;
    client.say(json!({"type": "ack", "seq": 99})).await;
    client.is_quiet().await;
    drop(client);
    // Again, from a number, from what was acknowledged, from the start.
    let seqs = async |after: Value, count: usize| -> Vec<u64> {
        let (mut client, again) = Client::hello(&channels, "shared-token", json!(session), after).await;
        assert_eq!(again["sender"], hello["sender"]);
        let all = client.all(count).await;
        client.is_quiet().await;
        all.iter().map(|frame| frame["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(seqs(json!(2), 1).await, [3]);
    assert_eq!(seqs(Value::Null, 2).await, [2, 3]);
    assert_eq!(seqs(json!(0), 3).await, [1, 2, 3]);
    channels.close().await;
    // After a restart, too.
    let channels = serve(&rig, "", folder.path()).await;
    let (mut client, _) = Client::hello(&channels, "shared-token", json!(session), json!(1)).await;
    assert_eq!(client.next().await.unwrap()["text"], format!("two\n\n{record}"));
    // Another session of the same token sees nothing of it.
    let (mut other, hello) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    assert_ne!(hello["session"], json!(session));
    other.is_quiet().await;
    channels.close().await;
}

#[tokio::test]
async fn a_frame_that_is_none_closes_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, "", folder.path()).await;
    for (first, code) in [
        (json!({"type": "message", "id": "m", "text": "x"}), 1008),
        (json!({"type": "hello", "session": "mine"}), 1008),
        (json!({"type": "hello", "session": null, "more": 1}), 1007),
        (json!({"type": "order"}), 1007),
    ] {
        let mut client = Client::open(&channels, "shared-token").await;
        client.say(first.clone()).await;
        assert_eq!(client.next().await, Err(code), "{first}");
    }
    let (mut client, _) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.0.heard.send(SocketFrame::Bytes(vec![0])).await.unwrap();
    assert_eq!(client.next().await, Err(1003));
    assert_eq!(rig.journal.inbox().len(), 0);
    channels.close().await;
}

#[tokio::test]
async fn nobody_is_heard_who_is_not_let_in_and_a_session_has_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(json!({"mode": "allowlist", "allowed_ids": ["ann"]}));
    let channels = serve(&rig, "", folder.path()).await;
    for token in ["token-of-bob", "shared-token"] {
        let (mut client, _) = Client::hello(&channels, token, Value::Null, json!(0)).await;
        client.message("m", "say x").await;
        let told = client.next().await.unwrap();
        assert_eq!((&told["type"], &told["id"]), (&json!("refused"), &json!("m")));
    }
    assert_eq!(rig.journal.inbox().len(), 0);
    let (mut ann, hello) = Client::hello(&channels, "token-of-ann", Value::Null, json!(0)).await;
    assert_eq!(hello["sender"], "ann");
    ann.message("m", "say x").await;
    assert!(ann.all(2).await[1]["text"].as_str().unwrap().starts_with("x\n"));
    // Her session with his token is his, and empty.
    let (mut bob, hello) = Client::hello(&channels, "token-of-bob", hello["session"].clone(), json!(0)).await;
    assert_eq!(hello["sender"], "bob");
    bob.is_quiet().await;
    channels.close().await;
}

#[tokio::test]
async fn a_question_is_pressed_by_an_admin_only_and_how_it_was_decided_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, "", folder.path()).await;
    let (mut ann, hello) = Client::hello(&channels, "token-of-ann", Value::Null, json!(0)).await;
    let (bob, _) = Client::hello(&channels, "token-of-bob", Value::Null, json!(0)).await;
    ann.message("m1", "write a letter").await;
    let told = ann.all(2).await;
    let ask = &told[1];
    assert_eq!(
        (&ask["type"], &ask["choices"]),
        (&json!("ask"), &json!(["yes", "no"])),
        "{ask}"
    );
    assert!(
        ask["text"].as_str().unwrap().contains("Files are precious"),
        "{ask}"
    );
    let question = ask["question"].clone();
    let press =
        |choice: &str| json!({"type": "press", "question": question, "choice": choice, "reason": "too dear"});
    // Asked in her conversation: nobody presses it in another, and no word of one's own is a choice.
    bob.say(press("yes")).await;
    ann.say(press("maybe")).await;
    ann.is_quiet().await;
    ann.say(press("no")).await;
    let told = ann.all(2).await;
    let decided = told.iter().find(|frame| frame["type"] == "decided").unwrap();
    assert_eq!(
        *decided,
        json!({"type": "decided", "question": question, "choice": "no", "by": "ann"})
    );
    let over = told.iter().find(|frame| frame["type"] == "message").unwrap();
    assert_eq!(over["of"], "m1");
    assert!(over["text"].as_str().unwrap().contains("It is over."), "{over}");
    assert_eq!(rig.runner.runs().len(), 0);
    // Whoever comes later is told the question, and that it is decided.
    let (mut later, _) = Client::hello(&channels, "token-of-ann", hello["session"].clone(), json!(0)).await;
    let told = later.all(3).await;
    let kinds: Vec<&str> = told.iter().map(|frame| frame["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ask", "decided", "message"]);
    channels.close().await;
}

#[tokio::test]
async fn an_answer_comes_as_it_is_written_and_then_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(manifest(json!({
        "channels": [{"name": "page", "type": "web", "transport": "websocket", "auth": {"secret_ref": "TOKEN"},
            "access_control": {"mode": "open"}}],
        "tools": [{"name": "slow", "description": "slow", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}],
    })));
    rig.runner.set("slow", Behaviour::Sleep(2_500));
    let model = ScriptedModel::new(|request, _| {
        let asked = matches!(request.messages.last(), Some(ModelMessage::User { .. }));
        let mut answer = if asked {
            calls(&[("slow", json!({}))])
        } else {
            says("All is there.")
        };
        if asked {
            answer.text = "Let me look".to_owned();
        }
        Ok(answer)
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let channels = serve(&rig, "", folder.path()).await;
    let (mut client, _) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.message("m1", "go").await;
    let told = client.all(3).await;
    assert_eq!(told[0]["type"], "accepted");
    assert_eq!(
        told[1],
        json!({"type": "delta", "of": "m1", "text": "Let me look"})
    );
    assert_eq!(
        (&told[2]["type"], &told[2]["seq"]),
        (&json!("message"), &json!(1))
    );
    assert_eq!(told[2]["of"], "m1");
    assert!(told[2]["text"].as_str().unwrap().starts_with("All is there."));
    client.is_quiet().await;
    channels.close().await;
}

#[tokio::test]
async fn a_file_is_fetched_by_the_session_that_it_was_sent_to() {
    let folder = tempfile::tempdir().unwrap();
    let rig = rig(json!({"mode": "open"}));
    let channels = serve(&rig, "", folder.path()).await;
    let (mut client, hello) = Client::hello(&channels, "shared-token", Value::Null, json!(0)).await;
    client.message("m", "say x").await;
    client.all(2).await;
    let sender = hello["sender"].as_str().unwrap();
    let conversation = format!("{sender}/{}", sender.strip_prefix("session-").unwrap());
    let file = OutFile::new("a.txt", bytes::Bytes::from_static(b"abc"));
    let id = MessageId(rig.clock.new_uuid());
    let sent = channels
        .send_text("page", &conversation, "Here.", &[file], id)
        .await;
    assert!(matches!(sent, Ok(Delivery::Delivered { .. })), "{sent:?}");
    let message = client.next().await.unwrap();
    assert_eq!(message["files"][0]["name"], "a.txt", "{message}");
    let query = message["files"][0]["url"]
        .as_str()
        .unwrap()
        .strip_prefix('?')
        .unwrap();
    let fetch = async |token: &str, session: Option<&str>| {
        let mut headers = http::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
        if let Some(session) = session {
            headers.insert("clawk-session", session.parse().unwrap());
        }
        let hook = HookRequest {
            method: http::Method::GET,
            query: query.to_owned(),
            headers,
            body: bytes::Bytes::new(),
        };
        let mut served = channels.serve_hook("page", hook).await;
        let body = match served.stream.as_mut() {
            Some(pieces) => pieces.recv().await,
            None => None,
        };
        (served.reply.status, body)
    };
    let session = hello["session"].as_str().unwrap();
    assert_eq!(
        fetch("shared-token", Some(session)).await,
        (200, Some(bytes::Bytes::from_static(b"abc")))
    );
    let other = URL_SAFE_NO_PAD.encode([7; 32]);
    assert_eq!(fetch("shared-token", Some(&other)).await, (404, None));
    assert_eq!(fetch("token-of-ann", Some(session)).await, (404, None));
    assert_eq!(fetch("shared-token", None).await, (401, None));
    assert_eq!(fetch("guess", Some(session)).await, (401, None));
    channels.close().await;
}
