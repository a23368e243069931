//! Access of the commands to an agent's state. This is the only module of the program that names the store (checked by `cargo xtask
//! tidy`). Another kind of store is added here, and no command changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail};
use clawk_kernel::AgentDependencies;
use clawk_kernel::ports::{Journal, MemoryInspector};
use clawk_manifest::model::Store;
use clawk_recall::seal::SealKey;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use clawk_server::AgentHost;
use clawk_trace::checkpoint::PublicKey;
use serde::Serialize;

use super::server::StateServer;
use crate::config::Config;

pub(crate) use clawk_store::moving as sqlite;
pub(crate) use clawk_store::{
    AuditDb, AuditRow, ContentInventory, Delivery, ErasureSelection, Filter, Keys, MAX_FORGOTTEN, MemoryPart,
    Options, RememberedEntry, RestoreSelection, StateError, StoredEvent, StoredHead, WriteDurability,
    forgotten_journal_entries, public_key, restored_journal_entries,
};
#[cfg(not(feature = "postgres"))]
pub(crate) use clawk_store::{StateDir, StateDirReader as StateReader};

#[cfg(feature = "postgres")]
pub(crate) use super::postgres::{StateDir, StateReader};

/// Opens a state for display only: on the replica of a server (`[state] read_url`), if one is named. The replica may be behind. A
/// command that decides by what it reads, or writes afterwards, must open a [`StateReader`] itself.
///
/// # Errors
/// There is no state, or it can't be read.
pub(crate) fn read_only(dir: impl AsRef<Path>) -> Result<StateReader, StateError> {
    #[cfg(feature = "postgres")]
    return StateReader::open_replica(dir);
    #[cfg(not(feature = "postgres"))]
    StateReader::open(dir)
}

/// Returns the public key of the host with this state directory. Creates the key if there is none and nothing was signed yet.
///
/// # Errors
/// The key can't be read or made, or the key that signed the journal is missing.
pub(crate) fn host_key(dir: &Path) -> Result<PublicKey> {
    if let Some(key) = public_key(dir)? {
        return Ok(key);
    }
    if holds_state(dir) && !StateReader::open(dir)?.heads()?.is_empty() {
        bail!(
            "the key that signed the journal in `{}` is gone; put it back",
            dir.display()
        );
    }
    Ok(clawk_store::signer_of(dir)?.public())
}

/// What to do if other hosts serve the same state on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharingPolicy {
    /// Refuse to open the state.
    Refused,
    /// Serve it at the same time.
    Shares,
    /// Join the other hosts briefly. If one host has the state alone, do not wait for it.
    Joins,
}

/// Copies a server's current state to a directory, while hosts may serve it.
///
/// # Errors
/// The state is larger than `most` bytes, the server can't be reached, or the key of encrypted stores is missing or wrong.
#[cfg(feature = "postgres")]
pub(crate) fn copy_of_server(server: &StateServer, to: &Path, most: u64) -> Result<()> {
    super::moving::copy_of_server(server, to, most)
}

/// Stores on a server, each with its inspector.
pub(crate) type InspectedStores = Vec<(Store, Arc<dyn MemoryInspector>)>;

/// Returns the stores of a state on a server, with their inspectors. With the open state they can be changed. `None`: the state is
/// in its directory.
///
/// # Errors
/// The server can't be reached.
#[cfg(feature = "postgres")]
pub(crate) fn on_server(reader: &StateReader, state: Option<&StateDir>) -> Result<Option<InspectedStores>> {
    Ok(super::postgres::inspected_stores(reader, state)?)
}

/// Opens a state on a server for serving.
///
/// # Errors
/// Another host has the state alone, it is damaged, the key of encrypted stores is missing or wrong, or the server can't be
/// reached.
#[cfg(feature = "postgres")]
pub(crate) async fn serve_remote_state(
    dir: &Path,
    server: &StateServer,
    (agent, keys): (&str, Option<Keys>),
    beside: SharingPolicy,
) -> Result<StateDir> {
    let (dir, server, agent) = (dir.to_owned(), server.clone(), agent.to_owned());
    let opened = tokio::task::spawn_blocking(move || {
        super::postgres::serve_remote_state(&dir, &server, (&agent, keys), beside)
    });
    Ok(opened.await??)
}

/// Wraps the dependencies so that nothing can begin after the lease is lost.
#[cfg(feature = "postgres")]
pub(crate) fn guard_dependencies(parts: AgentDependencies, state: &StateDir) -> AgentDependencies {
    super::postgres::guard_dependencies(parts, state)
}

/// Called before each start of the agent.
///
/// # Errors
/// The server can't be reached, or another host has the agent alone.
#[cfg(feature = "postgres")]
pub(crate) async fn prepare_start(state: &StateDir) -> Result<()> {
    Ok(state.prepare_start().await?)
}

/// Returns the journal for components that outlive a run of the agent.
#[cfg(feature = "postgres")]
pub(crate) fn lasting_journal(state: &StateDir) -> Arc<dyn Journal> {
    state.lasting_journal()
}

/// Returns whether hosts share the state, and whether this host is the leader.
#[cfg(feature = "postgres")]
pub(crate) fn sharing_status(state: &StateDir) -> SharingStatus {
    SharingStatus {
        shared: state.is_shared(),
        leads: state.is_leader(),
    }
}

/// The result of [`sharing_status`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharingStatus {
    pub(crate) shared: bool,
    pub(crate) leads: bool,
}

/// Completes when this host must stop serving its state.
#[cfg(feature = "postgres")]
pub(crate) async fn wait_while_serving(state: &StateDir, host: &AgentHost) {
    super::postgres::wait_while_serving(state, host).await;
}

/// Returns whether another host has taken over the state.
#[cfg(feature = "postgres")]
pub(crate) fn is_fenced(state: &StateDir) -> bool {
    state.is_fenced()
}

/// Returns whether the state is on a server. The server's files are its operator's responsibility.
#[cfg(feature = "postgres")]
pub(crate) fn is_on_server(state: &StateDir) -> bool {
    state.is_on_server()
}

#[cfg(not(feature = "postgres"))]
mod left_out {
    use super::{
        AgentDependencies, AgentHost, Arc, InspectedStores, Journal, Keys, Path, Result, SharingPolicy,
        SharingStatus, StateDir, StateReader, StateServer,
    };

    #[expect(
        clippy::unnecessary_wraps,
        reason = "the build with PostgreSQL asks its server"
    )]
    pub(crate) fn on_server(
        _reader: &StateReader,
        _state: Option<&StateDir>,
    ) -> Result<Option<InspectedStores>> {
        Ok(None)
    }

    pub(crate) async fn serve_remote_state(
        _dir: &Path,
        _server: &StateServer,
        _agent: (&str, Option<Keys>),
        _beside: SharingPolicy,
    ) -> Result<StateDir> {
        anyhow::bail!(
            "the state lies on PostgreSQL, and this build of clawk leaves that out: build with `cargo build --release --features \
             postgres`, or use a shipped build (`cargo xtask dist`)"
        )
    }

    pub(crate) fn copy_of_server(_server: &StateServer, _to: &Path, _most: u64) -> Result<()> {
        anyhow::bail!("the state lies on PostgreSQL, and this build of clawk leaves that out")
    }

    pub(crate) fn guard_dependencies(parts: AgentDependencies, _state: &StateDir) -> AgentDependencies {
        parts
    }

    pub(crate) async fn prepare_start(_state: &StateDir) -> Result<()> {
        Ok(())
    }

    pub(crate) fn lasting_journal(state: &StateDir) -> Arc<dyn Journal> {
        state.journal()
    }

    pub(crate) const fn sharing_status(_state: &StateDir) -> SharingStatus {
        SharingStatus {
            shared: false,
            leads: true,
        }
    }

    pub(crate) async fn wait_while_serving(_state: &StateDir, _host: &AgentHost) {
        std::future::pending().await
    }

    pub(crate) const fn is_fenced(_state: &StateDir) -> bool {
        false
    }

    pub(crate) const fn is_on_server(_state: &StateDir) -> bool {
        false
    }
}
#[cfg(not(feature = "postgres"))]
pub(crate) use left_out::{
    copy_of_server, guard_dependencies, is_fenced, is_on_server, lasting_journal, on_server, prepare_start,
    serve_remote_state, sharing_status, wait_while_serving,
};

/// The output of `clawk state info`.
#[derive(Debug, Serialize)]
pub(crate) struct StateInfo {
    /// `sqlite` or `postgres`.
    pub(crate) kind: &'static str,
    /// Version of the tables.
    pub(crate) schema: i64,
    /// Number of events in the journal.
    pub(crate) events: u64,
    /// Hosts that have used the state.
    pub(crate) hosts: Vec<HostInfo>,
    /// Current and past leases.
    pub(crate) leases: Vec<LeaseInfo>,
}

/// A host that has used the state.
#[derive(Debug, Serialize)]
pub(crate) struct HostInfo {
    pub(crate) host: String,
    pub(crate) pid: i64,
    /// Time since the host was last seen, in milliseconds.
    pub(crate) seen_ms: i64,
}

/// A lease.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseInfo {
    /// The session, or `*` for all sessions.
    pub(crate) session: String,
    pub(crate) host: String,
    pub(crate) epoch: i64,
    /// Remaining time of the lease, in milliseconds; `None`: it was given up.
    pub(crate) expires_ms: Option<i64>,
}

/// Returns how the state is stored, and which hosts serve it.
///
/// # Errors
/// The state can't be read.
pub(crate) fn state_info(dir: &Path) -> Result<StateInfo> {
    #[cfg(feature = "postgres")]
    if let Some(server) = StateServer::from_dir(dir)? {
        return Ok(super::postgres::state_info(&server)?);
    }
    Ok(StateInfo {
        kind: "sqlite",
        schema: clawk_store::schema_version(dir)?,
        events: StateReader::open(dir)?.last_row()?,
        hosts: Vec::new(),
        leases: Vec::new(),
    })
}

/// The database of a state directory.
const DATABASE: &str = "state.db";

/// Returns whether the directory holds a state, or names the server that does.
pub(crate) fn holds_state(dir: &Path) -> bool {
    dir.join(DATABASE).is_file() || StateServer::from_dir(dir).is_ok_and(|found| found.is_some())
}

/// Keys of encrypted stores that this process has found, by reference.
static KEYS: Mutex<BTreeMap<String, SealKey>> = Mutex::new(BTreeMap::new());

/// The file that `--config` names, set once for the whole program.
static CONFIG: OnceLock<PathBuf> = OnceLock::new();

/// Sets how a state directory's key is found without its agent: by the reference written in the directory. `config`: the file that
/// `--config` names.
pub(crate) fn find_keys(config: Option<&Path>) {
    if let Some(config) = config {
        let _ = CONFIG.set(config.to_owned()); // silent-ok: this is called once
    }
    clawk_store::find_keys_by(find_key);
}

/// Calls [`load_key`] for code that opens a state.
pub(crate) fn find_key(reference: &str) -> Result<SealKey, String> {
    load_key(reference).map_err(|error| format!("{error:#}"))
}

/// Stores a key that the agent's own configuration gave.
pub(crate) fn remember_key(reference: &str, key: &SealKey) {
    let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    keys.insert(reference.to_owned(), key.clone());
}

/// Returns the key of this reference: from the environment, `$CLAW_SECRETS_DIR`, or the secrets store of the file that `--config`
/// names, else of the user's own configuration. A folder's `clawk.toml` is never used, because the state directory may have come
/// with the folder.
///
/// # Errors
/// The key is not found, or is not valid.
pub(crate) fn load_key(reference: &str) -> Result<SealKey> {
    let known = KEYS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(reference)
        .cloned();
    if let Some(known) = known {
        return Ok(known);
    }
    let config = Config::load(CONFIG.get().map(PathBuf::as_path), None)?;
    let resolver = SecretResolver::new(
        &config.settings.secrets_store,
        &config.folder(),
        EnvironmentSource::Process,
    )?;
    let key = SealKey::from_hex(resolver.resolve(reference)?.expose())?;
    remember_key(reference, &key);
    Ok(key)
}

/// Returns who owns the state directory, if the error says that another process does.
pub(crate) fn lock_holder(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(clawk_store::StateError::Locked { holder, .. }) => Some(holder.clone()),
        Some(_) | None => None,
    })
}
