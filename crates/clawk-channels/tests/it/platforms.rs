//! What single platforms have of their own: tokens that lapse, answers that must wait, the check of an address, pictures.

use std::sync::Arc;

use clawk_channels::{CheckGrade, HookRequest, check_channels};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_manifest::model::Channel;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use serde_json::json;

use crate::attacks::{heard, watched};
use crate::fakes::{self, Fake, Trouble};
use crate::suite::{Stage, channel, config, direct, hook, sent, until};

/// The smallest PNG there is.
pub(crate) const PICTURE: &[u8] = &[
    0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 0x0d, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0,
    0, 1, 8, 6, 0, 0, 0, 0x1f, 0x15, 0xc4, 0x89, 0, 0, 0, 0x0d, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63, 0,
    1, 0, 0, 5, 0, 1, 0x0d, 0x0a, 0x2d, 0xb4, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82,
];

async fn with_tokens() -> Vec<Arc<dyn Fake>> {
    vec![
        Arc::new(fakes::lark::start().await),
        Arc::new(fakes::dingtalk::start().await),
        Arc::new(fakes::qq::start().await),
        Arc::new(fakes::wechat::start().await),
    ]
}

#[tokio::test]
async fn a_token_that_lapses_is_asked_for_anew_and_the_message_arrives_once() {
    for fake in with_tokens().await {
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        fake.trouble(Trouble::Lapse);
        fake.says(&direct(&*fake, 1, 2, "say hello")).await;
        until(|| async { stage.report().await.delivered == 1 }).await;
        let all = fake.sent();
        assert_eq!(all.len(), 1, "{}: {all:?}", fake.kind());
        assert!(!all[0].text.contains("repeat"), "{all:?}");
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new());
    }
}

/// What `clawk init` and `clawk doctor` are told: `[code, grade]`, and all words.
async fn checked(fake: &dyn Fake, secret: Option<&str>) -> (Vec<(&'static str, CheckGrade)>, String) {
    let declared: Channel = serde_json::from_value(channel(fake, &json!({}))).unwrap();
    let secrets = fake.secrets().into_iter();
    let secrets = secrets.map(|(name, value)| match (name, secret) {
        ("TOKEN", Some(other)) => (name.to_owned(), other.to_owned()),
        _ => (name.to_owned(), value.to_owned()),
    });
    let secrets: Vec<_> = secrets.collect();
    let resolver = SecretResolver::without_store(EnvironmentSource::from_pairs(secrets.clone()));
    let now = SystemClock::default().now();
    let found = check_channels(&[(&declared, &config(fake))], &resolver, now, "").await;
    let words = format!("{found:?}");
    assert!(
        secrets.iter().all(|(_, secret)| !words.contains(secret)),
        "{words}"
    );
    let found = found.iter().map(|(_, finding)| (finding.code, finding.grade));
    let found = found.filter(|(code, _)| *code == "channel-token");
    (found.collect(), words)
}

#[tokio::test]
async fn a_wrong_app_secret_is_found_before_anything_is_written() {
    let mut all = with_tokens().await;
    all.push(Arc::new(fakes::whatsapp::start().await));
    for fake in all {
        let (found, words) = checked(&*fake, None).await;
        assert_eq!(
            found,
            [("channel-token", CheckGrade::Ok)],
            "{}: {words}",
            fake.kind()
        );
        let (found, words) = checked(&*fake, Some("an-app-secret-of-somebody-else")).await;
        assert_eq!(
            found,
            [("channel-token", CheckGrade::Fail)],
            "{}: {words}",
            fake.kind()
        );
        assert_eq!(fake.sent().len(), 0, "nobody was told anything");
    }
}

#[tokio::test]
async fn a_token_that_is_revoked_fails_the_channel_and_loses_no_answer() {
    let mut all = with_tokens().await;
    all.push(Arc::new(fakes::whatsapp::start().await));
    for fake in all {
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        fake.trouble(Trouble::WrongToken);
        fake.says(&direct(&*fake, 1, 2, "say hello")).await;
        until(|| async { stage.report().await.state.as_str() == "failed" }).await;
        let report = stage.report().await;
        assert_eq!(
            (report.queued, report.dead),
            (1, 0),
            "{}: {report:?}",
            fake.kind()
        );
        let reason = report.reason.unwrap();
        assert!(
            fake.secrets().iter().all(|(_, secret)| !reason.contains(secret)),
            "{reason}"
        );
        // Somebody mends it, and the agent is started anew.
        fake.trouble(Trouble::Nothing);
        let stage = stage.restarted().await;
        sent(&fake, 1).await;
        assert_eq!(fake.sent().len(), 1, "{:?}", fake.sent());
        stage.end().await;
    }
}

#[tokio::test]
async fn an_answer_that_the_platform_forbids_now_waits_until_the_person_writes() {
    let all: Vec<Arc<dyn Fake>> = vec![
        Arc::new(fakes::whatsapp::start().await),
        Arc::new(fakes::wechat::start().await),
        Arc::new(fakes::qq_hook::start().await),
    ];
    for fake in all {
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        fake.trouble(Trouble::Forbidden);
        fake.says(&direct(&*fake, 1, 2, "say late")).await;
        until(|| async { stage.report().await.dead == 1 }).await;
        let waits = stage.kernel.read_outbox(10).await.unwrap();
        let why = waits[0].reason.clone().unwrap();
        assert!(why.starts_with("it waits for the person's next message"), "{why}");
        fake.trouble(Trouble::Nothing);
        // It is remembered over a restart, and another's message does not release it.
        let stage = stage.restarted().await;
        fake.says(&direct(&*fake, 2, 3, "say other")).await;
        sent(&fake, 1).await;
        assert_eq!(stage.report().await.dead, 1, "{}", fake.kind());
        fake.says(&direct(&*fake, 3, 2, "say more")).await;
        sent(&fake, 3).await;
        until(|| async { stage.report().await.dead == 0 }).await;
        let texts: Vec<String> = fake
            .sent()
            .into_iter()
            .filter(|sent| sent.conversation == fake.direct(2))
            .map(|sent| sent.text)
            .collect();
        assert!(
            ["late", "more"]
                .iter()
                .all(|word| texts.iter().any(|text| text.lines().next() == Some(*word))),
            "{texts:?}"
        );
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new());
    }
}

/// Whether the platform shows the question somewhere.
fn asked(fake: &dyn Fake) -> bool {
    fake.sent()
        .iter()
        .any(|sent| sent.text.contains("May this be done?"))
}

#[tokio::test]
async fn a_question_that_the_platform_refused_is_asked_when_the_person_writes_again() {
    let all: Vec<Arc<dyn Fake>> = vec![
        Arc::new(fakes::whatsapp::start().await),
        Arc::new(fakes::wechat::start().await),
        Arc::new(fakes::qq_hook::start().await),
    ];
    for fake in all {
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        fake.trouble(Trouble::Forbidden);
        fake.says(&direct(&*fake, 1, 1, "write a line")).await;
        until(|| async { stage.kernel.pending_questions().len() == 1 }).await;
        // The platform takes nothing more in this conversation, whatever is tried.
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        assert!(!asked(&*fake), "{}: {:?}", fake.kind(), fake.sent());
        fake.trouble(Trouble::Nothing);
        fake.says(&direct(&*fake, 2, 1, "say are you there?")).await;
        until(|| async { asked(&*fake) }).await;
        assert_eq!(stage.rig.runner.runs(), []);
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_question_that_the_platform_had_no_time_for_is_sent_again_by_itself() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    fake.trouble(Trouble::TooMany);
    fake.says(&direct(&*fake, 1, 1, "write a line")).await;
    until(|| async { asked(&*fake) }).await;
    stage.end().await;
}

fn get(query: &str) -> HookRequest {
    let mut request = hook(&[], b"");
    request.method = http::Method::GET;
    request.query = query.to_owned();
    request
}

#[tokio::test]
async fn whatsapp_asks_whether_the_address_is_ours() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::whatsapp::start().await);
    let stage = Stage::new(fake, json!({})).await;
    let right = "hub.mode=subscribe&hub.verify_token=whatsapp-verify-token&hub.challenge=1158201444";
    let reply = stage.channels.receive_hook("chat", get(right)).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "1158201444"));
    assert_eq!(reply.content_type, Some("text/plain"));
    for wrong in [
        "",
        "hub.mode=subscribe&hub.verify_token=x&hub.challenge=1",
        "hub.mode=subscribe&hub.challenge=1",
        "hub.mode=other&hub.verify_token=whatsapp-verify-token&hub.challenge=1",
        "hub.mode=subscribe&hub.verify_token=whatsapp-verify-token&hub.challenge=%3Cscript%3E",
        "hub.mode=subscribe&hub.verify_token=x&hub.verify_token=whatsapp-verify-token&hub.challenge=1",
    ] {
        let reply = stage.channels.receive_hook("chat", get(wrong)).await;
        assert_eq!(reply.status, 403, "{wrong}");
    }
    stage.end().await;
}

#[tokio::test]
async fn wechat_asks_whether_the_address_is_ours_and_refuses_xml_with_entities() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::wechat::start().await);
    let stage = Stage::new(fake, json!({})).await;
    let at = fakes::seconds().to_string();
    let signed = fakes::wechat::sorted(&[fakes::wechat::TOKEN, &at, "n"]);
    let reply = stage
        .channels
        .receive_hook(
            "chat",
            get(&format!(
                "signature={signed}&timestamp={at}&nonce=n&echostr=abc123"
            )),
        )
        .await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "abc123"));
    let reply = stage
        .channels
        .receive_hook(
            "chat",
            get(&format!(
                "signature={signed}&timestamp={at}&nonce=m&echostr=abc123"
            )),
        )
        .await;
    assert_eq!(reply.status, 403);
    let bomb = "<!DOCTYPE xml [<!ENTITY a \"boom\">]><xml><FromUserName>openid2</FromUserName><MsgType>text</MsgType>\
                <Content>&a;</Content><MsgId>1</MsgId></xml>";
    let reply = stage
        .channels
        .receive_hook("chat", fakes::wechat::request(bomb))
        .await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert_eq!(stage.rig.journal.inbox(), []);
    stage.end().await;
}

#[tokio::test]
async fn a_lark_address_check_is_answered_only_with_the_token() {
    let fake = Arc::new(fakes::lark_hook::start().await);
    let stage = Stage::new(fake, json!({})).await;
    let check = |token: &str| {
        let body = json!({"type": "url_verification", "challenge": "abc", "token": token});
        hook(&[], fakes::lark::sealed(&body).as_bytes())
    };
    let reply = stage
        .channels
        .receive_hook("chat", check(fakes::lark::VERIFICATION))
        .await;
    assert_eq!(
        (reply.status, reply.body.as_str()),
        (200, "{\"challenge\":\"abc\"}")
    );
    assert_eq!(
        stage.channels.receive_hook("chat", check("another")).await.status,
        401
    );
    let plain = json!({"type": "url_verification", "challenge": "abc", "token": fakes::lark::VERIFICATION})
        .to_string();
    assert_eq!(
        stage
            .channels
            .receive_hook("chat", hook(&[], plain.as_bytes()))
            .await
            .status,
        401
    );
    stage.end().await;
}

#[tokio::test]
async fn a_qq_address_check_signs_only_what_it_verified() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::qq_hook::start().await);
    let stage = Stage::new(fake, json!({})).await;
    let at = fakes::seconds().to_string();
    let check = |token: &str, event_ts: &str, secret: &str| {
        let body = json!({"op": 13, "d": {"plain_token": token, "event_ts": event_ts}}).to_string();
        let signed = fakes::qq::signature(secret, &at, body.as_bytes());
        hook(
            &[("x-signature-timestamp", &at), ("x-signature-ed25519", &signed)],
            body.as_bytes(),
        )
    };
    let reply = stage
        .channels
        .receive_hook("chat", check("Arq0", &at, fakes::qq::SECRET))
        .await;
    let wanted = fakes::qq::signature(fakes::qq::SECRET, &at, b"Arq0");
    assert!(reply.status == 200 && reply.body.contains(&wanted), "{reply:?}");
    // Else it would sign any body for anybody.
    assert_eq!(
        stage
            .channels
            .receive_hook("chat", check("Arq0", &at, "another"))
            .await
            .status,
        401
    );
    for (token, event_ts) in [
        ("{\"op\":0}", at.as_str()),
        ("Arq0", "1"),
        ("Arq0", ""),
        ("", &at),
    ] {
        let reply = stage
            .channels
            .receive_hook("chat", check(token, event_ts, fakes::qq::SECRET))
            .await;
        assert_eq!(reply.status, 400, "{token} {event_ts}");
    }
    let bare = json!({"op": 13, "d": {"plain_token": "Arq0", "event_ts": at}}).to_string();
    assert_eq!(
        stage
            .channels
            .receive_hook("chat", hook(&[], bare.as_bytes()))
            .await
            .status,
        401
    );
    stage.end().await;
}

#[tokio::test]
async fn a_lark_message_in_a_topic_is_answered_there() {
    let fake = Arc::new(fakes::lark::start().await);
    let stage = Stage::new(Arc::clone(&fake) as Arc<dyn Fake>, json!({})).await;
    let mut message = fakes::lark::Platform::message(
        1,
        "oc_group",
        "ou_2",
        "text",
        &json!({"text": "@_user_1 say here <at user_id=\"all\"></at>"}),
    );
    message["message"]["chat_type"] = json!("group");
    message["message"]["thread_id"] = json!("omt_1");
    message["message"]["root_id"] = json!("om_root");
    message["message"]["mentions"] = json!([{"key": "@_user_1", "id": {"open_id": "ou_bot"}, "name": "Bot"}]);
    fake.bring(fakes::lark::event("im.message.receive_v1", "ev1", message))
        .await;
    let shared = Arc::clone(&fake) as Arc<dyn Fake>;
    sent(&shared, 1).await;
    let answer = &fake.sent()[0];
    assert_eq!(answer.conversation, "oc_group:om_root");
    assert!(answer.text.contains("here"), "{answer:?}");
    stage.end().await;
    assert_eq!(
        fake.faults(),
        Vec::<String>::new(),
        "nobody is named by a model's text"
    );
}

/// What the model reads of a message that `bring` brings.
async fn read_by_the_model<F: Future<Output = ()>>(fake: Arc<dyn Fake>, bring: impl FnOnce() -> F) -> String {
    let (rig, model) = watched(json!([channel(&*fake, &json!({}))]));
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let stage = Stage::on(rig, Arc::clone(&fake), json!({}), folder).await;
    bring().await;
    sent(&fake, 1).await;
    let words = heard(&model.asked()).join("\n");
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
    words
}

#[tokio::test]
async fn a_picture_is_fetched_with_the_right_to_it_and_shown() {
    let whatsapp = Arc::new(fakes::whatsapp::start().await);
    let own = Arc::clone(&whatsapp);
    let image = json!({"from": "4917000002", "id": "wamid.I", "timestamp": "1", "type": "image",
        "image": {"id": "m1", "mime_type": "image/png", "sha256": "x", "caption": "look"}});
    let words = read_by_the_model(whatsapp, || async move { own.message(image).await }).await;
    assert!(
        words.contains("look") && words.contains("shown as a picture"),
        "{words}"
    );

    let lark = Arc::new(fakes::lark::start().await);
    let own = Arc::clone(&lark);
    let image = fakes::lark::Platform::message(1, "oc_d2", "ou_2", "image", &json!({"image_key": "img_1"}));
    let image = fakes::lark::event("im.message.receive_v1", "ev1", image);
    let words = read_by_the_model(lark, || async move { own.bring(image).await }).await;
    assert!(words.contains("shown as a picture"), "{words}");

    let dingtalk = Arc::new(fakes::dingtalk::start().await);
    let own = Arc::clone(&dingtalk);
    let mut image = fakes::dingtalk::Platform::message(1, "staff2", "staff2", "");
    image["msgtype"] = json!("picture");
    image["content"] = json!({"downloadCode": "code"});
    let words = read_by_the_model(dingtalk, || async move { own.bring(image).await }).await;
    assert!(words.contains("shown as a picture"), "{words}");

    let qq = Arc::new(fakes::qq_hook::start().await);
    let own = Arc::clone(&qq);
    let image = json!({"id": "ROBOT1.0_9", "author": {"user_openid": "OPENID2"}, "content": " ", "timestamp": "2026-01-02T03:04:05+08:00",
        "attachments": [{"content_type": "image/png", "filename": "a.png", "size": 8, "url": qq.file()}]});
    let words = read_by_the_model(qq, || async move { own.bring("C2C_MESSAGE_CREATE", image).await }).await;
    assert!(words.contains("shown as a picture"), "{words}");

    let wechat = Arc::new(fakes::wechat::start().await);
    let own = Arc::clone(&wechat);
    let image = "<FromUserName>openid2</FromUserName><MsgType>image</MsgType><PicUrl>http://169.254.169.254/x</PicUrl>\
                 <MediaId>m1</MediaId><MsgId>5</MsgId>";
    let words = read_by_the_model(wechat, || async move { own.bring(image).await }).await;
    assert!(words.contains("shown as a picture"), "{words}");
}
