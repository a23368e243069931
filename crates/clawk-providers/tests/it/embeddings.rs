//! Vectors of texts, against a strict fake of the API.

use clawk_core::ports::FaultKind;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::fixture::*;

fn ok(body: &serde_json::Value) -> Reply {
    Reply::Bytes(answer(
        "200 OK",
        "content-type: application/json\r\n",
        &body.to_string(),
    ))
}

fn data(vectors: &[(usize, &[f32])]) -> serde_json::Value {
    let data: Vec<_> = vectors
        .iter()
        .map(|(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector}))
        .collect();
    json!({"object": "list", "data": data, "model": "e", "usage": {"prompt_tokens": 7, "total_tokens": 7}})
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

#[tokio::test]
async fn texts_go_in_one_request_and_vectors_come_back_in_order_at_length_one() {
    let server = Server::start(vec![ok(&data(&[(1, &[0.0, 2.0]), (0, &[3.0, 4.0])]))]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    let cancel = CancellationToken::new();
    let found = provider
        .embed_texts("e5", Some(2), &texts(&["one", "two"]), &cancel)
        .await
        .unwrap();
    assert_eq!(found.vectors, [vec![0.6, 0.8], vec![0.0, 1.0]]);
    assert_eq!(
        (
            found.usage.input_tokens,
            found.usage.output_tokens,
            found.usage.estimated
        ),
        (7, 0, false)
    );
    let (head, body) = &server.requests()[0];
    assert!(head.starts_with("post /v1/embeddings "), "{head}");
    assert_eq!(
        *body,
        json!({"model": "e5", "input": ["one", "two"], "encoding_format": "float"})
    );
}

#[tokio::test]
async fn what_is_not_one_vector_for_each_text_is_no_answer() {
    for (body, word) in [
        (data(&[(0, &[1.0, 0.0])]), "1 vectors came"),
        (data(&[(0, &[1.0, 0.0]), (0, &[1.0, 0.0])]), "twice"),
        (data(&[(0, &[1.0, 0.0]), (5, &[1.0, 0.0])]), "not asked"),
        (data(&[(0, &[1.0, 0.0]), (1, &[1.0])]), "1 numbers"),
        (data(&[(0, &[0.0, 0.0]), (1, &[1.0, 0.0])]), "no direction"),
        (json!({"data": "x"}), "agreed"),
    ] {
        let server = Server::start(vec![ok(&body)]).await;
        let provider = provider(spec("openai-compatible", &server.url(), true), quick());
        let cancel = CancellationToken::new();
        let asked = texts(&["one", "two"]);
        let error = provider
            .embed_texts("e5", Some(2), &asked, &cancel)
            .await
            .unwrap_err();
        assert_eq!(error.kind, FaultKind::Malformed, "{error}");
        assert!(error.message.contains(word), "{word}: {error}");
        assert!(
            error.usage.is_some_and(|usage| usage.input_tokens > 0),
            "the server worked"
        );
    }
}

#[tokio::test]
async fn a_refusal_is_told_and_a_protocol_without_embeddings_says_so() {
    let server = Server::start(vec![Reply::Bytes(answer("429 Too Many Requests", "", "{}"))]).await;
    let cancel = CancellationToken::new();
    let openai = provider(spec("openai-compatible", &server.url(), true), quick());
    let error = openai
        .embed_texts("e5", None, &texts(&["x"]), &cancel)
        .await
        .unwrap_err();
    assert_eq!((error.kind, error.usage), (FaultKind::RateLimited, None));
    let anthropic = provider(spec("anthropic-native", &server.url(), true), quick());
    let error = anthropic
        .embed_texts("e5", None, &texts(&["x"]), &cancel)
        .await
        .unwrap_err();
    assert!(error.message.contains("openai-compatible"), "{error}");
    assert_eq!(server.requests().len(), 1);
}

/// Models with vectors of several lengths are asked for the manifest's; the parameter is sent only where it is needed.
#[tokio::test]
async fn longer_vectors_are_asked_for_again_with_the_manifests_length() {
    let long = || ok(&data(&[(0, &[1.0, 0.0, 0.0])]));
    let short = || ok(&data(&[(0, &[0.0, 2.0])]));
    let server = Server::start(vec![long(), short(), short()]).await;
    let openai = provider(spec("openai-compatible", &server.url(), true), quick());
    let cancel = CancellationToken::new();
    for spent in [14, 7] {
        let found = openai
            .embed_texts("e5", Some(2), &texts(&["one"]), &cancel)
            .await
            .unwrap();
        assert_eq!(
            (found.vectors, found.usage.input_tokens),
            (vec![vec![0.0, 1.0]], spent)
        );
    }
    let sent: Vec<_> = server
        .requests()
        .iter()
        .map(|(_, body)| body["dimensions"].clone())
        .collect();
    assert_eq!(sent, [json!(null), json!(2), json!(2)]);

    // A server that does not know the parameter, and one that ignores it.
    for second in [Reply::Bytes(answer("400 Bad Request", "", "{}")), long()] {
        let server = Server::start(vec![long(), second]).await;
        let openai = provider(spec("openai-compatible", &server.url(), true), quick());
        let error = openai
            .embed_texts("e5", Some(2), &texts(&["one"]), &cancel)
            .await
            .unwrap_err();
        assert_eq!(error.kind, FaultKind::Malformed, "{error}");
        assert!(error.message.contains("3 numbers where 2"), "{error}");
    }
}
