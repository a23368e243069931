//! The projections against the fold: whatever an agent went through, its events alone tell what is kept beside them; and
//! whatever is taken from what is kept is found.

use std::sync::Arc;
use std::time::Duration;

use clawk_proto::method::{
    DelegateContext, DelegateParams, DelegateTask, MemoryContext, MemoryStoreParams, NewEntry,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::limits::say;
use super::{agent, allow_all, id, params, rpc};
use crate::Kernel;
use crate::effect::EffectSettlement;
use crate::ports::{FaultKind, Journal as _, RunError};
use crate::projection::{ProjectionFold, StoredProjections};
use crate::purse::BudgetAmount;
use crate::testing::{Behaviour, Rig, ScriptedModel, manifest, says};

fn rig() -> Rig {
    let mut spec = agent(allow_all());
    spec["memory"] = json!({"name": "mem", "stores": [{"name": "notes", "type": "conversation"}]});
    spec["swarm"] = json!({"name": "team", "topology": "leader-worker",
        "agents": [{"identity_ref": "hand", "role": "worker", "count": 9}],
        "coordination": {"message_passing": "direct", "backend": "in-process", "concurrency": {}},
        "aggregation": {"strategy": "merge"}});
    let mut rig = Rig::new(manifest(spec));
    let model = ScriptedModel::new(|request, _| {
        let text = format!("{:?}", request.messages.last());
        if text.contains("fail") {
            Err(ScriptedModel::fault(FaultKind::Auth, "401"))
        } else {
            Ok(says("yes"))
        }
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    // A limit of a window lets every purse keep what calls take, too.
    rig.budgets.day.calls = Some(1_000_000);
    rig
}

/// The time that a tool of these tests is given, which a lost call counts with.
const LOST_MS: u64 = 30_000;

/// One thing that happens to an agent; `n` makes its ids new.
async fn step(rig: &Rig, kernel: Kernel, what: u8, n: u32) -> Kernel {
    let session = rpc(&kernel).await;
    let write = params("write", json!({"n": n}), n);
    match what {
        0 => drop(say(&kernel, "hello").await),
        1 => drop(say(&kernel, "fail").await),
        2 => drop(
            kernel
                .call(session, params("echo", json!({"text": "x"}), n))
                .await,
        ),
        3 => drop(kernel.call(session, params("echo", json!({"text": 7}), n)).await),
        4 => {
            rig.runner.set(
                "write",
                Behaviour::Error(RunError::Unknown("it went away".to_owned())),
            );
            drop(kernel.call(session, write).await);
        }
        5 => {
            rig.runner.set("write", Behaviour::Fail("no".to_owned()));
            drop(kernel.call(session, write).await);
        }
        6 => {
            // The process dies in the middle of a call.
            rig.runner.set("write", Behaviour::Sleep(3_600_000));
            let cut = tokio::time::timeout(Duration::from_millis(20), kernel.call(session, write)).await;
            assert!(cut.is_err());
            drop(kernel);
            return rig.start().await;
        }
        7 => {
            assert!(kernel.shutdown("test", 5_000).await);
            return rig.start().await;
        }
        8 => {
            let task = DelegateTask {
                description: "count".to_owned(),
                input: None,
            };
            let context = DelegateContext {
                request_id: id(n),
                swarm: "team".to_owned(),
                member: None,
                report_token: None,
                limits: None,
                proof: None,
            };
            let task = DelegateParams {
                task_id: id(1_000_000 + n),
                task,
                context,
            };
            drop(kernel.delegate_task(session, task).await);
        }
        9 => {
            let entry = NewEntry {
                content: Value::from("a bean"),
                key: None,
                metadata: None,
            };
            let store = MemoryStoreParams {
                store: "notes".to_owned(),
                entries: vec![entry],
                context: MemoryContext { request_id: id(n) },
            };
            drop(kernel.memory_store(session, store).await);
        }
        10 => {
            if let Some(open) = rig.journal.open_effects().await.unwrap().first() {
                drop(
                    kernel
                        .resolve_effect(&open.request_id, EffectSettlement::Done, "ann", None)
                        .await,
                );
            }
        }
        _ => rig.clock.advance_ms(200_000),
    }
    kernel
}

async fn kept(rig: &Rig) -> StoredProjections {
    StoredProjections {
        inbox: rig
            .journal
            .inbox()
            .into_iter()
            .map(|(id, end)| (id, end.unwrap_or("open").to_owned()))
            .collect(),
        spent: rig.journal.spent_since(0).await.unwrap(),
        answers: rig.journal.answers(),
        answers_since: 0,
        effects: rig.journal.open_effects().await.unwrap(),
    }
}

fn differences(rig: &Rig, kept: &StoredProjections, from: usize) -> Vec<String> {
    let mut fold = ProjectionFold::new(kept, from == 0);
    rig.journal
        .events()
        .iter()
        .skip(from)
        .for_each(|event| fold.apply_event(event));
    fold.find_differences(kept)
}

/// Each way in which what is kept may be changed to somebody's advantage.
fn changed(kept: &StoredProjections) -> Vec<(&'static str, StoredProjections)> {
    let mut all = Vec::new();
    for at in 0..kept.inbox.len() {
        let mut lost = kept.clone();
        lost.inbox.remove(at);
        all.push(("a message is gone", lost));
        let mut again = kept.clone();
        again.inbox[at].1 = if again.inbox[at].1 == "open" {
            "answered"
        } else {
            "open"
        }
        .to_owned();
        all.push(("a message has another state", again));
    }
    for at in 0..kept.spent.len() {
        let amount = kept.spent[at].amount;
        // Only who has a limit of calls, time or bytes has them told. A call that a crash cut off counts with all its time, of
        // which no event tells.
        let told = &*kept.spent[at].purse == "agent" && amount.busy_ms < LOST_MS;
        if amount.tokens > 0 || amount.calls > 0 && told {
            let mut lost = kept.clone();
            lost.spent.remove(at);
            all.push(("a debt is gone", lost));
        }
        type Taken = fn(&mut BudgetAmount);
        let less: [(u64, Taken); 4] = [
            (amount.tokens, |amount| amount.tokens -= 1),
            (if told { amount.calls } else { 0 }, |amount| amount.calls -= 1),
            (if told { amount.busy_ms } else { 0 }, |amount| {
                amount.busy_ms -= 1
            }),
            (if told { amount.bytes_out } else { 0 }, |amount| {
                amount.bytes_out -= 1
            }),
        ];
        for (_, take) in less.into_iter().filter(|(had, _)| *had > 0) {
            let mut less = kept.clone();
            take(&mut less.spent[at].amount);
            all.push(("a debt is smaller", less));
        }
    }
    for at in 0..kept.effects.len() {
        let mut lost = kept.clone();
        lost.effects.remove(at);
        all.push(("an unknown effect is gone", lost));
    }
    if let Some(last) = (0..kept.answers.len()).max_by_key(|at| kept.answers[*at].1) {
        let mut forged = kept.clone();
        forged.answers[last].0.request_id[0] ^= 1;
        all.push(("an answer answers another request", forged));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn projections_fold_again_and_what_is_taken_is_found(steps in prop::collection::vec(0u8..12, 1..14), from in any::<prop::sample::Index>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let rig = rig();
            let mut kernel = rig.start().await;
            for (n, what) in (1..).zip(&steps) {
                kernel = step(&rig, kernel, *what, n).await;
            }
            assert!(kernel.shutdown("test", 5_000).await);
            drop(kernel);
            let kept = kept(&rig).await;
            assert_eq!(differences(&rig, &kept, 0), [""; 0], "{steps:?}");
            let from = from.index(rig.journal.events().len());
            assert_eq!(differences(&rig, &kept, from), [""; 0], "{steps:?} from {from}");
            for (what, changed) in changed(&kept) {
                assert!(!differences(&rig, &changed, 0).is_empty(), "{what} was not found: {steps:?}");
            }
        });
    }
}
