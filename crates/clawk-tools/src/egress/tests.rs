use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, sync_channel};

use clawk_secrets::Secret;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::testing::{builtins_with, plan, plan_at, text};

fn bound(tool: &str, hosts: &[String]) -> EgressSettings {
    let binding = EgressSecret {
        secret: Secret::new("KEY", "s3cr3t-value-1"),
        tools: vec![tool.to_owned()],
        hosts: hosts
            .iter()
            .map(|host| host.clone().try_into().expect("a host"))
            .collect(),
        header: "X-Key".to_owned(),
        env: "KEY".to_owned(),
        prefix: "Token ".to_owned(),
        plain_http: true,
    };
    EgressSettings {
        bindings: vec![Arc::new(binding)],
        ..EgressSettings::default()
    }
}

fn env() -> EnvironmentSource {
    EnvironmentSource::from_pairs::<String, String>([])
}

fn patterns(rules: &[HostPattern]) -> Vec<String> {
    rules.iter().map(ToString::to_string).collect()
}

#[test]
fn the_own_network_opens_only_where_manifest_and_machine_agree() {
    let exits = EgressProxies::new(
        EgressSettings {
            allow_private: ["localhost:8080", "127.0.0.1:9", "db.internal", "10.0.0.1"]
                .map(|text| text.to_owned().try_into().expect("a place"))
                .to_vec(),
            ..EgressSettings::default()
        },
        env(),
    );
    let network = |value| plan(json!({"network": value})).network().clone();
    let listed = |hosts: &[&str]| {
        let network = network(json!({"mode": "allowlist", "allowed_hosts": hosts}));
        patterns(&exits.network_rules(&network).allow_private)
    };
    assert_eq!(listed(&["localhost"]), ["localhost:8080"]);
    assert_eq!(
        listed(&["localhost:8080", "*.internal"]),
        ["localhost:8080", "db.internal"]
    );
    assert!(
        listed(&["localhost:9", "example.com", "*"]).len() == 2,
        "a wildcard names no literal"
    );
    assert_eq!(listed(&["127.0.0.1", "10.0.0.1"]), ["127.0.0.1:9", "10.0.0.1"]);
    assert!(listed(&[]).is_empty());
    let all = exits.network_rules(&network(json!({"mode": "allow-all"})));
    assert_eq!(all.allow_private.len(), 4);
    assert!(all.any_port && !all.any_private);
    let none = exits.network_rules(&network(json!({"mode": "deny"})));
    assert!(none.hosts.is_empty() && none.allow_private.is_empty());
}

#[test]
fn a_way_out_is_what_the_plan_says() {
    let exits = EgressProxies::new(bound("shell", &["api.test".to_owned()]), env());
    let network = json!({"mode": "allowlist", "allowed_hosts": ["api.test"]});
    let names = |way: &WayOut| way.env.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let value = |way: &WayOut, name: &str| {
        let found = way.env.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let way = exits
        .way_out(&["shell"], &plan(json!({"network": network})))
        .expect("a way");
    assert!(value(&way, "KEY").starts_with("clawkplaceholder"), "{way:?}");
    assert_eq!(value(&way, "HTTPS_PROXY"), "http://127.0.0.1:3128");
    assert_eq!(value(&way, "SSL_CERT_FILE"), "/run/clawk/ca-bundle.pem");
    assert!(way.files[0].bytes.ends_with(b"-----END CERTIFICATE-----\n"));
    // Another tool gets the proxy, and no placeholder and no authority.
    let way = exits
        .way_out(&["other"], &plan(json!({"network": network})))
        .expect("a way");
    assert!(!names(&way).contains(&"KEY".to_owned()) && !names(&way).contains(&"SSL_CERT_FILE".to_owned()));
    assert!(way.call.is_some() && way.files.is_empty());
    let shut = exits.way_out(&["shell"], &plan(json!({}))).expect("a way");
    assert!(shut.call.is_none() && shut.env.is_empty());
    // Without a boundary there is no secret at it.
    let open = plan_at("none", json!({"network": network}));
    let refused = exits.way_out(&["shell"], &open).expect_err("refused");
    assert!(refused.to_string().contains("no boundary"), "{refused}");
    assert!(exits.way_out(&["other"], &open).is_ok());
    for (injection, name, shown) in [
        ("environment", "KEY", "s3cr3t-value-1"),
        ("file-mount", "KEY_FILE", "/run/clawk/key"),
    ] {
        let plan = plan(json!({"secrets": {"injection": injection}}));
        let way = exits.way_out(&["shell"], &plan).expect("a way");
        assert_eq!(value(&way, name), shown);
    }
}

#[test]
fn a_guests_way_out_is_a_lane_and_no_door() {
    let exits = EgressProxies::new(bound("shell", &["api.test".to_owned()]), env());
    let network = json!({"mode": "allowlist", "allowed_hosts": ["api.test"]});
    let way = exits
        .way_out(&["shell"], &plan_at("wasm", json!({"network": network})))
        .expect("a way");
    let names: Vec<_> = way.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["KEY"], "a placeholder, and no proxy to talk to");
    assert!(way.call.is_some() && way.files.is_empty());
    // Without network it still has whom to ask, who says no; no placeholder is made for that.
    let shut = exits
        .way_out(&["shell"], &plan_at("wasm", json!({})))
        .expect("a way");
    assert!(shut.call.is_some() && shut.env.is_empty());
    // A file that it would not have is not promised.
    let file = plan_at("wasm", json!({"secrets": {"injection": "file-mount"}}));
    let refused = exits.way_out(&["shell"], &file).expect_err("refused");
    assert!(refused.to_string().contains("no files"), "{refused}");
    assert!(exits.way_out(&["other"], &file).is_ok());
}

/// Answers once; gives what it was asked.
fn server() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    let (sender, receiver) = sync_channel(8);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 8192];
            let read = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let body = format!("you said {request}");
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = sender.send(request);
        }
    });
    (port, receiver)
}

#[tokio::test]
async fn http_request_sends_a_bound_secret_and_never_shows_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let (port, asked) = server();
    let place = format!("127.0.0.1:{port}");
    let runner = builtins_with(dir.path(), bound("http-request", std::slice::from_ref(&place)));
    let plan = plan(
        json!({"network": {"mode": "allowlist", "allowed_hosts": [place], "ssrf_protection": {"enabled": false}}}),
    );
    let connections = ConnectionCollector::default();
    let run = async |tool: &str, url: String| {
        let arguments = serde_json::from_value(json!({ "url": url })).expect("an object");
        let call = crate::call::ExecutorCall {
            arguments: &arguments,
            key: None,
            plan: &plan,
            workdir: dir.path(),
            timeout_ms: 5_000,
            request_id: "a-call",
            marks: &[],
            apart: &clawk_kernel::place::ExcludedPaths::default(),
            tool,
            connections: connections.clone(),
            stop: CancellationToken::new(),
        };
        let binding = runner.bound_for_tests(tool);
        runner
            .run_call(&binding, call, None, &CancellationToken::new())
            .await
    };
    let outcome = run("http-request", format!("http://127.0.0.1:{port}/a?b=c"))
        .await
        .expect("ran");
    let request = asked.recv().expect("asked");
    assert!(
        request.to_lowercase().contains("x-key: token s3cr3t-value-1\r\n"),
        "{request}"
    );
    assert!(
        !text(&outcome).contains("s3cr3t-value-1") && text(&outcome).contains("[secret KEY]"),
        "{}",
        text(&outcome)
    );
    // Another tool is not granted it.
    run("web-fetch", format!("http://127.0.0.1:{port}/"))
        .await
        .expect("ran");
    assert!(!asked.recv().expect("asked").contains("s3cr3t"));
    assert!(run("web-fetch", "http://10.0.0.1/".to_owned()).await.is_err());
    assert!(connections.bytes_out() > 20);
}
