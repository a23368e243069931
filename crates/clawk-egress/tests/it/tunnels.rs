//! `CONNECT` and SOCKS5: the TLS greeting is judged, and what is neither TLS nor HTTP goes nowhere but to a named port.

use clawk_egress::proxy::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::support::{
    Canary, HELLO, Running, at_loopback, certified, listen, no_env, options, quick, say, start, status,
    through_tls,
};

struct Tls {
    canary: Canary,
    trust: String,
}

fn tls_server(hosts: &[&str]) -> Tls {
    let dir = tempfile::tempdir().unwrap();
    let canary = Canary::tls(certified(dir.path(), "ca.pem", hosts), |_| HELLO.into());
    let trust = std::fs::read_to_string(dir.path().join("ca.pem")).unwrap();
    Tls { canary, trust }
}

/// With `port` standing for 443, on which nothing but TLS passes.
async fn strict_port(port: u16) -> Running {
    let mut options: Options = options(
        &format!("allow_private = ['ok.test:{port}', '127.0.0.1:{port}']"),
        at_loopback(&["ok.test", "evil.test"]),
    );
    options.limits.tls_ports = vec![port];
    start(options, &no_env()).await
}

#[tokio::test]
async fn a_tunnel_is_for_the_name_that_was_judged() {
    let server = tls_server(&["ok.test", "evil.test"]);
    let port = server.canary.port;
    let running = strict_port(port).await;
    let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let authority = format!("ok.test:{port}");
    let fine = through_tls(
        running.address,
        &authority,
        "ok.test",
        &server.trust,
        &get("ok.test"),
    )
    .await;
    assert!(fine.unwrap().ends_with("hello"));
    assert_eq!(server.canary.accepted(), 1);
    for sni in ["evil.test", "sub.ok.test", "127.0.0.1"] {
        let other = through_tls(running.address, &authority, sni, &server.trust, &get("evil.test")).await;
        assert!(other.is_err(), "{sni}: {other:?}");
    }
    // Not even a connection was made for them.
    assert_eq!(server.canary.accepted(), 1);
    let reached = running.end().await;
    let codes: Vec<_> = reached
        .connections
        .iter()
        .map(|one| one.refused.as_ref().map(|denial| denial.code))
        .collect();
    assert_eq!(codes, [None, Some("sni"), Some("sni"), Some("sni")]);
    assert!(reached.connections[0].bytes_out > 100 && reached.connections[0].bytes_in > 100);
}

#[tokio::test]
async fn a_tls_port_is_for_tls() {
    let canary = Canary::new();
    let port = canary.port;
    let running = strict_port(port).await;
    let connect = format!("CONNECT ok.test:{port} HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
    for first in [
        "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n",
        "\x16\x03\x01\x00\x05hello",
        "\x16\x03\x01\0\0",
        "\0\0\0\x08",
        "SSH-2.0-x\r\n",
    ] {
        let answer = say(running.address, format!("{connect}{first}").as_bytes()).await;
        assert!(!answer.contains("hello"), "{answer}");
    }
    let plain = format!("GET http://ok.test:{port}/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
    assert_eq!(status(&say(running.address, plain.as_bytes()).await), 403);
    assert_eq!(canary.accepted(), 0);
    let reached = running.end().await;
    assert!(
        reached
            .connections
            .iter()
            .all(|one| one.refused.as_ref().is_some_and(|denial| denial.code == "tls")),
        "{reached:?}"
    );
}

async fn socks(address: std::net::SocketAddr, host: &str, port: u16) -> (u8, TcpStream) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut bytes = vec![5, 2, 0, 2, 5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    bytes.extend_from_slice(host.as_bytes());
    bytes.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&bytes).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[..2], [5, 0]);
    (answer[3], stream)
}

#[tokio::test]
async fn socks_carries_http_that_is_seen() {
    let canary = Canary::new();
    let port = canary.port;
    let mut with_port = options(
        &format!("allow_private = ['ok.test:{port}']"),
        at_loopback(&["ok.test"]),
    );
    with_port.limits.http_ports = vec![port];
    let running = start(with_port, &no_env()).await;
    let (code, mut stream) = socks(running.address, "ok.test", port).await;
    assert_eq!(code, 0);
    let request = format!("GET /p HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(listen(&mut stream).await.ends_with("hello"));
    for bad in [
        "GET /p HTTP/1.1\r\nHost: evil.test\r\n\r\n".to_owned(),
        format!("GET http://evil.test/ HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"),
        format!("CONNECT evil.test:443 HTTP/1.1\r\nHost: ok.test:{port}\r\n\r\n"),
        "SSH-2.0-x\r\n".to_owned(),
    ] {
        let (_, mut stream) = socks(running.address, "ok.test", port).await;
        stream.write_all(bad.as_bytes()).await.unwrap();
        assert_ne!(status(&listen(&mut stream).await), 200, "{bad}");
    }
    assert_eq!(canary.hits().len(), 1);
    let (code, _) = socks(running.address, "evil.test", port).await;
    assert_eq!(code, 2);
    let reached = running.end().await;
    assert_eq!(reached.connections[0].via.as_str(), "socks5");
}

#[tokio::test]
async fn socks_speaks_version_5_connect_without_a_password() {
    let running = start(options("hosts = ['*']", at_loopback(&[])), &no_env()).await;
    for (request, answer) in [
        (&[4, 1, 0, 80, 1, 1, 1, 1, 0][..], &[][..]),
        (&[5, 1, 2], &[5, 0xff]),
        (
            &[5, 1, 0, 5, 2, 0, 1, 1, 1, 1, 1, 0, 80],
            &[5, 0, 5, 7, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 3, 0, 1, 1, 1, 1, 1, 0, 80],
            &[5, 0, 5, 7, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 9, 1, 1, 1, 1, 0, 80],
            &[5, 0, 5, 8, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 3, 0, 0, 80],
            &[5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 3, 3, b'a', b':', b'1', 0, 80],
            &[5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
        (
            &[5, 1, 0, 5, 1, 0, 1, 8, 8, 8, 8, 0, 80],
            &[5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0],
        ),
    ] {
        let said = say(running.address, request).await;
        assert_eq!(said, String::from_utf8_lossy(answer), "{request:?}");
    }
}

#[tokio::test]
async fn a_named_port_carries_any_protocol_but_no_other_name() {
    // A server that speaks first, and one that is spoken to first.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "a test's server, ended by the test")]
    let served = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"220 ready\r\n").await.unwrap();
            let mut said = [0; 5];
            if stream.read_exact(&mut said).await.is_ok() {
                stream.write_all(&said).await.unwrap();
            }
        }
    });
    let running = start(
        options(
            &format!("allow_private = ['ok.test:{port}']"),
            at_loopback(&["ok.test"]),
        ),
        &no_env(),
    )
    .await;
    let (code, mut stream) = socks(running.address, "ok.test", port).await;
    assert_eq!(code, 0);
    let mut greeting = [0; 11];
    stream.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"220 ready\r\n");
    stream.write_all(b"EHLO\n").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"EHLO\n");
    drop(stream);
    let (_, mut stream) = socks(running.address, "ok.test", port).await;
    stream.write_all(b"PING\n").await.unwrap();
    assert!(listen(&mut stream).await.ends_with("PING\n"));
    drop(stream);

    // TLS on such a port is judged, too.
    let server = tls_server(&["ok.test", "evil.test"]);
    let port = server.canary.port;
    let running = start(
        options(
            &format!("allow_private = ['ok.test:{port}']"),
            at_loopback(&["ok.test"]),
        ),
        &no_env(),
    )
    .await;
    let authority = format!("ok.test:{port}");
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert!(
        through_tls(running.address, &authority, "evil.test", &server.trust, get)
            .await
            .is_err()
    );
    assert!(server.canary.hits().is_empty());
    assert!(
        through_tls(running.address, &authority, "ok.test", &server.trust, get)
            .await
            .is_ok()
    );
    served.abort();
    assert_eq!(quick().tls_ports, [443]);
}
