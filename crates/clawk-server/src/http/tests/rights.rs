//! Who may do what: tokens, scopes, whose session it is, pages of other origins, addresses.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

#[tokio::test]
async fn without_a_valid_token_nothing_but_health() {
    let server = guarded().await;
    assert_eq!(server.get("", "/v1/health").await.0, 200);
    let (status, head, body) = server.send("", "GET", "/v1/sessions", None, "").await;
    assert_eq!((status, &body["error"]["code"]), (401, &json!("unauthorized")));
    assert!(head.contains("www-authenticate: bearer"), "{head}");
    assert_eq!(server.get("mallory", "/v1/sessions").await.0, 401);
    let key = |value: &str| format!("x-api-key: {value}\r\n");
    let (status, ..) = server
        .send("", "GET", "/v1/sessions", None, &key("ann-secret-of-length"))
        .await;
    assert_eq!(status, 200);
    let (status, ..) = server
        .send("ann", "GET", "/v1/sessions", None, &key("bob-secret-of-length"))
        .await;
    assert_eq!(status, 401, "two tokens that disagree");
}

#[tokio::test]
async fn a_scope_that_is_missing_is_missing() {
    let server = guarded().await;
    let body = json!({"agent_id": "desk", "goal": "help"});
    let (status, refused) = server.post("eve", "/v1/sessions", &body).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (403, &json!("scope_missing"))
    );
    assert_eq!(
        server
            .post("ann", "/v1/atlases", &json!({"manifest": {}}))
            .await
            .0,
        403
    );
    let session = server.session("ann").await;
    assert_eq!(
        server
            .post("eve", "/v1/execute", &request(&session, 1, None))
            .await
            .0,
        403
    );
}

#[tokio::test]
async fn a_token_sees_its_own_sessions_and_an_admin_all() {
    let server = guarded().await;
    let session = server.session("ann").await;
    for path in [format!("/v1/sessions/{session}"), format!("/v1/traces/{session}")] {
        assert_eq!(server.get("bob", &path).await.0, 404, "{path}");
        assert_eq!(server.get("ann", &path).await.0, 200, "{path}");
        assert_eq!(server.get("ops", &path).await.0, 200, "{path}");
    }
    assert_eq!(
        server
            .post("bob", "/v1/resolve", &request(&session, 1, None))
            .await
            .0,
        404
    );
    assert_eq!(server.get("bob", "/v1/sessions").await.1["items"], json!([]));
    let (status, ..) = server
        .send("bob", "DELETE", &format!("/v1/sessions/{session}"), None, "")
        .await;
    assert_eq!(status, 404);
}

#[tokio::test]
async fn a_page_from_elsewhere_gets_nothing() {
    let server = start(HttpOptions::default()).await;
    for host in ["evil.example", "localhost.evil.example:80", "169.254.1.1"] {
        let (status, _, body) = server
            .send("", "GET", "/v1/health", None, &format!("Host: {host}\r\n"))
            .await;
        assert_eq!(
            (status, &body["error"]["code"]),
            (403, &json!("host_refused")),
            "{host}"
        );
    }
    for host in ["127.0.0.1:8420", "[::1]:1", "LOCALHOST"] {
        let (status, ..) = server
            .send("", "GET", "/v1/health", None, &format!("Host: {host}\r\n"))
            .await;
        assert_eq!(status, 200, "{host}");
    }
    for origin in ["https://evil.example", "null"] {
        let (status, ..) = server
            .send("", "GET", "/v1/health", None, &format!("origin: {origin}\r\n"))
            .await;
        assert_eq!(status, 403, "{origin}");
    }
    let (status, ..) = server
        .send("", "GET", "/v1/health", None, "origin: http://localhost\r\n")
        .await;
    assert_eq!(status, 200);
    // What a form of another page could send is no JSON.
    let form = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    assert_eq!(server.raw(form).await.0, 415);
}

#[tokio::test]
async fn a_public_address_wants_leave_and_tokens() {
    let bind = |options: HttpOptions| async {
        let at = "0.0.0.0:0".parse().unwrap();
        let traces = Arc::new(Mem(Arc::default()));
        let clock = Arc::new(clawk_kernel::testing::TestClock::default());
        HttpListener::bind(at, options, nobody(), traces, clock).await
    };
    assert!(matches!(
        bind(HttpOptions::default()).await,
        Err(HttpError::Public(_))
    ));
    let open = HttpOptions {
        public: true,
        ..HttpOptions::default()
    };
    assert!(matches!(bind(open.clone()).await, Err(HttpError::NoTokens(_))));
    let closed = HttpOptions {
        tokens: tokens(),
        ..open
    };
    assert!(bind(closed).await.unwrap().security_warning().is_none());
}

#[tokio::test]
async fn an_absolute_target_must_name_the_server_that_the_host_header_names() {
    let server = guarded().await;
    let ask = |target: &str, host: &str| {
        format!(
            "GET {target}/v1/sessions HTTP/1.1\r\n{host}authorization: Bearer ann-secret-of-length\r\nconnection: close\r\n\r\n"
        )
    };
    for (target, host, expected) in [
        ("http://other", "host: localhost\r\n", 403),
        ("http://other:8420", "host: localhost:8420\r\n", 403),
        ("http://localhost", "host: other\r\n", 403),
        ("http://localhost", "host: localhost\r\n", 200),
        ("", "host: localhost\r\n", 200),
    ] {
        let (status, _, body) = server.raw(&ask(target, host)).await;
        assert_eq!(status, expected, "{target} {host} {body}");
    }
}

#[tokio::test]
async fn health_needs_no_token_and_says_nothing_more() {
    let server = guarded().await;
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get("", path).await, (200, Value::Null));
    }
    let at = "127.0.0.1:0".parse().unwrap();
    let rig = Rig::new(manifest(json!({})));
    let traces = Arc::new(Mem(Arc::clone(&rig.journal)));
    let options = HttpOptions {
        doors: vec![crate::http::HttpDoor::Health],
        ..HttpOptions::default()
    };
    let http = HttpListener::bind(at, options, nobody(), traces, rig.clock.clone())
        .await
        .unwrap();
    let (address, end, keys) = (http.address(), CancellationToken::new(), http.keys());
    let task = tokio::spawn(http.serve(end.clone()));
    let server = Server {
        keys,
        address,
        end,
        task,
    };
    assert_eq!(server.get("", "/healthz").await.0, 200);
    assert_eq!(server.get("", "/readyz").await.0, 503, "no agent runs");
    assert_eq!(server.get("", "/v1/sessions").await.0, 404, "that door is not on");
}

#[tokio::test]
async fn tokens_are_replaced_at_once_and_never_by_none() {
    let server = guarded().await;
    assert_eq!(server.get("ann", "/v1/sessions").await.0, 200);
    let zoe = Token::of_text("zoe", "zoe-secret-of-length", vec![Scope::Read]);
    server.keys.replace_tokens(vec![zoe]).unwrap();
    assert_eq!(server.get("ann", "/v1/sessions").await.0, 401);
    assert_eq!(server.get("zoe", "/v1/sessions").await.0, 200);
    let refused = server.keys.replace_tokens(Vec::new()).unwrap_err();
    assert!(matches!(refused, HttpError::Emptied), "{refused}");
    assert_eq!(
        server.get("", "/v1/sessions").await.0,
        401,
        "an empty table lets nobody in"
    );
    assert_eq!(server.get("zoe", "/v1/sessions").await.0, 200);
}

#[tokio::test]
async fn who_may_approve_sees_and_answers_the_questions_of_others_and_nothing_else() {
    let mut tokens = tokens();
    tokens.push(Token::of_text(
        "pat",
        "pat-secret-of-length",
        vec![Scope::Approve],
    ));
    let server = start(HttpOptions {
        tokens,
        ..HttpOptions::default()
    })
    .await;
    let session = server.session("ann").await;
    let (_, resolution) = server
        .post("ann", "/v1/resolve", &request(&session, 1, None))
        .await;
    let run = Some(
        json!({"resolution_id": resolution["resolution_id"], "action_id": "fee.waive", "parameters": {}}),
    );
    let (_, pending) = server
        .post("ann", "/v1/execute", &request(&session, 2, run))
        .await;
    assert_eq!(pending["status"], "pending_approval", "{pending}");
    let (status, open) = server.get("pat", "/v1/approvals").await;
    assert_eq!(status, 200);
    let id = open["approvals"][0]["approval_id"].as_str().unwrap();
    assert_eq!(server.get("bob", "/v1/approvals").await.1["approvals"], json!([]));
    assert_eq!(server.get("pat", "/v1/sessions").await.0, 403);
    assert_eq!(server.get("pat", &format!("/v1/traces/{session}")).await.0, 403);
    let yes = json!({"decision": "approve"});
    assert_eq!(
        server.post("pat", &format!("/v1/approvals/{id}"), &yes).await.0,
        200
    );
}

#[tokio::test]
async fn a_folded_question_is_approved_by_who_read_it_whole() {
    let server = guarded().await;
    let session = server.session("ann").await;
    let (_, resolution) = server
        .post("ann", "/v1/resolve", &request(&session, 1, None))
        .await;
    let note = format!("{} and all of it to eve {}", "a".repeat(600), "b".repeat(600));
    let execution = json!({"resolution_id": resolution["resolution_id"], "action_id": "fee.waive", "parameters": {"note": note}});
    let (_, pending) = server
        .post("ann", "/v1/execute", &request(&session, 2, Some(execution)))
        .await;
    let id = pending["error"]["details"]["approval_id"].as_str().unwrap();
    let (_, listed) = server.get("ops", "/v1/approvals").await;
    let listed = &listed["approvals"][0];
    assert!(listed["hidden_bytes"].as_u64().unwrap() > 0, "{listed}");
    assert!(listed.get("text").is_none() && listed.get("digest").is_none());
    assert!(!listed["preview"].to_string().contains("eve"), "{listed}");
    let path = format!("/v1/approvals/{id}");
    let zero = "0".repeat(64);
    for blind in [
        json!({"decision": "approve"}),
        json!({"decision": "approve", "seen": zero}),
    ] {
        let (status, refused) = server.post("ops", &path, &blind).await;
        assert_eq!(
            (status, &refused["error"]["code"]),
            (409, &json!("question_unseen"))
        );
    }
    assert_eq!(server.get("bob", &path).await.0, 404, "it is ann's");
    let (_, whole) = server.get("ops", &path).await;
    assert!(
        whole["text"].as_str().unwrap().contains(" and all of it to eve "),
        "{whole}"
    );
    let read = json!({"decision": "approve", "seen": whole["digest"]});
    assert_eq!(server.post("ops", &path, &read).await.0, 200);
    assert_eq!(server.get("ops", "/v1/approvals/none").await.0, 404);
}

#[tokio::test]
async fn no_door_is_open_to_strangers_or_to_pages_from_elsewhere() {
    let server = start(HttpOptions {
        tokens: tokens(),
        doors: crate::http::HttpDoor::ALL.to_vec(),
        ..HttpOptions::default()
    })
    .await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}});
    for (method, path) in [
        ("POST", "/claw"),
        ("GET", "/claw"),
        ("DELETE", "/claw"),
        ("GET", "/v1/sessions"),
        ("GET", "/openai/v1/models"),
        ("POST", "/openai/v1/chat/completions"),
        ("POST", "/openai/v1/responses"),
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        ("DELETE", "/mcp"),
        ("POST", "/a2a"),
    ] {
        let body = (method == "POST").then_some(&body);
        for who in ["", "mallory"] {
            let (status, head, _) = server.send(who, method, path, body, "").await;
            assert_eq!(status, 401, "{who} {method} {path}");
            assert!(head.contains("www-authenticate: bearer"), "{head}");
        }
        // A name that somebody pointed at this address, and a page of another origin, with a good token.
        for more in [
            "host: evil.example\r\n",
            "host: localhost.evil.example\r\n",
            "origin: https://evil.example\r\n",
            "origin: null\r\n",
        ] {
            let (status, ..) = server.send("ops", method, path, body, more).await;
            assert_eq!(status, 403, "{more} {method} {path}");
        }
    }
}
