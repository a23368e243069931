//! What is kept for receivers. A real kill of the host: `tests/real/pushes.rs` of the binary.

use clawk_recall::seal::{SealKey, SealKeyring};
use serde_json::json;

use super::book::{BookError, PushStore, ReceiverKey, StoredReceiver};

fn vault(digit: &str) -> SealKeyring {
    SealKeyring::new(SealKey::from_hex(&digit.repeat(64)).unwrap())
}

fn key(task: &str, id: &str) -> ReceiverKey {
    ReceiverKey {
        owner: "tok".into(),
        task: task.into(),
        id: id.into(),
    }
}

fn kept() -> StoredReceiver {
    StoredReceiver {
        config: json!({"url": "https://x.example", "token": "canary-of-a-token"}),
        old: false,
        context: "c".into(),
        content: "00".repeat(32),
    }
}

#[tokio::test]
async fn what_is_owed_is_there_in_order_after_the_file_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("push.db");
    let book = PushStore::open(&file, vault("1")).unwrap();
    let (one, other) = (key("t", "a"), key("t", "b"));
    book.store_receiver(one.clone(), kept()).await.unwrap();
    book.store_receiver(other.clone(), kept()).await.unwrap();
    let notes = |states: &[&'static str]| states.iter().map(|state| (*state, json!({"s": state}))).collect();
    book.enqueue_notifications(one.clone(), notes(&["submitted", "working"]), false)
        .await
        .unwrap();
    book.enqueue_notifications(one.clone(), notes(&["completed"]), true)
        .await
        .unwrap();
    book.enqueue_notifications(other.clone(), notes(&["submitted"]), false)
        .await
        .unwrap();
    let first = book.next(one.clone()).await.unwrap().unwrap();
    book.begin_attempt(first.number, 7).await.unwrap();
    drop(book);

    assert!(matches!(
        PushStore::open(&file, vault("2"))
            .unwrap()
            .pending_receivers()
            .await,
        Err(BookError::Seal(_))
    ));
    let book = PushStore::open(&file, vault("1")).unwrap();
    let all = book.pending_receivers().await.unwrap();
    assert_eq!(
        all.iter().map(|(_, _, last)| last.as_str()).collect::<Vec<_>>(),
        ["completed", "submitted"]
    );
    assert_eq!(all[0].1.config["token"], "canary-of-a-token");
    let mut told = Vec::new();
    while let Some(due) = book.next(one.clone()).await.unwrap() {
        assert_eq!(
            (due.attempts, due.next_us),
            if told.is_empty() { (1, 7) } else { (0, 0) }
        );
        book.settle_notification(due.number).await.unwrap();
        told.push(due.state);
    }
    assert_eq!(told, ["submitted", "working", "completed"]);
    // One that was told everything is forgotten, one whose task goes on is not.
    assert_eq!(book.pending_receivers().await.unwrap().len(), 1);
    book.remove(other.clone()).await.unwrap();
    book.enqueue_notifications(other.clone(), notes(&["working"]), false)
        .await
        .unwrap();
    assert_eq!(
        book.next(other).await.unwrap(),
        None,
        "one that was taken away is owed nothing"
    );
    // Secrets are nowhere in the file.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(6).any(|part| part == b"canary"));
    }
}
