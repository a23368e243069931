//! Provider limits, retries, fallback, tool deadlines.

use serde_json::{Value, json};

use super::{agent, allow_all, params, rig, rpc};
use crate::error::CallError;
use crate::kind;
use crate::notice::{SessionNotice, TurnEnd};
use crate::ports::{FaultKind, ModelMessage, ProviderError};
use crate::testing::{Behaviour, ScriptedModel, says};
use crate::{EntryPoint, Kernel};

pub(super) fn provider(name: &str, extra: Value) -> Value {
    let mut spec = json!({"name": name, "protocol": "custom", "endpoint": "script:x", "model": "m", "auth": {"type": "none"}});
    spec.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    spec
}

/// Says something and returns how the turn ended, with everything that was told on the way.
pub(super) async fn say(kernel: &Kernel, text: &str) -> (TurnEnd, Vec<SessionNotice>) {
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    session.send_text(text).await.unwrap();
    let mut told = Vec::new();
    while let Some(notice) = session.next_notice().await {
        if let SessionNotice::TurnEnded { end, .. } = notice {
            return (end, told);
        }
        told.push(notice);
    }
    panic!("the session ended without the turn's end");
}

#[tokio::test]
async fn a_spent_limit_of_a_rule_says_its_name_and_its_rule() {
    let rules = json!([
        {"id": "enough", "action": "deny", "scope": "all", "rate_limit": {"tokens_per_day": 10}},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]);
    let mut rig = rig(agent(rules));
    let costly = ScriptedModel::new(|_, _| {
        let mut completion = says("dear");
        completion.usage.input_tokens = 1000;
        Ok(completion)
    });
    rig.models.insert("model".to_owned(), std::sync::Arc::new(costly));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = |n| kernel.call(session, params("echo", json!({"text": "x"}), n));
    call(1).await.unwrap();
    say(&kernel, "spend").await;
    let Err(CallError::Quota {
        limit_name,
        limit,
        used,
        rule_id,
        ..
    }) = call(2).await
    else {
        panic!("the rule's limit is spent")
    };
    assert_eq!((limit_name.as_str(), limit), ("tokens_per_day", 10));
    assert!(used >= 1000, "{used}");
    assert_eq!(rule_id.as_deref(), Some("enough"));
}

#[tokio::test]
async fn a_day_that_is_used_up_refuses_turns_and_calls() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([provider("model", json!({"limits": {"tokens_per_day": 1000}}))]);
    let mut rig = rig(spec);
    let costly = ScriptedModel::new(|_, _| {
        let mut completion = says("dear");
        completion.usage.input_tokens = 1000;
        Ok(completion)
    });
    rig.models.insert("model".to_owned(), std::sync::Arc::new(costly));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("echo", json!({"text": "x"}), 1))
        .await
        .unwrap();
    assert_eq!(say(&kernel, "spend").await.0, TurnEnd::Answered);
    let error = kernel
        .call(session, params("echo", json!({"text": "x"}), 2))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Quota { .. }), "{error}");
    drop(kernel);
    // The journal remembers what was spent.
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    assert!(matches!(
        kernel
            .call(session, params("echo", json!({"text": "x"}), 3))
            .await,
        Err(CallError::Quota { .. })
    ));
    let TurnEnd::Failed(why) = say(&kernel, "more").await.0 else {
        panic!("a spent day must fail the turn")
    };
    assert!(why.contains("tokens_per_day"), "{why}");
    rig.clock.advance_ms(86_400_000);
    kernel
        .call(session, params("echo", json!({"text": "x"}), 4))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_request_larger_than_tokens_per_request_is_never_sent() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([provider("model", json!({"limits": {"tokens_per_request": 500}}))]);
    let rig = rig(spec);
    let kernel = rig.start().await;
    let TurnEnd::Failed(why) = say(&kernel, &"long ".repeat(2000)).await.0 else {
        panic!("it fits nowhere")
    };
    assert!(why.contains("tokens_per_request"), "{why}");
    assert_eq!(rig.models["model"].asked().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_fallback_chain_is_tried_in_order_and_none_is_skipped() {
    let mut spec = agent(allow_all());
    let chain = json!({"fallback": [{"provider_ref": "two"}, {"provider_ref": "three"}],
                       "retry": {"max_attempts": 2, "backoff": "linear", "initial_delay_ms": 10}});
    spec["providers"] = json!([
        provider("one", chain),
        provider("two", json!({})),
        provider("three", json!({}))
    ]);
    let mut rig = rig(spec);
    let down = || {
        std::sync::Arc::new(ScriptedModel::new(|_, _| {
            Err(ScriptedModel::fault(FaultKind::Unreachable, "refused"))
        }))
    };
    let locked = ScriptedModel::new(|_, _| Err(ScriptedModel::fault(FaultKind::Auth, "401")));
    rig.models.insert("one".to_owned(), down());
    rig.models.insert("two".to_owned(), std::sync::Arc::new(locked));
    let kernel = rig.start().await;
    let (end, told) = say(&kernel, "hi").await;
    assert_eq!(end, TurnEnd::Answered);
    let asked = |name: &str| rig.models[name].asked().len();
    assert_eq!((asked("one"), asked("two"), asked("three")), (2, 1, 1));
    let next: Vec<String> = told
        .iter()
        .filter_map(|n| {
            if let SessionNotice::Retrying { next, .. } = n {
                Some(next.clone())
            } else {
                None
            }
        })
        .collect();
    assert_eq!(next, ["one", "two", "three"]);
    let failed = rig
        .journal
        .kinds()
        .iter()
        .filter(|k| *k == kind::PROVIDER_FAILED)
        .count();
    assert_eq!(failed, 3, "every failed attempt is on record");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_when_is_waited_for() {
    let mut rig = rig(agent(allow_all()));
    let busy = ScriptedModel::new(|_, count| {
        if count > 1 {
            return Ok(says("now"));
        }
        Err(ProviderError {
            retry_after_ms: Some(20_000),
            ..ScriptedModel::fault(FaultKind::RateLimited, "429")
        })
    });
    rig.models.insert("model".to_owned(), std::sync::Arc::new(busy));
    let kernel = rig.start().await;
    let before = tokio::time::Instant::now();
    assert_eq!(say(&kernel, "hi").await.0, TurnEnd::Answered);
    assert!(before.elapsed().as_secs() >= 20);
}

#[tokio::test(start_paused = true)]
async fn a_tool_past_its_deadline_is_ended() {
    let mut spec = agent(allow_all());
    spec["tools"][1]["timeout_ms"] = json!(100);
    let rig = rig(spec);
    rig.runner.set("write", Behaviour::Sleep(10_000));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let error = kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        CallError::Timeout {
            tool: "write".to_owned(),
            timeout_ms: 100
        }
    );
    assert!(rig.journal.kinds().contains(&kind::ACTION_FAILED.to_owned()));
}

#[tokio::test]
async fn a_conversation_too_long_for_the_window_is_cut_at_a_user_message_and_said_so() {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([provider("model", json!({"limits": {"max_context_window": 400}}))]);
    let rig = rig(spec);
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    for n in 0..12 {
        session
            .send_text(format!("message {n} {}", "x".repeat(200)))
            .await
            .unwrap();
        while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
    }
    let last = rig.models["model"].asked().pop().unwrap();
    assert!(last.messages.len() < 12, "{}", last.messages.len());
    assert!(matches!(last.messages.first(), Some(ModelMessage::User { .. })));
    let Some(ModelMessage::User { text, .. }) = last.messages.last() else {
        panic!("the last one is the user's")
    };
    assert!(text.starts_with("message 11"));
    assert!(rig.journal.kinds().contains(&kind::CONTEXT_TRIMMED.to_owned()));
}
