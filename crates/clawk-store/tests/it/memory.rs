//! The contract of the `Memory` port. Every backend runs it; [`Backend`] is what a new one has to give.

use std::sync::Arc;

use clawk_kernel::ports::{Memory, MemoryError, Place, StoreQuery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_proto::method::NewEntry;
use clawk_store::{Durability, Options, StateDir};
use serde_json::{Value, json};

/// A backend under test, with what keeps it alive.
struct Backend {
    memory: Arc<dyn Memory>,
    _alive: Box<dyn std::any::Any>,
}

fn sqlite() -> Backend {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        durability: Durability::Relaxed,
        ..Options::default()
    };
    let state = StateDir::open(dir.path(), options).unwrap();
    Backend {
        memory: state.memory(),
        _alive: Box::new((state, dir)),
    }
}

fn store(spec: Value) -> Store {
    let mut spec = spec;
    spec.as_object_mut().unwrap().entry("name").or_insert(json!("s"));
    serde_json::from_value(spec).unwrap()
}

fn place(identity: &str, channel: &str) -> Place {
    Place {
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

async fn keep(backend: &Backend, store: &Store, at: &Place, texts: &[&str], from: i64) {
    for (n, text) in (from..).zip(texts) {
        let entries = vec![new(json!(text), None)];
        let ids = vec![format!("id-{}-{}-{n}", at.identity, at.channel)];
        backend
            .memory
            .store(store, at, entries, ids, T0.plus_millis(n * 1000))
            .await
            .unwrap();
    }
}

async fn texts(backend: &Backend, store: &Store, at: &Place, query: StoreQuery, limit: usize) -> Vec<String> {
    let entries = backend.memory.query(store, at, query, limit).await.unwrap();
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
    let (backend, store, at) = (sqlite(), store(json!({"type": "semantic"})), place("a", ""));
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

#[tokio::test]
async fn a_query_is_never_syntax() {
    let (backend, store, at) = (sqlite(), store(json!({"type": "semantic"})), place("a", ""));
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
            .query(&store, &at, words(query), 5)
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

#[tokio::test]
async fn the_last_writer_of_a_key_wins() {
    let (backend, store, at) = (sqlite(), store(json!({"type": "key-value"})), place("a", ""));
    let put = |value: Value, id: &str, ms: i64| {
        let (entries, ids) = (vec![new(value, Some("colour"))], vec![id.to_owned()]);
        backend
            .memory
            .store(&store, &at, entries, ids, T0.plus_millis(ms))
    };
    assert_eq!(put(json!("red"), "1", 0).await.unwrap(), ["1"]);
    put(json!({"name": "blue"}), "2", 1).await.unwrap();
    let found = backend
        .memory
        .query(&store, &at, StoreQuery::Key("colour".to_owned()), 10)
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
        .store(&store, &at, vec![new(json!(1), None)], vec!["3".to_owned()], T0)
        .await;
    assert!(matches!(refused, Err(MemoryError::Entry { index: 0, .. })));
}

#[tokio::test]
async fn a_key_finds_by_id_where_there_are_no_keys() {
    let (backend, store, at) = (sqlite(), store(json!({"type": "conversation"})), place("a", ""));
    keep(&backend, &store, &at, &["one", "two"], 0).await;
    assert_eq!(
        texts(&backend, &store, &at, StoreQuery::Key("id-a--1".to_owned()), 5).await,
        ["two"]
    );
}

#[tokio::test]
async fn time_ranges_are_chronological_and_inclusive() {
    let (backend, store, at) = (sqlite(), store(json!({"type": "conversation"})), place("a", ""));
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

#[tokio::test]
async fn scopes_do_not_see_each_other() {
    let backend = sqlite();
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

#[tokio::test]
async fn retention_removes_the_oldest() {
    let backend = sqlite();
    let at = place("a", "");
    let few = store(json!({"type": "conversation", "retention": {"max_entries": 3}}));
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
        .compact(&young, &at, T0.plus_millis(60_000))
        .await
        .unwrap();
    assert_eq!(counts, (1, 0));
}

#[tokio::test]
async fn compaction_keeps_what_its_strategy_says() {
    let backend = sqlite();
    let at = place("a", "");
    let all = StoreQuery::Between(T0, T0.plus_millis(10_000_000));
    let lines: Vec<String> = (0..450).map(|n| format!("line {n}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    for (strategy, after) in [("truncate", 450), ("sliding-window", 200), ("summarize", 200)] {
        let store =
            store(json!({"type": "conversation", "name": strategy, "compaction": {"strategy": strategy}}));
        keep(&backend, &store, &at, &lines, 0).await;
        assert_eq!(
            backend.memory.compact(&store, &at, T0).await.unwrap(),
            (450, after),
            "{strategy}"
        );
        let left = texts(&backend, &store, &at, all.clone(), 1000).await;
        assert_eq!(left.len(), usize::try_from(after).unwrap());
        assert_eq!(left.last().unwrap(), "line 449");
        if strategy == "summarize" {
            assert!(left[0].contains("line 0\nline 1\n"), "{}", left[0]);
            assert_eq!(left[1], "line 251");
        }
    }
    let nothing = backend
        .memory
        .compact(&store(json!({"type": "semantic", "name": "empty"})), &at, T0)
        .await;
    assert_eq!(nothing.unwrap(), (0, 0));
}

#[tokio::test]
async fn what_cannot_be_served_is_refused_at_start() {
    let backend = sqlite();
    for (spec, word) in [
        (json!({"type": "workspace"}), "workspace"),
        (json!({"type": "checkpoint"}), "checkpoint"),
        (json!({"type": "semantic", "backend": "qdrant"}), "qdrant"),
        (json!({"type": "key-value", "encryption": true}), "encryption"),
    ] {
        let error = backend.memory.check(&store(spec)).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    backend
        .memory
        .check(&store(json!({"type": "semantic", "backend": "sqlite-vec"})))
        .unwrap();
}

#[tokio::test]
async fn a_batch_is_kept_whole_or_not_at_all() {
    let (backend, store, at) = (sqlite(), store(json!({"type": "key-value"})), place("a", ""));
    let entries = vec![
        new(json!("good"), Some("k")),
        new(json!("x".repeat(2 << 20)), Some("l")),
    ];
    let refused = backend
        .memory
        .store(&store, &at, entries, vec!["1".into(), "2".into()], T0)
        .await;
    assert!(
        matches!(refused, Err(MemoryError::Entry { index: 1, .. })),
        "{refused:?}"
    );
    assert!(texts(&backend, &store, &at, words("good"), 5).await.is_empty());
}

#[tokio::test]
async fn an_entry_that_is_there_is_left_as_it_is_and_takes_nothing_from_a_batch() {
    for kind in ["semantic", "key-value", "conversation"] {
        let backend = sqlite();
        let store = store(json!({"type": kind}));
        let at = place("a", "");
        let keep = async |ids: [&str; 2], texts: [&str; 2]| {
            let entries = vec![
                new(json!(texts[0]), Some("one")),
                new(json!(texts[1]), Some("two")),
            ];
            let ids = ids.map(str::to_owned).to_vec();
            backend.memory.store(&store, &at, entries, ids, T0).await.unwrap()
        };
        keep(["i-0", "i-1"], ["first bean", "second bean"]).await;
        // The same request again, and one of which a crash had left a part.
        assert_eq!(
            keep(["i-0", "i-1"], ["first bean", "second bean"]).await,
            ["i-0", "i-1"]
        );
        let found = backend
            .memory
            .query(&store, &at, words("bean"), 10)
            .await
            .unwrap();
        assert_eq!(found.len(), 2, "{kind}: {found:?}");
        let (before, after) = backend.memory.compact(&store, &at, T0).await.unwrap();
        assert_eq!(
            (before, after),
            (2, 2),
            "{kind}: the count is that of the entries"
        );
    }
}
