//! The watchers of a session: any number of clients (a terminal, a console, a chat), each with its own bounded queue.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::notice::SessionNotice;

/// Largest number of waiting notices for one watcher.
pub const BACKLOG: usize = 1024;
/// Longest time that watchers which do not read can delay a turn, in milliseconds. After it they miss notices (never the record). A
/// watcher that missed something delays nothing until it has read its queue.
const SLOW_MS: u64 = 1_000;

/// Sends notices to all watchers of a session. Without a session, notices are dropped.
#[derive(Debug, Clone, Default)]
pub struct NoticeSender {
    watchers: Option<Arc<Mutex<Vec<Weak<NoticeQueue>>>>>,
    /// Pieces of text are not sent.
    whole: bool,
}

/// The receiving end of a watcher: a client that gets a session's notices. When dropped, it no longer delays anything.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<NoticeQueue>,
    /// Cancelled when no further notice follows.
    over: CancellationToken,
}

#[derive(Debug, Default)]
struct NoticeQueue {
    state: Mutex<QueuedNotices>,
    filled: Notify,
    drained: Notify,
}

#[derive(Debug, Default)]
struct QueuedNotices {
    notices: VecDeque<SessionNotice>,
    /// Number of notices dropped since the watcher was told.
    missed: u64,
    /// It missed more than a piece of text: nothing waits for it until it has read its queue.
    behind: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NoticeSender {
    /// A session's, with no watcher yet.
    pub fn new() -> Self {
        Self {
            watchers: Some(Arc::default()),
            whole: false,
        }
    }

    /// The same without pieces of text: whoever watches gets whole texts alone.
    pub fn whole(&self) -> Self {
        Self {
            watchers: self.watchers.clone(),
            whole: true,
        }
    }

    /// A new watcher; it is told what happens from now on, until `over`.
    pub fn watch(&self, over: CancellationToken) -> Watcher {
        let queue = Arc::new(NoticeQueue::default());
        if let Some(watchers) = &self.watchers {
            let mut watchers = lock(watchers);
            watchers.retain(|known| known.strong_count() > 0);
            watchers.push(Arc::downgrade(&queue));
        }
        Watcher { queue, over }
    }

    fn queues(&self) -> Vec<Arc<NoticeQueue>> {
        let watchers = self.watchers.as_ref().map(|watchers| lock(watchers));
        watchers.map_or_else(Vec::new, |known| known.iter().filter_map(Weak::upgrade).collect())
    }

    /// Somebody watches.
    pub fn attached(&self) -> bool {
        let watchers = self.watchers.as_ref().map(|watchers| lock(watchers));
        watchers.is_some_and(|known| known.iter().any(|watcher| watcher.strong_count() > 0))
    }

    /// Tells everybody. Those who do not read hold this up for one bounded time together.
    pub async fn send(&self, notice: SessionNotice) {
        let mut full = self.queues();
        full.retain(|queue| !queue.put(&notice));
        if full.is_empty() {
            return;
        }
        let deadline = Instant::now() + Duration::from_millis(SLOW_MS);
        for queue in full {
            // silent-ok: a watcher that is too slow is told that it missed something; the journal has the event
            let _late = tokio::time::timeout_at(deadline, queue.room()).await;
            if !queue.put(&notice) {
                queue.miss();
            }
        }
    }

    /// What the model thought; missed by those who are behind. Where the answer is judged first, its thoughts are told to nobody.
    pub fn thought(&self, text: &str) {
        if self.whole {
            return;
        }
        let notice = SessionNotice::Thought(text.to_owned());
        for queue in self.queues() {
            let _is_told = queue.put(&notice);
        }
    }

    /// A piece of text; missed by those who are behind: [`SessionNotice::Said`] has it all.
    pub fn delta(&self, text: &str) {
        if self.whole {
            return;
        }
        for queue in self.queues() {
            queue.delta(text);
        }
    }
}

/// Returns whether a client waits for this notice and would otherwise wait forever.
const fn essential(notice: &SessionNotice) -> bool {
    matches!(
        notice,
        SessionNotice::TurnEnded { .. } | SessionNotice::Asking(_) | SessionNotice::Planned(_)
    )
}

impl NoticeQueue {
    /// Queues a notice, replacing a piece of text if needed; an essential notice may replace any other. Returns `false` if the
    /// queue is full of notices that must not be missed, so that waiting may help.
    fn put(&self, notice: &SessionNotice) -> bool {
        let mut state = lock(&self.state);
        if state.notices.len() >= BACKLOG {
            let piece = |waiting: &SessionNotice| matches!(waiting, SessionNotice::Delta(_));
            let mut room = state.notices.iter().position(piece);
            if room.is_none() && essential(notice) {
                room = state.notices.iter().position(|waiting| !essential(waiting));
            }
            match room {
                Some(at) => {
                    state.notices.remove(at);
                    state.missed += 1;
                }
                None if state.behind => {
                    state.missed += 1;
                    return true;
                }
                None => return false,
            }
        }
        state.notices.push_back(notice.clone());
        drop(state);
        self.filled.notify_one();
        true
    }

    fn delta(&self, text: &str) {
        let mut state = lock(&self.state);
        if state.notices.len() >= BACKLOG {
            state.missed += 1;
            return;
        }
        state.notices.push_back(SessionNotice::Delta(text.to_owned()));
        drop(state);
        self.filled.notify_one();
    }

    fn miss(&self) {
        let mut state = lock(&self.state);
        state.missed += 1;
        state.behind = true;
    }

    async fn room(&self) {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if lock(&self.state).notices.len() < BACKLOG {
                return;
            }
            drained.await;
        }
    }

    fn pop(&self) -> Option<SessionNotice> {
        let mut state = lock(&self.state);
        if state.missed > 0 {
            return Some(SessionNotice::Missed(std::mem::take(&mut state.missed)));
        }
        let notice = state.notices.pop_front();
        if state.notices.is_empty() {
            state.behind = false;
        }
        drop(state);
        self.drained.notify_one();
        notice
    }
}

impl Watcher {
    /// Returns the next notice; `None` when no further one follows. Cancelling the wait loses nothing.
    pub async fn next(&self) -> Option<SessionNotice> {
        loop {
            if let Some(notice) = self.queue.pop() {
                return Some(notice);
            }
            tokio::select! {
                biased;
                () = self.queue.filled.notified() => {}
                () = self.over.cancelled() => return self.queue.pop(),
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A sender that waits for room finds the queue empty, and then closed.
        lock(&self.queue.state).notices.clear();
        self.queue.drained.notify_one();
    }
}
