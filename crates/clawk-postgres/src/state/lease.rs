//! The lease: one row with an epoch and an expiry by the database's clock. Whoever takes it raises the epoch by one.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::JournalError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PgStateError, Serving};
use crate::connect::Session;
use crate::error::Failure;
use crate::pool::Database;

/// The lease of the whole agent; sessions are not leased one by one.
pub(super) const AGENT: &str = "*";

/// A held lease.
#[derive(Debug)]
pub(super) struct Lease {
    host: String,
    pid: i64,
    pub(super) epoch: i64,
    pub(super) time: Duration,
    /// When the last renewal that succeeded was sent.
    renewed: Mutex<Instant>,
    /// Somebody else has it.
    pub(super) fenced: CancellationToken,
}

/// Whose the lease is now.
pub(super) enum Acquired {
    Ours(Lease),
    Theirs(String),
}

/// Takes the lease if it is free.
pub(super) async fn acquire(database: &Database, serving: &Serving) -> Result<Acquired, PgStateError> {
    let sent = Instant::now();
    let (host, pid) = (serving.host.as_str(), i64::from(serving.pid));
    let time_ms = millis(serving.time());
    let taken = database
        .write(async |session| {
            see(session, host, pid).await?;
            refuse_others(session, &serving.agent).await?;
            let sql = "INSERT INTO leases (session, host, epoch, expires) \
                VALUES ($1, $2, 1, clock_timestamp() + $3::bigint * interval '1 millisecond') \
                ON CONFLICT (session) DO UPDATE SET host = excluded.host, epoch = leases.epoch + 1, expires = excluded.expires \
                WHERE leases.expires <= clock_timestamp() RETURNING epoch";
            if let Some(row) = session.first(sql, &[&AGENT, &host, &time_ms]).await? {
                return Ok(Ok(row.try_get::<_, i64>(0)?));
            }
            let sql = "SELECT host FROM leases WHERE session = $1";
            Ok(Err(session.value::<String>(sql, &[&AGENT]).await?))
        })
        .await;
    match taken {
        Ok(Ok(epoch)) => Ok(Acquired::Ours(Lease {
            host: host.to_owned(),
            pid,
            epoch,
            time: serving.time(),
            renewed: Mutex::new(sent),
            fenced: CancellationToken::new(),
        })),
        Ok(Err(host)) => Ok(Acquired::Theirs(host)),
        // The state itself refuses.
        Err(Failure::Entry { index: 1, reason }) => Err(PgStateError::Moved { to: reason }),
        Err(Failure::Entry { reason, .. }) => Err(PgStateError::Broken(reason)),
        Err(failure) => Err(failure.into()),
    }
}

impl Serving {
    const fn time(&self) -> Duration {
        self.lease
    }
}

/// The host is there.
async fn see(session: &Session, host: &str, pid: i64) -> Result<(), Failure> {
    let sql = "INSERT INTO hosts (host, pid, seen) VALUES ($1, $2, clock_timestamp()) \
        ON CONFLICT (host) DO UPDATE SET pid = excluded.pid, seen = excluded.seen";
    session.run(sql, &[&host, &pid]).await?;
    Ok(())
}

/// A state holds one agent, and one that was moved serves no more.
async fn refuse_others(session: &Session, agent: &str) -> Result<(), Failure> {
    let sql = "UPDATE journal SET agent = coalesce(agent, $1) WHERE id = 1 RETURNING agent, moved";
    let Some(row) = session.first(sql, &[&agent]).await? else {
        return Err(Failure::Schema("the table `journal` has no row".to_owned()));
    };
    let (other, moved): (String, Option<Vec<u8>>) = (row.try_get(0)?, row.try_get(1)?);
    if let Some(to) = moved {
        let reason = String::from_utf8_lossy(&to).into_owned();
        return Err(Failure::Entry { index: 1, reason });
    }
    if other != agent {
        return Err(Failure::Entry {
            index: 0,
            reason: format!(
                "the schema holds the state of the agent `{other}`, and this one is `{agent}`: name another `schema` in `[state]`"
            ),
        });
    }
    Ok(())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Lease {
    /// Whether this host may begin something: its last renewal is younger than two thirds of the lease, by its own clock.
    pub(super) fn fresh(&self) -> Result<(), JournalError> {
        if self.fenced.is_cancelled() {
            return Err(self.lost());
        }
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.elapsed() < self.time * 2 / 3 {
            return Ok(());
        }
        Err(JournalError::Away(format!(
            "the lease of host `{}` was not renewed for {} ms",
            self.host,
            renewed.elapsed().as_millis()
        )))
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// How every append of a host that lost its lease ends.
    pub(super) fn lost(&self) -> JournalError {
        JournalError::Fenced {
            host: self.host.clone(),
        }
    }

    /// Somebody else has taken it.
    pub(super) fn fence(&self) {
        if !self.fenced.is_cancelled() {
            tracing::error!(
                host = self.host,
                epoch = self.epoch,
                "fenced: another host has taken this agent; nothing of what is under way here can be recorded any more"
            );
            self.fenced.cancel();
        }
    }

    /// Renews every third of the lease's time until the end.
    pub(super) async fn renew(self: std::sync::Arc<Self>, database: Database, over: CancellationToken) {
        let every = self.time / 3;
        loop {
            tokio::select! {
                () = over.cancelled() => return,
                () = self.fenced.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let sent = Instant::now();
            let renewed = tokio::time::timeout(every.max(Duration::from_millis(500)), self.once(&database));
            match renewed.await {
                Ok(Ok(true)) => {
                    *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = sent;
                }
                Ok(Ok(false)) => self.fence(),
                Ok(Err(failure)) => {
                    tracing::warn!(error = failure.text(), "the lease could not be renewed");
                }
                Err(_) => tracing::warn!("the lease could not be renewed in time"),
            }
        }
    }

    /// Whether it is still ours; then it holds anew.
    async fn once(&self, database: &Database) -> Result<bool, Failure> {
        let time_ms = millis(self.time);
        let renewed = database
            .write(async |session| {
                let sql = "UPDATE leases SET expires = clock_timestamp() + $4::bigint * interval '1 millisecond' \
                    WHERE session = $1 AND host = $2 AND epoch = $3";
                session.run(sql, &[&AGENT, &self.host, &self.epoch, &time_ms]).await
            })
            .await?
            > 0;
        if renewed {
            // Not in the same transaction: nobody who serves waits for a row that is only looked at.
            database
                .write(async |session| see(session, &self.host, self.pid).await)
                .await?;
        }
        Ok(renewed)
    }

    /// Gives it up, so that another host need not wait for its end.
    pub(super) async fn release(&self, database: &Database) {
        let released = database
            .write(async |session| {
                let sql =
                    "UPDATE leases SET expires = '-infinity' WHERE session = $1 AND host = $2 AND epoch = $3";
                session.run(sql, &[&AGENT, &self.host, &self.epoch]).await
            })
            .await;
        if let Err(failure) = released {
            tracing::warn!(
                error = failure.text(),
                "the lease was not released; it expires by itself"
            );
        }
    }
}
