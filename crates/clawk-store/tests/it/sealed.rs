//! Encrypted stores: nothing of them can be read on the disk, the key is asked for by the store's name, and it can be changed.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::{
    Batch, BoxFuture, InboxChange, Journal as _, JournalScan, Memory, MemoryError, MemorySearch, OwedAnswer,
    Scope, StoreQuery, UnembeddedEntry,
};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_memory::{FolderMemory, FolderScopeView};
use clawk_proto::MessageId;
use clawk_proto::method::NewEntry;
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntryProvenance, EntrySearchResult};
use clawk_recall::seal::{SealKey, SealKeyring};
use clawk_store::{Keys, Options, StateDir, StateDirReader, StateError};
use serde_json::json;
use tempfile::TempDir;

mod forged;

use crate::{entry, one, session, with_content};

/// Every store, encrypted.
#[derive(Debug)]
pub(crate) struct Encrypted(pub(crate) Arc<dyn Memory>);

fn encrypted(store: &Store) -> Store {
    Store {
        encryption: true,
        ..store.clone()
    }
}

type Answer<'a, T> = BoxFuture<'a, Result<T, MemoryError>>;

impl Memory for Encrypted {
    fn check_store(&self, store: &Store) -> Result<(), MemoryError> {
        self.0.check_store(&encrypted(store))
    }

    fn joins_journal(&self, store: &Store) -> bool {
        self.0.joins_journal(store)
    }

    fn search_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        ask: MemorySearch,
    ) -> Answer<'a, EntrySearchResult> {
        Box::pin(async move { self.0.search_entries(&encrypted(store), place, ask).await })
    }

    fn store_entries<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        entries: Vec<EntryInsertion>,
        at: Timestamp,
        record: Batch,
    ) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            self.0
                .store_entries(&encrypted(store), place, entries, at, record)
                .await
        })
    }

    fn compaction_candidates<'a>(&'a self, store: &'a Store, place: &'a Scope) -> Answer<'a, Vec<EntryHit>> {
        Box::pin(async move { self.0.compaction_candidates(&encrypted(store), place).await })
    }

    fn compact_store<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        at: Timestamp,
        summary: Option<CompactionSummary>,
    ) -> Answer<'a, (u64, u64)> {
        Box::pin(async move { self.0.compact_store(&encrypted(store), place, at, summary).await })
    }

    fn apply_retention<'a>(&'a self, store: &'a Store, at: Timestamp) -> Answer<'a, u64> {
        Box::pin(async move { self.0.apply_retention(&encrypted(store), at).await })
    }

    fn remove<'a>(
        &'a self,
        store: &'a Store,
        place: &'a Scope,
        whose: ConversationFilter,
        id: String,
    ) -> Answer<'a, Option<EntryHit>> {
        Box::pin(async move { self.0.remove(&encrypted(store), place, whose, id).await })
    }

    fn count_entries<'a>(&'a self, store: &'a Store, place: &'a Scope) -> Answer<'a, u64> {
        Box::pin(async move { self.0.count_entries(&encrypted(store), place).await })
    }

    fn unembedded_entries<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        limit: usize,
    ) -> Answer<'a, Vec<UnembeddedEntry>> {
        Box::pin(async move { self.0.unembedded_entries(&encrypted(store), model, limit).await })
    }

    fn add_vectors<'a>(
        &'a self,
        store: &'a Store,
        model: &'a str,
        vectors: Vec<(String, Vec<f32>)>,
    ) -> Answer<'a, ()> {
        Box::pin(async move { self.0.add_vectors(&encrypted(store), model, vectors).await })
    }
}

fn key(digit: &str) -> SealKey {
    SealKey::from_hex(&digit.repeat(64)).unwrap()
}

pub(crate) fn vault(digit: &str) -> Arc<SealKeyring> {
    Arc::new(SealKeyring::new(key(digit)))
}

/// The names of stores in these tests and in the contract's.
const NAMES: [&str; 20] = [
    "x'; DROP TABLE memory;--\"",
    "s",
    "global",
    "per-identity",
    "per-channel",
    "young",
    "truncate",
    "sliding-window",
    "summarize",
    "empty",
    "w",
    "b",
    "p",
    "vector-only",
    "fts-only",
    "hybrid",
    "shared",
    "notes",
    "facts",
    "plain",
];

fn keys(digit: &str, stores: &[&str]) -> Keys {
    Keys {
        vault: SealKeyring::new(key(digit)),
        reference: format!("KEY_{digit}"),
        stores: stores.iter().map(|name| (*name).to_owned()).collect(),
    }
}

fn open(path: &Path, keys: Option<Keys>) -> Result<StateDir, StateError> {
    StateDir::open_with(path, Options::default(), keys)
}

pub(crate) fn state() -> (StateDir, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (open(dir.path(), Some(keys("a", &NAMES))).unwrap(), dir)
}

pub(crate) fn files(vault: Option<Arc<SealKeyring>>) -> (FolderMemory, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (in_folder(dir.path(), vault), dir)
}

fn in_folder(root: &Path, vault: Option<Arc<SealKeyring>>) -> FolderMemory {
    FolderMemory::new(clawk_memory::Options {
        root: root.to_owned(),
        home: None,
        tenant: String::new(),
        outside: true,
        vault,
    })
}

/// Files below a folder that hold these bytes.
fn anywhere(folder: &Path, needle: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(anywhere(&entry.path(), needle));
        } else {
            let bytes = std::fs::read(entry.path()).unwrap();
            if bytes.windows(needle.len()).any(|part| part == needle.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    found
}

const PLANTED: &str = "zanzibar-lighthouse";
const T0: Timestamp = Timestamp(1_700_000_000_000_000);

fn store(spec: serde_json::Value) -> Store {
    serde_json::from_value(spec).unwrap()
}

fn notes(encrypted: bool) -> Store {
    store(
        json!({"name": "notes", "type": "semantic", "encryption": encrypted, "scope": "global",
        "retention": {"max_entries": 6}, "compaction": {"strategy": "summarize"}}),
    )
}

fn facts(encrypted: bool) -> Store {
    store(json!({"name": "facts", "type": "key-value", "encryption": encrypted, "scope": "global"}))
}

fn new(id: &str, key: Option<&str>, text: &str) -> EntryInsertion {
    EntryInsertion {
        id: id.to_owned(),
        entry: NewEntry {
            content: json!(text),
            key: key.map(str::to_owned),
            metadata: Some(json!({ "said": text })),
        },
        mark: EntryProvenance {
            origin: format!("web http://{text}"),
            ..EntryProvenance::default()
        },
    }
}

async fn keep(memory: &dyn Memory, store: &Store, entries: Vec<EntryInsertion>) {
    let place = Scope::default();
    memory
        .store_entries(store, &place, entries, T0, Batch::default())
        .await
        .unwrap();
}

async fn texts(memory: &dyn Memory, store: &Store, query: StoreQuery) -> Vec<String> {
    let ask = MemorySearch {
        whose: ConversationFilter::All,
        query,
        vector: None,
        limit: 20,
    };
    let found = memory
        .search_entries(store, &Scope::default(), ask)
        .await
        .unwrap();
    let text = |hit: &EntryHit| hit.entry.content.as_str().unwrap().to_owned();
    found.hits.iter().map(text).collect()
}

/// Entries, a summary with what it replaced, a key, a cached embedding and two contents of the journal, small and large: each
/// holds the planted text.
/// Why a message failed, whose answer is owed: what a server or a tool said.
async fn owe_a_reason(state: &StateDir, reason: &str) {
    let (message, of) = (MessageId(uuid::Uuid::from_u128(7)), session(0));
    let owed = OwedAnswer {
        message,
        session: of,
        channel: "chat".to_owned(),
        conversation: "c".to_owned(),
        sender: "ann".to_owned(),
        reply_to: None,
        text: None,
    };
    let inbox = vec![
        InboxChange::Accepted {
            session: of,
            message,
            arrival: None,
        },
        InboxChange::Closed {
            message,
            how: "dead",
            reason: Some(reason.to_owned()),
            owed: Some((owed, T0)),
        },
    ];
    let batch = Batch {
        inbox,
        ..Batch::default()
    };
    state
        .journal()
        .submit_batch(batch)
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
}

async fn plant(state: &StateDir, encrypted: bool) {
    let memory = state.memory();
    for n in 0..8 {
        let text = format!("the code of the {PLANTED} is {n}");
        keep(
            &*memory,
            &notes(encrypted),
            vec![new(&format!("n{n}"), None, &text)],
        )
        .await;
    }
    keep(
        &*memory,
        &facts(encrypted),
        vec![new("f", Some(PLANTED), "far away")],
    )
    .await;
    let embedding: Vec<f32> = PLANTED.bytes().map(f32::from).collect();
    let digest = clawk_trace::chain::digest_of(PLANTED.as_bytes());
    memory.pay_once("m", vec![(digest, embedding)]).await.unwrap();
    owe_a_reason(state, &format!("the server said: {PLANTED}")).await;
    for (n, repeat) in [(0, 1), (1, 2000)] {
        let content = with_content(entry(session(0), n), PLANTED.repeat(repeat).into_bytes());
        state
            .journal()
            .submit_batch(one(content))
            .unwrap()
            .wait_until_durable()
            .await
            .unwrap();
    }
}

/// All of it is there.
async fn is_whole(state: &StateDir) {
    let memory = state.memory();
    let found = texts(
        &*memory,
        &notes(true),
        StoreQuery::Text(format!("code {PLANTED}")),
    )
    .await;
    assert!(
        found.iter().any(|text| text.contains(&format!("{PLANTED} is 7"))),
        "{found:?}"
    );
    assert!(found.iter().any(|text| text.starts_with("Earlier")), "{found:?}");
    assert_eq!(
        texts(&*memory, &facts(true), StoreQuery::Key(PLANTED.to_owned())).await,
        ["far away"]
    );
    let digest = clawk_trace::chain::digest_of(PLANTED.as_bytes());
    let paid = memory.paid_for("m", vec![digest]).await.unwrap();
    let vector = paid.first().unwrap().as_ref().unwrap();
    assert_eq!(vector.len(), PLANTED.len());
    let owed = state.journal().read_outbox(9).await.unwrap();
    assert_eq!(
        owed.first().unwrap().reason.as_deref(),
        Some(&*format!("the server said: {PLANTED}"))
    );
    let scan = JournalScan {
        with_content: true,
        ..JournalScan::default()
    };
    let events = state.journal().scan_events(scan).await.unwrap();
    let sizes: Vec<usize> = events
        .iter()
        .filter_map(|event| Some(event.content.as_ref()?.bytes.len()))
        .collect();
    assert_eq!(sizes, [PLANTED.len(), PLANTED.len() * 2000]);
}

#[tokio::test]
async fn nothing_of_an_encrypted_store_can_be_read_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    plant(&state, true).await;
    is_whole(&state).await;
    // The log beside the database, too; and the words of the index, which have no other form than these.
    assert_eq!(anywhere(dir.path(), PLANTED), [] as [PathBuf; 0]);
    assert_eq!(anywhere(dir.path(), "zanzibar"), [] as [PathBuf; 0]);
    state.close();
    assert_eq!(anywhere(dir.path(), "zanzibar"), [] as [PathBuf; 0]);

    for (given, why) in [
        (None, "its key is not given"),
        (Some(keys("b", &["notes"])), "not the one"),
    ] {
        let error = open(dir.path(), given).unwrap_err().to_string();
        assert!(error.contains("`notes`") || error.contains("`facts`"), "{error}");
        assert!(error.contains(why), "{error}");
    }
    // Who looks without the key sees how much there is, and no text.
    let reader = StateDirReader::open(dir.path()).unwrap();
    let parts = reader.memory_parts(Some("facts")).unwrap();
    assert_eq!(parts[0].entries, 1);
    let error = reader.remembered(&parts[0], None, 9).unwrap_err().to_string();
    assert!(
        error.contains("its key is not given") && error.contains("KEY_a"),
        "{error}"
    );

    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    is_whole(&state).await;
    // The manifest may not stop saying so.
    let error = state.memory().check_store(&notes(false)).unwrap_err().to_string();
    assert!(
        error.contains("`notes`") && error.contains("write `encryption: true`"),
        "{error}"
    );
}

#[tokio::test]
async fn an_encrypted_store_without_a_key_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), None).unwrap();
    let error = state.memory().check_store(&notes(true)).unwrap_err().to_string();
    assert!(
        error.contains("`notes`") && error.contains("encryption_key"),
        "{error}"
    );
    let refused = state
        .memory()
        .store_entries(
            &notes(true),
            &Scope::default(),
            vec![new("n", None, PLANTED)],
            T0,
            Batch::default(),
        )
        .await;
    assert!(refused.is_err());
    state.close();
    assert_eq!(anywhere(dir.path(), PLANTED), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn what_was_kept_before_is_encrypted_by_the_first_start_with_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), None).unwrap();
    plant(&state, false).await;
    state.close();
    assert!(!anywhere(dir.path(), PLANTED).is_empty());
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    is_whole(&state).await;
    assert_eq!(anywhere(dir.path(), "zanzibar"), [] as [PathBuf; 0]);
}

#[tokio::test]
async fn what_is_forgotten_and_restored_leaves_and_joins_the_index_in_memory() {
    let (state, _dir) = state();
    let memory = state.memory();
    plant(&state, true).await;
    let found = |word: &str| StoreQuery::Text(word.to_owned());
    is_whole(&state).await;
    let parts = state_parts(&state, "notes");
    let back = state
        .restore(
            &parts,
            clawk_store::RestoreSelection::All,
            "me",
            &clawk_kernel::time::SystemClock::default(),
        )
        .await
        .unwrap();
    assert!(back > 1);
    let all = texts(&*memory, &notes(true), found("zanzibar")).await;
    assert!(all.iter().any(|text| text.ends_with("is 0")), "{all:?}");
    memory
        .remove(
            &notes(true),
            &Scope::default(),
            ConversationFilter::All,
            "n0".to_owned(),
        )
        .await
        .unwrap()
        .unwrap();
    let all = texts(&*memory, &notes(true), found("zanzibar")).await;
    assert!(
        !all.iter().any(|text| text.ends_with("is 0")) && all.iter().any(|text| text.ends_with("is 1")),
        "{all:?}"
    );
}

fn state_parts(state: &StateDir, store: &str) -> Vec<clawk_store::MemoryPart> {
    // The reader of another process has no key; counting needs none.
    StateDirReader::open(state.path())
        .unwrap()
        .memory_parts(Some(store))
        .unwrap()
}

/// Both keys: the new one seals.
fn both() -> Keys {
    Keys {
        vault: SealKeyring::new(key("b")).with_older(key("a")),
        reference: "KEY_b".to_owned(),
        stores: BTreeSet::new(),
    }
}

#[tokio::test]
async fn another_key_seals_everything_and_the_old_one_opens_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    plant(&state, true).await;
    state.close();
    let state = open(dir.path(), Some(both())).unwrap();
    is_whole(&state).await;
    state.close();
    let references = StateDirReader::open(dir.path())
        .unwrap()
        .key_references()
        .unwrap()
        .unwrap();
    assert_eq!(
        (references.current.as_str(), references.previous.as_deref()),
        ("KEY_b", Some("KEY_a"))
    );
    let error = open(dir.path(), Some(keys("a", &["notes"])))
        .unwrap_err()
        .to_string();
    assert!(error.contains("`facts`") || error.contains("`notes`"), "{error}");
    let state = open(dir.path(), Some(keys("b", &["notes"]))).unwrap();
    is_whole(&state).await;
    // Nothing of the old key is left, in no free page either.
    state.close();
    let mut old = b"clawk\0s1".to_vec();
    old.extend(hex::decode(format!("{:?}", key("a")).trim_matches(['K', 'e', 'y', '(', ')'])).unwrap());
    let bytes = std::fs::read(dir.path().join("state.db")).unwrap();
    assert!(!bytes.windows(old.len()).any(|part| part == old));
}

const CHILD: &str = "CLAWK_STORE_TEST_REKEY";

/// The victim: changes the key until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else { return };
    println!("begins");
    open(Path::new(&path), Some(both())).unwrap().close();
    println!("is done");
}

#[tokio::test]
async fn a_change_of_the_key_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    plant(&state, true).await;
    for n in 0..1500 {
        let entries = vec![new(
            &format!("k{n}"),
            Some(&format!("key {n}")),
            &format!("value {n}"),
        )];
        keep(&*state.memory(), &facts(true), entries).await;
    }
    state.close();
    let mut interrupted = 0;
    for round in 0..12_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sealed::child", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        lines.by_ref().find(|line| line.ends_with("begins")).unwrap();
        std::thread::sleep(Duration::from_millis(2 + round * 6));
        child.kill().unwrap();
        child.wait().unwrap();
        let done = lines.any(|line| line.ends_with("is done"));
        let started = std::fs::metadata(dir.path().join("state.db-wal")).is_ok_and(|facts| facts.len() > 0);
        if !done && started {
            interrupted += 1;
            // With one key alone nothing starts, and nothing is lost by trying.
            assert!(
                open(dir.path(), Some(keys("a", &["notes"]))).is_err() || round < 4,
                "round {round}: half of it is sealed with another key"
            );
        }
        if done {
            break;
        }
    }
    assert!(interrupted > 0);
    let state = open(dir.path(), Some(both())).unwrap();
    is_whole(&state).await;
    for n in 0..1500 {
        let found = texts(
            &*state.memory(),
            &facts(true),
            StoreQuery::Key(format!("key {n}")),
        )
        .await;
        assert_eq!(found, [format!("value {n}")]);
    }
}

/// Damage of one value: everything else is sealed with the new key, each damaged value is named, and a second run says the same.
#[tokio::test]
async fn a_damaged_value_stops_no_change_of_the_key_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    plant(&state, true).await;
    state.close();
    drop(state);
    let database = rusqlite::Connection::open(dir.path().join("state.db")).unwrap();
    let damaged = [
        "UPDATE events SET content = substr(content, 1, 60) WHERE content IS NOT NULL AND length(content) < 9000",
        "UPDATE embeddings SET vector = substr(vector, 1, 60)",
        "UPDATE outbox SET reason = substr(reason, 1, 60)",
        "UPDATE memory SET content = substr(content, 1, 60) WHERE n = (SELECT min(n) FROM memory WHERE substr(content, 1, 1) = '~')",
    ];
    for sql in damaged {
        assert_eq!(database.execute(sql, []).unwrap(), 1, "{sql}");
    }
    drop(database);
    let blobs = walk(&dir.path().join("blobs"));
    assert_eq!(blobs.len(), 1);
    let bytes = std::fs::read(&blobs[0]).unwrap();
    std::fs::write(&blobs[0], &bytes[..bytes.len() - 1]).unwrap();
    for _ in 0..2 {
        let state = open(dir.path(), Some(both())).unwrap();
        let report = state.reseal_report();
        let named: Vec<&str> = report.faults().iter().map(|fault| fault.value.as_str()).collect();
        assert_eq!(named.len(), 5, "{named:?}");
        for value in [
            "content/",
            "embedding/",
            "outbox/",
            "the entry ",
            "the file of the content ",
        ] {
            assert!(
                named.iter().any(|name| name.contains(value)),
                "{value}: {named:?}"
            );
        }
        state.close();
    }
    // The rest is sealed with the new key alone, and a start with it works.
    let state = open(dir.path(), Some(keys("b", &["notes", "facts"]))).unwrap();
    let kept = texts(
        &*state.memory(),
        &facts(true),
        StoreQuery::Key(PLANTED.to_owned()),
    )
    .await;
    assert_eq!(kept, ["far away"]);
    assert!(state.reseal_report().is_complete());
    // A reason that can't be opened keeps no other answer from being delivered.
    assert_eq!(state.journal().read_outbox(9).await.unwrap().len(), 1);
}

/// Files below a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

/// What a server says may begin like a sealed value, also to the letter: it is told as it was said, and a change of the key keeps it.
#[tokio::test]
async fn a_reason_that_begins_like_a_sealed_value_is_kept() {
    for (encrypted, said) in [
        (true, "~"),
        (true, "~Y2xhd2sAczE said the server"),
        (false, "~"),
        (false, "~Y2xhd2sAczE said the server"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let first = encrypted.then(|| keys("a", &["notes"]));
        let state = open(dir.path(), first).unwrap();
        owe_a_reason(&state, said).await;
        assert_eq!(reasons(&state).await, [said], "{encrypted}");
        state.close();
        let state = open(dir.path(), Some(keys("a", &["notes"]))).unwrap();
        assert_eq!(reasons(&state).await, [said], "{encrypted}");
        state.close();
        let state = open(
            dir.path(),
            Some(Keys {
                stores: ["notes".to_owned()].into(),
                ..both()
            }),
        )
        .unwrap();
        assert!(state.reseal_report().is_complete());
        assert_eq!(reasons(&state).await, [said], "{encrypted}");
    }
}

async fn reasons(state: &StateDir) -> Vec<String> {
    let rows = state.journal().read_outbox(9).await.unwrap();
    rows.into_iter()
        .filter_map(|row| row.reason)
        .map(|reason| reason.trim_start().to_owned())
        .collect()
}

#[tokio::test]
async fn sealed_rows_that_change_places_do_not_open() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    plant(&state, true).await;
    let content = with_content(entry(session(0), 2), b"the door is red".to_vec());
    state
        .journal()
        .submit_batch(one(content))
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    state.close();
    let database = dir.path().join("state.db");
    let whole = std::fs::read(&database).unwrap();
    for (what, sql) in [
        (
            "two entries",
            "CREATE TEMP TABLE k AS SELECT n, part, content FROM memory; UPDATE memory SET content = (SELECT k.content FROM k \
             WHERE k.part = memory.part AND k.n <> memory.n LIMIT 1) WHERE (SELECT count(*) FROM k WHERE k.part = memory.part) > 1",
        ),
        ("another id", "UPDATE memory SET id = id || 'x'"),
        (
            "another store",
            "UPDATE memory SET part = (SELECT max(id) FROM memory_parts) + 1 - part",
        ),
    ] {
        let connection = rusqlite::Connection::open(&database).unwrap();
        connection.execute_batch(sql).unwrap();
        drop(connection);
        let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
        let ask = StoreQuery::Between(Timestamp(0), Timestamp(i64::MAX));
        let asked = state.memory();
        let asked = asked.query_entries(&notes(true), &Scope::default(), ask, 9).await;
        let error = asked.unwrap_err().to_string();
        assert!(
            error.contains("another place") && !error.contains("zanzibar"),
            "{what}: {error}"
        );
        state.close();
        for file in ["state.db-wal", "state.db-shm"] {
            let _gone = std::fs::remove_file(dir.path().join(file));
        }
        std::fs::write(&database, &whole).unwrap();
    }
    // Contents of the journal.
    let connection = rusqlite::Connection::open(&database).unwrap();
    let swap = "CREATE TEMP TABLE k AS SELECT row, content FROM events WHERE content IS NOT NULL; \
        UPDATE events SET content = (SELECT content FROM k WHERE k.row <> events.row LIMIT 1) WHERE content IS NOT NULL";
    connection.execute_batch(swap).unwrap();
    drop(connection);
    let state = open(dir.path(), Some(keys("a", &["notes", "facts"]))).unwrap();
    let scan = JournalScan {
        with_content: true,
        ..JournalScan::default()
    };
    let error = state.journal().scan_events(scan).await.unwrap_err().to_string();
    assert!(
        error.contains("another place") && !error.contains("zanzibar"),
        "{error}"
    );
}

#[tokio::test]
async fn stores_in_folders_are_sealed_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let plain = store(json!({"name": "notes", "type": "semantic", "scope": "global"}));
    let mut sealed = plain.clone();
    sealed.encryption = true;
    keep(
        &in_folder(dir.path(), None),
        &plain,
        vec![new("old", None, PLANTED)],
    )
    .await;
    assert!(!anywhere(dir.path(), PLANTED).is_empty());
    let refused = in_folder(dir.path(), None)
        .check_store(&sealed)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("`notes`") && refused.contains("encryption_key"),
        "{refused}"
    );

    let files = in_folder(dir.path(), Some(vault("a")));
    files.check_store(&sealed).unwrap();
    keep(
        &files,
        &sealed,
        vec![new("new", None, &format!("{PLANTED} again"))],
    )
    .await;
    assert_eq!(
        texts(&files, &sealed, StoreQuery::Text("zanzibar".to_owned()))
            .await
            .len(),
        2
    );
    assert_eq!(anywhere(dir.path(), PLANTED), [] as [PathBuf; 0]);
    for (vault, why) in [(None, "encryption_key"), (Some(vault("b")), "another key")] {
        let refused = in_folder(dir.path(), vault)
            .check_store(&sealed)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("`notes`") && refused.contains(why), "{refused}");
    }
    let refused = in_folder(dir.path(), Some(vault("a")))
        .check_store(&plain)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("write `encryption: true`"), "{refused}");

    // Another key: the line says with which it was sealed.
    let both = Arc::new(SealKeyring::new(key("b")).with_older(key("a")));
    let places = dir.path().join(".places.jsonl");
    let known = std::fs::read_to_string(&places).unwrap();
    // A folder that no key opens comes first, and stops nothing.
    std::fs::create_dir_all(dir.path().join("aaa")).unwrap();
    std::fs::write(dir.path().join("aaa/entries.jsonl"), "~imitated\n").unwrap();
    let first = r#"{"store":"aaa","scope":"","folder":"aaa"}"#;
    std::fs::write(&places, format!("{first}\n{known}")).unwrap();
    let (folders, report) = FolderScopeView::seal_all_anew(dir.path(), &both);
    assert_eq!(folders, 2);
    let [fault] = report.faults() else {
        panic!("{report:?}")
    };
    assert!(
        fault.value.ends_with("aaa") && fault.why.contains("line 1"),
        "{fault:?}"
    );
    std::fs::write(&places, known).unwrap();
    let files = in_folder(dir.path(), Some(vault("b")));
    files.check_store(&sealed).unwrap();
    assert_eq!(
        texts(&files, &sealed, StoreQuery::Text("zanzibar".to_owned()))
            .await
            .len(),
        2
    );
    // A line that somebody moved from another store does not open.
    let lines = std::fs::read_to_string(dir.path().join("notes/shared/entries.jsonl")).unwrap();
    let other = store(json!({"name": "other", "type": "semantic", "scope": "global", "encryption": true}));
    keep(&files, &other, vec![new("x", None, "x")]).await;
    std::fs::write(dir.path().join("other/shared/entries.jsonl"), lines).unwrap();
    let refused = in_folder(dir.path(), Some(vault("b")))
        .check_store(&other)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("another place"), "{refused}");
}
