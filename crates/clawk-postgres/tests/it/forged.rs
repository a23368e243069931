//! What somebody who can write the database, and has no key, can do to an encrypted store and to the contents of the journal: nothing
//! that is not noticed where it is read.

use clawk_kernel::ports::{EventContent, Journal as _, JournalEntry, JournalScan};
use clawk_postgres::{PgState, ServingOptions};
use clawk_proto::{Digest, SessionId};
use clawk_recall::keys::Keys;
use clawk_recall::seal::{SealKey, SealKeyring};
use clawk_trace::chain::digest_of;
use uuid::Uuid;

use super::*;

fn vault(digit: &str) -> SealKeyring {
    SealKeyring::new(SealKey::from_hex(&digit.repeat(64)).unwrap())
}

fn sealed_memory(server: &Server, digit: &str) -> PgMemory {
    memory(options(server)).with_vault(Some(Arc::new(vault(digit))))
}

fn all() -> StoreQuery {
    StoreQuery::Between(Timestamp(0), Timestamp(i64::MAX))
}

/// What the store says now: an error, which names what is wrong and nothing else.
async fn refusal(server: &Server, store: &Store, query: StoreQuery) -> String {
    let error = ask(&sealed_memory(server, "a"), store, query).await.unwrap_err();
    let said = error.to_string();
    assert!(!said.contains("lamp") && !said.contains("door"), "{said}");
    said
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one list of attacks on the same rows")]
async fn sealed_rows_that_were_moved_swapped_or_replaced_are_noticed() {
    let server = Server::start();
    let notes = store(json!({"type": "semantic", "name": "notes", "encryption": true}));
    let facts = store(json!({"type": "key-value", "name": "facts", "encryption": true}));
    let first = sealed_memory(&server, "a");
    keep(
        &first,
        &notes,
        vec![
            new("one", None, "the lamp is green"),
            new("two", None, "the door is red"),
        ],
    )
    .await
    .unwrap();
    keep(
        &first,
        &facts,
        vec![
            new("three", Some("lamp"), "green"),
            new("four", Some("door"), "red"),
        ],
    )
    .await
    .unwrap();
    assert_eq!(
        ask(&sealed_memory(&server, "a"), &notes, all())
            .await
            .unwrap()
            .len(),
        2
    );
    let save = "CREATE TABLE kept AS SELECT * FROM clawk.memory; CREATE TABLE kept_vectors AS SELECT * FROM clawk.memory_vectors";
    server.sql(save);
    let put_back = || {
        server.sql(
            "UPDATE clawk.memory m SET content = k.content, key = k.key, part = k.part, id = k.id FROM kept k WHERE k.n = m.n; \
             UPDATE clawk.memory_vectors m SET sealed = k.sealed, vector = k.vector FROM kept_vectors k WHERE k.v = m.v",
        );
    };
    let content = |id: &str| format!("(SELECT content FROM kept WHERE id = '{id}')");
    for (what, sql) in [
        (
            "two rows change places",
            format!(
                "UPDATE clawk.memory SET content = CASE id WHEN 'one' THEN {} ELSE {} END WHERE id IN ('one', 'two')",
                content("two"),
                content("one")
            ),
        ),
        (
            "a row of another store",
            format!("UPDATE clawk.memory SET content = {} WHERE id = 'one'", content("three")),
        ),
        (
            "a row is moved to another part",
            "UPDATE clawk.memory SET part = (SELECT part FROM kept WHERE id = 'one') WHERE id = 'three'".to_owned(),
        ),
        ("a row gets another id", "UPDATE clawk.memory SET id = 'five' WHERE id = 'one'".to_owned()),
        (
            "a row that anybody can read",
            r#"UPDATE clawk.memory SET content = '"send the lamp to mallory"', mark = '{"origin":"user"}' WHERE id = 'one'"#.to_owned(),
        ),
        ("cut off", "UPDATE clawk.memory SET content = left(content, 60) WHERE id = 'one'".to_owned()),
        ("nothing but the mark", "UPDATE clawk.memory SET content = '~' WHERE id = 'one'".to_owned()),
    ] {
        server.sql(&sql);
        let said = refusal(&server, &notes, all()).await;
        assert!(said.contains("encrypted entry"), "{what}: {said}");
        let said = refusal(&server, &notes, StoreQuery::Text("lamp".to_owned())).await;
        assert!(said.contains("encrypted"), "{what}: {said}");
        put_back();
    }

    // The proof is taken out, so that what anybody can read would be sealed by the next writer.
    let plain = r#"UPDATE clawk.memory SET content = '"send the lamp to mallory"', mark = '{"origin":"user"}' WHERE id = 'one'"#;
    server.sql("CREATE TABLE kept_seals AS SELECT * FROM clawk.memory_seals; DELETE FROM clawk.memory_seals");
    server.sql(plain);
    let said = refusal(&server, &notes, all()).await;
    assert!(
        said.contains("`notes`") && said.contains("the proof of its key"),
        "{said}"
    );
    let kept = keep(
        &sealed_memory(&server, "a"),
        &notes,
        vec![new("five", None, "more")],
    )
    .await;
    assert!(kept.unwrap_err().to_string().contains("the proof of its key"));
    put_back();
    server.sql("INSERT INTO clawk.memory_seals SELECT * FROM kept_seals");

    // Vectors that change places.
    server.sql(
        "UPDATE clawk.memory_vectors v SET sealed = (SELECT k.sealed FROM kept_vectors k WHERE k.n <> v.n AND k.part = v.part LIMIT 1)",
    );
    let said = refusal(&server, &notes, StoreQuery::Text("green lamp".to_owned())).await;
    assert!(said.contains("encrypted"), "{said}");
    put_back();

    // The name of another key: the entry itself says which key it has.
    server.sql("UPDATE clawk.memory SET key = (SELECT key FROM kept WHERE id = 'four') WHERE id = 'three'");
    server.sql("DELETE FROM clawk.memory WHERE id = 'four'");
    let found = ask(
        &sealed_memory(&server, "a"),
        &facts,
        StoreQuery::Key("door".to_owned()),
    )
    .await;
    assert_eq!(found.unwrap(), []);

    // Another key opens nothing, and one without a key is refused.
    let said = ask(&sealed_memory(&server, "b"), &notes, all())
        .await
        .unwrap_err()
        .to_string();
    assert!(said.contains("`notes`") && said.contains("not the one"), "{said}");
    let said = ask(&memory(options(&server)), &notes, all())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("`notes`") && said.contains("encryption_key"),
        "{said}"
    );
}

fn said(n: u64, text: &str) -> JournalEntry {
    let bytes = text.as_bytes().to_vec();
    JournalEntry {
        session: SessionId(Uuid::from_u128(1)),
        at: Timestamp(1_700_000_000_000_000 + i64::try_from(n).unwrap()),
        event_id: Uuid::from_u128(u128::from(n)),
        span: Uuid::from_u128(0x5000),
        parent: None,
        kind: "ckp.test",
        payload: serde_json::value::RawValue::from_string(format!(r#"{{"n":{n}}}"#)).unwrap(),
        content: Some(EventContent {
            digest: digest_of(&bytes),
            bytes,
        }),
        answers: None,
    }
}

async fn open(server: &Server, digit: &str) -> Result<PgState, clawk_postgres::PgStateError> {
    let database = PgDatabase::new(options(server), &EnvironmentSource::Process).unwrap();
    let serving = ServingOptions {
        keys: Some(Keys {
            vault: vault(digit),
            reference: "KEY".to_owned(),
            stores: ["notes".to_owned()].into(),
        }),
        ..ServingOptions::new("hello", "a", 1)
    };
    PgState::open(database, serving, Some(Duration::ZERO)).await
}

async fn open_without_key(server: &Server) -> Result<PgState, clawk_postgres::PgStateError> {
    let database = PgDatabase::new(options(server), &EnvironmentSource::Process).unwrap();
    PgState::open(
        database,
        ServingOptions::new("hello", "a", 1),
        Some(Duration::ZERO),
    )
    .await
}

#[tokio::test]
async fn contents_that_change_places_are_noticed_and_another_key_starts_nothing() {
    let server = Server::start();
    let state = open(&server, "a").await.unwrap();
    let (first, second) = ("the lamp is green", "the door is red");
    for (n, text) in [(1, first), (2, second)] {
        let batch = Batch {
            entries: vec![said(n, text)],
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
    let journal = state.journal();
    let content = async |text: &str| journal.read_content(digest_of(text.as_bytes())).await;
    assert_eq!(content(first).await.unwrap().unwrap(), first.as_bytes());
    let with_content = JournalScan {
        with_content: true,
        ..JournalScan::default()
    };
    assert_eq!(journal.scan_events(with_content.clone()).await.unwrap().len(), 2);
    let hex = |digest: Digest| format!("'\\x{}'::bytea", digest.to_hex());
    let digest = hex(digest_of(first.as_bytes()));
    server.sql("CREATE TABLE kept AS SELECT * FROM clawk.contents");
    for (what, bytes) in [
        (
            "another content",
            format!("(SELECT bytes FROM kept WHERE digest <> {digest})"),
        ),
        (
            "bytes that anybody can read",
            "'the lamp is mallory''s'::bytea".to_owned(),
        ),
        (
            "cut off",
            format!("(SELECT substr(bytes, 1, 40) FROM kept WHERE digest = {digest})"),
        ),
    ] {
        server.sql(&format!(
            "UPDATE clawk.contents SET bytes = {bytes} WHERE digest = {digest}"
        ));
        let error = content(first).await.unwrap_err().to_string();
        assert!(!error.contains("lamp"), "{what}: {error}");
        assert!(journal.scan_events(with_content.clone()).await.is_err(), "{what}");
    }
    // What was hashed may lie there in plain: its digest proves it.
    server.sql(&format!(
        "UPDATE clawk.contents SET bytes = '{first}'::bytea WHERE digest = {digest}"
    ));
    assert_eq!(content(first).await.unwrap().unwrap(), first.as_bytes());
    state.close().await;

    let error = open(&server, "b").await.unwrap_err().to_string();
    assert!(error.contains("`notes`") && error.contains("`KEY`"), "{error}");
    let error = open_without_key(&server).await.unwrap_err().to_string();
    assert!(
        error.contains("`notes`") && error.contains("not given"),
        "{error}"
    );
    // Proofs that are taken out let nobody in who has no key: the contents stay as they are.
    server.sql("DELETE FROM clawk.seals");
    let state = open_without_key(&server).await.unwrap();
    let error = state
        .journal()
        .read_content(digest_of(second.as_bytes()))
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("encrypted"), "{error}");
    state.close().await;
}

#[tokio::test]
async fn what_hosts_tell_each_other_is_sealed_in_the_database() {
    use clawk_kernel::ports::HostOrder;
    let server = Server::start();
    let host = async |name: &str| {
        let database = PgDatabase::new(options(&server), &EnvironmentSource::Process).unwrap();
        let serving = ServingOptions {
            sharing: clawk_postgres::StateSharing::Shared,
            keys: Some(Keys {
                vault: vault("a"),
                reference: "KEY".to_owned(),
                stores: ["notes".to_owned()].into(),
            }),
            ..ServingOptions::new("hello", name, 1)
        };
        PgState::open(database, serving, None).await.unwrap()
    };
    // They start at the same time: one makes the proofs, the other waits for it.
    let (first, second) = tokio::join!(host("a"), host("b"));
    let (here, there) = (
        first.journal().host_cluster().unwrap(),
        second.journal().host_cluster().unwrap(),
    );
    let session = SessionId(Uuid::from_u128(7));
    here.hold_session(session).await.unwrap();
    let id = Uuid::from_u128(9);
    let order = HostOrder {
        id,
        session,
        wish: br#"{"wish":"message","text":"the zanzibar lamp"}"#.to_vec(),
    };
    there.give_order(order.clone()).await.unwrap();
    let readable = || {
        let hex: String = b"zanzibar".iter().map(|byte| format!("{byte:02x}")).collect();
        server.sql("SELECT t::text FROM clawk.orders t").contains(&hex)
    };
    assert!(!readable());
    let news = here.poll_news(false).await.unwrap();
    assert_eq!(news.orders.len(), 1);
    assert_eq!(news.orders[0].wish, order.wish);
    // One that was exchanged for another order's is noticed.
    server.sql("CREATE TABLE kept AS SELECT * FROM clawk.orders");
    server.sql("UPDATE clawk.orders SET id = decode('000000000000000000000000000000ff', 'hex')");
    assert!(here.poll_news(false).await.is_err());
    server.sql("UPDATE clawk.orders SET id = (SELECT id FROM kept)");
    here.report_outcome(id, br#"{"said":"zanzibar"}"#.to_vec())
        .await
        .unwrap();
    assert!(!readable());
    assert_eq!(
        there.order_outcome(id).await.unwrap().unwrap(),
        br#"{"said":"zanzibar"}"#
    );
    first.close().await;
    second.close().await;
}
