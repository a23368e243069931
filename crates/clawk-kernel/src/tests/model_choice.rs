//! A person chooses which model answers a conversation, and how much it thinks.

use std::time::Duration;

use clawk_manifest::model::Role;
use serde_json::{Value, json};

use super::{agent, allow_all, rig, soon};
use crate::door::{EntryPoint, REMEMBERED_DAYS};
use crate::ingress::ChannelMessage;
use crate::kind;
use crate::ports::{MessageContext, ReasoningEffort};
use crate::testing::Rig;
use crate::{Kernel, ModelOptions, SessionHandle, SessionNotice};

fn server(name: &str, model: &str, fallback: &[&str]) -> Value {
    let fallback = fallback.iter().map(|name| json!({ "provider_ref": name }));
    json!({ "name": name, "protocol": "openai-compatible", "endpoint": "https://x.example", "model": model,
        "auth": { "type": "none" }, "fallback": fallback.collect::<Vec<_>>() })
}

fn three() -> Rig {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([
        server("small", "vendor/small-1", &[]),
        server("big", "vendor/big-1", &["small"]),
        server("plain", "plain-1", &[]),
    ]);
    let mut rig = rig(spec);
    let with = |efforts: &[ReasoningEffort]| ModelOptions {
        efforts: Some(efforts.to_vec()),
        ..ModelOptions::default()
    };
    let levels = [ReasoningEffort::Low, ReasoningEffort::High];
    rig.locals.insert("big".to_owned(), with(&levels));
    rig.locals.insert("plain".to_owned(), with(&[]));
    rig.locals
        .insert("small".to_owned(), with(&[ReasoningEffort::Low]));
    rig
}

fn door() -> EntryPoint {
    EntryPoint::Channel {
        channel: "chat".to_owned(),
        conversation: "room".to_owned(),
        direct: true,
        sender: "ann".to_owned(),
        role: Role::User,
    }
}

async fn say(kernel: &Kernel, rig: &Rig, number: usize) {
    let message = ChannelMessage {
        channel: "chat".to_owned(),
        conversation: "room".to_owned(),
        direct: true,
        sender: "ann".to_owned(),
        role: Role::User,
        platform_ids: vec![number.to_string()],
        remembered_days: REMEMBERED_DAYS,
        text: "hello".to_owned(),
        images: Vec::new(),
        context: MessageContext::default(),
    };
    kernel.submit_message(message).await.unwrap();
    let ended = || {
        let inbox = rig.journal.inbox();
        inbox.iter().filter(|(_, end)| end.is_some()).count()
    };
    soon(async {
        while ended() < number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Who was asked how often, and with which effort last.
fn asked(rig: &Rig, name: &str) -> (usize, Option<ReasoningEffort>) {
    let asked = rig.models[name].asked();
    (asked.len(), asked.last().and_then(|request| request.effort))
}

fn refusal(chosen: Result<Option<crate::ModelInUse>, crate::ModelChoiceError>) -> String {
    chosen.unwrap_err().to_string()
}

#[tokio::test]
async fn what_a_person_chose_holds_for_the_conversation_also_after_a_restart() {
    let rig = three();
    let kernel = rig.start().await;
    // Before anything was said.
    let chosen = kernel.choose_model(&door(), &["big", "low"]).await.unwrap();
    let model = chosen.unwrap().unwrap();
    assert_eq!(
        (model.provider.as_str(), model.model.as_str(), model.effort),
        ("big", "vendor/big-1", Some(ReasoningEffort::Low))
    );
    say(&kernel, &rig, 1).await;
    assert_eq!(asked(&rig, "big"), (1, Some(ReasoningEffort::Low)));
    // A level that the manifest's first model has not.
    kernel.choose_model(&door(), &["HIGH"]).await.unwrap().unwrap();
    assert!(kernel.shutdown("test", 5_000).await);
    let kernel = rig.start().await;
    let status = kernel.conversation_status(&door()).await.unwrap();
    assert_eq!(status.model.unwrap().effort, Some(ReasoningEffort::High));
    say(&kernel, &rig, 2).await;
    assert_eq!(asked(&rig, "big"), (2, Some(ReasoningEffort::High)));
    assert_eq!(asked(&rig, "small").0, 0);
    // The model's own name, without the vendor; then another level of the same model.
    let chosen = kernel.choose_model(&door(), &["big-1"]).await.unwrap();
    assert_eq!(chosen.unwrap().unwrap().effort, None);
    let chosen = kernel.choose_model(&door(), &["low"]).await.unwrap();
    assert_eq!(chosen.unwrap().unwrap().provider, "big");
    say(&kernel, &rig, 3).await;
    assert_eq!(asked(&rig, "big"), (3, Some(ReasoningEffort::Low)));
    kernel.choose_model(&door(), &["default"]).await.unwrap().unwrap();
    say(&kernel, &rig, 4).await;
    assert_eq!(asked(&rig, "small"), (1, None));
    let accepted: Vec<Value> = rig
        .journal
        .events()
        .iter()
        .filter(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect();
    let choices: Vec<_> = accepted
        .iter()
        .map(|one| (one["provider"].as_str(), one["effort"].as_str()))
        .collect();
    assert_eq!(
        choices,
        [
            (Some("big"), Some("low")),
            (Some("big"), Some("high")),
            (Some("big"), Some("low")),
            (None, None)
        ]
    );
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

#[tokio::test]
async fn what_can_not_be_chosen_is_refused_with_what_there_is() {
    let rig = three();
    let kernel = rig.start().await;
    let refused = async |words: &[&str]| refusal(kernel.choose_model(&door(), words).await.unwrap());
    let unknown = refused(&["huge"]).await;
    assert!(
        unknown.contains("no model `huge`") && unknown.contains("`big` (vendor/big-1)"),
        "{unknown}"
    );
    let effort = refused(&["big", "max"]).await;
    assert!(
        effort.contains("no effort `max`; it has `low`, `high`"),
        "{effort}"
    );
    assert!(refused(&["big", "very"]).await.contains("`low`, `high`"));
    assert!(refused(&["plain", "high"]).await.contains("no levels of effort"));
    assert!(
        refused(&["high"]).await.contains("it has `low`"),
        "of the model that answers"
    );
    assert!(refused(&["a", "b", "c"]).await.contains("/model NAME EFFORT"));
    say(&kernel, &rig, 1).await;
    assert_eq!(asked(&rig, "small"), (1, None), "nothing has changed");
}

async fn turn(session: &SessionHandle) {
    session.send_text("hello").await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
}

#[tokio::test]
async fn a_session_at_a_terminal_chooses_too_and_a_fallback_gets_a_level_that_it_has() {
    let mut rig = three();
    rig.models.insert(
        "big".to_owned(),
        std::sync::Arc::new(crate::testing::ScriptedModel::new(|_, _| {
            Err(crate::testing::ScriptedModel::fault(
                crate::ports::FaultKind::Rejected,
                "no such key",
            ))
        })),
    );
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    assert_eq!(session.model_in_use().unwrap().provider, "small");
    session.choose_model(&["big", "high"]).await.unwrap().unwrap();
    assert_eq!(session.model_in_use().unwrap().provider, "big");
    turn(&session).await;
    assert_eq!(asked(&rig, "big").1, Some(ReasoningEffort::High));
    assert_eq!(asked(&rig, "small"), (1, None), "the fallback has no such level");
    // Another session is not touched.
    let other = kernel.open_session(EntryPoint::Cli).await.unwrap();
    assert_eq!(other.model_in_use().unwrap().provider, "small");
}
