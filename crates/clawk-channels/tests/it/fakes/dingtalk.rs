//! The robot's API, Stream and callbacks, as far as a channel uses them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_kernel::ports::BoxFuture;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::broadcast;

use super::{Fake, Kept, Made, Said, Sent, Shared, Trouble, seconds, serve, told};
use crate::suite::{hook, taken};

pub(crate) const SECRET: &str = "dingtalk-client-secret";
const CLIENT: &str = "ding1";
const GROUP: &str = "group:cidG";

#[derive(Debug)]
struct Org {
    kept: Kept,
    hooked: bool,
    made: Made,
    base: Mutex<String>,
    /// Frames that were not acknowledged.
    open: Mutex<BTreeMap<String, Value>>,
    came: broadcast::Sender<Value>,
}

pub(crate) struct Platform {
    org: Shared<Org>,
}

pub(crate) async fn start() -> Platform {
    with(false).await
}

pub(crate) async fn with(hooked: bool) -> Platform {
    let org = Arc::new(Org {
        kept: Kept::default(),
        hooked,
        made: Made::default(),
        base: Mutex::default(),
        open: Mutex::default(),
        came: broadcast::channel(4096).0,
    });
    let router = Router::new()
        .route("/connect", axum::routing::get(socket))
        .route("/file", axum::routing::get(file))
        .route("/media/upload", axum::routing::post(upload))
        .route("/v1.0/{*path}", axum::routing::any(call))
        .with_state(Arc::clone(&org));
    *org.base.lock().unwrap() = serve(router).await;
    Platform { org }
}

fn wrong(status: u16, code: &str, message: &str) -> Response {
    told(
        status,
        json!({"code": code, "message": message, "requestid": "r"}),
    )
}

async fn upload(
    State(org): State<Shared<Org>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if query != Some(format!("access_token={}&type=file", org.made.now())) {
        return told(200, json!({"errcode": 40_014, "errmsg": "invalid access_token"}));
    }
    let parts = super::form(&headers, &body);
    super::exactly(&org.kept, &parts, &["media"]);
    let id = org
        .kept
        .upload(parts[0].file.as_deref().unwrap(), parts[0].data.clone());
    told(
        200,
        json!({"errcode": 0, "errmsg": "ok", "media_id": id, "type": "file"}),
    )
}

async fn file(State(org): State<Shared<Org>>, headers: HeaderMap) -> Response {
    if headers.contains_key("x-acs-dingtalk-access-token") {
        org.kept.fault("the token went to where a file is");
    }
    super::super::platforms::PICTURE.into_response()
}

async fn call(
    State(org): State<Shared<Org>>,
    Path(path): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &org.kept;
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    match path.as_str() {
        "oauth2/accessToken" => {
            kept.only("token", &params, &["appKey", "appSecret"]);
            if params != json!({"appKey": CLIENT, "appSecret": SECRET}) || kept.takes(Trouble::WrongToken) {
                return wrong(400, "invalidClientIdOrSecret", "无效的clientId或者clientSecret");
            }
            return told(200, json!({"accessToken": org.made.now(), "expireIn": 7200}));
        }
        "gateway/connections/open" => {
            kept.only(
                "open",
                &params,
                &["clientId", "clientSecret", "subscriptions", "ua", "localIp"],
            );
            if params["clientSecret"] != SECRET {
                return wrong(401, "authFailed", "鉴权失败");
            }
            let base = org.base.lock().unwrap().replace("http://", "ws://");
            return told(
                200,
                json!({"endpoint": format!("{base}/connect"), "ticket": "a+b/c="}),
            );
        }
        _ => {}
    }
    let given = headers
        .get("x-acs-dingtalk-access-token")
        .and_then(|value| value.to_str().ok());
    if !org.made.counts(kept, given.unwrap_or_default()) {
        return wrong(401, "InvalidAuthentication", "不合法的access_token");
    }
    if headers.contains_key("authorization") {
        kept.fault("Authorization is another platform's");
    }
    match (method, path.as_str()) {
        (Method::POST, "robot/messageFiles/download") => {
            kept.only("download", &params, &["downloadCode", "robotCode"]);
            told(
                200,
                json!({"downloadUrl": format!("{}/file", org.base.lock().unwrap())}),
            )
        }
        (Method::POST, "robot/oToMessages/batchSend") => {
            kept.only(
                "batchSend",
                &params,
                &["robotCode", "userIds", "msgKey", "msgParam"],
            );
            let to = params["userIds"][0].as_str().unwrap().to_owned();
            message(&org, &params, to)
        }
        (Method::POST, "robot/groupMessages/send") => {
            kept.only(
                "groupMessages",
                &params,
                &["robotCode", "openConversationId", "msgKey", "msgParam"],
            );
            let to = format!("group:{}", params["openConversationId"].as_str().unwrap());
            message(&org, &params, to)
        }
        (method, path) => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(404, "InvalidAction.NotFound", "Specified api is not found")
        }
    }
}

fn message(org: &Org, params: &Value, conversation: String) -> Response {
    let kept = &org.kept;
    if kept.takes(Trouble::TooMany) {
        return wrong(
            403,
            "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi",
            "请求被限流",
        );
    }
    let param: Value = serde_json::from_str(params["msgParam"].as_str().unwrap()).unwrap();
    if params["msgKey"] == "sampleFile" {
        kept.only("msgParam", &param, &["mediaId", "fileName", "fileType"]);
        kept.shared(param["mediaId"].as_str().unwrap(), &conversation);
        return told(
            200,
            json!({"processQueryKey": "qf", "invalidStaffIdList": [], "flowControlledStaffIdList": []}),
        );
    }
    kept.only("msgParam", &param, &["title", "text"]);
    let text = param["text"].as_str().unwrap();
    if text.is_empty() || text.chars().count() > 5000 || param["title"].as_str().unwrap().is_empty() {
        kept.fault("msgParam");
        return wrong(400, "invalidParameter.param.error", "msgParam");
    }
    if params["robotCode"] != CLIENT || params["msgKey"] != "sampleMarkdown" {
        kept.fault("robotCode, or msgKey");
    }
    let id = format!("q{}", kept.sent.lock().unwrap().len());
    kept.add(Sent {
        id: id.clone(),
        conversation,
        text: text.to_owned(),
        buttons: Vec::new(),
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return wrong(
            500,
            "ServiceUnavailable",
            "The request has failed due to a temporary failure of the server",
        );
    }
    told(
        200,
        json!({"processQueryKey": id, "invalidStaffIdList": [], "flowControlledStaffIdList": []}),
    )
}

async fn socket(
    State(org): State<Shared<Org>>,
    RawQuery(query): RawQuery,
    upgrade: WebSocketUpgrade,
) -> Response {
    if query.as_deref() != Some("ticket=a%2Bb%2Fc%3D") {
        org.kept.fault(format!("the ticket: {query:?}"));
        return StatusCode::UNAUTHORIZED.into_response();
    }
    upgrade.on_upgrade(move |socket| talk(org, socket))
}

async fn talk(org: Shared<Org>, mut socket: WebSocket) {
    let mut came = org.came.subscribe();
    let ping = json!({"specVersion": "1.0", "type": "SYSTEM", "headers": {"topic": "ping", "messageId": "ping1"}, "data": "{\"opaque\":\"o\"}"});
    let _ = socket.send(Message::text(ping.to_string())).await;
    let open: Vec<Value> = org.open.lock().unwrap().values().cloned().collect();
    for frame in open {
        let _ = socket.send(Message::text(frame.to_string())).await;
    }
    loop {
        tokio::select! {
            frame = came.recv() => {
                // Too much at once: the connection ends, and the next one is told again what is open.
                let Ok(frame) = frame else { return };
                if socket.send(Message::text(frame.to_string())).await.is_err() { return; }
            }
            heard = socket.recv() => match heard {
                Some(Ok(Message::Text(text))) => {
                    let ack: Value = serde_json::from_str(text.as_str()).unwrap();
                    org.kept.only("ack", &ack, &["code", "headers", "message", "data"]);
                    let id = ack["headers"]["messageId"].as_str().unwrap();
                    let data = ack["data"].as_str().unwrap();
                    if id == "ping1" && data != "{\"opaque\":\"o\"}" {
                        org.kept.fault("a ping's data comes back");
                    }
                    org.open.lock().unwrap().remove(id);
                }
                Some(Ok(Message::Close(_))) | None | Some(Err(_)) => return,
                Some(Ok(_)) => {}
            },
        }
    }
}

/// The signature, which does not cover the body.
pub(crate) fn sign(secret: &str, at_ms: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(format!("{at_ms}\n{secret}").as_bytes());
    STANDARD.encode(mac.finalize().into_bytes())
}

impl Platform {
    pub(crate) async fn bring(&self, message: Value) {
        let id = format!("push-{}", message["msgId"].as_str().unwrap());
        if !self.org.hooked {
            let frame = json!({"specVersion": "1.0", "type": "CALLBACK", "headers": {"topic": "/v1.0/im/bot/messages/get", "messageId": id,
                "contentType": "application/json", "time": "1"}, "data": message.to_string()});
            self.org.open.lock().unwrap().insert(id, frame.clone());
            let _ = self.org.came.send(frame);
            return;
        }
        let at = (seconds() * 1000).to_string();
        let signed = sign(SECRET, &at);
        let request = hook(
            &[("timestamp", &at), ("sign", &signed)],
            message.to_string().as_bytes(),
        );
        taken(&self.org.kept.channels().receive_hook("chat", request).await);
    }

    pub(crate) fn message(n: u32, conversation: &str, sender: &str, text: &str) -> Value {
        let direct = !conversation.starts_with("group:");
        json!({"conversationId": conversation.trim_start_matches("group:"), "conversationType": if direct { "1" } else { "2" },
            "msgId": format!("msg{n}"), "senderId": "$:LWCP_v1:$x", "senderStaffId": sender, "senderNick": "ann", "senderCorpId": "c",
            "isAdmin": true, "chatbotUserId": "$:bot", "createAt": 1, "robotCode": CLIENT,
            "sessionWebhook": "http://127.0.0.1:9/stolen", "sessionWebhookExpiredTime": 1, "msgtype": "text", "text": {"content": text}})
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.org.kept
    }

    fn kind(&self) -> &'static str {
        "dingtalk"
    }

    fn transport(&self) -> &'static str {
        if self.org.hooked { "webhook" } else { "websocket" }
    }

    fn config(&self) -> Value {
        json!({"base_url": self.org.base.lock().unwrap().clone(), "settings": {"client_id": CLIENT}})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", SECRET)]
    }

    fn id(&self, person: u32) -> String {
        format!("staff{person}")
    }

    fn direct(&self, person: u32) -> String {
        self.id(person)
    }

    fn group(&self) -> String {
        GROUP.to_owned()
    }

    fn approvals(&self) -> String {
        GROUP.to_owned()
    }

    fn has_buttons(&self) -> bool {
        false
    }

    fn limit(&self) -> usize {
        5000
    }

    fn knows_repeats(&self) -> bool {
        false
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut message = Self::message(
                said.n,
                &said.conversation,
                &said.sender,
                &format!(" {}", said.text),
            );
            message["isInAtList"] = json!(said.mention);
            self.bring(message).await;
        })
    }

    fn press<'a>(&'a self, _carried: &'a str, _sender: &'a str, _on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(tokio::time::sleep(Duration::ZERO))
    }
}
