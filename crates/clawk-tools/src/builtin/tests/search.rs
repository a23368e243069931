//! `web-search`, against servers on loopback that answer as the providers do.

use clawk_kernel::ports::{RunError, ToolRunner as _};
use clawk_plan::SandboxRefusal;
use serde_json::{Value, json};

use super::network::serve;
use crate::bind_tools;
use crate::testing::{Ran, host, manifest, plan, text};

const SEARXNG: &str = r#"{"query":"q","number_of_results":2,"results":[{"url":"https://a.example/1","title":"First","content":"About <b>one</b>","engine":"x"},{"url":"https://a.example/2","title":"Second","content":""}],"answers":[],"unresponsive_engines":[]}"#;
const BRAVE: &str = r#"{"type":"search","query":{"original":"q"},"web":{"type":"search","results":[{"title":"First","url":"https://a.example/1","description":"About one","page_age":"2026-01-01"}]}}"#;
const TAVILY: &str = r#"{"query":"q","answer":null,"results":[{"url":"https://a.example/1","title":"First","content":"About one","score":0.9,"raw_content":null}],"response_time":0.4}"#;
const KAGI: &str = r#"{"meta":{"id":"1","node":"n","ms":9},"data":[{"t":0,"rank":1,"url":"https://a.example/1","title":"First","snippet":"About one"},{"t":1,"list":["more"]}]}"#;

fn answer(status: &str, body: &str) -> &'static str {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .leak()
}

/// A runner whose `web-search` asks a provider at this port, or the reason why there is none.
fn bound(
    search: Value,
    hosts: &[&str],
    private: &[&str],
) -> Result<(crate::Runner, Ran, tempfile::TempDir), String> {
    let dir = tempfile::tempdir().expect("a folder");
    let mut manifest = manifest(json!([{"name": "web-search"}]), dir.path());
    let network = json!({"mode": "allowlist", "allowed_hosts": hosts});
    let sandbox = json!({"name": "s", "level": "process", "capabilities": {"network": network.clone()}});
    manifest.sandbox = Some(serde_json::from_value(sandbox).expect("a sandbox"));
    let config = serde_json::from_value(json!({"web-search": {"search": search}})).expect("a config");
    let mut host = host(dir.path());
    host.egress.allow_private = serde_json::from_value(json!(private)).expect("patterns");
    let runner = bind_tools(&manifest, &config, host).map_err(|all| all[0].reason.clone())?;
    let ran = Ran::new(plan(json!({"network": network})));
    Ok((runner, ran, dir))
}

fn ready(search: Value, port: u16) -> (crate::Runner, Ran, tempfile::TempDir) {
    let place = format!("127.0.0.1:{port}");
    bound(search, &[&place], &[&place]).expect("bound")
}

#[tokio::test]
async fn each_provider_finds_pages_and_its_key_stays_in_the_header() {
    for (provider, body, header) in [
        ("searxng", SEARXNG, None),
        ("brave", BRAVE, Some("x-subscription-token: s3cr3t-value\r\n")),
        ("tavily", TAVILY, Some("authorization: Bearer s3cr3t-value\r\n")),
        ("kagi", KAGI, Some("authorization: Bot s3cr3t-value\r\n")),
    ] {
        let (port, mut heard) = serve(answer("200 OK", body)).await;
        let mut search = json!({"provider": provider, "url": format!("http://127.0.0.1:{port}")});
        if header.is_some() {
            search["secret_ref"] = json!("TOKEN_REF");
        }
        let (runner, ran, dir) = ready(search, port);
        let found = ran
            .run(&runner, dir.path(), "web-search", json!({"query": "rain boots"}))
            .await
            .expect("ran");
        assert!(!found.is_error, "{provider}: {}", text(&found));
        assert!(
            text(&found).starts_with("1. First\n   https://a.example/1\n   About one"),
            "{provider}: {}",
            text(&found)
        );
        assert_eq!(found.structured.as_ref().expect("facts")["provider"], provider);
        let request = heard.recv().await.expect("asked");
        assert!(request.contains("rain"), "{request}");
        match header {
            Some(header) => assert!(request.contains(header), "{provider}: {request}"),
            None => assert!(!request.contains("s3cr3t"), "{request}"),
        }
        assert_eq!(
            request.matches("s3cr3t-value").count(),
            usize::from(header.is_some())
        );
    }
}

#[tokio::test]
async fn no_more_results_than_asked_for_and_none_is_said() {
    let (port, _heard) = serve(answer("200 OK", SEARXNG)).await;
    let (runner, ran, dir) = ready(
        json!({"provider": "searxng", "url": format!("http://127.0.0.1:{port}")}),
        port,
    );
    let ask = json!({"query": "q", "max_results": 1});
    let found = ran
        .run(&runner, dir.path(), "web-search", ask)
        .await
        .expect("ran");
    assert_eq!(
        found.structured.expect("facts")["results"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    let (port, _heard) = serve(answer("200 OK", r#"{"results":[]}"#)).await;
    let (runner, ran, dir) = ready(
        json!({"provider": "searxng", "url": format!("http://127.0.0.1:{port}")}),
        port,
    );
    let found = ran
        .run(&runner, dir.path(), "web-search", json!({"query": "q"}))
        .await
        .expect("ran");
    assert_eq!(text(&found), "no results");
}

#[tokio::test]
async fn a_refusal_is_told_with_the_cure_and_without_the_key() {
    for (provider, status, body, parts) in [
        (
            "searxng",
            "403 Forbidden",
            "<h1>no</h1>",
            ["status 403", "search.formats"],
        ),
        (
            "brave",
            "401 Unauthorized",
            r#"{"type":"ErrorResponse","error":{"detail":"bad s3cr3t-value"}}"#,
            ["status 401", "search.secret_ref"],
        ),
        (
            "tavily",
            "432 Limit",
            r#"{"detail":{"error":"plan limit"}}"#,
            ["plan limit", "used up"],
        ),
        ("kagi", "429 Slow down", "{}", ["status 429", "rate limit"]),
        ("brave", "200 OK", "<html>", ["did not answer with JSON", "brave"]),
        ("brave", "200 OK", r#"{"hello":1}"#, ["unknown form", "brave"]),
    ] {
        let (port, _heard) = serve(answer(status, body)).await;
        let search = json!({"provider": provider, "url": format!("http://127.0.0.1:{port}"), "secret_ref": "TOKEN_REF"});
        let (runner, ran, dir) = ready(search, port);
        let refused = ran
            .run(&runner, dir.path(), "web-search", json!({"query": "q"}))
            .await
            .expect("ran");
        let said = text(&refused);
        assert!(
            refused.is_error && parts.iter().all(|part| said.contains(part)),
            "{said}"
        );
        assert!(!said.contains("s3cr3t-value"), "{said}");
    }
}

#[tokio::test]
async fn a_provider_outside_of_the_sandbox_is_not_asked() {
    let (port, mut heard) = serve(answer("200 OK", SEARXNG)).await;
    let (runner, mut ran, dir) = ready(
        json!({"provider": "searxng", "url": format!("http://127.0.0.1:{port}")}),
        port,
    );
    ran.plan = plan(json!({"network": {"mode": "allowlist", "allowed_hosts": ["elsewhere.example"]}}));
    let refused = ran
        .run(&runner, dir.path(), "web-search", json!({"query": "q"}))
        .await;
    assert!(
        matches!(refused, Err(RunError::Sandbox(SandboxRefusal::Blocked { .. }))),
        "{refused:?}"
    );
    let checked = runner.preflight_call("web-search", &serde_json::Map::new(), &ran.plan, dir.path());
    assert!(
        checked.is_err(),
        "the static check says it before anybody is asked"
    );
    assert!(heard.try_recv().is_err());
}

#[test]
fn what_is_missing_is_said_before_the_start() {
    for (search, hosts, part) in [
        (
            json!({"provider": "searxng"}),
            [].as_slice(),
            "`search.url` is missing",
        ),
        (
            json!({"provider": "brave"}),
            &["api.search.brave.com"],
            "secret_ref = \"BRAVE_API_KEY\"",
        ),
        (
            json!({"provider": "brave", "secret_ref": "NOT_THERE"}),
            &["api.search.brave.com"],
            "NOT_THERE",
        ),
        (
            json!({"provider": "brave", "secret_ref": "TOKEN_REF"}),
            &[],
            "allowed_hosts: [api.search.brave.com]",
        ),
        (
            json!({"provider": "searxng", "url": "http://localhost:8888"}),
            &["localhost:8888"],
            "allow_private = [\"localhost:8888\"]",
        ),
        (
            json!({"provider": "searxng", "url": "http://search.example", "secret_ref": "TOKEN_REF"}),
            &["search.example"],
            "use https",
        ),
        (
            json!({"provider": "searxng", "url": "ftp://search.example"}),
            &["search.example"],
            "not an http or https URL",
        ),
    ] {
        let refused = bound(search.clone(), hosts, &[]).err().expect("refused");
        assert!(refused.contains(part), "{search}: {refused}");
    }
    let key = json!({"provider": "brave", "secret_ref": "TOKEN_REF"});
    assert!(bound(key, &["api.search.brave.com"], &[]).is_ok());
    let unknown =
        serde_json::from_value::<crate::ToolsConfig>(json!({"web-search": {"search": {"provider": "bing"}}}));
    assert!(unknown.expect_err("refused").to_string().contains("searxng"));
}
