use std::path::Path;
use std::time::{Duration, Instant};

use clawk_kernel::ports::{RunError, RunOutcome, ToolRunner};
use serde_json::{Value, json};

use crate::bind_tools;
use crate::testing::{Ran, fixture, host, manifest, open_plan, runner, text};

/// Tools of one server started with these options.
pub(super) fn tools(names: &[&str], options: &[&str]) -> Value {
    let args: String = options.iter().map(|option| format!("&arg={option}")).collect();
    let uri = format!("stdio://{}?arg=mcp{args}", fixture().display());
    names
        .iter()
        .map(|name| json!({"name": name, "mcp_source": {"uri": uri}}))
        .collect()
}

pub(super) struct Bench {
    pub(super) dir: tempfile::TempDir,
    pub(super) runner: crate::Runner,
    pub(super) ran: Ran,
}

impl Bench {
    fn new(names: &[&str], options: &[&str], config: &str) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let log = format!("starts={}", dir.path().join("log").display());
        let options: Vec<&str> = options.iter().copied().chain([log.as_str()]).collect();
        let runner = runner(tools(names, &options), config, dir.path());
        Self {
            dir,
            runner,
            ran: Ran::new(open_plan()),
        }
    }

    pub(super) async fn call(&self, tool: &str, arguments: Value) -> Result<RunOutcome, RunError> {
        self.ran.run(&self.runner, self.dir.path(), tool, arguments).await
    }

    fn log(&self, word: &str) -> usize {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().filter(|line| *line == word).count()
    }
}

fn processes(word: &Path) -> usize {
    let word = word.to_string_lossy().into_owned();
    let listing = std::fs::read_dir("/proc").expect("proc");
    let lines = listing
        .flatten()
        .map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(&word))
        .count()
}

#[tokio::test]
async fn one_lazy_server_for_all_tools_of_a_source() {
    let bench = Bench::new(&["echo", "environment", "fail", "kinds"], &[], "{}");
    assert_eq!(bench.log("start"), 0, "binding starts nothing");
    let said = bench.runner.describe_tool("echo").await.expect("described");
    assert_eq!(said.description, "The tool echo.");
    assert_eq!(said.input_schema["properties"]["text"]["type"], "string");
    assert!(said.trusted_annotations.is_empty(), "nobody trusts it");
    assert_eq!(
        text(&bench.call("echo", json!({"text": "hi"})).await.expect("ran")),
        "echo: hi"
    );
    let failed = bench.call("fail", json!({})).await.expect("ran");
    assert!(failed.is_error && text(&failed) == "no such row");
    assert!(
        failed
            .obtained
            .mechanisms
            .iter()
            .any(|mechanism| mechanism == "view")
    );
    let kinds = bench.call("kinds", json!({})).await.expect("ran");
    assert!(
        text(&kinds).contains("[audio audio/wav") && text(&kinds).contains("inside"),
        "{}",
        text(&kinds)
    );
    assert!(
        text(&kinds).contains("is left out"),
        "what is no picture is a note"
    );
    assert_eq!(kinds.structured, Some(json!({"rows": 2})));
    assert_eq!(bench.log("start"), 1);
    bench.runner.close().await;
    assert_eq!(processes(bench.dir.path()), 0, "closing ends the process");
}

#[tokio::test]
async fn the_environment_is_minimal_and_secrets_are_granted() {
    let config =
        json!({"environment": {"env": {"A": "1"}, "secret_env": {"TOKEN": "TOKEN_REF"}}}).to_string();
    let bench = Bench::new(&["environment"], &[], &config);
    let said = text(&bench.call("environment", json!({})).await.expect("ran"));
    let mut names: Vec<&str> = said.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "HOME", "LANG", "PATH", "TOKEN"]);
    assert!(said.contains("TOKEN=s3cr3t-value"));
}

#[tokio::test]
async fn annotations_count_only_when_trusted() {
    let bench = Bench::new(&["look"], &[], r#"{"look": {"trust_annotations": true}}"#);
    let said = bench.runner.describe_tool("look").await.expect("described");
    assert_eq!(said.trusted_annotations["readOnlyHint"], true);
}

#[tokio::test]
async fn the_only_tool_is_meant_and_an_absent_one_is_named() {
    let bench = Bench::new(&["whatever"], &["one"], "{}");
    assert_eq!(
        text(&bench.call("whatever", json!({"text": "x"})).await.expect("ran")),
        "only: x"
    );
    let bench = Bench::new(&["absent"], &[], "{}");
    match bench.call("absent", json!({})).await {
        Err(RunError::Unavailable(said)) => assert!(
            said.contains("has no tool `absent`") && said.contains("echo"),
            "{said}"
        ),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn death_in_a_call_is_unknown_and_the_next_call_gets_a_new_server() {
    let bench = Bench::new(&["die", "echo"], &[], "{}");
    match bench.call("die", json!({})).await {
        Err(error @ RunError::Unknown(_)) => {
            let said = error.to_string();
            assert!(
                said.contains("not known") && said.contains("out of cheese") && said.contains("signal 6"),
                "{said}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        text(&bench.call("echo", json!({"text": "again"})).await.expect("ran")),
        "echo: again"
    );
    assert_eq!(bench.log("start"), 2);
}

#[tokio::test]
async fn a_harmless_call_that_dies_surely_did_nothing() {
    let bench = Bench::new(&["look"], &[], r#"{"look": {"trust_annotations": true}}"#);
    assert!(matches!(
        bench.call("look", json!({})).await,
        Err(RunError::Unavailable(_))
    ));
}

#[tokio::test]
async fn restarts_are_bounded() {
    let bench = Bench::new(&["echo"], &["dead"], "{}");
    for _ in 0..4 {
        match bench.call("echo", json!({})).await {
            Err(RunError::Unavailable(said)) => assert!(said.contains("cannot open the database"), "{said}"),
            other => panic!("{other:?}"),
        }
    }
    match bench.call("echo", json!({})).await {
        Err(RunError::Unavailable(said)) => assert!(said.contains("4 times within a minute"), "{said}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.log("start"), 4, "the first start and three more");
}

#[tokio::test]
async fn a_slow_call_times_out_is_cancelled_there_and_the_server_lives() {
    let mut bench = Bench::new(&["slow", "echo"], &[], "{}");
    bench.runner.describe_tool("slow").await.expect("started");
    bench.ran.timeout_ms = 300;
    let started = Instant::now();
    assert!(matches!(
        bench.call("slow", json!({})).await,
        Err(RunError::Timeout { timeout_ms: 300, .. })
    ));
    assert!(started.elapsed() < Duration::from_secs(10));
    bench.ran.timeout_ms = 20_000;
    assert_eq!(
        text(&bench.call("echo", json!({"text": "on"})).await.expect("ran")),
        "echo: on"
    );
    let waited = Instant::now();
    while bench.log("cancelled") == 0 {
        assert!(waited.elapsed() < Duration::from_secs(5), "the server was told");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(bench.log("start"), 1);
}

#[tokio::test]
async fn a_server_without_a_sign_of_life_after_a_timeout_is_ended_and_started_again() {
    let mut bench = Bench::new(&["deaf", "echo"], &[], "{}");
    bench.runner.describe_tool("deaf").await.expect("started");
    bench.ran.timeout_ms = 300;
    assert!(matches!(
        bench.call("deaf", json!({})).await,
        Err(RunError::Timeout { timeout_ms: 300, .. })
    ));
    tokio::time::sleep(Duration::from_secs(5)).await;
    bench.ran.timeout_ms = 20_000;
    let heard = bench.call("echo", json!({"text": "on"})).await.expect("ran");
    assert_eq!(text(&heard), "echo: on");
    assert_eq!(
        bench.log("start"),
        2,
        "the deaf one was ended without another call"
    );
}

#[tokio::test]
async fn garbage_and_noise_are_passed_over() {
    let bench = Bench::new(&["echo"], &["noisy"], "{}");
    for _ in 0..5 {
        assert_eq!(
            text(&bench.call("echo", json!({"text": "clear"})).await.expect("ran")),
            "echo: clear"
        );
    }
}

#[tokio::test]
async fn floods_are_bounded() {
    let mut bench = Bench::new(&["big", "huge-line", "echo"], &[], "{}");
    let big = bench.call("big", json!({})).await.expect("ran");
    assert!(
        !big.is_error && text(&big).len() == 3_000_000,
        "3 MB are kept whole, and the call worked: {}",
        text(&big).len()
    );
    // A line over the bound is dropped and answers its call at once; the server lives.
    bench.ran.timeout_ms = 120_000;
    let started = Instant::now();
    let dropped = bench.call("huge-line", json!({})).await.expect("answered");
    assert!(
        dropped.is_error && text(&dropped).contains("MAX_MESSAGE_BYTES"),
        "{}",
        text(&dropped)
    );
    assert!(started.elapsed() < Duration::from_secs(60));
    assert_eq!(
        text(&bench.call("echo", json!({"text": "on"})).await.expect("ran")),
        "echo: on"
    );
    // A cursor that comes again ends the list.
    let endless = Bench::new(&["echo"], &["endless"], "{}");
    let said = endless.call("echo", json!({"text": "x"})).await.expect("ran");
    assert_eq!(text(&said), "echo: x");
}

#[tokio::test]
async fn many_calls_at_once_share_the_session() {
    let bench = Bench::new(&["echo"], &[], "{}");
    let calls = (0..50).map(|n| {
        let bench = &bench;
        async move {
            text(
                &bench
                    .call("echo", json!({"text": n.to_string()}))
                    .await
                    .expect("ran"),
            )
        }
    });
    for (n, said) in futures::future::join_all(calls).await.into_iter().enumerate() {
        assert_eq!(said, format!("echo: {n}"));
    }
    assert_eq!(bench.log("start"), 1);
}

/// A Streamable HTTP server: JSON for the handshake, an event stream for calls.
async fn http_server() -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            let mut piece = vec![0; 16 << 10];
            let body = loop {
                let read = stream.read(&mut piece).await.unwrap_or(0);
                request.extend_from_slice(piece.get(..read).unwrap_or_default());
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else {
                    continue;
                };
                let length = head.lines().find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length: ")?
                        .parse()
                        .ok()
                });
                if read == 0 || body.len() >= length.unwrap_or(0) {
                    break (head.to_ascii_lowercase(), body.to_owned());
                }
            };
            let answer = http_answer(&body.0, &serde_json::from_str(&body.1).unwrap_or_default());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

fn http_answer(head: &str, message: &Value) -> String {
    let json = |body: Value| {
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": body}).to_string();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    if !head.contains("x-key: s3cr3t-value") {
        return "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    }
    match message["method"].as_str() {
        Some("initialize") => json(
            json!({"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}},
            "serverInfo": {"name": "h", "version": "1"}}),
        ),
        Some("tools/list") => json(json!({"tools": [{"name": "remote", "inputSchema": {"type": "object"}}]})),
        Some("tools/call") => {
            assert!(head.contains("mcp-session-id: s1"), "{head}");
            let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": "from afar"}]}});
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\nevent: message\ndata: {answer}\n\n"
            )
        }
        _ => "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned(),
    }
}

/// Host and port of a test's endpoint.
fn at(url: &str) -> String {
    let bare = url.trim_start_matches("http://");
    bare.split('/').next().unwrap_or_default().to_owned()
}

/// Tools of an endpoint in a sandbox that may reach these hosts.
fn reaching(tool: Value, hosts: &[&str], config: &str, dir: &Path) -> crate::Runner {
    let mut manifest = manifest(tool, dir);
    let sandbox = json!({"name": "net", "level": "process", "capabilities": {"network": {
        "mode": "allowlist", "allowed_hosts": hosts, "ssrf_protection": {"enabled": false}}}});
    manifest.sandbox = Some(serde_json::from_value(sandbox).expect("a sandbox"));
    let config = serde_json::from_str(config).expect("a config");
    bind_tools(&manifest, &config, host(dir)).expect("all bound")
}

#[tokio::test]
async fn streamable_http_with_a_secret_header() {
    let dir = tempfile::tempdir().expect("a folder");
    let url = http_server().await;
    let tool = json!([{"name": "remote", "mcp_source": {"uri": &url}}]);
    let config = r#"{"remote": {"secret_headers": {"X-Key": "TOKEN_REF"}}}"#;
    let open = reaching(tool.clone(), &[&at(&url)], config, dir.path());
    let outcome = Ran::new(open_plan())
        .run(&open, dir.path(), "remote", json!({}))
        .await
        .expect("ran");
    assert_eq!(text(&outcome), "from afar");
    assert_eq!(outcome.obtained.mechanisms, ["network-rules"]);
    open.close().await;
    let closed = reaching(tool, &[&at(&url)], "{}", dir.path());
    match Ran::new(open_plan())
        .run(&closed, dir.path(), "remote", json!({}))
        .await
    {
        Err(RunError::Unavailable(said)) => assert!(said.contains("401"), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_endpoint_is_under_the_sandboxs_network_rules() {
    let dir = tempfile::tempdir().expect("a folder");
    let url = http_server().await;
    let tool = json!([{"name": "remote", "mcp_source": {"uri": &url}}]);
    let config = r#"{"remote": {"secret_headers": {"X-Key": "TOKEN_REF"}}}"#;
    // Another host, and none at all.
    let other = reaching(tool.clone(), &["other.example"], config, dir.path());
    let none = runner(tool.clone(), config, dir.path());
    for runner in [other, none] {
        let said = runner.describe_tool("remote").await;
        assert!(matches!(said, Err(RunError::Sandbox(_))), "{said:?}");
        let ran = Ran::new(open_plan())
            .run(&runner, dir.path(), "remote", json!({}))
            .await;
        assert!(matches!(ran, Err(RunError::Sandbox(_))), "{ran:?}");
    }
    // Named, and still inside the own network: the guard holds.
    let mut manifest = manifest(tool, dir.path());
    let sandbox = json!({"name": "net", "level": "process", "capabilities": {"network": {
        "mode": "allowlist", "allowed_hosts": [at(&url)]}}});
    manifest.sandbox = Some(serde_json::from_value(sandbox).expect("a sandbox"));
    let config = serde_json::from_str(config).expect("a config");
    let guarded = bind_tools(&manifest, &config, host(dir.path())).expect("all bound");
    let ran = Ran::new(open_plan())
        .run(&guarded, dir.path(), "remote", json!({}))
        .await;
    assert!(
        matches!(ran, Err(RunError::Unavailable(_) | RunError::Sandbox(_))),
        "{ran:?}"
    );
}
