//! What a model's server hands over is kept, comes back with the conversation, and is never shown (R52); an answer that says nothing is
//! told; requests begin alike and have one key.

use std::sync::Arc;

use serde_json::json;

use super::limits::say;
use super::screening::{SECRET, kept, knowing};
use super::{agent, allow_all, rig};
use crate::kind;
use crate::notice::TurnEnd;
use crate::ports::{
    InferRequest, ModelCompletion, ModelMessage, ProviderState, StatePart, StopReason, Usage,
};
use crate::testing::{Rig, ScriptedModel, calls, says};

fn state(parts: Vec<StatePart>) -> Option<Box<ProviderState>> {
    Some(Box::new(ProviderState {
        provider: "model".to_owned(),
        host: "models.example".to_owned(),
        model: "m".to_owned(),
        prefix: None,
        parts,
    }))
}

fn member(name: &str, json: &str) -> StatePart {
    StatePart::Member {
        name: name.to_owned(),
        json: json.to_owned(),
    }
}

fn block(json: &str) -> StatePart {
    StatePart::Block {
        json: json.to_owned(),
    }
}

/// A step with a tool and these parts, then an answer.
fn with_parts(parts: Vec<StatePart>) -> Arc<ScriptedModel> {
    let first = ModelCompletion {
        state: state(parts),
        ..calls(&[("echo", json!({"text": "x"}))])
    };
    Arc::new(ScriptedModel::new(move |request, _| {
        let last = request.messages.last();
        Ok(match last {
            Some(ModelMessage::ToolResult { .. }) => says("done"),
            _ => first.clone(),
        })
    }))
}

fn states(request: &InferRequest) -> Vec<ProviderState> {
    let found = request.messages.iter().filter_map(|message| match message {
        ModelMessage::Assistant { state, .. } => state.as_deref().cloned(),
        ModelMessage::User { .. } | ModelMessage::ToolResult { .. } => None,
    });
    found.collect()
}

async fn said(rig: &Rig, text: &str) -> TurnEnd {
    let kernel = rig.start().await;
    let end = say(&kernel, text).await.0;
    assert!(kernel.shutdown("test", 5_000).await);
    end
}

#[tokio::test]
async fn what_was_handed_over_comes_back_with_the_next_step() {
    let parts = vec![
        member("reasoning_content", "\"musing\""),
        block("{\"type\":\"thinking\",\"thinking\":\"musing\",\"signature\":\"c2ln\"}"),
        StatePart::CallMember {
            call: 0,
            name: "extra_content".to_owned(),
            json: "{\"google\":{\"thought_signature\":\"c2ln\"}}".to_owned(),
        },
    ];
    let mut rig = rig(agent(allow_all()));
    let model = with_parts(parts.clone());
    rig.models.insert("model".to_owned(), model.clone());
    assert_eq!(said(&rig, "go").await, TurnEnd::Answered);
    let asked = model.asked();
    assert_eq!(states(&asked[1])[0].parts, parts);
    // It stands in the journal's content, and in nothing that is shown.
    assert!(kept(&rig).contains("c2ln"));
    for event in rig.journal.events() {
        assert!(
            !event.payload.contains("musing") && !event.payload.contains("c2ln"),
            "{}",
            event.payload
        );
    }
}

#[tokio::test]
async fn an_interrupted_turn_is_taken_up_with_what_was_handed_over() {
    let mut rig = rig(agent(allow_all()));
    rig.models.insert(
        "model".to_owned(),
        with_parts(vec![member("reasoning_content", "\"musing\"")]),
    );
    assert_eq!(said(&rig, "go").await, TurnEnd::Answered);
    let kinds = rig.journal.kinds();
    let ran = kinds.iter().position(|k| k == kind::PROVIDER_COMPLETED).unwrap();
    let mut after = rig.clone();
    after.journal = Arc::new(rig.journal.cut(ran + 1));
    after.runner = Arc::default();
    let model = with_parts(Vec::new());
    after.models.insert("model".to_owned(), model.clone());
    let kernel = after.start().await;
    all_ended(&after, 1).await;
    assert!(kernel.shutdown("test", 5_000).await);
    assert_eq!(
        states(&model.asked()[0])[0].parts,
        [member("reasoning_content", "\"musing\"")]
    );
}

#[tokio::test]
async fn a_secret_leaves_what_is_kept_and_a_sealed_part_leaves_as_a_whole() {
    let thought = format!("\"the key is {SECRET}, so\"");
    let signed = format!("{{\"type\":\"thinking\",\"thinking\":\"use {SECRET}\",\"signature\":\"c2ln\"}}");
    let details = format!("[{{\"type\":\"reasoning.text\",\"text\":\"use {SECRET}\"}}]");
    let harmless = block("{\"type\":\"redacted_thinking\",\"data\":\"c2VhbGVk\"}");
    let mut rig = knowing(agent(allow_all()));
    let model = with_parts(vec![
        member("reasoning_content", &thought),
        block(&signed),
        member("reasoning_details", &details),
        harmless.clone(),
    ]);
    rig.models.insert("model".to_owned(), model.clone());
    assert_eq!(said(&rig, "go").await, TurnEnd::Answered);
    assert!(!kept(&rig).contains(SECRET));
    let parts = states(&model.asked()[1])[0].parts.clone();
    assert_eq!(parts.len(), 2, "{parts:?}");
    let StatePart::Member { json, .. } = &parts[0] else {
        panic!("{parts:?}");
    };
    assert!(
        json.starts_with("\"the key is ") && json.ends_with(", so\"") && !json.contains(SECRET),
        "{json}"
    );
    assert_eq!(parts[1], harmless);
}

#[tokio::test]
async fn an_answer_without_words_or_calls_fails_and_says_why() {
    let usage = Usage {
        input_tokens: 10,
        output_tokens: 77,
        ..Usage::default()
    };
    for (text, stop, why) in [
        ("", StopReason::End, "without a word and without a call"),
        (" \n", StopReason::ToolUse, "without a word and without a call"),
        ("", StopReason::Length, "all of its 77 output tokens"),
    ] {
        let mut rig = rig(agent(allow_all()));
        let model = ScriptedModel::new(move |_, _| {
            Ok(ModelCompletion {
                stop,
                usage,
                ..says(text)
            })
        });
        rig.models.insert("model".to_owned(), Arc::new(model));
        let kernel = rig.start().await;
        let end = say(&kernel, "go").await.0;
        assert!(
            matches!(&end, TurnEnd::Failed(reason) if reason.contains(why)),
            "{end:?}"
        );
        // One more try counts as an attempt, and all of them are paid for.
        let failed = rig
            .journal
            .kinds()
            .iter()
            .filter(|k| *k == kind::PROVIDER_FAILED)
            .count();
        assert_eq!(failed, rig.models["model"].asked().len());
        assert!(failed >= 1);
    }
    let mut rig = rig(agent(allow_all()));
    let refusing = |_: &InferRequest, _| {
        Ok(ModelCompletion {
            stop: StopReason::Refusal,
            ..says("")
        })
    };
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::new(refusing)));
    assert_eq!(said(&rig, "go").await, TurnEnd::Answered);
}

#[tokio::test]
async fn every_request_of_a_session_begins_alike_and_has_its_key() {
    let mut rig = rig(agent(allow_all()));
    let model = with_parts(Vec::new());
    rig.models.insert("model".to_owned(), model.clone());
    let kernel = rig.start().await;
    let session = kernel
        .open_session(crate::EntryPoint::from_launcher("test"))
        .await
        .unwrap();
    for text in ["one", "two", "three"] {
        session.send_text(text).await.unwrap();
    }
    all_ended(&rig, 3).await;
    let asked = model.asked();
    assert_eq!(asked.len(), 6);
    let keys: std::collections::BTreeSet<_> = asked.iter().map(|request| request.cache_key.clone()).collect();
    assert_eq!(keys.len(), 1);
    let key = keys.into_iter().next().flatten().unwrap();
    assert!(
        key.len() == 32 && key.chars().all(|c| c.is_ascii_hexdigit()),
        "{key}"
    );
    for pair in asked.windows(2) {
        assert_eq!(
            (&pair[0].system, &pair[0].tools),
            (&pair[1].system, &pair[1].tools)
        );
        let before = &pair[0].messages;
        assert_eq!(before.as_slice(), &pair[1].messages[..before.len()]);
    }
    let other = kernel
        .open_session(crate::EntryPoint::from_launcher("test"))
        .await
        .unwrap();
    other.send_text("four").await.unwrap();
    all_ended(&rig, 4).await;
    assert_ne!(
        model.asked().last().unwrap().cache_key.as_deref(),
        Some(key.as_str())
    );
}

/// So many messages have come, and all have ended.
async fn all_ended(rig: &Rig, count: usize) {
    for _ in 0..100_000 {
        let inbox = rig.journal.inbox();
        if inbox.len() == count && inbox.iter().all(|(_, end)| end.is_some()) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("not all of {count} messages have ended");
}
