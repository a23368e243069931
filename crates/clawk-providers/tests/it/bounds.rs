//! What a server sends is bounded where it is decoded: counts that nobody can record, names as long as a book.

use clawk_core::ports::Usage;
use serde_json::json;

use crate::fixture::*;

const BILLION: u64 = 1_000_000_000;

/// The same answer in both dialects, streamed and whole, with this text as its counts.
fn answers(text: &str, input: &str, output: &str) -> Vec<(&'static str, bool, Vec<u8>)> {
    let said = json!(text);
    let openai = format!("{{\"prompt_tokens\":{input},\"completion_tokens\":{output}}}");
    let anthropic = format!("{{\"input_tokens\":{input},\"output_tokens\":{output}}}");
    let chunks = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":{said}}},\"finish_reason\":\"stop\"}}],\"usage\":{openai}}}\n\ndata: [DONE]\n\n"
    );
    let pieces = format!(
        "data: {{\"type\":\"message_start\",\"message\":{{\"model\":\"m\",\"usage\":{anthropic}}}}}\n\n\
         data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":{said}}}}}\n\n\
         data: {{\"type\":\"message_delta\",\"delta\":{{\"stop_reason\":\"end_turn\"}},\"usage\":{anthropic}}}\n\n\
         data: {{\"type\":\"message_stop\"}}\n\n"
    );
    let message = format!(
        "{{\"choices\":[{{\"message\":{{\"content\":{said}}},\"finish_reason\":\"stop\"}}],\"usage\":{openai}}}"
    );
    let content = format!(
        "{{\"content\":[{{\"type\":\"text\",\"text\":{said}}}],\"stop_reason\":\"end_turn\",\"usage\":{anthropic}}}"
    );
    let body = |text: &str| answer("200 OK", "content-type: application/json\r\n", text);
    vec![
        ("openai-compatible", true, stream(&chunks)),
        ("anthropic-native", true, stream(&pieces)),
        ("openai-compatible", false, body(&message)),
        ("anthropic-native", false, body(&content)),
    ]
}

async fn usage_of(protocol: &str, streaming: bool, bytes: Vec<u8>) -> Usage {
    let server = Server::start(vec![Reply::Bytes(bytes)]).await;
    let provider = provider(spec(protocol, &server.url(), streaming), quick());
    let answer = ask(&provider, &user("hi")).await.0;
    let answer =
        answer.unwrap_or_else(|error| panic!("{protocol} {streaming}: a whole answer is lost: {error}"));
    assert!(answer.text.starts_with("paid for"), "{protocol}: {}", answer.text);
    answer.usage
}

#[tokio::test]
async fn counts_that_nobody_can_record_cost_the_reserve_and_never_the_answer() {
    for wrong in [
        "-1",
        "-9223372036854775809",
        "1e999",
        "12.5",
        "\"many\"",
        "[]",
        "true",
        "{\"n\":1}",
        "1152921504606846976",
        "18446744073709551616",
        "1000000001",
    ] {
        for (protocol, streaming, bytes) in answers("paid for", wrong, wrong) {
            let usage = usage_of(protocol, streaming, bytes).await;
            assert!(
                usage.unreadable && usage.estimated,
                "{protocol} {streaming} {wrong}: {usage:?}"
            );
            assert!(
                usage.input_tokens <= BILLION && usage.output_tokens <= BILLION,
                "{wrong}: {usage:?}"
            );
        }
    }
    for (protocol, streaming, bytes) in answers("paid for", "1000000000", "7") {
        let usage = usage_of(protocol, streaming, bytes).await;
        assert!(!usage.unreadable, "{protocol} {streaming}: {usage:?}");
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.told),
            (BILLION, 7, None)
        );
    }
}

#[tokio::test]
async fn counts_far_below_the_text_are_kept_beside_the_higher_estimate() {
    let text = format!("paid for {}", "a word and another ".repeat(400));
    for (protocol, streaming, bytes) in answers(&text, "1", "1") {
        let usage = usage_of(protocol, streaming, bytes).await;
        let told = usage.told.expect("what the server said is kept");
        assert_eq!(
            (told.input_tokens, told.output_tokens),
            (1, 1),
            "{protocol} {streaming}"
        );
        let estimate = u64::try_from(text.len().div_ceil(4)).unwrap();
        assert_eq!(usage.output_tokens, estimate, "{protocol} {streaming}");
        assert!(
            usage.estimated && usage.input_tokens > 30,
            "{protocol} {streaming}: {usage:?}"
        );
    }
    // A dense text is honest: sixteen bytes a token.
    let honest = u64::try_from(text.len() / 16 + 1).unwrap();
    for (protocol, streaming, bytes) in answers(&text, "5000", &honest.to_string()) {
        let usage = usage_of(protocol, streaming, bytes).await;
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.told),
            (5000, honest, None)
        );
        assert!(!usage.estimated);
    }
}

#[tokio::test]
async fn names_of_an_answer_are_short() {
    let long = "n".repeat(300_000);
    let call = json!({ "index": 0, "id": long, "function": { "name": long, "arguments": "{}" } });
    let usage = json!({ "prompt_tokens": 100, "completion_tokens": 100_000 });
    let choice = json!({ "delta": { "tool_calls": [call] }, "finish_reason": "tool_calls" });
    let openai = format!(
        "data: {}\n\n",
        json!({ "model": long, "choices": [choice], "usage": usage })
    );
    let block = json!({ "type": "tool_use", "id": long, "name": long, "input": {} });
    let usage = json!({ "input_tokens": 100, "output_tokens": 100_000 });
    let anthropic = [
        json!({ "type": "message_start", "message": { "model": long, "usage": usage } }),
        json!({ "type": "content_block_start", "index": 0, "content_block": block }),
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": usage }),
    ];
    let anthropic: String = anthropic
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    for (protocol, events) in [("openai-compatible", openai), ("anthropic-native", anthropic)] {
        let server = Server::start(vec![Reply::Bytes(stream(&events))]).await;
        let provider = provider(spec(protocol, &server.url(), true), quick());
        let (answer, told) = ask(&provider, &user("hi")).await;
        let answer = answer.unwrap();
        let call = &answer.calls[0];
        assert!(
            call.id.len() <= 256 && call.name.len() <= 256 && answer.model.len() <= 256 && told.len() <= 300,
            "{protocol}: {} {} {} {}",
            call.id.len(),
            call.name.len(),
            answer.model.len(),
            told.len()
        );
    }
}

#[tokio::test]
async fn what_comes_after_a_whole_answer_cannot_take_it_away() {
    let openai = "data: {\"choices\":[{\"delta\":{\"content\":\"paid for\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"usage\": {{{ nonsense\n\n";
    let anthropic = "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"paid for\"}}\n\n\
        data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\ndata: {\"type\": 5}\n\n";
    for (protocol, events) in [("openai-compatible", openai), ("anthropic-native", anthropic)] {
        assert!(
            usage_of(protocol, true, stream(events)).await.estimated,
            "{protocol}"
        );
    }
}
