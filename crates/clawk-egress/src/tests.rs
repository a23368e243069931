use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use clawk_secrets::EnvironmentSource;
use http::{HeaderMap, HeaderValue, Method};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

mod tls;

fn rules(toml: &str) -> HostAllowList {
    toml::from_str(toml).unwrap()
}

/// A server that answers each connection with the next of `answers`, and returns the requests' heads.
async fn server(answers: Vec<String>) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "a test's server, awaited by the test")]
    let task = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                if stream.read_buf(&mut head).await.unwrap() == 0 {
                    break;
                }
            }
            heads.push(String::from_utf8(head).unwrap());
            stream.write_all(answer.as_bytes()).await.unwrap();
            if answer.is_empty() {
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        }
        heads
    });
    (port, task)
}

fn found(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

fn get(url: &str) -> Request {
    Request {
        method: Method::GET,
        url: Url::parse(url).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
    }
}

fn names(table: &[(&str, &[&str])]) -> NameResolver {
    let parse = |list: &[&str]| {
        list.iter()
            .map(|address| address.parse::<IpAddr>().unwrap())
            .collect()
    };
    NameResolver::Fixed(
        table
            .iter()
            .map(|(name, list)| ((*name).to_owned(), parse(list)))
            .collect::<BTreeMap<_, _>>(),
    )
}

fn guarded(toml: &str, table: &[(&str, &[&str])]) -> EgressClient {
    let deadlines = ClientDeadlines {
        connect_ms: 500,
        first_byte_ms: 500,
        idle_ms: 500,
        total_ms: 2_000,
    };
    EgressClient::guarded_with(
        rules(toml),
        &EnvironmentSource::from_pairs([("A", "")]),
        deadlines,
        names(table),
    )
    .unwrap()
}

#[tokio::test]
async fn one_bad_address_among_good_ones_refuses() {
    let table: &[(&str, &[&str])] = &[
        ("mixed.test", &["8.8.8.8", "10.0.0.1"]),
        ("meta.test", &["::ffff:169.254.169.254"]),
    ];
    let client = guarded("hosts = ['*']", table);
    for host in ["mixed.test", "meta.test"] {
        let answer = client.send(get(&format!("http://{host}/"))).await;
        assert!(
            matches!(answer, Err(EgressError::Refused(UrlRefusal::Address { .. }))),
            "{answer:?}"
        );
    }
    assert!(matches!(
        client.send(get("http://unknown.test/")).await,
        Err(EgressError::Dns { .. })
    ));
}

#[tokio::test]
async fn it_connects_to_the_address_that_was_judged() {
    let (port, served) = server(vec![OK.to_owned()]).await;
    let client = guarded(
        &format!("allow_private = ['inside.test:{port}']"),
        &[("inside.test", &["127.0.0.1"])],
    );
    let response = client
        .send(get(&format!("http://inside.test:{port}/p?q=1")))
        .await
        .unwrap();
    assert_eq!(response.bytes().await.unwrap(), "hello");
    let head = served.await.unwrap().remove(0);
    assert!(
        head.starts_with("GET /p?q=1 HTTP/1.1\r\n") && head.contains(&format!("host: inside.test:{port}")),
        "{head}"
    );
}

#[tokio::test]
async fn redirects_are_judged_and_lose_secrets() {
    let (other, other_served) = server(vec![OK.to_owned()]).await;
    let (port, served) = server(vec![
        found("/second"),
        found(&format!("http://b.test:{other}/")),
        found("http://c.test/"),
        found("http://169.254.169.254/latest"),
    ])
    .await;
    let table: &[(&str, &[&str])] = &[
        ("a.test", &["127.0.0.1"]),
        ("b.test", &["127.0.0.1"]),
        ("c.test", &["10.0.0.1"]),
    ];
    let client = guarded(
        &format!("hosts = ['*']\nallow_private = ['a.test:{port}', 'b.test:{other}']"),
        table,
    );
    let mut request = get(&format!("http://a.test:{port}/"));
    let mut key = HeaderValue::from_static("canary");
    key.set_sensitive(true);
    request.headers.insert("x-key", key);
    request
        .headers
        .insert("authorization", HeaderValue::from_static("canary"));
    assert_eq!(
        client.send(request).await.unwrap().bytes().await.unwrap(),
        "hello"
    );
    let head = other_served.await.unwrap().remove(0);
    assert!(!head.contains("canary"), "{head}");

    for _ in ["to a private name", "to a literal"] {
        let answer = client.send(get(&format!("http://a.test:{port}/"))).await;
        let Err(EgressError::Onward(error)) = answer else {
            panic!("{answer:?}")
        };
        assert!(matches!(*error, EgressError::Refused(_)), "{error:?}");
    }
    let heads = served.await.unwrap();
    assert!(
        heads[1].starts_with("GET /second") && heads[1].contains("x-key: canary"),
        "same origin keeps them"
    );
}

#[tokio::test]
async fn redirects_end() {
    let (port, served) = server(vec![found("/"); 3]).await;
    let client = guarded(
        &format!("allow_private = ['127.0.0.1:{port}']\nmax_redirects = 2"),
        &[],
    );
    let answer = client.send(get(&format!("http://127.0.0.1:{port}/"))).await;
    let Err(EgressError::Onward(error)) = answer else {
        panic!("{answer:?}")
    };
    assert!(
        matches!(*error, EgressError::Refused(UrlRefusal::Redirects(2))),
        "{error:?}"
    );
    served.await.unwrap();
}

#[tokio::test]
async fn bodies_and_waits_are_bounded() {
    let big = "HTTP/1.1 200 OK\r\n\r\n0123456789";
    let (port, served) = server(vec![
        OK.into(),
        big.into(),
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n12".into(),
        String::new(),
    ])
    .await;
    let client = guarded(
        &format!("allow_private = ['127.0.0.1:{port}']\nmax_response_bytes = 4"),
        &[],
    );
    let url = format!("http://127.0.0.1:{port}/");
    assert!(matches!(
        client.send(get(&url)).await,
        Err(EgressError::TooLarge(4))
    ));
    let counted = client.send(get(&url)).await.unwrap().bytes().await;
    assert!(matches!(counted, Err(EgressError::TooLarge(4))));
    let client = guarded(&format!("allow_private = ['127.0.0.1:{port}']"), &[]);
    let cut = client.send(get(&url)).await.unwrap().bytes().await;
    assert!(matches!(cut, Err(EgressError::Broken(_))), "{cut:?}");
    let slow = client.send(get(&url)).await;
    assert!(
        matches!(
            slow,
            Err(EgressError::Timeout {
                phase: DeadlinePhase::FirstByte,
                ms: 500
            })
        ),
        "{slow:?}"
    );
    served.abort();
}

#[tokio::test]
async fn a_declared_endpoint_may_be_local_and_is_not_redirected() {
    let (port, served) = server(vec![found("http://example.com/")]).await;
    let url = Url::parse(&format!("http://127.0.0.1:{port}/v1")).unwrap();
    let env = EnvironmentSource::from_pairs([("HTTP_PROXY", "http://127.0.0.1:1")]);
    let client = EgressClient::for_provider(&url, &env, ClientDeadlines::default(), 1000).unwrap();
    assert_eq!(client.send(get(url.as_str())).await.unwrap().status(), 302);
    served.await.unwrap();
}

#[tokio::test]
async fn faults_are_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let env = EnvironmentSource::from_pairs([("A", "")]);
    let send = async |url: String| {
        let url = Url::parse(&url).unwrap();
        let client = EgressClient::for_provider(&url, &env, ClientDeadlines::default(), 1000).unwrap();
        client.send(get(url.as_str())).await.unwrap_err()
    };
    let refused = send(format!("http://127.0.0.1:{port}/?key=canary")).await;
    assert!(matches!(&refused, EgressError::Connect(_)), "{refused:?}");
    assert!(!format!("{refused} {refused:?}").contains("canary"));
    assert!(matches!(
        send("http://name.invalid/".to_owned()).await,
        EgressError::Dns { .. }
    ));

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    #[expect(clippy::disallowed_methods, reason = "a test's server, ended by the test")]
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream
            .write_all(b"this is not TLS at all, nor was it ever meant to be")
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
    });
    let plain = send(format!("https://127.0.0.1:{port}/")).await;
    assert!(matches!(&plain, EgressError::Tls(_)), "{plain:?}");
    served.abort();
    let (port, served) = server(vec!["garbage\r\n\r\n".into()]).await;
    let garbage = send(format!("http://127.0.0.1:{port}/")).await;
    assert!(matches!(&garbage, EgressError::Broken(_)), "{garbage:?}");
    served.await.unwrap();
    let proxy = Url::parse("https://example.com/").unwrap();
    let env = EnvironmentSource::from_pairs([("HTTPS_PROXY", "::canary::")]);
    let bad = EgressClient::for_provider(&proxy, &env, ClientDeadlines::default(), 1000)
        .unwrap_err()
        .to_string();
    assert!(!bad.contains("canary"), "{bad}");
}

#[tokio::test]
async fn a_proxy_is_used_but_for_what_it_is_not_for() {
    let (port, served) = server(vec![OK.to_owned()]).await;
    let proxy = format!("http://127.0.0.1:{port}");
    let url = Url::parse("http://models.invalid/v1?q=1").unwrap();
    let send = async |env: EnvironmentSource| {
        let client = EgressClient::for_provider(&url, &env, ClientDeadlines::default(), 1000).unwrap();
        client.send(get(url.as_str())).await
    };
    let except = EnvironmentSource::from_pairs([
        ("HTTP_PROXY", proxy.as_str()),
        ("NO_PROXY", "other.test,.invalid"),
    ]);
    assert!(matches!(send(except).await, Err(EgressError::Dns { .. })));
    let through = send(EnvironmentSource::from_pairs([("HTTP_PROXY", proxy.as_str())]))
        .await
        .unwrap();
    assert_eq!(through.bytes().await.unwrap(), "hello");
    let head = served.await.unwrap().remove(0);
    assert!(
        head.starts_with("GET http://models.invalid/v1?q=1 HTTP/1.1\r\n"),
        "{head}"
    );
}
