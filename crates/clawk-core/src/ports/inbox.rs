//! Messages on their way in: what is waiting, which were seen before, and which session a conversation has.

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
    /// In direct messages the sender; empty in groups.
    pub sender: String,
}

/// The changes that a message from a channel makes besides its entry in the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxArrival {
    /// Its conversation has this message's session from now on.
    pub key: ConversationKey,
    /// The platform's ids of the message: a repetition is found by any of them.
    pub platform_ids: Vec<String>,
    /// Now.
    pub at: Timestamp,
    /// So long they are remembered.
    pub kept_until: Timestamp,
}

/// A message that was taken before.
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
    /// It was taken; its turn is to run.
    Accepted {
        /// Its session.
        session: SessionId,
        /// Its id.
        message: MessageId,
        /// Where it came by a channel.
        arrival: Option<InboxArrival>,
    },
    /// Its turn ended with an answer, or it was refused with a reason, or it lies in the dead-letter box.
    Closed {
        /// Its id.
        message: MessageId,
        /// `answered`, `refused` or `dead`.
        how: &'static str,
        /// Why, for the latter two.
        reason: Option<String>,
        /// The answer that is owed to the sender, and the time since when.
        owed: Option<(OwedAnswer, Timestamp)>,
    },
}
