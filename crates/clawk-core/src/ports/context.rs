//! A platform's information about a message besides its text: where and by whom it was sent, and whose text it repeats.

use serde::{Deserialize, Serialize};

/// The context of a message. All texts in it are untrusted, and none determines the sender.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageContext {
    /// The platform's name for people, for example `Telegram`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Name of the chat, room, channel or thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_name: Option<String>,
    /// The sender's display name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_name: Option<String>,
    /// The sender's time zone as an IANA name; `None`: the agent's is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The message replaces an earlier one of the same sender.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub edited: bool,
    /// Sources of the text, if clawk wrote the message itself: what a schedule was made from. No platform sets this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made_from: Vec<String>,
    /// Texts that the message repeats by reply, quote or forward.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotes: Vec<QuotedText>,
}

impl MessageContext {
    /// Returns whether there is no information.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A text that a message repeats. It may be another person's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotedText {
    /// Why it is repeated.
    pub kind: QuoteKind,
    /// Who wrote it.
    pub author: QuoteAuthor,
    /// The repeated text.
    pub text: String,
}

/// Why a message repeats a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuoteKind {
    /// The message replies to it.
    Reply,
    /// The sender quoted a part of it.
    Quote,
    /// The sender forwards it.
    Forward,
}

/// The author of a repeated text, as far as the platform confirms it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "who", rename_all = "kebab-case")]
pub enum QuoteAuthor {
    /// This agent.
    Agent,
    /// The sender of the message that repeats it.
    Sender,
    /// Another person.
    Other {
        /// The platform's id, if known.
        id: Option<String>,
        /// The display name.
        name: Option<String>,
    },
}
