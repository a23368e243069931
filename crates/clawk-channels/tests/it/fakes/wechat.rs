//! An official account's API and messages in the encrypted mode, as far as a channel uses them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aes::Aes256;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use cbc::cipher::block_padding::NoPadding;
use cbc::cipher::{BlockModeEncrypt as _, KeyIvInit as _};
use clawk_channels::HookRequest;
use clawk_kernel::ports::BoxFuture;
use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};

use super::{Fake, Kept, Made, Said, Sent, Shared, Trouble, seconds, serve, told};
use crate::suite::{hook, taken};

const SECRET: &str = "wechat-app-secret";
pub(crate) const TOKEN: &str = "wechat-token";
pub(crate) const APP: &str = "wx1";
const KEY: [u8; 32] = [5; 32];

#[derive(Debug, Default)]
struct Account {
    kept: Kept,
    made: Made,
    base: Mutex<String>,
}

pub(crate) struct Platform {
    account: Shared<Account>,
    key: &'static str,
}

pub(crate) async fn start() -> Platform {
    let account = Arc::new(Account::default());
    let router = Router::new()
        .route("/cgi-bin/{*path}", axum::routing::any(call))
        .with_state(Arc::clone(&account));
    *account.base.lock().unwrap() = serve(router).await;
    let key = STANDARD_NO_PAD.encode(KEY);
    Platform {
        account,
        key: Box::leak(key.into_boxed_str()),
    }
}

fn wrong(code: i64, message: &str) -> Response {
    told(200, json!({"errcode": code, "errmsg": message}))
}

async fn call(
    State(account): State<Shared<Account>>,
    Path(path): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: axum::http::HeaderMap,
    body: Bytes,
) -> Response {
    let kept = &account.kept;
    let params: Value = serde_json::from_slice(&body).unwrap_or_default();
    if path == "stable_token" {
        kept.only(
            "token",
            &params,
            &["grant_type", "appid", "secret", "force_refresh"],
        );
        if params["secret"] != SECRET || params["appid"] != APP || kept.takes(Trouble::WrongToken) {
            return wrong(40_125, "invalid appsecret");
        }
        return told(
            200,
            json!({"access_token": account.made.now(), "expires_in": 7200}),
        );
    }
    let query = query.unwrap_or_default();
    let given = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("access_token="))
        .unwrap_or_default();
    if !account.made.counts(kept, given) {
        return wrong(42_001, "access_token expired");
    }
    match (method, path.as_str()) {
        (Method::POST, "media/upload") => {
            assert!(query.ends_with("&type=image"), "{query}");
            let parts = super::form(&headers, &body);
            super::exactly(kept, &parts, &["media"]);
            let id = kept.upload(parts[0].file.as_deref().unwrap(), parts[0].data.clone());
            told(200, json!({"type": "image", "media_id": id, "created_at": 1}))
        }
        (Method::GET, "media/get") => super::super::platforms::PICTURE.into_response(),
        (Method::POST, "message/custom/typing") => {
            kept.only("typing", &params, &["touser", "command"]);
            kept.typings.fetch_add(1, Ordering::SeqCst);
            wrong(0, "ok")
        }
        (Method::POST, "message/custom/send") => {
            if String::from_utf8_lossy(&body).contains("\\u") {
                kept.fault("escaped text is shown as it is");
            }
            message(&account, &params)
        }
        (method, path) => {
            kept.fault(format!("no such route: {method} {path}"));
            wrong(40_066, "invalid url")
        }
    }
}

fn message(account: &Account, params: &Value) -> Response {
    let kept = &account.kept;
    let kind = params["msgtype"].as_str().unwrap();
    kept.only("message", params, &["touser", "msgtype", kind]);
    if kept.takes(Trouble::TooMany) {
        // The limit's own wait is a minute: the busy answer is the short one.
        return wrong(-1, "system error");
    }
    if kept.takes(Trouble::Forbidden) {
        return wrong(45_015, "response out of time limit or subscription is canceled");
    }
    if kind == "image" {
        kept.shared(
            params["image"]["media_id"].as_str().unwrap(),
            params["touser"].as_str().unwrap(),
        );
        return wrong(0, "ok");
    }
    let mut buttons = Vec::new();
    let text = match kind {
        "text" => params["text"]["content"].as_str().unwrap(),
        "msgmenu" => {
            kept.only(
                "msgmenu",
                &params["msgmenu"],
                &["head_content", "list", "tail_content"],
            );
            for item in params["msgmenu"]["list"].as_array().unwrap() {
                buttons.push((
                    item["content"].as_str().unwrap().to_owned(),
                    item["id"].as_str().unwrap().to_owned(),
                ));
            }
            params["msgmenu"]["head_content"].as_str().unwrap()
        }
        other => {
            kept.fault(format!("no such message: {other}"));
            return wrong(40_008, "invalid message type");
        }
    };
    if text.is_empty() || text.len() > 2048 {
        kept.fault("45002");
        return wrong(45_002, "content size out of limit");
    }
    kept.add(Sent {
        id: format!("s{}", kept.sent.lock().unwrap().len()),
        conversation: params["touser"].as_str().unwrap().to_owned(),
        text: text.to_owned(),
        buttons,
        files: Vec::new(),
    });
    if kept.takes(Trouble::TakenAndBroken) {
        return told(502, json!({}));
    }
    wrong(0, "ok")
}

/// SHA-1 of the sorted parts.
pub(crate) fn sorted(parts: &[&str]) -> String {
    let mut parts = parts.to_vec();
    parts.sort_unstable();
    super::hex(&Sha1::digest(parts.concat().as_bytes()))
}

/// Noise, length, text, app: padded to a whole key.
pub(crate) fn encrypted(text: &str, app: &str) -> String {
    let mut bytes = [
        b"0123456789abcdef".as_slice(),
        &u32::try_from(text.len()).unwrap().to_be_bytes(),
        text.as_bytes(),
        app.as_bytes(),
    ]
    .concat();
    let pad = 32 - bytes.len() % 32;
    bytes.extend(std::iter::repeat_n(u8::try_from(pad).unwrap(), pad));
    let iv: [u8; 16] = KEY[..16].try_into().unwrap();
    let length = bytes.len();
    let cipher = cbc::Encryptor::<Aes256>::new(&KEY.into(), &iv.into());
    cipher.encrypt_padded::<NoPadding>(&mut bytes, length).unwrap();
    STANDARD.encode(bytes)
}

/// A request with this XML inside.
pub(crate) fn request(xml: &str) -> HookRequest {
    let sealed = encrypted(xml, APP);
    let at = seconds().to_string();
    let signed = sorted(&[TOKEN, &at, "n", &sealed]);
    let body = format!(
        "<xml><ToUserName><![CDATA[gh_1]]></ToUserName><Encrypt><![CDATA[{sealed}]]></Encrypt></xml>"
    );
    let mut request = hook(&[("content-type", "text/xml")], body.as_bytes());
    request.query = format!(
        "signature={}&timestamp={at}&nonce=n&openid=o&encrypt_type=aes&msg_signature={signed}",
        sorted(&[TOKEN, &at, "n"])
    );
    request
}

impl Platform {
    pub(crate) async fn bring(&self, members: &str) {
        let xml = format!(
            "<xml><ToUserName><![CDATA[gh_1]]></ToUserName><CreateTime>1700000000</CreateTime>{members}</xml>"
        );
        let reply = self
            .account
            .kept
            .channels()
            .receive_hook("chat", request(&xml))
            .await;
        taken(&reply);
        assert_eq!(reply.body, "success");
    }
}

impl Fake for Platform {
    fn kept(&self) -> &Kept {
        &self.account.kept
    }

    fn kind(&self) -> &'static str {
        "wechat"
    }

    fn transport(&self) -> &'static str {
        "webhook"
    }

    fn config(&self) -> Value {
        json!({"base_url": self.account.base.lock().unwrap().clone(), "settings": {"app_id": APP},
            "secrets": {"token": "VERIFY", "encoding_aes_key": "KEY"}})
    }

    fn secrets(&self) -> Vec<(&'static str, &'static str)> {
        vec![("TOKEN", SECRET), ("VERIFY", TOKEN), ("KEY", self.key)]
    }

    fn id(&self, person: u32) -> String {
        format!("openid{person}")
    }

    fn direct(&self, person: u32) -> String {
        self.id(person)
    }

    fn group(&self) -> String {
        String::new()
    }

    fn has_groups(&self) -> bool {
        false
    }

    fn approvals(&self) -> String {
        self.id(1)
    }

    fn limit(&self) -> usize {
        2048
    }

    fn knows_repeats(&self) -> bool {
        false
    }

    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.bring(&format!(
                "<FromUserName><![CDATA[{}]]></FromUserName><MsgType><![CDATA[text]]></MsgType><Content><![CDATA[{}]]></Content><MsgId>{}</MsgId>",
                said.sender,
                said.text,
                7_000_000_000_000_000_000_u64 + u64::from(said.n)
            ))
            .await;
        })
    }

    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            // Nobody else is in the conversation.
            if on.conversation == sender {
                self.bring(&format!(
                    "<FromUserName><![CDATA[{sender}]]></FromUserName><MsgType><![CDATA[text]]></MsgType><Content><![CDATA[Approve]]></Content>\
                     <MsgId>1</MsgId><bizmsgmenuid><![CDATA[{carried}]]></bizmsgmenuid>"
                ))
                .await;
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        })
    }
}
