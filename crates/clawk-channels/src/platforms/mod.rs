//! The platforms, one file each: what comes in is decoded, what goes out is encoded.

pub(crate) mod cron;
pub(crate) mod custom;
mod custom_files;
pub(crate) mod db_trigger;
pub(crate) mod dingtalk;
pub(crate) mod discord;
mod discord_threads;
mod discord_words;
mod gateway;
pub(crate) mod lark;
mod lark_frame;
mod lark_reactions;
mod lark_text;
pub(crate) mod line;
#[cfg(feature = "mail")]
pub(crate) mod mail;
pub(crate) mod matrix;
mod matrix_words;
mod names;
pub(crate) mod qq;
pub(crate) mod queue;
mod refusals;
pub(crate) mod slack;
mod slack_words;
pub(crate) mod telegram;
mod telegram_message;
mod telegram_moves;
pub(crate) mod web;
pub(crate) mod webhook;
pub(crate) mod wechat;
mod wechat_xml;
pub(crate) mod whatsapp;
mod whatsapp_words;
mod worded;

use std::sync::Arc;

use clawk_egress::Url;
use clawk_manifest::model::{Channel, ChannelType, Trigger};
use clawk_secrets::{Secret, SecretResolver};

use crate::adapter::ChannelAdapter;
use crate::config::ChannelConfig;
use crate::service::ChannelDependencies;

/// The reaction on a message that is worked on.
const EYES: &str = "\u{1f440}";

/// The adapter of a channel; none for a type that is served elsewhere.
///
/// # Errors
/// Why there is none, for people, with the cure.
pub(crate) fn make(
    channel: &Channel,
    config: &ChannelConfig,
    parts: &ChannelDependencies,
) -> Result<Option<Arc<dyn ChannelAdapter>>, String> {
    let adapter: Arc<dyn ChannelAdapter> = match channel.kind {
        // The terminal of `clawk run`.
        ChannelType::Cli => return Ok(None),
        ChannelType::Cron => Arc::new(cron::CronAdapter::new(channel, config)?),
        ChannelType::Custom => Arc::new(custom::CustomAdapter::new(channel, parts)?),
        ChannelType::Dingtalk => Arc::new(dingtalk::DingtalkAdapter::new(channel, config, parts)?),
        ChannelType::DbTrigger => Arc::new(db_trigger::DbTrigger::new(channel, config, parts)?),
        ChannelType::Discord => Arc::new(discord::DiscordAdapter::new(channel, config, parts)?),
        ChannelType::Lark => Arc::new(lark::LarkAdapter::new(channel, config, parts)?),
        #[cfg(feature = "mail")]
        ChannelType::Email => Arc::new(mail::EmailAdapter::new(channel, config, parts)?),
        #[cfg(feature = "mail")]
        ChannelType::Imap => Arc::new(mail::ImapAdapter::new(channel, config, parts)?),
        #[cfg(not(feature = "mail"))]
        ChannelType::Email | ChannelType::Imap => return Err(left_out(channel, "mail")),
        ChannelType::Line => Arc::new(line::LineAdapter::new(channel, config, parts)?),
        ChannelType::Matrix => Arc::new(matrix::MatrixAdapter::new(channel, config, parts)?),
        ChannelType::Qq => Arc::new(qq::QqAdapter::new(channel, config, parts)?),
        ChannelType::Queue => Arc::new(queue::QueueAdapter::new(channel, config, parts)?),
        ChannelType::Slack => Arc::new(slack::SlackAdapter::new(channel, config, parts)?),
        ChannelType::Telegram => Arc::new(telegram::TelegramAdapter::new(channel, config, parts)?),
        ChannelType::Web => Arc::new(web::WebAdapter::new(channel, config, parts)?),
        ChannelType::Webhook => Arc::new(webhook::WebhookAdapter::new(channel, config, parts)?),
        ChannelType::Wechat => Arc::new(wechat::WechatAdapter::new(channel, config, parts)?),
        ChannelType::Whatsapp => Arc::new(whatsapp::WhatsappAdapter::new(channel, config, parts)?),
        ChannelType::Voice => Arc::new(web::WebAdapter::voice(channel, config, parts)?),
    };
    Ok(Some(adapter))
}

/// A type that this build leaves out.
#[cfg(any(not(feature = "mail"), not(feature = "postgres")))]
fn left_out(channel: &Channel, feature: &str) -> String {
    format!(
        "this build has no adapter for type `{}`; build with `--features {feature}`",
        channel.kind.as_str()
    )
}

/// The secret that `auth.secret_ref` names.
fn secret(channel: &Channel, parts: &ChannelDependencies) -> Result<Secret, String> {
    secret_of(channel, &parts.secrets)
}

fn secret_of(channel: &Channel, secrets: &SecretResolver) -> Result<Secret, String> {
    let named = &channel.auth.secret_ref;
    let secret = secrets.resolve(named).map_err(|error| error.to_string())?;
    if secret.expose().trim().is_empty() {
        return Err(format!("the secret `{named}` is empty"));
    }
    Ok(secret)
}

/// An option of the manifest's `trigger` without which the channel means nothing.
fn required(channel: &Channel, field: &str, of: impl Fn(&Trigger) -> Option<&str>) -> Result<String, String> {
    let given = channel.trigger.as_ref().and_then(of).map(str::trim);
    match given.filter(|given| !given.is_empty()) {
        Some(given) => Ok(given.to_owned()),
        None => Err(crate::config::absent(channel, field)),
    }
}

/// A further secret of `[channels.NAME] secrets`.
fn secret_named(config: &ChannelConfig, parts: &ChannelDependencies, name: &str) -> Result<Secret, String> {
    let reference = config
        .secrets
        .get(name)
        .ok_or_else(|| format!("`secrets.{name} = \"REF\"` is missing in clawk.toml"))?;
    let secret = parts
        .secrets
        .resolve(reference)
        .map_err(|error| error.to_string())?;
    if secret.expose().trim().is_empty() {
        return Err(format!("the secret `{reference}` is empty"));
    }
    Ok(secret)
}

/// A value of `[channels.NAME] settings` that this type needs.
pub(crate) fn setting(config: &ChannelConfig, name: &str) -> Result<String, String> {
    let value = config.settings.get(name).map(|value| value.trim());
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(value.to_owned()),
        None => Err(format!("`settings.{name} = \"…\"` is missing in clawk.toml")),
    }
}

/// Requests of platforms come in somewhere.
fn listening(parts: &ChannelDependencies) -> Result<(), String> {
    if parts.listening {
        return Ok(());
    }
    Err("it needs a listener: start `clawk serve` with `--listen ADDR`".to_owned())
}

/// A part of a path or a query, percent-encoded.
pub(crate) fn escaped(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    part.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

/// An address that the platform's API gave: followed to the vendor's own hosts, or to the host that `base_url` names.
fn own_host(url: &str, base: &Url, vendor: &str) -> Result<Url, String> {
    let parsed =
        Url::parse(url).map_err(|_invalid| "the platform gave no address to connect to".to_owned())?;
    let host = parsed.host_str().unwrap_or_default();
    let vendors = host == vendor || host.ends_with(&format!(".{vendor}"));
    if (vendors && parsed.scheme() == "wss") || Some(host) == base.host_str() {
        return Ok(parsed);
    }
    Err(format!(
        "the platform gave the host `{}`, which is not its own",
        crate::inlet::harmless(host)
    ))
}

/// Where the platform reaches this channel.
pub(crate) fn public_url(channel: &Channel, config: &ChannelConfig) -> Result<String, String> {
    let base = config.public_url.as_deref().ok_or(
        "`public_url` is missing in clawk.toml: the address at which the platform reaches this listener",
    )?;
    let base = base.trim_end_matches('/');
    let path = format!("/channels/{}", channel.name);
    Ok(if base.ends_with(&path) {
        base.to_owned()
    } else {
        format!("{base}{path}")
    })
}
