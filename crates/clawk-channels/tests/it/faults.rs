//! What platforms really do: sessions that lapse, requests that come before the bot knows itself, answers that are spoken to somebody,
//! people who are written to by their ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_kernel::ports::Delivery;
use clawk_proto::MessageId;
use serde_json::{Value, json};

use crate::fakes::discord::Resuming;
use crate::fakes::{self, Fake, Said, Sent};
use crate::suite::{Stage, asking, channel, config, direct, hook, parrot, sent, start, taken, until};

fn code(asked: &Sent) -> String {
    asked.text.split("no ").last().unwrap().chars().take(8).collect()
}

async fn asked(fake: &dyn Fake) -> Sent {
    let is = |sent: &Sent| sent.text.contains("May this be done?");
    until(|| async { fake.sent().iter().any(is) }).await;
    fake.sent().into_iter().find(is).unwrap()
}

#[tokio::test]
async fn a_discord_session_that_lapsed_is_begun_anew() {
    for resuming in [Resuming::Refused, Resuming::Later] {
        let fake = Arc::new(fakes::discord::start().await);
        let shared = Arc::clone(&fake) as Arc<dyn Fake>;
        let stage = Stage::new(Arc::clone(&shared), json!({})).await;
        fake.says(&direct(&*fake, 1, 2, "say hello")).await;
        sent(&shared, 1).await;
        until(|| async { stage.report().await.queued == 0 }).await;
        assert_eq!(fake.sessions(), (1, 0));
        fake.resuming(resuming);
        // The stored session is dead, in this process and in the next.
        let stage = stage.reconnected().await;
        let (begun, resumes) = fake.sessions();
        assert_eq!(begun, 2, "{resuming:?}");
        assert!((1..=4).contains(&resumes), "{resuming:?}: {resumes}");
        fake.says(&direct(&*fake, 2, 2, "say again")).await;
        sent(&shared, 2).await;
        fake.resuming(Resuming::Works);
        let stage = stage.reconnected().await;
        assert_eq!(
            fake.sessions(),
            (2, resumes + 1),
            "the new session is gone on with"
        );
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_person_on_discord_is_written_to_by_their_id() {
    let fake = Arc::new(fakes::discord::start().await);
    let shared = Arc::clone(&fake) as Arc<dyn Fake>;
    let rig = parrot(json!([channel(&*fake, &json!({}))]));
    let kernel = rig.start().await;
    let folder = tempfile::tempdir().unwrap();
    let configs = BTreeMap::from([("chat".to_owned(), config(&*fake))]);
    let to = format!("chat:{}", fake.id(1));
    let channels = asking(
        &rig,
        kernel.clone(),
        configs,
        &fake.secrets(),
        (folder.path(), &to),
    )
    .await;
    fake.attach(channels.clone());
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    let id = MessageId("0197f3a0-0000-7000-8000-000000000001".parse().unwrap());
    let delivery = channels
        .send_text("chat", &fake.id(2), "Hello you.", &[], id)
        .await
        .unwrap();
    assert!(matches!(delivery, Delivery::Delivered { .. }), "{delivery:?}");
    assert_eq!(fake.sent()[0].conversation, fake.direct(2));
    let id = MessageId("0197f3a0-0000-7000-8000-000000000002".parse().unwrap());
    let delivery = channels
        .send_text("chat", "99", "Nobody.", &[], id)
        .await
        .unwrap();
    assert!(
        matches!(delivery, Delivery::Delivered { .. }),
        "a channel of this id: {delivery:?}"
    );
    // A question to a person by their id is answered in the conversation with them.
    fake.says(&direct(&*fake, 1, 2, "write a line")).await;
    let question = asked(&*shared).await;
    assert_eq!(question.conversation, fake.direct(1));
    let yes = question
        .buttons
        .iter()
        .find(|(label, _)| label == "Approve")
        .unwrap()
        .1
        .clone();
    fake.press(&yes, &fake.id(2), &question).await;
    assert_eq!(rig.runner.runs(), []);
    fake.press(&yes, &fake.id(1), &question).await;
    until(|| async { rig.runner.runs().len() == 1 }).await;
    channels.close().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

#[tokio::test]
async fn a_paired_person_is_told_where_they_asked() {
    for fake in [
        Arc::new(fakes::discord::start().await) as Arc<dyn Fake>,
        Arc::new(fakes::matrix::start().await),
        Arc::new(fakes::telegram::start().await),
    ] {
        let pairing = json!({"access_control": {"mode": "pairing", "pairing": {"code_expiry_minutes": 5, "max_pending": 3}}});
        let stage = Stage::new(Arc::clone(&fake), pairing).await;
        fake.says(&direct(&*fake, 1, 2, "hello")).await;
        sent(&fake, 1).await;
        let text = fake.sent()[0].text.clone();
        let code = text.split("owner: ").nth(1).unwrap()[..8].to_owned();
        stage.channels.decide_pairing(&code, true, "owner").await.unwrap();
        sent(&fake, 2).await;
        let told = &fake.sent()[1];
        assert!(told.text.contains("You are paired"), "{told:?}");
        assert_eq!(told.conversation, fake.direct(2), "{}", fake.kind());
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new(), "{}", fake.kind());
    }
}

/// A channel whose platform can't be reached.
async fn unreachable(
    kind: &str,
    config: Value,
) -> (
    clawk_kernel::testing::Rig,
    clawk_channels::Channels,
    tempfile::TempDir,
) {
    let rig = parrot(
        json!([{"name": "chat", "type": kind, "transport": "webhook", "auth": {"secret_ref": "TOKEN"},
        "access_control": {"mode": "open"}}]),
    );
    let kernel = rig.start().await;
    let folder = tempfile::tempdir().unwrap();
    let configs = BTreeMap::from([("chat".to_owned(), serde_json::from_value(config).unwrap())]);
    let secrets = [
        ("TOKEN", "12345:secret"),
        ("HOOK", "hook-secret"),
        ("SIGNING", "signing-secret"),
        ("VERIFY", fakes::lark::VERIFICATION),
        ("KEY", fakes::lark::KEY),
    ];
    let channels = start(&rig, kernel, configs, &secrets, folder.path()).await;
    (rig, channels, folder)
}

#[tokio::test]
async fn nothing_is_acknowledged_before_the_bot_knows_who_it_is() {
    let dead = "http://127.0.0.1:9";
    let telegram = json!({"base_url": dead, "public_url": "https://agent.example", "secrets": {"webhook_secret": "HOOK"}});
    let (rig, channels, _folder) = unreachable("telegram", telegram).await;
    for chat in [
        json!({"id": -5, "type": "group"}),
        json!({"id": 7, "type": "private"}),
    ] {
        let update = json!({"update_id": 1, "message": {"message_id": 1, "chat": chat, "from": {"id": 7, "first_name": "A"},
            "text": "@TheBot say hello", "entities": [{"type": "mention", "offset": 0, "length": 7}]}});
        let request = hook(
            &[("x-telegram-bot-api-secret-token", "hook-secret")],
            update.to_string().as_bytes(),
        );
        assert_eq!(channels.receive_hook("chat", request).await.status, 503);
    }
    assert_eq!(rig.journal.inbox(), []);
    channels.close().await;

    let slack = json!({"base_url": format!("{dead}/api"), "secrets": {"signing_secret": "SIGNING"}});
    let (rig, channels, _folder) = unreachable("slack", slack).await;
    let body = json!({"type": "event_callback", "event_id": "Ev1", "event": {"type": "app_mention", "user": "U1", "channel": "C1",
        "ts": "1.1", "text": "<@UBOT> say hello"}})
    .to_string();
    let at = fakes::slack::now();
    let signed = fakes::slack::signature("signing-secret", &at, body.as_bytes());
    let headers = [
        ("x-slack-request-timestamp", at.as_str()),
        ("x-slack-signature", &signed),
    ];
    let reply = channels
        .receive_hook("chat", hook(&headers, body.as_bytes()))
        .await;
    assert_eq!(reply.status, 503);
    assert_eq!(rig.journal.inbox(), []);
    channels.close().await;

    let lark = json!({"base_url": dead, "settings": {"app_id": fakes::lark::APP},
        "secrets": {"verification_token": "VERIFY", "encrypt_key": "KEY"}});
    let (rig, channels, _folder) = unreachable("lark", lark).await;
    let mut message = fakes::lark::Platform::message(
        1,
        "oc_group",
        "ou_2",
        "text",
        &json!({"text": "@_user_1 say hello"}),
    );
    message["message"]["chat_type"] = json!("group");
    message["message"]["mentions"] = json!([{"key": "@_user_1", "id": {"open_id": "ou_bot"}, "name": "Bot"}]);
    let body = fakes::lark::sealed(&fakes::lark::event("im.message.receive_v1", "ev1", message));
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
    let reply = channels
        .receive_hook("chat", hook(&headers, body.as_bytes()))
        .await;
    assert_eq!(reply.status, 503);
    assert_eq!(rig.journal.inbox(), []);
    channels.close().await;
}

#[tokio::test]
async fn the_first_poll_comes_back_at_once() {
    let fake = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(Arc::clone(&fake) as Arc<dyn Fake>, json!({})).await;
    until(|| async { fake.polls().len() > 1 }).await;
    assert_eq!(fake.polls()[0], 0, "what is owed does not wait for a poll");
    assert!(fake.polls()[1] > 10, "and then a poll is held open");
    stage.end().await;
}

#[tokio::test]
async fn a_question_is_answered_by_speaking_to_the_bot() {
    // How somebody names the bot, and what stands before an answer.
    let fakes: Vec<(Arc<dyn Fake>, &str, &str)> = vec![
        (Arc::new(fakes::matrix::start().await), "", "Helper Bot: "),
        (
            Arc::new(fakes::matrix::start().await),
            "",
            "> <@bot:hs> May this be done?\n\n@bot:hs: ",
        ),
        (Arc::new(fakes::discord::start().await), "", "<@42> "),
        (Arc::new(fakes::slack::start().await), " <@UBOT>", "<@UBOT> "),
        (Arc::new(fakes::slack::with(true).await), " <@UBOT>", "<@UBOT>: "),
        (Arc::new(fakes::telegram::start().await), " @thebot", "@thebot "),
        (Arc::new(fakes::telegram::start().await), " @thebot", "@thebot, "),
    ];
    for (fake, named, frame) in fakes {
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        let said = |n: u32, conversation: &str, text: String| Said {
            n,
            conversation: conversation.to_owned(),
            direct: false,
            mention: true,
            sender: fake.id(1),
            text,
        };
        fake.says(&said(1, &fake.group(), format!("write a line{named}")))
            .await;
        let question = asked(&*fake).await;
        let text = format!("{frame}yes {}", code(&question));
        fake.says(&said(2, &question.conversation, text)).await;
        until(|| async { stage.rig.runner.runs().len() == 1 }).await;
        assert_eq!(
            stage.rig.journal.inbox().len(),
            1,
            "{}: an answer is no message",
            fake.kind()
        );
        stage.end().await;
        assert_eq!(fake.faults(), Vec::<String>::new(), "{}", fake.kind());
    }
}

#[tokio::test]
async fn who_presses_an_old_or_a_foreign_button_gets_a_word() {
    for fake in [
        Arc::new(fakes::whatsapp::start().await) as Arc<dyn Fake>,
        Arc::new(fakes::line::start().await),
        Arc::new(fakes::wechat::start().await),
    ] {
        let stage = Stage::new(Arc::clone(&fake), json!({})).await;
        fake.says(&direct(&*fake, 1, 1, "write a line")).await;
        let question = asked(&*fake).await;
        let yes = question
            .buttons
            .iter()
            .find(|(label, _)| label == "Approve")
            .unwrap()
            .1
            .clone();
        let told = |conversation: String, word: &'static str| {
            let sent = fake.sent();
            sent.iter()
                .any(|sent| sent.conversation == conversation && sent.text.contains(word))
        };
        // Somebody who may not decide, in their own conversation.
        let elsewhere = Sent {
            conversation: fake.direct(2),
            ..question.clone()
        };
        fake.press(&yes, &fake.id(2), &elsewhere).await;
        until(|| async { told(fake.direct(2), "Only an admin may answer") }).await;
        assert_eq!(stage.rig.runner.runs(), [], "{}", fake.kind());
        // The button of a question that an earlier run asked.
        fake.press("AAAABBBBCCCCDDDD:y", &fake.id(1), &question).await;
        until(|| async { told(fake.direct(1), "not known here") }).await;
        fake.press(&yes, &fake.id(1), &question).await;
        until(|| async { stage.rig.runner.runs().len() == 1 }).await;
        fake.press(&yes, &fake.id(1), &question).await;
        until(|| async { told(fake.direct(1), "Already decided") }).await;
        stage.end().await;
    }
}

#[tokio::test]
async fn a_webhooks_files_are_fetched_where_its_answers_go_and_nowhere_in_the_own_network() {
    let serve = |text: &'static str| async move {
        fakes::serve(axum::Router::new().route("/f.txt", axum::routing::get(move || async move { text })))
            .await
    };
    let (own, other) = (serve("of the sender").await, serve("of the network").await);
    let rig = parrot(
        json!([{"name": "hook", "type": "webhook", "transport": "webhook", "auth": {"secret_ref": "SECRET"},
        "access_control": {"mode": "open"}}]),
    );
    let kernel = rig.start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = json!({ "base_url": own });
    let configs = BTreeMap::from([("hook".to_owned(), serde_json::from_value(config).unwrap())]);
    let channels = start(
        &rig,
        kernel,
        configs,
        &[("SECRET", "a shared secret")],
        folder.path(),
    )
    .await;
    for (n, url) in [
        (1, format!("{own}/f.txt?x=1")),
        (2, format!("{other}/f.txt")),
        (3, "http://169.254.169.254/latest".to_owned()),
        (4, "file:///etc/passwd".to_owned()),
    ] {
        let body = json!({"id": n.to_string(), "conversation": "room", "sender": {"id": "ann"}, "text": "say look",
            "attachments": [{"url": url, "media_type": "text/plain"}]});
        let headers = [
            ("content-type", "application/json"),
            ("authorization", "Bearer a shared secret"),
        ];
        taken(
            &channels
                .receive_hook("hook", hook(&headers, body.to_string().as_bytes()))
                .await,
        );
        let files = std::fs::read_dir(folder.path().join("attachments")).map_or(0, Iterator::count);
        assert_eq!(files, 1, "{url}");
    }
    let kept = std::fs::read_dir(folder.path().join("attachments"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(std::fs::read_to_string(kept.path()).unwrap(), "of the sender");
    assert!(kept.file_name().to_str().unwrap().ends_with("-f.txt"), "{kept:?}");
    assert_eq!(
        rig.journal.inbox().len(),
        4,
        "each message is taken without what can't be had"
    );
    channels.close().await;
}
