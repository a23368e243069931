//! Who is there, and who holds the lease.

use clawk_kernel::ports::JournalError;

use super::row::unsigned;
use super::{PgReader, PgState, PgStateError};
use crate::error::PgFailure;
use crate::pool::PgDatabase;

/// A host that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSeen {
    /// Its name.
    pub host: String,
    /// Its process.
    pub pid: i64,
    /// How long ago it was seen, milliseconds.
    pub seen_ms: i64,
}

/// A lease as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSeen {
    /// What is leased; `*`: the whole agent, or what one of several hosts alone does.
    pub session: String,
    /// Who has it.
    pub host: String,
    /// How often it was taken.
    pub epoch: i64,
    /// How long it still holds, milliseconds; less than 0: it has expired. `None`: it was given up.
    pub expires_ms: Option<i64>,
}

/// What [`PgReader::info`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgStateInfo {
    /// The number of the last migration.
    pub schema: i32,
    /// Events in the journal.
    pub events: u64,
    /// The agent.
    pub agent: Option<String>,
    /// Where it was moved to.
    pub moved: Option<String>,
    /// Hosts, by name.
    pub hosts: Vec<HostSeen>,
    /// Leases.
    pub leases: Vec<LeaseSeen>,
}

impl PgReader {
    /// Who is there, and who holds the lease.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn info(&self) -> Result<PgStateInfo, PgStateError> {
        self.with(async |session| {
            let schema = session
                .value("SELECT coalesce(max(step), 0) FROM migrations", &[])
                .await?;
            let sql = "SELECT last_row, agent, moved FROM journal WHERE id = 1";
            let Some(row) = session.first(sql, &[]).await? else {
                return Err(PgFailure::Schema("the table `journal` has no row".to_owned()));
            };
            let (events, agent) = (unsigned(&row, 0)?, row.try_get(1)?);
            let moved = super::row::maybe_text(&row, 2)?;
            let sql = "SELECT host, pid, (extract(epoch FROM clock_timestamp() - seen) * 1000)::bigint FROM hosts ORDER BY host";
            let mut hosts = Vec::new();
            for row in session.rows(sql, &[]).await? {
                hosts.push(HostSeen {
                    host: row.try_get(0)?,
                    pid: row.try_get(1)?,
                    seen_ms: row.try_get(2)?,
                });
            }
            // A lease that belongs to a run expires with it.
            let sql = "SELECT l.session, l.host, l.epoch, CASE WHEN isfinite(coalesce(r.expires, l.expires)) \
                THEN (extract(epoch FROM coalesce(r.expires, l.expires) - clock_timestamp()) * 1000)::bigint END \
                FROM leases l LEFT JOIN runs r ON r.run = l.run AND NOT r.gone \
                WHERE l.session = '*' OR l.run IS NOT NULL ORDER BY l.session";
            let mut leases = Vec::new();
            for row in session.rows(sql, &[]).await? {
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

    /// The public keys that hosts sign with.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn keys(&self) -> Result<Vec<String>, PgStateError> {
        self.with(async |session| {
            let rows = session
                .rows("SELECT key FROM hosts WHERE key IS NOT NULL ORDER BY host", &[])
                .await?;
            rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
        })
        .await
    }
}

impl PgState {
    /// Tells the public key that this host signs with.
    ///
    /// # Errors
    /// The server does not take it.
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
