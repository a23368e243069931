//! A full disk: refused with the cause, nothing acknowledged is lost, and it goes on when there is room.

use std::time::Duration;

use clawk_kernel::ports::{Journal as _, JournalError, JournalScan};
use clawk_store::{Options, StateDir, StateDirReader};

use crate::{entry, one, session, with_content};

#[tokio::test]
async fn a_full_disk_loses_nothing_and_the_journal_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        max_bytes: Some(1_000_000),
        ..Options::default()
    };
    let state = StateDir::open(dir.path(), options).unwrap();
    let journal = state.journal();
    let mut acknowledged = 0;
    let cause = loop {
        let entry = with_content(entry(session(1), acknowledged), vec![b'x'; 9000]);
        match journal
            .submit_batch(one(entry))
            .unwrap()
            .wait_until_durable()
            .await
        {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1000, "SQLite never said full");
    };
    assert!(cause.to_string().contains("full"), "{cause}");
    assert!(acknowledged > 20);
    // Refused at once, with the cause, while reading goes on.
    let refused = journal.submit_batch(one(entry(session(1), 0)));
    assert!(
        matches!(&refused, Err(JournalError::Unwritable(text)) if text.contains("full")),
        "{refused:?}"
    );
    let kept = journal
        .scan_events(JournalScan {
            limit: 10_000,
            ..JournalScan::default()
        })
        .await
        .unwrap();
    assert_eq!(u64::try_from(kept.len()).unwrap(), acknowledged);

    state.set_max_bytes(100_000_000);
    let mut tries = 0;
    while let Err(error) = write(&state, acknowledged).await {
        tries += 1;
        assert!(tries < 100, "it never recovered: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = StateDirReader::open(dir.path()).unwrap().verify(None).unwrap();
    assert!(report.valid, "{:?}", report.fault);
    assert_eq!(report.event_count, acknowledged + 1);
}

async fn write(state: &StateDir, n: u64) -> Result<(), JournalError> {
    state
        .journal()
        .submit_batch(one(entry(session(1), n)))?
        .wait_until_durable()
        .await
}
