//! The queue of a session's worker. The first [`MAILBOX`] messages wait in memory with their text. Further ones wait in the
//! journal's inbox, and only their ids are here, so that a flood of messages needs no memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_proto::{Digest, MessageId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use crate::attach::TurnInput;
use crate::door::Origin;
use crate::open_turn::OpenTurn;
use crate::ports::{Image, JournalError};

/// Number of messages that wait in one session with their text.
pub const MAILBOX: usize = 32;

/// One item of work for the worker.
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
    /// A person clears the conversation, after the messages so far.
    Clear {
        by: String,
        /// Notified once the clearing is durable.
        done: oneshot::Sender<Result<(), JournalError>>,
    },
}

/// The text of a waiting message.
#[derive(Debug)]
pub(crate) enum MailboxText {
    Here {
        text: String,
        frame: String,
    },
    /// In the journal with its frame, by digest. Its place is free again when this is dropped.
    Kept {
        text: Digest,
        frame: Option<Digest>,
        place: OwnedSemaphorePermit,
    },
}

/// The queue of one session.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: Mutex<MailboxState>,
    came: Notify,
}

#[derive(Debug, Default)]
struct MailboxState {
    mail: VecDeque<MailboxItem>,
    /// Number of messages with their text, including reserved places.
    here: usize,
    /// Number of reserved places that are neither filled nor given up.
    reserved: usize,
    closed: bool,
    /// The session has ended: waiting messages are answered, and no new ones are accepted.
    ended: bool,
}

/// A reserved place for one message while it becomes durable.
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

    /// Reserves a place in memory, or in the journal's inbox; `None`: there is none, or the session has ended.
    pub(crate) fn reserve_slot(&self, beyond: &Arc<Semaphore>) -> Option<MailboxSlot<'_>> {
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

    /// Queues a turn to resume. Returns `false` if the session has ended.
    pub(crate) fn push_resumed_turn(&self, open: OpenTurn) -> bool {
        self.push(MailboxItem::Resume { open: Box::new(open) })
    }

    /// Queues the clearing of the conversation. Returns `false` if the session has ended.
    pub(crate) fn push_clear(&self, by: String, done: oneshot::Sender<Result<(), JournalError>>) -> bool {
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

    /// Waits for the next item; `None`: the session has ended, and nothing waits. Only one worker calls this.
    pub(crate) async fn next(&self) -> Option<MailboxItem> {
        loop {
            // A notification between the check and the wait is not lost.
            if let Some(mail) = self.take_item() {
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

    /// Ends the session: its worker ends after it has answered the waiting messages.
    pub(crate) fn end_session(&self) {
        self.lock().ended = true;
        self.came.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    fn take_item(&self) -> Option<MailboxItem> {
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

    /// Accepts nothing more. Waiting messages stay open in the journal's inbox.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
    }

    /// Like [`Self::close`], only if nothing waits and no place is reserved. Returns whether it closed.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut inner = self.lock();
        let empty = inner.mail.is_empty() && inner.reserved == 0;
        inner.closed |= empty;
        empty
    }
}

impl MailboxSlot<'_> {
    /// Fills the place with a durable message.
    pub(crate) fn put_message(mut self, id: MessageId, said: TurnInput, digest: Digest, origin: Origin) {
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
        // `false` means that the agent ends. The message is resumed after the next start.
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
        // A waiter for the session's end may wait for this.
        self.mailbox.came.notify_one();
    }
}
