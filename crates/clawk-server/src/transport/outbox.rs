//! The queue of messages to write to one peer. Under load, messages are joined.

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// From here on, reading pauses and heartbeats are dropped: the peer does not read.
const SATURATED: usize = 1024 * 1024;

/// What one write takes at most, unless a single message is longer.
const ONE_WRITE: usize = 512 * 1024;

/// Where answers and notifications are put. Dropped, nothing more will come: the last holder of an answer ends its queue.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Arc<OutgoingMessages>);

impl Outbox {
    /// The side from which they are taken out.
    pub(crate) fn outlet(&self) -> Arc<OutgoingMessages> {
        Arc::clone(&self.0)
    }
}

impl Deref for Outbox {
    type Target = OutgoingMessages;

    fn deref(&self) -> &OutgoingMessages {
        &self.0
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Messages on their way out. Whoever answers never waits; whoever reads waits for [`OutgoingMessages::room`], which bounds it: what
/// is held is at most `SATURATED` and the answers to what was in flight then.
#[derive(Debug, Default)]
pub(crate) struct OutgoingMessages {
    state: Mutex<State>,
    filled: Notify,
    drained: Notify,
    /// No reader listens at the moment. Heartbeats are not kept for later.
    unheard: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    being_written: usize,
    /// No more will come.
    finished: bool,
    /// The peer is gone; what comes is dropped.
    broken: bool,
}

impl OutgoingMessages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes whole messages, each with its newline, and leaves the buffer empty.
    pub(crate) fn take(&self, messages: &mut Vec<u8>) {
        if messages.is_empty() {
            return;
        }
        let mut state = self.state();
        if state.broken {
            messages.clear();
        } else if state.waiting.is_empty() {
            std::mem::swap(&mut state.waiting, messages);
        } else {
            state.waiting.append(messages);
        }
        drop(state);
        self.filled.notify_one();
    }

    /// The peer is behind.
    pub(crate) fn is_saturated(&self) -> bool {
        let state = self.state();
        !state.broken && state.waiting.len() + state.being_written >= SATURATED
    }

    /// Waits until the peer has read enough, or is gone.
    pub(crate) async fn room(&self) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if !self.is_saturated() {
                return;
            }
            drained.await;
        }
    }

    /// Nothing more will come: [`OutgoingMessages::write_to`] ends when all is written.
    pub(crate) fn finish(&self) {
        self.state().finished = true;
        self.filled.notify_one();
        self.drained.notify_waiters();
    }

    /// Whether somebody listens.
    pub(crate) fn is_heard(&self) -> bool {
        !self.unheard.load(Ordering::Relaxed)
    }

    /// Sets whether a reader listens from now on.
    pub(crate) fn set_heard(&self, heard: bool) {
        self.unheard.store(!heard, Ordering::Relaxed);
    }

    /// Completes when nothing more will come, whether or not all was taken out.
    pub(crate) async fn finished(&self) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if self.state().finished {
                return;
            }
            drained.await;
        }
    }

    /// Takes out what waits: whole messages, each with its newline; `None` when nothing more will come. What was taken before
    /// counts as written. One taker at a time. Cancelling loses nothing.
    pub(crate) async fn next(&self) -> Option<Vec<u8>> {
        loop {
            let (batch, finished) = {
                let mut state = self.state();
                let batch = std::mem::take(&mut state.waiting);
                state.being_written = batch.len();
                (batch, state.finished)
            };
            self.drained.notify_waiters();
            if !batch.is_empty() {
                return Some(batch);
            }
            if finished {
                return None;
            }
            self.filled.notified().await;
        }
    }

    /// Writes until [`OutgoingMessages::finish`].
    ///
    /// # Errors
    /// The peer is gone; from then on all messages are dropped.
    pub(crate) async fn write_to<W: AsyncWrite + Unpin>(&self, writer: W) -> io::Result<()> {
        let outcome = self.write_loop(writer).await;
        let mut state = self.state();
        state.broken = true;
        state.waiting = Vec::new();
        state.being_written = 0;
        drop(state);
        self.drained.notify_waiters();
        outcome
    }

    async fn write_loop<W: AsyncWrite + Unpin>(&self, mut writer: W) -> io::Result<()> {
        let mut batch = Vec::new();
        loop {
            let finished = {
                let mut state = self.state();
                std::mem::swap(&mut state.waiting, &mut batch);
                state.being_written = batch.len();
                state.finished
            };
            if batch.is_empty() {
                if finished {
                    return writer.flush().await;
                }
                self.filled.notified().await;
                // What else is ready to answer goes into the same write.
                tokio::task::yield_now().await;
                continue;
            }
            let mut rest = batch.as_slice();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(whole_messages(rest));
                writer.write_all(now).await?;
                rest = later;
            }
            writer.flush().await?;
            batch.clear();
            if batch.capacity() > SATURATED {
                batch = Vec::new();
            }
            self.state().being_written = 0;
            self.drained.notify_waiters();
        }
    }
}

/// How many of these bytes go into one write: whole messages, [`ONE_WRITE`] or a single longer one.
fn whole_messages(bytes: &[u8]) -> usize {
    let Some((head, tail)) = bytes.split_at_checked(ONE_WRITE) else {
        return bytes.len();
    };
    match memchr::memrchr(b'\n', head) {
        Some(at) => at + 1,
        None => memchr::memchr(b'\n', tail).map_or(bytes.len(), |at| ONE_WRITE + at + 1),
    }
}
