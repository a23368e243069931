//! The kernel's `HostCluster` port: which host holds which session, orders between hosts, and the takeover of lost hosts' sessions.

use std::sync::Arc;

use clawk_kernel::ports::{BoxFuture, HostCluster, HostNews, HostOrder, JournalError, SessionHolder};
use clawk_proto::{Digest, SessionId};
use uuid::Uuid;

use super::PgStateInner;
use super::lease::AGENT;
use super::queue::{ExtraWrite, PgWriterWork};
use super::{row, seal};
use crate::bell;
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The number of sessions that one host takes over at once; other hosts take the rest.
const AT_ONCE: i64 = 64;
/// The number of orders read at once.
const ORDERS: i64 = 256;
/// How long an order is kept if its sender no longer asks for the outcome.
const ORDERS_KEPT: &str = "1 hour";

/// One host's view of all hosts of an agent.
#[derive(Debug)]
pub(super) struct PgShared {
    inner: Arc<PgStateInner>,
    /// The number of one start of the agent; `None`: valid across starts.
    number: Option<i64>,
}

impl PgShared {
    pub(super) const fn new(inner: Arc<PgStateInner>, number: Option<i64>) -> Self {
        Self { inner, number }
    }

    /// Whether other hosts have taken over from this start, or a later start has begun.
    fn is_over(&self) -> bool {
        let lease = &self.inner.lease;
        lease.is_fenced() || self.number.is_some_and(|number| number != lease.number())
    }

    async fn write<T>(
        &self,
        work: impl AsyncFnOnce(&PgConnection) -> Result<T, PgFailure>,
    ) -> Result<T, JournalError> {
        if self.is_over() {
            return Err(self.inner.lease.lost_error());
        }
        self.inner.database.write(work).await.map_err(journal_error)
    }

    async fn take_session(&self, session: SessionId) -> Result<SessionHolder, JournalError> {
        let lease = &self.inner.lease;
        if self.is_over() {
            return Err(lease.lost_error());
        }
        if lease.holds_session(session) {
            return Ok(SessionHolder::Here);
        }
        let (run, host, name) = (lease.number(), lease.host().to_owned(), session.to_string());
        let taken = self
            .write(async |session| {
                if !is_live(session, run).await? {
                    return Ok(None);
                }
                let sql = "INSERT INTO leases AS l (session, host, epoch, expires, run) VALUES ($1, $2, 1, 'infinity', $3) \
                    ON CONFLICT (session) DO UPDATE SET host = excluded.host, epoch = l.epoch + 1, expires = 'infinity', run = excluded.run \
                    WHERE l.run IS NULL OR l.run = $3 OR EXISTS (SELECT 1 FROM runs r WHERE r.run = l.run AND r.gone) RETURNING epoch";
                if let Some(row) = session.query_first(sql, &[&name, &host, &run]).await? {
                    return Ok(Some(Ok(row.try_get::<_, i64>(0)?)));
                }
                let sql = "SELECT host FROM leases WHERE session = $1";
                Ok(Some(Err(session.query_value::<String>(sql, &[&name]).await?)))
            })
            .await?;
        match taken {
            Some(Ok(epoch)) => {
                lease.take_sessions(run, [(session, epoch)]);
                Ok(if epoch > 1 {
                    SessionHolder::Taken
                } else {
                    SessionHolder::Here
                })
            }
            Some(Err(host)) => Ok(SessionHolder::There(host)),
            None => Err(lease.lost_error()),
        }
    }

    async fn take_over_sessions(&self) -> Result<Vec<SessionId>, JournalError> {
        let lease = &self.inner.lease;
        let (run, host, leads) = (lease.number(), lease.host().to_owned(), lease.is_leader());
        let found = self
            .write(async |session| {
                session
                    .query_first("SELECT 1 FROM journal WHERE id = 1 FOR UPDATE", &[])
                    .await?;
                if !is_live(session, run).await? {
                    return Ok(None);
                }
                let sql = "UPDATE runs SET gone = true WHERE NOT gone AND expires <= clock_timestamp() AND run <> $1 RETURNING host";
                for row in session.query_rows(sql, &[&run]).await? {
                    let host: String = row.try_get(0)?;
                    tracing::warn!(host, "a host is gone; its sessions are taken over");
                }
                let leads = leads || try_lead(session, run, &host).await?;
                let mut taken = take_lost_sessions(session, run, &host).await?;
                if taken.is_empty() {
                    taken = take_unheld_sessions(session, run, &host).await?;
                }
                Ok(Some((leads, taken)))
            })
            .await?;
        let Some((leads, taken)) = found else {
            lease.fence();
            return Err(lease.lost_error());
        };
        if leads && lease.number() == run {
            lease.set_leader();
        }
        lease.take_sessions(run, taken.iter().copied());
        Ok(taken.into_iter().map(|(session, _)| session).collect())
    }

    async fn read_news(&self, look: bool) -> Result<HostNews, JournalError> {
        let run = self.inner.lease.number();
        self.inner.lease.start_following();
        let database = &self.inner.database;
        let read = database.read(async |session| {
            bell::ensure_listening(session, database.schema()).await?;
            let mut news = HostNews {
                last_row: super::read::last_row(session).await?,
                line: session.timeline(),
                orders: Vec::new(),
                due: look && is_due(session, run).await?,
            };
            let sql = "SELECT o.id, o.session, o.wish FROM orders o JOIN leases l ON l.session = o.session \
                WHERE o.outcome IS NULL AND l.run = $1 ORDER BY o.n LIMIT $2";
            for found in session.query_rows(sql, &[&run, &ORDERS]).await? {
                let id = row::read_uuid(&found, 0)?;
                news.orders.push(HostOrder {
                    id,
                    session: parse_session(found.try_get(1)?)?,
                    wish: seal::order_opened(&self.inner.seals, "wish", id, found.try_get(2)?)?,
                });
            }
            Ok(news)
        });
        let news = read.await.map_err(|failure| match failure.is_away() {
            true => JournalError::Away(failure.text()),
            false => JournalError::Unreadable(failure.text()),
        })?;
        // Readers that follow the journal also wake for appends of other hosts.
        self.inner.counters.committed.send_if_modified(|_| {
            let seen = self
                .inner
                .counters
                .seen
                .swap(news.last_row, std::sync::atomic::Ordering::Relaxed);
            seen != news.last_row
        });
        Ok(news)
    }
}

fn journal_error(failure: PgFailure) -> JournalError {
    if failure.is_away() {
        JournalError::Away(failure.text())
    } else {
        JournalError::Unwritable(failure.text())
    }
}

fn parse_session(name: &str) -> Result<SessionId, PgFailure> {
    let id = Uuid::parse_str(name);
    id.map(SessionId)
        .map_err(|_| PgFailure::Schema("a lease names a session that is none".to_owned())) // silent-ok: as said
}

/// Whether this host's run is active. The answer stays true until the end of this transaction.
async fn is_live(session: &PgConnection, run: i64) -> Result<bool, PgFailure> {
    let sql = "SELECT 1 FROM runs WHERE run = $1 AND NOT gone FOR SHARE";
    Ok(session.query_first(sql, &[&run]).await?.is_some())
}

/// Makes this host the leader, which does the work that only one host may do, if there is no other. Returns whether it leads.
async fn try_lead(session: &PgConnection, run: i64, host: &str) -> Result<bool, PgFailure> {
    let sql = "INSERT INTO leases AS l (session, host, epoch, expires, run) VALUES ($1, $2, 1, 'infinity', $3) \
        ON CONFLICT (session) DO UPDATE SET host = excluded.host, epoch = l.epoch + 1, expires = 'infinity', run = excluded.run \
        WHERE l.run IS NULL OR EXISTS (SELECT 1 FROM runs r WHERE r.run = l.run AND r.gone) RETURNING epoch";
    Ok(session.query_first(sql, &[&AGENT, &host, &run]).await?.is_some())
}

/// Whether `look` would find something: this run has ended, a host is lost, no host leads, or a session with work has no holder.
/// Only reads.
async fn is_due(session: &PgConnection, run: i64) -> Result<bool, PgFailure> {
    let sql = "SELECT NOT EXISTS (SELECT 1 FROM runs WHERE run = $1 AND NOT gone) \
        OR EXISTS (SELECT 1 FROM runs WHERE NOT gone AND expires <= clock_timestamp() AND run <> $1) \
        OR EXISTS (SELECT 1 FROM leases l JOIN runs r ON r.run = l.run WHERE r.gone) \
        OR NOT EXISTS (SELECT 1 FROM leases WHERE session = $2 AND run IS NOT NULL) \
        OR EXISTS (SELECT 1 FROM \
        (SELECT (encode(session, 'hex')::uuid)::text AS session FROM inbox WHERE state = 'open' \
         UNION ALL SELECT session FROM orders WHERE outcome IS NULL) w \
        WHERE NOT EXISTS (SELECT 1 FROM leases h WHERE h.session = w.session AND h.run IS NOT NULL))";
    session.query_value(sql, &[&run, &AGENT]).await
}

/// Takes over sessions of lost hosts.
async fn take_lost_sessions(
    session: &PgConnection,
    run: i64,
    host: &str,
) -> Result<Vec<(SessionId, i64)>, PgFailure> {
    let sql = "UPDATE leases SET host = $1, run = $2, epoch = epoch + 1, expires = 'infinity' WHERE session IN \
        (SELECT l.session FROM leases l JOIN runs r ON r.run = l.run WHERE r.gone AND l.session <> $3 ORDER BY l.session LIMIT $4) \
        RETURNING session, epoch";
    let rows = session.query_rows(sql, &[&host, &run, &AGENT, &AT_ONCE]).await?;
    rows.iter()
        .map(|row| Ok((parse_session(row.try_get(0)?)?, row.try_get(1)?)))
        .collect()
}

/// Takes sessions without a holder that have a waiting message or order.
async fn take_unheld_sessions(
    session: &PgConnection,
    run: i64,
    host: &str,
) -> Result<Vec<(SessionId, i64)>, PgFailure> {
    let sql = "INSERT INTO leases AS l (session, host, epoch, expires, run) \
        SELECT w.session, $1, 1, 'infinity', $2 FROM \
        (SELECT (encode(session, 'hex')::uuid)::text AS session FROM inbox WHERE state = 'open' \
         UNION SELECT session FROM orders WHERE outcome IS NULL) w \
        WHERE NOT EXISTS (SELECT 1 FROM leases h WHERE h.session = w.session AND h.run IS NOT NULL) ORDER BY 1 LIMIT $3 \
        ON CONFLICT (session) DO UPDATE SET host = excluded.host, run = excluded.run, epoch = l.epoch + 1, expires = 'infinity' \
        WHERE l.run IS NULL RETURNING session, epoch";
    let rows = session.query_rows(sql, &[&host, &run, &AT_ONCE]).await?;
    rows.iter()
        .map(|row| Ok((parse_session(row.try_get(0)?)?, row.try_get(1)?)))
        .collect()
}

impl HostCluster for PgShared {
    fn host_name(&self) -> &str {
        self.inner.lease.host()
    }

    fn is_leader(&self) -> bool {
        self.inner.lease.is_leader()
    }

    fn is_lost(&self) -> bool {
        self.is_over()
    }

    fn holds_session(&self, session: SessionId) -> bool {
        !self.is_over() && self.inner.lease.holds_session(session)
    }

    fn hold_session(&self, session: SessionId) -> BoxFuture<'_, Result<SessionHolder, JournalError>> {
        Box::pin(self.take_session(session))
    }

    fn release_session(&self, session: SessionId) {
        if self.is_over() {
            return; // it went with that start, and may be the next one's
        }
        if let Some(epoch) = self.inner.lease.let_go(session) {
            // If this can't be written now, the session becomes free at the end of the run.
            let _queued = self
                .inner
                .queue
                .push(PgWriterWork::Run(ExtraWrite::Release(session, epoch)));
        }
    }

    fn mark_unsettled(&self, sessions: &[SessionId]) {
        if !self.is_over() {
            self.inner.lease.not_written(sessions.iter().copied());
        }
    }

    fn all_settled(&self, sessions: &[SessionId]) {
        if !self.is_over() {
            self.inner.lease.mark_settled(sessions);
        }
    }

    fn take_over(&self) -> BoxFuture<'_, Result<Vec<SessionId>, JournalError>> {
        Box::pin(self.take_over_sessions())
    }

    fn mark_settled(&self, sessions: Vec<SessionId>) -> BoxFuture<'_, Result<(), JournalError>> {
        Box::pin(async move {
            let run = self.inner.lease.number();
            let ids: Vec<&[u8]> = sessions
                .iter()
                .map(|session| session.0.as_bytes().as_slice())
                .collect();
            let sql = "DELETE FROM reserved WHERE session = ANY ($1) AND run <> $2";
            self.write(async |session| session.run(sql, &[&ids, &run]).await)
                .await?;
            Ok(())
        })
    }

    fn poll_news(&self, look: bool) -> BoxFuture<'_, Result<HostNews, JournalError>> {
        Box::pin(self.read_news(look))
    }

    fn confirm_followed(&self) {
        self.inner.lease.finish_following();
    }

    fn wait_for_wake(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.inner.database.wait_for_notification())
    }

    fn shared_secret(&self, id: Uuid, fresh: [u8; 32]) -> BoxFuture<'_, Result<[u8; 32], JournalError>> {
        Box::pin(async move {
            let fresh = Digest(fresh).to_hex().into_bytes();
            let kept = self.write(async |session| {
                let key: &[u8] = id.as_bytes();
                let sealed = seal::order_closed(&self.inner.seals, seal::SECRET, id, fresh.clone())?;
                let sql = "INSERT INTO secrets (id, secret) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING";
                session.run(sql, &[&key, &sealed]).await?;
                let kept = session
                    .query_value::<Vec<u8>>("SELECT secret FROM secrets WHERE id = $1", &[&key])
                    .await?;
                seal::order_opened(&self.inner.seals, seal::SECRET, id, kept)
            });
            let kept = kept.await?;
            let kept = std::str::from_utf8(&kept).ok().and_then(Digest::from_hex); // silent-ok: said below
            let broken = || JournalError::Unreadable("a secret of the hosts is broken".to_owned());
            kept.map(|kept| kept.0).ok_or_else(broken)
        })
    }

    fn give_order(&self, order: HostOrder) -> BoxFuture<'_, Result<(), JournalError>> {
        Box::pin(async move {
            self.write(async |session| {
                let sql =
                    format!("DELETE FROM orders WHERE at < clock_timestamp() - interval '{ORDERS_KEPT}'");
                session.run(&sql, &[]).await?;
                let sql =
                    "INSERT INTO orders (id, session, wish) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING";
                let wish = order.wish.clone();
                let wish = seal::order_closed(&self.inner.seals, "wish", order.id, wish)?;
                let id: &[u8] = order.id.as_bytes();
                session
                    .run(sql, &[&id, &order.session.to_string(), &wish])
                    .await?;
                // The holder may be idle.
                bell::notify_hosts(session).await
            })
            .await?;
            Ok(())
        })
    }

    fn order_outcome(&self, id: Uuid) -> BoxFuture<'_, Result<Option<Vec<u8>>, JournalError>> {
        Box::pin(async move {
            let sql = "DELETE FROM orders WHERE id = $1 AND outcome IS NOT NULL RETURNING outcome";
            self.write(async |session| {
                let key: &[u8] = id.as_bytes();
                let row = session.query_first(sql, &[&key]).await?;
                row.map(|row| seal::order_opened(&self.inner.seals, "outcome", id, row.try_get(0)?))
                    .transpose()
            })
            .await
        })
    }

    fn report_outcome(&self, id: Uuid, outcome: Vec<u8>) -> BoxFuture<'_, Result<(), JournalError>> {
        Box::pin(async move {
            let sql = "UPDATE orders SET outcome = $2 WHERE id = $1";
            self.write(async |session| {
                let outcome = seal::order_closed(&self.inner.seals, "outcome", id, outcome.clone())?;
                let key: &[u8] = id.as_bytes();
                session.run(sql, &[&key, &outcome]).await
            })
            .await?;
            Ok(())
        })
    }
}
