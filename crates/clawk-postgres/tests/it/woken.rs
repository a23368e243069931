//! A host that has nothing to do is woken by the others, and sees in what it reads anyway whether there is something to take over.

use clawk_kernel::ports::{HostCluster, HostOrder, Journal as _, JournalEntry};
use clawk_postgres::{PgState, ServingOptions, StateSharing};
use clawk_proto::SessionId;
use clawk_trace::canonical::payload_of;
use uuid::Uuid;

use super::*;

async fn host(server: &Server, name: &str) -> PgState {
    let database = PgDatabase::new(options(server), &EnvironmentSource::Process).unwrap();
    let serving = ServingOptions {
        sharing: StateSharing::Shared,
        // Nobody is lost on a busy machine.
        lease: Duration::from_secs(600),
        ..ServingOptions::new("hello", name, 1)
    };
    PgState::open(database, serving, None).await.unwrap()
}

fn shared_by(state: &PgState) -> Arc<dyn HostCluster> {
    state.journal().host_cluster().unwrap()
}

fn order(n: u128) -> HostOrder {
    HostOrder {
        id: Uuid::from_u128(n),
        session: SessionId(Uuid::from_u128(n)),
        wish: b"{}".to_vec(),
    }
}

async fn said(state: &PgState, n: u64) {
    let batch = Batch {
        entries: vec![JournalEntry {
            session: SessionId(Uuid::from_u128(99)),
            event_id: Uuid::from_u128(u128::from(n)),
            span: Uuid::from_u128(3),
            parent: None,
            at: T0,
            kind: "action.executed",
            payload: payload_of(&json!({ "n": n })).unwrap(),
            content: None,
            answers: None,
        }],
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

async fn woken(host: &dyn HostCluster, by: &str) {
    let waited = tokio::time::timeout(Duration::from_secs(60), host.wait_for_wake()).await;
    assert!(waited.is_ok(), "not woken by {by}");
}

#[tokio::test]
async fn an_idle_host_is_woken_by_orders_and_by_a_commit_after_a_quiet_time() {
    let server = Server::start();
    let (first, second) = (host(&server, "a").await, host(&server, "b").await);
    let (here, there) = (shared_by(&first), shared_by(&second));
    // It listens from its first look on.
    here.poll_news(false).await.unwrap();
    there.give_order(order(1)).await.unwrap();
    woken(&*here, "an order").await;
    said(&second, 1).await;
    woken(&*here, "a commit").await;
    // Anybody on the server can notify. It says nothing: the tables do.
    let before = here.poll_news(false).await.unwrap().last_row;
    server.sql("NOTIFY clawk, 'stop everything'");
    woken(&*here, "somebody").await;
    let news = here.poll_news(false).await.unwrap();
    assert!(news.orders.is_empty() && news.last_row == before);
    // Connections end: another one listens from the next look on.
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'clawk'");
    while here.poll_news(false).await.is_err() {}
    while there.give_order(order(2)).await.is_err() {}
    woken(&*here, "an order over new connections").await;
    first.close().await;
    second.close().await;
}

#[tokio::test]
async fn what_can_be_taken_over_is_seen_without_a_lock_and_is_gone_afterwards() {
    let server = Server::start();
    let (first, second) = (host(&server, "a").await, host(&server, "b").await);
    let (here, there) = (shared_by(&first), shared_by(&second));
    let due = async || here.poll_news(true).await.unwrap().due;
    assert!(due().await, "nobody leads");
    assert!(here.take_over().await.unwrap().is_empty());
    assert!(here.is_leader() && !due().await);
    let session = SessionId(Uuid::from_u128(7));
    there.hold_session(session).await.unwrap();
    assert!(!due().await, "its holder is there");
    assert!(!here.poll_news(false).await.unwrap().due);
    server.sql("UPDATE clawk.runs SET expires = '-infinity' WHERE host = 'b'");
    assert!(due().await, "a host's time is over");
    assert_eq!(here.take_over().await.unwrap(), [session]);
    assert!(!due().await);
    // An order for a session that nobody holds.
    here.give_order(order(8)).await.unwrap();
    assert!(due().await, "an order has no holder");
    assert_eq!(here.take_over().await.unwrap(), [order(8).session]);
    assert!(!due().await);
    // A session of a host that is gone, which nobody has taken yet.
    server.sql(
        "INSERT INTO clawk.leases (session, host, epoch, expires, run) \
         SELECT '00000000-0000-0000-0000-000000000009', 'b', 1, 'infinity', run FROM clawk.runs WHERE host = 'b'",
    );
    assert!(due().await, "a lease of a host that is gone");
    assert_eq!(here.take_over().await.unwrap().len(), 1);
    // Its own run is over.
    server.sql("UPDATE clawk.runs SET gone = true WHERE host = 'a'");
    assert!(due().await, "its own run is over");
    assert!(here.take_over().await.is_err() && here.is_lost());
    first.close().await;
    second.close().await;
}
