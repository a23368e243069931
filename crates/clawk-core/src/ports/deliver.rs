//! Delivery of answers: the outbox entry, and one attempt to deliver it (C5).

use std::fmt;

use clawk_proto::{Digest, MessageId, SessionId};
use tokio_util::sync::CancellationToken;

use super::BoxFuture;
use crate::time::Timestamp;

/// An answer that must be delivered to a conversation: one row of the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedAnswer {
    /// Id of the answered message. It also identifies the entry, because one message has one answer.
    pub message: MessageId,
    /// The session whose chain records the delivery.
    pub session: SessionId,
    /// Name of the channel; empty if a caller of the process itself waits (then `conversation` names it).
    pub channel: String,
    /// The conversation in the channel. Entries of one conversation are sent in order.
    pub conversation: String,
    /// Sender of the answered message.
    pub sender: String,
    /// The platform's id of the message, if it has one.
    pub reply_to: Option<String>,
    /// SHA-256 of the answer's text; `None`: there is none, the turn failed.
    pub text: Option<Digest>,
}

/// The state of an entry in the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    /// The outbox entry.
    pub owed: OwedAnswer,
    /// Time of the answer.
    pub at: Timestamp,
    /// Number of attempts that began.
    pub attempts: u32,
    /// Earliest time of the next attempt.
    pub next_at: Timestamp,
    /// An earlier attempt may have reached the platform.
    pub doubt: bool,
    /// Dead letter: no further attempt until a person requests one.
    pub dead: bool,
    /// The outcome of the last attempt.
    pub reason: Option<String>,
}

/// A change of the outbox projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutboxChange {
    /// An attempt begins. From here on it may have reached the platform.
    Begun {
        /// Id of the answered message.
        message: MessageId,
    },
    /// The answer was delivered.
    Delivered {
        /// Id of the answered message.
        message: MessageId,
    },
    /// Another attempt follows.
    Again {
        /// Id of the answered message.
        message: MessageId,
        /// Earliest time of the next attempt.
        next_at: Timestamp,
        /// This attempt, or an earlier one, may have reached the platform.
        doubt: bool,
        /// The reason.
        reason: String,
    },
    /// The answer becomes a dead letter.
    Dead {
        /// Id of the answered message.
        message: MessageId,
        /// The reason.
        reason: String,
    },
    /// A person queues a dead letter again, from the first attempt on.
    Requeued {
        /// Id of the answered message.
        message: MessageId,
        /// The current time.
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
    /// The conversation of the answered message.
    pub conversation: String,
    /// Sender of the answered message.
    pub sender: String,
    /// The platform's id of the message that it answers.
    pub reply_to: Option<String>,
    /// The whole text, Markdown, of any length. The channel splits it and turns it into its own markup.
    pub text: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// An earlier attempt may have reached the platform. A channel with an idempotency key sends the answer unchanged; one that can
    /// read its history looks there first and returns [`Delivery::Delivered`] if it finds the answer; any other one marks it:
    /// "(this may be a repeat)".
    pub repeat: bool,
}

/// The outcome of one delivery attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The platform confirmed that it has the answer.
    Delivered {
        /// The message's id on the platform.
        platform_id: Option<String>,
    },
    /// The platform surely does not have the answer and may accept it later: it is down, limits the rate, or its rules forbid the
    /// answer now.
    Retry {
        /// The delay that the platform requests (`Retry-After`), in milliseconds; `None`: the kernel's own back-off.
        after_ms: Option<u64>,
        /// Text for people.
        reason: String,
    },
    /// The platform surely does not have the answer and will never accept it: the chat is gone, or the text is refused. It becomes
    /// a dead letter at once.
    Failed {
        /// Text for people.
        reason: String,
    },
    /// The answer was sent but not confirmed, so the platform may have it. Another attempt follows, with
    /// [`OutgoingAnswer::repeat`].
    Unknown {
        /// Text for people.
        reason: String,
    },
}

/// The outgoing side of a channel: one attempt at a time for each conversation, several conversations concurrently.
///
/// The kernel owns everything around an attempt: it makes the attempt durable before it begins and its end after, keeps the order
/// within a conversation, waits (honouring `after_ms`), gives up after so many attempts, and asks again after a crash. An
/// implementation does one attempt and tells the truth about it; it holds no queue and retries nothing. Each attempt may take
/// `outbox::ATTEMPT_MS` of the kernel; past that it is dropped and counts as [`Delivery::Unknown`].
pub trait ChannelDelivery: Send + Sync + fmt::Debug {
    /// Sends one answer. `cancel` is cancelled when the agent stops or an operator stops it. An answer sent before is then
    /// [`Delivery::Unknown`]; one not yet sent is [`Delivery::Retry`].
    fn deliver_answer<'a>(
        &'a self,
        out: &'a OutgoingAnswer,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Delivery>;
}
