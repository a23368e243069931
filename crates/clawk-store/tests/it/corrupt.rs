//! A journal that was changed refuses to start, and says where and what to do.

use clawk_kernel::ports::Journal as _;
use clawk_store::{Options, StateDir, StateDirReader, StateError};
use clawk_trace::FaultKind;
use rusqlite::Connection;

use crate::{entry, one, session};

/// Twenty events; with `marked`, ten of them were verified by a clean close, and the rest was left by a crash.
async fn journal(path: &std::path::Path, marked: bool) {
    let state = StateDir::open(path, Options::default()).unwrap();
    for n in 0..20 {
        state
            .journal()
            .submit_batch(one(entry(session(1), n)))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    state.close();
    if !marked {
        let connection = Connection::open(path.join("state.db")).unwrap();
        connection.execute("UPDATE sessions SET verified = 10, verified_hash = (SELECT hash FROM events WHERE sequence = 9)", []).unwrap();
    }
}

fn change(path: &std::path::Path, sql: &str) {
    let changed = Connection::open(path.join("state.db"))
        .unwrap()
        .execute(sql, [])
        .unwrap();
    assert_eq!(changed, 1, "{sql}");
}

fn refused(path: &std::path::Path) -> (FaultKind, u64) {
    let error = StateDir::open(path, Options::default()).unwrap_err();
    let text = error.to_string();
    let StateError::Broken {
        kind,
        sequence,
        session: broken,
        ..
    } = error
    else {
        panic!("{text}")
    };
    assert_eq!(broken, session(1));
    assert!(
        text.contains("clawk trace verify --state") && text.contains("mv "),
        "{text}"
    );
    (kind, sequence)
}

#[tokio::test]
async fn a_changed_journal_does_not_start() {
    let cases = [
        (
            "UPDATE events SET payload = '{\"n\":99}' WHERE sequence = 15",
            FaultKind::BadHash,
            15,
        ),
        (
            "UPDATE events SET at = at + 1 WHERE sequence = 9",
            FaultKind::BadHash,
            9,
        ),
        (
            "UPDATE events SET kind = 'x' WHERE sequence = 19",
            FaultKind::BadHash,
            19,
        ),
        ("DELETE FROM events WHERE sequence = 12", FaultKind::Gap, 12),
        ("DELETE FROM events WHERE sequence = 19", FaultKind::Gap, 19),
        (
            "UPDATE sessions SET head = zeroblob(32)",
            FaultKind::BrokenLink,
            19,
        ),
        (
            "UPDATE sessions SET verified_hash = zeroblob(32)",
            FaultKind::BrokenLink,
            9,
        ),
        ("UPDATE sessions SET events = 21", FaultKind::Gap, 20),
    ];
    for (sql, kind, sequence) in cases {
        let dir = tempfile::tempdir().unwrap();
        journal(dir.path(), false).await;
        change(dir.path(), sql);
        assert_eq!(refused(dir.path()), (kind, sequence), "{sql}");
        // The refusal repairs nothing: a second start refuses as well.
        assert_eq!(refused(dir.path()), (kind, sequence), "{sql}");
    }
}

#[tokio::test]
async fn the_marked_row_is_hashed_again_after_a_clean_close() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), true).await;
    StateDir::open(dir.path(), Options::default()).unwrap().close();
    change(dir.path(), "UPDATE events SET payload = '{}' WHERE sequence = 19");
    assert_eq!(refused(dir.path()), (FaultKind::BadHash, 19));
}

#[tokio::test]
async fn a_full_verification_finds_what_lies_before_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), true).await;
    change(dir.path(), "UPDATE events SET payload = '{}' WHERE sequence = 3");
    let fault = StateDirReader::open(dir.path())
        .unwrap()
        .verify(None)
        .unwrap()
        .fault
        .unwrap();
    assert_eq!((fault.kind, fault.sequence), (FaultKind::BadHash, Some(3)));
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), true).await;
    change(dir.path(), "DELETE FROM events WHERE sequence = 19");
    let fault = StateDirReader::open(dir.path())
        .unwrap()
        .verify(Some(session(1)))
        .unwrap()
        .fault
        .unwrap();
    assert_eq!((fault.kind, fault.sequence), (FaultKind::Gap, Some(19)));
}

#[tokio::test]
async fn a_later_version_and_another_program_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), true).await;
    Connection::open(dir.path().join("state.db"))
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let error = StateDir::open(dir.path(), Options::default()).unwrap_err();
    assert!(matches!(error, StateError::Newer { found: 99, .. }), "{error}");
    let dir = tempfile::tempdir().unwrap();
    Connection::open(dir.path().join("state.db"))
        .unwrap()
        .pragma_update(None, "user_version", 1)
        .unwrap();
    assert!(matches!(
        StateDir::open(dir.path(), Options::default()),
        Err(StateError::Foreign { .. })
    ));
    // Without a version, and not empty; or ours, set back.
    for sql in [
        "CREATE TABLE theirs (x)",
        "PRAGMA application_id = 1668052843",
        "PRAGMA user_version = -1",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let theirs = Connection::open(dir.path().join("state.db")).unwrap();
        theirs.execute_batch(sql).unwrap();
        let refused = StateDir::open(dir.path(), Options::default());
        assert!(
            matches!(refused, Err(StateError::Foreign { .. })),
            "{sql}: {refused:?}"
        );
        let tables = "SELECT count(*) FROM sqlite_master WHERE name = 'events'";
        let made: i64 = theirs.query_row(tables, [], |row| row.get(0)).unwrap();
        assert_eq!(made, 0, "{sql}: nothing is made in it");
    }
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path(), true).await;
    // Links: what is written would be written elsewhere.
    let elsewhere = dir.path().join("elsewhere");
    for name in ["lock", "keys/checkpoint.key", "blobs/aa"] {
        let linked = tempfile::tempdir().unwrap();
        std::fs::write(&elsewhere, "precious").unwrap();
        let path = linked.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let refused = StateDir::open(linked.path(), Options::default())
            .unwrap_err()
            .to_string();
        assert!(refused.contains("holds no links"), "{name}: {refused}");
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "precious");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("state.db"),
        b"this is no database at all, but it is longer than a header".repeat(30),
    )
    .unwrap();
    assert!(matches!(
        StateDir::open(dir.path(), Options::default()),
        Err(StateError::Database { .. })
    ));
}
