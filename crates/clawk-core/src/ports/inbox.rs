//! Incoming messages: waiting ones, known ids, and the session of each conversation.

use clawk_proto::{MessageId, SessionId};

use super::deliver::OwedAnswer;
use crate::time::Timestamp;

/// A conversation of a channel (C2).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationKey {
    /// The channel's name.
    pub channel: String,
    /// The chat, room, thread or mail thread there.
    pub conversation: String,
    /// The sender in direct messages; empty in groups.
    pub sender: String,
}

/// The changes that a message from a channel makes besides its entry in the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxArrival {
    /// The conversation, which has this message's session from now on.
    pub key: ConversationKey,
    /// The platform's ids of the message. A repetition is recognised by any of them.
    pub platform_ids: Vec<String>,
    /// The current time.
    pub at: Timestamp,
    /// Time until which the ids are stored.
    pub kept_until: Timestamp,
}

/// A message that was accepted before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierArrival {
    /// Its id.
    pub message: MessageId,
    /// Its session.
    pub session: SessionId,
}

/// A change of the inbox projection: every inbound message ends answered, refused or dead (promise 5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InboxChange {
    /// It was accepted, and its turn will run.
    Accepted {
        /// Its session.
        session: SessionId,
        /// Its id.
        message: MessageId,
        /// The changes for a channel's message; `None` for others.
        arrival: Option<InboxArrival>,
    },
    /// Its turn ended with an answer, or it was refused with a reason, or it is a dead letter.
    Closed {
        /// Its id.
        message: MessageId,
        /// `answered`, `refused` or `dead`.
        how: &'static str,
        /// The reason, for `refused` and `dead`.
        reason: Option<String>,
        /// The answer to deliver to the sender, and its time.
        owed: Option<(OwedAnswer, Timestamp)>,
    },
}
