//! `web` in a real browser: signing in, Markdown shown safely, a question with buttons, files, what belongs to whom.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Request;
use clawk_channels::{Channels, HookRequest};
use clawk_kernel::testing::Rig;
use serde_json::{Value, json};

use crate::fakes::serve;
use crate::suite::{parrot, start, until};

/// The listener: what `clawk-server` does with a request to a channel.
pub(crate) async fn door(
    State(channels): State<Channels>,
    request: Request<Body>,
) -> axum::response::Response {
    let (parts, body) = request.into_parts();
    let hook = HookRequest {
        method: parts.method,
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body: axum::body::to_bytes(body, 4 << 20).await.unwrap(),
    };
    let served = channels.serve_hook("page", hook).await;
    let body = match served.stream {
        Some(pieces) => Body::from_stream(futures::stream::unfold(pieces, |mut pieces| async {
            let piece: Bytes = pieces.recv().await?;
            Some((Ok::<_, std::convert::Infallible>(piece), pieces))
        })),
        None => Body::from(served.reply.body),
    };
    let mut response = axum::response::Response::new(body);
    *response.status_mut() = axum::http::StatusCode::from_u16(served.reply.status).unwrap();
    response.headers_mut().extend(served.headers);
    if let Some(kind) = served.reply.content_type {
        let kind = axum::http::HeaderValue::from_static(kind);
        response.headers_mut().insert("content-type", kind);
    }
    response
}

async fn page(folder: &Path) -> (Rig, Channels, String) {
    let rig = parrot(
        json!([{"name": "page", "type": "web", "transport": "websocket", "auth": {"secret_ref": "TOKEN"},
        "access_control": {"mode": "allowlist", "allowed_ids": ["ann", "bob"]}}]),
    );
    let kernel = rig.start().await;
    let config = json!({"users": {"ann": "ANN", "bob": "BOB"}, "admins": ["ann"]});
    let configs = BTreeMap::from([("page".to_owned(), serde_json::from_value(config).unwrap())]);
    let secrets = [
        ("TOKEN", "shared-token"),
        ("ANN", "token-of-ann"),
        ("BOB", "token-of-bob"),
    ];
    let channels = start(&rig, kernel, configs, &secrets, folder).await;
    until(|| async { channels.channel_reports().await.unwrap()[0].state.as_str() == "ready" }).await;
    let router = Router::new()
        .route("/channels/page", axum::routing::any(door))
        .with_state(channels.clone());
    let address = serve(router).await;
    (rig, channels, format!("{address}/channels/page"))
}

/// What a script of `tests/parts` saw in a real browser.
pub(crate) async fn driven(script: &str, url: &str, folder: &Path, shot: &str) -> Value {
    let parts = std::env::var("CLAWK_PARTS").expect("CLAWK_PARTS names the folder of tests/parts/install.sh");
    let driver = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/parts")
        .join(script);
    let shots = std::env::var_os("CLAWK_SHOTS").map_or_else(|| folder.to_owned(), PathBuf::from);
    let driving = tokio::process::Command::new("node")
        .arg(driver)
        .args([&parts, url, "token-of-ann"])
        .arg(shots.join(shot))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let done = tokio::time::timeout(std::time::Duration::from_secs(90), driving).await;
    let done = done.expect("the browser takes too long").unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    serde_json::from_str(text.trim())
        .unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&done.stderr)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_talks_to_the_agent_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let (rig, channels, url) = page(folder.path()).await;
    let seen = driven("web_page.js", &url, folder.path(), "web.png").await;
    assert_eq!(seen["failed"], Value::Null, "{seen}");
    assert_eq!(seen["errors"], json!([]), "{seen}");
    assert_eq!(seen["wrong"], "the token is not right");
    assert_eq!(seen["who"], "ann");
    assert_eq!(seen["bold"], "bold");
    assert_eq!(
        seen["links"],
        json!(["https://example.org"]),
        "a link of another scheme is text"
    );
    assert_eq!(
        (&seen["alerts"], &seen["foreign"]),
        (&json!(0), &json!(0)),
        "markup of others is text: {seen}"
    );
    assert!(
        seen["shown"]
            .as_str()
            .unwrap()
            .contains("<img src=x onerror=alert(1)>"),
        "{seen}"
    );
    assert_eq!(
        seen["phone"],
        json!([true, true, true, true, true, true]),
        "on a phone everything can be reached"
    );
    assert_eq!(seen["buttons"], json!(["Approve", "Deny"]));
    assert_eq!(seen["same"], true);
    let cookie =
        json!([{"name": "clawk-page", "httpOnly": true, "sameSite": "Strict", "path": "/channels/page"}]);
    assert_eq!(seen["cookies"], cookie);
    assert_eq!(seen["readable"], "", "no script reads the cookie");
    assert_eq!(seen["stranger"], 400, "another person's conversation");
    assert_eq!(seen["out"], 401);
    assert_eq!(rig.runner.runs().len(), 1, "approved by its button, once");
    assert_eq!(
        std::fs::read(folder.path().join("attachments/2cf24dba5fb0-x.txt")).unwrap(),
        b"hello"
    );
    channels.close().await;
}

#[tokio::test]
async fn an_answer_is_shown_while_it_is_written_and_its_last_edit_is_the_answer() {
    use clawk_kernel::ports::ModelMessage;
    use clawk_kernel::testing::{Behaviour, ScriptedModel, calls, manifest, says};
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(manifest(json!({
        "channels": [{"name": "page", "type": "web", "transport": "websocket", "auth": {"secret_ref": "TOKEN"},
            "access_control": {"mode": "open"}}],
        "tools": [{"name": "slow", "description": "slow", "input_schema": {"type": "object"}}],
        "policies": [{"name": "policy", "rules": [{"id": "all", "action": "allow", "scope": "all"}]}],
    })));
    rig.runner.set("slow", Behaviour::Sleep(2_500));
    let model = ScriptedModel::new(|request, _| {
        let asked = matches!(request.messages.last(), Some(ModelMessage::User { .. }));
        let mut answer = if asked {
            calls(&[("slow", json!({}))])
        } else {
            says("All is there.")
        };
        if asked {
            answer.text = "Let me look".to_owned();
        }
        Ok(answer)
    });
    rig.models.insert("model".to_owned(), std::sync::Arc::new(model));
    let kernel = rig.start().await;
    let configs = BTreeMap::from([("page".to_owned(), serde_json::from_value(json!({})).unwrap())]);
    let channels = start(&rig, kernel, configs, &[("TOKEN", "shared-token")], folder.path()).await;
    let post = async |query: &str, cookie: &str, body: Value| {
        let mut headers = http::HeaderMap::new();
        headers.insert("content-type", http::HeaderValue::from_static("application/json"));
        headers.insert("cookie", cookie.parse().unwrap());
        let hook = HookRequest {
            method: http::Method::POST,
            query: query.to_owned(),
            headers,
            body: body.to_string().into(),
        };
        channels.serve_hook("page", hook).await
    };
    let served = post("login", "", json!({"token": "shared-token"})).await;
    let cookie = served.headers[0]
        .1
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    let said = post(
        "say",
        &cookie,
        json!({"id": "0123456789", "conversation": "user/main", "text": "go"}),
    )
    .await;
    assert_eq!(said.reply.status, 202);
    // What the page has: one entry of the agent, at first in part, then whole.
    let entries = || -> Vec<Value> {
        let people = std::fs::read_dir(folder.path().join("page.web"))
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let file = people
            .flat_map(|at| std::fs::read_dir(at).unwrap())
            .map(|entry| entry.unwrap().path())
            .next()
            .unwrap();
        let kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let all = kept["entries"].as_array().unwrap().clone();
        all.into_iter().filter(|entry| entry["who"] == "agent").collect()
    };
    until(|| async { entries().len() == 1 }).await;
    assert_eq!(entries()[0]["text"], "Let me look …");
    until(|| async {
        entries()[0]["text"]
            .as_str()
            .unwrap()
            .starts_with("All is there.")
    })
    .await;
    assert_eq!(entries().len(), 1, "edited, not sent again");
    assert!(
        entries()[0]["text"]
            .as_str()
            .unwrap()
            .contains("Record: done: <code>slow</code>"),
        "{:?}",
        entries()
    );
    channels.close().await;
}

#[tokio::test]
async fn nobody_speaks_without_a_cookie_or_for_somebody_else() {
    let folder = tempfile::tempdir().unwrap();
    let (rig, channels, _) = page(folder.path()).await;
    let ask = async |query: &str, cookie: &str, body: Value| {
        let mut headers = http::HeaderMap::new();
        headers.insert("content-type", http::HeaderValue::from_static("application/json"));
        if !cookie.is_empty() {
            headers.insert("cookie", cookie.parse().unwrap());
        }
        let hook = HookRequest {
            method: http::Method::POST,
            query: query.to_owned(),
            headers,
            body: body.to_string().into(),
        };
        channels.serve_hook("page", hook).await
    };
    let say =
        |conversation: &str| json!({"id": "0123456789", "conversation": conversation, "text": "say hi"});
    assert_eq!(ask("say", "", say("ann/main")).await.reply.status, 401);
    assert_eq!(
        ask("say", "clawk-page=0000", say("ann/main")).await.reply.status,
        401
    );
    let served = ask("login", "", json!({"token": "token-of-bob"})).await;
    assert_eq!(served.reply.status, 200);
    let cookie = served.headers[0]
        .1
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(ask("say", &cookie, say("ann/main")).await.reply.status, 400);
    assert_eq!(
        ask("say", &format!("{cookie}; {cookie}"), say("bob/main"))
            .await
            .reply
            .status,
        401
    );
    assert_eq!(ask("say", &cookie, say("bob/main")).await.reply.status, 202);
    assert_eq!(
        ask("say", &cookie, say("bob/main")).await.reply.status,
        202,
        "again: no second turn"
    );
    assert_eq!(
        ask(
            "press",
            &cookie,
            json!({"question": "x", "choice": "y", "conversation": "ann/main"})
        )
        .await
        .reply
        .status,
        400
    );
    // The shared token's person is let in by nobody's list.
    let served = ask("login", "", json!({"token": "shared-token"})).await;
    let cookie = served.headers[0]
        .1
        .to_str()
        .unwrap()
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    assert_eq!(ask("say", &cookie, say("user/main")).await.reply.status, 403);
    assert_eq!(rig.journal.inbox().len(), 1);
    for _ in 0..5 {
        assert_eq!(
            ask("login", "", json!({"token": "guess"})).await.reply.status,
            403
        );
    }
    assert_eq!(
        ask("login", "", json!({"token": "token-of-bob"}))
            .await
            .reply
            .status,
        429
    );
    channels.close().await;
}
