//! `kill -9` at any moment: the chain holds, and what was acknowledged is there.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use clawk_kernel::ports::{Journal as _, JournalScan};
use clawk_store::{Options, StateDir, StateDirReader, WriteDurability};

use crate::{entry, one, session, with_content};

const CHILD: &str = "CLAWK_STORE_TEST_CHILD";

/// The victim: appends until it is killed, and says what was acknowledged. Without its variable it has nothing to do.
#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "how a parent test names the child's directory"
)]
async fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let (path, round) = path.rsplit_once(':').unwrap();
    let round: u64 = round.parse().unwrap();
    let durability = if round.is_multiple_of(2) {
        WriteDurability::Durable
    } else {
        WriteDurability::Relaxed
    };
    let state = StateDir::open(
        path,
        Options {
            durability,
            ..Options::default()
        },
    )
    .unwrap();
    let journal = state.journal();
    for n in 0.. {
        let mut waiting = Vec::new();
        for k in 0..8 {
            let id = round * 1_000_000_000 + n * 8 + k;
            let mut entry = entry(session(u128::from(k % 3)), id);
            if k == 5 {
                entry = with_content(entry, format!("{id}").repeat(3000).into_bytes());
            }
            waiting.push((id, journal.submit_batch(one(entry)).unwrap()));
        }
        for (id, ticket) in waiting {
            ticket.wait_until_durable().await.unwrap();
            println!("ack {id}.");
        }
    }
}

/// Starts a victim, kills it after a while, and answers what was acknowledged.
#[expect(clippy::disallowed_methods, reason = "a test starts itself as the victim")]
fn kill_one(path: &std::path::Path, round: u64) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture"])
        .env(CHILD, format!("{}:{round}", path.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A line without its full stop was cut.
    let id = |line: String| line.strip_prefix("ack ")?.strip_suffix('.')?.parse::<u64>().ok();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let first = lines.by_ref().find_map(id).unwrap();
    std::thread::sleep(Duration::from_micros(300 + round * round * 37));
    child.kill().unwrap();
    child.wait().unwrap();
    std::iter::once(first).chain(lines.filter_map(id)).collect()
}

/// The ids of all events; their contents are whole.
async fn found(state: &StateDir) -> HashSet<u64> {
    let mut after_row = 0;
    let mut found = HashSet::new();
    loop {
        let scan = JournalScan {
            after_row,
            limit: 5000,
            with_content: true,
            ..JournalScan::default()
        };
        let page = state.journal().scan_events(scan).await.unwrap();
        let Some(last) = page.last() else { return found };
        after_row = last.row;
        for event in page {
            let payload: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
            let id = payload.get("n").and_then(serde_json::Value::as_u64).unwrap();
            if id % 8 == 5 {
                assert_eq!(
                    event.content.unwrap().bytes,
                    format!("{id}").repeat(3000).into_bytes()
                );
            }
            found.insert(id);
        }
    }
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: HashSet<u64> = HashSet::new();
    for round in 0..30_u64 {
        acknowledged.extend(kill_one(dir.path(), round));
        let state =
            StateDir::open(dir.path(), Options::default()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let found = found(&state).await;
        let lost: Vec<_> = acknowledged.difference(&found).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        state.close();
    }
    let report = StateDirReader::open(dir.path()).unwrap().verify(None).unwrap();
    assert!(report.valid, "{:?}", report.fault);
    assert!(
        acknowledged.len() > 240,
        "the rounds did real work: {}",
        acknowledged.len()
    );
}
