//! Who watches a session: any number of surfaces (a terminal, a console, a chat), each with a bounded queue of its own.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::notice::SessionNotice;

/// Notices that wait for one watcher.
pub const BACKLOG: usize = 1024;
/// How long watchers that do not read may hold a turn up, milliseconds, before they miss notices (never the record). One
/// that has missed something holds nothing up until it has read what waits.
const SLOW_MS: u64 = 1_000;

/// The way to all watchers of a session; without a session, notices go nowhere.
#[derive(Debug, Clone, Default)]
pub struct NoticeSender {
    watchers: Option<Arc<Mutex<Vec<Weak<NoticeQueue>>>>>,
    /// No pieces of text go this way.
    whole: bool,
}

/// One watcher's end: a surface that is told what happens in a session. Dropped, it holds nothing up any more.
#[derive(Debug)]
pub struct Watcher {
    queue: Arc<NoticeQueue>,
    /// Nothing more will happen.
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
    /// How many were dropped since the watcher was told of it.
    missed: u64,
    /// It let more than a piece of text pass by: nobody waits for it until it has read what waits.
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
            // silent-ok: who is too slow is told that it missed something; the journal has the fact
            let _late = tokio::time::timeout_at(deadline, queue.room()).await;
            if !queue.put(&notice) {
                queue.miss();
            }
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

/// What a surface waits for: without it, it would wait for ever.
const fn essential(notice: &SessionNotice) -> bool {
    matches!(
        notice,
        SessionNotice::TurnEnded { .. } | SessionNotice::Asking(_) | SessionNotice::Planned(_)
    )
}

impl NoticeQueue {
    /// Takes a notice, in the place of a piece of text if need be; what a surface waits for, in the place of anything else. `false`: it is full of what may not be missed, and waiting
    /// for the watcher may help.
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
    /// The next notice; `None` when nothing more will happen. Cancelling it loses nothing.
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
        // Who waits for its room finds the queue empty, and then gone.
        lock(&self.queue.state).notices.clear();
        self.queue.drained.notify_one();
    }
}
