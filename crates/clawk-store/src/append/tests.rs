//! What the writer keeps of chains between its transactions.

use clawk_kernel::kind;
use clawk_kernel::ports::{Batch, JournalEntry};
use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use rusqlite::Connection;
use uuid::Uuid;

use super::{EventPartStores, SqliteChainTips};
use crate::answers::AnswerIndex;
use crate::blobs::BlobStore;
use crate::{WriteDurability, check, schema};

/// An event of a session; no two of them in one session are of one number.
fn entry(session: u128, n: u128, kind: &'static str) -> JournalEntry {
    JournalEntry {
        session: SessionId(Uuid::from_u128(session)),
        event_id: Uuid::from_u128(n << 64 | session),
        span: Uuid::from_u128(3),
        parent: None,
        at: Timestamp(1_700_000_000_000_000),
        kind,
        payload: payload_of(&serde_json::json!({})).unwrap(),
        content: None,
        answers: None,
    }
}

fn write(
    tips: &mut SqliteChainTips,
    connection: &Connection,
    places: &EventPartStores<'_>,
    entries: Vec<JournalEntry>,
) {
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let batch = Batch {
        entries,
        ..Batch::default()
    };
    tips.append(connection, places, &batch).unwrap();
    tips.save(connection).unwrap();
    connection.execute_batch("COMMIT").unwrap();
}

#[test]
fn no_tip_is_kept_of_a_session_that_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("state.db");
    let connection = schema::open_writer(&database, WriteDurability::Relaxed).unwrap();
    let (blobs, answers) = (
        BlobStore::new(folder.path()),
        AnswerIndex::load(&connection).unwrap(),
    );
    let places = EventPartStores {
        blobs: &blobs,
        answers: &answers,
        durable: false,
    };
    let mut tips = SqliteChainTips::default();
    for session in 1..=100 {
        let whole = [kind::SESSION_STARTED, kind::MESSAGE_ACCEPTED, kind::SESSION_ENDED];
        let whole = whole
            .into_iter()
            .zip(1..)
            .map(|(kind, n)| entry(session, n, kind));
        write(&mut tips, &connection, &places, whole.collect());
    }
    write(
        &mut tips,
        &connection,
        &places,
        vec![entry(200, 1, kind::SESSION_STARTED)],
    );
    assert_eq!(tips.tips.len(), 1, "the session that goes on");
    // An event behind the end, in a later transaction and in the same one, goes on with the chain.
    let late = [kind::MESSAGE_ACCEPTED, kind::SESSION_ENDED, kind::MESSAGE_REFUSED];
    let late = late.into_iter().zip(4..).map(|(kind, n)| entry(1, n, kind));
    write(&mut tips, &connection, &places, late.collect());
    assert_eq!(tips.tips.len(), 2, "the one that goes on again, too");
    check::verify_chains(&connection, folder.path(), &database).unwrap();
    let events: i64 = connection
        .query_row("SELECT events FROM sessions WHERE id = 1", [], |row| row.get(0))
        .unwrap();
    assert_eq!(events, 6);
}
