//! What the refusal of a message means, and its cure. Each platform has its own table, in its folder, with the shapes of its vendor's
//! pages. What no table names is judged by its status.

use clawk_kernel::ports::Delivery;

use crate::api::{PlatformResponse, bounded_line};

/// A quota of a day or a month, or a restriction that people have to lift: tried again after so long.
pub(crate) const NOT_SOON_MS: u64 = 3_600_000;
/// A server that is overloaded or under maintenance.
pub(crate) const SOON_MS: u64 = 60_000;

pub(crate) const NOT_MEMBER: &str = "the bot is not in the chat";
pub(crate) const MAY_NOT_WRITE: &str = "the bot may not write in the chat";
pub(crate) const NO_CHAT: &str = "the chat is not there, or the bot never was in it";
pub(crate) const ARCHIVED: &str = "the chat is archived";
pub(crate) const NO_PERSON: &str = "the platform knows no such person";
pub(crate) const BLOCKED: &str = "the person takes no messages of the bot";
pub(crate) const GONE_PERSON: &str = "the person's account is closed";
pub(crate) const TOO_LONG: &str = "the message is too long for the platform";
pub(crate) const TOO_LARGE: &str = "the file is too large for the platform";
pub(crate) const REJECTED: &str = "the platform's rules for contents reject the message";
pub(crate) const NO_RIGHT: &str = "the bot's token lacks a right that this needs";
pub(crate) const NO_FILES: &str = "the platform takes no files of the bot here";
pub(crate) const OPERATOR: &str = "an operator has to mend the bot's account on the platform";
pub(crate) const BAD_TOKEN: &str = "the platform refuses the bot's token";
pub(crate) const BAD_FORM: &str = "the platform can't read the message's form";
pub(crate) const NO_EDIT: &str = "the message can't be changed any more";

/// What a refusal of a message means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageRefusal {
    /// The thread is gone, closed, or none can be here: its chat takes the message.
    ThreadGone,
    /// The message that is answered is gone: the answer goes without naming it.
    RepliedGone,
    /// The platform takes only answers to a young message of the person: it waits until the person writes.
    PersonFirst,
    /// The token lapsed or was taken back: another one is asked for.
    StaleToken,
    /// Nothing was sent, and it is tried again: after so long, where the platform does not say.
    Later(Option<u64>),
    /// Nobody will ever get it: why.
    Final(&'static str),
    /// No refusal, or one whose status says enough.
    Other,
}

impl MessageRefusal {
    /// What becomes of the message, once what can be cured is cured. `None`: the status decides.
    pub(crate) fn delivery_after(self, after_ms: Option<u64>, said: &str) -> Option<Delivery> {
        let dead = |why: &str| Delivery::Failed {
            reason: format!("{why} ({})", bounded_line(said)),
        };
        match self {
            Self::Later(otherwise) => Some(Delivery::Retry {
                after_ms: after_ms.or(otherwise),
                reason: bounded_line(said),
            }),
            Self::Final(why) => Some(dead(why)),
            Self::ThreadGone => Some(dead("the thread takes no messages any more")),
            Self::RepliedGone => Some(dead("the message that is answered is gone")),
            Self::PersonFirst => Some(dead("the person has to write first")),
            Self::StaleToken => Some(dead(BAD_TOKEN)),
            Self::Other => None,
        }
    }

    /// The same, where the status is told as well.
    pub(crate) fn delivery_by_status(self, answer: &PlatformResponse, said: &str) -> Option<Delivery> {
        let said = format!("{} {said}", answer.status.as_u16());
        self.delivery_after(answer.retry_after_ms(), said.trim_end())
    }
}

/// Looks a code up in a platform's table.
pub(crate) fn refusal_by_key<K: PartialEq>(table: &[(K, MessageRefusal)], key: &K) -> MessageRefusal {
    let found = table.iter().find(|(known, _)| known == key);
    found.map_or(MessageRefusal::Other, |(_, refusal)| *refusal)
}

/// Looks the words of an answer up in a platform's table: the first words that it has count.
pub(crate) fn refusal_by_words(table: &[(&str, MessageRefusal)], said: &str) -> MessageRefusal {
    let said = said.to_lowercase();
    let found = table.iter().find(|(words, _)| said.contains(words));
    found.map_or(MessageRefusal::Other, |(_, refusal)| *refusal)
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
