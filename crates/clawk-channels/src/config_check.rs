//! What is wrong with `[channels.NAME]` of `clawk.toml`, for people.

use std::collections::BTreeMap;

use clawk_manifest::model::{Channel, Provider};

use crate::config::ChannelConfig;
use crate::platform_kit::absent;
use crate::{platforms, timetable};

/// The most that `max_attachment_mb` may be: a file lies in memory on its way.
const MAX_ATTACHMENT_MB: u32 = 200;

/// What is wrong with the manifest's channel itself: an option without which it means nothing.
fn of_trigger(channel: &Channel) -> Option<String> {
    let option = platforms::entry(channel.kind).trigger_option?;
    let given = channel.trigger.as_ref().and_then(option.value);
    given
        .is_none_or(|given| given.trim().is_empty())
        .then(|| absent(channel, option.name))
}

impl ChannelConfig {
    /// Values that can't be meant: not a number, not an address, not a time zone.
    fn value_faults(&self, channel: &Channel) -> Vec<String> {
        let name = &channel.name;
        let mut faults = Vec::new();
        let addresses = [
            ("base_url", &self.base_url, &["http", "https"][..]),
            ("public_url", &self.public_url, &["http", "https"]),
            ("smtp_url", &self.smtp_url, &["smtp", "smtps"]),
        ];
        for (key, value, schemes) in addresses {
            let Some(value) = value else { continue };
            let scheme = value.split_once("://").map(|(scheme, _)| scheme);
            if !scheme.is_some_and(|scheme| schemes.contains(&scheme)) {
                let want = schemes.join("://` or `");
                faults.push(format!(
                    "`[channels.{name}] {key}` is not an address that begins with `{want}://`"
                ));
            }
        }
        let platform = platforms::entry(channel.kind);
        let schemes = platform.url_schemes;
        if let Some(url) = &self.url
            && !schemes.is_empty()
            && !schemes.iter().any(|scheme| url.starts_with(scheme))
        {
            faults.push(format!(
                "`[channels.{name}] url` begins with none of `{}`",
                schemes.join("`, `")
            ));
        }
        faults.extend((platform.setting_faults)(channel, self));
        if let Some(Err(reason)) = self.timezone.as_deref().map(timetable::time_zone) {
            faults.push(format!("`[channels.{name}] timezone`: {reason}"));
        }
        if self.max_attachment_mb == 0 || self.max_attachment_mb > MAX_ATTACHMENT_MB {
            faults.push(format!(
                "`[channels.{name}] max_attachment_mb` is {}; 1 to {MAX_ATTACHMENT_MB} are possible",
                self.max_attachment_mb
            ));
        }
        faults
    }

    /// The keys that are given.
    fn given_keys(&self) -> Vec<&'static str> {
        let none = Self::default();
        let keys = [
            ("base_url", self.base_url != none.base_url),
            ("public_url", self.public_url != none.public_url),
            ("secrets", self.secrets != none.secrets),
            ("settings", self.settings != none.settings),
            ("admins", self.admins != none.admins),
            ("users", self.users != none.users),
            ("respond", self.respond != none.respond),
            ("refuse", self.refuse != none.refuse),
            ("prompt", self.prompt != none.prompt),
            ("deliver_to", self.deliver_to != none.deliver_to),
            ("url", self.url != none.url),
            ("smtp_url", self.smtp_url != none.smtp_url),
            ("timezone", self.timezone != none.timezone),
            ("missed", self.missed != none.missed),
            ("command", self.command != none.command),
            ("sandbox", self.sandbox != none.sandbox),
            ("allowed_hosts", self.allowed_hosts != none.allowed_hosts),
            ("read_paths", self.read_paths != none.read_paths),
            ("env", self.env != none.env),
            ("secret_env", self.secret_env != none.secret_env),
            (
                "max_attachment_mb",
                self.max_attachment_mb != none.max_attachment_mb,
            ),
        ];
        keys.into_iter()
            .filter_map(|(key, given)| given.then_some(key))
            .collect()
    }

    /// What is wrong with these keys for this channel, with the cure.
    #[must_use]
    pub fn config_faults(&self, channel: &Channel) -> Vec<String> {
        let (name, kind) = (&channel.name, channel.kind.as_str());
        let takes = platforms::entry(channel.kind).keys;
        let mut faults: Vec<String> = of_trigger(channel).into_iter().collect();
        faults.extend(self.value_faults(channel));
        for key in self.given_keys() {
            if !takes.group.contains(&key) && !takes.keys.contains(&key) {
                faults.push(format!(
                    "`[channels.{name}]`: `{key}` means nothing for type `{kind}`; remove it"
                ));
            }
        }
        for (given, known, word) in [
            (&self.secrets, takes.secrets, "secrets"),
            (&self.settings, takes.settings, "settings"),
        ] {
            for key in given.keys().filter(|key| !known.contains(&key.as_str())) {
                let known = if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                };
                faults.push(format!(
                    "`[channels.{name}] {word}.{key}` is not known for type `{kind}`; known: {known}"
                ));
            }
        }
        if let Some(target) = &self.deliver_to
            && !target
                .split_once(':')
                .is_some_and(|(channel, place)| !channel.is_empty() && !place.is_empty())
        {
            faults.push(format!(
                "`[channels.{name}] deliver_to` is `{target}`; write `CHANNEL:CONVERSATION`"
            ));
        }
        faults
    }
}

/// Why the answers of a trigger would reach nobody: `deliver_to` names a channel that is not there, or one that only begins runs.
fn delivery_fault(channel: &Channel, config: &ChannelConfig, channels: &[Channel]) -> Option<String> {
    let (target, _) = config.deliver_to.as_deref()?.split_once(':')?;
    let takes_answers = |channel: &&Channel| !platforms::is_trigger(channel.kind);
    if target.is_empty()
        || channels
            .iter()
            .filter(takes_answers)
            .any(|known| known.name == target)
    {
        return None;
    }
    let known: Vec<String> = channels
        .iter()
        .filter(takes_answers)
        .map(|known| format!("`{}`", known.name))
        .collect();
    let known = match known.as_slice() {
        [] => "the manifest declares none that takes answers".to_owned(),
        names => format!("these take answers: {}", names.join(", ")),
    };
    Some(format!(
        "`[channels.{}] deliver_to` names the channel `{target}`, to which nothing can be sent; {known}",
        channel.name
    ))
}

/// What is wrong with the table as a whole: tables of channels that are not declared, and each channel's own faults.
#[must_use]
pub fn faults(
    configs: &BTreeMap<String, ChannelConfig>,
    channels: &[Channel],
    providers: &[Provider],
) -> Vec<String> {
    let mut faults: Vec<String> = configs
        .keys()
        .filter(|name| !channels.iter().any(|channel| channel.name == **name))
        .map(|name| format!("`[channels.{name}]`: the manifest declares no channel of this name"))
        .collect();
    let none = ChannelConfig::default();
    for channel in channels {
        let config = configs.get(&channel.name).unwrap_or(&none);
        faults.extend(config.config_faults(channel));
        faults.extend(delivery_fault(channel, config, channels));
        faults.extend(crate::features::recording_provider_faults(
            channel, config, providers,
        ));
        faults.extend((platforms::entry(channel.kind).provider_faults)(
            channel, config, providers,
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clawk_kernel::testing::manifest;
    use serde_json::json;

    use super::{ChannelConfig, faults};

    #[test]
    fn answers_go_to_a_channel_that_is_there_and_takes_them() {
        let channel = |name: &str, kind: &str, transport: &str| {
            json!({"name": name, "type": kind, "transport": transport, "auth": {"secret_ref": "T"},
                "trigger": {"schedule": "* * * * *"}})
        };
        let manifest = manifest(json!({"channels": [
            channel("nightly", "cron", "polling"), channel("weekly", "cron", "polling"), channel("team", "webhook", "webhook")]}));
        let told = |target: &str| {
            let config = ChannelConfig {
                deliver_to: Some(target.to_owned()),
                ..ChannelConfig::default()
            };
            let configs = BTreeMap::from([("nightly".to_owned(), config)]);
            let found = faults(&configs, &manifest.channels, &manifest.providers);
            found.into_iter().find(|fault| fault.contains("deliver_to"))
        };
        assert_eq!(told("team:general"), None);
        for lost in ["teem:general", "weekly:x", "nightly:x"] {
            let fault = told(lost).expect("a fault");
            assert!(fault.contains("these take answers: `team`"), "{lost}: {fault}");
        }
        assert!(
            told("team")
                .expect("a fault")
                .contains("write `CHANNEL:CONVERSATION`")
        );
    }
}
