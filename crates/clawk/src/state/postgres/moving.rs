//! A server as one side of `clawk state move`.

use std::time::Duration;

use clawk_kernel::moved::{MovedRow, StateTotals, Table};
use clawk_postgres::moving::{self, PgStateExport, PgStateImport};
use clawk_postgres::{PgDatabase, PgReader, PgState, PgStateError, ServingOptions};
use clawk_store::StateError;

use super::{DatabaseAccess, block_on, of_server, open_database};
use crate::state::kept::{self, Keys};
use crate::state::server::StateServer;

/// Time limit for a lease. The lease of a killed move expires within it.
const PATIENCE: Duration = Duration::from_secs(5);

fn ended_early_error() -> StateError {
    StateError::Server("the work on PostgreSQL ended before".to_owned())
}

/// The side that is read. While it exists, no host can serve the state.
#[derive(Debug)]
pub(crate) struct PgMoveSource {
    pub(crate) agent: String,
    /// The public keys that hosts published.
    pub(crate) keys: Vec<String>,
    database: PgDatabase,
    /// Holds the lease; `None`: the state was already moved and is only read.
    state: Option<PgState>,
    export: Option<PgStateExport>,
}

impl PgMoveSource {
    /// Opens the source and takes the lease.
    ///
    /// # Errors
    /// A host serves it, it was moved elsewhere, no agent has used it, or the server can't be reached.
    pub(crate) fn open(server: &StateServer, target: &str) -> Result<Self, StateError> {
        let reader = PgReader::new(open_database(server, DatabaseAccess::Read)?);
        let (info, keys) =
            block_on(async move { Ok((reader.state_info().await?, reader.host_keys().await?)) })?;
        let agent = info
            .agent
            .ok_or_else(|| StateError::Server("no agent has run with this state".to_owned()))?;
        let database = open_database(server, DatabaseAccess::Write)?;
        let state = match info.moved {
            Some(to) if to == target => None,
            Some(to) => return Err(of_server(PgStateError::Moved { to })),
            None => {
                let serving = ServingOptions {
                    find: Some(kept::find_key),
                    ..ServingOptions::new(&agent, "clawk state move", std::process::id())
                };
                let database = database.clone();
                let opened = block_on(async move { PgState::open(database, serving, Some(PATIENCE)).await });
                Some(opened?)
            }
        };
        let from = PgReader::new(database.clone());
        let export = block_on(async move {
            let from = from.with_key_lookup(Some(kept::find_key)).await?;
            PgStateExport::from_reader(&from).await
        })?;
        Ok(Self {
            agent,
            keys,
            database,
            state,
            export: Some(export),
        })
    }

    /// Opens the current state while hosts may serve it; `None`: the server holds none yet. `most`: largest number of bytes to
    /// read.
    ///
    /// # Errors
    /// The key of its encrypted stores is missing or wrong, or the server can't be reached.
    pub(crate) fn as_of_now(server: &StateServer, most: u64) -> Result<Option<Self>, StateError> {
        let database = open_database(server, DatabaseAccess::Read)?;
        let reader = PgReader::new(database.clone());
        let export = block_on(async move {
            let reader = match reader.with_key_lookup(Some(kept::find_key)).await {
                Err(PgStateError::Absent(_)) => return Ok(None), // silent-ok: nobody has served it yet
                found => found?,
            };
            PgStateExport::from_reader(&reader).await.map(Some)
        })?;
        Ok(export.map(|export| Self {
            agent: String::new(),
            keys: Vec::new(),
            database,
            state: None,
            export: Some(export.at_most(most)),
        }))
    }

    /// Returns the key of its encrypted stores.
    pub(crate) fn sealed_by(&self) -> Option<Keys> {
        self.export.as_ref().and_then(PgStateExport::keys)
    }

    pub(crate) fn next_page(&mut self, table: &'static Table) -> Result<Vec<MovedRow>, StateError> {
        let mut export = self.export.take().ok_or_else(ended_early_error)?;
        let (export, rows) = block_on(async move {
            let rows = export.next_page(table).await?;
            Ok((export, rows))
        })?;
        self.export = Some(export);
        Ok(rows)
    }

    pub(crate) fn state_totals(&mut self) -> StateTotals {
        self.export
            .as_mut()
            .map(PgStateExport::crossed_totals)
            .unwrap_or_default()
    }

    pub(crate) fn mark_moved(&mut self, target: &str) -> Result<(), StateError> {
        let (database, target) = (self.database.clone(), target.to_owned());
        let state = self.state.take();
        self.export = None;
        block_on(async move {
            moving::mark_moved(&database, &target).await?;
            if let Some(state) = state {
                state.close().await;
            }
            Ok(())
        })
    }
}

impl Drop for PgMoveSource {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            // silent-ok: the lease expires by itself
            let _closed = block_on(async move {
                state.close().await;
                Ok(())
            });
        }
    }
}

/// The side that is written, in one transaction.
#[derive(Debug)]
pub(crate) struct PgMoveTarget(Option<PgStateImport>);

impl PgMoveTarget {
    /// Begins the transaction.
    ///
    /// # Errors
    /// The schema holds a state, or the server can't be reached.
    pub(crate) fn begin_move(
        server: &StateServer,
        agent: &str,
        keys: Option<Keys>,
    ) -> Result<Self, StateError> {
        let (database, agent) = (open_database(server, DatabaseAccess::Write)?, agent.to_owned());
        let import = block_on(async move { PgStateImport::begin(&database, &agent, keys).await })?;
        Ok(Self(Some(import)))
    }

    pub(crate) fn add_rows(&mut self, table: &'static Table, rows: Vec<MovedRow>) -> Result<(), StateError> {
        let mut import = self.0.take().ok_or_else(ended_early_error)?;
        self.0 = Some(block_on(async move {
            import.add_rows(table, rows).await?;
            Ok(import)
        })?);
        Ok(())
    }

    pub(crate) fn stored_totals(&mut self) -> Result<StateTotals, StateError> {
        let import = self.0.take().ok_or_else(ended_early_error)?;
        let (import, sum) = block_on(async move {
            let sum = import.stored_totals().await?;
            Ok((import, sum))
        })?;
        self.0 = Some(import);
        Ok(sum)
    }

    pub(crate) fn commit(self, keys: &[String]) -> Result<(), StateError> {
        let (import, keys) = (self.0.ok_or_else(ended_early_error)?, keys.to_vec());
        block_on(async move { import.commit(&keys).await })
    }
}

/// Verifies every chain from its first event.
///
/// # Errors
/// The server can't be reached.
pub(crate) fn verify_chains(server: &StateServer) -> Result<bool, StateError> {
    let reader = PgReader::new(open_database(server, DatabaseAccess::Write)?);
    block_on(async move { Ok(super::reader::verify_chains(&reader, None).await?.valid) })
}
