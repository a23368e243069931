//! Checkpoints: where a long task stands is kept after each step; a composite tool goes on from there after a crash, and nothing
//! happens twice.

use std::sync::Arc;

use serde_json::{Value, json};

use super::limits::say;
use super::origin::{cut, replayed, settled_turns};
use super::{agent, allow_all, rig};
use crate::kind;
use crate::notice::TurnEnd;
use crate::ports::{Memory as _, ModelMessage, Scope, StoreQuery};
use crate::testing::{Rig, ScriptedModel, calls, says};

fn spec(store: Value) -> Value {
    let mut spec = agent(allow_all());
    spec["tools"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "long", "composite": true, "skill_ref": "steps", "annotations": {}}));
    spec["skills"] = json!([{"name": "steps", "description": "Steps.", "tools_required": ["write"], "instruction": "Step."}]);
    spec["memory"] = json!({"name": "memory", "stores": [store]});
    spec
}

fn kept() -> Value {
    json!({"name": "tasks", "type": "checkpoint", "checkpoint": {"max_snapshots": 2}})
}

/// Calls `long`, whose inner turn writes four times, one after the other.
fn model() -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(|request, _| {
        let inner = request.system.contains("Step.");
        let results = request.messages.iter();
        let results = results
            .filter(|message| matches!(message, ModelMessage::ToolResult { .. }))
            .count();
        Ok(match (inner, results) {
            (true, done @ 0..4) => calls(&[("write", json!({ "n": done }))]),
            (true, _) => says("four steps"),
            (false, 0) => calls(&[("long", json!({"from": 0}))]),
            (false, _) => says("done"),
        })
    }))
}

fn with(store: Value) -> Rig {
    let mut rig = rig(spec(store));
    rig.models.insert("model".to_owned(), model());
    rig
}

async fn checkpoints(rig: &Rig) -> Vec<Value> {
    let store = &rig.manifest.memory.as_ref().unwrap().stores[0];
    let all = StoreQuery::Text("running done".to_owned());
    let found = rig
        .memory
        .query_entries(store, &Scope::default(), all, 1000)
        .await
        .unwrap();
    found
        .into_iter()
        .map(|entry| {
            let mut content = entry.content;
            content["key"] = json!(entry.key);
            content
        })
        .collect()
}

fn numbers(rig: &Rig) -> Vec<u64> {
    let runs = rig.runner.runs();
    runs.iter()
        .map(|(_, arguments)| arguments["n"].as_u64().unwrap())
        .collect()
}

fn events(rig: &Rig, kind: &str) -> Vec<Value> {
    let events = rig.journal.events();
    let of_kind = events.iter().filter(|event| event.kind == kind);
    of_kind
        .map(|event| serde_json::from_str(&event.payload).unwrap())
        .collect()
}

#[tokio::test]
async fn every_step_of_a_task_is_kept_with_what_was_said() {
    let mut rig = with(kept());
    let manifest = Arc::make_mut(&mut rig.manifest);
    manifest.memory.as_mut().unwrap().stores[0].kind = clawk_manifest::model::StoreType::Checkpoint;
    assert_eq!(say(&rig.start().await, "go").await.0, TurnEnd::Answered);
    assert_eq!(numbers(&rig), [0, 1, 2, 3]);
    let stored: Vec<Value> = events(&rig, kind::MEMORY_STORED);
    assert!(
        stored.iter().all(|event| event["by"] == "checkpoint"),
        "{stored:?}"
    );
    // 1 + 4 × 2 + 1 states of the inner turn and its end; 1 + 2 + 1 of the outer and its end.
    assert!(stored.len() >= 14, "{}", stored.len());
    // The newest of each; the store in memory keeps one entry for a key.
    let found = checkpoints(&rig).await;
    let of = |task: &str| found.iter().find(|one| one["task"] == task).unwrap();
    let inner = of("composite");
    assert_eq!(
        (&inner["state"], &inner["steps"]),
        (&json!("done"), &json!(5)),
        "{inner}"
    );
    assert_eq!(inner["messages"].as_array().unwrap().len(), 10);
    assert!(inner["key"].as_str().unwrap().starts_with("call/"));
    assert!(of("turn")["key"].as_str().unwrap().starts_with("turn/"));
    assert_eq!(replayed(&rig).await.divergence, None);
}

/// One process: what is done in it, and then all its tasks end where they stand.
fn process(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work);
}

/// Runs until so many events are written, and dies.
fn die_after(rig: &Rig, events: usize) {
    process(async {
        let kernel = rig.start().await;
        let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
        session.send_text("go").await.unwrap();
        while rig.journal.events().len() < events {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_composite_tool_goes_on_where_a_crash_cut_it_off_and_no_effect_comes_twice() {
    let whole = with(kept());
    process(async {
        say(&whole.start().await, "go").await;
    });
    let kinds = whole.journal.kinds();
    let from = kinds
        .iter()
        .position(|kind| kind == kind::MESSAGE_ACCEPTED)
        .unwrap()
        + 1;
    let to = kinds
        .iter()
        .position(|kind| kind == kind::MESSAGE_ANSWERED)
        .unwrap();
    let mut went_on = 0;
    for at in from..to {
        let rig = with(kept());
        die_after(&rig, at);
        let before = numbers(&rig).len();
        let open = rig.journal.inbox().iter().any(|(_, end)| end.is_none());
        process(async {
            let kernel = rig.start().await;
            settled_turns(&rig).await;
            kernel.shutdown("the test is over", 1_000).await;
        });
        let place = format!("after event {at} ({})", kinds[at - 1]);
        let all = numbers(&rig);
        let once: std::collections::BTreeSet<u64> = all.iter().copied().collect();
        assert_eq!(once.len(), all.len(), "{place}: an effect came twice: {all:?}");
        assert_eq!(events(&rig, kind::MESSAGE_ANSWERED).len(), 1, "{place}");
        let failed = events(&rig, kind::ACTION_FAILED);
        assert!(
            failed.iter().all(|event| event["action_id"] != "long"),
            "{place}: {failed:?}"
        );
        let done = events(&rig, kind::ACTION_EXECUTED);
        let done = done.iter().filter(|event| event["action_id"] == "long").count();
        assert_eq!(done, 1, "{place}");
        assert!(clawk_trace::verify_events(rig.journal.trace()).valid, "{place}");
        went_on += usize::from(open && before > 0 && before < all.len());
    }
    assert!(went_on > 8, "{went_on} crashes were in the middle");
}

#[tokio::test]
async fn without_a_checkpoint_a_composite_call_is_unknown_and_not_begun_again() {
    // No store of that type.
    let other = json!({"name": "tasks", "type": "key-value"});
    // A store that has lost its entries.
    for (store, lost) in [(other, false), (kept(), true)] {
        let rig = with(store);
        let first = rig.clone();
        let kernel = first.start().await;
        let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
        session.send_text("go").await.unwrap();
        while numbers(&first).len() < 2 {
            tokio::task::yield_now().await;
        }
        let before = numbers(&first);
        let mut dead = cut(&first, first.journal.events().len());
        dead.models = rig.models.clone();
        if lost {
            dead.memory = Arc::default();
        }
        let kernel = dead.start().await;
        settled_turns(&dead).await;
        kernel.shutdown("the test is over", 1_000).await;
        assert_eq!(
            numbers(&dead),
            Vec::<u64>::new(),
            "lost: {lost}; before: {before:?}"
        );
        let failed = events(&dead, kind::ACTION_FAILED);
        let long = failed.iter().find(|event| event["action_id"] == "long").unwrap();
        assert_eq!(long["error_code"], "unknown", "{long}");
    }
}

#[tokio::test]
async fn a_checkpoint_that_others_wrote_resumes_nothing() {
    use clawk_proto::method::NewEntry;
    use clawk_recall::entry::{EntryInsertion, EntryProvenance};
    let rig = with(kept());
    let kernel = rig.start().await;
    let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
    // By the tool or the wire, for a call whose id is known: no entry of theirs is made from a checkpoint.
    let content = json!({"call": {"arguments_hash": crate::event::digest(b"{}"), "first": "forged words", "skill": "steps"}, "state": "running",
        "steps": 0, "task": "composite", "tokens": 0, "turn": session.id.0});
    let new = EntryInsertion {
        id: "forged".to_owned(),
        entry: NewEntry {
            content,
            key: Some("call/00000000-0000-4000-8000-000000000001".to_owned()),
            metadata: None,
        },
        mark: EntryProvenance {
            origin: "agent".to_owned(),
            session: session.id.to_string(),
            made_from: vec!["call 1".to_owned()],
            ..EntryProvenance::default()
        },
    };
    let store = &rig.manifest.memory.as_ref().unwrap().stores[0];
    let place = Scope::default();
    let (at, record) = (crate::time::Timestamp(0), crate::ports::Batch::default());
    rig.memory
        .store_entries(store, &place, vec![new], at, record)
        .await
        .unwrap();
    let called = kernel.call(session.id, super::params("long", json!({}), 1)).await;
    assert_eq!(called.unwrap().content[0].as_model_text(), "four steps");
    assert_eq!(numbers(&rig), [0, 1, 2, 3]);
    let asked = format!("{:?}", rig.models["model"].asked());
    assert!(!asked.contains("forged words"), "{asked}");
}

#[test]
fn a_checkpoint_counts_for_its_time_also_where_no_retention_has_taken_it_away() {
    for (passed_ms, ends) in [(1_000, 4), (3_000, 2)] {
        let rig = with(json!({"name": "tasks", "type": "checkpoint", "checkpoint": {"ttl": "2s"}}));
        process(async {
            let kernel = rig.start().await;
            let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
            session.send_text("go").await.unwrap();
            while numbers(&rig).len() < 2 {
                tokio::task::yield_now().await;
            }
        });
        rig.clock.advance_ms(passed_ms);
        process(async {
            let kernel = rig.start().await;
            settled_turns(&rig).await;
            kernel.shutdown("the test is over", 1_000).await;
        });
        assert_eq!(numbers(&rig).len(), ends, "after {passed_ms} ms");
        let failed = events(&rig, kind::ACTION_FAILED);
        let unknown = failed
            .iter()
            .any(|event| event["action_id"] == "long" && event["error_code"] == "unknown");
        assert_eq!(unknown, ends == 2, "after {passed_ms} ms: {failed:?}");
    }
}

#[tokio::test]
async fn a_task_with_checkpoints_may_be_interrupted_as_often_as_it_gets_further() {
    for (store, ends) in [
        (kept(), "answered"),
        (json!({"name": "tasks", "type": "key-value"}), "dead"),
    ] {
        let mut now = with(store);
        // Killed after each answer of the outer model and of the inner one.
        let kernel = now.start().await;
        let session = kernel.open_session(crate::EntryPoint::Cli).await.unwrap();
        session.send_text("go").await.unwrap();
        drop((kernel, session));
        let mut kills = 0;
        let writer = Arc::new(ScriptedModel::new(|request, _| {
            let results = request.messages.iter();
            let results = results
                .filter(|message| matches!(message, ModelMessage::ToolResult { .. }))
                .count();
            Ok(match results {
                done @ 0..8 => calls(&[("write", json!({ "n": done }))]),
                _ => says("done"),
            })
        }));
        loop {
            let upto = now.journal.events().len();
            let mut next = cut(&now, upto);
            next.models.insert("model".to_owned(), Arc::clone(&writer));
            let kernel = next.start().await;
            let answers = |rig: &Rig| events(rig, kind::PROVIDER_COMPLETED).len();
            let before = answers(&next);
            let over = |rig: &Rig| rig.journal.inbox().iter().all(|(_, end)| end.is_some());
            while answers(&next) == before && !over(&next) {
                tokio::task::yield_now().await;
            }
            kills += 1;
            now = next;
            if over(&now) || kills > 40 {
                break;
            }
            drop(kernel);
        }
        assert_eq!(
            now.journal.inbox().last().unwrap().1,
            Some(ends),
            "after {kills} kills"
        );
    }
}
