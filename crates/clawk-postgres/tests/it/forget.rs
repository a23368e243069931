//! What compaction sets aside comes back, and what is forgotten does not.

use clawk_recall::compact::CompactionSummary;

use super::*;

#[tokio::test]
async fn what_compaction_set_aside_comes_back_and_what_is_forgotten_does_not() {
    let server = Server::start();
    for strategy in ["truncate", "sliding-window", "summarize"] {
        let store =
            store(json!({"type": "conversation", "name": strategy, "compaction": {"strategy": strategy}}));
        let memory = memory(options(&server));
        let entries = (0..10).map(|n| new(&format!("e{n}"), None, &format!("secret{n} of the garden")));
        keep(&memory, &store, entries.collect()).await.unwrap();
        let old = memory.compaction_candidates(&store, &here()).await.unwrap();
        let summary = CompactionSummary {
            of: old.iter().map(|hit| hit.entry.id.clone()).collect(),
            text: "they spoke of a garden".to_owned(),
        };
        let counts = memory
            .compact_store(&store, &here(), T0, Some(summary))
            .await
            .unwrap();
        assert_eq!(counts, (10, 5), "{strategy}");
        let made = ids(&memory, &store).await.contains(&"summary-e5".to_owned());
        assert_eq!(made, strategy == "summarize");
        // Forgetting one that was set aside takes the summary that was made of it as well.
        let gone = memory
            .remove(&store, &here(), ConversationFilter::All, "e2".to_owned())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(gone.entry.content, json!("secret2 of the garden"));
        assert!(!ids(&memory, &store).await.contains(&"summary-e5".to_owned()));
        memory.restore_entries(&store, &here(), None).await.unwrap();
        let left = ids(&memory, &store).await;
        let all: Vec<String> = (0..10).filter(|n| *n != 2).map(|n| format!("e{n}")).collect();
        assert_eq!(left, all, "{strategy}");
        assert_eq!(memory.count_entries(&store, &here()).await.unwrap(), 9);
        let found = ask(&memory, &store, StoreQuery::Text("secret0".to_owned()))
            .await
            .unwrap();
        assert_eq!(found[0].entry.id, "e0", "its words are back, too");
        assert!(
            memory
                .remove(&store, &here(), ConversationFilter::All, "e2".to_owned())
                .await
                .unwrap()
                .is_none()
        );
    }
    let kept = server.sql("SELECT count(*) FROM clawk.memory WHERE content LIKE '%secret2 %'");
    let aside = server.sql("SELECT count(*) FROM clawk.memory_aside");
    assert_eq!((kept.as_str(), aside.as_str()), ("0", "0"));
}

#[tokio::test]
async fn nothing_is_lost_to_a_bound_that_compaction_can_keep() {
    let server = Server::start();
    for strategy in ["truncate", "summarize"] {
        let spec = json!({"type": "conversation", "name": strategy, "retention": {"max_entries": 20}, "compaction": {"strategy": strategy}});
        let (memory, store) = (memory(options(&server)), store(spec));
        for n in 0..40 {
            keep(
                &memory,
                &store,
                vec![new(&format!("e{n}"), None, &format!("line {n}"))],
            )
            .await
            .unwrap();
        }
        assert!(memory.count_entries(&store, &here()).await.unwrap() <= 20);
        memory.restore_entries(&store, &here(), None).await.unwrap();
        assert_eq!(
            memory.count_entries(&store, &here()).await.unwrap(),
            40,
            "{strategy}"
        );
    }
}

#[tokio::test]
async fn somebody_elses_entry_is_not_removed() {
    let server = Server::start();
    let (memory, store) = (memory(options(&server)), store(json!({"type": "semantic"})));
    let mut entry = new("1", None, "Anna's");
    entry.mark.whose = "tg/anna".to_owned();
    keep(&memory, &store, vec![entry]).await.unwrap();
    let of = |who: &str| ConversationFilter::Of(vec![who.to_owned()]);
    for other in ["1", "x\0"] {
        assert!(
            memory
                .remove(&store, &here(), of("tg/ben"), other.to_owned())
                .await
                .unwrap()
                .is_none()
        );
    }
    assert!(
        memory
            .remove(&store, &here(), of("tg/anna"), "1".to_owned())
            .await
            .unwrap()
            .is_some()
    );
}

#[tokio::test]
async fn a_name_that_an_index_does_not_take_is_an_entry_that_does_not_fit() {
    let server = Server::start();
    let (memory, store) = (memory(options(&server)), store(json!({"type": "key-value"})));
    for key in ["a\0b".to_owned(), "k".repeat(3000)] {
        let refused = keep(&memory, &store, vec![new("1", Some(&key), "x")]).await;
        assert!(
            matches!(refused, Err(MemoryError::Entry { index: 0, .. })),
            "{refused:?}"
        );
        assert!(
            ask(&memory, &store, StoreQuery::Key(key))
                .await
                .unwrap()
                .is_empty()
        );
    }
    // Text may hold any character.
    keep(&memory, &store, vec![new("2", Some("k"), "a\0b \u{10ffff} word")])
        .await
        .unwrap();
    let found = ask(&memory, &store, StoreQuery::Text("word".to_owned()))
        .await
        .unwrap();
    assert_eq!(found[0].entry.content, json!("a\0b \u{10ffff} word"));
}
