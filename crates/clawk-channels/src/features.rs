//! What of `features` and `processing` a type can do. One table for `clawk validate`, the start and the inlet.

use clawk_manifest::model::{Channel, ChannelType, ModelModality, Provider};

use crate::config::{ChannelConfig, is_trigger};

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

/// Whether recordings come as files that are turned into words. `voice` has a way of its own.
pub(crate) const fn hears(kind: ChannelType) -> bool {
    matches!(
        kind,
        ChannelType::Telegram
            | ChannelType::Whatsapp
            | ChannelType::Matrix
            | ChannelType::Discord
            | ChannelType::Slack
            | ChannelType::Lark
            | ChannelType::Line
            | ChannelType::Email
    )
}

/// What is wrong with the Provider that a chat channel names for recordings.
pub(crate) fn faults(channel: &Channel, config: &ChannelConfig, providers: &[Provider]) -> Vec<String> {
    let Some(name) = config.settings.get("transcribe").filter(|_| hears(channel.kind)) else {
        return Vec::new();
    };
    let key = format!("`[channels.{}] settings.transcribe`", channel.name);
    let fault = match providers.iter().find(|provider| provider.name == *name) {
        None => format!("{key} names the provider `{name}`, which is not declared"),
        Some(provider) if !provider.capabilities.contains(&ModelModality::Audio) => {
            format!("{key}: the provider `{name}` does not have `audio` in its `capabilities`")
        }
        Some(_) if channel.features.voice != Some(true) => {
            format!("{key} means nothing without `features.voice: true`")
        }
        Some(_) => return Vec::new(),
    };
    vec![fault]
}

/// Whether it shows that somebody writes. The adapters' own `typing` says the same.
pub(crate) const fn types(kind: ChannelType) -> bool {
    matches!(
        kind,
        ChannelType::Telegram
            | ChannelType::Discord
            | ChannelType::Matrix
            | ChannelType::Line
            | ChannelType::Wechat
            | ChannelType::Web
            | ChannelType::Voice
            | ChannelType::Custom
    )
}

/// Whether it shows that a message was read. The adapters' own `receipts` says the same.
pub(crate) const fn receipts(kind: ChannelType) -> bool {
    matches!(kind, ChannelType::Matrix | ChannelType::Whatsapp)
}

/// What the manifest asks of a channel and its type can't do: the field, as a path below the channel, and why.
#[must_use]
pub fn unserved(channel: &Channel, providers: &[Provider]) -> Vec<(&'static str, String)> {
    let (kind, features) = (channel.kind.as_str(), &channel.features);
    let mut found = Vec::new();
    if features.reactions == Some(true) && !reacts(channel.kind) {
        let why = if is_trigger(channel.kind) {
            "nobody wrote the message that a trigger begins a run with"
        } else {
            "clawk can put no reaction on a message there"
        };
        found.push((
            "features/reactions",
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
            "features/threads",
            format!("`features.threads` does nothing for type `{kind}`: {why}"),
        ));
    }
    if features.voice == Some(true) && channel.kind != ChannelType::Voice {
        let audio = |provider: &Provider| provider.capabilities.contains(&ModelModality::Audio);
        let why = match (hears(channel.kind), providers.iter().any(audio)) {
            (true, true) => None,
            (true, false) => Some(
                "no provider has `audio` in its `capabilities`, so recordings come in as files".to_owned(),
            ),
            (false, _) => Some(format!("for type `{kind}` a recording comes in as a file")),
        };
        found.extend(why.map(|why| ("features/voice", format!("`features.voice` does nothing: {why}"))));
    }
    let processing = &channel.processing;
    if processing.typing_indicator && !types(channel.kind) {
        let said = format!(
            "`processing.typing_indicator` does nothing for type `{kind}`: clawk can't show there that it writes"
        );
        found.push(("processing/typing_indicator", said));
    }
    if processing.read_receipts && !receipts(channel.kind) {
        let said = format!(
            "`processing.read_receipts` does nothing for type `{kind}`: clawk can't show there that a message was read"
        );
        found.push(("processing/read_receipts", said));
    }
    found
}

#[cfg(test)]
mod tests {
    use clawk_kernel::testing::manifest;
    use serde_json::json;

    use super::{faults, unserved};
    use crate::config::ChannelConfig;

    #[test]
    fn what_a_type_can_not_do_is_said_and_what_it_can_is_not() {
        let told = |kind: &str, transport: &str, capabilities: serde_json::Value| {
            let manifest = manifest(json!({
                "channels": [{"name": "chat", "type": kind, "transport": transport, "auth": {"secret_ref": "T"},
                    "features": {"reactions": true, "threads": true, "voice": true},
                    "processing": {"typing_indicator": true, "read_receipts": true}}],
                "providers": [{"name": "model", "protocol": "custom", "endpoint": "script:none", "model": "m",
                    "auth": {"type": "none"}, "capabilities": capabilities}]}));
            let found = unserved(&manifest.channels[0], &manifest.providers);
            found.into_iter().map(|(field, _)| field).collect::<Vec<_>>()
        };
        assert_eq!(
            told("matrix", "polling", json!(["text", "audio"])),
            Vec::<&str>::new()
        );
        assert_eq!(told("matrix", "polling", json!(["text"])), ["features/voice"]);
        assert_eq!(
            told("telegram", "polling", json!(["audio"])),
            ["features/threads", "processing/read_receipts"]
        );
        let all = ["features/reactions", "features/threads", "features/voice"];
        let both = ["processing/typing_indicator", "processing/read_receipts"];
        assert_eq!(
            told("webhook", "webhook", json!(["audio"])),
            [&all[..], &both].concat()
        );
        assert_eq!(
            told("voice", "websocket", json!(["audio"])),
            [&all[..2], &both[1..]].concat()
        );
    }

    #[test]
    fn the_provider_for_recordings_must_be_there_and_hear() {
        let manifest = manifest(json!({
            "channels": [{"name": "chat", "type": "telegram", "transport": "polling", "auth": {"secret_ref": "T"},
                "features": {"voice": true}}],
            "providers": [
                {"name": "model", "protocol": "custom", "endpoint": "script:none", "model": "m", "auth": {"type": "none"},
                    "capabilities": ["text"]},
                {"name": "ear", "protocol": "custom", "endpoint": "script:none", "model": "m", "auth": {"type": "none"},
                    "capabilities": ["audio"]}]}));
        for (name, fault) in [
            ("ear", None),
            ("model", Some("`audio`")),
            ("other", Some("not declared")),
        ] {
            let mut config = ChannelConfig::default();
            config.settings.insert("transcribe".to_owned(), name.to_owned());
            let found = faults(&manifest.channels[0], &config, &manifest.providers);
            match fault {
                None => assert_eq!(found, Vec::<String>::new()),
                Some(fault) => assert!(found[0].contains(fault), "{found:?}"),
            }
        }
    }
}
