//! What `clawk init` and `clawk doctor` ask of platforms: the token, the rights, the clock, and whether the public address leads here.

use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use clawk_channels::{ChannelConfig, Finding, Grade, check};
use clawk_kernel::time::{Clock as _, SystemClock};
use clawk_manifest::model::Channel;
use clawk_secrets::{Env, Resolver};
use serde_json::{Value, json};

use crate::fakes::serve;

const NONCE: &str = "0123456789abcdef0123456789abcdef";
const SECRET: &str = "12345:canary-of-a-token";

fn channel(name: &str, kind: &str, transport: &str) -> Channel {
    serde_json::from_value(
        json!({"name": name, "type": kind, "transport": transport, "auth": {"secret_ref": "TOKEN"}}),
    )
    .unwrap()
}

fn config(value: Value) -> ChannelConfig {
    serde_json::from_value(value).unwrap()
}

async fn asked(all: &[(Channel, ChannelConfig)]) -> Vec<(String, Finding)> {
    let secrets = Resolver::without_store(Env::fixed([("TOKEN", SECRET)]));
    let all: Vec<_> = all.iter().map(|(channel, config)| (channel, config)).collect();
    let found = check(&all, &secrets, SystemClock::default().now(), NONCE).await;
    for (_, finding) in &found {
        let told = format!("{} {}", finding.result, finding.cure);
        assert!(!told.contains("canary"), "no secret is told: {told}");
        assert_eq!(finding.grade == Grade::Ok, finding.cure.is_empty(), "{finding:?}");
    }
    found
}

/// A platform that gives this answer to everything.
async fn platform(
    status: u16,
    date: Option<&'static str>,
    headers: &[(&'static str, &'static str)],
    body: Value,
) -> String {
    let mut sent = HeaderMap::new();
    for (name, value) in headers {
        sent.insert(*name, value.parse().unwrap());
    }
    sent.extend(date.map(|date| (axum::http::header::DATE, date.parse().unwrap())));
    let status = StatusCode::from_u16(status).unwrap();
    let answer = move || {
        let (sent, body) = (sent.clone(), body.clone());
        async move { (status, sent, axum::Json(body)) }
    };
    serve(Router::new().fallback(answer)).await
}

async fn one(kind: &str, settings: Value, base: &str) -> Vec<(&'static str, Grade, String)> {
    let mut config_of = json!({"base_url": base});
    config_of["settings"] = settings;
    let found = asked(&[(channel("chat", kind, "polling"), config(config_of))]).await;
    found
        .into_iter()
        .map(|(_, finding)| (finding.code, finding.grade, finding.result))
        .collect()
}

fn grades(found: &[(&'static str, Grade, String)]) -> Vec<(&'static str, Grade)> {
    found.iter().map(|(code, grade, _)| (*code, *grade)).collect()
}

#[tokio::test]
async fn a_token_is_taken_or_refused_and_rights_are_what_the_platform_says() {
    let ok = Grade::Ok;
    let me = |reads: bool| json!({"ok": true, "result": {"id": 1, "username": "TheBot", "can_read_all_group_messages": reads}});
    let base = platform(200, None, &[], me(true)).await;
    let found = one("telegram", json!({}), &base).await;
    assert_eq!(
        grades(&found),
        [
            ("channel-token", ok),
            ("channel-rights", ok),
            ("channel-clock", ok)
        ],
        "{found:?}"
    );
    assert_eq!(found[0].2, "taken: the bot is `TheBot`");
    let base = platform(200, None, &[], me(false)).await;
    assert_eq!(one("telegram", json!({}), &base).await[1].1, Grade::Warn);
    let base = platform(
        401,
        None,
        &[],
        json!({"ok": false, "description": "Unauthorized"}),
    )
    .await;
    let found = one("telegram", json!({}), &base).await;
    assert_eq!((found[0].0, found[0].1), ("channel-token", Grade::Fail));
    assert!(found[0].2.contains("401 Unauthorized"), "{found:?}");

    let slack = json!({"ok": true, "user": "bot"});
    let some = [("x-oauth-scopes", "chat:write,im:history")];
    let base = platform(200, None, &some, slack.clone()).await;
    let found = one("slack", json!({}), &base).await;
    assert_eq!((found[1].0, found[1].1), ("channel-rights", Grade::Warn));
    assert!(found[1].2.contains("app_mentions:read"), "{found:?}");
    let base = platform(
        200,
        None,
        &[("x-oauth-scopes", "im:history,app_mentions:read")],
        slack,
    )
    .await;
    assert_eq!(
        one("slack", json!({}), &base).await[1].1,
        Grade::Fail,
        "it may not send"
    );
    let base = platform(200, None, &[], json!({"ok": false, "error": "invalid_auth"})).await;
    assert_eq!(one("slack", json!({}), &base).await[0].1, Grade::Fail);

    let discord = |flags: u64| json!({"id": "1", "username": "bot", "flags": flags});
    for (flags, grade) in [(0, Grade::Fail), (1 << 18, ok), (1 << 19, ok)] {
        let base = platform(200, None, &[], discord(flags)).await;
        assert_eq!(one("discord", json!({}), &base).await[1].1, grade);
    }
    let base = platform(200, None, &[], json!({"user_id": "@bot:example.org"})).await;
    let own = json!({"user_id": "@bot:example.org"});
    assert_eq!(one("matrix", own, &base).await[0].1, ok);
    let other = json!({"user_id": "@ann:example.org"});
    assert_eq!(one("matrix", other, &base).await[0].1, Grade::Fail);
}

#[tokio::test]
async fn a_clock_that_is_off_is_said() {
    let me = json!({"ok": true, "result": {"username": "TheBot"}});
    let base = platform(200, Some("Sun, 06 Nov 1994 08:49:37 GMT"), &[], me).await;
    let found = one("telegram", json!({}), &base).await;
    let clock = found.iter().find(|(code, ..)| *code == "channel-clock").unwrap();
    assert_eq!(clock.1, Grade::Fail);
    assert!(clock.2.contains("ahead of"), "{}", clock.2);
}

#[tokio::test]
async fn platforms_that_never_answer_are_waited_for_together() {
    let silent = serve(Router::new().fallback(|| async {
        tokio::time::sleep(Duration::from_secs(600)).await;
    }))
    .await;
    let all: Vec<_> = (0..6)
        .map(|n| {
            let name = format!("chat{n}");
            (
                channel(&name, "telegram", "polling"),
                config(json!({"base_url": silent})),
            )
        })
        .collect();
    let begun = Instant::now();
    let found = asked(&all).await;
    assert_eq!(found.len(), 6);
    assert!(found.iter().all(|(_, finding)| finding.grade == Grade::Fail));
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "one after the other takes 30 s"
    );
}

#[tokio::test]
async fn the_public_address_must_lead_to_this_very_agent() {
    let (_rig, channels, _folder) = crate::hooks::with("webhook", json!({})).await;
    let router = Router::new()
        .route("/channels/hook", axum::routing::any(crate::web::door_of))
        .with_state((channels.clone(), "hook"));
    let here = serve(router).await;
    let other = platform(200, None, &[], json!({"proof": "00"})).await;
    let secrets = |secret: &str| Resolver::without_store(Env::fixed([("SECRET", secret)]));
    let mut hook = channel("hook", "webhook", "webhook");
    hook.auth.secret_ref = "SECRET".to_owned();
    let now = SystemClock::default().now();
    for (url, secret, grade) in [
        (here.as_str(), crate::hooks::SECRET, Grade::Ok),
        (here.as_str(), "another agent's secret", Grade::Fail),
        (other.as_str(), crate::hooks::SECRET, Grade::Fail),
        ("http://127.0.0.1:1", crate::hooks::SECRET, Grade::Fail),
    ] {
        let config = config(json!({"public_url": url}));
        let found = check(&[(&hook, &config)], &secrets(secret), now, NONCE).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].1.code, found[0].1.grade),
            ("channel-webhook", grade),
            "{found:?}"
        );
    }
    channels.close().await;
}
