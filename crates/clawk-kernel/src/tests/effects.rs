//! The ledger of effects: whatever moment the machine stops at, an effect happens once at most, and what is not known is listed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clawk_proto::RequestId;
use serde_json::json;

use super::{agent, allow_all, id, params, rig, rpc};
use crate::effect::{EffectEntry, EffectLedger, EffectSettlement, State};
use crate::error::CallError;
use crate::kind;
use crate::ports::{Journal as _, ReconcileMethod, RunError};
use crate::testing::{Behaviour, Rig};

fn ledger(rig: &Rig) -> BTreeMap<RequestId, EffectEntry> {
    let mut ledger = EffectLedger::default();
    for event in rig.journal.events() {
        ledger
            .apply_event(&event.kind, event.session, &event.at.to_string(), &event.payload)
            .unwrap();
    }
    let entries = ledger.into_entries();
    let by_id: BTreeMap<_, _> = entries
        .iter()
        .map(|entry| (entry.request_id.clone(), entry.clone()))
        .collect();
    assert_eq!(by_id.len(), entries.len(), "one entry per effect");
    by_id
}

async fn open(rig: &Rig) -> Vec<RequestId> {
    let open = rig.journal.open_effects().await.unwrap();
    open.into_iter().map(|effect| effect.request_id).collect()
}

/// How often the outside saw each call.
fn seen(rig: &Rig) -> BTreeMap<u64, usize> {
    let mut seen = BTreeMap::new();
    for (_, arguments) in rig.runner.runs() {
        *seen.entry(arguments["n"].as_u64().unwrap()).or_default() += 1;
    }
    seen
}

/// Where the machine stops, in turn.
const MOMENTS: u32 = 5;

/// One effect, with the machine stopping at one moment of it.
async fn crash(rig: &Rig, n: u32) {
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    let call = kernel.call(session, params("write", json!({"n": n}), n));
    match n % MOMENTS {
        // Before: the request is known, the decision can't be written.
        0 => {
            rig.journal.fail_after(1);
            call.await.unwrap_err();
        }
        // During: the outside has it, and does not answer any more.
        1 => {
            rig.runner.set("write", Behaviour::Sleep(3_600_000));
            let cut = tokio::time::timeout(Duration::from_millis(20), call).await;
            assert!(cut.is_err());
        }
        // During: the outside did it, and the answer finds no journal.
        2 => {
            // The tool is described; requested and approved are one batch of two.
            rig.journal.fail_after(3);
            call.await.unwrap_err();
        }
        // During: the connection breaks.
        3 => {
            let broken = RunError::Unknown("the connection broke".to_owned());
            rig.runner.set("write", Behaviour::Error(broken));
            assert!(matches!(call.await, Err(CallError::Unknown { .. })));
        }
        // After: all is written.
        _ => {
            call.await.unwrap();
        }
    }
    drop(kernel);
    rig.journal.recover();
    rig.runner.set("write", Behaviour::Echo);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_effects_each_with_a_crash_are_done_once_at_most_and_every_unknown_one_is_listed() {
    // A journal for every fifty: each restart reads all of it.
    for first in (0..1_000).step_by(50) {
        fifty(first).await;
    }
}

async fn fifty(first: u32) {
    let rig = rig(agent(allow_all()));
    let mut unknown = Vec::new();
    for n in first..first + 50 {
        crash(&rig, n).await;
        // Whoever asked does what clients do: the same request again, after the restart.
        let kernel = rig.start().await;
        let session = rpc(&kernel).await;
        let again = kernel.call(session, params("write", json!({"n": n}), n)).await;
        match n % MOMENTS {
            0 | 4 => drop(again.unwrap()),
            _ => {
                assert!(matches!(again, Err(CallError::Unknown { .. })), "{n}: {again:?}");
                unknown.push(id(n));
            }
        }
    }
    let seen = seen(&rig);
    assert_eq!(seen.len(), 50, "each was begun once in the end");
    assert!(
        seen.values().all(|count| *count == 1),
        "an effect was repeated: {seen:?}"
    );
    assert_eq!(open(&rig).await, unknown);
    let ledger = ledger(&rig);
    assert_eq!(ledger.len(), 50);
    for n in first..first + 50 {
        let entry = &ledger[&id(n)];
        let state = if n % MOMENTS == 0 || n % MOMENTS == 4 {
            State::Done
        } else {
            State::Unknown
        };
        assert_eq!(entry.state, state, "{n}: {entry:?}");
    }
    assert!(clawk_trace::verify_events(rig.journal.trace()).valid);
}

/// A rig with one unknown effect, of the tool `write`.
async fn with_unknown() -> Rig {
    let rig = rig(agent(allow_all()));
    crash(&rig, 1).await;
    rig
}

async fn settled(rig: &Rig) -> EffectEntry {
    let kernel = rig.start().await;
    // What is found out is found out beside the work, not before it.
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
    assert!(kernel.shutdown("test", 60_000).await);
    ledger(rig).remove(&id(1)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_check_says_what_became_of_an_unknown_effect() {
    for (answer, state) in [
        ("done", State::Done),
        (" Not-Done\n", State::Failed),
        (r#"{"outcome": "done", "order": 7}"#, State::Done),
        ("perhaps", State::Unknown),
        ("it is not done, or done", State::Unknown),
        ("", State::Unknown),
    ] {
        let rig = with_unknown().await;
        rig.runner.mends("write", ReconcileMethod::Check, answer);
        let entry = settled(&rig).await;
        assert_eq!(entry.state, state, "{answer}");
        assert_eq!(open(&rig).await.is_empty(), state != State::Unknown, "{answer}");
        assert_eq!(rig.runner.runs().len(), 1, "a check runs nothing again");
        let checked = rig.runner.checked();
        assert_eq!(checked[0]["arguments"], json!({"n": 1}));
        assert_eq!(checked[0]["request_id"], json!(id(1)));
        // The check itself was decided before it ran, and is no effect.
        let kinds: Vec<_> = rig
            .journal
            .events()
            .into_iter()
            .filter(|e| e.payload.contains("write:check"))
            .collect();
        let kinds: Vec<_> = kinds.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(
            kinds,
            [
                kind::ACTION_REQUESTED,
                kind::ACTION_APPROVED,
                kind::ACTION_EXECUTED
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_declared_tool_may_be_the_check_if_it_has_no_effects() {
    let rig = with_unknown().await;
    rig.runner
        .mends("write", ReconcileMethod::Tool("write".to_owned()), "");
    assert_eq!(
        settled(&rig).await.state,
        State::Unknown,
        "a tool with effects is no check"
    );
    assert_eq!(rig.runner.runs().len(), 1);
    // `echo` gives back what it is given; its schema wants a text, so it refuses: not known.
    rig.runner
        .mends("write", ReconcileMethod::Tool("echo".to_owned()), "");
    assert_eq!(settled(&rig).await.state, State::Unknown);
}

#[tokio::test(start_paused = true)]
async fn with_a_key_the_same_request_goes_again_and_without_one_nothing_does() {
    let rig = with_unknown().await;
    assert_eq!(settled(&rig).await.state, State::Unknown);
    assert_eq!(
        rig.runner.runs().len(),
        1,
        "nothing unknown is run again by itself"
    );
    rig.runner.mends("write", ReconcileMethod::SameKey, "");
    let entry = settled(&rig).await;
    assert_eq!(
        (entry.state, entry.resolved_by.as_deref()),
        (State::Done, Some("same-key"))
    );
    assert_eq!(rig.runner.keys(), [id(1), id(1)], "the same key went with both");
    assert!(open(&rig).await.is_empty());
    // Whoever asks again gets the answer that there is now.
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({"n": 1}), 1))
        .await
        .unwrap();
    assert_eq!(rig.runner.runs().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_under_the_key_leaves_it_unknown() {
    let rig = with_unknown().await;
    rig.runner.mends("write", ReconcileMethod::SameKey, "");
    rig.runner.set("write", Behaviour::Fail("503".to_owned()));
    assert_eq!(settled(&rig).await.state, State::Unknown);
    assert_eq!(open(&rig).await, [id(1)]);
}

#[tokio::test(start_paused = true)]
async fn todays_rules_hold_for_the_same_request_again() {
    let mut rig = with_unknown().await;
    rig.runner.mends("write", ReconcileMethod::SameKey, "");
    let denied = agent(json!([{"id": "no", "action": "deny", "scope": "all"}]));
    rig.manifest = Arc::new(crate::testing::manifest(denied));
    assert_eq!(settled(&rig).await.state, State::Unknown);
    assert_eq!(rig.runner.runs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_persons_word_is_recorded_and_the_question_survives_until_then() {
    let rig = with_unknown().await;
    for _ in 0..3 {
        drop(rig.start().await);
    }
    let kernel = rig.start().await;
    assert_eq!(kernel.open_effects().await.unwrap()[0].request_id, id(1));
    assert!(
        !kernel
            .resolve_effect(&id(2), EffectSettlement::Done, "ann", None)
            .await
            .unwrap()
    );
    assert!(
        kernel
            .resolve_effect(&id(1), EffectSettlement::NotDone, "ann", Some("no such order"))
            .await
            .unwrap()
    );
    assert!(
        !kernel
            .resolve_effect(&id(1), EffectSettlement::Done, "bob", None)
            .await
            .unwrap(),
        "the first word counts"
    );
    let entry = &ledger(&rig)[&id(1)];
    assert_eq!(
        (entry.state, entry.resolved_by.as_deref()),
        (State::Failed, Some("ann"))
    );
    drop(kernel);
    assert!(rig.start().await.open_effects().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_the_journal_refused_is_unknown_after_an_orderly_end_too() {
    let rig = rig(agent(allow_all()));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    // The tool described, requested, approved.
    rig.journal.fail_after(3);
    kernel
        .call(session, params("write", json!({"n": 2}), 2))
        .await
        .unwrap_err();
    rig.journal.recover();
    assert!(kernel.shutdown("test", 1_000).await);
    assert_eq!(open(&rig).await, [id(2)]);
    assert_eq!(ledger(&rig)[&id(2)].state, State::Unknown);
    drop(rig.start().await);
    assert_eq!(open(&rig).await, [id(2)], "once");
}

#[tokio::test(start_paused = true)]
async fn a_run_past_its_deadline_is_unknown_and_a_read_only_one_is_no_effect() {
    let mut spec = agent(allow_all());
    spec["tools"][1]["timeout_ms"] = json!(50);
    let rig = rig(spec);
    rig.runner.set("write", Behaviour::Sleep(10_000));
    rig.runner
        .set("echo", Behaviour::Error(RunError::Unknown("gone".to_owned())));
    let kernel = rig.start().await;
    let session = rpc(&kernel).await;
    kernel
        .call(session, params("write", json!({}), 1))
        .await
        .unwrap_err();
    kernel
        .call(session, params("echo", json!({"text": "x"}), 2))
        .await
        .unwrap_err();
    assert_eq!(open(&rig).await, [id(1)]);
    assert_eq!(ledger(&rig).into_keys().collect::<Vec<_>>(), [id(1)]);
}
