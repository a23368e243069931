//! Plain HTTP through the proxy: what arrives, and the shapes that never do.

use super::support::{Canary, HELLO, at_loopback, no_env, options, say, start, status};

fn open_at(port: u16) -> String {
    format!("hosts = ['ok.test:{port}']\nallow_private = ['ok.test:{port}']")
}

#[tokio::test]
async fn an_allowed_host_is_reached_and_recorded() {
    let canary = Canary::new();
    let port = canary.port;
    let running = start(options(&open_at(port), at_loopback(&["ok.test"])), &no_env()).await;
    let request = format!(
        "POST http://OK.test.:{port}/p?q=1 HTTP/1.1\r\nHost: ok.TEST:{port}\r\nProxy-Connection: keep-alive\r\nConnection: x-gone\r\nX-Gone: 1\r\nTE: trailers\r\nX-Kept: 2\r\nContent-Length: 4\r\n\r\nbody"
    );
    let answer = say(running.address, request.as_bytes()).await;
    assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    let hit = canary.hits().remove(0);
    assert!(
        hit.starts_with(&format!("POST /p?q=1 HTTP/1.1\r\nHost: ok.test:{port}\r\n")),
        "{hit}"
    );
    assert!(
        hit.contains("X-Kept: 2\r\n") && hit.ends_with("\r\n\r\nbody"),
        "{hit}"
    );
    for gone in ["Proxy-Connection", "X-Gone", "TE:", "keep-alive"] {
        assert!(!hit.contains(gone), "{gone}: {hit}");
    }
    let reached = running.end().await;
    let one = &reached.connections[0];
    assert_eq!(
        (one.host.as_str(), one.port, one.via.as_str()),
        ("ok.test", port, "http")
    );
    assert_eq!(one.address, Some([127, 0, 0, 1].into()));
    assert_eq!(one.rule.as_deref(), Some(format!("ok.test:{port}").as_str()));
    assert!(one.private && one.refused.is_none());
    assert_eq!(one.bytes_out, u64::try_from(hit.len()).unwrap());
    assert_eq!(one.bytes_in, u64::try_from(HELLO.len()).unwrap());
}

#[tokio::test]
async fn chunked_bodies_pass_both_ways_and_answers_of_every_framing() {
    let canary = Canary::answering(|request| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        match path {
            "/chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: 1\r\n\r\n".into(),
            "/close" => "HTTP/1.1 200 OK\r\n\r\nhello".into(),
            "/early" => "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".into(),
            "/none" => "HTTP/1.1 204 No Content\r\n\r\n".into(),
            "/twice" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello".into(),
            "/both" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello".into(),
            "/switch" => "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n".into(),
            _ => HELLO.into(),
        }
    });
    let port = canary.port;
    let running = start(options(&open_at(port), at_loopback(&["ok.test"])), &no_env()).await;
    let get = async |path: &str| {
        let request = format!("GET http://ok.test:{port}{path} HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
        say(running.address, request.as_bytes()).await
    };
    let chunked = get("/chunked").await;
    assert!(
        chunked.contains("3\r\nhel\r\n") && chunked.ends_with("2\r\nlo\r\n0\r\n\r\n"),
        "{chunked}"
    );
    for path in ["/close", "/early"] {
        let answer = get(path).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\nhello"),
            "{answer}"
        );
    }
    assert_eq!(status(&get("/none").await), 204);
    for path in ["/twice", "/both", "/switch"] {
        assert_eq!(status(&get(path).await), 502, "{path}");
    }
    let request = format!(
        "PUT http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    );
    let answer = say(running.address, request.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK"),
        "{answer}"
    );
    let hit = canary.hits().pop().unwrap();
    assert!(
        hit.contains("Transfer-Encoding: chunked") && hit.ends_with("abc\r\n2\r\nde\r\n0\r\n\r\n"),
        "{hit}"
    );
    // A second request in the same breath is not served: the first one's server never sees it.
    let before = canary.hits().len();
    let two = format!("GET http://ok.test:{port}/1 HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n").repeat(2);
    say(running.address, two.as_bytes()).await;
    assert_eq!(canary.hits().len(), before + 1);
}

/// Shapes that two parsers might read in two ways. `P` is the port.
const SMUGGLED: &[&str] = &[
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 4, 4\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: +4\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 0x4\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: -4\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 99999999999999999999\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length:\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nContent_Length: 4\r\n\r\nbody",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.0\r\nHost: ok.test:P\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nX: 1\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nX: 1\r\n\tfolded\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\nHost: ok.test:P\n\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\nX: 1\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nX: a\rb\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nX: a\0b\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost : ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\n Host: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nHost: evil.test\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P@evil.test\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nHo\x73t\x09: evil.test\r\n\r\n",
    "GET http://evil.test/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P@evil.test/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P\\@evil.test/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://u:p@ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P#@evil.test/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ x HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET  http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1 \r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/\x7f HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/2.0\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.2\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\r\nGET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET https://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET ftp://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nConnection: close, Content-Length\r\nContent-Length: 0\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nConnection: host\r\n\r\n",
    "TRACE http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "POST http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nExpect: something\r\nContent-Length: 4\r\n\r\nbody",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nX\x01Y: 1\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n: nameless\r\n\r\n",
    "GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\nno colon\r\n\r\n",
    "CONNECT ok.test:P HTTP/1.1\r\nHost: evil.test:P\r\n\r\n",
    "CONNECT ok.test:P HTTP/1.1\r\nHost: ok.test:P\r\nContent-Length: 5\r\n\r\nhello",
    "CONNECT ok.test HTTP/1.1\r\nHost: ok.test\r\n\r\n",
    "CONNECT http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
    "CONNECT ok.test:P@evil.test:80 HTTP/1.1\r\nHost: ok.test:P\r\n\r\n",
];

#[tokio::test]
async fn no_smuggled_shape_reaches_the_server() {
    let canary = Canary::new();
    let port = canary.port;
    let running = start(
        options(&open_at(port), at_loopback(&["ok.test", "evil.test"])),
        &no_env(),
    )
    .await;
    assert!(SMUGGLED.len() >= 60, "{}", SMUGGLED.len());
    for shape in SMUGGLED {
        let request = port_in(shape, port);
        let answer = say(running.address, request.as_bytes()).await;
        assert!(
            status(&answer) >= 400 || answer.is_empty(),
            "{request:?}: {answer}"
        );
        assert!(
            canary.hits().is_empty(),
            "{request:?} arrived: {:?}",
            canary.hits()
        );
    }
    // The corpus is refused for what it is, and not because nothing passes.
    let plain = port_in("GET http://ok.test:P/ HTTP/1.1\r\nHost: ok.test:P\r\n\r\n", port);
    assert_eq!(status(&say(running.address, plain.as_bytes()).await), 200);
    let reached = running.end().await;
    let refused = reached
        .connections
        .iter()
        .filter(|one| one.refused.is_some())
        .count();
    assert!(refused + usize::try_from(reached.more.refused).unwrap() >= SMUGGLED.len() - 1);
}

fn port_in(text: &str, port: u16) -> String {
    text.replace(":P", &format!(":{port}"))
}

#[tokio::test]
async fn chunks_that_lie_end_the_exchange() {
    let canary = Canary::new();
    let port = canary.port;
    let running = start(options(&open_at(port), at_loopback(&["ok.test"])), &no_env()).await;
    for body in [
        "5\r\nabc\r\n0\r\n\r\n",
        "3\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc",
        "3 \r\nabc\r\n0\r\n\r\n",
        "\r\nabc\r\n0\r\n\r\n",
        "3\r\nabcd\r\n0\r\n\r\n",
    ] {
        let head = format!(
            "POST http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        let answer = say(running.address, (head + body).as_bytes()).await;
        assert_ne!(status(&answer), 200, "{body:?}: {answer}");
    }
    let whole = canary
        .hits()
        .into_iter()
        .filter(|hit| hit.ends_with("0\r\n\r\n"))
        .count();
    assert_eq!(whole, 0, "{:?}", canary.hits());
}
