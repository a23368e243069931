//! The writer's queue, bounded in number and bytes. It refuses work while the journal can't be written.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalError, JournalTicket};
use rusqlite::Connection;
use tokio::sync::oneshot;

/// A write that is not an event. `Ok(false)` undoes only this job; an error undoes the whole group.
pub(crate) type Job = Box<dyn FnOnce(&Connection) -> rusqlite::Result<bool> + Send>;

/// Work for the writer.
pub(crate) enum SqliteWriterWork {
    Append(Batch),
    /// Appends a batch and runs a job in the same commit.
    AppendAnd(Batch, Job),
    Run(Job),
    /// Does nothing; its ticket marks a position in the queue.
    Flush,
}

pub(crate) struct SqliteWriterItem {
    pub(crate) work: SqliteWriterWork,
    pub(crate) done: oneshot::Sender<Result<(), JournalError>>,
    entries: usize,
    bytes: usize,
}

impl fmt::Debug for SqliteWriterItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Item({} entries, {} bytes)", self.entries, self.bytes)
    }
}

/// The result of a look into the queue.
#[derive(Debug)]
pub(crate) enum SqliteWriterDrain {
    /// At least one item.
    Items(Vec<SqliteWriterItem>),
    /// No work arrived in time.
    Nothing,
    /// The queue is closed, and all work is done.
    Closed,
}

/// The limits of the queue and of one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
    pub(crate) group_entries: usize,
    pub(crate) group_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<SqliteWriterItem>,
    entries: usize,
    bytes: usize,
    /// Why the queue refuses work now.
    refusing: Option<String>,
    closed: bool,
    writer_waits: bool,
}

#[derive(Debug)]
pub(crate) struct SqliteWriterQueue {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

impl SqliteWriterQueue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock; if one did, the state would still be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work, or refuses it at once.
    pub(crate) fn push(&self, work: SqliteWriterWork) -> Result<JournalTicket, JournalError> {
        let (entries, bytes) = match &work {
            SqliteWriterWork::Append(batch) | SqliteWriterWork::AppendAnd(batch, _) => {
                (batch.entries.len().max(1), bytes_of(batch))
            }
            SqliteWriterWork::Run(_) | SqliteWriterWork::Flush => (1, 0),
        };
        let (done, ticket) = JournalTicket::new();
        let mut state = self.lock();
        if state.closed {
            return Err(JournalError::Unwritable("it was closed".to_owned()));
        }
        if let Some(cause) = &state.refusing {
            return Err(JournalError::Unwritable(cause.clone()));
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
        state.items.push_back(SqliteWriterItem {
            work,
            done,
            entries,
            bytes,
        });
        let wake = state.writer_waits;
        drop(state);
        if wake {
            self.changed.notify_one();
        }
        Ok(ticket)
    }

    /// Waits for work and takes one group.
    pub(crate) fn take_group(&self, patience: Option<Duration>) -> SqliteWriterDrain {
        let mut state = self.lock();
        while state.items.is_empty() {
            if state.closed {
                return SqliteWriterDrain::Closed;
            }
            state.writer_waits = true;
            state = match patience {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let (mut state, timeout) = self
                        .changed
                        .wait_timeout(state, time)
                        .unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && state.items.is_empty() && !state.closed {
                        state.writer_waits = false;
                        return SqliteWriterDrain::Nothing;
                    }
                    state
                }
            };
            state.writer_waits = false;
        }
        let (mut entries, mut bytes) = (0, 0);
        let mut group = Vec::new();
        while let Some(item) = state.items.pop_front() {
            entries += item.entries;
            bytes += item.bytes;
            group.push(item);
            if entries >= self.bounds.group_entries || bytes >= self.bounds.group_bytes {
                break;
            }
        }
        state.entries -= entries;
        state.bytes -= bytes;
        SqliteWriterDrain::Items(group)
    }

    /// From now on, refuses all work with this cause. Returns the queued work.
    pub(crate) fn refuse_all(&self, cause: &str) -> Vec<SqliteWriterItem> {
        let mut state = self.lock();
        state.refusing = Some(cause.to_owned());
        (state.entries, state.bytes) = (0, 0);
        state.items.drain(..).collect()
    }

    /// Accepts work again.
    pub(crate) fn accept_again(&self) {
        self.lock().refusing = None;
    }

    /// Takes no more work; queued work is still done.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }
}

fn bytes_of(batch: &Batch) -> usize {
    let of_entry = |e: &clawk_kernel::ports::JournalEntry| {
        256 + e.payload.get().len() + e.content.as_ref().map_or(0, |content| content.bytes.len())
    };
    batch.entries.iter().map(of_entry).sum()
}
