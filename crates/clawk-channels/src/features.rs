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
    found
}
