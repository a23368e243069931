//! Providers that can't be paid for, are busy, or can't be reached; how much one answer may say.

use std::sync::Arc;
use std::time::Duration;

use clawk_proto::method::LifecycleState;
use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, params, rig, rpc};
use crate::kind;
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::{FaultKind, ModelCompletion, ProviderError, ProviderState, StatePart};
use crate::purse::TokenPrice;
use crate::testing::{Rig, ScriptedModel, says};
use crate::{EntryPoint, Kernel, ModelOptions};

fn server(name: &str, model: &str, fallback: &[&str]) -> Value {
    let fallback: Vec<Value> = fallback
        .iter()
        .map(|name| json!({ "provider_ref": name }))
        .collect();
    json!({ "name": name, "protocol": "openai-compatible", "endpoint": "https://x.example", "model": model,
        "auth": { "type": "none" }, "fallback": fallback })
}

fn with(providers: Value) -> Rig {
    let mut spec = agent(allow_all());
    spec["providers"] = providers;
    rig(spec)
}

pub(super) fn payloads(rig: &Rig, kind: &str) -> Vec<Value> {
    let events = rig
        .journal
        .trace()
        .into_iter()
        .filter(|event| event.event_type == kind);
    events.map(|event| Value::Object(event.payload)).collect()
}

fn limited(times: usize, retry_after_ms: Option<u64>) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(move |_, count| {
        if count > times {
            return Ok(says("now"));
        }
        Err(ProviderError {
            retry_after_ms,
            ..ScriptedModel::fault(FaultKind::RateLimited, "429")
        })
    }))
}

#[tokio::test]
async fn an_unpriced_link_counts_as_tried_and_the_next_is_asked() {
    let mut rig = with(json!([
        server("one", "house-model", &["two", "three", "four"]),
        server("two", "other-model", &[]),
        server("three", "gpt-4o", &[]),
        server("four", "gpt-4o", &[]),
    ]));
    rig.budgets.day.cost_microusd = Some(1_000_000);
    let kernel = rig.start().await;
    let (end, told) = say(&kernel, "x").await;
    assert_eq!(end, TurnEnd::Answered);
    let asked = |name: &str| rig.models[name].asked().len();
    assert_eq!(
        (asked("one"), asked("two"), asked("three"), asked("four")),
        (0, 0, 1, 0),
        "in order"
    );
    let failed = payloads(&rig, kind::PROVIDER_FAILED);
    let names: Vec<_> = failed
        .iter()
        .map(|event| (&event["provider"], &event["kind"], &event["input_tokens"]))
        .collect();
    assert_eq!(
        names,
        [
            (&json!("one"), &json!("unpriced"), &json!(0)),
            (&json!("two"), &json!("unpriced"), &json!(0))
        ]
    );
    let next = told
        .iter()
        .filter(|notice| matches!(notice, SessionNotice::Retrying { .. }))
        .count();
    assert_eq!(next, 2, "and shown");
    drop(kernel);
    let kernel = rig.start().await;
    let agent = kernel.budget_report().purses.remove(0);
    assert_eq!(
        agent.spent.tokens, 15,
        "what was not asked took nothing, after a restart, too"
    );
}

/// Thoughts, told in two pieces around nothing, and an answer.
fn thinking(thought: &str) -> Arc<ScriptedModel> {
    let part = StatePart::Member {
        name: "reasoning_content".to_owned(),
        json: json!(thought).to_string(),
    };
    let state = ProviderState {
        provider: "one".to_owned(),
        parts: vec![part],
        ..ProviderState::default()
    };
    let completion = ModelCompletion {
        state: Some(Box::new(state)),
        ..says("the answer")
    };
    Arc::new(ScriptedModel::new(move |_, _| Ok(completion.clone())))
}

#[tokio::test]
async fn thoughts_are_told_before_the_answer_without_secrets_and_are_no_part_of_it() {
    let secret = "kept-away-from-everybody";
    let mut rig = with(json!([server("one", "gpt-4o", &[])]));
    rig.secrets.add(&clawk_secrets::Secret::new("LAMP_KEY", secret));
    let thought = format!("I know {secret} and say nothing.");
    rig.models.insert("one".to_owned(), thinking(&thought));
    let kernel = rig.start().await;
    let (end, told) = say(&kernel, "x").await;
    assert_eq!(end, TurnEnd::Answered);
    let told: Vec<&SessionNotice> = told
        .iter()
        .filter(|notice| {
            matches!(
                notice,
                SessionNotice::Thought(_) | SessionNotice::Delta(_) | SessionNotice::Said(_)
            )
        })
        .collect();
    let SessionNotice::Thought(first) = told[0] else {
        panic!("{told:?}");
    };
    assert!(
        first.starts_with("I know") && first.ends_with("and say nothing.") && !first.contains(secret),
        "{first}"
    );
    let later = format!("{:?}", &told[1..]);
    assert!(
        later.contains("the answer") && !later.contains("say nothing"),
        "{later}"
    );
}

#[tokio::test]
async fn a_used_up_limit_still_ends_the_chain() {
    let mut rig = with(json!([
        server("one", "gpt-4o", &["two"]),
        server("two", "gpt-4o-mini", &[])
    ]));
    rig.budgets.day.tokens = Some(10);
    let kernel = rig.start().await;
    assert!(matches!(say(&kernel, "x").await.0, TurnEnd::Failed(_)));
    assert_eq!(
        rig.models["two"].asked().len(),
        0,
        "a limit is the operator's word"
    );
}

#[tokio::test]
async fn one_answer_may_be_as_long_as_its_model_can_and_its_purse_holds() {
    let asked = |rig: &Rig| rig.models["model"].asked().pop().unwrap().max_output_tokens;
    for (model, set, tokens, wanted) in [
        ("house-model", None, None, 4_096),
        ("gpt-4o", None, None, 16_384),
        ("claude-sonnet-4-5-20250929", None, None, 64_000),
        ("house-model", Some(9_000), None, 9_000),
        ("gpt-4o", Some(700), None, 700),
        // A quarter of what is left, and never less than 4,096 for that.
        ("claude-sonnet-4-5", None, Some(100_000), 25_000),
        ("claude-sonnet-4-5", None, Some(9_000), 4_096),
        // The operator's own number is not shared, but the purse holds.
        ("claude-sonnet-4-5", Some(50_000), Some(100_000), 50_000),
        ("claude-sonnet-4-5", Some(50_000), Some(3_000), 3_000),
    ] {
        let mut rig = with(json!([server("model", model, &[])]));
        rig.locals.insert(
            "model".to_owned(),
            ModelOptions {
                max_output_tokens: set,
                ..ModelOptions::default()
            },
        );
        rig.budgets.day.tokens = tokens;
        let kernel = rig.start().await;
        assert_eq!(say(&kernel, "x").await.0, TurnEnd::Answered, "{model}");
        let found = asked(&rig);
        let near = wanted - wanted / 10..=wanted;
        assert!(
            near.contains(&found),
            "{model} {set:?} {tokens:?}: {found}, not {wanted}"
        );
        if tokens.is_none() {
            assert_eq!(found, wanted, "{model} {set:?}");
        }
    }
    // A window that is nearly full leaves less room.
    let mut spec = server("model", "claude-sonnet-4-5", &[]);
    spec["limits"] = json!({ "max_context_window": 20_000 });
    let rig = with(json!([spec]));
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, &"word ".repeat(8_000)).await.0, TurnEnd::Answered);
    assert!((4_096..10_000).contains(&asked(&rig)), "{}", asked(&rig));
}

#[tokio::test]
async fn a_second_answer_side_by_side_finds_room_in_the_purse() {
    let mut rig = with(json!([server("model", "claude-sonnet-4-5", &[])]));
    rig.prices.models.insert(
        "claude-*".to_owned(),
        TokenPrice {
            input: 1,
            output: 1_000_000,
            cached_input: None,
            cache_write: None,
        },
    );
    // Money for 40,000 tokens of output: less than one whole answer of this model.
    rig.budgets.day.cost_microusd = Some(40_000);
    let kernel = rig.start().await;
    for _ in 0..3 {
        assert_eq!(say(&kernel, "x").await.0, TurnEnd::Answered);
    }
    let asked: Vec<u64> = rig.models["model"]
        .asked()
        .iter()
        .map(|request| request.max_output_tokens)
        .collect();
    assert!(asked.iter().all(|most| *most <= 10_000), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_waited_out_for_its_time_and_then_said_with_the_way_back() {
    // Seven rate limits are more than the three attempts of the manifest.
    let mut rig = rig(agent(allow_all()));
    rig.models.insert("model".to_owned(), limited(7, Some(5_000)));
    let kernel = rig.start().await;
    let (end, told) = say(&kernel, "hi").await;
    assert_eq!(end, TurnEnd::Answered);
    assert_eq!(rig.models["model"].asked().len(), 8);
    let waits = told.iter().filter_map(|notice| match notice {
        SessionNotice::Retrying { wait_ms, .. } => Some(*wait_ms),
        _ => None,
    });
    assert!(
        waits.clone().count() == 7 && waits.clone().all(|wait| wait >= 5_000),
        "`Retry-After` is kept and shown"
    );
    drop(kernel);

    rig.models.insert("model".to_owned(), limited(1_000, Some(5_000)));
    rig.locals.insert(
        "model".to_owned(),
        ModelOptions {
            retry_time_ms: 12_000,
            ..ModelOptions::default()
        },
    );
    let kernel = rig.start().await;
    let before = tokio::time::Instant::now();
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    let id = session.send_text("hi").await.unwrap();
    let end = loop {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            break end;
        }
    };
    let TurnEnd::Failed(why) = end else {
        panic!("{end:?}")
    };
    assert!(
        why.contains(&format!("`clawk dead-letters replay {id} CLAW`")),
        "{why}"
    );
    assert!(why.contains("asked 3 times, with 10 s between"), "{why}");
    assert!((10..12).contains(&before.elapsed().as_secs()));
    assert_eq!(kernel.dead_letters(10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_ends_the_wait() {
    let mut rig = rig(agent(allow_all()));
    rig.models
        .insert("model".to_owned(), limited(1_000, Some(60_000)));
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("hi").await.unwrap();
    let before = tokio::time::Instant::now();
    loop {
        match session.next_notice().await {
            Some(SessionNotice::Retrying { .. }) => session.cancel_turn(),
            Some(SessionNotice::TurnEnded { end, .. }) => {
                assert_eq!(end, TurnEnd::Cancelled);
                break;
            }
            _ => {}
        }
    }
    assert!(before.elapsed() < Duration::from_secs(1));
}

async fn until(kernel: &Kernel, state: LifecycleState) {
    for _ in 0..1_000 {
        if kernel.status().state == state {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("never {state:?}");
}

#[tokio::test(start_paused = true)]
async fn while_no_provider_can_be_reached_messages_wait_in_error() {
    let mut rig = with(json!([server("one", "m", &["two"]), server("two", "m", &[])]));
    rig.reach_providers = true;
    rig.models["one"].goes(true);
    rig.models["two"].goes(true);
    let kernel = rig.start().await;
    assert_eq!(
        kernel.status().state,
        LifecycleState::Ready,
        "the start does not wait for it"
    );
    until(&kernel, LifecycleState::Error).await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("hi").await.unwrap();
    let first = session.next_notice().await;
    assert!(
        matches!(&first, Some(SessionNotice::Unreachable(why)) if why.contains("messages wait") && why.contains("connection refused")),
        "{first:?}"
    );
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(
        rig.models["one"].asked().len() + rig.models["two"].asked().len(),
        0,
        "the message waits"
    );
    // What needs no model is done.
    let caller = rpc(&kernel).await;
    kernel.call(caller, params("write", json!({}), 1)).await.unwrap();
    rig.models["two"].goes(false);
    until(&kernel, LifecycleState::Ready).await;
    let end = loop {
        if let Some(SessionNotice::TurnEnded { end, .. }) = session.next_notice().await {
            break end;
        }
    };
    assert_eq!(end, TurnEnd::Answered);
    let moves: Vec<_> = payloads(&rig, kind::LIFECYCLE)
        .iter()
        .map(|event| event["to"].clone())
        .collect();
    assert_eq!(moves, ["STARTING", "READY", "ERROR", "READY"]);
    let named = payloads(&rig, kind::PROVIDER_UNREACHABLE);
    assert_eq!(
        named
            .iter()
            .map(|event| event["provider"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["one", "two", "one"]
    );
}

#[tokio::test(start_paused = true)]
async fn some_unreachable_are_named_and_the_agent_works() {
    let mut rig = with(json!([server("one", "m", &["two"]), server("two", "m", &[])]));
    rig.reach_providers = true;
    rig.models["one"].goes(true);
    let kernel = rig.start().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(kernel.status().state, LifecycleState::Ready);
    let (end, told) = say(&kernel, "hi").await;
    assert_eq!(end, TurnEnd::Answered);
    assert!(told.iter().any(
        |notice| matches!(notice, SessionNotice::Unreachable(why) if why.contains("not every provider"))
    ));
    assert_eq!(payloads(&rig, kind::PROVIDER_UNREACHABLE).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_in_error_stops_in_order_and_keeps_what_waits() {
    let mut rig = with(json!([server("one", "m", &[])]));
    rig.reach_providers = true;
    rig.models["one"].goes(true);
    let kernel = rig.start().await;
    until(&kernel, LifecycleState::Error).await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text("hi").await.unwrap();
    assert!(kernel.shutdown("test", 100).await);
    assert_eq!(kernel.status().state, LifecycleState::Stopped);
    assert_eq!(rig.models["one"].asked().len(), 0);
    assert_eq!(
        rig.journal
            .inbox()
            .iter()
            .filter(|(_, end)| end.is_none())
            .count(),
        1,
        "it is taken up after the next start"
    );
    drop(session);
    rig.models["one"].goes(false);
    let kernel = rig.start().await;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(rig.models["one"].asked().len(), 1);
    drop(kernel);
}
