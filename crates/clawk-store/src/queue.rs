//! The writer's inbox: bounded in count and bytes, and the place where a failed journal refuses.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::ports::{Batch, JournalError, JournalTicket};
use rusqlite::Connection;
use tokio::sync::oneshot;

/// Other writes than events. `Ok(false)` undoes the job alone; an error undoes the whole group.
pub(crate) type Job = Box<dyn FnOnce(&Connection) -> rusqlite::Result<bool> + Send>;

/// What the writer does.
pub(crate) enum SqliteWriterWork {
    Append(Batch),
    /// Both in the same commit.
    AppendAnd(Batch, Job),
    Run(Job),
    /// Nothing: its ticket marks the place.
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

/// What the writer finds when it looks.
#[derive(Debug)]
pub(crate) enum SqliteWriterDrain {
    /// At least one item.
    Items(Vec<SqliteWriterItem>),
    /// Nothing in the time given.
    Nothing,
    /// Closed, and all is done.
    Closed,
}

/// How much may wait, and how much goes into one transaction.
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
    /// Why nothing can be written now.
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
        // No code panics while it holds the lock; if it did, the state would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes work, or refuses it at once.
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

    /// Waits for work and takes one group of it.
    pub(crate) fn take(&self, patience: Option<Duration>) -> SqliteWriterDrain {
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

    /// From now on everything is refused with this cause; what waits is handed back.
    pub(crate) fn refuse(&self, cause: &str) -> Vec<SqliteWriterItem> {
        let mut state = self.lock();
        state.refusing = Some(cause.to_owned());
        (state.entries, state.bytes) = (0, 0);
        state.items.drain(..).collect()
    }

    /// Writing works again.
    pub(crate) fn accept(&self) {
        self.lock().refusing = None;
    }

    /// No more work is taken; what waits is still done.
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
