//! What a host may append beside others: nothing after it was marked as gone, nothing to a session that another one holds. And what the
//! transaction of a batch takes and gives back.

use clawk_kernel::ports::{
    AnswerKey, BatchConditions, BatchReservation, Journal as _, JournalEntry, JournalError, SessionHolder,
    UnmetCondition,
};
use clawk_kernel::purse::BudgetAmount;
use clawk_postgres::{PgState, ServingOptions, StateSharing};
use clawk_proto::SessionId;
use uuid::Uuid;

use super::*;

const SESSION: SessionId = SessionId(Uuid::from_u128(1));
/// No test waits for the end of a lease.
const LEASE: Duration = Duration::from_secs(600);

pub(super) async fn open(server: &Server, host: &str) -> PgState {
    let database = PgDatabase::new(options(server), &EnvironmentSource::Process).unwrap();
    let serving = ServingOptions {
        sharing: StateSharing::Shared,
        lease: LEASE,
        ..ServingOptions::new("hello", host, 1)
    };
    PgState::open(database, serving, Some(Duration::ZERO))
        .await
        .unwrap()
}

fn entry(n: u128) -> JournalEntry {
    JournalEntry {
        session: SESSION,
        at: T0,
        event_id: Uuid::from_u128(n),
        span: Uuid::from_u128(0x5000),
        parent: None,
        kind: "ckp.test",
        payload: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
        content: None,
        answers: None,
    }
}

async fn append(state: &PgState, n: u128, terms: BatchConditions) -> Result<(), JournalError> {
    write(state, entry(n), terms).await
}

async fn write(state: &PgState, entry: JournalEntry, terms: BatchConditions) -> Result<(), JournalError> {
    let batch = Batch {
        entries: vec![entry],
        terms: Some(Box::new(terms)),
        ..Batch::default()
    };
    state.journal().submit_batch(batch)?.wait_until_durable().await
}

fn events(server: &Server) -> String {
    server.sql("SELECT count(*) FROM clawk.events")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_marked_as_gone_appends_nothing() {
    let server = Server::start();
    let state = open(&server, "a").await;
    append(&state, 1, BatchConditions::default()).await.unwrap();
    server.sql("UPDATE clawk.runs SET gone = true");
    append(&state, 2, BatchConditions::default()).await.unwrap_err();
    assert_eq!(events(&server), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_another_host_holds_takes_no_event() {
    let server = Server::start();
    let (first, second) = (open(&server, "a").await, open(&server, "b").await);
    append(&first, 1, BatchConditions::default()).await.unwrap();
    let refused = append(&second, 2, BatchConditions::default()).await;
    assert!(
        matches!(&refused, Err(JournalError::Fenced { host }) if host == "a"),
        "{refused:?}"
    );
    assert_eq!(events(&server), "1");
    let shared = second.journal().host_cluster().unwrap();
    assert_eq!(
        shared.hold_session(SESSION).await.unwrap(),
        SessionHolder::There("a".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_given_up_only_as_it_was_taken() {
    let server = Server::start();
    let state = open(&server, "a").await;
    append(&state, 1, BatchConditions::default()).await.unwrap();
    let holder = "SELECT run IS NULL FROM clawk.leases WHERE session <> '*'";
    // It was taken anew since.
    server.sql("UPDATE clawk.leases SET epoch = epoch + 1 WHERE session <> '*'");
    let shared = state.journal().host_cluster().unwrap();
    shared.release_session(SESSION);
    state.journal().flush().await.unwrap();
    assert_eq!(server.sql(holder), "f", "an old release frees nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_did_not_run_may_be_begun_by_another_session() {
    let server = Server::start();
    let (first, second) = (open(&server, "a").await, open(&server, "b").await);
    let key = AnswerKey {
        method: 0,
        request_id: [7; 16],
    };
    let claims = || BatchConditions {
        claim: Some(key),
        ..BatchConditions::default()
    };
    let disclaims = || BatchConditions {
        disclaim: Some(key),
        ..BatchConditions::default()
    };
    let other = |n| JournalEntry {
        session: SessionId(Uuid::from_u128(2)),
        ..entry(n)
    };
    let taken = Err(JournalError::Unmet(UnmetCondition::Claimed));
    append(&first, 1, claims()).await.unwrap();
    assert_eq!(write(&second, other(2), claims()).await, taken);
    // Whose request it is not can't give it up.
    write(&second, other(3), disclaims()).await.unwrap();
    assert_eq!(write(&second, other(4), claims()).await, taken);
    append(&first, 5, disclaims()).await.unwrap();
    write(&second, other(6), claims()).await.unwrap();
    assert_eq!(append(&first, 7, claims()).await, taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_aside_is_given_back_by_the_batch_that_spends_it() {
    let server = Server::start();
    let state = open(&server, "a").await;
    let id = Uuid::from_u128(7);
    let aside = BatchReservation {
        id,
        purses: vec!["agent".into()],
        amount: BudgetAmount {
            tokens: 100,
            ..BudgetAmount::default()
        },
    };
    let terms = BatchConditions {
        aside: Some(aside),
        ..BatchConditions::default()
    };
    append(&state, 1, terms).await.unwrap();
    let reserved = "SELECT coalesce(sum(tokens), 0) FROM clawk.reserved";
    assert_eq!(server.sql(reserved), "100");
    let terms = BatchConditions {
        settles: Some(id),
        ..BatchConditions::default()
    };
    append(&state, 2, terms).await.unwrap();
    assert_eq!(server.sql(reserved), "0");
}

/// An agent that ends slowly, in a process that has started it anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_an_earlier_start_records_nothing_and_takes_nothing() {
    let server = Server::start();
    let state = open(&server, "a").await;
    state.begin_run().await.unwrap();
    let (before, lasting) = (state.journal(), state.lasting_journal());
    let hosts_before = before.host_cluster().unwrap();
    append(&state, 1, BatchConditions::default()).await.unwrap();
    assert!(hosts_before.holds_session(SESSION) && !hosts_before.is_lost());
    state.begin_run().await.unwrap();
    let hosts = state.journal().host_cluster().unwrap();
    assert_eq!(hosts.hold_session(SESSION).await.unwrap(), SessionHolder::Taken);
    let batch = |n| Batch {
        entries: vec![entry(n)],
        ..Batch::default()
    };
    let refused = before.submit_batch(batch(2)).map(drop);
    assert!(matches!(refused, Err(JournalError::Fenced { .. })), "{refused:?}");
    assert!(hosts_before.is_lost() && !hosts_before.holds_session(SESSION));
    hosts_before.hold_session(SESSION).await.unwrap_err();
    // A session that ended there is not given up here.
    hosts_before.release_session(SESSION);
    state.journal().flush().await.unwrap();
    assert!(hosts.holds_session(SESSION));
    append(&state, 3, BatchConditions::default()).await.unwrap();
    lasting
        .submit_batch(batch(4))
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    assert_eq!(events(&server), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_decided_behind_a_stop_that_the_host_does_not_know() {
    let server = Server::start();
    let state = open(&server, "a").await;
    append(&state, 1, BatchConditions::default()).await.unwrap();
    let stop = JournalEntry {
        session: SessionId(Uuid::from_u128(2)),
        kind: clawk_kernel::kind::STOP_ENGAGED,
        ..entry(2)
    };
    let batch = Batch {
        entries: vec![stop],
        ..Batch::default()
    };
    state
        .journal()
        .submit_batch(batch)
        .unwrap()
        .wait_until_durable()
        .await
        .unwrap();
    let knows = |row| BatchConditions {
        stops: Some(row),
        ..BatchConditions::default()
    };
    let refused = append(&state, 3, knows(1)).await;
    assert_eq!(refused, Err(JournalError::Unmet(UnmetCondition::Stopped)));
    assert_eq!(events(&server), "2");
    append(&state, 3, knows(2)).await.unwrap();
}

/// What is not settled in a session is settled by whoever takes it over, also when its host ends in order.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_with_something_unsettled_is_left_to_be_taken_over() {
    let server = Server::start();
    let (first, second) = (open(&server, "a").await, open(&server, "b").await);
    append(&first, 1, BatchConditions::default()).await.unwrap();
    let hosts = first.journal().host_cluster().unwrap();
    hosts.mark_unsettled(&[SESSION]);
    hosts.release_session(SESSION);
    first.journal().flush().await.unwrap();
    let holder = "SELECT run IS NULL FROM clawk.leases WHERE session <> '*'";
    assert_eq!(server.sql(holder), "f", "it is not given up");
    first.close().await;
    let others = second.journal().host_cluster().unwrap();
    assert_eq!(others.take_over().await.unwrap(), [SESSION]);
    // What is settled is given up as ever.
    others.mark_unsettled(&[SESSION]);
    others.all_settled(&[SESSION]);
    others.release_session(SESSION);
    second.journal().flush().await.unwrap();
    assert_eq!(server.sql(holder), "t");
}

/// The server is away, and something of a session can't be written.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_which_something_was_not_written_is_not_given_up() {
    let mut server = Server::start();
    let (first, second) = (open(&server, "a").await, open(&server, "b").await);
    append(&first, 1, BatchConditions::default()).await.unwrap();
    let hosts = first.journal().host_cluster().unwrap();
    server.stop();
    let lost = append(&first, 2, BatchConditions::default()).await;
    assert!(matches!(lost, Err(JournalError::Away(_))), "{lost:?}");
    server.again();
    for _ in 0..600 {
        if append(&first, 3, BatchConditions::default()).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    hosts.release_session(SESSION);
    first.close().await;
    let others = second.journal().host_cluster().unwrap();
    assert_eq!(others.take_over().await.unwrap(), [SESSION]);
}
