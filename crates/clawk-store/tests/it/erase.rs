//! Content erased by digest, event, session and age: gone from every file, said in the chain, told apart from lost content.

use std::path::Path;

use clawk_kernel::ports::{Journal, JournalScan};
use clawk_kernel::time::{SystemClock, Timestamp};
use clawk_store::{ErasureResult, ErasureSelection, Options, REDACTED, StateDir, StateDirReader};
use clawk_trace::chain::digest_of;

use crate::{entry, one, session, with_content};

/// Whether the bytes stand in any file below.
fn stands_in(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().any(|found| {
        let path = found.unwrap().path();
        if path.is_dir() {
            return stands_in(&path, bytes);
        }
        let text = std::fs::read(&path).unwrap();
        text.windows(bytes.len()).any(|window| window == bytes)
    })
}

async fn filled(state: &StateDir, contents: &[(u128, &[u8])]) {
    let journal = state.journal();
    for (n, (of, bytes)) in (0..).zip(contents) {
        let entry = with_content(entry(session(*of), n), bytes.to_vec());
        journal
            .submit_batch(one(entry))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn erased_bytes_are_in_no_file_and_the_record_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let large = b"LARGE-SECRET ".repeat(4000);
    let medium = b"MEDIUM-SECRET ".repeat(700);
    let contents: [(u128, &[u8]); 6] = [
        (1, b"SMALL-SECRET"),
        (1, &large),
        (1, &medium),
        (1, b"in both"),
        (2, b"in both"),
        (2, b"stays here"),
    ];
    filled(&state, &contents).await;
    assert!(stands_in(dir.path(), b"SMALL-SECRET") && stands_in(dir.path(), b"LARGE-SECRET"));
    let erased = state
        .erase(
            ErasureSelection::Session(session(1)),
            "asked to",
            "a test",
            &SystemClock::default(),
        )
        .await;
    let wanted = ErasureResult {
        contents: 3,
        kept: 1,
        in_force: 0,
        more: false,
    };
    assert_eq!(erased.unwrap(), wanted);
    // While it runs, and before anything is closed or rewritten.
    for secret in [&b"SMALL-SECRET"[..], b"LARGE-SECRET", b"MEDIUM-SECRET"] {
        assert!(
            !stands_in(dir.path(), secret),
            "{}",
            String::from_utf8_lossy(secret)
        );
    }
    let reader = StateDirReader::open(dir.path()).unwrap();
    assert!(reader.verify(None).unwrap().valid);
    let found = reader.contents(None).unwrap();
    assert_eq!(
        (found.present, found.erased, found.missing, found.corrupt),
        (3, 3, 0, 0),
        "the reason is a content, too"
    );
    let scan = JournalScan {
        kinds: &[REDACTED],
        with_content: true,
        ..JournalScan::default()
    };
    let said = state.journal().scan_events(scan.clone()).await.unwrap();
    assert_eq!((said.len(), said[0].session), (1, session(1)));
    assert!(said[0].payload.contains("\"count\":3") && !said[0].payload.contains("asked to"));
    assert!(
        said[0].payload_with_words().contains("\"reason\":\"asked to\""),
        "{said:?}"
    );
    // Again: nothing is left to erase, and no event says otherwise.
    let again = state
        .erase(
            ErasureSelection::Session(session(1)),
            "again",
            "a test",
            &SystemClock::default(),
        )
        .await;
    assert_eq!(again.unwrap().contents, 0);
    assert_eq!(reader.verify(None).unwrap().event_count, 7);
    state.rewrite().await.unwrap();
    assert!(reader.verify(None).unwrap().valid);
    state.close();
}

#[tokio::test]
async fn by_event_by_digest_and_by_age() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let contents: [(u128, &[u8]); 5] = [
        (1, b"first"),
        (1, b"second"),
        (2, b"shared"),
        (1, b"shared"),
        (3, b"young"),
    ];
    filled(&state, &contents).await;
    let journal = state.journal();
    let there = async |bytes: &[u8]| journal.read_content(digest_of(bytes)).await.unwrap().is_some();
    let clock = SystemClock::default();
    let erase = async |what| state.erase(what, "test", "test", &clock).await.unwrap();

    assert_eq!(erase(ErasureSelection::Event(session(1), 0)).await.contents, 1);
    assert!(!there(b"first").await && there(b"second").await);
    let kept = erase(ErasureSelection::Event(session(1), 2)).await;
    assert_eq!((kept.contents, kept.kept), (0, 1), "another session refers to it");
    assert!(there(b"shared").await);
    assert_eq!(
        erase(ErasureSelection::Digest(session(1), digest_of(b"shared")))
            .await
            .contents,
        1
    );
    assert!(!there(b"shared").await);
    assert_eq!(
        erase(ErasureSelection::Digest(session(3), digest_of(b"second")))
            .await
            .contents,
        0,
        "not that session's"
    );

    // Entries are a microsecond apart; the last one is not due.
    let due = Timestamp(1_700_000_000_000_004);
    assert_eq!(erase(ErasureSelection::Before(due)).await.contents, 1);
    assert!(!there(b"second").await && there(b"young").await);
    assert_eq!(
        erase(ErasureSelection::Before(due)).await.contents,
        0,
        "the mark stays behind it"
    );
    let found = StateDirReader::open(dir.path()).unwrap().contents(None).unwrap();
    assert_eq!(
        (found.present, found.erased, found.missing),
        (2, 3, 0),
        "with the reason"
    );
    state.close();
}

/// A person's reason is a content: it is in no payload, and it is erased by its event. Retention erases it, too, and comes to an end.
#[tokio::test]
async fn the_reason_of_an_erasure_is_a_content_that_can_be_erased() {
    const REASON: &str = "Ann Example asked us";
    for by_age in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path(), Options::default()).unwrap();
        filled(&state, &[(1, b"first"), (1, b"second")]).await;
        let clock = SystemClock::default();
        let erase = async |what, reason| state.erase(what, reason, "test", &clock).await.unwrap().contents;
        assert_eq!(erase(ErasureSelection::Session(session(1)), REASON).await, 2);
        let scan = || JournalScan {
            kinds: &[REDACTED],
            with_content: true,
            ..JournalScan::default()
        };
        let said = state.journal().scan_events(scan()).await.unwrap();
        assert!(!said[0].payload.contains("Ann") && said[0].payload_with_words().contains(REASON));
        assert_eq!(
            erase(ErasureSelection::Session(session(1)), "again").await,
            0,
            "nothing but the reason is left"
        );
        let what = match by_age {
            true => ErasureSelection::Before(Timestamp(i64::MAX)),
            false => ErasureSelection::Event(session(1), said[0].sequence),
        };
        assert_eq!(erase(what, "kept for 1 days").await, 1);
        assert!(!stands_in(dir.path(), REASON.as_bytes()));
        let said = state.journal().scan_events(scan()).await.unwrap();
        assert!(!said[0].payload_with_words().contains("Ann"));
        if by_age {
            assert!(said[1].payload.contains("kept for 1 days"), "{said:?}");
            assert_eq!(erase(what, "kept for 1 days").await, 0, "it comes to an end");
        }
        state.close();
    }
}

#[tokio::test]
async fn lost_content_is_told_apart_from_erased() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let (gone, changed) = (b"g".repeat(50_000), b"c".repeat(50_000));
    filled(&state, &[(1, &gone), (1, &changed), (1, b"fine")]).await;
    state.close();
    let blob = |bytes: &[u8]| {
        let hex = digest_of(bytes).to_hex();
        dir.path().join("blobs").join(&hex[..2]).join(&hex[2..])
    };
    std::fs::remove_file(blob(&gone)).unwrap();
    std::fs::write(blob(&changed), "other").unwrap();
    let found = StateDirReader::open(dir.path())
        .unwrap()
        .contents(Some(session(1)))
        .unwrap();
    assert_eq!(
        (found.present, found.erased, found.missing, found.corrupt),
        (1, 0, 1, 1)
    );
    assert!(!found.is_complete());
    let mut how: Vec<_> = found.lost.iter().map(|lost| (lost.sequence, lost.how)).collect();
    how.sort_unstable();
    assert_eq!(how, [(0, "missing"), (1, "corrupt")]);
}

#[tokio::test]
async fn a_crash_between_the_record_and_the_file_is_finished_by_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let large = b"LARGE-SECRET ".repeat(4000);
    filled(&state, &[(1, &large)]).await;
    let erased = state
        .erase(
            ErasureSelection::Session(session(1)),
            "r",
            "t",
            &SystemClock::default(),
        )
        .await;
    assert_eq!(erased.unwrap().contents, 1);
    state.close();
    // As a crash would have left it: the record is written, the file is still there.
    let digest = digest_of(&large);
    let hex = digest.to_hex();
    let file = dir.path().join("blobs").join(&hex[..2]).join(&hex[2..]);
    std::fs::write(&file, &large).unwrap();
    crate::forge(
        dir.path(),
        &format!("INSERT INTO erasing VALUES (x'{hex}', NULL, NULL, 1)"),
    );
    StateDir::open(dir.path(), Options::default()).unwrap().close();
    assert!(!file.exists());
    let found = StateDirReader::open(dir.path()).unwrap().contents(None).unwrap();
    assert_eq!((found.erased, found.missing), (1, 0));
}

#[tokio::test]
async fn what_is_stored_again_after_its_erasure_keeps_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let large = b"LARGE-SHARED ".repeat(4000);
    filled(&state, &[(1, &large)]).await;
    let erased = state
        .erase(
            ErasureSelection::Session(session(1)),
            "r",
            "t",
            &SystemClock::default(),
        )
        .await;
    assert_eq!(erased.unwrap().contents, 1);
    // Somebody else says the same behind the erasure, before its files are removed: a crash came in between.
    filled(&state, &[(2, &large)]).await;
    state.close();
    let hex = digest_of(&large).to_hex();
    crate::forge(
        dir.path(),
        &format!("INSERT INTO erasing VALUES (x'{hex}', NULL, NULL, 1)"),
    );
    StateDir::open(dir.path(), Options::default()).unwrap().close();
    let reader = StateDirReader::open(dir.path()).unwrap();
    assert_eq!(reader.content(digest_of(&large)).unwrap(), Some(large));
    assert!(reader.contents(None).unwrap().is_complete());
}

/// An event about an Atlas, as the runtime writes it.
fn about_atlas(
    of: u128,
    n: u64,
    kind: &'static str,
    id: &str,
    content: Option<&[u8]>,
) -> clawk_kernel::ports::JournalEntry {
    let mut made = entry(session(of), n);
    made.kind = kind;
    let payload = serde_json::json!({ "atlas_id": id, "by": "ops" });
    made.payload = serde_json::value::to_raw_value(&payload).unwrap();
    match content {
        Some(bytes) => with_content(made, bytes.to_vec()),
        None => made,
    }
}

#[tokio::test]
async fn an_atlas_in_force_is_not_erased_and_one_that_was_removed_is() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let journal = state.journal();
    let (loaded, removed) = ("ckp.atlas.loaded", "ckp.atlas.removed");
    let events = [
        about_atlas(1, 1, loaded, "com.example.old", Some(b"OLD-ATLAS")),
        about_atlas(1, 2, removed, "com.example.old", None),
        about_atlas(1, 3, loaded, "com.example.one", Some(b"ONE-ATLAS")),
        about_atlas(1, 4, loaded, "com.example.two", Some(b"TWO-ATLAS")),
    ];
    for event in events {
        journal
            .submit_batch(one(event))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
    let clock = SystemClock::default();
    let everything = ErasureSelection::Before(Timestamp(i64::MAX));
    let expired = state
        .erase(everything, "retention", "clawk", &clock)
        .await
        .unwrap();
    assert_eq!((expired.contents, expired.kept, expired.in_force), (1, 0, 2));
    assert!(!stands_in(dir.path(), b"OLD-ATLAS") && stands_in(dir.path(), b"ONE-ATLAS"));
    // A person who names it is told, too; neither way works around the other.
    let digest = digest_of(b"ONE-ATLAS");
    for what in [
        ErasureSelection::Session(session(1)),
        ErasureSelection::Event(session(1), 2),
        ErasureSelection::Digest(session(1), digest),
    ] {
        let asked = state.erase(what, "asked to", "ann", &clock).await.unwrap();
        assert_eq!(asked.contents, 0, "{what:?}");
        assert!(asked.in_force > 0, "{what:?}");
    }
    // Removed, it expires, although expiry has passed it by.
    let gone = about_atlas(1, 5, removed, "com.example.one", None);
    journal
        .submit_batch(one(gone))
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    let expired = state
        .erase(everything, "retention", "clawk", &clock)
        .await
        .unwrap();
    assert_eq!((expired.contents, expired.in_force), (1, 1));
    assert!(!stands_in(dir.path(), b"ONE-ATLAS") && stands_in(dir.path(), b"TWO-ATLAS"));
    assert!(
        StateDirReader::open(dir.path())
            .unwrap()
            .verify(None)
            .unwrap()
            .valid
    );
}

#[tokio::test]
async fn a_record_of_an_erasure_that_cannot_be_read_is_told_and_excuses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    filled(&state, &[(1, b"gone")]).await;
    let erased = state
        .erase(
            ErasureSelection::Session(session(1)),
            "r",
            "t",
            &SystemClock::default(),
        )
        .await;
    assert_eq!(erased.unwrap().contents, 1);
    state.close();
    let contents = || StateDirReader::open(dir.path()).unwrap().contents(None);
    assert_eq!(contents().unwrap().erased, 1);
    crate::forge(
        dir.path(),
        "UPDATE events SET payload = json_set(payload, '$.contents', json('[\"short\"]')) WHERE kind = 'ckp.content.redacted'",
    );
    let found = contents().unwrap();
    let [record] = found.unreadable.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(
        (record.session_id, found.erased, found.missing),
        (session(1), 0, 1)
    );
    assert!(!found.is_complete());
    assert!(
        record
            .why
            .contains("`ckp.content.redacted`: the field `contents` at byte")
            && record.why.contains("is an array"),
        "{found:?}"
    );
}
