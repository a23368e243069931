//! `[channels.NAME]` of `clawk.toml`: what is local about a channel of the manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clawk_manifest::model::{Channel, ChannelType, Provider};
use serde::{Deserialize, Serialize};

use crate::timetable;

/// The most that `max_attachment_mb` may be: a file lies in memory on its way.
const MAX_ATTACHMENT_MB: u32 = 200;

/// When a message in a group is for the agent. Direct messages always are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResponsePolicy {
    /// The agent is named or replied to, or it is a command.
    #[default]
    Mention,
    /// Every message.
    All,
}

/// What a sender who is not let in is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefusalPolicy {
    /// Nothing.
    #[default]
    Silent,
    /// That they are not let in; each sender at most once an hour.
    Say,
}

/// What happens to runs of a schedule that were missed while the agent was down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MissedRunPolicy {
    /// Nothing.
    Skip,
    /// One run makes up for all of them.
    #[default]
    Once,
}

/// Every key, with its default. An unknown key is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelConfig {
    /// Where the platform's API is; the vendor's when absent. Loopback only when it is written here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The address under which the platform reaches this channel, to register and check webhooks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_url: Option<String>,
    /// Further secrets by name, as references.
    pub secrets: BTreeMap<String, String>,
    /// Platform ids. They are not secret.
    pub settings: BTreeMap<String, String>,
    /// Senders with the role `admin`, in access modes that have no roles.
    pub admins: Vec<String>,
    /// People with tokens of their own, as references to secrets: the name is the sender's id.
    pub users: BTreeMap<String, String>,
    /// When a message in a group is for the agent.
    pub respond: ResponsePolicy,
    /// What a sender who is not let in is told.
    pub refuse: RefusalPolicy,
    /// What a trigger says to the agent; `{time}` and `{event}` are filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Where a trigger's answer goes, `CHANNEL:CONVERSATION`; else it is kept in the journal alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_to: Option<String>,
    /// Where the service is: of `queue`, `db-trigger`, `imap` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where mail is handed in: of `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smtp_url: Option<String>,
    /// IANA name of a time zone: of a schedule (UTC when absent), or of the people who write (the agent's when absent).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Runs of the schedule that were missed.
    pub missed: MissedRunPolicy,
    /// Program and arguments of a `custom` channel.
    pub command: Vec<String>,
    /// A sandbox of the manifest that the program runs in; without one, a box without files, with the network below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Hosts that the program may reach.
    pub allowed_hosts: Vec<String>,
    /// Files that the program reads; relative ones start from the folder of `clawk.toml`.
    pub read_paths: Vec<PathBuf>,
    /// Variables of the program.
    pub env: BTreeMap<String, String>,
    /// Variables of the program whose values are secrets, as references.
    pub secret_env: BTreeMap<String, String>,
    /// Larger attachments are named and not fetched, MiB.
    pub max_attachment_mb: u32,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            base_url: None,
            public_url: None,
            secrets: BTreeMap::new(),
            settings: BTreeMap::new(),
            admins: Vec::new(),
            users: BTreeMap::new(),
            respond: ResponsePolicy::default(),
            refuse: RefusalPolicy::default(),
            prompt: None,
            deliver_to: None,
            url: None,
            smtp_url: None,
            timezone: None,
            missed: MissedRunPolicy::default(),
            command: Vec::new(),
            sandbox: None,
            allowed_hosts: Vec::new(),
            read_paths: Vec::new(),
            env: BTreeMap::new(),
            secret_env: BTreeMap::new(),
            max_attachment_mb: 20,
        }
    }
}

/// A platform's name as people write it.
pub(crate) const fn platform_name(kind: ChannelType) -> &'static str {
    match kind {
        ChannelType::Telegram => "Telegram",
        ChannelType::Discord => "Discord",
        ChannelType::Slack => "Slack",
        ChannelType::Whatsapp => "WhatsApp",
        ChannelType::Matrix => "Matrix",
        ChannelType::Email => "e-mail",
        ChannelType::Line => "LINE",
        ChannelType::Lark => "Lark",
        ChannelType::Wechat => "WeChat",
        ChannelType::Qq => "QQ",
        ChannelType::Dingtalk => "DingTalk",
        ChannelType::Webhook => "a webhook",
        ChannelType::Web => "a web page",
        ChannelType::Voice => "voice",
        ChannelType::Cli => "the terminal",
        ChannelType::Cron => "a schedule",
        ChannelType::Queue => "a queue",
        ChannelType::DbTrigger => "a database",
        ChannelType::Imap => "a mailbox",
        ChannelType::Custom => "a program",
    }
}

/// Keys that every type of people's platform has.
const PEOPLE: &[&str] = &["admins", "respond", "refuse", "max_attachment_mb", "timezone"];
/// Keys that every trigger has.
const TRIGGER: &[&str] = &["prompt", "deliver_to"];

/// What a type takes: keys beside those of its group, names of `secrets` and of `settings`.
struct ChannelTypeKeys {
    group: &'static [&'static str],
    keys: &'static [&'static str],
    secrets: &'static [&'static str],
    settings: &'static [&'static str],
}

const fn takes(
    group: &'static [&'static str],
    keys: &'static [&'static str],
    secrets: &'static [&'static str],
    settings: &'static [&'static str],
) -> ChannelTypeKeys {
    ChannelTypeKeys {
        group,
        keys,
        secrets,
        settings,
    }
}

const API: &[&str] = &["base_url", "public_url", "secrets", "settings"];
/// Settings of a type whose recordings are turned into words.
const HEARS: &[&str] = &["transcribe"];
const PROGRAM: &[&str] = &[
    "command",
    "sandbox",
    "allowed_hosts",
    "read_paths",
    "env",
    "secret_env",
];

/// The table of the contract: what means something for a type.
const fn of(kind: ChannelType) -> ChannelTypeKeys {
    match kind {
        ChannelType::Telegram => takes(PEOPLE, API, &["webhook_secret"], HEARS),
        ChannelType::Discord => takes(PEOPLE, API, &[], &["intents", "transcribe"]),
        ChannelType::Slack => takes(PEOPLE, API, &["app_token", "signing_secret"], HEARS),
        ChannelType::Whatsapp => takes(
            PEOPLE,
            API,
            &["app_secret", "verify_token"],
            &["phone_number_id", "transcribe"],
        ),
        ChannelType::Matrix => takes(PEOPLE, API, &[], &["user_id", "transcribe"]),
        ChannelType::Email => takes(
            PEOPLE,
            &["url", "smtp_url", "settings"],
            &[],
            &["address", "authserv_id", "transcribe"],
        ),
        ChannelType::Line => takes(PEOPLE, API, &["channel_secret"], HEARS),
        ChannelType::Lark => takes(
            PEOPLE,
            API,
            &["verification_token", "encrypt_key"],
            &["app_id", "transcribe"],
        ),
        ChannelType::Wechat => takes(PEOPLE, API, &["token", "encoding_aes_key"], &["app_id"]),
        ChannelType::Qq => takes(PEOPLE, API, &[], &["app_id"]),
        ChannelType::Dingtalk => takes(PEOPLE, API, &[], &["client_id", "robot_code"]),
        ChannelType::Webhook => takes(PEOPLE, API, &[], &[]),
        ChannelType::Web => takes(PEOPLE, &["users", "public_url"], &[], &[]),
        ChannelType::Voice => takes(
            PEOPLE,
            &["users", "public_url", "settings"],
            &[],
            &["transcribe", "speak", "voice"],
        ),
        ChannelType::Cli => takes(&[], &[], &[], &[]),
        ChannelType::Cron => takes(TRIGGER, &["timezone", "missed"], &[], &[]),
        ChannelType::Queue | ChannelType::DbTrigger => takes(TRIGGER, &["url"], &[], &[]),
        ChannelType::Imap => takes(TRIGGER, &["url", "settings"], &[], &["authserv_id"]),
        ChannelType::Custom => takes(PEOPLE, PROGRAM, &[], &[]),
    }
}

/// What a trigger needs, of the manifest.
const fn needs(kind: ChannelType) -> Option<&'static str> {
    match kind {
        ChannelType::Cron => Some("schedule"),
        ChannelType::Queue => Some("queue_name"),
        ChannelType::DbTrigger => Some("table"),
        _ => None,
    }
}

/// An option of a trigger is absent or empty: where, and the cure.
pub(crate) fn absent(channel: &Channel, field: &str) -> String {
    format!(
        "the channel `{}` (`{}`) has no `trigger.{field}`; write `trigger: {{ {field}: … }}` in the manifest",
        channel.name,
        channel.kind.as_str()
    )
}

/// What is wrong with the manifest's channel itself: an option without which it means nothing.
fn of_trigger(channel: &Channel) -> Option<String> {
    let field = needs(channel.kind)?;
    let trigger = channel.trigger.as_ref();
    let given = trigger.and_then(|trigger| match field {
        "schedule" => trigger.schedule.as_deref(),
        "queue_name" => trigger.queue_name.as_deref(),
        _ => trigger.table.as_deref(),
    });
    given
        .is_none_or(|given| given.trim().is_empty())
        .then(|| absent(channel, field))
}

impl ChannelConfig {
    /// Values that can't be meant: not a number, not an address, not a time zone.
    fn values(&self, channel: &Channel) -> Vec<String> {
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
        let schemes: &[&str] = match channel.kind {
            ChannelType::Queue => &["amqp://", "amqps://", "nats://", "tls://", "redis://"],
            ChannelType::DbTrigger => &["sqlite:", "postgres://", "postgresql://"],
            ChannelType::Imap | ChannelType::Email => &["imap://", "imaps://"],
            _ => &[],
        };
        if let Some(url) = &self.url
            && !schemes.is_empty()
            && !schemes.iter().any(|scheme| url.starts_with(scheme))
        {
            faults.push(format!(
                "`[channels.{name}] url` begins with none of `{}`",
                schemes.join("`, `")
            ));
        }
        if let Some(intents) = self.settings.get("intents")
            && intents.parse::<u64>().is_err()
        {
            faults.push(format!(
                "`[channels.{name}] settings.intents` is `{intents}`, not a whole number"
            ));
        }
        if let Some(Err(reason)) = self.timezone.as_deref().map(timetable::zone) {
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
    fn given(&self) -> Vec<&'static str> {
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
    pub fn faults(&self, channel: &Channel) -> Vec<String> {
        let (name, kind) = (&channel.name, channel.kind.as_str());
        let takes = of(channel.kind);
        let mut faults: Vec<String> = of_trigger(channel).into_iter().collect();
        faults.extend(self.values(channel));
        for key in self.given() {
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
        faults.extend(config.faults(channel));
        faults.extend(crate::features::faults(channel, config, providers));
        if channel.kind == ChannelType::Voice {
            faults.extend(crate::types::web::sound::faults(channel, config, providers));
        }
    }
    faults
}

/// Whether events of this type start runs, and no person speaks through it.
#[must_use]
pub const fn is_trigger(kind: ChannelType) -> bool {
    matches!(
        kind,
        ChannelType::Cron | ChannelType::Queue | ChannelType::Imap | ChannelType::DbTrigger
    )
}
