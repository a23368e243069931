//! The one writer of this host: it commits in groups, each only as long as the lease is ours.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalError};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lease::Lease;
use super::queue::{Extra, Item, Queue, Taken, Work};
use super::{Counters, append, check, erase, heads};
use crate::connect::Session;
use crate::error::Failure;
use crate::pool::{Database, Mode};

/// How long a group that could not be written is tried again before it is refused: a server that restarts is back by then.
const HOLD: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How often a journal that refuses looks whether the server is back.
const PROBE: Duration = Duration::from_millis(250);

/// The writer's task.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) database: Database,
    pub(super) queue: Arc<Queue>,
    pub(super) counters: Arc<Counters>,
    pub(super) lease: Arc<Lease>,
}

/// How a group ended.
enum End {
    Written,
    /// The lease is somebody else's.
    Fenced,
    /// Nothing was written.
    Refused(Failure),
    /// The connection broke at the commit.
    Unknown(Mark),
}

/// By what a group is found again after a commit whose answer was lost.
#[derive(Debug, Clone)]
struct Mark {
    /// The journal's count of commits with it.
    commits: i64,
    /// Its first event, if it has one.
    event: Option<[u8; 16]>,
}

impl Writer {
    /// Runs until the queue is closed and empty.
    pub(super) async fn run(self) {
        let mut refusing = false;
        loop {
            let patience = refusing.then_some(PROBE);
            match self.queue.take(patience).await {
                Taken::Items(items) => refusing = !self.commit(items).await,
                Taken::Nothing => {
                    if self.probe().await {
                        refusing = false;
                    }
                }
                Taken::Closed => break,
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

    /// Whether more may come.
    async fn commit(&self, items: Vec<Item>) -> bool {
        let (works, waiting): (Vec<Work>, Vec<_>) =
            items.into_iter().map(|item| (item.work, item.done)).unzip();
        match self.persist(&works).await {
            Ok(()) => {
                let batches = works.iter().filter_map(Work::batch);
                let entries: usize = batches.map(|batch| batch.entries.len()).sum();
                let entries = u64::try_from(entries).unwrap_or(u64::MAX);
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.entries.fetch_add(entries, Ordering::Relaxed);
                if entries > 0 {
                    self.counters.committed.send_modify(|count| *count += entries);
                }
                tell(waiting, &Ok(()));
                true
            }
            Err(cause) => {
                if !matches!(cause, JournalError::Fenced { .. }) {
                    tracing::error!(%cause, "the journal refuses everything until it can be written again");
                }
                self.queue.refuse(&cause);
                tell(waiting, &Err(cause));
                false
            }
        }
    }

    /// Writes a group once; while the server is away, for a bounded time.
    async fn persist(&self, works: &[Work]) -> Result<(), JournalError> {
        let until = Instant::now() + HOLD;
        let mut doubt: Option<Mark> = None;
        loop {
            if self.lease.fenced.is_cancelled() {
                return Err(self.lease.lost());
            }
            let end = match &doubt {
                None => self.attempt(works).await,
                Some(mark) => self.settle(mark).await,
            };
            let failure = match end {
                End::Written => return Ok(()),
                End::Fenced => {
                    self.lease.fence();
                    return Err(self.lease.lost());
                }
                End::Unknown(mark) => {
                    doubt = Some(mark);
                    None
                }
                // Known now: it was not written.
                End::Refused(failure) if doubt.is_some() && !failure.is_away() => {
                    doubt = None;
                    None
                }
                End::Refused(failure) if failure.is_away() => Some(failure),
                End::Refused(failure) => return Err(JournalError::Unwritable(failure.text())),
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

    /// One transaction for the whole group.
    async fn attempt(&self, works: &[Work]) -> End {
        let mut mark = None;
        let group = async {
            let tx = self.database.begin(Mode::Write).await?;
            let done = self.transaction(&tx, works).await;
            let done = done.map(|found| {
                let written = found.is_some();
                mark = found;
                written
            });
            tx.end(done).await
        };
        match self.database.within(group).await {
            Ok(true) => End::Written,
            Ok(false) => End::Fenced,
            Err(failure) => match (mark, failure) {
                // A server that answered has not committed.
                (Some(mark), Failure::Unknown(_) | Failure::Late { .. }) => End::Unknown(mark),
                (_, failure) => End::Refused(failure),
            },
        }
    }

    /// `None`: the lease is not ours, and nothing is done.
    async fn transaction(&self, session: &Session, works: &[Work]) -> Result<Option<Mark>, Failure> {
        let Some((last_row, commits)) = self.ours(session).await? else {
            return Ok(None);
        };
        let batches: Vec<&Batch> = works.iter().filter_map(Work::batch).collect();
        let last_row = append::append(session, last_row, &batches).await?;
        for extra in works.iter().filter_map(Work::extra) {
            match extra {
                Extra::Remove(removal) => erase::remove(session, removal).await?,
                Extra::Head(head) => heads::keep(session, head).await?,
                Extra::Sent(place, sent) => heads::note(session, place, sent).await?,
            }
        }
        let commits = commits.saturating_add(1);
        let sql = "UPDATE journal SET last_row = $1, commits = $2 WHERE id = 1";
        session.run(sql, &[&last_row, &commits]).await?;
        let mut entries = batches.iter().flat_map(|batch| &batch.entries);
        Ok(Some(Mark {
            commits,
            event: entries.next().map(|entry| entry.event_id.into_bytes()),
        }))
    }

    /// Locks the journal and the lease; its last row and its count of commits, if the lease is ours.
    async fn ours(&self, session: &Session) -> Result<Option<(i64, i64)>, Failure> {
        // INVARIANT: nobody takes the lease while this transaction is open, and who took it before is seen.
        let sql = "SELECT j.last_row, j.commits, l.epoch FROM journal j, leases l WHERE j.id = 1 AND l.session = $1 \
            FOR UPDATE OF j FOR SHARE OF l";
        let Some(row) = session.first(sql, &[&super::lease::AGENT]).await? else {
            return Ok(None);
        };
        if row.try_get::<_, i64>(2)? != self.lease.epoch {
            return Ok(None);
        }
        Ok(Some((row.try_get(0)?, row.try_get(1)?)))
    }

    /// Whether a group whose commit was not answered is there. The lock waits for a transaction that still ends.
    async fn settle(&self, mark: &Mark) -> End {
        let look = self.database.write(async |session| {
            let ours = self.ours(session).await?;
            let Some(event) = &mark.event else {
                return Ok(ours.is_some_and(|(_, commits)| commits >= mark.commits));
            };
            let sql = "SELECT EXISTS (SELECT 1 FROM events WHERE event_id = $1 AND row > \
                (SELECT last_row FROM journal WHERE id = 1) - 100000)";
            session.value::<bool>(sql, &[&event.as_slice()]).await
        });
        match look.await {
            Ok(true) => End::Written,
            Ok(false) => End::Refused(Failure::Conflict("the journal".to_owned())),
            Err(failure) => End::Refused(failure),
        }
    }

    /// Looks whether the server takes writes again; a lease that is lost stays lost.
    async fn probe(&self) -> bool {
        if self.lease.fenced.is_cancelled() {
            return false;
        }
        let ours = self.database.write(async |session| {
            let ours = self.ours(session).await?;
            if let Some((_, commits)) = ours {
                let sql = "UPDATE journal SET commits = $1 WHERE id = 1";
                session.run(sql, &[&commits.saturating_add(1)]).await?;
            }
            Ok(ours.is_some())
        });
        match ours.await {
            Ok(true) => {
                tracing::info!("the journal can be written again");
                self.queue.accept();
                self.counters.outages.send_modify(|count| *count += 1);
                true
            }
            Ok(false) => {
                self.lease.fence();
                self.queue.refuse(&self.lease.lost());
                false
            }
            Err(failure) => {
                let cause = JournalError::Away(failure.text());
                self.queue.refuse(&cause);
                false
            }
        }
    }
}

fn tell(waiting: Vec<oneshot::Sender<Result<(), JournalError>>>, outcome: &Result<(), JournalError>) {
    for done in waiting {
        let _ = done.send(outcome.clone()); // silent-ok: nobody waits for it any more
    }
}
