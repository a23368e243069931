//! What the manifest asks of a channel that its type can't do, for `clawk validate` and the start.

use clawk_manifest::model::{Channel, ModelModality, Provider, Transport};

use crate::config::ChannelConfig;
use crate::platform_kit::TransportChoice;
use crate::platforms;

fn name_transports(words: &[Transport]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("`{}`", word.as_str())).collect();
    words.join(" and ")
}

/// Why a channel will never be connected, whatever the platform says: its transport is not one of its type, or this build leaves its
/// adapter out. The field, as a path below the channel, and the reason with its cure.
#[must_use]
pub fn dead_channel_reason(channel: &Channel, config: &ChannelConfig) -> Option<(&'static str, String)> {
    let platform = platforms::entry(channel.kind);
    if let TransportChoice::OneOf(known) = platform.profile.transports
        && !known.contains(&channel.transport)
    {
        let (kind, given) = (channel.kind.as_str(), channel.transport.as_str());
        let plural = if known.len() == 1 { "" } else { "s" };
        let why = format!(
            "`{kind}` has the transport{plural} {}, and not `{given}`",
            name_transports(known)
        );
        return Some(("transport", why));
    }
    Some(("type", (platform.build_fault)(channel, config)?))
}

/// What is wrong with the Provider that a chat channel names for recordings.
pub(crate) fn recording_provider_faults(
    channel: &Channel,
    config: &ChannelConfig,
    providers: &[Provider],
) -> Vec<String> {
    let Some(name) = config
        .settings
        .get("transcribe")
        .filter(|_| platforms::entry(channel.kind).profile.hears)
    else {
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

/// What the manifest asks of a channel and its type can't do: the field, as a path below the channel, and why.
#[must_use]
pub fn unsupported_features(channel: &Channel, providers: &[Provider]) -> Vec<(&'static str, String)> {
    let (kind, features) = (channel.kind.as_str(), &channel.features);
    let profile = platforms::entry(channel.kind).profile;
    let mut found = Vec::new();
    if let TransportChoice::Fixed(usual) = profile.transports
        && !usual.contains(&channel.transport)
    {
        let why = format!(
            "type `{kind}` works in one way, and the word is not read; write {}",
            usual
                .first()
                .map_or_else(String::new, |word| name_transports(&[*word]))
        );
        found.push((
            "transport",
            format!("`transport: {}` does nothing: {why}", channel.transport.as_str()),
        ));
    }
    if features.reactions == Some(true) && !profile.reacts {
        let why = if profile.is_trigger {
            "nobody wrote the message that a trigger begins a run with"
        } else {
            "clawk can put no reaction on a message there"
        };
        found.push((
            "features/reactions",
            format!("`features.reactions` does nothing for type `{kind}`: {why}"),
        ));
    }
    if features.threads == Some(true) && !profile.threads {
        found.push((
            "features/threads",
            format!(
                "`features.threads` does nothing for type `{kind}`: {}",
                profile.without_threads
            ),
        ));
    }
    if features.voice == Some(true) && !profile.speaks {
        let audio = |provider: &Provider| provider.capabilities.contains(&ModelModality::Audio);
        let why = match (profile.hears, providers.iter().any(audio)) {
            (true, true) => None,
            (true, false) => Some(
                "no provider has `audio` in its `capabilities`, so recordings come in as files".to_owned(),
            ),
            (false, _) => Some(format!("for type `{kind}` a recording comes in as a file")),
        };
        found.extend(why.map(|why| ("features/voice", format!("`features.voice` does nothing: {why}"))));
    }
    let processing = &channel.processing;
    if processing.typing_indicator && !profile.typing {
        let said = format!(
            "`processing.typing_indicator` does nothing for type `{kind}`: clawk can't show there that it writes"
        );
        found.push(("processing/typing_indicator", said));
    }
    if processing.read_receipts && !profile.receipts {
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

    use super::{dead_channel_reason, recording_provider_faults, unsupported_features};
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
            let found = unsupported_features(&manifest.channels[0], &manifest.providers);
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
    fn a_transport_that_a_type_has_not_is_said_and_one_that_is_not_read_too() {
        let words = ["polling", "webhook", "websocket", "stdio"];
        let told = |kind: &str| {
            words.map(|transport| {
                let manifest = manifest(json!({"channels": [{"name": "chat", "type": kind, "transport": transport,
                    "auth": {"secret_ref": "T"}, "trigger": {"schedule": "* * * * *", "queue_name": "q", "mailbox": "m", "table": "t"}}]}));
                let channel = &manifest.channels[0];
                let dead = dead_channel_reason(channel, &ChannelConfig::default());
                let idle = unsupported_features(channel, &[]).iter().any(|(field, _)| *field == "transport");
                match dead.map(|(field, _)| field) {
                    Some("transport") => "dead",
                    _ if idle => "idle",
                    _ => "served",
                }
            })
        };
        let (dead, idle, served) = ("dead", "idle", "served");
        for (kind, expected) in [
            ("telegram", [served, served, dead, dead]),
            ("discord", [dead, dead, served, dead]),
            ("slack", [dead, served, served, dead]),
            ("lark", [dead, served, served, dead]),
            ("qq", [dead, served, served, dead]),
            ("dingtalk", [dead, served, served, dead]),
            ("whatsapp", [dead, served, dead, dead]),
            ("wechat", [dead, served, dead, dead]),
            ("line", [dead, served, dead, dead]),
            ("matrix", [served, dead, dead, dead]),
            ("email", [served, dead, dead, dead]),
            ("cli", [idle, idle, idle, served]),
            ("custom", [idle, idle, idle, served]),
            ("web", [idle, idle, served, idle]),
            ("voice", [idle, idle, served, idle]),
            ("webhook", [idle, served, idle, idle]),
            ("cron", [served, idle, idle, served]),
            ("queue", [served, idle, idle, served]),
            ("imap", [served, idle, idle, served]),
            ("db-trigger", [served, idle, idle, served]),
        ] {
            assert_eq!(told(kind), expected, "{kind}");
        }
    }

    #[test]
    fn a_build_says_which_channels_it_leaves_out() {
        let reason = |kind: &str, url: &str| {
            let manifest = manifest(
                json!({"channels": [{"name": "c", "type": kind, "transport": "polling",
                "auth": {"secret_ref": "T"}, "trigger": {"queue_name": "q", "mailbox": "m", "table": "t"}}]}),
            );
            let config = ChannelConfig {
                url: Some(url.to_owned()),
                ..ChannelConfig::default()
            };
            dead_channel_reason(&manifest.channels[0], &config)
        };
        for (kind, url, feature, built) in [
            ("email", "imaps://h", "mail", cfg!(feature = "mail")),
            ("imap", "imaps://h", "mail", cfg!(feature = "mail")),
            ("queue", "nats://h", "nats", cfg!(feature = "nats")),
            ("queue", "redis://h", "redis", cfg!(feature = "redis")),
            ("queue", "amqp://h", "amqp", true),
            (
                "db-trigger",
                "postgres://h/d",
                "postgres",
                cfg!(feature = "postgres"),
            ),
            ("db-trigger", "sqlite:f", "sqlite", true),
        ] {
            match reason(kind, url) {
                None => assert!(built, "{kind} at {url}"),
                Some((field, why)) => {
                    assert_eq!((field, built), ("type", false), "{kind} at {url}");
                    assert!(why.contains(&format!("--features {feature}")), "{why}");
                }
            }
        }
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
            let found = recording_provider_faults(&manifest.channels[0], &config, &manifest.providers);
            match fault {
                None => assert_eq!(found, Vec::<String>::new()),
                Some(fault) => assert!(found[0].contains(fault), "{found:?}"),
            }
        }
    }
}
