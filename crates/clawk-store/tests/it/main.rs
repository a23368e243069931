//! The state directory from outside: what it promises when processes die, disks fill and bytes rot.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and python3 forges databases for them"
)]

mod boxes;
mod contract;
mod corrupt;
mod erase;
mod full;
mod heads;
mod journal;
mod kill;
mod memory;
#[path = "../../../../tests/parts/qdrant.rs"]
mod qdrant;
mod sealed;
#[path = "../../../../tests/parts/postgres.rs"]
mod server;

use clawk_kernel::ports::{Batch, EventContent, JournalEntry};
use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use clawk_trace::chain::digest_of;
use uuid::Uuid;

fn session(n: u128) -> SessionId {
    SessionId(Uuid::from_u128(0xabc0_0000 + n))
}

/// The n-th entry of a session; its payload says `n`.
fn entry(session: SessionId, n: u64) -> JournalEntry {
    JournalEntry {
        session,
        event_id: Uuid::from_u128(u128::from(n) << 64 | session.0.as_u128()),
        span: Uuid::from_u128(3),
        parent: Some(Uuid::from_u128(2)),
        at: Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap()),
        kind: "action.executed",
        payload: payload_of(&serde_json::json!({ "n": n, "tool": "echo" })).unwrap(),
        content: None,
        answers: None,
    }
}

fn with_content(mut entry: JournalEntry, bytes: Vec<u8>) -> JournalEntry {
    entry.content = Some(EventContent {
        digest: digest_of(&bytes),
        bytes,
    });
    entry
}

fn one(entry: JournalEntry) -> Batch {
    Batch {
        entries: vec![entry],
        ..Batch::default()
    }
}

/// Changes the database as somebody would who knows our tables.
fn forge(folder: &std::path::Path, sql: &str) {
    let status = std::process::Command::new("python3")
        .args([
            "-c",
            "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.commit()",
        ])
        .arg(folder.join("state.db"))
        .arg(sql)
        .status();
    assert!(status.unwrap().success());
}
