//! The state that this process serves: in a directory, or on a server with a directory beside it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, Journal, JournalEntry, JournalError, Memory};
use clawk_kernel::time::{Clock, Timestamp};
use clawk_postgres::{
    ContentRemoval, PgDatabase, PgMemory, PgReader, PgState, PgStateError, ServingOptions, StateSharing,
};
use clawk_proto::trace::SealedEvent;
use clawk_proto::{Digest, SessionId};
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::SealKeyring;
use clawk_store::{
    Delivery, ErasureResult, ErasureSelection, Keys, MemoryPart, Options, RememberedEntry, RestoreSelection,
    StateError, StoredHead, WriterStats,
};
use clawk_trace::VerificationReport;
use clawk_trace::checkpoint::{PublicKey, TraceSigner};

use super::{DatabaseAccess, block_on, open_database, reader, server_of_dir};
use crate::out;
use crate::state::kept::{self, SharingPolicy};
use crate::state::server::{FailoverMode, StateServer};

/// Time limit for a host that joins briefly to wait for one that has the agent alone.
const PATIENCE: Duration = Duration::from_secs(5);

/// An open state. Clones share it.
#[derive(Debug, Clone)]
pub(crate) enum StateDir {
    /// In the directory.
    Sqlite(clawk_store::StateDir),
    /// On a server.
    Postgres(Arc<RemoteState>),
}

/// A state on a server, and the directory beside it.
#[derive(Debug)]
pub(crate) struct RemoteState {
    pub(super) path: PathBuf,
    pub(super) state: PgState,
    agent: String,
    lock: Mutex<Option<File>>,
}

impl Drop for RemoteState {
    fn drop(&mut self) {
        self.close();
    }
}

impl RemoteState {
    fn close(&self) {
        let state = self.state.clone();
        let closed = block_on(async move {
            state.close().await;
            Ok(())
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "the state on the server was not closed in good order");
        }
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    async fn record_entries(&self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        let record = Batch {
            entries,
            ..Batch::default()
        };
        self.state.remove(record, ContentRemoval::default()).await
    }

    /// Returns the memory stores in the state.
    pub(super) fn stores(&self) -> PgMemory {
        PgMemory::new(self.state.database(), &self.agent)
            .with_vault(self.state.vault().cloned().map(Arc::new))
            .of_state(self.state.fencing_token())
    }

    pub(super) fn reader(&self) -> PgReader {
        self.state.reader()
    }
}

impl StateDir {
    /// Opens the state that the directory holds or names. Does not wait for another host's lease.
    pub(crate) fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, StateError> {
        let path = path.as_ref();
        match server_of_dir(path)? {
            None => clawk_store::StateDir::open(path, options).map(Self::Sqlite),
            Some(server) => {
                let agent = agent_of(&server)?;
                serve_remote_state(path, &server, (&agent, None), SharingPolicy::Refused)
            }
        }
    }

    /// Like [`Self::open`], with the keys of encrypted stores.
    pub(crate) fn open_with(
        path: impl AsRef<Path>,
        options: Options,
        keys: Option<Keys>,
    ) -> Result<Self, StateError> {
        let path = path.as_ref();
        match server_of_dir(path)? {
            None => clawk_store::StateDir::open_with(path, options, keys).map(Self::Sqlite),
            Some(server) => {
                let agent = agent_of(&server)?;
                serve_remote_state(path, &server, (&agent, keys), SharingPolicy::Refused)
            }
        }
    }

    /// What this opening could not seal with the current key. A server seals everything or nothing.
    pub(crate) fn reseal_report(&self) -> ResealReport {
        match self {
            Self::Sqlite(state) => state.reseal_report(),
            Self::Postgres(_) => ResealReport::default(),
        }
    }

    /// What opens and seals encrypted stores.
    pub(crate) fn vault(&self) -> Option<&SealKeyring> {
        match self {
            Self::Sqlite(state) => state.vault(),
            Self::Postgres(remote) => remote.state.vault(),
        }
    }

    /// Records that the previous key is no longer needed.
    pub(crate) async fn forget_previous_key(&self) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(state) => state.forget_previous_key().await,
            Self::Postgres(remote) => remote.state.forget_previous_key().await,
        }
    }

    /// Returns whether another host has taken over the state.
    pub(crate) fn is_fenced(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(remote) => remote.state.fence_signal().is_cancelled(),
        }
    }

    /// Called before each start of the agent.
    pub(crate) async fn prepare_start(&self) -> Result<(), PgStateError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(remote) => remote.state.begin_run().await,
        }
    }

    /// Returns whether other hosts serve the state at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Sqlite(_) => false,
            Self::Postgres(remote) => remote.state.is_shared(),
        }
    }

    /// Returns whether this host is the leader.
    pub(crate) fn is_leader(&self) -> bool {
        match self {
            Self::Sqlite(_) => true,
            Self::Postgres(remote) => remote.state.is_leader(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Sqlite(state) => state.path(),
            Self::Postgres(remote) => &remote.path,
        }
    }

    pub(crate) fn journal(&self) -> Arc<dyn Journal> {
        match self {
            Self::Sqlite(state) => state.journal(),
            Self::Postgres(remote) => remote.state.journal(),
        }
    }

    /// Returns the journal for components that outlive a run of the agent.
    pub(crate) fn lasting_journal(&self) -> Arc<dyn Journal> {
        match self {
            Self::Sqlite(state) => state.journal(),
            Self::Postgres(remote) => remote.state.lasting_journal(),
        }
    }

    pub(crate) fn memory(&self) -> Arc<dyn Memory> {
        match self {
            Self::Sqlite(state) => state.memory(),
            Self::Postgres(remote) => Arc::new(remote.stores()),
        }
    }

    /// Returns whether the state is on a server.
    pub(crate) fn is_on_server(&self) -> bool {
        matches!(self, Self::Postgres(_))
    }

    pub(crate) fn stats(&self) -> WriterStats {
        match self {
            Self::Sqlite(state) => state.stats(),
            Self::Postgres(remote) => {
                let (commits, entries) = remote.state.write_counts();
                WriterStats { commits, entries }
            }
        }
    }

    pub(crate) fn watch(&self) -> tokio::sync::watch::Receiver<u64> {
        match self {
            Self::Sqlite(state) => state.watch(),
            Self::Postgres(remote) => remote.state.watch_commits(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Sqlite(state) => state.close(),
            Self::Postgres(remote) => remote.close(),
        }
    }

    pub(crate) async fn seal(
        &self,
        signer: &TraceSigner,
        at: Timestamp,
    ) -> Result<Option<StoredHead>, JournalError> {
        match self {
            Self::Sqlite(state) => state.seal(signer, at).await,
            // If several hosts share the state, only the leader signs.
            Self::Postgres(remote) if !remote.state.is_leader() => Ok(None),
            Self::Postgres(remote) => super::heads::seal_journal(remote, signer, at).await,
        }
    }

    pub(crate) fn check_heads(&self, key: &PublicKey) -> Result<(), StateError> {
        match self {
            Self::Sqlite(state) => state.check_heads(key),
            Self::Postgres(remote) => super::heads::check_last_head(&remote.path, remote.reader(), Some(key)),
        }
    }

    /// Returns whether the journal is signed; on a server, by this host. Other hosts' heads are checked with the public keys that
    /// they published.
    pub(crate) fn is_signed(&self) -> Result<bool, StateError> {
        match self {
            Self::Sqlite(state) => state.is_signed(),
            Self::Postgres(remote) => {
                super::heads::check_last_head(&remote.path, remote.reader(), None)?;
                Ok(false)
            }
        }
    }

    pub(crate) fn projections(&self, last: Option<u64>) -> Result<Vec<String>, StateError> {
        match self {
            Self::Sqlite(state) => state.projections(last),
            Self::Postgres(remote) => super::StateReader::open(&remote.path)?.projections(last),
        }
    }

    pub(crate) fn signer(&self) -> Result<TraceSigner, StateError> {
        match self {
            Self::Sqlite(state) => state.signer(),
            Self::Postgres(remote) => {
                let signer = clawk_store::signer_of(&remote.path)?;
                let (state, key) = (remote.state.clone(), signer.public().to_hex());
                block_on(async move {
                    let told = state.tell_key(&key).await;
                    told.map_err(|error| PgStateError::Database(error.to_string()))
                })?;
                Ok(signer)
            }
        }
    }

    pub(crate) async fn delivered(
        &self,
        place: &'static str,
        delivery: Delivery,
    ) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(state) => state.delivered(place, delivery).await,
            Self::Postgres(remote) => {
                let sent = clawk_postgres::HeadDelivery {
                    size: delivery.size,
                    failures: delivery.failures,
                    error: delivery.error,
                };
                remote.state.note_delivery(place, sent).await
            }
        }
    }

    pub(crate) async fn heads_after(&self, size: u64, limit: usize) -> Result<Vec<StoredHead>, JournalError> {
        match self {
            Self::Sqlite(state) => state.heads_after(size, limit).await,
            Self::Postgres(remote) => {
                let found = remote.reader().heads_after(size, limit).await;
                let found = found.map_err(|error| JournalError::Unreadable(error.to_string()))?;
                Ok(found.into_iter().map(super::heads::to_stored_head).collect())
            }
        }
    }

    pub(crate) async fn count(&self, session: SessionId, kinds: Vec<String>) -> Result<u64, String> {
        match self {
            Self::Sqlite(state) => state.count(session, kinds).await,
            Self::Postgres(remote) => {
                let found = remote.reader().count_events(session, &kinds).await;
                found.map_err(|error| error.to_string())
            }
        }
    }

    pub(crate) async fn chain(
        &self,
        session: SessionId,
        since: u64,
        kinds: Vec<String>,
        limit: usize,
    ) -> Result<Vec<SealedEvent>, String> {
        match self {
            Self::Sqlite(state) => state.chain(session, since, kinds, limit).await,
            Self::Postgres(remote) => {
                let found = remote.reader().read_chain(session, since, &kinds, limit).await;
                found.map_err(|error| error.to_string())
            }
        }
    }

    pub(crate) async fn verify(&self, session: SessionId) -> Result<VerificationReport, String> {
        match self {
            Self::Sqlite(state) => state.verify(session).await,
            Self::Postgres(remote) => {
                let found = reader::verify_chains(&remote.reader(), Some(session)).await;
                found.map_err(|error| error.to_string())
            }
        }
    }

    pub(crate) async fn erase(
        &self,
        what: ErasureSelection,
        reason: &str,
        by: &str,
        clock: &dyn Clock,
    ) -> Result<ErasureResult, JournalError> {
        match self {
            Self::Sqlite(state) => state.erase(what, reason, by, clock).await,
            Self::Postgres(remote) => super::erase::erase_contents(remote, what, (reason, by), clock).await,
        }
    }

    pub(crate) async fn rewrite(&self) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(state) => state.rewrite().await,
            Self::Postgres(_) => Err(remote_state_error("the server's `VACUUM` writes tables anew")),
        }
    }

    pub(crate) async fn forget(
        &self,
        gone: &[RememberedEntry],
        reason: &str,
        by: &str,
        clock: &dyn Clock,
    ) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(state) => state.forget(gone, reason, by, clock).await,
            Self::Postgres(_) => Err(remote_state_error(ROWS)),
        }
    }

    /// A server stores no paid embeddings.
    pub(crate) async fn forgotten_elsewhere(
        &self,
        entries: Vec<JournalEntry>,
        embedded: Vec<Digest>,
    ) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(state) => state.forgotten_elsewhere(entries, embedded).await,
            Self::Postgres(remote) => remote.record_entries(entries).await,
        }
    }

    pub(crate) async fn restored_elsewhere(&self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        match self {
            Self::Sqlite(state) => state.restored_elsewhere(entries).await,
            Self::Postgres(remote) => remote.record_entries(entries).await,
        }
    }

    pub(crate) async fn restore(
        &self,
        parts: &[MemoryPart],
        which: RestoreSelection,
        by: &str,
        clock: &dyn Clock,
    ) -> Result<u64, JournalError> {
        match self {
            Self::Sqlite(state) => state.restore(parts, which, by, clock).await,
            Self::Postgres(_) => Err(remote_state_error(ROWS)),
        }
    }
}

/// Message for row operations on a server. Its stores are accessed by [`super::inspected_stores`].
pub(super) const ROWS: &str = "its stores are not rows of a directory";

fn remote_state_error(why: &str) -> JournalError {
    JournalError::Unwritable(format!("this state lies on PostgreSQL: {why}"))
}

/// Returns the state's agent. A state that was never served has none.
fn agent_of(server: &StateServer) -> Result<String, StateError> {
    let reader = PgReader::new(open_database(server, DatabaseAccess::Read)?);
    let info = block_on(async move { reader.state_info().await })?;
    info.agent
        .ok_or_else(|| StateError::Server("no agent has run with this state".to_owned()))
}

/// Locks the directory and takes the lease, or joins the hosts that share the agent.
pub(crate) fn serve_remote_state(
    path: &Path,
    server: &StateServer,
    (agent, keys): (&str, Option<Keys>),
    beside: SharingPolicy,
) -> Result<StateDir, StateError> {
    let (patience, sharing) = match beside {
        SharingPolicy::Refused => (Some(Duration::ZERO), StateSharing::Alone),
        SharingPolicy::Shares => (None, StateSharing::Shared),
        SharingPolicy::Joins => (Some(PATIENCE), StateSharing::Shared),
    };
    let lock = take_lock(path)?;
    let database = open_database(server, DatabaseAccess::Serve)?;
    let pid = std::process::id();
    let host = server.host.clone().unwrap_or_else(|| made_up(path));
    let serving = ServingOptions {
        lease: Duration::from_millis(server.lease_ms),
        sharing,
        keys,
        find: Some(kept::find_key),
        // A command that opens the state alone writes nothing that must survive the server.
        synchronous: !matches!(beside, SharingPolicy::Refused)
            && server.failover == FailoverMode::Synchronous,
        ..ServingOptions::new(agent, &host, pid)
    };
    let holder = |host: String| StateError::Locked {
        path: path.to_owned(),
        holder: format!("the host `{host}`"),
    };
    let mut opened = open_within(database.clone(), serving.clone(), Some(Duration::ZERO))?;
    if let (Err(PgStateError::Served { host }), None) = (&opened, patience) {
        out::print_note(format!(
            "the host `{host}` has the agent for itself: this one stands by, and listens on nothing until the other one ends"
        ));
        opened = open_within(database, serving, None)?;
    }
    let state = match opened {
        Ok(state) => state,
        Err(PgStateError::Served { host }) => return Err(holder(host)),
        Err(error) => return Err(super::of_server(error)),
    };
    if let Some(why) = state.database().failover_risk() {
        out::print_note(&why);
    }
    Ok(StateDir::Postgres(Arc::new(RemoteState {
        path: path.to_owned(),
        state,
        agent: agent.to_owned(),
        lock: Mutex::new(Some(lock)),
    })))
}

/// Opens the state on the runtime of its connections.
fn open_within(
    database: PgDatabase,
    serving: ServingOptions,
    patience: Option<Duration>,
) -> Result<Result<PgState, PgStateError>, StateError> {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    super::runtime_handle()?.spawn(async move {
        let _gone = send.send(PgState::open(database, serving, patience).await); // silent-ok: whoever asked has ended
    });
    receive.recv().map_err(|_| {
        // silent-ok: the error text says it
        StateError::Server("the work on PostgreSQL ended by itself".to_owned())
    })
}

/// Returns a generated host name, which stays the same for this directory on this machine.
fn made_up(path: &Path) -> String {
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let hex = clawk_kernel::witness::digest_of(path.as_os_str().as_encoded_bytes()).to_hex();
    let short: String = hex.chars().take(8).collect();
    format!("{machine}-{short}")
}

/// Locks the directory for one process of this machine.
fn take_lock(dir: &Path) -> Result<File, StateError> {
    let path = dir.join("lock");
    let fault = |source| StateError::Io {
        what: "can't lock",
        path: path.clone(),
        source,
    };
    let mut open = OpenOptions::new();
    open.read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    let mut file = open.open(&path).map_err(fault)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // silent-ok: without the process id the message is only shorter
            let _ = (&mut file).take(32).read_to_string(&mut pid);
            return Err(StateError::Locked {
                path: dir.to_owned(),
                holder: format!("process {}", pid.trim()),
            });
        }
        Err(TryLockError::Error(source)) => return Err(fault(source)),
    }
    file.set_len(0).map_err(fault)?;
    writeln!(&mut (&file), "{}", std::process::id()).map_err(fault)?;
    Ok(file)
}
