//! A server that is away, slow, or full.

use super::*;

#[tokio::test]
async fn a_server_that_is_away_is_named_and_one_that_comes_back_is_used_again() {
    let mut server = Server::start();
    let memory = memory(options(&server));
    let store = store(json!({"type": "key-value"}));
    keep(&memory, &store, vec![new("1", Some("k"), "kept")])
        .await
        .unwrap();
    server.stop();
    let place = server.address();
    for _ in 0..2 {
        let error = ask(&memory, &store, StoreQuery::Key("k".to_owned()))
            .await
            .unwrap_err();
        assert!(matches!(error, MemoryError::Backend(_)), "{error:?}");
        assert!(error.to_string().contains(&place), "{error}");
        let error = keep(&memory, &store, vec![new("2", Some("k"), "lost")])
            .await
            .unwrap_err();
        assert!(matches!(error, MemoryError::Backend(_)), "{error:?}");
    }
    server.again();
    let hits = ask(&memory, &store, StoreQuery::Key("k".to_owned()))
        .await
        .unwrap();
    assert_eq!(hits[0].entry.content, json!("kept"));
}

#[tokio::test]
async fn an_operation_past_its_deadline_is_an_error_and_ends_on_the_server_as_well() {
    let server = Server::start();
    let store = store(json!({"type": "conversation"}));
    let patient = memory(options(&server));
    keep(&patient, &store, vec![new("1", None, "one")]).await.unwrap();
    let _holder = Beside::start(&server, "BEGIN; LOCK TABLE clawk.memory_parts");
    let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'clawk.memory_parts'::regclass";
    until("the lock", || server.sql(locked) == "1").await;
    let hasty = memory(Options {
        operation_timeout: Duration::from_millis(700),
        ..options(&server)
    });
    let began = std::time::Instant::now();
    let error = keep(&hasty, &store, vec![new("2", None, "two")])
        .await
        .unwrap_err();
    assert!(matches!(error, MemoryError::Backend(_)), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clawk' AND wait_event_type = 'Lock'";
    until("the end of what waited", || server.sql(waiting) == "0").await;
}

#[tokio::test]
async fn the_pool_is_bounded_and_says_so_when_it_is_full() {
    let server = Server::start();
    let store = store(json!({"type": "conversation"}));
    let memory = memory(Options {
        connections: 2,
        connect_timeout: Duration::from_secs(2),
        ..options(&server)
    });
    keep(&memory, &store, vec![new("1", None, "one")]).await.unwrap();
    let holder = Beside::start(&server, "BEGIN; LOCK TABLE clawk.memory_parts");
    let locked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted AND relation = 'clawk.memory_parts'::regclass";
    until("the lock", || server.sql(locked) == "1").await;
    let waiting: Vec<_> = (0..2)
        .map(|n| {
            let (memory, store) = (shared(&memory), store.clone());
            tokio::spawn(async move { keep(&memory, &store, vec![new(&format!("w{n}"), None, "w")]).await })
        })
        .collect();
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clawk'";
    until("two that wait", || server.sql(ours) == "2").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let error = keep(&memory, &store, vec![new("3", None, "three")])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("all 2 connections"), "{error}");
    assert_eq!(server.sql(ours), "2", "no third connection was made");
    drop(holder);
    for one in waiting {
        one.await.unwrap().unwrap();
    }
    assert_eq!(ids(&memory, &store).await.len(), 3);
}
