use clawk_core::ports::FaultKind;
use clawk_providers::ProviderConfig;
use serde_json::{Value, json};

use crate::fixture::*;

fn fine() -> Vec<u8> {
    whole(&json!({ "choices": [{ "message": { "content": "hi" } }] }))
}

fn token(token: &str, expires_in: u64) -> Reply {
    Reply::Bytes(whole(
        &json!({ "access_token": token, "token_type": "Bearer", "expires_in": expires_in }),
    ))
}

fn oauth2(server: &Server) -> Value {
    let mut spec = spec("openai-compatible", &server.url(), false);
    spec["auth"] = json!({ "type": "oauth2", "secret_ref": "PAIR" });
    spec
}

fn config(tokens: &Server) -> ProviderConfig {
    let token_url = Some(format!("http://127.0.0.1:{}/token", tokens.port));
    ProviderConfig {
        token_url,
        scope: Some("chat read".to_owned()),
        ..quick()
    }
}

#[tokio::test]
async fn a_key_goes_into_the_header_asked_for() {
    for (header, expected) in [(None, "api-key"), (Some("X-My-Key"), "x-my-key")] {
        let server = Server::start(vec![Reply::Bytes(fine())]).await;
        let mut spec = spec("openai-compatible", &server.url(), false);
        spec["auth"]["type"] = "api-key-header".into();
        let config = ProviderConfig {
            header: header.map(str::to_owned),
            ..quick()
        };
        ask(&provider(spec, config), &user("hi")).await.0.unwrap();
        let head = server.requests().remove(0).0;
        assert!(
            head.contains(&format!("\r\n{expected}: {}\r\n", CANARY.to_lowercase())),
            "{head}"
        );
    }
    let server = Server::start(vec![Reply::Bytes(fine())]).await;
    let mut spec = spec("openai-compatible", &server.url(), false);
    spec["auth"] = json!({ "type": "none" });
    ask(&provider(spec, quick()), &user("hi")).await.0.unwrap();
    assert!(!server.requests().remove(0).0.contains("authorization"));
}

#[tokio::test]
async fn a_missing_secret_is_said_at_first_use_with_where_it_was_sought() {
    let server = Server::start(vec![Reply::Bytes(fine())]).await;
    let mut spec = spec("openai-compatible", &server.url(), false);
    spec["auth"]["secret_ref"] = "UNSET_KEY".into();
    let error = fault(&provider(spec, quick()), &user("hi")).await;
    assert_eq!(error.kind, FaultKind::Auth);
    assert!(
        error.message.contains("`UNSET_KEY` not found") && error.message.contains("CLAW_SECRETS_DIR"),
        "{error}"
    );
    assert!(server.requests().is_empty(), "nothing is sent without the key");
}

#[tokio::test]
async fn a_token_is_fetched_once_and_kept() {
    let tokens = Server::start(vec![token("tok-1", 3600)]).await;
    let server = Server::start(vec![Reply::Bytes(fine())]).await;
    let provider = provider(oauth2(&server), config(&tokens));
    for _ in 0..3 {
        ask(&provider, &user("hi")).await.0.unwrap();
    }
    let asked = tokens.requests();
    assert_eq!(asked.len(), 1);
    let (head, body) = &asked[0];
    assert!(
        head.starts_with("post /token ") && head.contains("application/x-www-form-urlencoded"),
        "{head}"
    );
    // base64("the-id:sk-canary-7Qx%2F93%2Blm"), lower-cased by the fixture.
    assert!(head.contains("authorization: basic "), "{head}");
    assert_eq!(body, "grant_type=client_credentials&scope=chat+read");
    assert!(
        server
            .requests()
            .iter()
            .all(|(head, _)| head.contains("authorization: bearer tok-1\r\n"))
    );
}

#[tokio::test]
async fn a_token_that_lapsed_is_fetched_again() {
    let tokens = Server::start(vec![token("tok-1", 0), token("tok-2", 3600)]).await;
    let server = Server::start(vec![Reply::Bytes(fine())]).await;
    let provider = provider(oauth2(&server), config(&tokens));
    for _ in 0..3 {
        ask(&provider, &user("hi")).await.0.unwrap();
    }
    assert_eq!(tokens.requests().len(), 2);
}

#[tokio::test]
async fn a_refused_token_is_replaced_once() {
    let refused = || Reply::Bytes(answer("401 Unauthorized", "", "{}"));
    let tokens = Server::start(vec![
        token("tok-1", 3600),
        token("tok-2", 3600),
        token("tok-3", 3600),
    ])
    .await;
    let server = Server::start(vec![refused(), Reply::Bytes(fine()), refused(), refused()]).await;
    let provider = provider(oauth2(&server), config(&tokens));
    ask(&provider, &user("hi")).await.0.unwrap();
    let heads: Vec<_> = server.requests().into_iter().map(|(head, _)| head).collect();
    assert!(heads.len() == 2 && heads[0].contains("tok-1") && heads[1].contains("tok-2"));
    assert_eq!(fault(&provider, &user("hi")).await.kind, FaultKind::Auth);
    assert_eq!(server.requests().len(), 4, "one more try, then the error");
}

#[tokio::test]
async fn a_token_endpoints_refusal_shows_no_secret() {
    let body = format!("client the-id with {CANARY} (dGhlLWlkOnNrLWNhbmFyeS03UXglMkY5MyUyQmxt) is unknown");
    let tokens = Server::start(vec![Reply::Bytes(answer("400 Bad Request", "", &body))]).await;
    let server = Server::start(vec![Reply::Bytes(fine())]).await;
    let error = fault(&provider(oauth2(&server), config(&tokens)), &user("hi")).await;
    assert_eq!(error.kind, FaultKind::Auth);
    assert!(
        !error.message.contains("dGhlLWlkOnNrLWNhbmFyeS03UXglMkY5MyUyQmxt"),
        "{error}"
    );
    assert!(server.requests().is_empty());
    // A server that quotes the token it was sent.
    let tokens = Server::start(vec![token("canary-token", 3600)]).await;
    let server = Server::start(vec![Reply::Bytes(answer(
        "403 No",
        "",
        "token canary-token lacks a scope",
    ))])
    .await;
    assert_eq!(
        fault(&provider(oauth2(&server), config(&tokens)), &user("hi"))
            .await
            .kind,
        FaultKind::Auth
    );
}
