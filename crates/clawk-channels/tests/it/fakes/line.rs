//! The Messaging API, as far as a channel uses it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_kernel::ports::BoxFuture;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{Brought, Fake, Kept, Said, Sent, Shared, Trouble, serve};
use crate::suite::{hook, taken};

const TOKEN: &str = "line-access-token";
const SIGNING: &str = "line-channel-secret";

#[derive(Debug, Default)]
struct Account {
    kept: Kept,
    keys: Mutex<BTreeMap<String, String>>,
}

pub(crate) struct Platform {
    account: Shared<Account>,
    base: String,
}

pub(crate) async fn start() -> Platform {
    let account = Arc::new(Account::default());
    let router = Router::new()
        .route("/v2/bot/{*path}", axum::routing::any(call))
        .with_state(Arc::clone(&account));
    Platform {
        account,
        base: serve(router).await,
    }
}

fn wrong(status: u16, message: &str) -> Response {
    (
        StatusCode::from_u16(status).unwrap(),
        axum::Json(json!({ "message": message })),
    )
        .into_response()
}

async fn call(
    State(account): State<Shared<Account>>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &account.kept;
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Bearer {TOKEN}")) || kept.takes(Trouble::WrongToken) {
        return wrong(
            401,
            "Authentication failed. Confirm that the access token in the authorization header is valid.",
        );
    }
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    match (method, path.as_str()) {
        (Method::GET, "info") => {
            axum::Json(json!({"userId": "Ubot", "basicId": "@bot", "displayName": "Bot"})).into_response()
        }
        (Method::POST, "chat/loading/start") => {
            kept.typings.fetch_add(1, Ordering::SeqCst);
            axum::Json(json!({})).into_response()
        }
        (Method::GET, path) if path.starts_with("message/i") && path.ends_with("/content") => {
            kept.file().await
        }
        (Method::POST, "message/push") => push(&account, &headers, &params),
        (method, path) => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, "Not found")
        }
    }
}

fn push(account: &Account, headers: &HeaderMap, params: &Value) -> Response {
    let kept = &account.kept;
    kept.only("push", params, &["to", "messages"]);
    let key = headers
        .get("x-line-retry-key")
        .and_then(|key| key.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let parts: Vec<usize> = key.split('-').map(str::len).collect();
    if parts != [8, 4, 4, 4, 12] {
        kept.fault(format!("the retry key is no UUID: {key}"));
    }
    if kept.takes(Trouble::TooMany) {
        return wrong(429, "The API rate limit has been exceeded. Try again later.");
    }
    if let Some(known) = account.keys.lock().unwrap().get(&key) {
        let body = json!({"message": "The retry key is already accepted", "sentMessages": [{ "id": known }]});
        return (StatusCode::CONFLICT, axum::Json(body)).into_response();
    }
    let messages = params["messages"].as_array().unwrap();
    if messages.is_empty() || messages.len() > 5 {
        kept.fault("push: 1 to 5 messages");
    }
    let (mut text, mut buttons) = (String::new(), Vec::new());
    for message in messages {
        match message["type"].as_str().unwrap() {
            "text" => text.push_str(message["text"].as_str().unwrap()),
            "template" => {
                for action in message["template"]["actions"].as_array().unwrap() {
                    let (label, data) = (
                        action["label"].as_str().unwrap(),
                        action["data"].as_str().unwrap(),
                    );
                    if label.chars().count() > 20 || data.len() > 300 {
                        kept.fault("a button is too long");
                    }
                    buttons.push((label.to_owned(), data.to_owned()));
                }
            }
            other => kept.fault(format!("no such message: {other}")),
        }
    }
    if text.is_empty() || text.encode_utf16().count() > 5000 {
        kept.fault("May not be empty, or longer than 5000");
        return wrong(400, "The request body has 1 error(s)");
    }
    let id = format!("m{}", kept.sent.lock().unwrap().len());
    account.keys.lock().unwrap().insert(key, id.clone());
    kept.add(Sent {
        id: id.clone(),
        conversation: params["to"].as_str().unwrap().to_owned(),
        text,
        buttons,
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(500, "Internal server error");
    }
    axum::Json(json!({"sentMessages": [{ "id": id }]})).into_response()
}

impl Platform {
    async fn bring(&self, event: Value) {
        let body = json!({"destination": "Ubot", "events": [event]}).to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(SIGNING.as_bytes()).unwrap();
        mac.update(body.as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let channels = self.account.kept.channels();
        let forged = channels
            .receive_hook("chat", hook(&[("x-line-signature", "AAAA")], body.as_bytes()))
            .await;
        assert_eq!(forged.status, 401);
        taken(
            &channels
                .receive_hook("chat", hook(&[("x-line-signature", &signature)], body.as_bytes()))
                .await,
        );
    }

    fn source(conversation: &str, sender: &str) -> Value {
        if conversation == "Cgroup" {
            json!({"type": "group", "groupId": conversation, "userId": sender})
        } else {
            json!({"type": "user", "userId": sender})
        }
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.account.kept
    }

    fn kind(&self) -> &'static str {
        "line"
    }

    fn transport(&self) -> &'static str {
        "webhook"
    }

    fn config(&self) -> Value {
        json!({"base_url": self.base, "secrets": {"channel_secret": "SIGNING"}})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", TOKEN), ("SIGNING", SIGNING)]
    }

    fn id(&self, person: u32) -> String {
        format!("Uperson{person}")
    }

    fn direct(&self, person: u32) -> String {
        self.id(person)
    }

    fn group(&self) -> String {
        "Cgroup".to_owned()
    }

    fn approvals(&self) -> String {
        // A group: anybody in it may press.
        "Cgroup".to_owned()
    }

    fn limit(&self) -> usize {
        5000
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut message = json!({"id": format!("i{}", said.n), "type": "text", "text": said.text});
            if said.mention {
                message["mention"] =
                    json!({"mentionees": [{"index": 0, "length": 4, "type": "user", "isSelf": true}]});
            }
            self.bring(json!({"type": "message", "mode": "active", "timestamp": 1, "webhookEventId": format!("W{}", said.n),
                "source": Self::source(&said.conversation, &said.sender), "message": message}))
            .await;
        })
    }

    fn brings<'a>(&'a self, file: &'a Brought) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut message = json!({"id": format!("i{}", file.n), "type": "file", "fileName": file.name});
            if let Some(size) = file.size {
                message["fileSize"] = json!(size);
            }
            if let Some(url) = &file.elsewhere {
                message["contentProvider"] = json!({"type": "external", "originalContentUrl": url});
            }
            let sender = self.id(file.person);
            self.bring(json!({"type": "message", "mode": "active", "timestamp": 1, "webhookEventId": format!("F{}", file.n),
                "source": Self::source(&sender, &sender), "message": message}))
            .await;
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let direct = on.conversation != "Cgroup";
            // In a direct chat nobody else can press: the platform would say who they are.
            let who = if direct {
                on.conversation.clone()
            } else {
                sender.to_owned()
            };
            if who == sender {
                self.bring(
                    json!({"type": "postback", "mode": "active", "webhookEventId": format!("P{carried}"),
                    "source": Self::source(&on.conversation, &who), "postback": {"data": carried}}),
                )
                .await;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
