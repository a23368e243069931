//! What an agent keeps, as the verbs read and change it. This is the one module of the binary that names the store (`cargo xtask tidy`
//! sees to it): whatever keeps a state in another way comes in here, and no verb knows.

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
    forgotten, public_key, restored,
};
#[cfg(not(feature = "postgres"))]
pub(crate) use clawk_store::{StateDir, StateDirReader as StateReader};

#[cfg(feature = "postgres")]
pub(crate) use super::postgres::{StateDir, StateReader};

/// Reads for who only shows: from the replica of a server (`[state] read_url`), where one is named. What it has may be older than what the
/// server has: who decides by what it reads, or writes afterwards, opens a [`StateReader`] itself.
///
/// # Errors
/// There is no state, or it can't be read.
pub(crate) fn read_only(dir: impl AsRef<Path>) -> Result<StateReader, StateError> {
    #[cfg(feature = "postgres")]
    return StateReader::open_replica(dir);
    #[cfg(not(feature = "postgres"))]
    StateReader::open(dir)
}

/// The public key of the host that keeps its state there. The key is made when there is none and nothing was signed yet.
///
/// # Errors
/// It can't be read or made, or the key that signed the journal is gone.
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

/// What happens where other hosts serve the same state on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharingPolicy {
    /// It is refused.
    Refused,
    /// All serve at the same time.
    Shares,
    /// This host joins the others for a moment; one that has the agent alone is not waited for.
    Joins,
}

/// A state directory with what a server keeps now, while hosts may serve it.
///
/// # Errors
/// It is larger than `most` bytes, the server is away, or the key of encrypted stores is missing or wrong.
#[cfg(feature = "postgres")]
pub(crate) fn copy_of_server(server: &StateServer, to: &Path, most: u64) -> Result<()> {
    super::moving::copy_of_server(server, to, most)
}

/// Stores on a server, each with what looks at it.
pub(crate) type InspectedStores = Vec<(Store, Arc<dyn MemoryInspector>)>;

/// The stores of a state on a server, with what looks at them; with the state open, they can be changed. `None`: the state lies in its
/// directory.
///
/// # Errors
/// The server is away.
#[cfg(feature = "postgres")]
pub(crate) fn on_server(reader: &StateReader, state: Option<&StateDir>) -> Result<Option<InspectedStores>> {
    Ok(super::postgres::stores(reader, state)?)
}

/// Serves what a server keeps.
///
/// # Errors
/// Another host has it alone, it is broken, the key of encrypted stores is missing or wrong, or the server is away.
#[cfg(feature = "postgres")]
pub(crate) async fn serve(
    dir: &Path,
    server: &StateServer,
    (agent, keys): (&str, Option<Keys>),
    beside: SharingPolicy,
) -> Result<StateDir> {
    let (dir, server, agent) = (dir.to_owned(), server.clone(), agent.to_owned());
    let opened =
        tokio::task::spawn_blocking(move || super::postgres::serve(&dir, &server, (&agent, keys), beside));
    Ok(opened.await??)
}

/// Nothing can begin once the lease is lost.
#[cfg(feature = "postgres")]
pub(crate) fn around(parts: AgentDependencies, state: &StateDir) -> AgentDependencies {
    super::postgres::around(parts, state)
}

/// Called before each start of the agent.
///
/// # Errors
/// The server is away, or another host has the agent alone.
#[cfg(feature = "postgres")]
pub(crate) async fn begin(state: &StateDir) -> Result<()> {
    Ok(state.begin().await?)
}

/// The journal for what outlives a start of the agent.
#[cfg(feature = "postgres")]
pub(crate) fn lasting_journal(state: &StateDir) -> Arc<dyn Journal> {
    state.lasting_journal()
}

/// Whether hosts share it, and whether this host does what one of them alone may do.
#[cfg(feature = "postgres")]
pub(crate) fn sharing(state: &StateDir) -> SharingStatus {
    SharingStatus {
        shared: state.is_shared(),
        leads: state.leads(),
    }
}

/// See [`sharing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharingStatus {
    pub(crate) shared: bool,
    pub(crate) leads: bool,
}

/// Ends when this host may not go on serving its state.
#[cfg(feature = "postgres")]
pub(crate) async fn served(state: &StateDir, host: &AgentHost) {
    super::postgres::served(state, host).await;
}

/// Another host has it.
#[cfg(feature = "postgres")]
pub(crate) fn is_fenced(state: &StateDir) -> bool {
    state.is_fenced()
}

/// It lies on a server, whose files are the server's own matter.
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

    pub(crate) async fn serve(
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

    pub(crate) fn around(parts: AgentDependencies, _state: &StateDir) -> AgentDependencies {
        parts
    }

    pub(crate) async fn begin(_state: &StateDir) -> Result<()> {
        Ok(())
    }

    pub(crate) fn lasting_journal(state: &StateDir) -> Arc<dyn Journal> {
        state.journal()
    }

    pub(crate) const fn sharing(_state: &StateDir) -> SharingStatus {
        SharingStatus {
            shared: false,
            leads: true,
        }
    }

    pub(crate) async fn served(_state: &StateDir, _host: &AgentHost) {
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
    around, begin, copy_of_server, is_fenced, is_on_server, lasting_journal, on_server, serve, served,
    sharing,
};

/// What `clawk state info` prints.
#[derive(Debug, Serialize)]
pub(crate) struct StateInfo {
    /// `sqlite` or `postgres`.
    pub(crate) kind: &'static str,
    /// The tables' version.
    pub(crate) schema: i64,
    /// Events in the journal.
    pub(crate) events: u64,
    /// Hosts that were seen.
    pub(crate) hosts: Vec<HostInfo>,
    /// Who holds what.
    pub(crate) leases: Vec<LeaseInfo>,
}

/// A host that was seen.
#[derive(Debug, Serialize)]
pub(crate) struct HostInfo {
    pub(crate) host: String,
    pub(crate) pid: i64,
    /// How long ago, milliseconds.
    pub(crate) seen_ms: i64,
}

/// A lease.
#[derive(Debug, Serialize)]
pub(crate) struct LeaseInfo {
    /// `*`: all sessions.
    pub(crate) session: String,
    pub(crate) host: String,
    pub(crate) epoch: i64,
    /// How long it still holds, milliseconds; `None`: it was given up.
    pub(crate) expires_ms: Option<i64>,
}

/// What keeps the state, and who serves it.
///
/// # Errors
/// It can't be read.
pub(crate) fn info(dir: &Path) -> Result<StateInfo> {
    #[cfg(feature = "postgres")]
    if let Some(server) = StateServer::of(dir)? {
        return Ok(super::postgres::info(&server)?);
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

/// Something is kept there, or the directory names the server that keeps it.
pub(crate) fn holds_state(dir: &Path) -> bool {
    dir.join(DATABASE).is_file() || StateServer::of(dir).is_ok_and(|found| found.is_some())
}

/// Keys of encrypted stores that this process has found, by their references.
static KEYS: Mutex<BTreeMap<String, SealKey>> = Mutex::new(BTreeMap::new());

/// What `--config` names, once for the whole program.
static CONFIG: OnceLock<PathBuf> = OnceLock::new();

/// Whoever opens a state directory without its agent finds the key by the reference that is written in it. `config`: the configuration
/// that `--config` names.
pub(crate) fn find_keys(config: Option<&Path>) {
    if let Some(config) = config {
        let _ = CONFIG.set(config.to_owned()); // silent-ok: this is called once
    }
    clawk_store::find_keys_by(find_key);
}

/// [`key`], for whoever opens a state.
pub(crate) fn find_key(reference: &str) -> Result<SealKey, String> {
    key(reference).map_err(|error| format!("{error:#}"))
}

/// The agent's own configuration gave this key.
pub(crate) fn remember_key(reference: &str, key: &SealKey) {
    let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    keys.insert(reference.to_owned(), key.clone());
}

/// The key of this reference: from the environment, `$CLAW_SECRETS_DIR`, or the secrets store of what `--config` names, else of the
/// user's own configuration. What a folder's `clawk.toml` names is never asked: a state directory may have come with the folder.
///
/// # Errors
/// It is not found, or is not a key.
pub(crate) fn key(reference: &str) -> Result<SealKey> {
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
