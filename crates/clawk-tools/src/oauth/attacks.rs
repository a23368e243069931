//! Tests: attacks of an authorization server or an MCP server during a login, on loopback. The tests check that no secret is sent:
//! the other host receives nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use clawk_egress::{HostPattern, Url};
use clawk_kernel::time::{Clock, SystemClock};
use clawk_secrets::EnvironmentSource;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::wire::OAuthClient;
use super::{LoginMethod, LoginRequest, run_login};

/// A server that answers by path; everything else is 404. It keeps every request line and body.
#[derive(Clone, Default)]
struct AttackSite {
    answers: Arc<Mutex<BTreeMap<String, String>>>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl AttackSite {
    fn set_answer(&self, path: &str, status: &str, extra: &str, body: &Value) {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{extra}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        self.answers.lock().expect("a lock").insert(path.to_owned(), text);
    }

    fn received_requests(&self) -> Vec<String> {
        self.heard.lock().expect("a lock").clone()
    }

    async fn serve_connection(&self, mut stream: TcpStream) {
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 16 << 10]);
        let whole = loop {
            let read = stream.read(&mut piece).await.unwrap_or(0);
            bytes.extend_from_slice(piece.get(..read).unwrap_or_default());
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse()
                        .ok()
                });
                if body.len() >= length.unwrap_or(0) {
                    break text;
                }
            }
            if read == 0 {
                break text;
            }
        };
        self.heard.lock().expect("a lock").push(whole.clone());
        let path = whole.split(' ').nth(1).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let answer = self.answers.lock().expect("a lock").get(path).cloned();
        let none = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
        let _ = stream.write_all(answer.unwrap_or(none).as_bytes()).await;
    }

    async fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let site = Self::default();
        let served = site.clone();
        #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                served.serve_connection(stream).await;
            }
        });
        (site, base)
    }
}

/// An MCP server with its own authorization server. `change` is what the attacker writes into its metadata.
async fn start_honest_site(change: &Value) -> (AttackSite, String) {
    let (site, base) = AttackSite::start().await;
    site.set_answer(
        "/mcp",
        "401 Unauthorized",
        "WWW-Authenticate: Bearer\r\n",
        &Value::Null,
    );
    let resource = json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]});
    site.set_answer(
        "/.well-known/oauth-protected-resource/mcp",
        "200 OK",
        "",
        &resource,
    );
    let mut metadata = json!({
        "issuer": base, "authorization_endpoint": format!("{base}/authorize"), "token_endpoint": format!("{base}/token"),
        "registration_endpoint": format!("{base}/register"), "device_authorization_endpoint": format!("{base}/device"),
        "code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": true});
    for (name, value) in change.as_object().into_iter().flatten() {
        metadata[name] = value.clone();
    }
    site.set_answer("/.well-known/oauth-authorization-server", "200 OK", "", &metadata);
    site.set_answer(
        "/register",
        "201 Created",
        "",
        &json!({"client_id": "me", "token_endpoint_auth_method": "none"}),
    );
    let token = json!({"access_token": "t", "token_type": "Bearer"});
    site.set_answer("/token", "200 OK", "", &token);
    (site, base)
}

fn login_request(base: &str, way: LoginMethod, also_hosts: Vec<String>) -> LoginRequest {
    LoginRequest {
        server: Url::parse(&format!("{base}/mcp")).expect("an address"),
        way,
        scope: None,
        client_id: None,
        client_secret: None,
        also_hosts,
    }
}

/// A login whose browser returns these parameters in addition to `state`.
async fn log_in(asked: &LoginRequest, comes_back: &str) -> Result<(), String> {
    let private: Vec<HostPattern> = vec!["127.0.0.1".to_owned().try_into().expect("a pattern")];
    let web = OAuthClient::new(&private, &EnvironmentSource::from_pairs::<&str, &str>([])).expect("a client");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let comes_back = comes_back.to_owned();
    let tell = move |text: &str| {
        let Some(address) = text.strip_prefix("open in a browser on this machine:\n  ") else {
            return;
        };
        let url = Url::parse(address).expect("an address");
        let of = |name: &str| {
            url.query_pairs()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.into_owned())
        };
        let back = Url::parse(&of("redirect_uri").expect("a way back")).expect("an address");
        let target = format!("/callback?state={}&{comes_back}", of("state").expect("a state"));
        let at = format!("127.0.0.1:{}", back.port().expect("a port"));
        #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
        tokio::spawn(async move {
            let mut stream = TcpStream::connect(at).await.expect("listens");
            let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n");
            let _ = stream.write_all(request.as_bytes()).await;
            let _ = stream.read(&mut [0; 1024]).await;
        });
    };
    run_login(&web, asked, &clock, &tell)
        .await
        .map(drop)
        .map_err(|error| error.to_string())
}

fn escape_url(base: &str) -> String {
    base.replace(':', "%3A").replace('/', "%2F")
}

#[tokio::test]
async fn an_honest_server_gets_the_login() {
    let (site, base) = start_honest_site(&json!({})).await;
    log_in(
        &login_request(&base, LoginMethod::Browser, Vec::new()),
        &format!("code=c&iss={}", escape_url(&base)),
    )
    .await
    .expect("logged in");
    assert!(
        site.received_requests()
            .iter()
            .any(|one| one.starts_with("POST /token") && one.contains("code_verifier="))
    );
}

#[tokio::test]
async fn an_endpoint_of_another_host_gets_nothing_unless_a_person_agrees() {
    for name in [
        "token_endpoint",
        "authorization_endpoint",
        "registration_endpoint",
        "device_authorization_endpoint",
    ] {
        for way in [LoginMethod::Browser, LoginMethod::Device] {
            let (other, elsewhere) = AttackSite::start().await;
            let (site, base) = start_honest_site(&json!({name: format!("{elsewhere}/x")})).await;
            let refused = log_in(&login_request(&base, way, Vec::new()), "code=c")
                .await
                .expect_err("refused");
            assert!(
                refused.contains("at another host") && refused.contains("--also-host 127.0.0.1:"),
                "{name}: {refused}"
            );
            assert!(other.received_requests().is_empty(), "{name}");
            assert!(
                !site
                    .received_requests()
                    .iter()
                    .any(|one| one.starts_with("POST /register") || one.starts_with("POST /token")),
                "{name}"
            );
        }
    }
    let (other, elsewhere) = AttackSite::start().await;
    other.set_answer(
        "/x",
        "200 OK",
        "",
        &json!({"access_token": "t", "token_type": "Bearer"}),
    );
    let (_, base) = start_honest_site(&json!({"token_endpoint": format!("{elsewhere}/x")})).await;
    let agreed = vec![elsewhere.trim_start_matches("http://").to_owned()];
    log_in(
        &login_request(&base, LoginMethod::Browser, agreed),
        &format!("code=c&iss={}", escape_url(&base)),
    )
    .await
    .expect("agreed");
    assert!(
        other
            .received_requests()
            .iter()
            .any(|one| one.contains("code_verifier="))
    );
}

#[tokio::test]
async fn the_verifier_follows_no_redirect() {
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        let (other, elsewhere) = AttackSite::start().await;
        let (site, base) = start_honest_site(&json!({})).await;
        site.set_answer(
            "/token",
            status,
            &format!("Location: {elsewhere}/x\r\n"),
            &Value::Null,
        );
        let said = log_in(
            &login_request(&base, LoginMethod::Browser, Vec::new()),
            &format!("code=c&iss={}", escape_url(&base)),
        )
        .await;
        assert!(said.is_err(), "{status}");
        assert!(other.received_requests().is_empty(), "{status}");
    }
}

#[tokio::test]
async fn an_answer_of_another_issuer_is_not_used() {
    for back in [
        "code=c".to_owned(),
        "code=c&iss=https%3A%2F%2Fevil.test".to_owned(),
        "code=c&iss=".to_owned(),
        "error=x&iss=https%3A%2F%2Fevil.test".to_owned(),
    ] {
        let (site, base) = start_honest_site(&json!({})).await;
        let refused = log_in(&login_request(&base, LoginMethod::Browser, Vec::new()), &back)
            .await
            .expect_err("refused");
        assert!(
            refused.contains("another authorization server"),
            "{back}: {refused}"
        );
        assert!(
            !site
                .received_requests()
                .iter()
                .any(|one| one.starts_with("POST /token")),
            "{back}"
        );
    }
}

#[tokio::test]
async fn metadata_of_somebody_else_is_refused() {
    for change in [
        json!({"issuer": "https://honest.example"}),
        json!({"issuer": null}),
        json!({"token_endpoint": null}),
        json!({"token_endpoint": 7}),
        json!({"token_endpoint": "https://127.0.0.1@evil.test/token"}),
        json!({"authorization_endpoint": "javascript:alert(1)"}),
    ] {
        let (site, base) = start_honest_site(&change).await;
        log_in(&login_request(&base, LoginMethod::Browser, Vec::new()), "code=c")
            .await
            .expect_err("refused");
        assert!(
            !site
                .received_requests()
                .iter()
                .any(|one| one.starts_with("POST /register")),
            "{change}"
        );
    }
}
