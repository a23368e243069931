//! Encrypted stores on a server: it sees no text, no words, no key and no vector, and the key can be changed.

use std::sync::Arc;

use clawk_recall::seal::{SealKey, SealKeyring};

use super::*;

const PLANTED: &str = "zanzibar";

fn key(digit: &str) -> SealKey {
    SealKey::from_hex(&digit.repeat(64)).unwrap()
}

fn with(server: &Server, vault: SealKeyring) -> PgMemory {
    memory(options(server)).with_vault(Some(Arc::new(vault)))
}

fn hidden(kind: &str, encryption: bool) -> Store {
    store(json!({"type": kind, "name": kind, "encryption": encryption}))
}

/// Everything that the server keeps of our tables, as text.
fn dumped(server: &Server) -> String {
    let tables = [
        "memory",
        "memory_aside",
        "memory_vectors",
        "memory_parts",
        "memory_seals",
    ];
    tables
        .map(|table| {
            server.sql(&format!(
                "SELECT coalesce(string_agg(t::text, ' '), '') FROM clawk.{table} t"
            ))
        })
        .concat()
}

async fn text(memory: &PgMemory, store: &Store, words: &str) -> Vec<String> {
    let hits = ask(memory, store, StoreQuery::Text(words.to_owned()))
        .await
        .unwrap();
    hits.iter()
        .map(|hit| hit.entry.content.as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn a_server_sees_nothing_of_an_encrypted_store() {
    let server = Server::start();
    let (plain, notes) = (hidden("semantic", false), hidden("semantic", true));
    // Kept before, in plain.
    let before = memory(options(&server));
    keep(
        &before,
        &plain,
        vec![new("old", None, &format!("the {PLANTED} of old"))],
    )
    .await
    .unwrap();
    assert!(dumped(&server).contains(PLANTED));
    let refused = before.check_store(&notes).unwrap_err().to_string();
    assert!(
        refused.contains("`semantic`") && refused.contains("encryption_key"),
        "{refused}"
    );

    let first = with(&server, SealKeyring::new(key("a")));
    let facts = hidden("key-value", true);
    keep(
        &first,
        &notes,
        vec![new("new", None, &format!("a {PLANTED} lighthouse"))],
    )
    .await
    .unwrap();
    keep(&first, &facts, vec![new("f", Some(PLANTED), PLANTED)])
        .await
        .unwrap();
    let seen = dumped(&server);
    assert!(!seen.contains(PLANTED) && !seen.contains("lighthous"), "{seen}");
    assert_eq!(text(&first, &notes, "old zanzibar").await.len(), 2);
    // A second process finds what the first one wrote, also what comes and goes later.
    let second = with(&server, SealKeyring::new(key("a")));
    assert_eq!(text(&second, &notes, "zanzibar").await.len(), 2);
    first
        .remove(&notes, &here(), ConversationFilter::All, "old".to_owned())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        text(&second, &notes, "zanzibar").await,
        [format!("a {PLANTED} lighthouse")]
    );
    let found = ask(&second, &facts, StoreQuery::Key(PLANTED.to_owned()))
        .await
        .unwrap();
    assert_eq!(found[0].entry.key.as_deref(), Some(PLANTED));
    let meant = found_by_meaning(&second, &notes).await;
    assert!(meant.compared_here && meant.hits.len() == 1, "{meant:?}");

    let wrong = with(&server, SealKeyring::new(key("b")));
    let refused = keep(&wrong, &notes, vec![new("x", None, "x")])
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("`semantic`") && refused.contains("not the one"),
        "{refused}"
    );
    let refused = keep(&before, &plain, vec![new("x", None, "x")])
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("write `encryption: true`"), "{refused}");

    // Another key.
    let both = with(&server, SealKeyring::new(key("b")).with_older(key("a")));
    for store in [&notes, &facts] {
        both.seal_anew(store).await.unwrap();
    }
    let new_key = with(&server, SealKeyring::new(key("b")));
    assert_eq!(
        text(&new_key, &notes, "zanzibar").await,
        [format!("a {PLANTED} lighthouse")]
    );
    let found = ask(&new_key, &facts, StoreQuery::Key(PLANTED.to_owned()))
        .await
        .unwrap();
    assert_eq!(found.len(), 1);
    let old_key = with(&server, SealKeyring::new(key("a")));
    assert!(
        ask(&old_key, &notes, StoreQuery::Text("zanzibar".to_owned()))
            .await
            .is_err()
    );
    assert!(!dumped(&server).contains(PLANTED));
}

async fn found_by_meaning(memory: &PgMemory, store: &Store) -> EntrySearchResult {
    found(memory, store, StoreQuery::Text("lighthouse".to_owned()))
        .await
        .unwrap()
}
