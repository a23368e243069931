//! The open API, events and the long connection, as far as a channel uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aes::Aes256;
use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockModeEncrypt as _, KeyIvInit as _};
use clawk_kernel::ports::BoxFuture;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::broadcast;

use super::{Fake, Kept, Made, Said, Sent, Shared, Trouble, proto, seconds, serve, told};
use crate::suite::{hook, taken};

const SECRET: &str = "lark-app-secret";
pub(crate) const VERIFICATION: &str = "lark-verification-token";
pub(crate) const KEY: &str = "lark-encrypt-key";
pub(crate) const APP: &str = "cli_1";

#[derive(Debug)]
struct Tenant {
    kept: Kept,
    hooked: bool,
    made: Made,
    base: Mutex<String>,
    /// Messages by `uuid`.
    known: Mutex<BTreeMap<String, String>>,
    /// Frames that were not acknowledged.
    open: Mutex<BTreeMap<String, Vec<u8>>>,
    came: broadcast::Sender<Vec<u8>>,
}

pub(crate) struct Platform {
    tenant: Shared<Tenant>,
}

pub(crate) async fn start() -> Platform {
    with(false).await
}

pub(crate) async fn with(hooked: bool) -> Platform {
    let tenant = Arc::new(Tenant {
        kept: Kept::default(),
        hooked,
        made: Made::default(),
        base: Mutex::default(),
        known: Mutex::default(),
        open: Mutex::default(),
        came: broadcast::channel(4096).0,
    });
    let router = Router::new()
        .route("/ws", axum::routing::get(socket))
        .route("/{*path}", axum::routing::any(call))
        .with_state(Arc::clone(&tenant));
    *tenant.base.lock().unwrap() = serve(router).await;
    Platform { tenant }
}

fn wrong(status: u16, code: i64, message: &str) -> Response {
    told(status, json!({"code": code, "msg": message}))
}

async fn call(
    State(tenant): State<Shared<Tenant>>,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &tenant.kept;
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    match path.as_str() {
        "open-apis/auth/v3/tenant_access_token/internal" => {
            kept.only("token", &params, &["app_id", "app_secret"]);
            if params != json!({"app_id": APP, "app_secret": SECRET}) || kept.takes(Trouble::WrongToken) {
                return wrong(200, 10_014, "app secret invalid");
            }
            return told(
                200,
                json!({"code": 0, "msg": "ok", "tenant_access_token": tenant.made.now(), "expire": 7200}),
            );
        }
        "callback/ws/endpoint" => {
            kept.only("endpoint", &params, &["AppID", "AppSecret"]);
            if params != json!({"AppID": APP, "AppSecret": SECRET}) {
                return wrong(200, 514, "auth failed");
            }
            let base = tenant.base.lock().unwrap().replace("http://", "ws://");
            let url = format!("{base}/ws?device_id=1&service_id=5");
            return told(
                200,
                json!({"code": 0, "data": {"URL": url, "ClientConfig": {"PingInterval": 1}}}),
            );
        }
        _ => {}
    }
    let given = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !tenant.made.counts(kept, given.trim_start_matches("Bearer ")) {
        return wrong(400, 99_991_663, "Invalid access token for authorization");
    }
    let parts: Vec<&str> = path.split('/').collect();
    match (&method, parts.as_slice()) {
        (&Method::GET, ["open-apis", "bot", "v3", "info"]) => told(
            200,
            json!({"code": 0, "msg": "ok", "bot": {"open_id": "ou_bot", "app_name": "Bot"}}),
        ),
        (&Method::GET, ["open-apis", "im", "v1", "messages", _, "resources", "img_1"]) => {
            super::super::platforms::PICTURE.into_response()
        }
        (&Method::POST, ["open-apis", "im", "v1", "images"]) => {
            let parts = super::form(&headers, &body);
            super::exactly(kept, &parts, &["image_type", "image"]);
            let id = kept.upload(parts[1].file.as_deref().unwrap(), parts[1].data.clone());
            told(200, json!({"code": 0, "data": {"image_key": id}}))
        }
        (&Method::POST, ["open-apis", "im", "v1", "files"]) => {
            let parts = super::form(&headers, &body);
            super::exactly(kept, &parts, &["file_type", "file_name", "file"]);
            let id = kept.upload(&parts[1].text(), parts[2].data.clone());
            told(200, json!({"code": 0, "data": {"file_key": id}}))
        }
        (&Method::POST, ["open-apis", "im", "v1", "messages"]) => {
            kept.only("message", &params, &["receive_id", "msg_type", "content", "uuid"]);
            if query.as_deref() != Some("receive_id_type=chat_id") {
                kept.fault("receive_id_type");
            }
            let to = params["receive_id"].as_str().unwrap().to_owned();
            message(&tenant, &params, to, body.len())
        }
        (&Method::POST, ["open-apis", "im", "v1", "messages", root, "reply"]) => {
            kept.only(
                "reply",
                &params,
                &["msg_type", "content", "uuid", "reply_in_thread"],
            );
            message(&tenant, &params, format!("oc_group:{root}"), body.len())
        }
        (&Method::POST, ["open-apis", "im", "v1", "messages", id, "reactions"]) => {
            kept.only("reaction", &params, &["reaction_type"]);
            kept.only("reaction_type", &params["reaction_type"], &["emoji_type"]);
            if params["reaction_type"]["emoji_type"] != "OnIt" {
                kept.fault("231001: reaction type is invalid");
            }
            kept.react(id, true);
            told(
                200,
                json!({"code": 0, "msg": "success", "data": {"reaction_id": format!("ZC{id}"),
                "operator": {"operator_id": APP, "operator_type": "app"}, "action_time": "1700000000000",
                "reaction_type": {"emoji_type": "OnIt"}}}),
            )
        }
        (&Method::GET, ["open-apis", "im", "v1", "messages", id, "reactions"]) => {
            let on = kept.reactions.lock().unwrap().iter().any(|known| known == id);
            let own = json!({"reaction_id": format!("ZC{id}"), "operator": {"operator_id": APP, "operator_type": "app"},
                "reaction_type": {"emoji_type": "OnIt"}});
            let items = if on { vec![own] } else { Vec::new() };
            told(
                200,
                json!({"code": 0, "msg": "success", "data": {"items": items, "has_more": false}}),
            )
        }
        (&Method::DELETE, ["open-apis", "im", "v1", "messages", id, "reactions", mark]) => {
            if *mark != format!("ZC{id}") {
                kept.fault(format!("231002: {mark}"));
            }
            kept.react(id, false);
            told(200, json!({"code": 0, "msg": "success"}))
        }
        (&Method::PATCH, ["open-apis", "im", "v1", "messages", id]) => {
            kept.only("patch", &params, &["content"]);
            edited(&tenant, id, &params, "interactive")
        }
        (&Method::PUT, ["open-apis", "im", "v1", "messages", id]) => {
            kept.only("put", &params, &["content", "msg_type"]);
            edited(&tenant, id, &params, "post")
        }
        _ => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, 404, "Not found")
        }
    }
}

/// What a person sees of it.
fn seen(kept: &Kept, kind: &str, content: &str) -> (String, Vec<(String, String)>) {
    let content: Value = serde_json::from_str(content).unwrap();
    let mut buttons = Vec::new();
    let text = match kind {
        "post" => {
            let part = &content["zh_cn"]["content"][0][0];
            if part["tag"] != "md" {
                kept.fault("a post without text");
            }
            part["text"].as_str().unwrap().to_owned()
        }
        "interactive" => {
            for button in content["elements"][1]["actions"].as_array().into_iter().flatten() {
                kept.only("button", button, &["tag", "text", "value", "type"]);
                let label = button["text"]["content"].as_str().unwrap();
                buttons.push((
                    label.to_owned(),
                    button["value"]["clawk"].as_str().unwrap().to_owned(),
                ));
            }
            content["elements"][0]["content"].as_str().unwrap().to_owned()
        }
        other => {
            kept.fault(format!("no such message: {other}"));
            String::new()
        }
    };
    if text.contains("<at ") {
        kept.fault("model text may ping people");
    }
    (text, buttons)
}

fn message(tenant: &Tenant, params: &Value, conversation: String, bytes: usize) -> Response {
    let kept = &tenant.kept;
    if kept.takes(Trouble::TooMany) {
        let limited = json!({"code": 99_991_400, "msg": "request trigger frequency limit"});
        return (
            axum::http::StatusCode::BAD_REQUEST,
            [("x-ogw-ratelimit-reset", "1")],
            axum::Json(limited),
        )
            .into_response();
    }
    let uuid = params["uuid"].as_str().unwrap();
    if uuid.is_empty() || uuid.len() > 50 || bytes > 30 << 10 {
        kept.fault("uuid, or too long");
        return wrong(400, 230_001, "param is invalid");
    }
    if let Some(known) = tenant.known.lock().unwrap().get(uuid) {
        return told(200, json!({"code": 0, "data": {"message_id": known}}));
    }
    if let kind @ ("image" | "file") = params["msg_type"].as_str().unwrap() {
        let content: Value = serde_json::from_str(params["content"].as_str().unwrap()).unwrap();
        kept.shared(content[format!("{kind}_key")].as_str().unwrap(), &conversation);
        return told(200, json!({"code": 0, "data": {"message_id": "om_file"}}));
    }
    let (text, buttons) = seen(
        kept,
        params["msg_type"].as_str().unwrap(),
        params["content"].as_str().unwrap(),
    );
    let id = format!("om_{}", kept.sent.lock().unwrap().len());
    tenant.known.lock().unwrap().insert(uuid.to_owned(), id.clone());
    kept.add(Sent {
        id: id.clone(),
        conversation,
        text,
        buttons,
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(500, 1, "internal error");
    }
    told(
        200,
        json!({"code": 0, "msg": "success", "data": {"message_id": id}}),
    )
}

fn edited(tenant: &Tenant, id: &str, params: &Value, kind: &str) -> Response {
    let (text, _) = seen(&tenant.kept, kind, params["content"].as_str().unwrap());
    let known = tenant
        .kept
        .sent
        .lock()
        .unwrap()
        .iter()
        .find(|sent| sent.id == id)
        .cloned();
    let Some(known) = known else {
        tenant.kept.fault("an edit of nothing");
        return wrong(400, 230_002, "no such message");
    };
    if (kind == "interactive") == known.buttons.is_empty() {
        tenant.kept.fault("a card is changed as a card");
    }
    tenant.kept.add(Sent {
        text,
        conversation: known.conversation,
        ..Sent::default()
    });
    told(200, json!({ "code": 0 }))
}

async fn socket(State(tenant): State<Shared<Tenant>>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(move |socket| talk(tenant, socket))
}

async fn talk(tenant: Shared<Tenant>, mut socket: WebSocket) {
    let mut came = tenant.came.subscribe();
    let open: Vec<Vec<u8>> = tenant.open.lock().unwrap().values().cloned().collect();
    for frame in open {
        let _ = socket.send(Message::binary(frame)).await;
    }
    loop {
        tokio::select! {
            frame = came.recv() => {
                // Too much at once: the connection ends, and the next one is told again what is open.
                let Ok(frame) = frame else { return };
                if socket.send(Message::binary(frame)).await.is_err() { return; }
            }
            heard = socket.recv() => match heard {
                Some(Ok(Message::Binary(bytes))) => acknowledged(&tenant, &bytes),
                Some(Ok(Message::Close(_))) | None | Some(Err(_)) => return,
                Some(Ok(_)) => {}
            },
        }
    }
}

fn acknowledged(tenant: &Tenant, bytes: &[u8]) {
    let fields = proto::read(bytes);
    let numbers: Vec<u64> = fields.iter().map(|(number, _)| *number).collect();
    if !(1..=4).all(|required| numbers.contains(&required)) {
        tenant.kept.fault("a required field is missing");
    }
    let payload = &fields.iter().find(|(number, _)| *number == 8).unwrap().1;
    if payload.is_empty() {
        return;
    }
    let answer: Value = serde_json::from_slice(payload).unwrap();
    tenant.kept.only("ack", &answer, &["code", "headers", "data"]);
    let headers = fields
        .iter()
        .filter(|(number, _)| *number == 5)
        .map(|(_, header)| proto::read(header));
    for header in headers {
        if header[0].1 == b"message_id" && answer["code"] == 200 {
            tenant
                .open
                .lock()
                .unwrap()
                .remove(std::str::from_utf8(&header[1].1).unwrap());
        }
    }
}

/// An event, encrypted as the vendor says.
pub(crate) fn sealed(event: &Value) -> String {
    let key: [u8; 32] = Sha256::digest(KEY.as_bytes()).into();
    let iv = [7_u8; 16];
    let text = event.to_string();
    let mut bytes = vec![0; text.len() + 16];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    let cipher = cbc::Encryptor::<Aes256>::new(&key.into(), &iv.into());
    let body = cipher.encrypt_padded::<Pkcs7>(&mut bytes, text.len()).unwrap();
    json!({"encrypt": STANDARD.encode([&iv[..], body].concat())}).to_string()
}

/// Time, nonce, signature.
pub(crate) fn signature(key: &str, at: i64, body: &str) -> String {
    super::hex(&Sha256::digest(format!("{at}nonce{key}{body}").as_bytes()))
}

pub(crate) fn event(kind: &str, id: &str, event: Value) -> Value {
    json!({"schema": "2.0", "header": {"event_id": id, "event_type": kind, "create_time": "1700000000000", "token": VERIFICATION,
        "app_id": APP, "tenant_key": "t"}, "event": event})
}

impl Platform {
    pub(crate) async fn bring(&self, event: Value) {
        let id = event["header"]["event_id"].as_str().unwrap().to_owned();
        if !self.tenant.hooked {
            let text = event.to_string();
            // In two parts, as long ones come.
            let (first, second) = text.as_bytes().split_at(text.len() / 2);
            for (seq, part) in [("0", first), ("1", second)] {
                let headers = [
                    ("type", "event"),
                    ("message_id", id.as_str()),
                    ("sum", "2"),
                    ("seq", seq),
                ];
                let frame = proto::data(&headers, part);
                if seq == "1" {
                    self.tenant.open.lock().unwrap().insert(
                        id.clone(),
                        proto::data(&[("type", "event"), ("message_id", &id)], text.as_bytes()),
                    );
                }
                let _ = self.tenant.came.send(frame);
            }
            return;
        }
        let body = sealed(&event);
        let at = seconds();
        let (at_text, signed) = (at.to_string(), signature(KEY, at, &body));
        let headers = [
            ("x-lark-request-timestamp", at_text.as_str()),
            ("x-lark-request-nonce", "nonce"),
            ("x-lark-signature", &signed),
        ];
        taken(
            &self
                .tenant
                .kept
                .channels()
                .receive_hook("chat", hook(&headers, body.as_bytes()))
                .await,
        );
    }

    pub(crate) fn message(n: u32, conversation: &str, sender: &str, kind: &str, content: &Value) -> Value {
        json!({"sender": {"sender_id": {"open_id": sender, "union_id": "on_1"}, "sender_type": "user", "tenant_key": "t"},
            "message": {"message_id": format!("om_in{n}"), "create_time": "1700000000000", "chat_id": conversation, "chat_type": "p2p",
                "message_type": kind, "content": content.to_string()}})
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.tenant.kept
    }

    fn kind(&self) -> &'static str {
        "lark"
    }

    fn transport(&self) -> &'static str {
        if self.tenant.hooked {
            "webhook"
        } else {
            "websocket"
        }
    }

    fn config(&self) -> Value {
        let base = self.tenant.base.lock().unwrap().clone();
        let mut config = json!({"base_url": base, "settings": {"app_id": APP}});
        if self.tenant.hooked {
            config["secrets"] = json!({"verification_token": "VERIFICATION", "encrypt_key": "KEY"});
        }
        config
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", SECRET), ("VERIFICATION", VERIFICATION), ("KEY", KEY)]
    }

    fn id(&self, person: u32) -> String {
        format!("ou_{person}")
    }

    fn direct(&self, person: u32) -> String {
        format!("oc_d{person}")
    }

    fn group(&self) -> String {
        "oc_group".to_owned()
    }

    fn approvals(&self) -> String {
        "oc_group:om_root".to_owned()
    }

    fn limit(&self) -> usize {
        8000
    }

    fn knows_repeats(&self) -> bool {
        true
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (chat, root) = said
                .conversation
                .split_once(':')
                .unwrap_or((&said.conversation, ""));
            let text = if said.mention {
                format!("@_user_1 {}", said.text)
            } else {
                said.text.clone()
            };
            let mut event_of = Self::message(said.n, chat, &said.sender, "text", &json!({ "text": text }));
            let message = &mut event_of["message"];
            if chat == "oc_group" {
                message["chat_type"] = json!("group");
            }
            if !root.is_empty() {
                message["root_id"] = json!(root);
                message["thread_id"] = json!("omt_1");
            }
            if said.mention {
                message["mentions"] = json!([{"key": "@_user_1", "id": {"open_id": "ou_bot"}, "name": "Bot", "tenant_key": "t"}]);
            }
            self.bring(event("im.message.receive_v1", &format!("ev{}", said.n), event_of))
                .await;
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let (chat, root) = on.conversation.split_once(':').unwrap_or((&on.conversation, ""));
            let id = format!(
                "press{}{sender}{carried}",
                self.tenant.kept.sent.lock().unwrap().len()
            );
            let pressed = json!({"operator": {"open_id": sender}, "token": "c-1", "action": {"tag": "button", "value": {"clawk": carried, "root": root}},
                "context": {"open_message_id": on.id, "open_chat_id": chat}});
            self.bring(event("card.action.trigger", &id, pressed)).await;
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
