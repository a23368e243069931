//! Rolling restarts over a step, on a real server.

use std::time::Duration;

use clawk_secrets::{EnvironmentSource, Secret};

use super::*;
use crate::connect::ConnectionTarget;
use crate::options::{Options, TlsMode};
use crate::tls::{self, PgTlsConnector};
use crate::{PgDatabase, PgState, PgStateError, ServingOptions, StateSharing};

#[path = "../../../../tests/parts/postgres.rs"]
mod database;

use database::Server;

fn options(server: &Server) -> Options {
    Options {
        password: Some(Secret::new("test", Server::PASSWORD)),
        tls: TlsMode::Disable,
        connect_timeout: Duration::from_secs(20),
        operation_timeout: Duration::from_secs(30),
        ..Options::new(Secret::new("test", server.url()))
    }
}

/// A connection on which nothing was migrated.
async fn bare(server: &Server) -> PgConnection {
    let options = options(server);
    let tls = PgTlsConnector(tls::client_config(options.tls, None, &EnvironmentSource::Process).unwrap());
    ConnectionTarget::new(&options, tls)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// A program that knows these steps connects.
async fn starts(server: &Server, steps: &[MigrationStep]) -> Result<(), String> {
    let session = bare(server).await;
    session.run_statements("BEGIN").await.unwrap();
    let done = migrate_schema(&session, "clawk", steps).await;
    let word = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    session.run_statements(word).await.unwrap();
    done.map_err(|failure| failure.text())
}

fn with_seventh(oldest: i32) -> Vec<MigrationStep> {
    let sql = "CREATE TABLE clawk.seventh ()";
    STEPS.into_iter().chain([MigrationStep { sql, oldest }]).collect()
}

fn serving(host: &str) -> ServingOptions {
    ServingOptions {
        sharing: StateSharing::Shared,
        lease: Duration::from_secs(600),
        ..ServingOptions::new("tested", host, 1)
    }
}

async fn open(server: &Server, host: &str) -> Result<PgState, PgStateError> {
    let database = PgDatabase::new(options(server), &EnvironmentSource::Process).unwrap();
    PgState::open(database, serving(host), Some(Duration::ZERO)).await
}

const LIVE: &str = "SELECT string_agg(host, ',' ORDER BY run) FROM clawk.runs WHERE NOT gone";

#[test]
fn what_is_known_is_the_last_step() {
    assert_eq!(usize::try_from(KNOWN).unwrap(), STEPS.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_adds_is_done_while_hosts_of_the_version_before_serve() {
    let server = Server::start();
    // A host of the version before has made the state, and serves it.
    starts(&server, &STEPS[..4]).await.unwrap();
    server.sql("INSERT INTO clawk.runs (host, pid, expires) VALUES ('old', 1, now() + interval '1 hour')");
    let state = open(&server, "new").await.unwrap();
    assert_eq!(server.sql(LIVE), "old,new");
    assert_eq!(
        server.sql("SELECT oldest FROM clawk.migrations WHERE step = 5"),
        "4",
        "the database says who can serve it"
    );
    // A later version adds a step that this one can serve: both go on.
    starts(&server, &with_seventh(6)).await.unwrap_err(); // `old` knows step 4 only
    server.sql("UPDATE clawk.runs SET gone = true WHERE host = 'old'");
    starts(&server, &with_seventh(6)).await.unwrap();
    assert_eq!(server.sql(LIVE), "new");
    let another = open(&server, "another").await.unwrap();
    assert_eq!(server.sql(LIVE), "new,another");
    another.close().await;
    state.close().await;
    assert_eq!(server.sql("SELECT max(step) FROM clawk.migrations"), "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_changes_waits_for_the_end_of_older_hosts_and_then_shuts_them_out() {
    let server = Server::start();
    let state = open(&server, "old").await.unwrap();
    state.begin_run().await.unwrap();
    let refused = starts(&server, &with_seventh(7)).await.unwrap_err();
    assert!(refused.contains("the host `old`"), "{refused}");
    assert_eq!(server.sql("SELECT max(step) FROM clawk.migrations"), "6");
    // It sleeps: its time is over, and it does not know.
    server.sql("UPDATE clawk.runs SET expires = now() - interval '1 second'");
    starts(&server, &with_seventh(7)).await.unwrap();
    assert_eq!(server.sql(LIVE), "", "it can record nothing any more");
    // Awake again, it wants to join anew on the connections that it has.
    let refused = state.begin_run().await.unwrap_err().to_string();
    assert!(
        refused.contains("step 7") && refused.contains("start such a version"),
        "{refused}"
    );
    let refused = open(&server, "another").await.unwrap_err().to_string();
    assert!(refused.contains("step 7"), "{refused}");
    assert_eq!(server.sql(LIVE), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_host_that_has_the_whole_agent_is_asked_too() {
    let server = Server::start();
    let database = PgDatabase::new(options(&server), &EnvironmentSource::Process).unwrap();
    let alone = ServingOptions {
        sharing: StateSharing::Alone,
        ..serving("alone")
    };
    let state = PgState::open(database, alone, Some(Duration::ZERO))
        .await
        .unwrap();
    let refused = starts(&server, &with_seventh(7)).await.unwrap_err();
    assert!(refused.contains("the host `alone`"), "{refused}");
    starts(&server, &with_seventh(6)).await.unwrap();
    state.close().await;
}
