//! The right of this host to write: a lease of the whole agent, or a run beside the runs of other hosts. Both have a number that
//! increases with each acquisition, and an expiry by the database's clock.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::JournalError;
use clawk_proto::SessionId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{PgStateError, ServingOptions, StateSharing};
use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::migrate::{self, KNOWN};
use crate::pool::PgDatabase;

/// The name of the lease of the whole agent. If hosts share the agent, it covers the work that only one of them does.
pub(super) const AGENT: &str = "*";
/// Every so many renewals, the host's last activity is recorded too. Only people read it.
const SEEN_EVERY: u32 = 3;

/// The right to write.
#[derive(Debug)]
pub(super) struct Lease {
    host: String,
    pid: i64,
    agent: String,
    pub(super) sharing: StateSharing,
    pub(super) time: Duration,
    held: Mutex<PgHeldLease>,
}

/// The lease or run that this host holds now.
#[derive(Debug)]
struct PgHeldLease {
    /// The epoch of the whole agent's lease, or the number of the run.
    number: i64,
    /// When the last successful renewal was sent.
    renewed: Instant,
    /// For hosts that share the agent: when the other hosts' changes were last requested. `heard` is the request time of the
    /// changes that are all applied here.
    asked: Instant,
    heard: Instant,
    /// Fires when another host has taken over.
    fenced: CancellationToken,
    /// The held sessions with their epochs.
    sessions: HashMap<SessionId, i64>,
    /// Sessions with a failed write: an effect or inference may have no end in the record.
    unwritten: HashSet<SessionId>,
    leads: bool,
}

impl PgHeldLease {
    fn new(number: i64, renewed: Instant) -> Self {
        Self {
            number,
            renewed,
            asked: renewed,
            heard: renewed,
            fenced: CancellationToken::new(),
            sessions: HashMap::new(),
            unwritten: HashSet::new(),
            leads: false,
        }
    }
}

/// The result of an acquisition.
pub(super) enum LeaseAcquisition {
    Ours(Arc<Lease>),
    Theirs(String),
}

/// Takes the lease if it is free; joins the other hosts if they share the agent.
pub(super) async fn acquire_lease(
    database: &PgDatabase,
    serving: &ServingOptions,
) -> Result<LeaseAcquisition, PgStateError> {
    let sent = Instant::now();
    let taken = match serving.sharing {
        StateSharing::Alone => acquire_alone(database, serving).await,
        StateSharing::Shared => join_hosts(database, serving, None).await,
    };
    match taken {
        Ok(Ok(number)) => Ok(LeaseAcquisition::Ours(Arc::new(Lease {
            host: serving.host.clone(),
            pid: i64::from(serving.pid),
            agent: serving.agent.clone(),
            sharing: serving.sharing,
            time: serving.lease,
            held: Mutex::new(PgHeldLease::new(number, sent)),
        }))),
        Ok(Err(host)) => Ok(LeaseAcquisition::Theirs(host)),
        Err(failure) => Err(refused_error(failure)),
    }
}

fn refused_error(failure: PgFailure) -> PgStateError {
    match failure {
        // The state itself refuses: it was moved.
        PgFailure::Entry { index: 1, reason } => PgStateError::Moved { to: reason },
        PgFailure::Entry { reason, .. } => PgStateError::Broken(reason),
        failure => failure.into(),
    }
}

/// The epoch, or the name of the host that serves the state.
type LeaseAttempt = Result<Result<i64, String>, PgFailure>;

/// Takes the lease of the whole agent for this host alone.
async fn acquire_alone(database: &PgDatabase, serving: &ServingOptions) -> LeaseAttempt {
    let (host, pid) = (serving.host.as_str(), i64::from(serving.pid));
    let time_ms = to_millis(serving.lease);
    database
        .write(async |session| {
            record_host_seen(session, host, pid).await?;
            refuse_others(session, &serving.agent).await?;
            let sql = "SELECT host FROM runs WHERE NOT gone AND expires > clock_timestamp() ORDER BY run LIMIT 1";
            if let Some(row) = session.query_first(sql, &[]).await? {
                return Ok(Err(row.try_get(0)?));
            }
            session.run("UPDATE runs SET gone = true WHERE NOT gone", &[]).await?;
            let sql = "INSERT INTO leases (session, host, epoch, expires, knows) \
                VALUES ($1, $2, 1, clock_timestamp() + $3::bigint * interval '1 millisecond', $4) \
                ON CONFLICT (session) DO UPDATE SET host = excluded.host, epoch = leases.epoch + 1, expires = excluded.expires, run = NULL, \
                knows = excluded.knows \
                WHERE leases.run IS NOT NULL OR leases.expires <= clock_timestamp() RETURNING epoch";
            if let Some(row) = session.query_first(sql, &[&AGENT, &host, &time_ms, &KNOWN]).await? {
                return Ok(Ok(row.try_get::<_, i64>(0)?));
            }
            let sql = "SELECT host FROM leases WHERE session = $1";
            Ok(Err(session.query_value::<String>(sql, &[&AGENT]).await?))
        })
        .await
}

/// Begins a run beside other hosts. `before`: this host's previous run, which has ended.
async fn join_hosts(database: &PgDatabase, serving: &ServingOptions, before: Option<i64>) -> LeaseAttempt {
    let (host, pid) = (serving.host.as_str(), i64::from(serving.pid));
    let time_ms = to_millis(serving.lease);
    database
        .write(async |session| {
            record_host_seen(session, host, pid).await?;
            refuse_others(session, &serving.agent).await?;
            let sql = "SELECT host FROM leases WHERE session = $1 AND run IS NULL AND expires > clock_timestamp()";
            if let Some(row) = session.query_first(sql, &[&AGENT]).await? {
                return Ok(Err(row.try_get(0)?));
            }
            // A host that had the whole agent may be suspended: from now on its epoch is outdated.
            let sql = "UPDATE leases SET epoch = epoch + 1, expires = '-infinity' WHERE session = $1 AND run IS NULL";
            session.run(sql, &[&AGENT]).await?;
            if let Some(before) = before {
                let sql = "UPDATE runs SET gone = true WHERE run = $1";
                session.run(sql, &[&before]).await?;
            }
            let sql = "INSERT INTO runs (host, pid, expires, knows) \
                VALUES ($1, $2, clock_timestamp() + $3::bigint * interval '1 millisecond', $4) RETURNING run";
            Ok(Ok(session.query_value::<i64>(sql, &[&host, &pid, &time_ms, &KNOWN]).await?))
        })
        .await
}

/// Records the host's activity.
async fn record_host_seen(session: &PgConnection, host: &str, pid: i64) -> Result<(), PgFailure> {
    let sql = "INSERT INTO hosts (host, pid, seen) VALUES ($1, $2, clock_timestamp()) \
        ON CONFLICT (host) DO UPDATE SET pid = excluded.pid, seen = excluded.seen";
    session.run(sql, &[&host, &pid]).await?;
    Ok(())
}

/// Refuses a state of another agent, and one that was moved. Hosts that start at the same time wait for each other here.
async fn refuse_others(session: &PgConnection, agent: &str) -> Result<(), PgFailure> {
    let sql = "UPDATE journal SET agent = coalesce(agent, $1) WHERE id = 1 RETURNING agent, moved";
    let Some(row) = session.query_first(sql, &[&agent]).await? else {
        return Err(PgFailure::Schema("the table `journal` has no row".to_owned()));
    };
    // Checked while this row is locked: since the connection began, a step may have run that this version can't serve.
    migrate::check_compatible(session, KNOWN).await?;
    let (other, moved): (String, Option<Vec<u8>>) = (row.try_get(0)?, row.try_get(1)?);
    if let Some(to) = moved {
        let reason = String::from_utf8_lossy(&to).into_owned();
        return Err(PgFailure::Entry { index: 1, reason });
    }
    if other != agent {
        return Err(PgFailure::Entry {
            index: 0,
            reason: format!(
                "the schema holds the state of the agent `{other}`, and this one is `{agent}`: name another `schema` in `[state]`"
            ),
        });
    }
    Ok(())
}

fn to_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Lease {
    fn lock(&self) -> MutexGuard<'_, PgHeldLease> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch of the whole agent's lease, or the number of the run.
    pub(super) fn number(&self) -> i64 {
        self.lock().number
    }

    /// Fires when another host has taken over.
    pub(super) fn fence_signal(&self) -> CancellationToken {
        self.lock().fenced.clone()
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.lock().fenced.is_cancelled()
    }

    /// Whether this host may begin something. By its own clock, the last renewal and the last news of other hosts must be younger
    /// than two thirds of the lease. Another host may have stopped the agent.
    pub(super) fn check_fresh(&self) -> Result<(), JournalError> {
        let held = self.lock();
        if held.fenced.is_cancelled() {
            return Err(self.lost_error());
        }
        let young = |since: Duration| since < self.time * 2 / 3;
        let (renewed, heard) = (held.renewed.elapsed(), held.heard.elapsed());
        let (what, since) = match self.sharing {
            _ if !young(renewed) => ("was not renewed", renewed),
            StateSharing::Shared if !young(heard) => ("has not heard of other hosts", heard),
            StateSharing::Shared | StateSharing::Alone => return Ok(()),
        };
        Err(JournalError::Away(format!(
            "the lease of host `{}` {what} for {} ms",
            self.host,
            since.as_millis()
        )))
    }

    /// Records that the other hosts' changes are being requested.
    pub(super) fn start_following(&self) {
        self.lock().asked = Instant::now();
    }

    /// Records that the requested changes are all applied here.
    pub(super) fn finish_following(&self) {
        let mut held = self.lock();
        held.heard = held.asked;
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The error of every append by a host that lost its lease.
    pub(super) fn lost_error(&self) -> JournalError {
        JournalError::Fenced {
            host: self.host.clone(),
        }
    }

    /// Records that another host has taken the lease.
    pub(super) fn fence(&self) {
        let mut held = self.lock();
        if !held.fenced.is_cancelled() {
            tracing::error!(
                host = self.host,
                number = held.number,
                sessions = held.sessions.len(),
                "fenced: other hosts have taken over from this one; nothing of what is under way here can be recorded any more"
            );
            held.leads = false;
            held.sessions.clear();
            held.fenced.cancel();
        }
    }

    pub(super) fn is_leader(&self) -> bool {
        self.lock().leads
    }

    pub(super) fn set_leader(&self) {
        self.lock().leads = true;
    }

    pub(super) fn holds_session(&self, session: SessionId) -> bool {
        self.lock().sessions.contains_key(&session)
    }

    pub(super) fn take_sessions(&self, run: i64, sessions: impl IntoIterator<Item = (SessionId, i64)>) {
        let mut held = self.lock();
        // Sessions of an earlier run ended with that run.
        if held.number == run && !held.fenced.is_cancelled() {
            held.sessions.extend(sessions);
        }
    }

    /// Records that a write for these sessions failed. They are then released only with the run, and the host that takes them over
    /// settles their unfinished work.
    pub(super) fn not_written(&self, sessions: impl IntoIterator<Item = SessionId>) {
        self.lock().unwritten.extend(sessions);
    }

    /// Records that the unfinished work of these sessions is settled.
    pub(super) fn mark_settled(&self, sessions: &[SessionId]) {
        self.lock()
            .unwritten
            .retain(|session| !sessions.contains(session));
    }

    /// Removes a session from this host. Returns its epoch if it was held. A session with a failed write stays, and gives `None`.
    pub(super) fn let_go(&self, session: SessionId) -> Option<i64> {
        let mut held = self.lock();
        if held.unwritten.contains(&session) {
            return None;
        }
        held.sessions.remove(&session)
    }

    /// Begins a new run that replaces the last one. From now on any host may take the old run's sessions.
    pub(super) async fn rejoin(&self, database: &PgDatabase) -> Result<(), PgStateError> {
        let serving = ServingOptions {
            lease: self.time,
            sharing: self.sharing,
            ..ServingOptions::new(&self.agent, &self.host, u32::try_from(self.pid).unwrap_or(0))
        };
        let sent = Instant::now();
        match join_hosts(database, &serving, Some(self.number())).await {
            Ok(Ok(run)) => {
                let before = std::mem::replace(&mut *self.lock(), PgHeldLease::new(run, sent));
                before.fenced.cancel();
                Ok(())
            }
            Ok(Err(host)) => Err(PgStateError::Served { host }),
            Err(failure) => Err(refused_error(failure)),
        }
    }

    /// Renews the lease after every third of its length, until the shutdown.
    pub(super) async fn renew_until_end(self: Arc<Self>, database: PgDatabase, over: CancellationToken) {
        let every = self.time / 3;
        let (mut failed, mut renewals) = (false, 0_u32);
        loop {
            let pause = async {
                if std::mem::take(&mut failed) {
                    // Instead of the pause: check whether a failover has made another server the primary.
                    let _late = tokio::time::timeout(every, database.refresh_servers()).await; // silent-ok: it is looked again after the next failure
                } else {
                    tokio::time::sleep(every).await;
                }
            };
            tokio::select! {
                () = over.cancelled() => return,
                () = pause => {}
            }
            if self.is_fenced() {
                if self.sharing == StateSharing::Alone {
                    return;
                }
                continue; // until it joins the others again
            }
            let (number, sent) = (self.number(), Instant::now());
            let seen = renewals % SEEN_EVERY == 0;
            renewals = renewals.wrapping_add(1);
            let renewed = tokio::time::timeout(
                every.max(Duration::from_millis(500)),
                self.renew_once(&database, number, seen),
            );
            match renewed.await {
                Ok(Ok(true)) => {
                    let mut held = self.lock();
                    if held.number == number {
                        held.renewed = sent;
                    }
                }
                Ok(Ok(false)) if self.number() == number => self.fence(),
                Ok(Ok(false)) => {}
                Ok(Err(failure)) => {
                    tracing::warn!(error = failure.text(), "the lease could not be renewed");
                    failed = database.has_several();
                }
                Err(_) => {
                    tracing::warn!("the lease could not be renewed in time");
                    failed = database.has_several();
                }
            }
        }
    }

    /// Renews the lease. Returns whether this host still holds it. `seen`: records the host's activity too.
    async fn renew_once(&self, database: &PgDatabase, number: i64, seen: bool) -> Result<bool, PgFailure> {
        let time_ms = to_millis(self.time);
        let renewed = database
            .write(async |session| match self.sharing {
                StateSharing::Alone => {
                    let sql =
                        "UPDATE leases SET expires = clock_timestamp() + $4::bigint * interval '1 millisecond' \
                        WHERE session = $1 AND host = $2 AND epoch = $3 AND run IS NULL";
                    session.run(sql, &[&AGENT, &self.host, &number, &time_ms]).await
                }
                StateSharing::Shared => {
                    let sql = "UPDATE runs SET expires = clock_timestamp() + $2::bigint * interval '1 millisecond' \
                        WHERE run = $1 AND NOT gone";
                    session.run(sql, &[&number, &time_ms]).await
                }
            })
            .await?
            > 0;
        if renewed && seen {
            // A separate transaction, so that no serving host waits for a row that only people read.
            database
                .write(async |session| record_host_seen(session, &self.host, self.pid).await)
                .await?;
        }
        Ok(renewed)
    }

    /// Releases the lease, so that another host need not wait for its expiry.
    pub(super) async fn release(&self, database: &PgDatabase) {
        let number = self.number();
        let left: Vec<String> = self.lock().unwritten.iter().map(SessionId::to_string).collect();
        let released = database
            .write(async |session| match self.sharing {
                StateSharing::Alone => {
                    let sql = "UPDATE leases SET expires = '-infinity' WHERE session = $1 AND host = $2 AND epoch = $3";
                    session.run(sql, &[&AGENT, &self.host, &number]).await
                }
                StateSharing::Shared => {
                    // Locked first, as in every commit.
                    session
                        .query_first("SELECT 1 FROM journal WHERE id = 1 FOR UPDATE", &[])
                        .await?;
                    session
                        .run("UPDATE runs SET gone = true WHERE run = $1", &[&number])
                        .await?;
                    // The other sessions are taken over as from a lost host.
                    let sql = "UPDATE leases SET run = NULL, expires = '-infinity' WHERE run = $1 AND NOT session = ANY ($2)";
                    session.run(sql, &[&number, &left]).await
                }
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
