//! Whether a provider is there is found out without a key and without anything that is paid for.

use clawk_core::ports::FaultKind;

use crate::fixture::*;

#[tokio::test]
async fn any_answer_says_that_it_is_there_and_nothing_secret_is_sent() {
    for status in [
        "200 OK",
        "401 Unauthorized",
        "404 Not Found",
        "500 Internal Server Error",
    ] {
        for (protocol, path) in [
            ("openai-compatible", "get /v1/models "),
            ("anthropic-native", "get /v1/models "),
        ] {
            let server = Server::start(vec![Reply::Bytes(answer(status, "", "{}"))]).await;
            let provider = provider(spec(protocol, &server.url(), true), quick());
            provider
                .check_reachable()
                .await
                .unwrap_or_else(|error| panic!("{protocol} {status}: {error}"));
            let requests = server.requests();
            let (head, body) = &requests[0];
            assert_eq!(requests.len(), 1);
            assert!(head.starts_with(path), "{head}");
            assert!(
                !head.contains("authorization") && !head.contains("x-api-key") && !head.contains("canary"),
                "{head}"
            );
            assert_eq!(body, "", "nothing is asked");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_told_as_such() {
    let gone = Server::start(vec![Reply::Bytes(Vec::new())]).await.url();
    for protocol in ["openai-compatible", "anthropic-native"] {
        let error = provider(spec(protocol, &gone, true), quick())
            .check_reachable()
            .await
            .unwrap_err();
        assert_eq!(error.kind, FaultKind::Unreachable, "{error}");
        assert!(error.message.contains("`main`"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_is_not_there() {
    let server = Server::start(vec![Reply::Hold(Vec::new())]).await;
    let error = provider(spec("openai-compatible", &server.url(), true), quick())
        .check_reachable()
        .await
        .unwrap_err();
    assert_eq!(error.kind, FaultKind::Timeout, "{error}");
}
