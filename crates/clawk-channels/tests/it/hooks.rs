//! Requests that are not genuine: refused before anything is read from them.

use std::collections::BTreeMap;

use clawk_channels::Channels;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::fakes::slack;
use crate::suite::{hook, parrot, start, until};

const SECRET: &str = "a shared secret";

fn signed(secret: &str, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body);
    let hex: String = mac
        .finalize()
        .into_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256={hex}")
}

/// The answer, the headers, the body.
type Case<'a> = (u16, Vec<(&'a str, &'a str)>, &'a [u8]);

async fn with(kind: &str, config: Value) -> (clawk_kernel::testing::Rig, Channels, tempfile::TempDir) {
    let rig = parrot(
        json!([{"name": "hook", "type": kind, "transport": "webhook", "auth": {"secret_ref": "SECRET"},
        "access_control": {"mode": "open"}}]),
    );
    let kernel = rig.start().await;
    let folder = tempfile::tempdir().unwrap();
    let configs = BTreeMap::from([("hook".to_owned(), serde_json::from_value(config).unwrap())]);
    let secrets = [
        ("SECRET", SECRET),
        ("SIGNING", "signing-secret"),
        ("HOOK", "hook-secret"),
    ];
    let channels = start(&rig, kernel, configs, &secrets, folder.path()).await;
    (rig, channels, folder)
}

fn message(id: &str, text: &str) -> Vec<u8> {
    json!({"id": id, "conversation": "room", "sender": {"id": "ann"}, "text": text})
        .to_string()
        .into_bytes()
}

#[tokio::test]
async fn a_webhook_takes_what_is_signed_and_answers_who_waits() {
    let (rig, channels, _folder) = with("webhook", json!({})).await;
    let body = message("1", "say hello");
    let headers = |body: &[u8]| {
        vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("x-clawk-signature".to_owned(), signed(SECRET, body)),
        ]
    };
    let request = |body: &[u8], query: &str| {
        let headers = headers(body);
        let headers: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let mut request = hook(&headers, body);
        request.query = query.to_owned();
        request
    };
    let reply = channels.receive_hook("hook", request(&body, "wait=20")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let told: Value = serde_json::from_str(&reply.body).unwrap();
    assert_eq!(
        told,
        json!({"accepted": true, "duplicate": false, "text": "hello\n\n_Record: no action was taken for this answer._"})
    );
    let again = channels.receive_hook("hook", request(&body, "")).await;
    assert_eq!(
        (again.status, again.body.contains("\"duplicate\":true")),
        (202, true),
        "{again:?}"
    );
    // Nobody waits and there is no `base_url`: the answer is owed until somebody asks for it.
    let second = message("2", "say later");
    assert_eq!(
        channels.receive_hook("hook", request(&second, "")).await.status,
        202
    );
    until(|| async { channels.channel_reports().await.unwrap()[0].dead == 1 }).await;
    let reply = channels.receive_hook("hook", request(&second, "wait=20")).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.body.contains("later"), "{reply:?}");
    // By a token instead of a signature.
    let third = message("3", "say three");
    let bearer = format!("Bearer {SECRET}");
    let reply = channels
        .receive_hook(
            "hook",
            hook(
                &[("content-type", "application/json"), ("authorization", &bearer)],
                &third,
            ),
        )
        .await;
    assert_eq!(reply.status, 202);
    assert_eq!(rig.journal.inbox().len(), 3);
    channels.close().await;
}

#[tokio::test]
async fn a_webhooks_files_go_out_with_the_text() {
    use axum::extract::State;
    type Got = std::sync::Arc<std::sync::Mutex<Vec<Value>>>;
    let got = Got::default();
    let take = async |State(got): State<Got>, axum::Json(line): axum::Json<Value>| {
        got.lock().unwrap().push(line);
        axum::Json(json!({}))
    };
    let router = axum::Router::new()
        .route("/", axum::routing::post(take))
        .with_state(got.clone());
    let base = crate::fakes::serve(router).await;
    let (_rig, channels, _folder) = with("webhook", json!({"base_url": base})).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    let files = [clawk_channels::OutFile::new(
        "../chart.png",
        bytes::Bytes::from_static(b"abc"),
    )];
    let id = clawk_proto::MessageId("0197f3a0-0000-7000-8000-000000000001".parse().unwrap());
    let sent = channels
        .send_text("hook", "room", "Here.", &files, id)
        .await
        .unwrap();
    assert!(
        matches!(sent, clawk_kernel::ports::Delivery::Delivered { .. }),
        "{sent:?}"
    );
    let got = got.lock().unwrap().clone();
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!(
        (&got[0]["text"], &got[0]["conversation"]),
        (&json!("Here."), &json!("room"))
    );
    let file = json!({"name": "chart.png", "media_type": "text/plain", "data": "YWJj"});
    assert_eq!(got[0]["attachments"], json!([file]));
    channels.close().await;
}

/// Each is refused, and nothing of it reaches the agent.
#[tokio::test]
async fn twenty_bad_requests_to_a_webhook_are_refused() {
    let (rig, channels, _folder) = with("webhook", json!({})).await;
    let body = message("1", "say no");
    let other = message("1", "say yes");
    let good = signed(SECRET, &body);
    let json = ("content-type", "application/json");
    let upper = good.to_uppercase();
    let stale = json!({"id": "1", "conversation": "room", "sender": {"id": "ann"}, "text": "x", "timestamp": "2025-01-02T03:04:05Z"})
        .to_string();
    let unknown =
        json!({"id": "1", "conversation": "room", "sender": {"id": "ann"}, "text": "x", "role": "admin"})
            .to_string();
    let wrong_secret = signed("another secret", &body);
    let short = &good[..good.len() - 1];
    let bare = good.trim_start_matches("sha256=");
    let sha1 = good.replace("sha256=", "sha1=");
    let (stale_signed, unknown_signed) = (
        signed(SECRET, stale.as_bytes()),
        signed(SECRET, unknown.as_bytes()),
    );
    let half = &body[..body.len() / 2];
    let half_signed = signed(SECRET, half);
    let list = b"[]";
    let list_signed = signed(SECRET, list);
    let no_sender = json!({"id": "1", "conversation": "room", "text": "x"}).to_string();
    let no_sender_signed = signed(SECRET, no_sender.as_bytes());
    let empty = json!({"id": "1", "conversation": "room", "sender": {"id": "ann"}, "text": " "}).to_string();
    let empty_signed = signed(SECRET, empty.as_bytes());
    let sig = "x-clawk-signature";
    let cases: Vec<Case<'_>> = vec![
        (401, vec![json], &body),
        (401, vec![json, (sig, "")], &body),
        (401, vec![json, (sig, "sha256=")], &body),
        (401, vec![json, (sig, &good)], &other),
        (401, vec![json, (sig, &wrong_secret)], &body),
        (401, vec![json, (sig, short)], &body),
        (401, vec![json, (sig, bare)], &body),
        (401, vec![json, (sig, &sha1)], &body),
        (401, vec![json, (sig, &upper)], &body),
        (401, vec![json, (sig, &good), (sig, &good)], &body),
        (401, vec![json, ("authorization", "Bearer ")], &body),
        (401, vec![json, ("authorization", "Bearer another secret")], &body),
        (401, vec![json, ("authorization", SECRET)], &body),
        (415, vec![json, (sig, &good), ("content-encoding", "gzip")], &body),
        (415, vec![("content-type", "text/plain"), (sig, &good)], &body),
        (415, vec![(sig, &good)], &body),
        (401, vec![json, (sig, &stale_signed)], stale.as_bytes()),
        (400, vec![json, (sig, &unknown_signed)], unknown.as_bytes()),
        (400, vec![json, (sig, &half_signed)], half),
        (400, vec![json, (sig, &list_signed)], list),
        (400, vec![json, (sig, &no_sender_signed)], no_sender.as_bytes()),
        (400, vec![json, (sig, &empty_signed)], empty.as_bytes()),
    ];
    assert!(cases.len() >= 20);
    for (n, (status, headers, body)) in cases.into_iter().enumerate() {
        let reply = channels.receive_hook("hook", hook(&headers, body)).await;
        assert_eq!(reply.status, status, "case {n}: {reply:?}");
        assert!(!reply.body.contains(SECRET));
    }
    let mut get = hook(&[json, (sig, &good)], &body);
    get.method = http::Method::GET;
    assert_eq!(channels.receive_hook("hook", get).await.status, 405);
    assert_eq!(
        channels
            .receive_hook("other", hook(&[json, (sig, &good)], &body))
            .await
            .status,
        404
    );
    assert_eq!(rig.journal.inbox(), []);
    channels.close().await;
}

#[tokio::test]
async fn slack_requests_that_are_not_slacks_are_refused() {
    let config = json!({"base_url": "http://127.0.0.1:9/api", "secrets": {"signing_secret": "SIGNING"}});
    let (rig, channels, _folder) = with("slack", config).await;
    let body = json!({"type": "event_callback", "event_id": "Ev1", "event": {"type": "message", "user": "U1", "channel": "D1",
        "ts": "1.1", "text": "say no"}})
    .to_string();
    let at = slack::now();
    let good = slack::signature("signing-secret", &at, body.as_bytes());
    let old = "1700000000".to_owned();
    let of_old = slack::signature("signing-secret", &old, body.as_bytes());
    let other = slack::signature("another", &at, body.as_bytes());
    let (time, sig) = ("x-slack-request-timestamp", "x-slack-signature");
    let short = &good[..good.len() - 2];
    let v1 = good.replace("v0=", "v1=");
    let later: String = (at.parse::<i64>().unwrap() + 100).to_string();
    let cases: Vec<Vec<(&str, &str)>> = vec![
        vec![],
        vec![(sig, &good)],
        vec![(time, &at)],
        vec![(time, &at), (sig, &other)],
        vec![(time, &old), (sig, &of_old)],
        vec![(time, &later), (sig, &good)],
        vec![(time, &at), (sig, short)],
        vec![(time, &at), (sig, &v1)],
        vec![(time, "x"), (sig, &good)],
        vec![(time, &at), (sig, "")],
    ];
    for headers in cases {
        let reply = channels
            .receive_hook("hook", hook(&headers, body.as_bytes()))
            .await;
        assert_eq!(reply.status, 401, "{headers:?}: {reply:?}");
    }
    let changed = body.replace("say no", "say yes");
    let reply = channels
        .receive_hook("hook", hook(&[(time, &at), (sig, &good)], changed.as_bytes()))
        .await;
    assert_eq!(reply.status, 401);
    assert_eq!(rig.journal.inbox(), []);
    let reply = channels
        .receive_hook("hook", hook(&[(time, &at), (sig, &good)], body.as_bytes()))
        .await;
    // Slack can't be reached: who the bot is is not known yet, and Slack keeps the message.
    assert_eq!(reply.status, 503);
    assert_eq!(rig.journal.inbox(), []);
    let check = json!({"type": "url_verification", "challenge": "abc"}).to_string();
    let signed = slack::signature("signing-secret", &at, check.as_bytes());
    let reply = channels
        .receive_hook("hook", hook(&[(time, &at), (sig, &signed)], check.as_bytes()))
        .await;
    assert!(reply.body.contains("abc"));
    let reply = channels
        .receive_hook("hook", hook(&[(time, &at), (sig, &good)], check.as_bytes()))
        .await;
    assert_eq!(reply.status, 401, "what was not verified is not answered");
    channels.close().await;
}
