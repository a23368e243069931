//! The official bot API, as far as a channel uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use clawk_kernel::ports::BoxFuture;
use ed25519_dalek::{Signer as _, SigningKey};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{Fake, Kept, Made, Said, Sent, Shared, Trouble, seconds, serve, told};
use crate::suite::{hook, taken};

pub(crate) const SECRET: &str = "qq-app-secret";
const APP: &str = "102";

#[derive(Debug)]
struct Account {
    kept: Kept,
    hooked: bool,
    made: Made,
    base: Mutex<String>,
    events: Mutex<Vec<(String, Value)>>,
    came: broadcast::Sender<()>,
    /// Messages of people, and how often each was answered.
    answered: Mutex<BTreeMap<String, u32>>,
    numbers: Mutex<BTreeSet<(String, u64)>>,
}

pub(crate) struct Platform {
    account: Shared<Account>,
}

pub(crate) async fn start() -> Platform {
    with(false).await
}

pub(crate) async fn with(hooked: bool) -> Platform {
    let account = Arc::new(Account {
        kept: Kept::default(),
        hooked,
        made: Made::default(),
        base: Mutex::default(),
        events: Mutex::default(),
        came: broadcast::channel(4096).0,
        answered: Mutex::default(),
        numbers: Mutex::default(),
    });
    let router = Router::new()
        .route("/websocket", axum::routing::get(socket))
        .route(
            "/file",
            axum::routing::get(|| async { super::super::platforms::PICTURE.into_response() }),
        )
        .route("/{*path}", axum::routing::any(call))
        .with_state(Arc::clone(&account));
    *account.base.lock().unwrap() = serve(router).await;
    Platform { account }
}

fn wrong(status: u16, code: i64, message: &str) -> Response {
    told(
        status,
        json!({"code": code, "message": message, "err_code": code, "trace_id": "t"}),
    )
}

async fn call(
    State(account): State<Shared<Account>>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &account.kept;
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path == "app/getAppAccessToken" {
        kept.only("token", &params, &["appId", "clientSecret"]);
        if params != json!({"appId": APP, "clientSecret": SECRET}) || kept.takes(Trouble::WrongToken) {
            return told(
                200,
                json!({"code": 100_016, "message": "invalid appid or secret"}),
            );
        }
        return told(
            200,
            json!({"access_token": account.made.now(), "expires_in": "7200"}),
        );
    }
    let given = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !account.made.counts(kept, given.trim_start_matches("QQBot ")) || !given.starts_with("QQBot ") {
        return wrong(401, 11_244, "token is expired");
    }
    let parts: Vec<&str> = path.split('/').collect();
    match (&method, parts.as_slice()) {
        (&Method::GET, ["gateway"]) => {
            let base = account.base.lock().unwrap().replace("http://", "ws://");
            told(200, json!({"url": format!("{base}/websocket")}))
        }
        (&Method::POST, ["v2", "users", person, "messages"]) => {
            message(&account, &params, (*person).to_owned())
        }
        (&Method::POST, ["v2", "groups", group, "messages"]) => {
            message(&account, &params, format!("group:{group}"))
        }
        _ => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, 11_253, "no such route")
        }
    }
}

fn message(account: &Account, params: &Value, conversation: String) -> Response {
    let kept = &account.kept;
    kept.only("message", params, &["content", "msg_type", "msg_id", "msg_seq"]);
    if kept.takes(Trouble::TooMany) {
        return wrong(429, 22_013, "too many requests");
    }
    if kept.takes(Trouble::Forbidden) {
        return wrong(400, 40_034_024, "msg_id is invalid");
    }
    let (id, number) = (
        params["msg_id"].as_str().unwrap(),
        params["msg_seq"].as_u64().unwrap(),
    );
    let mut answered = account.answered.lock().unwrap();
    let Some(count) = answered.get_mut(id) else {
        return wrong(400, 40_034_024, "msg_id is invalid");
    };
    if !account.numbers.lock().unwrap().insert((id.to_owned(), number)) {
        return wrong(400, 40_054_005, "the message was deduplicated, check msgseq");
    }
    *count += 1;
    if *count > 5 {
        return wrong(400, 22_009, "msg limit exceed");
    }
    let text = params["content"].as_str().unwrap();
    if text.is_empty() || text.chars().count() > 2000 || params["msg_type"] != 0 || text.contains("<@") {
        kept.fault("content");
    }
    let id = format!("out{}", kept.sent.lock().unwrap().len());
    kept.add(Sent {
        id: id.clone(),
        conversation,
        text: text.to_owned(),
        buttons: Vec::new(),
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(500, 500, "internal error");
    }
    told(200, json!({"id": id, "timestamp": "2026-01-02T03:04:05+08:00"}))
}

async fn socket(State(account): State<Shared<Account>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| talk(account, socket))
}

async fn talk(account: Shared<Account>, mut socket: WebSocket) {
    let mut came = account.came.subscribe();
    let hello = json!({"op": 10, "d": {"heartbeat_interval": 500}});
    if socket.send(Message::text(hello.to_string())).await.is_err() {
        return;
    }
    let Some(Ok(Message::Text(first))) = socket.recv().await else {
        return;
    };
    let first: Value = serde_json::from_str(first.as_str()).unwrap();
    if first["d"]["token"] != format!("QQBot {}", account.made.now()) {
        account.kept.fault("4004");
        return;
    }
    let resumed = first["op"] == 6;
    let mut at = if resumed {
        usize::try_from(first["d"]["seq"].as_u64().unwrap()).unwrap()
    } else {
        account.events.lock().unwrap().len()
    };
    let (kind, d) = if resumed {
        ("RESUMED", json!(""))
    } else {
        (
            "READY",
            json!({"session_id": "s", "user": {"id": "1"}, "shard": [0, 1]}),
        )
    };
    let frame = json!({"op": 0, "t": kind, "d": d, "s": at});
    let _ = socket.send(Message::text(frame.to_string())).await;
    loop {
        let next = account.events.lock().unwrap().get(at).cloned();
        if let Some((kind, d)) = next {
            at += 1;
            let frame = json!({"op": 0, "t": kind, "s": at, "d": d, "id": format!("EVENT:{at}")});
            if socket.send(Message::text(frame.to_string())).await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            _ = came.recv() => {}
            heard = socket.recv() => match heard {
                Some(Ok(Message::Text(text))) => {
                    let frame: Value = serde_json::from_str(text.as_str()).unwrap();
                    if frame["op"] == 1 {
                        let ack = json!({"op": 11});
                        if socket.send(Message::text(ack.to_string())).await.is_err() { return; }
                    }
                }
                Some(Ok(Message::Close(_))) | None | Some(Err(_)) => return,
                Some(Ok(_)) => {}
            },
        }
    }
}

/// The key pair of a secret, as the vendor's page makes it.
pub(crate) fn key(secret: &str) -> SigningKey {
    let mut seed = secret.to_owned();
    while seed.len() < 32 {
        seed = seed.repeat(2);
    }
    SigningKey::from_bytes(&seed.as_bytes()[..32].try_into().unwrap())
}

pub(crate) fn signature(secret: &str, at: &str, body: &[u8]) -> String {
    super::hex(&key(secret).sign(&[at.as_bytes(), body].concat()).to_bytes())
}

impl Platform {
    pub(crate) async fn bring(&self, kind: &str, d: Value) {
        let id = d["id"].as_str().unwrap().to_owned();
        self.account
            .answered
            .lock()
            .unwrap()
            .entry(id.clone())
            .or_default();
        if !self.account.hooked {
            self.account.events.lock().unwrap().push((kind.to_owned(), d));
            let _ = self.account.came.send(());
            return;
        }
        let body = json!({"op": 0, "id": format!("EVENT:{id}"), "s": 1, "t": kind, "d": d}).to_string();
        let at = seconds().to_string();
        let signed = signature(SECRET, &at, body.as_bytes());
        let headers = [
            ("x-signature-timestamp", at.as_str()),
            ("x-signature-ed25519", &signed),
            ("x-bot-appid", APP),
        ];
        let reply = self
            .account
            .kept
            .channels()
            .receive_hook("chat", hook(&headers, body.as_bytes()))
            .await;
        taken(&reply);
        assert!(reply.body.contains("\"op\":12"), "{reply:?}");
    }

    pub(crate) fn file(&self) -> String {
        format!("{}/file", self.account.base.lock().unwrap())
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.account.kept
    }

    fn kind(&self) -> &'static str {
        "qq"
    }

    fn transport(&self) -> &'static str {
        if self.account.hooked {
            "webhook"
        } else {
            "websocket"
        }
    }

    fn config(&self) -> Value {
        json!({"base_url": self.account.base.lock().unwrap().clone(), "settings": {"app_id": APP}})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", SECRET)]
    }

    fn id(&self, person: u32) -> String {
        format!("OPENID{person}")
    }

    fn direct(&self, person: u32) -> String {
        self.id(person)
    }

    fn group(&self) -> String {
        "group:GROUP".to_owned()
    }

    fn has_groups(&self) -> bool {
        // What names nobody does not come at all.
        false
    }

    fn approvals(&self) -> String {
        self.id(1)
    }

    fn has_buttons(&self) -> bool {
        false
    }

    fn limit(&self) -> usize {
        1800
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let id = format!("ROBOT1.0_{}", said.n);
            if let Some(group) = said.conversation.strip_prefix("group:") {
                let d = json!({"id": id, "author": {"member_openid": said.sender}, "group_openid": group, "content": format!(" {}", said.text),
                    "timestamp": "2026-01-02T03:04:05+08:00"});
                self.bring("GROUP_AT_MESSAGE_CREATE", d).await;
            } else {
                let d = json!({"id": id, "author": {"user_openid": said.sender}, "content": said.text, "timestamp": "2026-01-02T03:04:05+08:00"});
                self.bring("C2C_MESSAGE_CREATE", d).await;
            }
        })
    }

    fn press<'a>(&'a self, _carried: &'a str, _sender: &'a str, _on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(Duration::ZERO))
    }
}
