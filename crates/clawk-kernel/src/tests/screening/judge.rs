//! A model that judges text for injected prompts.

use std::sync::Arc;

use serde_json::json;

use super::super::{id, params, rig, rpc};
use super::{ATTACK, screened, with};
use crate::error::KernelError;
use crate::ports::FaultKind;
use crate::testing::{Rig, ScriptedModel, says};
use crate::{EntryPoint, TalkRequest, kind};

/// A manifest with a model to talk to and a model that judges.
fn judged(detection: &str, answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Rig {
    let mut rig = rig(with("prompt_injection", json!({"detection": detection})));
    let judge = ScriptedModel::new(move |request, _| {
        assert!(
            request.tools.is_empty() && request.messages.len() == 1,
            "the judge is isolated"
        );
        let crate::ports::ModelMessage::User { text, .. } = &request.messages[0] else {
            panic!()
        };
        let marker = text.lines().next().unwrap().strip_prefix("Marker: ").unwrap();
        assert!(!request.system.contains(marker) && !request.system.contains("weather"));
        match answer(text) {
            Some(answer) => Ok(says(&answer.replace("MARKER", marker))),
            None => Err(ScriptedModel::fault(FaultKind::Rejected, "down")),
        }
    });
    rig.models.insert("model".to_owned(), Arc::new(judge));
    rig
}

async fn weather(rig: &Rig) -> (bool, String) {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = params(
        "echo",
        json!({"text": "The weather in the valley is fine today."}),
        1,
    );
    let result = kernel.call(session, call).await.unwrap();
    (result.is_error, serde_json::to_string(&result).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_judge_lets_pass_only_what_it_clearly_calls_clean() {
    let clean = judged("llm-based", |_| {
        Some(r#"{"verdict": "clean", "marker": "MARKER"}"#.to_owned())
    });
    assert!(!weather(&clean).await.0);
    let answers: [&'static str; 6] = [
        r#"{"verdict": "injection", "marker": "MARKER"}"#,
        r#"{"verdict": "clean", "marker": "guessed"}"#,
        r#"{"verdict": "fine", "marker": "MARKER"}"#,
        "clean",
        r#"{"verdict": "clean", "marker": "MARKER", "note": "x"}"#,
        "",
    ];
    for answer in answers {
        let rig = judged("llm-based", move |_| Some(answer.to_owned()));
        let (is_error, told) = weather(&rig).await;
        assert!(is_error && !told.contains("valley"), "{answer}: {told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_judge_that_fails_or_never_answers_fails_closed() {
    for detection in ["llm-based", "hybrid"] {
        let rig = judged(detection, |_| None);
        let (is_error, told) = weather(&rig).await;
        assert!(is_error && !told.contains("valley"), "{told}");
        let found = screened(&rig, kind::SCREEN_INJECTION);
        assert_eq!(
            (&found[0]["kind"], &found[0]["method"]),
            (&json!("judge-unavailable"), &json!("judge"))
        );
        assert_eq!(screened(&rig, kind::SCREEN_JUDGED)[0]["verdict"], "unavailable");
    }
}

/// An agent that ends while the judge thinks has not found the message suspect.
#[tokio::test]
async fn a_message_whose_judge_the_agents_end_cut_off_is_not_refused_and_may_come_again() {
    let mut rig = judged("llm-based", |_| None);
    rig.models
        .insert("model".to_owned(), Arc::new(ScriptedModel::hanging()));
    let kernel = rig.start().await;
    let asked = || {
        let text = "What is the weather in the valley?".to_owned();
        TalkRequest::new("ann", Some("desk".to_owned()), text, id(1))
    };
    let talk = tokio::spawn({
        let kernel = kernel.clone();
        async move {
            kernel
                .send_message(EntryPoint::from_launcher("test"), asked(), &|_, _| ())
                .await
        }
    });
    while rig.models["model"].asked().is_empty() {
        tokio::task::yield_now().await;
    }
    kernel.shutdown("restart", 0).await;
    let refused = talk.await.unwrap().unwrap_err();
    assert!(matches!(refused, KernelError::NotReady(_)), "{refused}");
    assert!(!rig.journal.kinds().contains(&kind::MESSAGE_REFUSED.to_owned()));
    let judge = ScriptedModel::new(|request, _| {
        let crate::ports::ModelMessage::User { text, .. } = &request.messages[0] else {
            panic!()
        };
        let marker = text.lines().next().unwrap().strip_prefix("Marker: ");
        Ok(says(&marker.map_or("fine".to_owned(), |marker| {
            json!({"verdict": "clean", "marker": marker}).to_string()
        })))
    });
    rig.models.insert("model".to_owned(), Arc::new(judge));
    let kernel = rig.start().await;
    let told = kernel
        .send_message(EntryPoint::from_launcher("test"), asked(), &|_, _| ())
        .await;
    assert_eq!(told.unwrap().text, "fine");
}

#[tokio::test(start_paused = true)]
async fn hybrid_asks_the_judge_only_where_no_pattern_decides() {
    let rig = judged("hybrid", |_| {
        Some(r#"{"verdict": "clean", "marker": "MARKER"}"#.to_owned())
    });
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let result = kernel
        .call(session, params("echo", json!({"text": ATTACK}), 1))
        .await
        .unwrap();
    assert!(result.is_error);
    assert!(rig.models["model"].asked().is_empty());
    let result = kernel
        .call(
            session,
            params("echo", json!({"text": "Plain words about the harvest."}), 2),
        )
        .await
        .unwrap();
    assert!(!result.is_error);
    assert_eq!(rig.models["model"].asked().len(), 1);
}
