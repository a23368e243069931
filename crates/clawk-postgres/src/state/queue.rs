//! What waits for the writer: bounded in count and bytes, and the place where a journal that can't be written refuses.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalEntry, JournalError, JournalTicket};
use clawk_proto::SessionId;
use tokio::sync::{Notify, oneshot};

use super::erase::ContentRemoval;
use super::heads::{HeadDelivery, NewHead};

/// What is written beside events.
#[derive(Debug)]
pub(super) enum ExtraWrite {
    Remove(ContentRemoval),
    Head(NewHead),
    Sent(String, HeadDelivery),
    /// A session with its epoch is given up.
    Release(SessionId, i64),
}

/// What the writer does.
#[derive(Debug)]
pub(super) enum PgWriterWork {
    /// Of the agent's start that has this number, if one has: that of an earlier start is left out.
    Append(Batch, Option<i64>),
    /// Both in the same commit.
    AppendAnd(Batch, ExtraWrite),
    Run(ExtraWrite),
    /// Nothing: its ticket marks the place.
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

    /// It is of another start of the agent than this one.
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

/// What the writer finds when it looks.
#[derive(Debug)]
pub(super) enum PgWriterDrain {
    /// At least one item.
    Items(Vec<PgWriterItem>),
    /// Nothing in the time given.
    Nothing,
    /// Closed, and all is done.
    Closed,
}

/// How much may wait, and how much goes into one transaction.
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
    /// Why nothing can be written now.
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
        // No code panics while it holds the lock; if it did, the state would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes work, or refuses it at once.
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

    /// Waits for work and takes one group of it. What is more than events ends its group.
    pub(super) async fn take(&self, patience: Option<Duration>) -> PgWriterDrain {
        loop {
            if let Some(taken) = self.look() {
                return taken;
            }
            match patience {
                None => self.changed.notified().await,
                Some(time) => {
                    if tokio::time::timeout(time, self.changed.notified()).await.is_err() {
                        return self.look().unwrap_or(PgWriterDrain::Nothing);
                    }
                }
            }
        }
    }

    fn look(&self) -> Option<PgWriterDrain> {
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

    /// From now on everything is refused with this cause, and what waits as well. Returns the sessions of what waited.
    pub(super) fn refuse(&self, cause: &JournalError) -> Vec<SessionId> {
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

    /// Writing works again; whether it did not.
    pub(super) fn accept(&self) -> bool {
        self.lock().refusing.take().is_some()
    }

    /// No more work is taken; what waits is still done.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }
}

/// The sessions that a batch is about.
pub(super) fn sessions_of(batch: &Batch) -> impl Iterator<Item = SessionId> {
    batch.entries.iter().map(|entry| entry.session)
}

fn bytes_of(batch: &Batch) -> usize {
    let of_entry = |e: &JournalEntry| {
        256 + e.payload.get().len() + e.content.as_ref().map_or(0, |content| content.bytes.len())
    };
    batch.entries.iter().map(of_entry).sum()
}
