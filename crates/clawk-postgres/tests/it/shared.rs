//! Several processes on one database.

use clawk_postgres::{PgState, ServingOptions};

use super::*;

/// Two writers of the same key, held at the same point until both wait: the first one wins, the second is told.
#[tokio::test]
async fn of_two_processes_that_write_one_key_at_once_the_second_is_refused() {
    let server = Server::start();
    for kind in ["key-value", "workspace"] {
        let store = store(json!({"type": kind, "name": kind}));
        let (first, second) = (memory(options(&server)), memory(options(&server)));
        keep(&first, &store, vec![new("0", Some("colour"), "red")])
            .await
            .unwrap();
        let holder = Beside::start(&server, "BEGIN; SELECT id FROM clawk.memory_parts FOR UPDATE");
        let held = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND wait_event = 'PgSleep'";
        until("the lock", || server.sql(held) == "1").await;
        let write = |memory: &PgMemory, id: &'static str| {
            let (memory, store) = (shared(memory), store.clone());
            tokio::spawn(async move { keep(&memory, &store, vec![new(id, Some("colour"), id)]).await })
        };
        let both = [write(&first, "green"), write(&second, "blue")];
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clawk' AND wait_event_type = 'Lock'";
        until("two that wait", || server.sql(waiting) == "2").await;
        drop(holder);
        let mut done = Vec::new();
        for one in both {
            done.push(one.await.unwrap());
        }
        let (kept, refused): (Vec<_>, Vec<_>) = done.into_iter().partition(Result::is_ok);
        let (kept, refused) = (
            kept.into_iter().next().unwrap().unwrap(),
            refused.into_iter().next().unwrap().unwrap_err(),
        );
        assert!(
            matches!(&refused, MemoryError::Conflict(why) if why.contains("`colour`")),
            "{refused:?}"
        );
        assert_eq!(
            ids(&first, &store).await,
            kept,
            "what was acknowledged is what is there"
        );
        // Having read it, the other one may write.
        let hits = ask(&second, &store, StoreQuery::Key("colour".to_owned()))
            .await
            .unwrap();
        assert_eq!(hits[0].entry.id, kept[0]);
        keep(&second, &store, vec![new("again", Some("colour"), "again")])
            .await
            .unwrap();
        assert_eq!(ids(&first, &store).await, ["again"]);
    }
}

#[tokio::test]
async fn entries_of_two_processes_are_all_kept_once() {
    let server = Server::start();
    let store = store(json!({"type": "conversation"}));
    let two = [memory(options(&server)), memory(options(&server))];
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (memory, store) = (shared(&two[writer % 2]), store.clone());
            tokio::spawn(async move {
                for n in 0..25 {
                    // Each second one is said by both of a pair: the same request, come twice.
                    let id = if n % 2 == 0 {
                        format!("both{}-{n}", writer / 2)
                    } else {
                        format!("w{writer}-{n}")
                    };
                    keep(&memory, &store, vec![new(&id, None, &id)]).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let mut all = ids(&two[0], &store).await;
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!((all.len(), count), (2 * 13 + 4 * 12, 2 * 13 + 4 * 12));
    assert_eq!(two[1].count_entries(&store, &here()).await.unwrap(), 74);
    let found = ask(&two[1], &store, StoreQuery::Text("w3 23".to_owned()))
        .await
        .unwrap();
    assert_eq!(found[0].entry.id, "w3-23");
}

#[tokio::test]
async fn processes_that_start_together_migrate_once_and_a_later_schema_is_refused() {
    let server = Server::start();
    let spec = store(json!({"type": "conversation"}));
    let starting: Vec<_> = (0..6)
        .map(|_| {
            let (memory, spec) = (memory(options(&server)), spec.clone());
            tokio::spawn(async move { memory.count_entries(&spec, &here()).await })
        })
        .collect();
    for one in starting {
        assert_eq!(one.await.unwrap().unwrap(), 0);
    }
    assert_eq!(
        server.sql("SELECT string_agg(step::text, ',' ORDER BY step) FROM clawk.migrations"),
        "1,2,3,4,5,6"
    );
    server.sql("INSERT INTO clawk.migrations (step) VALUES (99)");
    let error = memory(options(&server))
        .count_entries(&spec, &here())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("later version"), "{error}");
}

#[tokio::test]
async fn two_agents_in_one_database_do_not_share_a_store() {
    let server = Server::start();
    let store = store(json!({"type": "key-value", "scope": "global"}));
    let database = PgDatabase::new(options(&server), &EnvironmentSource::Process).unwrap();
    let (one, other) = (
        PgMemory::new(database.clone(), "one"),
        PgMemory::new(database, "other"),
    );
    keep(&one, &store, vec![new("1", Some("k"), "mine")])
        .await
        .unwrap();
    assert!(ids(&other, &store).await.is_empty());
}

#[tokio::test]
async fn pgvector_is_used_where_it_is_and_asked_for_by_name_where_it_must_be() {
    let server = Server::start();
    let (plain, must) = (
        store(json!({"type": "semantic"})),
        store(json!({"type": "semantic", "backend": "pgvector"})),
    );
    let without = memory(Options {
        pgvector: false,
        ..options(&server)
    });
    let error = keep(&without, &must, vec![new("1", None, "x")])
        .await
        .unwrap_err();
    assert!(error.to_string().contains("CREATE EXTENSION vector"), "{error}");
    let texts = [
        "My physician is called Dr Weber",
        "the bicycle is red",
        "invoices are due in March",
    ];
    let entries = texts
        .iter()
        .enumerate()
        .map(|(n, text)| new(&n.to_string(), None, text));
    keep(&without, &plain, entries.collect()).await.unwrap();
    let question = || StoreQuery::Text("who is the doctor".to_owned());
    let scanned = found(&without, &plain, question()).await.unwrap();
    assert!(scanned.compared_here, "the answer says who compared");
    assert_eq!(
        server.sql("SELECT count(*) FROM pg_extension WHERE extname = 'vector'"),
        "0"
    );
    // The same rows, compared by the server from now on: no vector is written anew.
    let with = memory(options(&server));
    let compared = found(&with, &must, question()).await.unwrap();
    assert!(!compared.compared_here);
    let unasked = found(&with, &plain, question()).await.unwrap();
    assert!(
        unasked.compared_here,
        "a store that does not ask for the extension is scanned here"
    );
    assert_eq!(
        server.sql("SELECT count(*) FROM pg_extension WHERE extname = 'vector'"),
        "1"
    );
    let names = |hits: &[EntryHit]| hits.iter().map(|hit| hit.entry.id.clone()).collect::<Vec<_>>();
    assert_eq!(names(&scanned.hits), names(&compared.hits));
    assert_eq!(names(&scanned.hits)[0], "0");
}

#[tokio::test]
async fn who_lost_the_agents_lease_remembers_nothing_any_more() {
    let server = Server::start();
    let database = PgDatabase::new(options(&server), &EnvironmentSource::Process).unwrap();
    let serving = ServingOptions::new("hello", "a", 1);
    let state = PgState::open(database, serving, None).await.unwrap();
    let memory = memory(options(&server)).of_state(state.fencing_token());
    let store = store(json!({"type": "conversation"}));
    keep(&memory, &store, vec![new("mine", None, "mine")])
        .await
        .unwrap();
    // Another host takes the lease while this one does not look.
    let schema = options(&server).schema;
    server.sql(&format!("UPDATE {schema}.leases SET epoch = epoch + 1"));
    let refused = keep(&memory, &store, vec![new("late", None, "late")]).await;
    assert!(
        refused
            .as_ref()
            .is_err_and(|error| error.to_string().contains("another host")),
        "{refused:?}"
    );
    assert_eq!(ids(&memory, &store).await, ["mine"], "it may still be read");
    state.close().await;
}
