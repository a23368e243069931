//! Whatever a server sends, in either dialect, as a stream or whole: no panic, and every number and name is within its bound.

use clawk_core::ports::{InferRequest, ModelCompletion, NAME_MAX_BYTES, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{AnswerContext, BAD_ARGUMENTS_MAX_BYTES, CALLS_MAX, Draft, TOKEN_MAX_BYTES};
use crate::fault::AttemptFault;
use crate::sse::{Decoder, Event};
use crate::state::StateOwner;
use crate::{anthropic, openai, responses};

#[derive(Debug, Clone, Copy)]
enum Dialect {
    OpenAi,
    Responses,
    Anthropic,
}

const REQUEST_BYTES: usize = 3_000;

/// JSON text of a leaf: also numbers that no type holds.
fn leaf() -> impl Strategy<Value = String> {
    let text = (
        "[a-z{}\":,0-9é ]{0,12}",
        prop_oneof![4 => 1usize..3, 1 => 30usize..900],
    )
        .prop_map(|(word, times)| Value::String(word.repeat(times)).to_string());
    const WORDS: [&str; 8] = [
        "stop",
        "length",
        "end_turn",
        "tool_use",
        "tool_calls",
        "text",
        "text_delta",
        "input_json_delta",
    ];
    prop_oneof![
        4 => text,
        3 => prop::sample::select(WORDS.as_slice()).prop_map(|word| json!(word).to_string()),
        3 => any::<i64>().prop_map(|n| n.to_string()),
        2 => any::<u64>().prop_map(|n| n.to_string()),
        2 => (0u64..2_000_000_000).prop_map(|n| n.to_string()),
        2 => (0u64..9).prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_map(|n| json!(n).to_string()),
        1 => prop::sample::select(["null", "true", "1e999", "-1", "99999999999999999999999", "{}", "[]"].as_slice()).prop_map(str::to_owned),
    ]
}

/// Any JSON whose members have the names that the dialects know.
fn any_json() -> impl Strategy<Value = String> {
    const NAMES: [&str; 24] = [
        "type",
        "index",
        "model",
        "choices",
        "delta",
        "message",
        "content",
        "text",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "finish_reason",
        "content_block",
        "error",
    ];
    leaf().prop_recursive(5, 60, 6, |inner| {
        let member = (prop::sample::select(NAMES.as_slice()), inner.clone());
        prop_oneof![
            1 => prop::collection::vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(","))),
            3 => prop::collection::vec(member, 0..6).prop_map(|members| {
                let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    })
}

/// What is nearly right: the shape that was agreed, with anything in its places.
fn chunk() -> impl Strategy<Value = String> {
    let call = (leaf(), leaf(), leaf(), leaf()).prop_map(|(index, id, name, arguments)| {
        format!(
            "{{\"index\":{index},\"id\":{id},\"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}"
        )
    });
    let calls = prop::collection::vec(call, 0..4).prop_map(|calls| calls.join(","));
    (leaf(), leaf(), calls, leaf(), leaf(), leaf(), leaf()).prop_map(|(model, content, calls, finish, read, wrote, cached)| {
        format!(
            "{{\"model\":{model},\"choices\":[{{\"delta\":{{\"content\":{content},\"tool_calls\":[{calls}]}},\"finish_reason\":{finish}}}],\
             \"usage\":{{\"prompt_tokens\":{read},\"completion_tokens\":{wrote},\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}}}"
        )
    })
}

fn piece() -> impl Strategy<Value = String> {
    const KINDS: [&str; 5] = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
    ];
    (prop::sample::select(KINDS.as_slice()), leaf(), leaf(), leaf(), leaf(), leaf(), leaf()).prop_map(
        |(kind, index, id, name, word, read, wrote)| {
            let usage = format!(
                "{{\"input_tokens\":{read},\"output_tokens\":{wrote},\"cache_read_input_tokens\":{read},\"cache_creation_input_tokens\":{wrote}}}"
            );
            format!(
                "{{\"type\":\"{kind}\",\"index\":{index},\"usage\":{usage},\"message\":{{\"model\":{name},\"usage\":{usage}}},\
                 \"content_block\":{{\"type\":\"tool_use\",\"id\":{id},\"name\":{name},\"input\":{word}}},\
                 \"delta\":{{\"type\":{word},\"text\":{name},\"partial_json\":{id},\"stop_reason\":{word}}}}}"
            )
        },
    )
}

fn events() -> impl Strategy<Value = Vec<String>> {
    let any = prop_oneof![4 => chunk(), 4 => piece(), 2 => any_json(), 1 => "\\PC{0,40}", 1 => Just("[DONE]".to_owned())];
    prop::collection::vec(any, 0..10)
}

fn streamed(dialect: Dialect, bytes: &[u8], size: usize) -> (Draft, Result<(), AttemptFault>) {
    let mut draft = match dialect {
        Dialect::OpenAi | Dialect::Responses => Draft::with_thoughts(size.is_multiple_of(2)),
        Dialect::Anthropic => Draft::default(),
    };
    let mut decoder = Decoder::new(1 << 20);
    let take = |draft: &mut Draft, event: Event| match dialect {
        Dialect::OpenAi => openai::answer::take_event(draft, &event, &|_| {}),
        Dialect::Responses => responses::answer::take_event(draft, &event, &|_| {}),
        Dialect::Anthropic => anthropic::answer::take_event(draft, &event, &|_| {}),
    };
    for piece in bytes.chunks(size) {
        if let Err(fault) = decoder.push(piece, |event: Event| take(&mut draft, event)) {
            return (draft, Err(fault));
        }
    }
    let outcome = decoder.finish(|event: Event| take(&mut draft, event));
    (draft, outcome)
}

fn whole(dialect: Dialect, body: &[u8]) -> (Draft, Result<(), AttemptFault>) {
    streamed(dialect, body, body.len().max(1))
}

fn within(usage: &Usage, written: usize) -> Result<(), TestCaseError> {
    let told = usage.told.unwrap_or_default();
    for count in [
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        told.input_tokens,
        told.output_tokens,
    ] {
        prop_assert!(count <= Usage::TOKENS_MAX, "{usage:?}");
    }
    let least = |bytes: usize| u64::try_from(bytes).unwrap() / TOKEN_MAX_BYTES;
    prop_assert!(
        usage.input_tokens >= least(REQUEST_BYTES),
        "work for nothing: {usage:?}"
    );
    prop_assert!(
        usage.output_tokens >= least(written),
        "work for nothing: {usage:?} for {written} bytes"
    );
    Ok(())
}

fn check(draft: Draft, outcome: Result<(), AttemptFault>, sent: usize) -> Result<(), TestCaseError> {
    within(&draft.usage(REQUEST_BYTES), draft.text.len())?;
    if outcome.is_err() {
        return Ok(());
    }
    let request = InferRequest {
        system: String::new(),
        messages: Vec::new(),
        tools: Vec::new(),
        max_output_tokens: 1,
        ..InferRequest::default()
    };
    let Ok(ModelCompletion {
        text,
        calls,
        usage,
        model,
        ..
    }) = draft.finish(AnswerContext {
        request: &request,
        request_bytes: REQUEST_BYTES,
        owner: StateOwner {
            provider: "p",
            host: "h",
            model: "m",
        },
        prefix: None,
    })
    else {
        return Ok(());
    };
    within(&usage, text.len())?;
    prop_assert!(text.len() <= sent * 3 && calls.len() <= CALLS_MAX && model.len() <= NAME_MAX_BYTES);
    for call in &calls {
        prop_assert!(
            call.id.len() <= NAME_MAX_BYTES && call.name.len() <= NAME_MAX_BYTES,
            "{call:?}"
        );
        let arguments = call.arguments.as_ref().map_or_else(String::len, |_| 0);
        prop_assert!(arguments <= BAD_ARGUMENTS_MAX_BYTES);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn every_decoded_number_and_name_is_within_its_bound(events in events(), size in 1usize..700) {
        let stream: String = events.iter().map(|data| format!("data: {data}\n\n")).collect();
        for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Anthropic] {
            let (draft, outcome) = streamed(dialect, stream.as_bytes(), size);
            check(draft, outcome, stream.len())?;
            for body in &events {
                let (draft, outcome) = whole(dialect, body.as_bytes());
                check(draft, outcome, body.len())?;
            }
        }
    }

    #[test]
    fn any_bytes_at_all_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), size in 1usize..50) {
        for dialect in [Dialect::OpenAi, Dialect::Responses, Dialect::Anthropic] {
            let (draft, outcome) = streamed(dialect, &bytes, size);
            check(draft, outcome, bytes.len() * 3)?;
            let (draft, outcome) = whole(dialect, &bytes);
            check(draft, outcome, bytes.len())?;
        }
    }
}
