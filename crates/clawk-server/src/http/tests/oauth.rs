//! Tokens of an authorization server: what is taken, what is refused, and what is told to who has none. The issuer is a listener
//! that publishes its keys; it signs with Ed25519 and P-256.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clawk_secrets::{EnvironmentSource, Secret};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::oauth::{IntrospectionEndpoint, JwtAlgorithm, OAuth, OAuthOptions};

const ISSUER_NAME: &str = "https://issuer.example";
const RESOURCE: &str = "https://agent.example";
/// Where the rig's clock begins, seconds since 1970.
const NOW_S: i64 = 1_767_323_045;

fn base(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Two keys of an issuer, and where they are published.
struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    url: String,
    /// How often somebody asked.
    asked: Arc<AtomicUsize>,
}

fn ed25519() -> Ed25519KeyPair {
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap()
}

fn p256() -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pair.as_ref(), &random).unwrap()
}

/// Answers every request with what `answer` makes of it.
async fn listener(answer: impl Fn(&str) -> Value + Send + 'static) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut bytes = vec![0; 16_384];
            let read = stream.read(&mut bytes).await.unwrap();
            let body = answer(&String::from_utf8_lossy(&bytes[..read])).to_string();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream
                .write_all(format!("{head}{body}").as_bytes())
                .await
                .unwrap();
        }
    });
    (url, asked)
}

impl Issuer {
    async fn start() -> Self {
        let (ed, ec) = (ed25519(), p256());
        let (x, y) = ec.public_key().as_ref()[1..].split_at(32);
        let set = json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "alg": "EdDSA", "use": "sig", "x": base(ed.public_key())},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "use": "sig", "x": base(x), "y": base(y)},
            {"kty": "oct", "kid": "shared", "k": base("secret")},
        ]});
        let (url, asked) = listener(move |_| set.clone()).await;
        Self { ed, ec, url, asked }
    }

    fn options(&self) -> OAuthOptions {
        OAuthOptions {
            issuer: ISSUER_NAME.to_owned(),
            resource: RESOURCE.to_owned(),
            audiences: vec!["agent-api".to_owned()],
            jwks: Some(self.url.parse().unwrap()),
            introspection: None,
            algorithms: vec![JwtAlgorithm::EdDsa, JwtAlgorithm::ES256],
            scopes: BTreeMap::from([
                ("agent.look".to_owned(), vec![Scope::Read]),
                (
                    "agent.work".to_owned(),
                    vec![Scope::Read, Scope::Resolve, Scope::Execute],
                ),
            ]),
        }
    }

    async fn server(&self) -> Server {
        guarded_by(OAuth::new(self.options(), &EnvironmentSource::from_pairs::<&str, &str>([])).unwrap())
            .await
    }

    fn ed(&self, claims: &Value) -> String {
        signed(
            &json!({"alg": "EdDSA", "kid": "ed", "typ": "at+jwt"}),
            claims,
            |text| self.ed.sign(text).as_ref().to_vec(),
        )
    }
}

async fn guarded_by(oauth: OAuth) -> Server {
    start(HttpOptions {
        tokens: tokens(),
        oauth: Some(oauth),
        ..HttpOptions::default()
    })
    .await
}

fn signed(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let text = format!("{}.{}", base(header.to_string()), base(claims.to_string()));
    let mark = base(sign(text.as_bytes()));
    format!("{text}.{mark}")
}

fn claims() -> Value {
    json!({"iss": ISSUER_NAME, "sub": "ann", "aud": [format!("{RESOURCE}/mcp")], "exp": NOW_S + 300, "scope": "openid agent.work"})
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

impl Server {
    async fn as_bearer(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, String, Value) {
        let more = format!("authorization: Bearer {token}\r\n");
        self.send("", method, path, body, &more).await
    }
}

#[tokio::test]
async fn a_token_of_the_issuer_has_the_scopes_of_the_operators_table_and_sessions_of_its_own() {
    let issuer = Issuer::start().await;
    let server = issuer.server().await;
    let open = json!({"agent_id": "desk", "goal": "help"});
    let ann = issuer.ed(&claims());
    let (status, _, body) = server.as_bearer(&ann, "POST", "/v1/sessions", Some(&open)).await;
    assert_eq!(status, 201, "{body}");
    let session = format!("/v1/sessions/{}", body["session_id"].as_str().unwrap());
    assert_eq!(server.as_bearer(&ann, "GET", &session, None).await.0, 200);
    // Another subject's session is nobody's; so is one of a token of the table with the same name.
    let bob = issuer.ed(&with("sub", json!("bob")));
    assert_eq!(server.as_bearer(&bob, "GET", &session, None).await.0, 404);
    assert_eq!(server.get("ann", &session).await.0, 404);
    // A scope that the table does not know allows nothing; one that lacks is named.
    let eve = issuer.ed(&with("scope", json!("admin agent.look")));
    assert_eq!(server.as_bearer(&eve, "GET", "/v1/sessions", None).await.0, 200);
    let (status, head, _) = server.as_bearer(&eve, "POST", "/v1/sessions", Some(&open)).await;
    assert_eq!(status, 403);
    assert!(
        head.contains("error=\"insufficient_scope\"") && head.contains("scope=\"agent.work\""),
        "{head}"
    );
    // The other key, and an array of scopes.
    let mut other = claims();
    other.as_object_mut().unwrap().remove("scope");
    other["scp"] = json!(["agent.look"]);
    let sign = |text: &[u8]| {
        issuer
            .ec
            .sign(&SystemRandom::new(), text)
            .unwrap()
            .as_ref()
            .to_vec()
    };
    let other = signed(&json!({"alg": "ES256", "kid": "ec"}), &other, sign);
    assert_eq!(server.as_bearer(&other, "GET", "/v1/sessions", None).await.0, 200);
    // A kid is not needed where one key fits.
    let sign = |text: &[u8]| issuer.ed.sign(text).as_ref().to_vec();
    let nameless = signed(&json!({"alg": "EdDSA"}), &claims(), sign);
    assert_eq!(
        server.as_bearer(&nameless, "GET", "/v1/sessions", None).await.0,
        200
    );
    // Tokens of the table still hold.
    assert_eq!(server.get("eve", "/v1/sessions").await.0, 200);
    assert_eq!(
        issuer.asked.load(Ordering::SeqCst),
        1,
        "the keys were fetched once"
    );
}

/// Tokens whose signature or form is wrong.
fn forged(issuer: &Issuer) -> Vec<(&'static str, String)> {
    let stranger = ed25519();
    let public = issuer.ed.public_key().as_ref().to_vec();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &public);
    let ed = |text: &[u8]| issuer.ed.sign(text).as_ref().to_vec();
    let of_stranger = |text: &[u8]| stranger.sign(text).as_ref().to_vec();
    let shared = |text: &[u8]| ring::hmac::sign(&key, text).as_ref().to_vec();
    let by = |header: Value, sign: &dyn Fn(&[u8]) -> Vec<u8>| signed(&header, &claims(), sign);
    let inside = json!({"kty": "OKP", "crv": "Ed25519", "x": base(stranger.public_key())});
    let good = issuer.ed(&claims());
    let (head, rest) = good.split_once('.').unwrap();
    let (body, mark) = rest.split_once('.').unwrap();
    let other = base(with("sub", json!("ops")).to_string());
    vec![
        ("no signature", by(json!({"alg": "none"}), &|_| Vec::new())),
        (
            "no signature, by a name",
            by(json!({"alg": "nOnE", "kid": "ed"}), &|_| Vec::new()),
        ),
        (
            "a stranger's key",
            by(json!({"alg": "EdDSA", "kid": "ed"}), &of_stranger),
        ),
        (
            "a key inside",
            by(json!({"alg": "EdDSA", "jwk": inside}), &of_stranger),
        ),
        (
            "the public key as a shared secret",
            by(json!({"alg": "HS256", "kid": "ed"}), &shared),
        ),
        (
            "another key's name",
            by(json!({"alg": "EdDSA", "kid": "ec"}), &ed),
        ),
        (
            "an unknown key's name",
            by(json!({"alg": "EdDSA", "kid": "new"}), &ed),
        ),
        (
            "an extension",
            by(
                json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"], "b64": false}),
                &ed,
            ),
        ),
        (
            "not an access token",
            by(json!({"alg": "EdDSA", "kid": "ed", "typ": "logout+jwt"}), &ed),
        ),
        ("other claims", format!("{head}.{other}.{mark}")),
        ("no mark", format!("{head}.{body}.")),
        ("a fourth part", format!("{good}.AAAA")),
        ("no token at all", "abc".to_owned()),
    ]
}

/// Tokens that the issuer signed, and that are not for us, or not now.
fn foreign(issuer: &Issuer) -> Vec<(&'static str, String)> {
    let without = |name: &str| {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(name);
        issuer.ed(&claims)
    };
    let of = |name: &str, value: Value| issuer.ed(&with(name, value));
    vec![
        ("expired", of("exp", json!(NOW_S - 61))),
        ("without an end", without("exp")),
        ("not yet", of("nbf", json!(NOW_S + 120))),
        (
            "another issuer",
            of("iss", json!("https://issuer.example.evil.example")),
        ),
        ("another audience", of("aud", json!("https://other.example"))),
        (
            "an audience that begins alike",
            of("aud", json!("https://agent.example.evil.example/mcp")),
        ),
        (
            "a door that is none",
            of("aud", json!("https://agent.example/admin")),
        ),
        ("no audience", of("aud", Value::Null)),
        ("no subject", without("sub")),
        ("a subject with a line", of("sub", json!("ann\nops"))),
        ("too long", of("padding", json!("x".repeat(14_000)))),
    ]
}

#[tokio::test]
async fn forged_expired_and_foreign_tokens_are_refused() {
    let issuer = Issuer::start().await;
    let server = issuer.server().await;
    for (what, token) in forged(&issuer).into_iter().chain(foreign(&issuer)) {
        let (status, head, body) = server.as_bearer(&token, "GET", "/v1/sessions", None).await;
        assert_eq!(status, 401, "{what}: {body}");
        assert!(head.contains("error=\"invalid_token\""), "{what}: {head}");
        // Which of them it is, nobody is told.
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("a valid token"), "{body}");
    }
    let good = issuer.ed(&claims());
    assert_eq!(server.as_bearer(&good, "GET", "/v1/sessions", None).await.0, 200);
    let aud = issuer.ed(&with("aud", json!("agent-api")));
    assert_eq!(server.as_bearer(&aud, "GET", "/v1/sessions", None).await.0, 200);
    // Names of unknown keys make no flood of questions.
    assert!(issuer.asked.load(Ordering::SeqCst) <= 2, "{:?}", issuer.asked);
}

#[tokio::test]
async fn who_has_no_token_is_told_where_to_get_one() {
    let issuer = Issuer::start().await;
    let server = issuer.server().await;
    let (status, head, _) = server.send("", "GET", "/v1/sessions", None, "").await;
    assert_eq!(status, 401);
    let place = "https://agent.example/.well-known/oauth-protected-resource/v1";
    assert!(
        head.contains(&format!("resource_metadata=\"{place}\"")) && !head.contains("error="),
        "{head}"
    );
    for (path, resource) in [("", ""), ("/mcp", "/mcp")] {
        let (status, body) = server
            .get("", &format!("/.well-known/oauth-protected-resource{path}"))
            .await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(body["resource"], format!("{RESOURCE}{resource}"));
        assert_eq!(body["authorization_servers"], json!([ISSUER_NAME]));
        assert_eq!(body["scopes_supported"], json!(["agent.look", "agent.work"]));
    }
    assert_eq!(
        server
            .get("", "/.well-known/oauth-protected-resource/other")
            .await
            .0,
        404
    );
    // Without an authorization server there is no such page.
    let server = guarded().await;
    assert_eq!(
        server.get("", "/.well-known/oauth-protected-resource").await.0,
        404
    );
}

#[tokio::test]
async fn an_issuer_that_is_asked_says_who_it_is() {
    let (url, asked) = listener(|request| {
        assert!(request.to_ascii_lowercase().contains("authorization: basic "), "{request}");
        if request.contains("token=good&") {
            json!({"active": true, "sub": "ann", "aud": RESOURCE, "exp": NOW_S + 60, "scope": "agent.work"})
        } else if request.contains("token=other&") {
            json!({"active": true, "sub": "ann", "aud": "https://other.example", "exp": NOW_S + 60, "scope": "agent.work"})
        } else {
            json!({"active": false})
        }
    })
    .await;
    let issuer = Issuer::start().await;
    let options = OAuthOptions {
        introspection: Some(IntrospectionEndpoint {
            url: url.parse().unwrap(),
            client_id: "agent".to_owned(),
            secret: Secret::new("INTROSPECTION", "a secret"),
        }),
        ..issuer.options()
    };
    let server =
        guarded_by(OAuth::new(options, &EnvironmentSource::from_pairs::<&str, &str>([])).unwrap()).await;
    for _ in 0..3 {
        assert_eq!(server.as_bearer("good", "GET", "/v1/sessions", None).await.0, 200);
        assert_eq!(server.as_bearer("gone", "GET", "/v1/sessions", None).await.0, 401);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2, "an answer holds for a while");
    assert_eq!(
        server.as_bearer("other", "GET", "/v1/sessions", None).await.0,
        401
    );
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_lets_nobody_in() {
    let issuer = Issuer::start().await;
    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let options = OAuthOptions {
        jwks: Some(format!("http://{gone}/keys").parse().unwrap()),
        ..issuer.options()
    };
    let server =
        guarded_by(OAuth::new(options, &EnvironmentSource::from_pairs::<&str, &str>([])).unwrap()).await;
    let (status, _, body) = server
        .as_bearer(&issuer.ed(&claims()), "GET", "/v1/sessions", None)
        .await;
    assert_eq!(status, 503, "{body}");
    assert_eq!(
        server.get("ann", "/v1/sessions").await.0,
        200,
        "tokens of the table still hold"
    );
}
