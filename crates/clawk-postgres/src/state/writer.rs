//! The only writer of this host. It commits in groups, and only while this host holds the lease.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalError};
use clawk_proto::SessionId;
use clawk_recall::keys::StateSealer;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lease::Lease;
use super::queue::{ExtraWrite, PgWriterDrain, PgWriterItem, PgWriterQueue, PgWriterWork, sessions_of};
use super::{PgWriterCounters, StateSharing, append, check, erase, heads, terms};
use crate::bell;
use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::pool::{Mode, PgDatabase};

/// How long a failed group is retried before it is refused; a restarted server is back by then.
const HOLD: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a journal that refuses writes checks whether the server is back.
const PROBE: Duration = Duration::from_millis(250);
/// The shortest time between two notifications with commits of events. A woken host reads often for longer than that.
const WAKE: Duration = Duration::from_secs(1);

/// The writer's task.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) database: PgDatabase,
    pub(super) queue: Arc<PgWriterQueue>,
    pub(super) counters: Arc<PgWriterCounters>,
    pub(super) lease: Arc<Lease>,
    pub(super) seals: Arc<StateSealer>,
    /// When other hosts were last notified.
    pub(super) woken: Mutex<Option<Instant>>,
}

/// The outcome of a group.
enum CommitGroupEnd {
    /// Committed. For each piece of work: the error if it was left out.
    Written(Vec<Option<JournalError>>),
    /// Another host has the lease.
    Fenced,
    /// Nothing was written.
    Refused(PgFailure),
    /// The connection broke at the commit.
    Unknown(CommitMark),
}

/// Identifies a group, to find it again after a commit whose answer was lost.
#[derive(Debug, Clone)]
struct CommitMark {
    /// The journal's count of commits, this one included.
    commits: i64,
    /// The id of its first event, if it has one.
    event: Option<[u8; 16]>,
    /// The errors of the work that was left out.
    out: Vec<Option<JournalError>>,
    /// The run, and the sessions that it takes with this commit.
    taken: (i64, Vec<(SessionId, i64)>),
    /// The commit notifies the other hosts.
    wakes: bool,
}

impl Writer {
    /// Runs until the queue is closed and empty.
    pub(super) async fn run(self) {
        let mut refusing = false;
        loop {
            let patience = refusing.then_some(PROBE);
            match self.queue.take_group(patience).await {
                PgWriterDrain::Items(items) => refusing = !self.commit_items(items).await,
                PgWriterDrain::Nothing => {
                    if self.probe_server().await {
                        refusing = false;
                    }
                }
                PgWriterDrain::Closed => break,
            }
        }
        if let Err(failure) = self.database.write(check::mark_all).await {
            // The next start verifies from the older marks instead.
            tracing::warn!(
                error = failure.text(),
                "the journal's marks were not written at close"
            );
        }
    }

    /// Commits a group. Returns whether more work may follow.
    async fn commit_items(&self, items: Vec<PgWriterItem>) -> bool {
        let (works, waiting): (Vec<PgWriterWork>, Vec<_>) =
            items.into_iter().map(|item| (item.work, item.done)).unzip();
        match self.persist_group(&works).await {
            Ok(out) => {
                let written = works.iter().zip(&out).filter(|(_, out)| out.is_none());
                let batches = written.filter_map(|(work, _)| work.batch());
                let entries: usize = batches.map(|batch| batch.entries.len()).sum();
                let entries = u64::try_from(entries).unwrap_or(u64::MAX);
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.entries.fetch_add(entries, Ordering::Relaxed);
                if entries > 0 {
                    self.counters.committed.send_modify(|count| *count += entries);
                }
                for (done, out) in waiting.into_iter().zip(out) {
                    let _ = done.send(out.map_or(Ok(()), Err)); // silent-ok: nobody waits for it any more
                }
                true
            }
            Err(cause) => {
                if !matches!(cause, JournalError::Fenced { .. }) {
                    tracing::error!(%cause, "the journal refuses everything until it can be written again");
                }
                let batches = works.iter().filter_map(PgWriterWork::batch);
                self.lease.not_written(batches.flat_map(sessions_of));
                self.lease.not_written(self.queue.refuse_all(&cause));
                send_outcomes(waiting, &Err(cause));
                false
            }
        }
    }

    /// Writes a group exactly once. Retries for a bounded time while the server is unreachable.
    async fn persist_group(&self, works: &[PgWriterWork]) -> Result<Vec<Option<JournalError>>, JournalError> {
        let until = Instant::now() + HOLD;
        let mut doubt: Option<CommitMark> = None;
        loop {
            if self.lease.is_fenced() {
                return Err(self.lease.lost_error());
            }
            let end = match &doubt {
                None => self.attempt_commit(works).await,
                Some(mark) => self.settle_commit(mark).await,
            };
            let failure = match end {
                CommitGroupEnd::Written(out) => return Ok(out),
                CommitGroupEnd::Fenced => {
                    self.lease.fence();
                    return Err(self.lease.lost_error());
                }
                CommitGroupEnd::Unknown(mark) => {
                    doubt = Some(mark);
                    None
                }
                // Now it is certain that the group was not written.
                CommitGroupEnd::Refused(failure) if doubt.is_some() && !failure.is_away() => {
                    doubt = None;
                    None
                }
                CommitGroupEnd::Refused(failure)
                    if failure.is_away() || matches!(failure, PgFailure::Conflict(_)) =>
                {
                    Some(failure)
                }
                CommitGroupEnd::Refused(failure) => return Err(JournalError::Unwritable(failure.text())),
            };
            if Instant::now() >= until {
                let why = failure.map_or_else(
                    || "the connection to PostgreSQL broke at the commit".to_owned(),
                    |failure| failure.text(),
                );
                return Err(JournalError::Away(why));
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Runs one transaction for the whole group.
    async fn attempt_commit(&self, works: &[PgWriterWork]) -> CommitGroupEnd {
        let mut mark = None;
        let group = async {
            let tx = self.database.begin_transaction(Mode::Write).await?;
            let done = self.run_transaction(&tx, works).await;
            let done = done.map(|found| {
                let written = found.is_some();
                mark = found;
                written
            });
            tx.commit_or_rollback(done).await
        };
        let ended = self.database.run_within_deadline(group).await;
        match (ended, mark) {
            (Ok(true), Some(mark)) => self.finish_commit(mark),
            (Ok(_), _) => CommitGroupEnd::Fenced,
            (Err(failure), mark) => match (mark, failure) {
                // A server that answered with an error has not committed.
                (Some(mark), PgFailure::Unknown(_) | PgFailure::Late { .. }) => CommitGroupEnd::Unknown(mark),
                (_, failure) => CommitGroupEnd::Refused(failure),
            },
        }
    }

    /// Applies the effects of a committed group.
    fn finish_commit(&self, mark: CommitMark) -> CommitGroupEnd {
        let (run, sessions) = mark.taken;
        self.lease.take_sessions(run, sessions);
        if mark.wakes {
            *self.lock_last_wake() = Some(Instant::now());
        }
        CommitGroupEnd::Written(mark.out)
    }

    fn lock_last_wake(&self) -> MutexGuard<'_, Option<Instant>> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the other hosts with this commit, unless that happened just before.
    async fn wake_hosts(&self, session: &PgConnection) -> Result<bool, PgFailure> {
        let due = self.lock_last_wake().is_none_or(|last| last.elapsed() >= WAKE);
        if due {
            bell::notify_hosts(session).await?;
        }
        Ok(due)
    }

    /// The content of the transaction. `None`: this host does not hold the lease, and nothing was done.
    async fn run_transaction(
        &self,
        session: &PgConnection,
        works: &[PgWriterWork],
    ) -> Result<Option<CommitMark>, PgFailure> {
        let number = self.lease.number();
        let Some((last_row, commits)) = self.lock_journal(session, number).await? else {
            return Ok(None);
        };
        let mut admitted = terms::AdmittedWork::all_admitted(works.len());
        if self.lease.sharing == StateSharing::Shared {
            admitted = terms::admit_works(session, &self.lease, number, works).await?;
        }
        let written = works.iter().zip(&admitted.out).filter(|(_, out)| out.is_none());
        let written: Vec<&PgWriterWork> = written.map(|(work, _)| work).collect();
        let batches: Vec<&Batch> = written.iter().filter_map(|work| work.batch()).collect();
        let last_row = append::append_batches(session, &self.seals, last_row, &batches).await?;
        terms::settle_reservations(session, &batches).await?;
        for extra in written.iter().filter_map(|work| work.extra()) {
            match extra {
                ExtraWrite::Remove(removal) => erase::remove(session, removal).await?,
                ExtraWrite::Head(head) => heads::insert_head(session, head).await?,
                ExtraWrite::Sent(place, sent) => heads::note_delivery(session, place, sent).await?,
                ExtraWrite::Release(of, epoch) => {
                    terms::release_session(session, number, *of, *epoch).await?
                }
            }
        }
        let shared = self.lease.sharing == StateSharing::Shared;
        let wakes = shared && !batches.is_empty() && self.wake_hosts(session).await?;
        let commits = commits.saturating_add(1);
        let sql = "UPDATE journal SET last_row = $1, commits = $2 WHERE id = 1";
        session.run(sql, &[&last_row, &commits]).await?;
        let mut entries = batches.iter().flat_map(|batch| &batch.entries);
        Ok(Some(CommitMark {
            commits,
            event: entries.next().map(|entry| entry.event_id.into_bytes()),
            out: admitted.out,
            taken: (number, admitted.taken),
            wakes,
        }))
    }

    /// Locks the journal and the row with the right to write. Returns the last row and the count of commits, if this host has the
    /// right.
    async fn lock_journal(
        &self,
        session: &PgConnection,
        number: i64,
    ) -> Result<Option<(i64, i64)>, PgFailure> {
        // INVARIANT: no host can take over while this transaction is open, and an earlier takeover is visible.
        let row = match self.lease.sharing {
            StateSharing::Alone => {
                let sql = "SELECT j.last_row, j.commits FROM journal j, leases l WHERE j.id = 1 AND l.session = $1 AND l.epoch = $2 \
                    AND l.run IS NULL FOR UPDATE OF j FOR SHARE OF l";
                session.query_first(sql, &[&super::lease::AGENT, &number]).await?
            }
            StateSharing::Shared => {
                let sql = "SELECT j.last_row, j.commits FROM journal j, runs r WHERE j.id = 1 AND r.run = $1 AND NOT r.gone \
                    FOR UPDATE OF j FOR SHARE OF r";
                session.query_first(sql, &[&number]).await?
            }
        };
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).transpose()
    }

    /// Checks whether a group with an unanswered commit was written. The lock waits for a transaction that is still ending.
    async fn settle_commit(&self, mark: &CommitMark) -> CommitGroupEnd {
        let look = self.database.write(async |session| {
            // Taking a lock is a write, so this commit waits for the standby, and with it for everything that it has read.
            session
                .query_first("SELECT 1 FROM journal WHERE id = 1 FOR UPDATE", &[])
                .await?;
            let ours = self.lock_journal(session, self.lease.number()).await?;
            let Some(event) = &mark.event else {
                // If hosts share the state, others change the count too; work without an event may then be repeated.
                let counts = self.lease.sharing == StateSharing::Alone;
                return Ok(counts && ours.is_some_and(|(_, commits)| commits >= mark.commits));
            };
            let sql = "SELECT EXISTS (SELECT 1 FROM events WHERE event_id = $1 AND row > \
                (SELECT last_row FROM journal WHERE id = 1) - 100000)";
            session.query_value::<bool>(sql, &[&event.as_slice()]).await
        });
        match look.await {
            Ok(true) => self.finish_commit(mark.clone()),
            Ok(false) => CommitGroupEnd::Refused(PgFailure::Conflict("the journal".to_owned())),
            Err(failure) => CommitGroupEnd::Refused(failure),
        }
    }

    /// Checks whether the server accepts writes again. A lost lease stays lost.
    async fn probe_server(&self) -> bool {
        if self.lease.is_fenced() {
            return false;
        }
        let ours = self.database.write(async |session| {
            let ours = self.lock_journal(session, self.lease.number()).await?;
            if let Some((_, commits)) = ours {
                let sql = "UPDATE journal SET commits = $1 WHERE id = 1";
                session.run(sql, &[&commits.saturating_add(1)]).await?;
            }
            Ok(ours.is_some())
        });
        match ours.await {
            Ok(true) => {
                tracing::info!("the journal can be written again");
                if self.queue.accept_again() {
                    self.counters.outages.send_modify(|count| *count += 1);
                }
                true
            }
            Ok(false) => {
                self.lease.fence();
                self.lease
                    .not_written(self.queue.refuse_all(&self.lease.lost_error()));
                false
            }
            Err(failure) => {
                let cause = JournalError::Away(failure.text());
                self.lease.not_written(self.queue.refuse_all(&cause));
                false
            }
        }
    }
}

fn send_outcomes(
    waiting: Vec<oneshot::Sender<Result<(), JournalError>>>,
    outcome: &Result<(), JournalError>,
) {
    for done in waiting {
        let _ = done.send(outcome.clone()); // silent-ok: nobody waits for it any more
    }
}
