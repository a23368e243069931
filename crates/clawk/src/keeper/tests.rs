use crate::state::kept::{Options, StateReader};
#[cfg(not(feature = "postgres"))]
use clawk_kernel::ports::Journal as _;
use clawk_kernel::ports::{Batch, EventContent, JournalEntry};
use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_secrets::EnvironmentSource;
use clawk_trace::canonical::payload_of;
use clawk_trace::chain::digest_of;
use uuid::Uuid;

use super::*;

/// An event of November 2023 with content.
fn old(n: u128) -> Batch {
    let bytes = format!("content {n}").into_bytes();
    let content = EventContent {
        digest: digest_of(&bytes),
        bytes,
    };
    let entry = JournalEntry {
        session: SessionId(Uuid::from_u128(7)),
        event_id: Uuid::from_u128(n),
        span: Uuid::from_u128(8),
        parent: None,
        at: Timestamp(1_700_000_000_000_000),
        kind: "action.executed",
        payload: payload_of(&serde_json::json!({ "n": 1 })).unwrap(),
        content: Some(content),
        answers: None,
    };
    Batch {
        entries: vec![entry],
        ..Batch::default()
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..200 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("it did not come");
}

#[tokio::test(flavor = "multi_thread")]
async fn signs_by_count_and_lets_contents_expire() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let journal = state.journal();
    for n in 0..10 {
        journal
            .submit_batch(old(n))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    let checkpoints = CheckpointsConfig {
        every_events: 5,
        every_seconds: 0,
        ..CheckpointsConfig::default()
    };
    let retention = Retention { retained_days: 30 };
    let keeper = StateKeeper::start(&state, &checkpoints, &retention, &EnvironmentSource::Process).unwrap();
    let reader = StateReader::open(dir.path()).unwrap();
    until(|| reader.contents(None).unwrap().erased == 10).await;
    until(|| !reader.heads().unwrap().is_empty()).await;
    let before = reader.heads_after(0, 100).unwrap().len();
    for n in 10..13 {
        journal
            .submit_batch(old(n))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    tokio::time::sleep(LOOK * 3).await;
    assert_eq!(
        reader.heads_after(0, 100).unwrap().len(),
        before,
        "three are not five"
    );
    keeper.close().await;
    let last = reader.heads_after(0, 100).unwrap().pop().unwrap();
    assert_eq!(last.size, reader.last_row().unwrap(), "the end is signed");
    state.close();
}
