//! What waits for a session's worker, in order. The first [`MAILBOX`] messages wait with their text; those beyond them wait in the
//! journal's inbox and are only named here, so that a flood takes no memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_proto::{Digest, MessageId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::door::Origin;
use crate::recover::OpenTurn;

/// Messages that wait in one session with their text.
pub const MAILBOX: usize = 32;

/// One thing to do for the worker.
#[derive(Debug)]
pub(crate) enum Mail {
    Message {
        id: MessageId,
        text: Text,
        origin: Origin,
    },
    Resume {
        open: Box<OpenTurn>,
    },
}

/// A message's text.
#[derive(Debug)]
pub(crate) enum Text {
    Here(String),
    /// In the journal; its place beyond the mailboxes is free again when this is dropped.
    Kept(Digest, OwnedSemaphorePermit),
}

/// One session's mail.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<Inner>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    mail: VecDeque<Mail>,
    /// Messages with their text, and places for such that are reserved.
    here: usize,
    closed: bool,
}

/// A place for one message, kept while it becomes durable.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    mailbox: &'a Mailbox,
    beyond: Option<OwnedSemaphorePermit>,
    filled: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place here, or one of those beyond all mailboxes; `None`: there is none left, or the session is over.
    pub(crate) fn reserve(&self, beyond: &Arc<Semaphore>) -> Option<Place<'_>> {
        let mut inner = self.lock();
        if inner.closed {
            return None;
        }
        let beyond = if inner.here < MAILBOX {
            inner.here += 1;
            None
        } else {
            Some(Arc::clone(beyond).try_acquire_owned().ok()?) // silent-ok: none is left
        };
        Some(Place {
            mailbox: self,
            beyond,
            filled: false,
        })
    }

    /// A turn to be taken up. `false`: the session is over.
    pub(crate) fn resume(&self, open: OpenTurn) -> bool {
        self.push(Mail::Resume { open: Box::new(open) })
    }

    fn push(&self, mail: Mail) -> bool {
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        inner.mail.push_back(mail);
        drop(inner);
        self.came.notify_one();
        true
    }

    /// The next one, when there is one. One worker asks at a time.
    pub(crate) async fn next(&self) -> Mail {
        loop {
            // A notification that comes between the look and the wait is kept.
            if let Some(mail) = self.take() {
                return mail;
            }
            self.came.notified().await;
        }
    }

    fn take(&self) -> Option<Mail> {
        let mut inner = self.lock();
        let mail = inner.mail.pop_front()?;
        if let Mail::Message {
            text: Text::Here(_), ..
        } = &mail
        {
            inner.here = inner.here.saturating_sub(1);
        }
        Some(mail)
    }

    /// Takes nothing more. What waits is open in the journal's inbox.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// The same, if nothing waits and no place is reserved.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut inner = self.lock();
        let empty = inner.mail.is_empty() && inner.here == 0;
        inner.closed |= empty;
        empty
    }
}

impl Place<'_> {
    /// Fills the place with a message that is durable.
    pub(crate) fn fill(mut self, id: MessageId, text: String, digest: Digest, origin: Origin) {
        self.filled = true;
        let text = match self.beyond.take() {
            None => Text::Here(text),
            Some(slot) => Text::Kept(digest, slot),
        };
        // `false`: the agent ends, and the message is taken up after the next start.
        self.mailbox.push(Mail::Message { id, text, origin });
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.filled && self.beyond.is_none() {
            let mut inner = self.mailbox.lock();
            inner.here = inner.here.saturating_sub(1);
        }
    }
}
