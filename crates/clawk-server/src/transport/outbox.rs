//! The queue of messages for one client. Under load, several messages are written at once.

#[cfg(test)]
mod tests;

use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// With this many unread bytes, reading pauses and heartbeats are dropped.
const SATURATED: usize = 1024 * 1024;

/// The largest single write, bytes, unless one message is longer.
const ONE_WRITE: usize = 512 * 1024;

/// The sending side for answers and notifications. When the last clone is dropped, the queue ends.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Arc<OutgoingMessages>);

impl Outbox {
    /// The receiving side.
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

/// Outgoing messages. Senders of answers never wait. The reading loop waits for [`OutgoingMessages::room`], which bounds the memory
/// to `SATURATED` plus the answers to the requests in flight at that time.
#[derive(Debug, Default)]
pub(crate) struct OutgoingMessages {
    state: Mutex<State>,
    filled: Notify,
    drained: Notify,
    /// No reader listens at the moment. Heartbeats are not stored for later.
    unheard: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    being_written: usize,
    /// No more messages follow.
    finished: bool,
    /// The client disconnected; new messages are dropped.
    broken: bool,
}

impl OutgoingMessages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves whole messages, each with its newline, into the queue. Leaves the buffer empty.
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

    /// Whether the client is too far behind.
    pub(crate) fn is_saturated(&self) -> bool {
        let state = self.state();
        !state.broken && state.waiting.len() + state.being_written >= SATURATED
    }

    /// Waits until the client has read enough or disconnected.
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

    /// Ends the queue: [`OutgoingMessages::write_to`] returns when everything is written.
    pub(crate) fn finish(&self) {
        self.state().finished = true;
        self.filled.notify_one();
        self.drained.notify_waiters();
    }

    /// Whether a reader listens.
    pub(crate) fn is_heard(&self) -> bool {
        !self.unheard.load(Ordering::Relaxed)
    }

    /// Sets whether a reader listens from now on.
    pub(crate) fn set_heard(&self, heard: bool) {
        self.unheard.store(!heard, Ordering::Relaxed);
    }

    /// Completes when no more messages follow, even if some were not taken yet.
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

    /// Takes the waiting messages, each with its newline; `None` when no more follow. Messages of the previous call count as
    /// written. Only one caller at a time. Cancelling loses nothing.
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
    /// The client disconnected; from then on all messages are dropped.
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
                // Answers that are ready now join the same write.
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

/// How many of these bytes go into one write: whole messages up to [`ONE_WRITE`], or one longer message.
fn whole_messages(bytes: &[u8]) -> usize {
    let Some((head, tail)) = bytes.split_at_checked(ONE_WRITE) else {
        return bytes.len();
    };
    match memchr::memrchr(b'\n', head) {
        Some(at) => at + 1,
        None => memchr::memchr(b'\n', tail).map_or(bytes.len(), |at| ONE_WRITE + at + 1),
    }
}
