//! R37: the tool holds a placeholder; only the bound header to the bound host over verified TLS gets the secret.

use std::sync::Arc;

use clawk_egress::proxy::Options;
use clawk_egress::{EgressSecret, ScreenVerdict, SecretScan, SecretScreen};
use clawk_secrets::Secret;

use super::support::{
    Canary, Running, at_loopback, certified, options, say, start, status, through_tls, trusting,
};

const VALUE: &str = "s3cr3t-Value/42+x";

fn binding(hosts: &[String]) -> EgressSecret {
    EgressSecret {
        secret: Secret::new("API_KEY", VALUE),
        tools: vec!["shell".to_owned()],
        hosts: hosts
            .iter()
            .map(|host| host.clone().try_into().unwrap())
            .collect(),
        header: "Authorization".to_owned(),
        env: "API_KEY".to_owned(),
        prefix: String::new(),
        plain_http: false,
    }
}

struct Bound {
    canary: Canary,
    other: Canary,
    running: Running,
    placeholder: String,
    trust: String,
    _dir: tempfile::TempDir,
}

impl Bound {
    async fn with(change: impl FnOnce(&mut Options, u16, u16)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = certified(dir.path(), "ca.pem", &["api.test", "other.test"]);
        let echo = |request: &str| {
            let body = format!("echo: {request} again: {}", VALUE.to_uppercase());
            format!(
                "HTTP/1.1 200 OK\r\nX-Echo: {}\r\nContent-Length: {}\r\n\r\n{body}",
                auth(request),
                body.len()
            )
            .into_bytes()
        };
        let canary = Canary::tls(config.clone(), echo);
        let other = Canary::tls(config, echo);
        let (port, other_port) = (canary.port, other.port);
        let mut made = options(
            &format!(
                "allow_private = ['api.test:{port}', 'other.test:{other_port}', 'api.test:{other_port}']"
            ),
            at_loopback(&["api.test", "other.test"]),
        );
        made.bindings = vec![Arc::new(binding(&[format!("api.test:{port}")]))];
        change(&mut made, port, other_port);
        let running = start(made, &trusting(dir.path(), "ca.pem")).await;
        let placeholder = running.call.placeholders().remove(0).1;
        let trust = running.proxy.trust_bundle().unwrap().to_string();
        Self {
            canary,
            other,
            running,
            placeholder,
            trust,
            _dir: dir,
        }
    }

    async fn new() -> Self {
        Self::with(|_, _, _| {}).await
    }

    async fn send(&self, request: &str) -> Result<String, String> {
        let authority = format!("api.test:{}", self.canary.port);
        through_tls(self.running.address, &authority, "api.test", &self.trust, request).await
    }

    fn request(&self, path: &str, headers: &str, body: &str) -> String {
        let port = self.canary.port;
        format!(
            "POST {path} HTTP/1.1\r\nHost: api.test:{port}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

fn auth(request: &str) -> String {
    let line = request
        .lines()
        .find_map(|line| line.strip_prefix("Authorization: "));
    line.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_secret_is_put_in_at_the_boundary_and_taken_out_of_the_answer() {
    let bound = Bound::new().await;
    let header = format!(
        "Authorization: Bearer {}\r\nAccept-Encoding: gzip\r\nRange: bytes=0-3\r\n",
        bound.placeholder
    );
    let answer = bound.send(&bound.request("/v1", &header, "{}")).await.unwrap();
    let hit = bound.canary.hits().remove(0);
    assert!(
        hit.contains(&format!("Authorization: Bearer {VALUE}\r\n")),
        "{hit}"
    );
    assert!(
        !hit.contains("Accept-Encoding") && !hit.contains("Range"),
        "{hit}"
    );
    assert_eq!(status(&answer), 200, "{answer}");
    assert!(!answer.contains(VALUE), "{answer}");
    assert_eq!(
        answer.matches("[secret API_KEY]").count(),
        2,
        "in the header and in the body: {answer}"
    );
    assert!(
        answer.contains("POST /v1") && answer.contains("Transfer-Encoding: chunked"),
        "{answer}"
    );
    let reached = bound.running.end().await;
    let one = &reached.connections[0];
    assert!(one.terminated && one.refused.is_none());
    assert_eq!(
        one.secrets.iter().map(|name| &**name).collect::<Vec<_>>(),
        ["API_KEY"]
    );
    assert!(!format!("{reached:?}").contains(VALUE));
}

#[tokio::test]
async fn basic_credentials_hold_a_placeholder_too() {
    use base64::Engine as _;
    let engine = base64::engine::general_purpose::STANDARD;
    let bound = Bound::new().await;
    let header = format!(
        "Authorization: Basic {}\r\n",
        engine.encode(format!("git:{}", bound.placeholder))
    );
    let answer = bound.send(&bound.request("/", &header, "")).await.unwrap();
    let hit = bound.canary.hits().remove(0);
    let expected = engine.encode(format!("git:{VALUE}"));
    assert!(
        hit.contains(&format!("Authorization: Basic {expected}\r\n")),
        "{hit}"
    );
    assert!(
        !answer.contains(&expected) && !answer.contains(&expected[8..20]),
        "{answer}"
    );
}

#[tokio::test]
async fn a_placeholder_anywhere_else_is_refused_and_told() {
    let bound = Bound::new().await;
    let p = &bound.placeholder;
    use base64::Engine as _;
    let coded = base64::engine::general_purpose::STANDARD.encode(format!("ab{p}c"));
    let long = format!("{}{p}", "x".repeat(300 << 10));
    let shapes = [
        bound.request(&format!("/?key={p}"), "", ""),
        bound.request(&format!("/{p}"), "", ""),
        bound.request("/", &format!("X-Other: {p}\r\n"), ""),
        bound.request("/", &format!("X-Other: {coded}\r\n"), ""),
        bound.request("/", &format!("Cookie: a=b; c={p}\r\n"), ""),
        bound.request("/", "", &format!("{{\"key\":\"{p}\"}}")),
        bound.request("/", "", &coded),
        bound.request("/", &format!("X-{p}: 1\r\n"), ""),
    ];
    for request in &shapes {
        let answer = bound.send(request).await.unwrap();
        assert_eq!(status(&answer), 403, "{request}: {answer}");
        assert!(answer.contains("X-Clawk-Refused: placeholder"), "{answer}");
    }
    assert_eq!(bound.canary.accepted(), 0, "nothing of them left");
    // A long body is on its way before its end is seen: the end never leaves.
    let _ = bound.send(&bound.request("/", "", &long)).await;
    assert!(
        bound.canary.hits().iter().all(|hit| !hit.contains(p.as_str())),
        "cut"
    );
    let reached = bound.running.end().await;
    let refused = reached.connections.iter().filter(|one| {
        one.refused
            .as_ref()
            .is_some_and(|denial| denial.code == "placeholder")
    });
    assert_eq!(refused.count(), shapes.len() + 1);
}

#[tokio::test]
async fn another_host_gets_the_placeholder_at_most() {
    let bound = Bound::new().await;
    // To the same name on another port: a tunnel, end to end. The placeholder is worth nothing there.
    let ca = std::fs::read_to_string(bound._dir.path().join("ca.pem")).unwrap();
    let other = bound.other.port;
    let header = format!(
        "GET / HTTP/1.1\r\nHost: api.test:{other}\r\nAuthorization: Bearer {}\r\n\r\n",
        bound.placeholder
    );
    for host in ["api.test", "other.test"] {
        let answer = through_tls(
            bound.running.address,
            &format!("{host}:{other}"),
            host,
            &ca,
            &header,
        )
        .await;
        assert!(answer.unwrap().contains(&bound.placeholder));
    }
    assert!(bound.other.hits().iter().all(|hit| !hit.contains(VALUE)));
    // Plain HTTP to the bound host: refused, and nothing is sent.
    let port = bound.canary.port;
    let plain = format!(
        "GET http://api.test:{port}/ HTTP/1.1\r\nHost: api.test:{port}\r\nAuthorization: Bearer {}\r\n\r\n",
        bound.placeholder
    );
    let answer = say(bound.running.address, plain.as_bytes()).await;
    assert!(answer.contains("X-Clawk-Refused: secret"), "{answer}");
    // The other server's certificate is not the bound host's: the name inside must be the name outside.
    let wrong = through_tls(
        bound.running.address,
        &format!("api.test:{port}"),
        "other.test",
        &bound.trust,
        "GET / HTTP/1.1\r\n\r\n",
    )
    .await;
    assert!(wrong.is_err(), "{wrong:?}");
    let inner = format!(
        "GET / HTTP/1.1\r\nHost: other.test\r\nAuthorization: Bearer {}\r\n\r\n",
        bound.placeholder
    );
    let answer = bound.send(&inner).await.unwrap();
    assert_eq!(status(&answer), 403, "{answer}");
    assert_eq!(bound.canary.accepted(), 0);
}

#[tokio::test]
async fn a_server_that_is_not_the_host_gets_nothing() {
    // The name leads to a server with a certificate of an authority that nobody trusts.
    let dir = tempfile::tempdir().unwrap();
    let bound = Bound::with(|options, port, other| {
        options.bindings = vec![Arc::new(binding(&[
            format!("api.test:{port}"),
            format!("api.test:{other}"),
        ]))];
    })
    .await;
    let rogue = Canary::tls(certified(dir.path(), "rogue.pem", &["api.test"]), |_| {
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec()
    });
    let mut made = options(
        &format!("allow_private = ['api.test:{}']", rogue.port),
        at_loopback(&["api.test"]),
    );
    made.bindings = vec![Arc::new(binding(&[format!("api.test:{}", rogue.port)]))];
    let running = start(made, &trusting(bound._dir.path(), "ca.pem")).await;
    let placeholder = running.call.placeholders().remove(0).1;
    let trust = running.proxy.trust_bundle().unwrap().to_string();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: api.test:{}\r\nAuthorization: Bearer {placeholder}\r\n\r\n",
        rogue.port
    );
    let answer = through_tls(
        running.address,
        &format!("api.test:{}", rogue.port),
        "api.test",
        &trust,
        &request,
    )
    .await;
    assert!(
        answer.as_ref().unwrap().contains("X-Clawk-Refused: tls"),
        "{answer:?}"
    );
    assert!(rogue.hits().is_empty());
}

#[tokio::test]
async fn placeholders_are_each_calls_own() {
    let bound = Bound::new().await;
    let again = bound.running.proxy.call(&["shell"]).unwrap().placeholders();
    assert_ne!(again[0].1, bound.placeholder);
    assert!(
        bound
            .running
            .proxy
            .call(&["web-fetch"])
            .unwrap()
            .placeholders()
            .is_empty()
    );
    // Another call's placeholder is text like any other: no secret for it.
    let header = format!("Authorization: Bearer {}\r\n", again[0].1);
    bound.send(&bound.request("/", &header, "")).await.unwrap();
    assert!(!bound.canary.hits()[0].contains(VALUE));
}

#[tokio::test]
async fn a_coded_answer_is_not_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let canary = Canary::tls(certified(dir.path(), "ca.pem", &["api.test"]), |_| {
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd".to_vec()
    });
    let mut made = options(
        &format!("allow_private = ['api.test:{}']", canary.port),
        at_loopback(&["api.test"]),
    );
    made.bindings = vec![Arc::new(binding(&[format!("api.test:{}", canary.port)]))];
    let running = start(made, &trusting(dir.path(), "ca.pem")).await;
    let trust = running.proxy.trust_bundle().unwrap().to_string();
    let request = format!("GET / HTTP/1.1\r\nHost: api.test:{}\r\n\r\n", canary.port);
    let answer = through_tls(
        running.address,
        &format!("api.test:{}", canary.port),
        "api.test",
        &trust,
        &request,
    )
    .await;
    assert_eq!(status(&answer.unwrap()), 502);
}

/// Finds one word; redacts or blocks it. Knows nothing of pieces: the tests give it whole ones.
#[derive(Debug)]
struct Words {
    word: &'static str,
    block: bool,
}

struct Reading(&'static str, bool);

impl SecretScreen for Words {
    fn begin_scan(&self) -> Box<dyn SecretScan> {
        Box::new(Reading(self.word, self.block))
    }
}

impl SecretScan for Reading {
    fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> ScreenVerdict {
        let text = String::from_utf8_lossy(piece);
        if !text.contains(self.0) {
            out.extend_from_slice(piece);
            return ScreenVerdict::Clean;
        }
        if self.1 {
            return ScreenVerdict::Blocked("word".to_owned());
        }
        out.extend_from_slice(text.replace(self.0, "[gone]").as_bytes());
        ScreenVerdict::Noted(vec!["word".to_owned()])
    }

    fn finish(&mut self, _out: &mut Vec<u8>) -> ScreenVerdict {
        ScreenVerdict::Clean
    }
}

#[tokio::test]
async fn what_leaves_is_screened() {
    for block in [false, true] {
        let bound = Bound::with(|options, _, _| {
            options.screen = Some(Arc::new(Words { word: "AKIA1", block }));
        })
        .await;
        for request in [
            bound.request("/?a=AKIA1", "", ""),
            bound.request("/", "X-Key: AKIA1\r\n", ""),
            bound.request("/", "", "say AKIA1 now"),
        ] {
            let answer = bound.send(&request).await.unwrap();
            if block {
                assert!(answer.contains("X-Clawk-Refused: leak"), "{answer}");
            } else {
                assert_eq!(status(&answer), 200, "{answer}");
                let hit = bound.canary.hits().pop().unwrap();
                assert!(hit.contains("[gone]") && !hit.contains("AKIA1"), "{hit}");
            }
        }
        assert_eq!(bound.canary.hits().len(), if block { 0 } else { 3 });
        let reached = bound.running.end().await;
        if !block {
            assert!(
                reached.connections.iter().all(|one| one.findings == ["word"]),
                "{reached:?}"
            );
        }
    }
}

#[tokio::test]
async fn strict_mode_sees_every_host() {
    let bound = Bound::with(|options, _, _| {
        options.terminate_all = true;
        options.screen = Some(Arc::new(Words {
            word: "AKIA1",
            block: true,
        }));
    })
    .await;
    let other = bound.other.port;
    let place = format!("other.test:{other}");
    let request = format!("GET /AKIA1 HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let answer = through_tls(
        bound.running.address,
        &place,
        "other.test",
        &bound.trust,
        &request,
    )
    .await;
    assert!(answer.unwrap().contains("X-Clawk-Refused: leak"));
    let request = format!(
        "GET / HTTP/1.1\r\nHost: {place}\r\nAuthorization: Bearer {}\r\n\r\n",
        bound.placeholder
    );
    let answer = through_tls(
        bound.running.address,
        &place,
        "other.test",
        &bound.trust,
        &request,
    )
    .await;
    assert!(answer.unwrap().contains("X-Clawk-Refused: placeholder"));
    assert_eq!(bound.other.accepted(), 0);
    let raw = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n\u{0}\u{1}binary");
    say(bound.running.address, raw.as_bytes()).await;
    assert_eq!(bound.other.accepted(), 0);
}
