//! Signed heads: what they find out that chains alone do not.

use std::path::Path;

use clawk_kernel::ports::Journal;
use clawk_kernel::time::Timestamp;
use clawk_proto::SessionId;
use clawk_store::{Filter, Options, StateDir, StateDirReader, StateError};
use clawk_trace::checkpoint::{CheckpointError, CheckpointVerifier, PublicKey};
use clawk_trace::{FaultKind, VerificationReport};

use crate::{entry, forge, one, session};

const AT: Timestamp = Timestamp(1_800_000_000_000_000);

async fn grow(state: &StateDir, of: u128, sequences: std::ops::Range<u64>) {
    let journal = state.journal();
    for n in sequences {
        journal
            .submit_batch(one(entry(session(of), n)))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
}

/// Three sessions, a head in the middle and one at the end; answers the public key and the heads, as kept elsewhere.
async fn signed(folder: &Path) -> (PublicKey, String) {
    let state = StateDir::open(folder, Options::default()).unwrap();
    let signer = state.signer().unwrap();
    grow(&state, 1, 0..5).await;
    grow(&state, 2, 0..3).await;
    assert_eq!(state.seal(&signer, AT).await.unwrap().unwrap().size, 8);
    assert_eq!(state.seal(&signer, AT).await.unwrap(), None, "nothing came since");
    grow(&state, 1, 5..9).await;
    grow(&state, 3, 0..4).await;
    assert_eq!(state.seal(&signer, AT).await.unwrap().unwrap().size, 16);
    state.close();
    let reader = StateDirReader::open(folder).unwrap();
    (
        clawk_store::public_key(folder).unwrap().unwrap(),
        reader.heads().unwrap(),
    )
}

fn judged(folder: &Path, key: &PublicKey, heads: &str, only: Option<SessionId>) -> VerificationReport {
    let reader = StateDirReader::open(folder).unwrap();
    let mut report = reader.verify(only).unwrap();
    let takes = |id| only.is_none_or(|only| only == id);
    let mut witness = CheckpointVerifier::new(heads, key, only.is_none(), takes).unwrap();
    let filter = Filter {
        session: only,
        ..Filter::default()
    };
    for stored in reader.events(filter).unwrap() {
        witness.see(
            stored.event.session_id,
            stored.event.sequence,
            stored.event.event_hash,
        );
    }
    witness.judge(&mut report);
    report
}

#[tokio::test]
async fn an_honest_journal_holds_however_it_grew_since() {
    let dir = tempfile::tempdir().unwrap();
    let (key, heads) = signed(dir.path()).await;
    assert!(judged(dir.path(), &key, &heads, None).valid);
    for n in 1..=3 {
        assert!(judged(dir.path(), &key, &heads, Some(session(n))).valid);
    }
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    state.check_heads(&key).unwrap();
    grow(&state, 2, 3..6).await;
    // The tree goes on from its kept peaks.
    assert_eq!(
        state
            .seal(&state.signer().unwrap(), AT)
            .await
            .unwrap()
            .unwrap()
            .size,
        19
    );
    state.close();
    assert!(judged(dir.path(), &key, &heads, None).valid);
    let all = StateDirReader::open(dir.path()).unwrap().heads().unwrap();
    assert!(judged(dir.path(), &key, &all, None).valid);
    // The tree line, then the sessions that grew: 2, 2 and 1 of them.
    assert_eq!(all.lines().count(), 3 + 2 + 2 + 1);
}

#[tokio::test]
async fn a_removed_end_is_found_even_when_the_tables_agree() {
    let dir = tempfile::tempdir().unwrap();
    let (key, heads) = signed(dir.path()).await;
    forge(
        dir.path(),
        "DELETE FROM events WHERE row > 14; UPDATE sessions SET events=2, verified=2, \
         head=(SELECT hash FROM events WHERE row=14), verified_hash=(SELECT hash FROM events WHERE row=14) WHERE id=3;",
    );
    assert!(
        StateDirReader::open(dir.path())
            .unwrap()
            .verify(None)
            .unwrap()
            .valid,
        "the chains alone show nothing"
    );
    assert_eq!(
        judged(dir.path(), &key, &heads, None).fault.unwrap().kind,
        FaultKind::Gap
    );
    assert_eq!(
        judged(dir.path(), &key, &heads, Some(session(3)))
            .fault
            .unwrap()
            .kind,
        FaultKind::Gap
    );
    // The tree line alone is enough.
    let tree: String = heads
        .lines()
        .filter(|line| line.contains("root"))
        .map(|line| format!("{line}\n"))
        .collect();
    let fault = judged(dir.path(), &key, &tree, None).fault.unwrap();
    assert!(
        fault
            .detail
            .contains("16 events when the tree was signed, there are 14"),
        "{}",
        fault.detail
    );
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let error = state.check_heads(&key).unwrap_err();
    assert!(
        matches!(error, StateError::Unvouched { .. })
            && error.to_string().contains("16 events were signed, 14"),
        "{error}"
    );
}

#[tokio::test]
async fn a_removed_session_and_a_fresh_history_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (key, heads) = signed(dir.path()).await;
    let forged = tempfile::tempdir().unwrap();
    let state = StateDir::open(forged.path(), Options::default()).unwrap();
    grow(&state, 1, 0..9).await;
    grow(&state, 3, 0..7).await;
    state.close();
    assert!(
        StateDirReader::open(forged.path())
            .unwrap()
            .verify(None)
            .unwrap()
            .valid
    );
    let tree: String = heads
        .lines()
        .filter(|line| line.contains("root"))
        .map(|line| format!("{line}\n"))
        .collect();
    let fault = judged(forged.path(), &key, &tree, None).fault.unwrap();
    assert_eq!((fault.kind, fault.index), (FaultKind::BrokenLink, 7));
    assert_eq!(
        judged(forged.path(), &key, &heads, None).fault.unwrap().kind,
        FaultKind::BrokenLink
    );
    // A hole in the middle: the start's cheap check does not see it, the verifier does.
    forge(
        dir.path(),
        "DELETE FROM events WHERE session=2; DELETE FROM sessions WHERE id=2;",
    );
    assert_eq!(
        judged(dir.path(), &key, &tree, None).fault.unwrap().kind,
        FaultKind::BrokenLink
    );
}

#[tokio::test]
async fn a_swapped_or_lost_key_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (key, heads) = signed(dir.path()).await;
    let file = dir.path().join("keys/checkpoint.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&file, "07".repeat(32)).unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let swapped = state.signer().unwrap().public();
    assert_ne!(swapped, key);
    assert!(
        state
            .check_heads(&swapped)
            .unwrap_err()
            .to_string()
            .contains("names the key")
    );
    assert!(matches!(
        CheckpointVerifier::new(&heads, &swapped, true, |_| true),
        Err(CheckpointError::Signature { line: 1, .. })
    ));
    std::fs::remove_file(&file).unwrap();
    assert!(state.signer().unwrap_err().to_string().contains("is gone"));
    std::fs::write(&file, "07".repeat(32)).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    assert!(
        state
            .signer()
            .unwrap_err()
            .to_string()
            .contains("others may read")
    );
    state.close();
}

#[tokio::test]
async fn two_histories_under_one_key_contradict_each_other() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (key, heads) = signed(one.path()).await;
    let state = StateDir::open(two.path(), Options::default()).unwrap();
    std::fs::create_dir_all(two.path().join("keys")).unwrap();
    for name in ["checkpoint.key", "checkpoint.pub"] {
        std::fs::copy(
            one.path().join("keys").join(name),
            two.path().join("keys").join(name),
        )
        .unwrap();
    }
    grow(&state, 7, 0..8).await;
    state.seal(&state.signer().unwrap(), AT).await.unwrap();
    state.close();
    let both = heads + &StateDirReader::open(two.path()).unwrap().heads().unwrap();
    let error = CheckpointVerifier::new(&both, &key, true, |_| true).unwrap_err();
    assert!(matches!(error, CheckpointError::Contradiction { .. }), "{error}");
}
