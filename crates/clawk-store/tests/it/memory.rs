//! The contract of the `Memory` port. Every backend runs it; [`Backend`] is what a new one has to give.

use std::sync::Arc;

use clawk_kernel::ports::{Batch, Memory, MemoryError, MemorySearch, Scope, StoreQuery};
use clawk_kernel::time::{SystemClock, Timestamp};
use clawk_manifest::model::Store;
use clawk_memory::{QdrantMemory, QdrantOptions};
use clawk_proto::method::NewEntry;
use clawk_recall::compact::CompactionSummary;
use clawk_recall::entry::{ConversationFilter, EntryInsertion, EntryProvenance, SearchMethod, Vector};
use clawk_secrets::{EnvironmentSource, Secret};
use clawk_store::{Options, RestoreSelection, StateDir, WriteDurability};
use serde_json::{Value, json};

use super::sealed::{self, Encrypted};
use super::server::Server;

/// A backend under test, with what keeps it alive.
struct Backend {
    memory: Arc<dyn Memory>,
    _alive: Box<dyn std::any::Any>,
}

fn sqlite() -> Backend {
    let (state, dir) = opened();
    Backend {
        memory: state.memory(),
        _alive: Box::new((state, dir)),
    }
}

fn folders() -> Backend {
    let (files, dir) = sealed::files(None);
    Backend {
        memory: Arc::new(files),
        _alive: Box::new(dir),
    }
}

/// The same with every store encrypted.
fn encrypted() -> [Backend; 2] {
    let (state, dir) = sealed::state();
    let (files, folder) = sealed::files(Some(sealed::vault("a")));
    [
        Backend {
            memory: Arc::new(Encrypted(state.memory())),
            _alive: Box::new((state, dir)),
        },
        Backend {
            memory: Arc::new(Encrypted(Arc::new(files))),
            _alive: Box::new(folder),
        },
    ]
}

/// On one server: with the extension `vector`, and without.
fn postgres() -> [Backend; 3] {
    let server = std::rc::Rc::new(Server::start());
    [("with", true), ("without", false), ("encrypted", true)].map(|(schema, pgvector)| {
        let options = clawk_postgres::Options {
            password: Some(Secret::new("PG_PASSWORD", Server::PASSWORD)),
            tls: clawk_postgres::TlsMode::Disable,
            schema: schema.to_owned(),
            connect_timeout: std::time::Duration::from_secs(30),
            operation_timeout: std::time::Duration::from_secs(60),
            pgvector,
            ..clawk_postgres::Options::new(Secret::new("url", server.url()))
        };
        let database = clawk_postgres::PgDatabase::new(options, &EnvironmentSource::Process).unwrap();
        let memory = clawk_postgres::PgMemory::new(database, "tested");
        let memory: Arc<dyn Memory> = match schema {
            "encrypted" => Arc::new(Encrypted(Arc::new(memory.with_vault(Some(sealed::vault("a")))))),
            _ => Arc::new(memory),
        };
        Backend {
            memory,
            _alive: Box::new(server.clone()),
        }
    })
}

/// On Qdrant, by the local mode of its own client.
fn qdrant() -> (QdrantMemory, super::qdrant::Server) {
    let server = super::qdrant::Server::start();
    let options = QdrantOptions {
        url: server.url(),
        api_key: Some(Secret::new("key", super::qdrant::Server::KEY)),
        prefix: "clawk".to_owned(),
        connect_timeout: std::time::Duration::from_secs(30),
        operation_timeout: std::time::Duration::from_secs(60),
    };
    (
        QdrantMemory::new(&options, "tested", &EnvironmentSource::Process).unwrap(),
        server,
    )
}

/// Every back end, each empty.
fn backends() -> [Backend; 8] {
    let [with, without, hidden] = postgres();
    let [database, folder] = encrypted();
    let (memory, server) = qdrant();
    let qdrant = Backend {
        memory: Arc::new(memory),
        _alive: Box::new(server),
    };
    [
        sqlite(),
        folders(),
        database,
        folder,
        with,
        without,
        hidden,
        qdrant,
    ]
}

fn store(spec: Value) -> Store {
    let mut spec = spec;
    spec.as_object_mut().unwrap().entry("name").or_insert(json!("s"));
    serde_json::from_value(spec).unwrap()
}

/// The built-in table finds what is near, not only what is there.
fn by_words(mut spec: Value) -> Value {
    let members = spec.as_object_mut().unwrap();
    members.insert("search".to_owned(), json!({"strategy": "fts-only"}));
    spec
}

fn place(identity: &str, channel: &str) -> Scope {
    Scope {
        identity: identity.to_owned(),
        channel: channel.to_owned(),
    }
}

fn new(content: Value, key: Option<&str>) -> NewEntry {
    NewEntry {
        content,
        key: key.map(str::to_owned),
        metadata: None,
    }
}

const T0: Timestamp = Timestamp(1_700_000_000_000_000);

async fn keep(backend: &Backend, store: &Store, at: &Scope, texts: &[&str], from: i64) {
    for (n, text) in (from..).zip(texts) {
        let entries = vec![new(json!(text), None)];
        let ids = vec![format!("id-{}-{}-{n}", at.identity, at.channel)];
        backend
            .memory
            .store_unattributed(store, at, entries, ids, T0.plus_millis(n * 1000))
            .await
            .unwrap();
    }
}

async fn texts(backend: &Backend, store: &Store, at: &Scope, query: StoreQuery, limit: usize) -> Vec<String> {
    let entries = backend
        .memory
        .query_entries(store, at, query, limit)
        .await
        .unwrap();
    for entry in &entries {
        assert!(
            entry.score.is_none_or(|score| (0.0..=1.0).contains(&score)),
            "{entry:?}"
        );
    }
    entries
        .into_iter()
        .map(|entry| entry.content.as_str().unwrap().to_owned())
        .collect()
}

fn words(text: &str) -> StoreQuery {
    StoreQuery::Text(text.to_owned())
}

#[tokio::test]
async fn words_find_the_best_first() {
    for backend in backends() {
        let (store, at) = (store(by_words(json!({"type": "semantic"}))), place("a", ""));
        let notes = [
            "Q4 revenue projected at $2.1M based on current pipeline",
            "the pipeline of the water works was repaired",
            "Grüße from the müller family",
            "revenue of last year",
        ];
        keep(&backend, &store, &at, &notes, 0).await;
        let found = texts(&backend, &store, &at, words("revenue projections Q4"), 5).await;
        assert_eq!(found[0], notes[0]);
        assert_eq!(found.len(), 2);
        assert_eq!(
            texts(&backend, &store, &at, words("GRUSSE muller"), 5).await,
            [notes[2]]
        );
        assert_eq!(texts(&backend, &store, &at, words("revenue"), 1).await.len(), 1);
        assert!(
            texts(&backend, &store, &at, words("nothing like that"), 5)
                .await
                .is_empty()
        );
    }
}

#[tokio::test]
async fn a_query_is_never_syntax() {
    for backend in backends() {
        let (store, at) = (store(by_words(json!({"type": "semantic"}))), place("a", ""));
        keep(&backend, &store, &at, &["plain words AND more", "other"], 0).await;
        for query in [
            "\"",
            "a OR",
            "NOT",
            "words*",
            "text:words",
            "(",
            "NEAR(a b)",
            "'; DROP TABLE memory;--",
            "",
            "\0",
            "part : part1",
            "🦀",
        ] {
            backend
                .memory
                .query_entries(&store, &at, words(query), 5)
                .await
                .unwrap_or_else(|e| panic!("{query:?}: {e}"));
        }
        assert_eq!(
            texts(&backend, &store, &at, words("words\" OR \"x"), 5).await,
            ["plain words AND more"]
        );
        assert!(
            texts(&backend, &store, &at, words("part1"), 5).await.is_empty(),
            "the part's own mark is not text"
        );
    }
}

#[tokio::test]
async fn a_name_is_never_syntax() {
    let name = "x'; DROP TABLE memory;--\"";
    for backend in backends() {
        let other = store(json!({"type": "key-value"}));
        let store = store(json!({"type": "key-value", "name": name}));
        let at = place("a' OR '1'='1", "c\"; DELETE FROM memory;--");
        let key = "k' OR ''='";
        let entry = |text: &str| vec![new(json!(text), Some(key))];
        let ids = |id: &str| vec![id.to_owned()];
        backend
            .memory
            .store_unattributed(&store, &at, entry("one"), ids("i'1"), Timestamp(1))
            .await
            .unwrap();
        backend
            .memory
            .store_unattributed(&other, &at, entry("other"), ids("i'2"), Timestamp(1))
            .await
            .unwrap();
        let by_key = |key: &str| StoreQuery::Key(key.to_owned());
        assert_eq!(texts(&backend, &store, &at, by_key(key), 9).await, ["one"]);
        assert!(
            texts(&backend, &store, &at, by_key("' OR '1'='1"), 9)
                .await
                .is_empty()
        );
        assert_eq!(texts(&backend, &other, &at, by_key(key), 9).await, ["other"]);
    }
}

#[tokio::test]
async fn the_last_writer_of_a_key_wins() {
    for backend in backends() {
        let (store, at) = (store(json!({"type": "key-value"})), place("a", ""));
        let put = |value: Value, id: &str, ms: i64| {
            let (entries, ids) = (vec![new(value, Some("colour"))], vec![id.to_owned()]);
            backend
                .memory
                .store_unattributed(&store, &at, entries, ids, T0.plus_millis(ms))
        };
        assert_eq!(put(json!("red"), "1", 0).await.unwrap(), ["1"]);
        put(json!({"name": "blue"}), "2", 1).await.unwrap();
        let found = backend
            .memory
            .query_entries(&store, &at, StoreQuery::Key("colour".to_owned()), 10)
            .await
            .unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            (&found[0].content, found[0].key.as_deref()),
            (&json!({"name": "blue"}), Some("colour"))
        );
        assert!(
            texts(&backend, &store, &at, words("red"), 5).await.is_empty(),
            "the old value is gone from the index, too"
        );
        let refused = backend
            .memory
            .store_unattributed(&store, &at, vec![new(json!(1), None)], vec!["3".to_owned()], T0)
            .await;
        assert!(matches!(refused, Err(MemoryError::Entry { index: 0, .. })));
    }
}

#[tokio::test]
async fn a_key_finds_by_id_where_there_are_no_keys() {
    for backend in backends() {
        let (store, at) = (store(json!({"type": "conversation"})), place("a", ""));
        keep(&backend, &store, &at, &["one", "two"], 0).await;
        assert_eq!(
            texts(&backend, &store, &at, StoreQuery::Key("id-a--1".to_owned()), 5).await,
            ["two"]
        );
    }
}

#[tokio::test]
async fn time_ranges_are_chronological_and_inclusive() {
    for backend in backends() {
        let (store, at) = (store(json!({"type": "conversation"})), place("a", ""));
        for n in [3, 1, 2, 0, 4] {
            keep(
                &backend,
                &store,
                &at,
                &[["a", "b", "c", "d", "e"][usize::try_from(n).unwrap()]],
                n,
            )
            .await;
        }
        let range = StoreQuery::Between(T0.plus_millis(1000), T0.plus_millis(3000));
        assert_eq!(
            texts(&backend, &store, &at, range.clone(), 10).await,
            ["b", "c", "d"]
        );
        assert_eq!(texts(&backend, &store, &at, range, 2).await, ["b", "c"]);
    }
}

#[tokio::test]
async fn scopes_do_not_see_each_other() {
    for backend in backends() {
        let places = [place("a", "x"), place("a", "y"), place("b", "x")];
        for (scope, seen) in [("global", 3), ("per-identity", 2), ("per-channel", 1)] {
            let store = store(json!({"type": "semantic", "scope": scope, "name": scope}));
            for at in &places {
                keep(&backend, &store, at, &["shared word"], 0).await;
            }
            let found = texts(&backend, &store, &places[0], words("word"), 10).await;
            assert_eq!(found.len(), seen, "{scope}");
        }
    }
}

#[tokio::test]
async fn retention_removes_the_oldest() {
    for backend in backends() {
        let at = place("a", "");
        let few = store(by_words(
            json!({"type": "conversation", "retention": {"max_entries": 3}}),
        ));
        keep(&backend, &few, &at, &["a", "b", "c", "d", "e"], 0).await;
        let all = StoreQuery::Between(T0, T0.plus_millis(1_000_000));
        assert_eq!(texts(&backend, &few, &at, all.clone(), 10).await, ["c", "d", "e"]);
        assert!(texts(&backend, &few, &at, words("a"), 10).await.is_empty());
        let young = store(json!({"type": "conversation", "name": "young", "retention": {"max_age": "10s"}}));
        keep(&backend, &young, &at, &["old"], 0).await;
        keep(&backend, &young, &at, &["new"], 20).await;
        assert_eq!(texts(&backend, &young, &at, all, 10).await, ["new"]);
        let counts = backend
            .memory
            .compact_store(&young, &at, T0.plus_millis(60_000), None)
            .await
            .unwrap();
        assert_eq!(counts, (1, 0));
    }
}

#[tokio::test]
async fn compaction_keeps_what_its_strategy_says() {
    for backend in backends() {
        let at = place("a", "");
        let all = StoreQuery::Between(T0, T0.plus_millis(10_000_000));
        let lines: Vec<String> = (0..450).map(|n| format!("line {n}")).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        for (strategy, after) in [("truncate", 225), ("sliding-window", 225), ("summarize", 225)] {
            let store = store(
                json!({"type": "conversation", "name": strategy, "compaction": {"strategy": strategy}}),
            );
            // What compaction will set aside, and the rest.
            for (from, lines) in [(0, &lines[..226]), (226, &lines[226..])] {
                let ids = (from..from + lines.len()).map(|n| format!("id-{n}")).collect();
                let entries = lines.iter().map(|line| new(json!(line), None)).collect();
                let at_ms = T0.plus_millis(i64::try_from(from).unwrap());
                backend
                    .memory
                    .store_unattributed(&store, &at, entries, ids, at_ms)
                    .await
                    .unwrap();
            }
            assert_eq!(
                backend.memory.compact_store(&store, &at, T0, None).await.unwrap(),
                (450, after),
                "{strategy}"
            );
            let left = texts(&backend, &store, &at, all.clone(), 1000).await;
            assert_eq!(left.len(), usize::try_from(after).unwrap());
            assert_eq!(left.last().unwrap(), "line 449");
            if strategy == "summarize" {
                assert!(left[0].contains("line 0\nline 1\n"), "{}", left[0]);
                assert_eq!(left[1], "line 226");
            }
        }
        let nothing = backend
            .memory
            .compact_store(
                &store(json!({"type": "semantic", "name": "empty"})),
                &at,
                T0,
                None,
            )
            .await;
        assert_eq!(nothing.unwrap(), (0, 0));
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_at_start() {
    let backend = sqlite();
    for (spec, word) in [
        (json!({"type": "semantic", "backend": "qdrant"}), "qdrant"),
        (json!({"type": "key-value", "encryption": true}), "encryption"),
    ] {
        let error = backend.memory.check_store(&store(spec)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    backend
        .memory
        .check_store(&store(json!({"type": "semantic", "backend": "sqlite-vec"})))
        .unwrap();
}

fn marked(id: &str, text: &str, whose: &str) -> EntryInsertion {
    EntryInsertion {
        id: id.to_owned(),
        entry: new(json!(text), None),
        mark: EntryProvenance {
            origin: "user".to_owned(),
            whose: whose.to_owned(),
            ..EntryProvenance::default()
        },
    }
}

fn asked(whose: ConversationFilter, query: StoreQuery, limit: usize) -> MemorySearch {
    MemorySearch {
        whose,
        query,
        vector: None,
        limit,
    }
}

fn opened() -> (StateDir, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: WriteDurability::Relaxed,
        ..Options::default()
    };
    (StateDir::open(dir.path(), options).unwrap(), dir)
}

async fn ids(
    memory: &Arc<dyn Memory>,
    store: &Store,
    whose: ConversationFilter,
    text: &str,
) -> (Vec<String>, Option<SearchMethod>) {
    let found = memory
        .search_entries(store, &place("a", ""), asked(whose, words(text), 5))
        .await
        .unwrap();
    assert!(
        found
            .hits
            .iter()
            .all(|hit| hit.entry.score.is_some_and(|score| (0.0..=1.0).contains(&score)))
    );
    (
        found.hits.into_iter().map(|hit| hit.entry.id).collect(),
        found.used,
    )
}

#[tokio::test]
async fn a_conversations_entries_are_found_by_it_and_by_nobody_else() {
    for backend in backends() {
        let memory = &backend.memory;
        for strategy in ["fts-only", "hybrid", "vector-only"] {
            let store =
                store(json!({"type": "semantic", "name": strategy, "search": {"strategy": strategy}}));
            let mine = vec![
                marked("1", "Anna owns a red bicycle", "tg/anna"),
                marked("2", "a red bicycle is in the shop", ""),
            ];
            let theirs: Vec<EntryInsertion> = (0..200)
                .map(|n| marked(&format!("b{n}"), "Ben owns a red bicycle", "tg/ben"))
                .collect();
            for entries in [mine, theirs] {
                memory
                    .store_entries(&store, &place("a", ""), entries, T0, Batch::default())
                    .await
                    .unwrap();
            }
            let of = |who: &str| ConversationFilter::Of(vec![who.to_owned()]);
            let (mut found, _) = ids(memory, &store, of("tg/anna"), "red bicycle").await;
            found.sort();
            assert_eq!(found, ["1", "2"], "{strategy}");
            assert_eq!(
                ids(memory, &store, of("tg/carl"), "red bicycle").await.0,
                ["2"],
                "{strategy}"
            );
            assert_eq!(
                ids(memory, &store, ConversationFilter::All, "red bicycle")
                    .await
                    .0
                    .len(),
                5,
                "{strategy}"
            );
            for query in [StoreQuery::Key("1".to_owned()), StoreQuery::Between(T0, T0)] {
                let found = memory
                    .search_entries(&store, &place("a", ""), asked(of("tg/carl"), query, 9))
                    .await
                    .unwrap();
                assert!(found.hits.iter().all(|hit| hit.entry.id == "2"), "{found:?}");
            }
        }
    }
}

#[tokio::test]
async fn marks_are_kept_and_an_answer_says_how_it_was_searched() {
    for backend in backends() {
        let memory = &backend.memory;
        let words_only = store(json!({"type": "semantic", "name": "w", "search": {"strategy": "fts-only"}}));
        let both = store(json!({"type": "semantic", "name": "b"}));
        let embedding = json!({"provider_ref": "p", "model": "m", "dimensions": 3});
        let paid = store(json!({"type": "semantic", "name": "p", "embedding": embedding}));
        for store in [&words_only, &both, &paid] {
            let mut entry = marked("1", "My physician is called Dr Weber", "");
            entry.mark.origin = "web https://x.test/".to_owned();
            entry.mark.untrusted = true;
            let entries = vec![entry, marked("2", "the bicycle is red", "")];
            memory
                .store_entries(store, &place("a", ""), entries, T0, Batch::default())
                .await
                .unwrap();
        }
        assert_eq!(
            ids(memory, &words_only, ConversationFilter::All, "the doctor's name").await,
            (vec![], Some(SearchMethod::FullText))
        );
        let (found, used) = ids(memory, &both, ConversationFilter::All, "the doctor's name").await;
        assert_eq!((found[0].as_str(), used), ("1", Some(SearchMethod::Static)));
        // A provider's vectors come later; until then, and while none is given for the question, words are what there is.
        assert_eq!(
            ids(memory, &paid, ConversationFilter::All, "doctor").await,
            (vec![], Some(SearchMethod::FullText))
        );
        let lacking = memory.unembedded_entries(&paid, "p/m", 10).await.unwrap();
        assert_eq!(lacking.len(), 2);
        let vectors = [vec![1.0, 0.0, 0.0], vec![0.0, 1.0, 0.0]];
        let named: Vec<_> = lacking
            .into_iter()
            .rev()
            .map(|one| one.handle)
            .zip(vectors)
            .collect();
        memory.add_vectors(&paid, "p/m", named).await.unwrap();
        assert!(
            memory
                .unembedded_entries(&paid, "p/m", 10)
                .await
                .unwrap()
                .is_empty()
        );
        let vector = Vector {
            model: "p/m".to_owned(),
            values: vec![0.9, 0.1, 0.0],
        };
        let found = memory
            .search_entries(
                &paid,
                &place("a", ""),
                MemorySearch {
                    vector: Some(vector),
                    ..asked(ConversationFilter::All, words("doctor"), 1)
                },
            )
            .await
            .unwrap();
        assert_eq!(found.used, Some(SearchMethod::Hybrid));
        assert_eq!(
            (found.hits[0].mark.origin.as_str(), found.hits[0].mark.untrusted),
            ("web https://x.test/", true)
        );
    }
}

#[tokio::test]
async fn checkpoints_keep_the_newest_of_each_task_for_their_time() {
    for backend in backends() {
        let memory = &backend.memory;
        let store = store(json!({"type": "checkpoint", "checkpoint": {"max_snapshots": 2, "ttl": "1h"}}));
        let keep = async |task: &str, n: i64| {
            let mut entry = marked(&format!("{task}{n}"), &format!("step {n}"), "");
            entry.entry.key = Some(task.to_owned());
            memory
                .store_entries(
                    &store,
                    &place("a", ""),
                    vec![entry],
                    T0.plus_millis(n * 60_000),
                    Batch::default(),
                )
                .await
                .unwrap();
        };
        for n in 0..4 {
            keep("t", n).await;
        }
        keep("u", 0).await;
        let of = async |task: &str| {
            let found = memory
                .search_entries(
                    &store,
                    &place("a", ""),
                    asked(ConversationFilter::All, StoreQuery::Key(task.to_owned()), 9),
                )
                .await
                .unwrap();
            found.hits.into_iter().map(|hit| hit.entry.id).collect::<Vec<_>>()
        };
        assert_eq!(of("t").await, ["t3", "t2"]);
        assert_eq!(
            memory
                .apply_retention(&store, T0.plus_millis(62 * 60_000))
                .await
                .unwrap(),
            1
        );
        assert_eq!((of("t").await.len(), of("u").await.len()), (2, 0));
    }
}

#[tokio::test]
async fn a_workspaces_isolation_is_its_scope() {
    let (state, _dir) = opened();
    let memory = state.memory();
    let places = [place("a", "x"), place("a", "y"), place("b", "x")];
    for (isolation, seen) in [("shared", 1), ("per-identity", 2), ("per-channel", 3)] {
        let store = store(json!({"type": "workspace", "isolation": isolation, "name": isolation}));
        let mut all = std::collections::BTreeSet::new();
        for (n, at) in places.iter().enumerate() {
            let mut file = marked(&n.to_string(), &format!("text {n}"), "");
            file.entry.key = Some("notes/a.md".to_owned());
            memory
                .store_entries(&store, at, vec![file], T0, Batch::default())
                .await
                .unwrap();
        }
        for at in &places {
            let query = StoreQuery::Key("notes/a.md".to_owned());
            let found = memory
                .search_entries(&store, at, asked(ConversationFilter::All, query, 9))
                .await
                .unwrap();
            assert_eq!(found.hits.len(), 1, "the last writer of a path wins");
            all.insert(found.hits[0].entry.id.clone());
        }
        assert_eq!(all.len(), seen, "{isolation}");
    }
}

#[tokio::test]
async fn a_store_stays_within_its_size() {
    for backend in backends() {
        let memory = &backend.memory;
        let store = store(json!({"type": "workspace", "max_size_mb": 1}));
        let file = |name: &str, bytes: usize| {
            let mut entry = marked(&format!("{name}-{bytes}"), &"x".repeat(bytes), "");
            entry.entry.key = Some(name.to_owned());
            entry
        };
        let at = place("a", "");
        memory
            .store_entries(&store, &at, vec![file("a", 600_000)], T0, Batch::default())
            .await
            .unwrap();
        let refused = memory
            .store_entries(&store, &at, vec![file("b", 600_000)], T0, Batch::default())
            .await;
        assert!(
            matches!(&refused, Err(MemoryError::Entry { reason, .. }) if reason.contains("max_size_mb")),
            "{refused:?}"
        );
        memory
            .store_entries(&store, &at, vec![file("a", 10)], T0, Batch::default())
            .await
            .unwrap();
        memory
            .store_entries(&store, &at, vec![file("b", 600_000)], T0, Batch::default())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn what_compaction_sets_aside_comes_back_and_what_is_forgotten_does_not() {
    for strategy in ["truncate", "sliding-window", "summarize"] {
        let (state, dir) = opened();
        let memory: Arc<dyn Memory> = state.memory();
        let store = store(json!({"type": "conversation", "compaction": {"strategy": strategy}}));
        let entries = (0..10)
            .map(|n| marked(&format!("e{n}"), &format!("secret{n} of the garden"), ""))
            .collect();
        memory
            .store_entries(&store, &place("a", ""), entries, T0, Batch::default())
            .await
            .unwrap();
        let old = memory
            .compaction_candidates(&store, &place("a", ""))
            .await
            .unwrap();
        let of: Vec<String> = old.iter().map(|hit| hit.entry.id.clone()).collect();
        let summary = CompactionSummary {
            of,
            text: "they spoke of a garden".to_owned(),
        };
        let counts = memory
            .compact_store(&store, &place("a", ""), T0, Some(summary))
            .await
            .unwrap();
        assert_eq!(counts, (10, 5), "{strategy}");
        let (found, _) = ids(&memory, &store, ConversationFilter::All, "spoke").await;
        assert_eq!(
            found.contains(&"summary-e5".to_owned()),
            strategy == "summarize",
            "{found:?}"
        );
        // Forgetting one that was set aside takes the summary that was made of it as well.
        let reader = clawk_store::StateDirReader::open(dir.path()).unwrap();
        let parts = reader.memory_parts(None).unwrap();
        let gone = reader.remembered_as(&parts, "e2").unwrap();
        assert_eq!(gone.len(), 1);
        state
            .forget(&gone, "test", "me", &SystemClock::default())
            .await
            .unwrap();
        assert!(
            ids(&memory, &store, ConversationFilter::All, "secret2")
                .await
                .0
                .iter()
                .all(|id| id != "e2")
        );
        assert!(
            !ids(&memory, &store, ConversationFilter::All, "spoke")
                .await
                .0
                .contains(&"summary-e5".to_owned())
        );
        state
            .restore(&parts, RestoreSelection::All, "me", &SystemClock::default())
            .await
            .unwrap();
        let (found, _) = ids(&memory, &store, ConversationFilter::All, "secret0").await;
        assert_eq!(found[0], "e0", "{strategy}");
        assert_eq!(reader.memory_parts(None).unwrap()[0].entries, 9, "{strategy}");
        assert!(reader.remembered_as(&parts, "e2").unwrap().is_empty());
        assert!(reader.set_aside(&parts[0], 100).unwrap().is_empty());
    }
}

#[tokio::test]
async fn compaction_comes_by_itself_before_retention_would_delete() {
    for strategy in ["truncate", "summarize"] {
        let (state, dir) = opened();
        let memory: Arc<dyn Memory> = state.memory();
        let spec = json!({"type": "conversation", "retention": {"max_entries": 20}, "compaction": {"strategy": strategy}});
        let store = store(spec);
        for n in 0..40 {
            let entry = marked(&format!("e{n}"), &format!("line {n}"), "");
            memory
                .store_entries(
                    &store,
                    &place("a", ""),
                    vec![entry],
                    T0.plus_millis(n),
                    Batch::default(),
                )
                .await
                .unwrap();
        }
        let reader = clawk_store::StateDirReader::open(dir.path()).unwrap();
        let parts = reader.memory_parts(None).unwrap();
        assert!(parts[0].entries <= 20);
        state
            .restore(&parts, RestoreSelection::All, "me", &SystemClock::default())
            .await
            .unwrap();
        assert_eq!(
            reader.memory_parts(None).unwrap()[0].entries,
            40,
            "{strategy}: nothing was lost"
        );
    }
}

#[tokio::test]
async fn a_batch_is_kept_whole_or_not_at_all() {
    for backend in backends() {
        let (store, at) = (store(json!({"type": "key-value"})), place("a", ""));
        let entries = vec![
            new(json!("good"), Some("k")),
            new(json!("x".repeat(2 << 20)), Some("l")),
        ];
        let refused = backend
            .memory
            .store_unattributed(&store, &at, entries, vec!["1".into(), "2".into()], T0)
            .await;
        assert!(
            matches!(refused, Err(MemoryError::Entry { index: 1, .. })),
            "{refused:?}"
        );
        assert!(texts(&backend, &store, &at, words("good"), 5).await.is_empty());
    }
}

#[tokio::test]
async fn an_entry_that_is_there_is_left_as_it_is_and_takes_nothing_from_a_batch() {
    for kind in ["semantic", "key-value", "conversation"] {
        for backend in backends() {
            let store = store(json!({"type": kind}));
            let at = place("a", "");
            let keep = async |ids: [&str; 2], texts: [&str; 2]| {
                let entries = vec![
                    new(json!(texts[0]), Some("one")),
                    new(json!(texts[1]), Some("two")),
                ];
                let ids = ids.map(str::to_owned).to_vec();
                backend
                    .memory
                    .store_unattributed(&store, &at, entries, ids, T0)
                    .await
                    .unwrap()
            };
            keep(["i-0", "i-1"], ["first bean", "second bean"]).await;
            // The same request again, and one of which a crash had left a part.
            assert_eq!(
                keep(["i-0", "i-1"], ["first bean", "second bean"]).await,
                ["i-0", "i-1"]
            );
            let found = backend
                .memory
                .query_entries(&store, &at, words("bean"), 10)
                .await
                .unwrap();
            assert_eq!(found.len(), 2, "{kind}: {found:?}");
            // Another text under an id that is there changes nothing.
            keep(["i-0", "i-1"], ["first bean of another", "second bean"]).await;
            let mut left = texts(&backend, &store, &at, words("bean"), 10).await;
            left.sort();
            assert_eq!(left, ["first bean", "second bean"], "{kind}");
            let (before, after) = backend.memory.compact_store(&store, &at, T0, None).await.unwrap();
            assert_eq!(
                (before, after),
                (2, 2),
                "{kind}: the count is that of the entries"
            );
        }
    }
}

#[tokio::test]
async fn merge_leaves_the_newest_of_entries_that_say_the_same() {
    for backend in backends() {
        let merging =
            store(json!({"type": "semantic", "name": "p", "lifecycle": {"consolidation": "merge"}}));
        let at = place("a", "");
        let said = [
            "The lamp is green.",
            "The lamp is red.",
            "the LAMP is green",
            "The lamp is green!",
        ];
        keep(&backend, &merging, &at, &said, 0).await;
        let all = StoreQuery::Between(T0, T0.plus_millis(60_000));
        // Nothing is merged in the middle of the work.
        assert_eq!(texts(&backend, &merging, &at, all.clone(), 9).await.len(), 4);
        for _ in 0..2 {
            let gone = backend
                .memory
                .apply_retention(&merging, T0.plus_millis(60_000))
                .await
                .unwrap();
            assert_eq!(gone, 0, "what is merged is not deleted");
        }
        let left = texts(&backend, &merging, &at, all.clone(), 9).await;
        assert_eq!(left, ["The lamp is red.", "The lamp is green!"]);
        // What is said again later is merged again.
        keep(&backend, &merging, &at, &["the lamp is red"], 10).await;
        backend
            .memory
            .apply_retention(&merging, T0.plus_millis(60_000))
            .await
            .unwrap();
        let left = texts(&backend, &merging, &at, all, 9).await;
        assert_eq!(left, ["The lamp is green!", "the lamp is red"]);
    }
}

/// A merged entry is set aside, not gone.
#[tokio::test]
async fn a_merged_entry_comes_back_by_its_id() {
    let (state, _dir) = opened();
    let memory = state.memory();
    let merging =
        store(json!({"type": "semantic", "lifecycle": {"consolidation": "merge"}, "scope": "global"}));
    for id in ["one", "two"] {
        let entries = vec![marked(id, "The lamp is green.", "")];
        memory
            .store_entries(&merging, &place("", ""), entries, T0, Batch::default())
            .await
            .unwrap();
    }
    memory.apply_retention(&merging, T0).await.unwrap();
    let parts = clawk_store::StateDirReader::open(state.path())
        .unwrap()
        .memory_parts(None)
        .unwrap();
    assert_eq!(parts[0].entries, 1);
    let back = state
        .restore(
            &parts,
            RestoreSelection::Id("one".to_owned()),
            "me",
            &SystemClock::default(),
        )
        .await
        .unwrap();
    assert_eq!(
        (
            back,
            memory.count_entries(&merging, &place("", "")).await.unwrap()
        ),
        (1, 2)
    );
}

/// On Qdrant: what compaction set aside comes back, and what is forgotten does not.
#[tokio::test]
async fn what_compaction_sets_aside_on_qdrant_comes_back_and_what_is_forgotten_does_not() {
    for strategy in ["truncate", "sliding-window", "summarize"] {
        let (memory, _server) = qdrant();
        let store = store(json!({"type": "conversation", "compaction": {"strategy": strategy}}));
        let (at, all) = (place("a", ""), StoreQuery::Between(T0, T0.plus_millis(1_000_000)));
        let entries = (0..10)
            .map(|n| marked(&format!("e{n}"), &format!("secret{n} of the garden"), ""))
            .collect();
        memory
            .store_entries(&store, &at, entries, T0, Batch::default())
            .await
            .unwrap();
        let old = memory.compaction_candidates(&store, &at).await.unwrap();
        let of: Vec<String> = old.iter().map(|hit| hit.entry.id.clone()).collect();
        let text = "they spoke of a garden".to_owned();
        let counts = memory
            .compact_store(&store, &at, T0, Some(CompactionSummary { of, text }))
            .await
            .unwrap();
        assert_eq!(counts, (10, 5), "{strategy}");
        // Another's entry is not there for who asks.
        let annas = vec![marked("x", "the bicycle", "tg/anna")];
        memory
            .store_entries(&store, &at, annas, T0, Batch::default())
            .await
            .unwrap();
        let ben = ConversationFilter::Of(vec!["tg/ben".to_owned()]);
        assert!(
            memory
                .remove(&store, &at, ben, "x".to_owned())
                .await
                .unwrap()
                .is_none()
        );
        let anna = ConversationFilter::Of(vec!["tg/anna".to_owned()]);
        assert!(
            memory
                .remove(&store, &at, anna, "x".to_owned())
                .await
                .unwrap()
                .is_some()
        );
        let gone = memory
            .remove(&store, &at, ConversationFilter::All, "e2".to_owned())
            .await
            .unwrap();
        assert_eq!(gone.unwrap().entry.id, "e2", "{strategy}");
        memory.restore_entries(&store, &at, None).await.unwrap();
        let back = memory.query_entries(&store, &at, all, 100).await.unwrap();
        let ids: Vec<&str> = back.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(
            ids,
            ["e0", "e1", "e3", "e4", "e5", "e6", "e7", "e8", "e9"],
            "{strategy}"
        );
    }
}

/// Vectors of a provider go with the entry that they are of, and a wrong key is an error that does not show it.
#[tokio::test]
async fn vectors_on_qdrant_go_with_their_entry_and_a_wrong_key_is_refused() {
    let (memory, server) = qdrant();
    let embedding = json!({"provider_ref": "p", "model": "m", "dimensions": 3});
    let store = store(json!({"type": "semantic", "embedding": embedding}));
    let at = place("a", "");
    let entries = vec![marked("1", "the physician", ""), marked("2", "the bicycle", "")];
    memory
        .store_entries(&store, &at, entries, T0, Batch::default())
        .await
        .unwrap();
    let lacking = memory.unembedded_entries(&store, "p/m", 9).await.unwrap();
    let named = lacking
        .into_iter()
        .map(|one| (one.handle, vec![1.0, 0.0, 0.0]))
        .collect();
    memory.add_vectors(&store, "p/m", named).await.unwrap();
    let near = async |limit| {
        let vector = Some(Vector {
            model: "p/m".to_owned(),
            values: vec![1.0, 0.0, 0.0],
        });
        let ask = MemorySearch {
            vector,
            ..asked(ConversationFilter::All, words("xyz"), limit)
        };
        let found = memory.search_entries(&store, &at, ask).await.unwrap();
        found.hits.into_iter().map(|hit| hit.entry.id).collect::<Vec<_>>()
    };
    assert_eq!(near(9).await.len(), 2);
    memory
        .remove(&store, &at, ConversationFilter::All, "1".to_owned())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(near(9).await, ["2"]);
    let options = QdrantOptions {
        url: server.url(),
        api_key: Some(Secret::new("key", "CANARY-wrong")),
        prefix: "clawk".to_owned(),
        connect_timeout: std::time::Duration::from_secs(30),
        operation_timeout: std::time::Duration::from_secs(60),
    };
    let wrong = QdrantMemory::new(&options, "tested", &EnvironmentSource::Process).unwrap();
    let refused = wrong.count_entries(&store, &at).await.unwrap_err().to_string();
    assert!(
        refused.contains("401") && !refused.contains("CANARY"),
        "{refused}"
    );
}

/// Where all entries are of one store, a search looks at none of them to learn whose it is.
#[tokio::test]
async fn a_store_that_is_alone_answers_as_beside_another_and_never_with_entries_of_others() {
    let (state, dir) = opened();
    let own = store(json!({"type": "semantic", "name": "own", "search": {"strategy": "fts-only"}}));
    let other = store(json!({"type": "semantic", "name": "other", "search": {"strategy": "fts-only"}}));
    let keep = async |state: &StateDir, store: &Store, entries: Vec<EntryInsertion>| {
        let memory = state.memory();
        let here = place("a", "");
        let kept = memory.store_entries(store, &here, entries, T0, Batch::default());
        kept.await.unwrap();
    };
    let found = async |state: &StateDir| -> Vec<(String, Option<f64>)> {
        let (memory, here) = (state.memory(), place("a", ""));
        let ask = asked(ConversationFilter::All, words("the red bicycle of Anna"), 50);
        let found = memory.search_entries(&own, &here, ask).await.unwrap();
        let hits = found.hits.into_iter();
        hits.map(|hit| (hit.entry.id, hit.entry.score)).collect()
    };
    let texts = ["Anna owns a red bicycle", "Ben owns a bicycle", "a red door"];
    let entries = texts.iter().cycle().take(30).zip(0..);
    let entries = entries
        .map(|(text, n)| marked(&format!("own{n}"), text, ""))
        .collect();
    keep(&state, &own, entries).await;
    let alone = found(&state).await;
    assert_eq!(alone.len(), 30);
    keep(
        &state,
        &other,
        vec![marked("theirs", "Anna owns a red bicycle", "")],
    )
    .await;
    assert_eq!(found(&state).await, alone);
    // A count that is wrong shows nobody's entries to others.
    state.close();
    crate::forge(
        dir.path(),
        "UPDATE memory_parts SET entries = 0 WHERE store = 'other'",
    );
    let state = StateDir::open(dir.path(), Options::default()).unwrap();
    let ids = |found: Vec<(String, Option<f64>)>| found.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(found(&state).await), ids(alone));
    state.close();
}
