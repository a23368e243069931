//! What the contract of the port does not say: servers that are away or slow, TLS, several processes, secrets. The contract itself
//! runs in `clawk-store`, over every back end.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests: a panic is how they fail, and they start the server that they need"
)]

mod again;
mod answers;
mod away;
mod fenced;
mod forged;
mod forget;
mod hidden;
mod secure;
#[path = "../../../../tests/parts/postgres.rs"]
mod server;
mod shared;
mod woken;

use std::sync::Arc;
use std::time::Duration;

use clawk_kernel::ports::{Batch, Memory as _, MemoryError, MemorySearch, Scope, StoreQuery};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::Store;
use clawk_postgres::{Options, PgDatabase, PgMemory, TlsMode};
use clawk_proto::method::NewEntry;
use clawk_recall::entry::{ConversationFilter, EntryHit, EntryInsertion, EntryProvenance, EntrySearchResult};
use clawk_secrets::{EnvironmentSource, Secret};
use serde_json::{Value, json};
use server::Server;

const T0: Timestamp = Timestamp(1_700_000_000_000_000);

impl Server {
    /// `HOST:PORT`.
    fn address(&self) -> String {
        let url = self.url();
        let place = url.split('@').nth(1).and_then(|rest| rest.split('/').next());
        place.unwrap().to_owned()
    }
}

fn options(server: &Server) -> Options {
    Options {
        password: Some(Secret::new("PG_PASSWORD", Server::PASSWORD)),
        tls: TlsMode::Disable,
        // A busy machine is slow, and no test waits for these.
        connect_timeout: Duration::from_secs(30),
        operation_timeout: Duration::from_secs(60),
        ..Options::new(Secret::new("url", server.url()))
    }
}

fn memory(options: Options) -> PgMemory {
    let database = PgDatabase::new(options, &EnvironmentSource::Process).unwrap();
    PgMemory::new(database, "hello")
}

fn store(mut spec: Value) -> Store {
    let members = spec.as_object_mut().unwrap();
    members.entry("name").or_insert(json!("s"));
    members.entry("backend").or_insert(json!("postgresql"));
    serde_json::from_value(spec).unwrap()
}

fn here() -> Scope {
    Scope {
        identity: "a".to_owned(),
        channel: String::new(),
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

async fn keep(
    memory: &PgMemory,
    store: &Store,
    entries: Vec<EntryInsertion>,
) -> Result<Vec<String>, MemoryError> {
    memory
        .store_entries(store, &here(), entries, T0, Batch::default())
        .await
}

async fn ask(memory: &PgMemory, store: &Store, query: StoreQuery) -> Result<Vec<EntryHit>, MemoryError> {
    Ok(found(memory, store, query).await?.hits)
}

async fn found(
    memory: &PgMemory,
    store: &Store,
    query: StoreQuery,
) -> Result<EntrySearchResult, MemoryError> {
    let ask = MemorySearch {
        whose: ConversationFilter::All,
        query,
        vector: None,
        limit: 1000,
    };
    memory.search_entries(store, &here(), ask).await
}

async fn ids(memory: &PgMemory, store: &Store) -> Vec<String> {
    let all = StoreQuery::Between(Timestamp(0), Timestamp(i64::MAX));
    let hits = ask(memory, store, all).await.unwrap();
    hits.into_iter().map(|hit| hit.entry.id).collect()
}

/// SQL in a session of its own, which ends in a long `pg_sleep`; it goes on until this is dropped.
struct Beside<'a> {
    server: &'a Server,
    client: std::process::Child,
}

impl<'a> Beside<'a> {
    fn start(server: &'a Server, sql: &str) -> Self {
        let mut command = server.psql(&format!("{sql}; SELECT pg_sleep(600)"));
        let quiet = std::process::Stdio::null;
        let client = command.stdout(quiet()).stderr(quiet()).spawn().unwrap();
        Self { server, client }
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(600)' AND pid <> pg_backend_pid()");
        let _ended = self.client.kill();
        let _reaped = self.client.wait();
    }
}

/// Waits until the condition holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("did not come: {what}");
}

fn shared(memory: &PgMemory) -> Arc<PgMemory> {
    Arc::new(memory.clone())
}
