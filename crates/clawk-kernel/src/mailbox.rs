//! What waits for a session's worker, in order. The first [`MAILBOX`] messages wait with their text; those beyond them wait in the
//! journal's inbox and are only named here, so that a flood takes no memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_proto::{Digest, MessageId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::attach::TurnInput;
use crate::door::Origin;
use crate::open_turn::OpenTurn;
use crate::ports::{Image, JournalError};

/// Messages that wait in one session with their text.
pub const MAILBOX: usize = 32;

/// One thing to do for the worker.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "at most 32 of them wait in one session")]
pub(crate) enum MailboxItem {
    Message {
        id: MessageId,
        text: MailboxText,
        images: Vec<Image>,
        origin: Origin,
    },
    Resume {
        open: Box<OpenTurn>,
    },
    /// Somebody begins anew behind what was said so far.
    Clear {
        by: String,
        /// Told once it is durable.
        done: oneshot::Sender<Result<(), JournalError>>,
    },
}

/// A message's text.
#[derive(Debug)]
pub(crate) enum MailboxText {
    Here {
        text: String,
        frame: String,
    },
    /// In the journal with its frame, by their digests; its place beyond the mailboxes is free again when this is dropped.
    Kept {
        text: Digest,
        frame: Option<Digest>,
        place: OwnedSemaphorePermit,
    },
}

/// One session's mail.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<MailboxState>,
    came: Notify,
}

#[derive(Debug, Default)]
struct MailboxState {
    mail: VecDeque<MailboxItem>,
    /// Messages with their text, and places for such that are reserved.
    here: usize,
    /// Places that are reserved and neither filled nor given up.
    reserved: usize,
    closed: bool,
    /// The session has ended: what waits is answered, and nothing more is taken.
    ended: bool,
}

/// A place for one message, kept while it becomes durable.
#[derive(Debug)]
pub(crate) struct MailboxSlot<'a> {
    mailbox: &'a Mailbox,
    beyond: Option<OwnedSemaphorePermit>,
    filled: bool,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place here, or one of those beyond all mailboxes; `None`: there is none left, or the session is over.
    pub(crate) fn reserve(&self, beyond: &Arc<Semaphore>) -> Option<MailboxSlot<'_>> {
        let mut inner = self.lock();
        if inner.closed || inner.ended {
            return None;
        }
        let beyond = if inner.here < MAILBOX {
            inner.here += 1;
            None
        } else {
            Some(Arc::clone(beyond).try_acquire_owned().ok()?) // silent-ok: none is left
        };
        inner.reserved += 1;
        Some(MailboxSlot {
            mailbox: self,
            beyond,
            filled: false,
        })
    }

    /// A turn to be taken up. `false`: the session is over.
    pub(crate) fn resume(&self, open: OpenTurn) -> bool {
        self.push(MailboxItem::Resume { open: Box::new(open) })
    }

    /// The conversation begins anew behind what waits. `false`: the session is over.
    pub(crate) fn clear(&self, by: String, done: oneshot::Sender<Result<(), JournalError>>) -> bool {
        self.push(MailboxItem::Clear { by, done })
    }

    fn push(&self, mail: MailboxItem) -> bool {
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        inner.mail.push_back(mail);
        drop(inner);
        self.came.notify_one();
        true
    }

    /// The next one, when there is one; `None`: the session has ended, and nothing waits. One worker asks at a time.
    pub(crate) async fn next(&self) -> Option<MailboxItem> {
        loop {
            // A notification that comes between the look and the wait is kept.
            if let Some(mail) = self.take() {
                return Some(mail);
            }
            if self.is_done() {
                return None;
            }
            self.came.notified().await;
        }
    }

    fn is_done(&self) -> bool {
        let inner = self.lock();
        inner.ended && inner.mail.is_empty() && inner.reserved == 0
    }

    /// The session has ended: its worker ends when it has answered what waits.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.came.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    fn take(&self) -> Option<MailboxItem> {
        let mut inner = self.lock();
        let mail = inner.mail.pop_front()?;
        if let MailboxItem::Message {
            text: MailboxText::Here { .. },
            ..
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
        let empty = inner.mail.is_empty() && inner.reserved == 0;
        inner.closed |= empty;
        empty
    }
}

impl MailboxSlot<'_> {
    /// Fills the place with a message that is durable.
    pub(crate) fn fill(mut self, id: MessageId, said: TurnInput, digest: Digest, origin: Origin) {
        let TurnInput { text, images, frame } = said;
        self.filled = true;
        let text = match self.beyond.take() {
            None => MailboxText::Here { text, frame },
            Some(place) => MailboxText::Kept {
                text: digest,
                frame: (!frame.is_empty()).then(|| crate::event::digest(frame.as_bytes())),
                place,
            },
        };
        // `false`: the agent ends, and the message is taken up after the next start.
        self.mailbox.push(MailboxItem::Message {
            id,
            text,
            images,
            origin,
        });
    }
}

impl Drop for MailboxSlot<'_> {
    fn drop(&mut self) {
        let mut inner = self.mailbox.lock();
        inner.reserved = inner.reserved.saturating_sub(1);
        if !self.filled && self.beyond.is_none() {
            inner.here = inner.here.saturating_sub(1);
        }
        drop(inner);
        // Who waits for the end of an ended session may have waited for this.
        self.mailbox.came.notify_one();
    }
}
