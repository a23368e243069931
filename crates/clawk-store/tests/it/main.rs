//! The state directory from outside: what it promises when processes die, disks fill and bytes rot.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail that way")]

mod corrupt;
mod full;
mod journal;
mod kill;
mod memory;

use clawk_kernel::ports::{Batch, Content, Entry};
use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use clawk_trace::chain::digest_of;
use uuid::Uuid;

fn session(n: u128) -> SessionId {
    SessionId(Uuid::from_u128(0xabc0_0000 + n))
}

/// The n-th entry of a session; its payload says `n`.
fn entry(session: SessionId, n: u64) -> Entry {
    Entry {
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

fn with_content(mut entry: Entry, bytes: Vec<u8>) -> Entry {
    entry.content = Some(Content {
        digest: digest_of(&bytes),
        bytes,
    });
    entry
}

fn one(entry: Entry) -> Batch {
    Batch {
        entries: vec![entry],
        inbox: Vec::new(),
    }
}
