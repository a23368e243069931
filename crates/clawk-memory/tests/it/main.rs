//! Stores in folders, as they lie on the disk; the contract of the port runs in `clawk-store`.

#![expect(clippy::unwrap_used, reason = "tests: a panic is how they fail")]

mod attacks;
mod custom;

use clawk_core::ports::{Batch, Memory as _, Scope, StoreQuery};
use clawk_core::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_memory::{FolderMemory, FolderScopeView, Options};
use clawk_proto::method::NewEntry;
use clawk_recall::entry::{EntryInsertion, EntryProvenance};
use serde_json::{Value, json};

const T0: Timestamp = Timestamp(1_700_000_000_000_000);

fn files(root: &std::path::Path, outside: bool) -> FolderMemory {
    FolderMemory::new(Options {
        root: root.to_owned(),
        home: Some(root.join("home")),
        tenant: "acme".to_owned(),
        outside,
        vault: None,
    })
}

fn store(mut spec: Value) -> Store {
    spec.as_object_mut().unwrap().entry("name").or_insert(json!("s"));
    serde_json::from_value(spec).unwrap()
}

fn place(channel: &str) -> Scope {
    Scope {
        identity: "a".to_owned(),
        channel: channel.to_owned(),
    }
}

fn new(id: &str, key: Option<&str>, text: &str) -> EntryInsertion {
    EntryInsertion {
        id: id.to_owned(),
        entry: NewEntry {
            content: json!(text),
            key: key.map(str::to_owned),
            metadata: None,
        },
        mark: EntryProvenance {
            origin: "user".to_owned(),
            ..EntryProvenance::default()
        },
    }
}

async fn keep(files: &FolderMemory, store: &Store, at: i64, entries: Vec<EntryInsertion>) {
    let at = T0.plus_millis(at);
    files
        .store_entries(store, &place(""), entries, at, Batch::default())
        .await
        .unwrap();
}

async fn all(files: &FolderMemory, store: &Store) -> Vec<String> {
    let query = StoreQuery::Between(T0, T0.plus_millis(i64::from(u32::MAX)));
    let found = files.query_entries(store, &place(""), query, 1000).await.unwrap();
    found
        .into_iter()
        .map(|entry| entry.content.as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_person_can_read_the_files_and_the_next_start_finds_what_they_hold() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(json!({"type": "semantic", "backend": "filesystem"}));
    let before = files(dir.path(), true);
    keep(&before, &store, 0, vec![new("1", None, "the lamp is green")]).await;
    drop(before);
    let folder = dir.path().join("s").join("a");
    let text = std::fs::read_to_string(folder.join("entries.md")).unwrap();
    assert!(
        text.contains("the lamp is green") && text.contains("— user"),
        "{text}"
    );
    // A crash cut the last line.
    let path = folder.join("entries.jsonl");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"{\"keep\":[{\"id\":\"2\",\"at\""].concat()).unwrap();
    let after = files(dir.path(), true);
    assert_eq!(all(&after, &store).await, ["the lamp is green"]);
    keep(&after, &store, 1, vec![new("3", None, "more")]).await;
    assert_eq!(
        all(&files(dir.path(), true), &store).await,
        ["the lamp is green", "more"]
    );
}

#[tokio::test]
async fn a_path_is_resolved_and_leads_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = |path: &str| store(json!({"type": "workspace", "path": path}));
    let spec = path("~/work/{identity_name}-{tenant_id}");
    keep(
        &files(dir.path(), true),
        &spec,
        0,
        vec![new("1", Some("notes/a.md"), "text")],
    )
    .await;
    let file = dir.path().join("home/work/a-acme/a/notes/a.md");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "text");
    for (spec, outside, word) in [
        (path("{agent}/x"), true, "`{agent}`"),
        (path("../x"), true, ".."),
        (path("/tmp/x"), false, "over the wire"),
        (path("~/x"), false, "over the wire"),
    ] {
        let refused = files(dir.path(), outside)
            .check_store(&spec)
            .unwrap_err()
            .to_string();
        assert!(refused.contains(word), "{refused}");
    }
    files(dir.path(), false).check_store(&path("below")).unwrap();
}

#[tokio::test]
async fn a_link_in_a_workspace_leads_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let spec = store(json!({"type": "workspace", "isolation": "shared"}));
    let files = files(dir.path(), true);
    keep(&files, &spec, 0, vec![new("1", Some("a"), "inside")]).await;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "outside").unwrap();
    std::os::unix::fs::symlink(&secret, dir.path().join("s/shared/link")).unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("s/shared/up")).unwrap();
    for key in ["link", "up/secret", "../secret", "/etc/passwd"] {
        let query = StoreQuery::Key(key.to_owned());
        assert!(
            files
                .query_entries(&spec, &place(""), query, 9)
                .await
                .unwrap()
                .is_empty(),
            "{key}"
        );
    }
    let _refused = files
        .store_entries(
            &spec,
            &place(""),
            vec![new("2", Some("up/secret"), "changed")],
            T0,
            Batch::default(),
        )
        .await
        .unwrap_err();
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "outside");
}

#[tokio::test]
async fn retention_reaches_folders_that_nobody_has_asked_since_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let spec = store(
        json!({"type": "conversation", "backend": "filesystem", "scope": "per-channel",
        "retention": {"max_age": "1h"}}),
    );
    let before = files(dir.path(), true);
    for channel in ["x", "y"] {
        let entries = vec![new(channel, None, "a secret of then")];
        before
            .store_entries(&spec, &place(channel), entries, T0, Batch::default())
            .await
            .unwrap();
    }
    let after = files(dir.path(), true);
    assert_eq!(
        after
            .apply_retention(&spec, T0.plus_millis(3_500_000))
            .await
            .unwrap(),
        0
    );
    assert_eq!(
        after
            .apply_retention(&spec, T0.plus_millis(3_700_000))
            .await
            .unwrap(),
        2
    );
    for channel in ["x", "y"] {
        for file in ["entries.jsonl", "entries.md"] {
            let path = dir.path().join("s/a").join(channel).join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("secret of then"), "{}: {text}", path.display());
        }
    }
}

#[tokio::test]
async fn what_compaction_sets_aside_of_a_folder_comes_back_and_what_is_forgotten_does_not() {
    for strategy in ["truncate", "sliding-window", "summarize"] {
        let dir = tempfile::tempdir().unwrap();
        let spec = store(
            json!({"type": "conversation", "backend": "filesystem", "compaction": {"strategy": strategy}}),
        );
        let running = files(dir.path(), true);
        for n in 0..10 {
            let entry = new(&format!("e{n}"), None, &format!("secret{n} of the garden"));
            keep(&running, &spec, n, vec![entry]).await;
        }
        let counts = running.compact_store(&spec, &place(""), T0, None).await.unwrap();
        assert_eq!(counts, (10, 5), "{strategy}");
        drop(running);
        let mut held = FolderScopeView::all_scopes(dir.path(), None).unwrap();
        assert_eq!(
            (held.len(), held[0].store.as_str(), held[0].scope.as_str()),
            (1, "s", "identity/a")
        );
        let held = &mut held[0];
        assert!(held.forget_entry("e2").unwrap().is_some());
        let text = std::fs::read_to_string(dir.path().join("s/a/entries.jsonl")).unwrap();
        assert!(!text.contains("secret2"), "{strategy}: {text}");
        held.restore_entries(None).unwrap();
        let back = all(&files(dir.path(), true), &spec).await;
        assert_eq!(back.len(), 9, "{strategy}: {back:?}");
        assert_eq!(back[0], "secret0 of the garden");
        assert!(
            FolderScopeView::all_scopes(dir.path(), None).unwrap()[0]
                .newest_entries(true, 9)
                .is_empty()
        );
    }
}
