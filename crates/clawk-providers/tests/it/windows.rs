//! A server is asked how large its model's window is, with a question that costs nothing, and only where it may know.

use serde_json::json;

use crate::fixture::*;

fn json_answer(body: &serde_json::Value) -> Reply {
    Reply::Bytes(answer(
        "200 OK",
        "content-type: application/json\r\n",
        &body.to_string(),
    ))
}

fn not_found() -> Reply {
    Reply::Bytes(answer("404 Not Found", "", "{}"))
}

#[tokio::test]
async fn vllms_list_says_it() {
    let list = json!({"object": "list", "data": [{"id": "m", "max_model_len": 32768}]});
    let server = Server::start(vec![json_answer(&list)]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    assert_eq!(provider.window_tokens().await, Some(32_768));
    let requests = server.requests();
    assert!(requests[0].0.starts_with("get /v1/models "), "{}", requests[0].0);
}

#[tokio::test]
async fn llama_cpps_properties_say_it() {
    let list = json!({"object": "list", "data": [{"id": "m", "meta": {"n_ctx_train": 131072}}]});
    let properties = json!({"default_generation_settings": {"n_ctx": 4096}});
    let server = Server::start(vec![json_answer(&list), json_answer(&properties)]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    assert_eq!(provider.window_tokens().await, Some(4_096));
    assert!(server.requests()[1].0.starts_with("get /props "));
}

#[tokio::test]
async fn a_server_that_does_not_say_it_is_asked_nothing_that_is_paid_for() {
    let list = json!({"object": "list", "data": [{"id": "m"}]});
    let server = Server::start(vec![json_answer(&list), not_found(), not_found()]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    assert_eq!(provider.window_tokens().await, None);
    for (head, _) in server.requests() {
        assert!(head.starts_with("get "), "{head}");
    }
}

#[tokio::test]
async fn a_server_that_hangs_holds_nobody_up() {
    let server = Server::start(vec![Reply::Hold(Vec::new())]).await;
    let provider = provider(spec("openai-compatible", &server.url(), true), quick());
    let before = std::time::Instant::now();
    assert_eq!(provider.window_tokens().await, None);
    assert!(before.elapsed().as_secs() < 3);
}
