//! For each type that takes requests, twenty that are not its platform's: refused, and nothing of them is read.

use std::sync::Arc;

use clawk_channels::HookRequest;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::fakes::{self, Fake};
use crate::suite::{Stage, hook};

/// A request that is refused, and why.
struct Bad {
    what: String,
    request: HookRequest,
}

/// What a platform signs: headers and query for a body, a secret and a time in seconds.
type Sign = dyn Fn(&str, &str, i64) -> (Vec<(&'static str, String)>, String);

struct Case {
    fake: Arc<dyn Fake>,
    /// A genuine body.
    body: String,
    /// Another genuine body.
    other: String,
    secret: &'static str,
    sign: Box<Sign>,
    /// Its signature covers a time.
    dated: bool,
    /// Its signature covers the body.
    covers_body: bool,
}

fn build((headers, query): &(Vec<(&'static str, String)>, String), body: &[u8]) -> HookRequest {
    let headers: Vec<(&str, &str)> = headers
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let mut request = hook(&headers, body);
    request.query = query.clone();
    request
}

impl Case {
    fn bad(&self) -> Vec<Bad> {
        let now = fakes::seconds();
        let body = self.body.as_bytes();
        let good = (self.sign)(self.secret, &self.body, now);
        let mut all = Vec::new();
        let mut add = |what: &str, request: HookRequest| {
            all.push(Bad {
                what: what.to_owned(),
                request,
            });
        };
        // Each header is missing, empty, there twice, changed, shorter, longer.
        for (n, (name, value)) in good.0.iter().enumerate() {
            let with = |value: Option<String>| {
                let mut headers = good.0.clone();
                match value {
                    Some(value) => headers[n].1 = value,
                    None => {
                        headers.remove(n);
                    }
                }
                build(&(headers, good.1.clone()), body)
            };
            add(&format!("{name} missing"), with(None));
            add(&format!("{name} empty"), with(Some(String::new())));
            add(&format!("{name} longer"), with(Some(format!("{value}0"))));
            add(&format!("{name} shorter"), with(Some(value[1..].to_owned())));
            add(&format!("{name} changed"), with(Some(turned(value))));
            let mut twice = good.0.clone();
            twice.push((name, value.clone()));
            add(&format!("{name} twice"), build(&(twice, good.1.clone()), body));
        }
        for (n, pair) in good.1.split('&').enumerate().filter(|(_, pair)| signs(pair)) {
            let pairs: Vec<&str> = good.1.split('&').collect();
            let with = |pair: Option<String>| {
                let mut pairs: Vec<String> = pairs.iter().map(|pair| (*pair).to_owned()).collect();
                match pair {
                    Some(pair) => pairs[n] = pair,
                    None => {
                        pairs.remove(n);
                    }
                }
                build(&(good.0.clone(), pairs.join("&")), body)
            };
            add(&format!("{pair} missing"), with(None));
            add(&format!("{pair} twice"), with(Some(format!("{pair}&{pair}"))));
            add(&format!("{pair} changed"), with(Some(turned(pair))));
            add(&format!("{pair} longer"), with(Some(format!("{pair}0"))));
        }
        for secret in ["another secret", "", "secret", "a\u{fc}\u{df}ern"] {
            add(
                "another secret",
                build(&(self.sign)(secret, &self.body, now), body),
            );
        }
        if self.covers_body {
            let (head, tail) = self.body.split_at(self.body.len() / 2);
            for changed in [
                self.other.clone(),
                format!("{} ", self.body),
                format!("\n{}", self.body),
                self.body[1..].to_owned(),
                head.to_owned(),
                tail.to_owned(),
                self.body.repeat(2),
                self.body.to_uppercase(),
                String::new(),
                self.body.replacen('e', "E", 1),
            ] {
                add("the body changed", build(&good, changed.as_bytes()));
            }
        }
        if self.dated {
            for away in [-301, -3600, 301, 86_400, -now] {
                add(
                    "stale",
                    build(&(self.sign)(self.secret, &self.body, now + away), body),
                );
            }
        }
        let mut packed = build(&good, body);
        packed
            .headers
            .insert("content-encoding", http::HeaderValue::from_static("gzip"));
        add("gzip", packed);
        let huge = format!("{}{}", self.body, " ".repeat(5 << 20));
        add(
            "huge",
            build(&(self.sign)(self.secret, &huge, now), huge.as_bytes()),
        );
        let mut put = build(&good, body);
        put.method = http::Method::PUT;
        add("another method", put);
        all
    }

    async fn run(self) {
        let stage = Stage::new(Arc::clone(&self.fake), json!({})).await;
        let kind = self.fake.kind();
        let bad = self.bad();
        assert!(bad.len() >= 20, "{kind}: {}", bad.len());
        for Bad { what, request } in bad {
            let reply = stage.channels.receive_hook("chat", request).await;
            let expected = [401, 403, 405, 413, 415].contains(&reply.status);
            assert!(expected, "{kind}: {what}: {reply:?}");
            for (_, secret) in self.fake.secrets() {
                assert!(!reply.body.contains(secret), "{kind}: {what}");
            }
        }
        // Nothing of them was read: neither taken nor refused as a message, and nothing sent.
        assert_eq!(stage.rig.journal.inbox(), [], "{kind}");
        let report = stage.report().await;
        assert_eq!(
            (report.accepted, report.refused, report.ignored),
            (0, 0, 0),
            "{kind}: {report:?}"
        );
        assert_eq!(self.fake.sent().len(), 0, "{kind}");
        // The genuine one is taken, at its own path alone.
        let good = (self.sign)(self.secret, &self.body, fakes::seconds());
        let request = build(&good, self.body.as_bytes());
        assert_eq!(
            stage.channels.receive_hook("other", request.clone()).await.status,
            404,
            "{kind}"
        );
        let reply = stage.channels.receive_hook("chat", request.clone()).await;
        assert!((200..300).contains(&reply.status), "{kind}: {reply:?}");
        assert_eq!(stage.rig.journal.inbox().len(), 1, "{kind}: {reply:?}");
        // Replayed, it is answered and is no second turn.
        let reply = stage.channels.receive_hook("chat", request).await;
        assert!((200..300).contains(&reply.status), "{kind}: {reply:?}");
        assert_eq!(stage.rig.journal.inbox().len(), 1, "{kind}");
        stage.end().await;
    }
}

/// The last letter or digit is another.
fn turned(text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let at = chars.iter().rposition(|c| *c != '=').unwrap();
    // In the middle of a Base64 text, where each bit counts.
    let at = at.saturating_sub(2);
    chars[at] = match chars[at] {
        '0' => '1',
        _ => '0',
    };
    chars.into_iter().collect()
}

/// Parts of the query that are signed.
fn signs(pair: &str) -> bool {
    ["msg_signature=", "timestamp=", "nonce="]
        .iter()
        .any(|name| pair.starts_with(name))
}

fn hmac(secret: &str, text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

#[tokio::test]
async fn whatsapp_requests_that_are_not_whatsapps_are_refused() {
    let body = |text: &str| {
        let value = json!({"messaging_product": "whatsapp", "metadata": {"phone_number_id": "10001"}, "contacts": [],
            "messages": [{"from": "4917000002", "id": "wamid.1", "timestamp": "1", "type": "text", "text": {"body": text}}]});
        json!({"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [{"field": "messages", "value": value}]}]}).to_string()
    };
    Case {
        fake: Arc::new(fakes::whatsapp::start().await),
        body: body("say no"),
        other: body("say yes"),
        secret: "whatsapp-app-secret",
        sign: Box::new(|secret, body, _| {
            let signed = fakes::whatsapp::signature(secret, body.as_bytes());
            (vec![("x-hub-signature-256", signed)], String::new())
        }),
        dated: false,
        covers_body: true,
    }
    .run()
    .await;
}

#[tokio::test]
async fn line_requests_that_are_not_lines_are_refused() {
    use base64::Engine as _;
    let body = |text: &str| {
        json!({"destination": "Ubot", "events": [{"type": "message", "mode": "active", "webhookEventId": "W1",
            "source": {"type": "user", "userId": "Uperson2"}, "message": {"id": "1", "type": "text", "text": text}}]})
        .to_string()
    };
    Case {
        fake: Arc::new(fakes::line::start().await),
        body: body("say no"),
        other: body("say yes"),
        secret: "line-channel-secret",
        sign: Box::new(|secret, body, _| {
            let signed = base64::engine::general_purpose::STANDARD.encode(hmac(secret, body.as_bytes()));
            (vec![("x-line-signature", signed)], String::new())
        }),
        dated: false,
        covers_body: true,
    }
    .run()
    .await;
}

#[tokio::test]
async fn telegram_requests_without_its_secret_are_refused() {
    let fake = fakes::telegram_hook::start().await;
    let secrets = fake.secrets();
    let secret = secrets.iter().find(|(name, _)| *name != "TOKEN").unwrap().1;
    let body = json!({"update_id": 5, "message": {"message_id": 5, "from": {"id": 102, "first_name": "ann"},
        "chat": {"id": 9001, "type": "private"}, "text": "say hello"}});
    Case {
        fake: Arc::new(fake),
        body: body.to_string(),
        other: String::new(),
        secret,
        sign: Box::new(|secret, _, _| {
            (
                vec![(
                    "x-telegram-bot-api-secret-token",
                    secret.replace(|c: char| !c.is_ascii(), "?"),
                )],
                String::new(),
            )
        }),
        dated: false,
        // The secret is all there is: a body is as good as its sender.
        covers_body: false,
    }
    .run_with_more()
    .await;
}

impl Case {
    /// More wrong secrets, where nothing else is signed.
    async fn run_with_more(self) {
        let stage = Stage::new(Arc::clone(&self.fake), json!({})).await;
        for n in 0..20 {
            let guess = format!("{}{n}", self.secret.get(..n % 5).unwrap_or_default());
            let reply = stage
                .channels
                .receive_hook(
                    "chat",
                    build(&(self.sign)(&guess, &self.body, 0), self.body.as_bytes()),
                )
                .await;
            assert_eq!(reply.status, 401, "{guess}");
        }
        for (what, change) in [("missing", None), ("empty", Some("")), ("another", Some("x"))] {
            let headers = change
                .map(|value| vec![("x-telegram-bot-api-secret-token", value.to_owned())])
                .unwrap_or_default();
            let reply = stage
                .channels
                .receive_hook("chat", build(&(headers, String::new()), self.body.as_bytes()))
                .await;
            assert_eq!(reply.status, 401, "{what}");
        }
        assert_eq!(stage.rig.journal.inbox(), []);
        let good = (self.sign)(self.secret, &self.body, 0);
        let reply = stage
            .channels
            .receive_hook("chat", build(&good, self.body.as_bytes()))
            .await;
        assert_eq!(reply.status, 200);
        assert_eq!(stage.rig.journal.inbox().len(), 1);
        stage.end().await;
    }
}

#[tokio::test]
async fn slack_requests_that_are_not_slacks_are_refused_each_of_twenty() {
    let body = |text: &str| {
        json!({"type": "event_callback", "event_id": "Ev1", "team_id": "T1", "event": {"type": "message", "user": "U2", "channel": "D2",
            "channel_type": "im", "ts": "1.1", "text": text}})
        .to_string()
    };
    let fake = fakes::slack_hook::start().await;
    let secret = fake
        .secrets()
        .into_iter()
        .find(|(name, _)| *name == "SIGNING")
        .unwrap()
        .1;
    Case {
        fake: Arc::new(fake),
        body: body("say no"),
        other: body("say yes"),
        secret,
        sign: Box::new(|secret, body, at| {
            let at = at.to_string();
            let signed = fakes::slack::signature(secret, &at, body.as_bytes());
            (
                vec![("x-slack-request-timestamp", at), ("x-slack-signature", signed)],
                String::new(),
            )
        }),
        dated: true,
        covers_body: true,
    }
    .run()
    .await;
}

#[tokio::test]
async fn lark_requests_that_are_not_larks_are_refused() {
    let body = |text: &str| {
        let message = fakes::lark::Platform::message(1, "oc_d2", "ou_2", "text", &json!({ "text": text }));
        fakes::lark::sealed(&fakes::lark::event("im.message.receive_v1", "ev1", message))
    };
    Case {
        fake: Arc::new(fakes::lark_hook::start().await),
        body: body("say no"),
        other: body("say yes"),
        secret: fakes::lark::KEY,
        sign: Box::new(|secret, body, at| {
            let signed = fakes::lark::signature(secret, at, body);
            let headers = vec![
                ("x-lark-request-timestamp", at.to_string()),
                ("x-lark-request-nonce", "nonce".to_owned()),
                ("x-lark-signature", signed),
            ];
            (headers, String::new())
        }),
        dated: true,
        covers_body: true,
    }
    .run()
    .await;
}

#[tokio::test]
async fn a_lark_event_of_another_app_or_token_is_refused() {
    let fake = Arc::new(fakes::lark_hook::start().await);
    let stage = Stage::new(fake, json!({})).await;
    for (pointer, value) in [("/header/token", "x"), ("/header/app_id", "cli_2")] {
        let message = fakes::lark::Platform::message(1, "oc_d2", "ou_2", "text", &json!({"text": "say no"}));
        let mut event = fakes::lark::event("im.message.receive_v1", "ev1", message);
        *event.pointer_mut(pointer).unwrap() = Value::from(value);
        let body = fakes::lark::sealed(&event);
        let at = fakes::seconds();
        let (at_text, signed) = (
            at.to_string(),
            fakes::lark::signature(fakes::lark::KEY, at, &body),
        );
        let headers = [
            ("x-lark-request-timestamp", at_text.as_str()),
            ("x-lark-request-nonce", "nonce"),
            ("x-lark-signature", &signed),
        ];
        let reply = stage
            .channels
            .receive_hook("chat", hook(&headers, body.as_bytes()))
            .await;
        assert_eq!(reply.status, 401, "{pointer}");
    }
    assert_eq!(stage.rig.journal.inbox(), []);
    stage.end().await;
}

#[tokio::test]
async fn dingtalk_requests_that_are_not_dingtalks_are_refused() {
    let body = fakes::dingtalk::Platform::message(1, "staff2", "staff2", "say no").to_string();
    Case {
        fake: Arc::new(fakes::dingtalk_hook::start().await),
        other: body.replace("say no", "say yes"),
        body,
        secret: fakes::dingtalk::SECRET,
        sign: Box::new(|secret, _, at| {
            let at = (at * 1000).to_string();
            let signed = fakes::dingtalk::sign(secret, &at);
            (vec![("timestamp", at), ("sign", signed)], String::new())
        }),
        dated: true,
        // The vendor's signature leaves it out: the id of the message is the guard.
        covers_body: false,
    }
    .run()
    .await;
}

#[tokio::test]
async fn qq_requests_that_are_not_qqs_are_refused() {
    let body = |text: &str| {
        json!({"op": 0, "id": "EVENT:1", "s": 1, "t": "C2C_MESSAGE_CREATE", "d": {"id": "ROBOT1.0_1", "author": {"user_openid": "OPENID2"},
            "content": text, "timestamp": "2026-01-02T03:04:05+08:00"}})
        .to_string()
    };
    Case {
        fake: Arc::new(fakes::qq_hook::start().await),
        body: body("say no"),
        other: body("say yes"),
        secret: fakes::qq::SECRET,
        sign: Box::new(|secret, body, at| {
            let at = at.to_string();
            let secret = if secret.is_empty() { "x" } else { secret };
            let signed = fakes::qq::signature(secret, &at, body.as_bytes());
            (
                vec![("x-signature-timestamp", at), ("x-signature-ed25519", signed)],
                String::new(),
            )
        }),
        dated: true,
        covers_body: true,
    }
    .run()
    .await;
}

#[tokio::test]
async fn wechat_requests_that_are_not_wechats_are_refused() {
    let body = |text: &str, app: &str| {
        let xml = format!(
            "<xml><FromUserName>openid2</FromUserName><MsgType>text</MsgType><Content>{text}</Content><MsgId>1</MsgId></xml>"
        );
        let sealed = fakes::wechat::encrypted(&xml, app);
        format!("<xml><ToUserName>gh_1</ToUserName><Encrypt>{sealed}</Encrypt></xml>")
    };
    let sign = |secret: &str, body: &str, at: i64| {
        let sealed = body
            .split("<Encrypt>")
            .nth(1)
            .and_then(|rest| rest.split("</Encrypt>").next());
        let at = at.to_string();
        let signed = fakes::wechat::sorted(&[secret, &at, "n", sealed.unwrap_or_default()]);
        let query = format!("timestamp={at}&nonce=n&openid=o&encrypt_type=aes&msg_signature={signed}");
        (Vec::new(), query)
    };
    let fake = Arc::new(fakes::wechat::start().await);
    // Of another app, though everything is signed; and a plain message where a key is set.
    let stage = Stage::new(Arc::clone(&fake) as Arc<dyn Fake>, json!({})).await;
    let now = fakes::seconds();
    let foreign = body("say no", "wx2");
    let reply = stage
        .channels
        .receive_hook(
            "chat",
            build(&sign(fakes::wechat::TOKEN, &foreign, now), foreign.as_bytes()),
        )
        .await;
    assert_eq!(reply.status, 401);
    let plain = "<xml><FromUserName>openid2</FromUserName><MsgType>text</MsgType><Content>say no</Content><MsgId>1</MsgId></xml>";
    let at = now.to_string();
    let signed = fakes::wechat::sorted(&[fakes::wechat::TOKEN, &at, "n"]);
    let query = format!("signature={signed}&timestamp={at}&nonce=n&openid=o");
    let reply = stage
        .channels
        .receive_hook("chat", build(&(Vec::new(), query), plain.as_bytes()))
        .await;
    assert_eq!(reply.status, 401);
    assert_eq!(stage.rig.journal.inbox(), []);
    stage.end().await;
    Case {
        fake,
        body: body("say no", fakes::wechat::APP),
        other: body("say yes", fakes::wechat::APP),
        secret: fakes::wechat::TOKEN,
        sign: Box::new(sign),
        dated: true,
        covers_body: false,
    }
    .run()
    .await;
}
