//! `web-fetch` and `http-request`.

use clawk_kernel::ports::RunError;
use serde_json::json;

use super::super::html;
use super::Bench;
use crate::testing::{plan, text};

/// Answers each connection once with these bytes; gives the address and what was received.
pub(super) async fn serve(answer: &'static str) -> (u16, tokio::sync::mpsc::Receiver<String>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    #[expect(clippy::disallowed_methods, reason = "ends with the test's runtime")]
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 16 << 10];
            let read = stream.read(&mut request).await.unwrap_or(0);
            request.truncate(read);
            let _ = sender.send(String::from_utf8_lossy(&request).into_owned()).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (port, receiver)
}

#[tokio::test]
async fn web_fetch_reads_pages_and_http_request_sends() {
    let bench = Bench::new();
    let (port, _) = serve("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n<title>T</title><script>bad()</script><p>Hello <b>you</b>").await;
    let page = bench
        .ok(
            "web-fetch",
            json!({"url": format!("http://127.0.0.1:{port}/p?key=1")}),
        )
        .await;
    assert_eq!(text(&page), "T\n\nHello you");
    let facts = page.structured.expect("facts");
    assert_eq!(
        (&facts["status_code"], &facts["url"]),
        (&json!(200), &json!(format!("http://127.0.0.1:{port}/p")))
    );
    let (port, mut got) =
        serve("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\ngone").await;
    let sent = bench.call("http-request", json!({"method": "POST", "url": format!("http://127.0.0.1:{port}/"), "headers": {"X-A": "1"}, "body": "B"})).await.expect("ran");
    assert!(sent.is_error && text(&sent) == "[status 404]\ngone");
    let request = got.recv().await.expect("arrived");
    assert!(
        request.starts_with("POST / ") && request.contains("x-a: 1") && request.ends_with("\r\n\r\nB"),
        "{request}"
    );
}

#[tokio::test]
async fn what_a_redirect_leads_to_undoes_no_request() {
    let mut bench = Bench::new();
    for (to, told) in [
        ("http://169.254.169.254/", Some("network.ssrf_protection")),
        ("http://elsewhere.test/", Some("network.allowed_hosts")),
        // Allowed, and nobody listens there.
        ("http://127.0.0.1:1/", None),
        ("/", None),
    ] {
        let answer =
            format!("HTTP/1.1 307 Go\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let (port, mut got) = serve(answer.leak()).await;
        let allowed = [format!("127.0.0.1:{port}"), "127.0.0.1:1".to_owned()];
        bench.ran.plan = plan(json!({"network": {"mode": "allowlist", "allowed_hosts": allowed,
            "ssrf_protection": {"block_private_ips": false}}}));
        let url = format!("http://127.0.0.1:{port}/");
        let posted = json!({"method": "POST", "url": url, "body": "B"});
        let outcome = bench.call("http-request", posted).await;
        assert!(matches!(outcome, Err(RunError::Unknown(_))), "{to}: {outcome:?}");
        assert!(got.recv().await.expect("arrived").starts_with("POST / "));
        drop(got);
        // What changes nothing may be told as it is.
        let read = json!({"url": url});
        match told {
            Some(rule) => assert_eq!(bench.refused("web-fetch", read).await, rule, "{to}"),
            None => assert!(bench.call("web-fetch", read).await.expect("ran").is_error, "{to}"),
        }
    }
}

#[tokio::test]
async fn the_network_is_closed_unless_it_is_opened() {
    let mut bench = Bench::new();
    let (port, _got) = serve("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
    let url = json!({"url": format!("http://127.0.0.1:{port}/")});
    bench.ran.plan = plan(json!({}));
    assert_eq!(
        bench.refused("web-fetch", url.clone()).await,
        "network.mode: deny"
    );
    bench.ran.plan = plan(json!({"network": {"mode": "allowlist", "allowed_hosts": ["example.com"]}}));
    assert_eq!(
        bench.refused("web-fetch", url.clone()).await,
        "network.allowed_hosts"
    );
    // Named, but the guard keeps addresses of this machine out.
    bench.ran.plan = plan(json!({"network": {"mode": "allowlist", "allowed_hosts": ["127.0.0.1"]}}));
    assert_eq!(
        bench.refused("web-fetch", url.clone()).await,
        "network.allowed_hosts",
        "an entry without a port is for 80 and 443"
    );
    let named = json!([format!("127.0.0.1:{port}")]);
    bench.ran.plan = plan(json!({"network": {"mode": "allowlist", "allowed_hosts": named}}));
    assert_eq!(
        bench.refused("web-fetch", url.clone()).await,
        "network.ssrf_protection"
    );
    bench.ran.plan = plan(json!({"network": {"mode": "allow-all"}}));
    assert_eq!(
        bench.refused("http-request", url.clone()).await,
        "network.ssrf_protection"
    );
    bench.ran.plan = plan(
        json!({"network": {"mode": "allowlist", "allowed_hosts": [format!("127.0.0.1:{port}")],
        "ssrf_protection": {"block_private_ips": false}}}),
    );
    assert_eq!(text(&bench.ok("web-fetch", url).await), "ok");
    for url in ["file:///etc/passwd", "gopher://x", "nonsense"] {
        assert!(
            bench
                .call("web-fetch", json!({"url": url}))
                .await
                .map_or(true, |outcome| outcome.is_error),
            "{url}"
        );
    }
}

#[test]
fn html_becomes_text() {
    let page = "<!doctype html><head><title> A &amp; B </title><style>x{}</style></head><body><!-- no --><h2>Head</h2>\
        <p>One&nbsp;two<br>three</p><ul><li>x<li>y</ul><SCRIPT>if (a < b) {}</SCRIPT>4 < 5 &#233; &unknown; <a href='a>b'>link</a>";
    let (title, text) = html::extract_readable(page);
    assert_eq!(title.as_deref(), Some("A & B"));
    assert_eq!(text, "## Head\nOne two\nthree\n- x\n- y\n4 < 5 é &unknown; link");
    for broken in [
        "<",
        "<script>",
        "<a href=\"",
        "&#99999999;",
        "</",
        "<!--",
        "<ſcript>",
        "<p",
        "</script",
    ] {
        let _ = html::extract_readable(broken);
    }
}
