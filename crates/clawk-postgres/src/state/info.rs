//! Information about hosts and leases.

use clawk_kernel::ports::JournalError;

use super::row::read_unsigned;
use super::{PgReader, PgState, PgStateError};
use crate::error::PgFailure;
use crate::pool::PgDatabase;

/// A host that has served the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSeen {
    /// Its name.
    pub host: String,
    /// Its process id.
    pub pid: i64,
    /// How long ago it was last active, milliseconds.
    pub seen_ms: i64,
}

/// The state of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSeen {
    /// The leased session. `*`: the whole agent, or the work that only one of several hosts does.
    pub session: String,
    /// The holder.
    pub host: String,
    /// How often the lease was taken.
    pub epoch: i64,
    /// Milliseconds until it expires; negative: it has expired. `None`: it was released.
    pub expires_ms: Option<i64>,
}

/// The result of [`PgReader::state_info`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgStateInfo {
    /// The number of the last migration.
    pub schema: i32,
    /// Events in the journal.
    pub events: u64,
    /// The agent's name.
    pub agent: Option<String>,
    /// The new location, if the state was moved.
    pub moved: Option<String>,
    /// Hosts, by name.
    pub hosts: Vec<HostSeen>,
    /// Leases.
    pub leases: Vec<LeaseSeen>,
}

impl PgReader {
    /// Reads the hosts and leases.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn state_info(&self) -> Result<PgStateInfo, PgStateError> {
        self.run_with_connection(async |session| {
            let schema = session
                .query_value("SELECT coalesce(max(step), 0) FROM migrations", &[])
                .await?;
            let sql = "SELECT last_row, agent, moved FROM journal WHERE id = 1";
            let Some(row) = session.query_first(sql, &[]).await? else {
                return Err(PgFailure::Schema("the table `journal` has no row".to_owned()));
            };
            let (events, agent) = (read_unsigned(&row, 0)?, row.try_get(1)?);
            let moved = super::row::maybe_text(&row, 2)?;
            let sql = "SELECT host, pid, (extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint FROM hosts ORDER BY host";
            let mut hosts = Vec::new();
            for row in session.query_rows(sql, &[]).await? {
                hosts.push(HostSeen {
                    host: row.try_get(0)?,
                    pid: row.try_get(1)?,
                    seen_ms: row.try_get(2)?,
                });
            }
            // A lease that belongs to a run expires with the run.
            let sql = "SELECT l.session, l.host, l.epoch, CASE WHEN isfinite(coalesce(r.expires, l.expires)) \
                THEN (extract(epoch FROM coalesce(r.expires, l.expires) - clock_timestamp()) * 1000)::bigint END \
                FROM leases l LEFT JOIN runs r ON r.run = l.run AND NOT r.gone \
                WHERE l.session = '*' OR l.run IS NOT NULL ORDER BY l.session";
            let mut leases = Vec::new();
            for row in session.query_rows(sql, &[]).await? {
                leases.push(LeaseSeen {
                    session: row.try_get(0)?,
                    host: row.try_get(1)?,
                    epoch: row.try_get(2)?,
                    expires_ms: row.try_get(3)?,
                });
            }
            Ok(PgStateInfo {
                schema,
                events,
                agent,
                moved,
                hosts,
                leases,
            })
        })
        .await
    }

    /// The public signing keys of all hosts.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn host_keys(&self) -> Result<Vec<String>, PgStateError> {
        self.run_with_connection(async |session| {
            let rows = session
                .query_rows("SELECT key FROM hosts WHERE key IS NOT NULL ORDER BY host", &[])
                .await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        })
        .await
    }
}

impl PgState {
    /// Stores the public key with which this host signs.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn tell_key(&self, key: &str) -> Result<(), JournalError> {
        let host = self.inner.lease.host();
        let told = tell_key(&self.inner.database, host, key).await;
        told.map_err(|failure| JournalError::Unwritable(failure.text()))
    }
}

async fn tell_key(database: &PgDatabase, host: &str, key: &str) -> Result<(), PgFailure> {
    database
        .write(async |session| {
            let sql = "UPDATE hosts SET key = $2 WHERE host = $1";
            session.run(sql, &[&host, &key]).await
        })
        .await?;
    Ok(())
}
