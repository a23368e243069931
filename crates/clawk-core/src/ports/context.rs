//! What a platform says of a message beside its text: where it was said, by whom, and whose words it repeats.

use serde::{Deserialize, Serialize};

/// The circumstances of a message. All texts in it are untrusted; none of them decides who the sender is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MessageContext {
    /// The platform's name for people, for example `Telegram`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// The name of the chat, room, channel or thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_name: Option<String>,
    /// What the sender calls themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_name: Option<String>,
    /// The sender's time zone, an IANA name; where it is not known, the agent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// The message replaces an earlier one of the same sender.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub edited: bool,
    /// Origins of the text, where this program wrote the message itself: what a schedule was made from. No platform says this.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub made_from: Vec<String>,
    /// Texts that the message repeats: what it answers, quotes or forwards.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quotes: Vec<QuotedText>,
}

impl MessageContext {
    /// The platform says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A text that a message repeats. It may be somebody else's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotedText {
    /// Why it is repeated.
    pub kind: QuoteKind,
    /// Who wrote it.
    pub author: QuoteAuthor,
    /// The words.
    pub text: String,
}

/// Why a message repeats a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuoteKind {
    /// The message answers it.
    Reply,
    /// The sender marked a part of it.
    Quote,
    /// The sender passes it on.
    Forward,
}

/// Who wrote a repeated text, as far as the platform vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "who", rename_all = "kebab-case")]
pub enum QuoteAuthor {
    /// This agent.
    Agent,
    /// The sender of the message that repeats it.
    Sender,
    /// Somebody else.
    Other {
        /// The platform's id, where it is known.
        id: Option<String>,
        /// What they call themselves.
        name: Option<String>,
    },
}
