//! The Cloud API, as far as a channel uses it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use clawk_kernel::ports::BoxFuture;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use super::{Fake, Kept, Said, Sent, Shared, Trouble, seconds, serve, told};
use crate::suite::{hook, taken};

const TOKEN: &str = "whatsapp-access-token";
const APP: &str = "whatsapp-app-secret";
const VERIFY: &str = "whatsapp-verify-token";
const NUMBER: &str = "10001";

#[derive(Debug, Default)]
struct Account {
    kept: Kept,
    /// What the agent was not told yet of messages that it sent.
    statuses: std::sync::Mutex<Vec<Value>>,
    base: std::sync::Mutex<String>,
}

pub(crate) struct Platform {
    account: Shared<Account>,
}

pub(crate) async fn start() -> Platform {
    let account = Arc::new(Account::default());
    let router = Router::new()
        .route("/v23.0/{*path}", axum::routing::any(call))
        .route("/media/{id}", axum::routing::get(media))
        .with_state(Arc::clone(&account));
    *account.base.lock().unwrap() = serve(router).await;
    Platform { account }
}

fn wrong(status: u16, code: u32, message: &str) -> Response {
    let error = json!({"message": format!("(#{code}) {message}"), "type": "OAuthException", "code": code,
        "error_data": {"messaging_product": "whatsapp", "details": message}, "fbtrace_id": "A"});
    told(status, json!({ "error": error }))
}

fn allowed(headers: &HeaderMap) -> bool {
    headers.get("authorization").and_then(|value| value.to_str().ok()) == Some(&format!("Bearer {TOKEN}"))
}

async fn media(
    State(account): State<Shared<Account>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response {
    if !allowed(&headers) {
        account.kept.fault("a file was fetched without the token");
        return wrong(401, 190, "Error validating access token");
    }
    assert_eq!(id, "m1");
    super::super::platforms::PICTURE.into_response()
}

async fn call(
    State(account): State<Shared<Account>>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &account.kept;
    if !allowed(&headers) || kept.takes(Trouble::WrongToken) {
        return wrong(401, 190, "Error validating access token: Session has expired");
    }
    match (method, path.as_str()) {
        (Method::GET, NUMBER) => told(200, json!({ "id": NUMBER })),
        (Method::GET, "m1") => {
            let url = format!("{}/media/m1", account.base.lock().unwrap());
            told(
                200,
                json!({"messaging_product": "whatsapp", "url": url, "mime_type": "image/png", "file_size": 8, "id": "m1"}),
            )
        }
        (Method::POST, "10001/media") => {
            let parts = super::form(&headers, &body);
            super::exactly(kept, &parts, &["messaging_product", "type", "file"]);
            let id = kept.upload(parts[2].file.as_deref().unwrap(), parts[2].data.clone());
            told(200, json!({ "id": id }))
        }
        (Method::POST, "10001/messages") => message(&account, &serde_json::from_slice(&body).unwrap()),
        (method, path) => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, 100, "Unsupported request")
        }
    }
}

fn message(account: &Account, params: &Value) -> Response {
    let kept = &account.kept;
    if params["status"] == "read" {
        kept.only(
            "read",
            params,
            &["messaging_product", "status", "message_id", "typing_indicator"],
        );
        kept.reads.fetch_add(1, Ordering::SeqCst);
        return told(200, json!({ "success": true }));
    }
    let kind = params["type"].as_str().unwrap();
    let known = [
        "messaging_product",
        "recipient_type",
        "to",
        "type",
        "context",
        "biz_opaque_callback_data",
        kind,
    ];
    kept.only("message", params, &known);
    if params["messaging_product"] != "whatsapp" {
        kept.fault("messaging_product");
    }
    if kept.takes(Trouble::TooMany) {
        return wrong(429, 131_056, "Too many messages from this number to this person");
    }
    if kept.takes(Trouble::Forbidden) {
        return wrong(
            400,
            131_047,
            "More than 24 hours have passed since the recipient last replied",
        );
    }
    let mut buttons = Vec::new();
    let text = match kind {
        "text" => {
            kept.only("text", &params["text"], &["body", "preview_url"]);
            let text = params["text"]["body"].as_str().unwrap();
            if text.is_empty() || text.chars().count() > 4096 {
                kept.fault("100: body");
                return wrong(
                    400,
                    100,
                    "Param text['body'] must be at most 4096 characters long.",
                );
            }
            text
        }
        "interactive" => {
            let content = &params["interactive"];
            let text = content["body"]["text"].as_str().unwrap();
            if text.chars().count() > 1024 {
                kept.fault("131009: body");
            }
            for button in content["action"]["buttons"].as_array().unwrap() {
                let (id, title) = (
                    button["reply"]["id"].as_str().unwrap(),
                    button["reply"]["title"].as_str().unwrap(),
                );
                if id.len() > 256
                    || title.chars().count() > 20
                    || title.is_empty()
                    || button["type"] != "reply"
                {
                    kept.fault("131009: button");
                }
                buttons.push((title.to_owned(), id.to_owned()));
            }
            if buttons.is_empty() || buttons.len() > 3 {
                kept.fault("131009: 1 to 3 buttons");
            }
            text
        }
        "reaction" => {
            kept.only("reaction", &params["reaction"], &["message_id", "emoji"]);
            let emoji = params["reaction"]["emoji"].as_str().unwrap();
            if !["", "👀"].contains(&emoji) {
                kept.fault("131009: emoji");
            }
            kept.react(
                params["reaction"]["message_id"].as_str().unwrap(),
                !emoji.is_empty(),
            );
            return told(
                200,
                json!({"messaging_product": "whatsapp", "messages": [{ "id": "wamid.MARK" }]}),
            );
        }
        "image" | "document" => {
            kept.only(kind, &params[kind], &["id", "filename"]);
            kept.shared(
                params[kind]["id"].as_str().unwrap(),
                params["to"].as_str().unwrap(),
            );
            return told(
                200,
                json!({"messaging_product": "whatsapp", "messages": [{ "id": "wamid.FILE" }]}),
            );
        }
        other => {
            kept.fault(format!("no such message: {other}"));
            return wrong(400, 131_051, "Unsupported message type");
        }
    };
    let id = format!("wamid.OUT{}", kept.sent.lock().unwrap().len());
    kept.add(Sent {
        id: id.clone(),
        conversation: params["to"].as_str().unwrap().to_owned(),
        text: text.to_owned(),
        buttons,
        files: Vec::new(),
    });
    let ours = params["biz_opaque_callback_data"].as_str().unwrap();
    if ours.len() > 512 {
        kept.fault("biz_opaque_callback_data");
    }
    account.statuses.lock().unwrap().push(
        json!({"id": id, "status": "sent", "timestamp": seconds().to_string(),
        "recipient_id": params["to"], "biz_opaque_callback_data": ours}),
    );
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(500, 131_000, "Something went wrong");
    }
    told(
        200,
        json!({"messaging_product": "whatsapp", "contacts": [{"input": params["to"], "wa_id": params["to"]}],
        "messages": [{ "id": id }]}),
    )
}

pub(crate) fn signature(secret: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body);
    format!("sha256={}", super::hex(&mac.finalize().into_bytes()))
}

impl Platform {
    async fn bring(&self, value: Value) {
        let mut value = value;
        value["messaging_product"] = json!("whatsapp");
        value["metadata"] = json!({"display_phone_number": "1", "phone_number_id": NUMBER});
        let body = json!({"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [{"field": "messages", "value": value}]}]});
        let body = body.to_string();
        let signed = signature(APP, body.as_bytes());
        let request = hook(&[("x-hub-signature-256", &signed)], body.as_bytes());
        taken(&self.account.kept.channels().receive_hook("chat", request).await);
    }

    /// One message with these members.
    pub(crate) async fn message(&self, message: Value) {
        let from = message["from"].clone();
        let contacts = json!([{"profile": {"name": "ann"}, "wa_id": from}]);
        self.bring(json!({"contacts": contacts, "messages": [message]}))
            .await;
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.account.kept
    }

    fn kind(&self) -> &'static str {
        "whatsapp"
    }

    fn transport(&self) -> &'static str {
        "webhook"
    }

    fn config(&self) -> Value {
        json!({"base_url": format!("{}/v23.0", self.account.base.lock().unwrap()), "settings": {"phone_number_id": NUMBER},
            "secrets": {"app_secret": "APP", "verify_token": "VERIFY"}})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", TOKEN), ("APP", APP), ("VERIFY", VERIFY)]
    }

    fn id(&self, person: u32) -> String {
        format!("4917{person:06}")
    }

    fn direct(&self, person: u32) -> String {
        self.id(person)
    }

    fn group(&self) -> String {
        "G1".to_owned()
    }

    fn has_groups(&self) -> bool {
        // Nothing of a group names anybody.
        false
    }

    fn approvals(&self) -> String {
        self.id(1)
    }

    fn limit(&self) -> usize {
        4096
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    /// It tells once under which id a message is there: whoever is killed then does not know, and marks the answer.
    fn knows_repeats_after_a_kill(&self) -> bool {
        false
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let message = json!({"from": said.sender, "id": format!("wamid.IN{}", said.n), "timestamp": "1700000000", "type": "text",
                "text": {"body": said.text}});
            self.message(message).await;
            // What became of the agent's messages is told a little later.
            let (account, channels) = (Arc::clone(&self.account), self.account.kept.channels());
            tokio::spawn(async move {
                for _ in 0..40 {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    let told: Vec<Value> = std::mem::take(&mut *account.statuses.lock().unwrap());
                    if told.is_empty() {
                        continue;
                    }
                    let value = json!({"metadata": {"phone_number_id": NUMBER}, "statuses": told});
                    let body =
                        json!({"entry": [{"changes": [{"field": "messages", "value": value}]}]}).to_string();
                    let signed = signature(APP, body.as_bytes());
                    let request = hook(&[("x-hub-signature-256", &signed)], body.as_bytes());
                    channels.receive_hook("chat", request).await;
                }
            });
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // Nobody else is in the conversation.
            if on.conversation == sender {
                self.message(
                    json!({"from": sender, "id": format!("wamid.P{carried}"), "timestamp": "1700000000",
                    "type": "interactive", "context": {"from": "1", "id": on.id},
                    "interactive": {"type": "button_reply", "button_reply": {"id": carried, "title": "x"}}}),
                )
                .await;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
