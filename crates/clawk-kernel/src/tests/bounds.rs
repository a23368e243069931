//! What a model, or anybody, sends is bounded before it is recorded: counts, names, whole events.

use std::collections::BTreeSet;
use std::sync::Arc;

use clawk_events::payload::{ActionRequested, ContextTainted};
use clawk_proto::trace::EVENT_MAX_BYTES;
use proptest::prelude::*;
use serde_json::json;

use super::limits::say;
use super::{agent, allow_all, rig};
use crate::event::{JournalWriter, Thread, digest};
use crate::kind;
use crate::notice::TurnEnd;
use crate::ports::{Batch, Journal, ModelCompletion, ToolUse, Usage};
use crate::testing::{MemJournal, Rig, ScriptedModel, TestClock, calls, says};

/// A model whose every answer says that it took this.
fn counting(usage: Usage) -> Arc<ScriptedModel> {
    Arc::new(ScriptedModel::new(move |_, _| {
        Ok(ModelCompletion {
            usage,
            ..says("work for nothing")
        })
    }))
}

fn limited(usage: Usage) -> Rig {
    let mut spec = agent(allow_all());
    spec["providers"] = json!([{"name": "model", "protocol": "custom", "endpoint": "script:x", "model": "m",
        "auth": {"type": "none"}, "limits": {"tokens_per_request": 3_000, "tokens_per_day": 7_000}}]);
    let mut rig = rig(spec);
    rig.models.insert("model".to_owned(), counting(usage));
    rig
}

#[tokio::test]
async fn what_cannot_be_recorded_is_settled_at_its_reserve() {
    let mut cases = Vec::new();
    for wild in [Usage::TOKENS_MAX + 1, (1 << 53) + 1, u64::MAX] {
        cases.push(Usage {
            input_tokens: wild,
            output_tokens: wild,
            cached_tokens: wild,
            cache_write_tokens: wild,
            ..Usage::default()
        });
    }
    for usage in cases {
        let rig = limited(usage);
        let kernel = rig.start().await;
        for _ in 0..2 {
            assert_eq!(say(&kernel, "x").await.0, TurnEnd::Answered, "{usage:?}");
        }
        // A third finds 1,000 tokens left, a fourth none at all.
        let mut last = TurnEnd::Answered;
        for _ in 0..2 {
            last = say(&kernel, "x").await.0;
        }
        assert!(
            matches!(&last, TurnEnd::Failed(why) if why.contains("tokens_per_day")),
            "{usage:?}: {last:?}"
        );
        assert_eq!(
            rig.models["model"].asked().len(),
            3,
            "{usage:?}: a budget of two and a bit serves no more"
        );
        let spent = kernel.budget_report().purses[0].spent.tokens;
        assert_eq!(spent, 7_000, "{usage:?}");
        drop(kernel);
        assert_eq!(
            rig.start().await.budget_report().purses[0].spent.tokens,
            spent,
            "and it is kept"
        );
        let told = rig
            .journal
            .kinds()
            .iter()
            .filter(|k| *k == kind::PROVIDER_COMPLETED)
            .count();
        assert_eq!(told, 3, "each is on record");
    }
}

#[tokio::test]
async fn names_of_any_length_make_a_record_that_verifies() {
    let long = "n".repeat(17 << 20);
    let rig = rig(agent(allow_all()));
    let mut rig = rig;
    let first = ModelCompletion {
        model: long.clone(),
        calls: vec![ToolUse {
            id: long.clone(),
            name: long.clone(),
            arguments: Ok(serde_json::Map::new()),
        }],
        ..calls(&[])
    };
    rig.models.insert(
        "model".to_owned(),
        Arc::new(ScriptedModel::turns(vec![first, says("done")])),
    );
    let kernel = rig.start().await;
    assert_eq!(say(&kernel, "x").await.0, TurnEnd::Answered);
    drop(kernel);
    let mut lines = Vec::new();
    for event in rig.journal.trace() {
        let line = serde_json::to_vec(&event).unwrap();
        assert!(
            line.len() < EVENT_MAX_BYTES,
            "{}: {} bytes",
            event.event_type,
            line.len()
        );
        lines.extend(line);
        lines.push(b'\n');
    }
    let report = clawk_trace::verify(lines.as_slice()).unwrap();
    assert!(report.valid, "{:?}", report.fault);
    assert!(report.event_count > 5);
}

fn text() -> impl Strategy<Value = String> {
    (
        any::<char>(),
        prop_oneof![3 => 0usize..60, 1 => 60_000usize..300_000],
    )
        .prop_map(|(c, times)| c.to_string().repeat(times))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_event_that_is_written_exceeds_the_limit(fields in prop::collection::vec(text(), 6), kind in 0usize..3) {
        let journal = Arc::new(MemJournal::default());
        let scribe = JournalWriter::new(journal.clone(), Arc::new(TestClock::default()));
        let id = uuid::Uuid::from_u128(1);
        let thread = Thread { session: clawk_proto::SessionId(id), span: id, parent: None };
        let requested = ActionRequested {
            action_id: fields[0].clone(),
            call_id: Some(fields[1].clone()),
            converted: Vec::new(),
            door: fields[2].clone(),
            identity: fields[3].clone(),
            parameters_hash: digest(b""),
            policy: Some(fields[4].clone()),
            request_id: fields[5].clone(),
            sandbox: None,
            taint: Vec::new(),
            turn: None,
        };
        let tainted = ContextTainted {
            files: fields.iter().map(|field| (field.clone(), BTreeSet::from([field.clone()]))).collect(),
            request_id: None,
            turn: None,
            untrusted: fields.clone(),
        };
        let draft = match kind {
            0 => scribe.draft_event(&thread, &requested),
            1 => scribe.draft_event(&thread, &ActionRequested { taint: fields, ..requested }),
            _ => scribe.draft_event(&thread, &tainted),
        };
        let taken = journal.submit_batch(Batch { entries: vec![draft.0], ..Batch::default() });
        prop_assert!(taken.is_ok(), "{taken:?}");
        let sealed = journal.trace();
        prop_assert!(serde_json::to_vec(&sealed[0]).unwrap().len() < EVENT_MAX_BYTES);
    }
}
