//! Answers on their way out: what is owed, and one attempt to hand it over (C5).

use std::fmt;

use clawk_proto::{Digest, MessageId, SessionId};
use tokio_util::sync::CancellationToken;

use super::BoxFuture;
use crate::time::Timestamp;

/// An answer that is owed to a conversation until it is delivered: one row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedAnswer {
    /// The message that it answers. It names the entry, too: one message has one answer.
    pub message: MessageId,
    /// The session, in whose chain its delivery is recorded.
    pub session: SessionId,
    /// The channel; empty where a caller at the process's own surface waits (`conversation` says which).
    pub channel: String,
    /// Where in the channel; entries of one conversation leave in their order.
    pub conversation: String,
    /// Who had said the message.
    pub sender: String,
    /// The platform's id of the message, if it has one.
    pub reply_to: Option<String>,
    /// SHA-256 of the answer's text; `None`: there is none, the turn failed.
    pub text: Option<Digest>,
}

/// The state of an entry in the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// The entry.
    pub owed: OwedAnswer,
    /// When the answer came.
    pub at: Timestamp,
    /// Attempts that were begun.
    pub attempts: u32,
    /// Not before then.
    pub next_at: Timestamp,
    /// An earlier attempt may have reached the platform.
    pub doubt: bool,
    /// It is tried no more, until somebody asks for it.
    pub dead: bool,
    /// What the last attempt came to.
    pub reason: Option<String>,
}

/// A change of the outbox projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxChange {
    /// An attempt begins: from here on it may have reached the platform.
    Begun {
        /// The entry.
        message: MessageId,
    },
    /// It is delivered: nothing is owed any more.
    Delivered {
        /// The entry.
        message: MessageId,
    },
    /// It is tried again.
    Again {
        /// The entry.
        message: MessageId,
        /// Not before then.
        next_at: Timestamp,
        /// This attempt, or an earlier one, may have reached the platform.
        doubt: bool,
        /// Why.
        reason: String,
    },
    /// It is a dead letter.
    Dead {
        /// The entry.
        message: MessageId,
        /// Why.
        reason: String,
    },
    /// Somebody wants a dead letter to be tried again, from the first attempt on.
    Requeued {
        /// The entry.
        message: MessageId,
        /// Now.
        at: Timestamp,
    },
}

/// An answer for a channel to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingAnswer {
    /// Unique to this answer and the same in every attempt: the platform's idempotency key or transaction id, where it has one.
    pub id: MessageId,
    /// The channel's name.
    pub channel: String,
    /// Where to: the conversation that the message came from.
    pub conversation: String,
    /// Who had said the message.
    pub sender: String,
    /// The platform's id of the message that it answers.
    pub reply_to: Option<String>,
    /// The whole text, Markdown, of any length. The channel splits it and turns it into its own markup.
    pub text: String,
    /// From 1.
    pub attempt: u32,
    /// An earlier attempt may have reached the platform. A channel with an idempotency key sends it as it is; one that can read its
    /// history looks there first, and answers [`Delivery::Delivered`] when it finds it; every other one sends it marked: "(this may
    /// be a repeat)".
    pub repeat: bool,
}

/// The outcome of one delivery attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The platform has it, and said so.
    Delivered {
        /// Its id there.
        platform_id: Option<String>,
    },
    /// The platform surely does not have it, and may take it later: it is down, it limits, its own rules forbid it now.
    Retry {
        /// As the platform said (`Retry-After`); else the kernel's own back-off counts.
        after_ms: Option<u64>,
        /// For people.
        reason: String,
    },
    /// The platform surely does not have it and never takes it: the chat is gone, the text is refused. A dead letter at once.
    Failed {
        /// For people.
        reason: String,
    },
    /// It was handed over and no answer came: the platform may have it. It is tried again, with [`OutgoingAnswer::repeat`].
    Unknown {
        /// For people.
        reason: String,
    },
}

/// A channel's way out: one attempt at a time for each conversation, several conversations at once.
///
/// The kernel owns everything around an attempt: it makes the attempt durable before it begins and its end after, keeps the order
/// within a conversation, waits (honouring `after_ms`), gives up after so many attempts, and asks again after a crash. An
/// implementation does one attempt and tells the truth about it; it holds no queue and retries nothing. Each attempt may take
/// `outbox::ATTEMPT_MS` of the kernel; past that it is dropped and counts as [`Delivery::Unknown`].
pub trait ChannelDelivery: Send + Sync + fmt::Debug {
    /// Sends one answer. `cancel` fires when the agent stops or an operator stops it; what was handed over by then is
    /// [`Delivery::Unknown`], what was not is [`Delivery::Retry`].
    fn deliver<'a>(
        &'a self,
        out: &'a OutgoingAnswer,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Delivery>;
}
