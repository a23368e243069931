//! A state on PostgreSQL, with the same operations as a state directory.
//!
//! Requests to the server run on a separate runtime, so that a read that blocks its thread gets its answer.

mod dir;
mod erase;
mod guard;
mod heads;
pub(crate) mod moving;
mod reader;

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result};
use clawk_kernel::ports::MemoryInspector;
use clawk_postgres::{Options, PgDatabase, PgReader, PgStateError, TlsMode};
use clawk_secrets::{EnvironmentSource, Secret, SecretResolver};
use clawk_store::StateError;
use tokio::runtime::{Handle, Runtime};

pub(crate) use dir::{StateDir, serve_remote_state};
pub(crate) use guard::{guard_dependencies, wait_while_serving};
pub(crate) use reader::StateReader;

use super::kept::{HostInfo, InspectedStores, LeaseInfo, StateInfo};
use super::server::StateServer;
use crate::config::Config;

/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Shortest idle timeout of a transaction.
const IDLE: Duration = Duration::from_millis(1_500);
/// Time limit for one operation.
const OPERATION: Duration = Duration::from_secs(15);

/// Returns the runtime of the connections. It lives until the process ends.
fn runtime_handle() -> Result<&'static Handle, StateError> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let builder = builder
            .worker_threads(1)
            .thread_name("clawk-postgres")
            .enable_all();
        builder.build().map_err(|error| error.to_string())
    });
    match made {
        Ok(runtime) => Ok(runtime.handle()),
        Err(error) => Err(StateError::Server(format!("can't start a thread: {error}"))),
    }
}

/// Runs work on that runtime and blocks until it is done. Every operation of the work has its deadline.
pub(super) fn block_on<T: Send + 'static>(
    work: impl Future<Output = Result<T, PgStateError>> + Send + 'static,
) -> Result<T, StateError> {
    let (send, receive) = sync_channel(1);
    runtime_handle()?.spawn(async move {
        let _gone = send.send(work.await); // silent-ok: whoever asked has ended
    });
    // Move the other tasks of this worker to another thread: one of them may hold the connection that this work waits for, or may
    // be the one that lets this host serve again.
    let on_worker = tokio::runtime::Handle::try_current()
        .is_ok_and(|agents| agents.runtime_flavor() == tokio::runtime::RuntimeFlavor::MultiThread);
    let done = if on_worker {
        tokio::task::block_in_place(|| receive.recv())
    } else {
        receive.recv()
    };
    match done {
        Ok(done) => done.map_err(of_server),
        Err(_) => Err(StateError::Server(
            "the work on PostgreSQL ended by itself".to_owned(),
        )), // silent-ok: as said
    }
}

pub(super) fn of_server(error: PgStateError) -> StateError {
    StateError::Server(error.to_string())
}

/// The kind of access to a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DatabaseAccess {
    /// Read the server itself, so the data is current.
    Read,
    /// Read the replica (`read_url`), if there is one. Its data may be behind.
    ReadReplica,
    /// Write, with exclusive access.
    Write,
    /// Serve, possibly beside other hosts.
    Serve,
}

fn build_database(server: &StateServer, what: DatabaseAccess) -> Result<PgDatabase> {
    let read_only = matches!(what, DatabaseAccess::Read | DatabaseAccess::ReadReplica);
    let url = match (&server.read_url, what) {
        (Some(url), DatabaseAccess::ReadReplica) => url,
        _ => &server.url,
    };
    let made = Options {
        password: server_password(server)?,
        tls: if is_local(url) {
            TlsMode::Disable
        } else {
            TlsMode::VerifyFull
        },
        ca_file: server.ca_file.clone(),
        schema: server.schema.clone(),
        connections: server.pool,
        connect_timeout: CONNECT,
        operation_timeout: OPERATION,
        // A host that is paused in the middle of a commit blocks the others for less than its lease.
        idle_timeout: (what == DatabaseAccess::Serve)
            .then(|| (Duration::from_millis(server.lease_ms) * 2 / 3).max(IDLE)),
        pgvector: !read_only,
        read_only,
        url: Secret::new("[state] url", url.as_str()),
    };
    Ok(PgDatabase::with_runtime(
        made,
        &EnvironmentSource::Process,
        runtime_handle()?.clone(),
    )?)
}

/// Returns the stores of a state on a server, with their inspectors. With the open state they can be changed.
///
/// # Errors
/// The server can't be reached.
pub(crate) fn inspected_stores(
    reader: &StateReader,
    state: Option<&StateDir>,
) -> Result<Option<InspectedStores>, StateError> {
    let memory = match (state, reader) {
        (_, StateReader::Sqlite(_)) => return Ok(None),
        (Some(StateDir::Postgres(remote)), _) => remote.stores(),
        (Some(StateDir::Sqlite(_)) | None, StateReader::Postgres { reader, .. }) => {
            let asked = reader.clone();
            let Some(agent) = block_on(async move { asked.state_info().await })?.agent else {
                return Ok(Some(Vec::new()));
            };
            reader.memory(&agent)
        }
    };
    let lacks = match state {
        None => reader.lacks_key(),
        Some(_) => None,
    };
    let asked = memory.clone();
    let stores = block_on(async move {
        let stores = asked.list_stores().await;
        stores.map_err(|error| PgStateError::Database(error.to_string()))
    })?;
    if let (Some(why), Some(store)) = (lacks, stores.iter().find(|store| store.encryption)) {
        return Err(StateError::Sealed {
            path: reader.state().to_owned(),
            stores: format!("`{}`", store.name),
            why: why.to_owned(),
        });
    }
    let memory: Arc<dyn MemoryInspector> = Arc::new(memory);
    Ok(Some(
        stores
            .into_iter()
            .map(|store| (store, Arc::clone(&memory)))
            .collect(),
    ))
}

/// Returns how the state is stored, and which hosts serve it.
pub(crate) fn state_info(server: &StateServer) -> Result<StateInfo, StateError> {
    let reader = PgReader::new(open_database(server, DatabaseAccess::ReadReplica)?);
    let found = block_on(async move { reader.state_info().await })?;
    let hosts = found.hosts.into_iter().map(|seen| HostInfo {
        host: seen.host,
        pid: seen.pid,
        seen_ms: seen.seen_ms,
    });
    let leases = found.leases.into_iter().map(|seen| LeaseInfo {
        session: seen.session,
        host: seen.host,
        epoch: seen.epoch,
        expires_ms: seen.expires_ms,
    });
    Ok(StateInfo {
        kind: "postgres",
        schema: found.schema.into(),
        events: found.events,
        hosts: hosts.collect(),
        leases: leases.collect(),
    })
}

/// Returns the password; `None`: the server may not require one.
fn server_password(server: &StateServer) -> Result<Option<Secret>> {
    let resolver = match &server.config {
        Some(file) => {
            let config = Config::load(Some(file), None)?;
            SecretResolver::new(
                &config.settings.secrets_store,
                &config.folder(),
                EnvironmentSource::Process,
            )?
        }
        None => SecretResolver::without_store(EnvironmentSource::Process),
    };
    match resolver.resolve(&server.password) {
        Ok(secret) => Ok(Some(secret)),
        Err(error) if server.password_named => Err(error).context("`[state] password`"),
        Err(_) => Ok(None), // silent-ok: nobody named one
    }
}

/// Returns whether every server of the URL is on this machine.
fn is_local(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = place.rsplit_once('@').map_or(place, |(_, hosts)| hosts);
    hosts.split(',').all(|host| {
        let name = match host.strip_prefix('[') {
            Some(six) => six.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        name == "localhost"
            || name.starts_with("%2F")
            || name
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    })
}

/// Returns the server that a directory names.
fn server_of_dir(dir: &Path) -> Result<Option<StateServer>, StateError> {
    StateServer::from_dir(dir).map_err(|error| StateError::Server(format!("{error:#}")))
}

fn open_database(server: &StateServer, what: DatabaseAccess) -> Result<PgDatabase, StateError> {
    build_database(server, what).map_err(|error| StateError::Server(format!("{error:#}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clawk_postgres::PgStateError;

    use super::block_on;

    /// The agent's runtime has one worker. A task that waits for the server may wait for what another task of that worker holds.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the runtime ends with the test")]
    fn who_waits_for_the_server_leaves_the_worker_to_the_other_tasks() {
        let agents = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (say, hear) = tokio::sync::oneshot::channel();
        let waited = agents.block_on(async {
            let waiting = tokio::spawn(async move {
                tokio::spawn(async move { say.send(()) });
                block_on(async move {
                    let heard = tokio::time::timeout(Duration::from_secs(20), hear).await;
                    heard
                        .map(drop)
                        .map_err(|_| PgStateError::Broken("the other task did not run".to_owned()))
                })
            });
            waiting.await.unwrap()
        });
        waited.unwrap();
    }
}
