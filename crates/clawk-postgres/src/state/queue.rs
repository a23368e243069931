//! The writer's queue, bounded in number and bytes. It refuses work while the journal can't be written.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalEntry, JournalError, JournalTicket};
use clawk_proto::SessionId;
use tokio::sync::{Notify, oneshot};

use super::erase::ContentRemoval;
use super::heads::{HeadDelivery, NewHead};

/// Writes that are not events.
#[derive(Debug)]
pub(super) enum ExtraWrite {
    Remove(ContentRemoval),
    Head(NewHead),
    Sent(String, HeadDelivery),
    /// Releases a session that is held with this epoch.
    Release(SessionId, i64),
}

/// Work for the writer.
#[derive(Debug)]
pub(super) enum PgWriterWork {
    /// Appends a batch. With a number, the batch belongs to that start of the agent, and is dropped if a later start has begun.
    Append(Batch, Option<i64>),
    /// Appends a batch and performs a write in the same commit.
    AppendAnd(Batch, ExtraWrite),
    Run(ExtraWrite),
    /// Does nothing; its ticket marks a position in the queue.
    Flush,
}

impl PgWriterWork {
    pub(super) const fn batch(&self) -> Option<&Batch> {
        match self {
            Self::Append(batch, _) | Self::AppendAnd(batch, _) => Some(batch),
            Self::Run(_) | Self::Flush => None,
        }
    }

    pub(super) const fn extra(&self) -> Option<&ExtraWrite> {
        match self {
            Self::AppendAnd(_, extra) | Self::Run(extra) => Some(extra),
            Self::Append(..) | Self::Flush => None,
        }
    }

    /// Whether an earlier start of the agent queued it.
    pub(super) const fn is_past(&self, number: i64) -> bool {
        matches!(self, Self::Append(_, Some(of)) if *of != number)
    }
}

pub(super) struct PgWriterItem {
    pub(super) work: PgWriterWork,
    pub(super) done: oneshot::Sender<Result<(), JournalError>>,
    entries: usize,
    bytes: usize,
}

impl fmt::Debug for PgWriterItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Item({} entries, {} bytes)", self.entries, self.bytes)
    }
}

/// The result of a look into the queue.
#[derive(Debug)]
pub(super) enum PgWriterDrain {
    /// At least one item.
    Items(Vec<PgWriterItem>),
    /// No work arrived in time.
    Nothing,
    /// The queue is closed, and all work is done.
    Closed,
}

/// The limits of the queue and of one transaction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) entries: usize,
    pub(super) bytes: usize,
    pub(super) group_entries: usize,
    pub(super) group_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<PgWriterItem>,
    entries: usize,
    bytes: usize,
    /// Why the queue refuses work now.
    refusing: Option<JournalError>,
    closed: bool,
}

#[derive(Debug)]
pub(super) struct PgWriterQueue {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Notify,
}

impl PgWriterQueue {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if one did, the state would still be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work, or refuses it at once.
    pub(super) fn push(&self, work: PgWriterWork) -> Result<JournalTicket, JournalError> {
        let (entries, bytes) = work
            .batch()
            .map_or((1, 0), |batch| (batch.entries.len().max(1), bytes_of(batch)));
        let (done, ticket) = JournalTicket::new();
        let mut state = self.lock();
        if state.closed {
            return Err(JournalError::Unwritable("it was closed".to_owned()));
        }
        if let Some(cause) = &state.refusing {
            return Err(cause.clone());
        }
        if bytes > self.bounds.bytes {
            let limit = self.bounds.bytes;
            return Err(JournalError::Unwritable(format!(
                "one batch of {bytes} bytes; at most {limit} may wait"
            )));
        }
        if state.entries + entries > self.bounds.entries || state.bytes + bytes > self.bounds.bytes {
            return Err(JournalError::Full {
                limit: self.bounds.entries,
            });
        }
        state.entries += entries;
        state.bytes += bytes;
        state.items.push_back(PgWriterItem {
            work,
            done,
            entries,
            bytes,
        });
        drop(state);
        self.changed.notify_one();
        Ok(ticket)
    }

    /// Waits for work and takes one group. Work other than events ends its group.
    pub(super) async fn take_group(&self, patience: Option<Duration>) -> PgWriterDrain {
        loop {
            if let Some(taken) = self.try_take_group() {
                return taken;
            }
            match patience {
                None => self.changed.notified().await,
                Some(time) => {
                    if tokio::time::timeout(time, self.changed.notified()).await.is_err() {
                        return self.try_take_group().unwrap_or(PgWriterDrain::Nothing);
                    }
                }
            }
        }
    }

    fn try_take_group(&self) -> Option<PgWriterDrain> {
        let mut state = self.lock();
        if state.items.is_empty() {
            return state.closed.then_some(PgWriterDrain::Closed);
        }
        let (mut entries, mut bytes) = (0, 0);
        let mut group = Vec::new();
        while let Some(item) = state.items.pop_front() {
            entries += item.entries;
            bytes += item.bytes;
            let last = item.work.extra().is_some();
            group.push(item);
            if last || entries >= self.bounds.group_entries || bytes >= self.bounds.group_bytes {
                break;
            }
        }
        state.entries -= entries;
        state.bytes -= bytes;
        Some(PgWriterDrain::Items(group))
    }

    /// From now on, refuses all work with this cause, including the queued work. Returns the sessions of the queued work.
    pub(super) fn refuse_all(&self, cause: &JournalError) -> Vec<SessionId> {
        let waiting: Vec<PgWriterItem> = {
            let mut state = self.lock();
            state.refusing = Some(cause.clone());
            (state.entries, state.bytes) = (0, 0);
            state.items.drain(..).collect()
        };
        let mut sessions = Vec::new();
        for item in waiting {
            sessions.extend(item.work.batch().into_iter().flat_map(sessions_of));
            let _ = item.done.send(Err(cause.clone())); // silent-ok: nobody waits for it any more
        }
        sessions
    }

    /// Accepts work again. Returns whether the queue refused before.
    pub(super) fn accept_again(&self) -> bool {
        self.lock().refusing.take().is_some()
    }

    /// Takes no more work; queued work is still done.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }
}

/// The sessions of a batch.
pub(super) fn sessions_of(batch: &Batch) -> impl Iterator<Item = SessionId> {
    batch.entries.iter().map(|entry| entry.session)
}

fn bytes_of(batch: &Batch) -> usize {
    let of_entry = |e: &JournalEntry| {
        256 + e.payload.get().len() + e.content.as_ref().map_or(0, |content| content.bytes.len())
    };
    batch.entries.iter().map(of_entry).sum()
}
