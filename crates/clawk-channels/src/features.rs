//! What of `features` a type can do. One table for `clawk validate`, the start and the inlet.

use clawk_manifest::model::{Channel, ChannelType};

use crate::config::is_trigger;

/// Whether the platform's API lets a bot put a reaction on a message.
pub(crate) const fn reacts(kind: ChannelType) -> bool {
    matches!(
        kind,
        ChannelType::Telegram
            | ChannelType::Slack
            | ChannelType::Discord
            | ChannelType::Matrix
            | ChannelType::Whatsapp
            | ChannelType::Lark
    )
}

/// Whether a message in a group can begin a thread that an answer goes to. Slack answers in threads in any case.
pub(crate) const fn threads(kind: ChannelType) -> bool {
    matches!(
        kind,
        ChannelType::Slack | ChannelType::Matrix | ChannelType::Lark | ChannelType::Discord
    )
}

/// What the manifest asks of a channel and its type can't do: the field, and why.
#[must_use]
pub fn unserved(channel: &Channel) -> Vec<(&'static str, String)> {
    let (kind, features) = (channel.kind.as_str(), &channel.features);
    let mut found = Vec::new();
    if features.reactions == Some(true) && !reacts(channel.kind) {
        let why = if is_trigger(channel.kind) {
            "nobody wrote the message that a trigger begins a run with"
        } else {
            "clawk can put no reaction on a message there"
        };
        found.push((
            "reactions",
            format!("`features.reactions` does nothing for type `{kind}`: {why}"),
        ));
    }
    if features.threads == Some(true) && !threads(channel.kind) {
        let why = match channel.kind {
            ChannelType::Telegram => {
                "a bot begins no topic at a message; messages in a topic are answered there"
            }
            ChannelType::Email => "a mail is answered in its thread in any case",
            _ => "the platform has no threads that begin at a message",
        };
        found.push((
            "threads",
            format!("`features.threads` does nothing for type `{kind}`: {why}"),
        ));
    }
    found
}
