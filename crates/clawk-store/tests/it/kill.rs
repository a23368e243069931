//! `kill -9` at any moment: the chain holds, and what was acknowledged is there.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use clawk_kernel::ports::{Journal as _, Scan};
use clawk_store::{Durability, Options, Reader, StateDir};

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
    let durability = if round % 2 == 0 {
        Durability::Durable
    } else {
        Durability::Relaxed
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
            waiting.push((id, journal.submit(one(entry)).unwrap()));
        }
        for (id, ticket) in waiting {
            ticket.durable().await.unwrap();
            println!("ack {id}.");
        }
    }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a test starts itself as the victim")]
async fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: HashSet<u64> = HashSet::new();
    for round in 0..30_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::child", "--nocapture"])
            .env(CHILD, format!("{}:{round}", dir.path().display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines
            .by_ref()
            .map(Result::unwrap)
            .find(|line| line.starts_with("ack "))
            .expect("a first ack");
        acknowledged.insert(first[4..].trim_end_matches('.').parse().unwrap());
        std::thread::sleep(Duration::from_micros(300 + round * round * 37));
        child.kill().unwrap();
        child.wait().unwrap();
        // A line without its full stop was cut.
        for line in lines.map_while(Result::ok) {
            if let Some(id) = line
                .strip_prefix("ack ")
                .and_then(|id| id.strip_suffix('.')?.parse().ok())
            {
                acknowledged.insert(id);
            }
        }
        let state = StateDir::open(dir.path(), Options::default()).expect("the chains hold");
        let journal = state.journal();
        let mut after_row = 0;
        let mut found = HashSet::new();
        loop {
            let page = journal
                .scan(Scan {
                    after_row,
                    limit: 5000,
                    with_content: true,
                    ..Scan::default()
                })
                .await
                .unwrap();
            let Some(last) = page.last() else { break };
            after_row = last.row;
            for event in page {
                let payload: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
                let id = payload["n"].as_u64().unwrap();
                if id % 8 == 5 {
                    assert_eq!(
                        event.content.expect("its content").bytes,
                        format!("{id}").repeat(3000).into_bytes()
                    );
                }
                found.insert(id);
            }
        }
        let lost: Vec<_> = acknowledged.iter().filter(|id| !found.contains(id)).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        state.close();
    }
    let report = Reader::open(dir.path()).unwrap().verify(None).unwrap();
    assert!(report.valid, "{:?}", report.fault);
    assert!(
        acknowledged.len() > 240,
        "the rounds did real work: {}",
        acknowledged.len()
    );
}
