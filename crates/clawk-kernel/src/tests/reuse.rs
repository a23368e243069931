//! A request id that was used before (R19: five minutes) is a new request: nothing that is kept is found, closed or answered by it.

use std::sync::Arc;

use clawk_proto::method::{MemoryContext, MemoryQuery, MemoryQueryParams, MemoryStoreParams, NewEntry};
use clawk_proto::{RequestId, SessionId};
use serde_json::{Value, json};

use super::{agent, allow_all, id, params, rig, rpc, soon};
use crate::call::{ApprovalReply, GrantScope};
use crate::effect::{EffectLedger, EffectSettlement, State};
use crate::notice::ApprovalAnswer;
use crate::ports::RunError;
use crate::roles::KnownPerson;
use crate::testing::{Behaviour, Rig};
use crate::{Kernel, kind};

/// Past the five minutes in which a request id means the same request.
const LATER_MS: i64 = 301_000;

fn remembering() -> Value {
    let mut spec = agent(allow_all());
    spec["memory"] = json!({"name": "mem", "stores": [{"name": "notes", "type": "semantic"}, {"name": "keyed", "type": "key-value"}]});
    spec
}

fn note(store: &str, text: &str, request_id: RequestId) -> MemoryStoreParams {
    let key = (store == "keyed").then(|| "k".to_owned());
    let entry = NewEntry {
        content: json!(text),
        key,
        metadata: None,
    };
    MemoryStoreParams {
        store: store.to_owned(),
        entries: vec![entry],
        context: MemoryContext { request_id },
    }
}

async fn found(kernel: &Kernel, session: SessionId, text: &str) -> usize {
    let params = MemoryQueryParams {
        store: "notes".to_owned(),
        query: MemoryQuery::Semantic {
            text: text.to_owned(),
            top_k: None,
        },
    };
    kernel.memory_query(session, params).await.unwrap().entries.len()
}

#[tokio::test]
async fn an_entry_gets_an_id_of_its_own_whatever_the_request_was_called() {
    let rig = rig(remembering());
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let mut ids = Vec::new();
    for text in ["one bean", "two beans", "two beans"] {
        let stored = kernel
            .memory_store(session, note("notes", text, id(1)))
            .await
            .unwrap();
        ids.extend(stored.ids);
        rig.clock.advance_ms(LATER_MS);
    }
    assert_eq!(found(&kernel, session, "bean").await, 3);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "{ids:?}");
}

#[tokio::test]
async fn a_store_that_a_crash_left_without_an_answer_is_done_once_when_it_comes_again() {
    for store in ["notes", "keyed"] {
        let rig = rig(remembering());
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let first = kernel
            .memory_store(session, note(store, "a bean", id(1)))
            .await
            .unwrap();
        let kinds = rig.journal.kinds();
        let asked = kinds.iter().position(|k| k == kind::MEMORY_REQUESTED).unwrap();
        for stop in [asked, asked + 1] {
            let mut after = rig.clone();
            after.journal = Arc::new(rig.journal.cut(stop));
            if stop == asked {
                after.memory = Arc::default();
            }
            let kernel = after.start().await;
            let session = rpc(&kernel).await;
            let again = kernel
                .memory_store(session, note(store, "a bean", id(1)))
                .await
                .unwrap();
            assert_eq!(again.stored, 1, "{store}");
            if stop > asked {
                assert_eq!(again, first, "{store}: the same entries");
            }
            let params = MemoryQueryParams {
                store: store.to_owned(),
                query: MemoryQuery::Semantic {
                    text: "bean".to_owned(),
                    top_k: None,
                },
            };
            let entries = kernel.memory_query(session, params).await.unwrap().entries;
            assert_eq!(entries.len(), 1, "{store}: {entries:?}");
        }
    }
}

async fn breaks(rig: &Rig, kernel: &Kernel, arguments: Value, n: u32) {
    let broken = RunError::Unknown("the connection broke".to_owned());
    rig.runner.set("write", Behaviour::Error(broken));
    let session = rpc(kernel).await;
    kernel
        .call(session, params("write", arguments, n))
        .await
        .unwrap_err();
}

#[tokio::test]
async fn two_unknown_effects_of_one_request_id_are_both_listed_and_closed_one_by_one() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    breaks(&rig, &kernel, json!({"n": 1}), 1).await;
    rig.clock.advance_ms(LATER_MS);
    breaks(&rig, &kernel, json!({"n": 2}), 1).await;
    rig.clock.advance_ms(LATER_MS);
    // A third one of that id does its work: that says nothing of the two.
    rig.runner.set("write", Behaviour::Echo);
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({"n": 3}), 1))
        .await
        .unwrap();
    let states = |rig: &Rig| {
        let mut ledger = EffectLedger::default();
        for event in rig.journal.events() {
            ledger
                .apply_event(&event.kind, event.session, &event.at.to_string(), &event.payload)
                .unwrap();
        }
        let states = ledger.into_entries().into_iter().map(|entry| entry.state);
        states.collect::<Vec<_>>()
    };
    assert_eq!(states(&rig), [State::Unknown, State::Unknown, State::Done]);
    assert_eq!(kernel.open_effects().await.unwrap().len(), 2);
    for left in [1, 0] {
        assert!(
            kernel
                .resolve_effect(&id(1), EffectSettlement::NotDone, "ann", None)
                .await
                .unwrap()
        );
        assert_eq!(kernel.open_effects().await.unwrap().len(), left);
    }
    assert!(
        !kernel
            .resolve_effect(&id(1), EffectSettlement::NotDone, "ann", None)
            .await
            .unwrap()
    );
    assert_eq!(states(&rig), [State::Failed, State::Failed, State::Done]);
}

#[tokio::test]
async fn a_question_that_waits_is_not_closed_by_an_earlier_one_of_its_id() {
    let mut spec = agent(json!([
        {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"},
         "approval": {"timeout_seconds": 86_400}},
        {"id": "rest", "action": "allow", "scope": "all"}]));
    spec["tools"][1]["labels"] = json!({"category": "filesystem"});
    for answer in [ApprovalAnswer::Approve, ApprovalAnswer::Deny] {
        let rig = rig(spec.clone());
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let mut questions = kernel.subscribe_questions();
        let call = tokio::spawn(kernel.call(session, params("write", json!({"n": 1}), 1)));
        soon(questions.recv()).await.unwrap();
        let reply = ApprovalReply {
            answer,
            breadth: GrantScope::Exact,
            person: KnownPerson::admin("terminal", "ann"),
            reason: None,
            seen: crate::sheet::PreviewReceipt::Short,
        };
        kernel.reply_to_question(&id(1), reply).await;
        let _ended = call.await.unwrap();
        rig.clock.advance_ms(LATER_MS);
        let _asking = tokio::spawn(kernel.call(session, params("write", json!({"n": 2}), 1)));
        soon(questions.recv()).await.unwrap();
        // The machine stops here.
        let mut after = rig.clone();
        after.journal = Arc::new(rig.journal.cut(rig.journal.events().len()));
        let kernel = after.start().await;
        let waiting = kernel.pending_questions();
        assert_eq!(waiting.len(), 1, "{answer:?}: the second question is still open");
        assert_eq!(waiting[0].arguments["n"], 2);
    }
}
