//! What the program knows of `telegram` channels.

use std::sync::Arc;

use clawk_manifest::model::Transport;
use serde_json::json;

use super::{TelegramAdapter, VENDOR};
use crate::api::{PlatformApi, PlatformResponse};
use crate::config::ChannelConfig;
use crate::platform_kit::{
    API_KEYS, CheckGrade, ConfigKeys, CredentialCheck, CredentialProbe, CredentialProof, Finding,
    HEARING_SETTINGS, PlatformEntry, PlatformProfile, RIGHTS, TransportChoice,
};

/// The type `telegram`.
pub(crate) const TELEGRAM: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: ask_for_name,
        rights: Some(|_, answer| Box::pin(std::future::ready(read_rights(answer)))),
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            reacts: true,
            without_threads: "a bot begins no topic at a message; messages in a topic are answered there",
            hears: true,
            typing: true,
            needs_public_url: true,
            ..PlatformProfile::people(
                "Telegram",
                TransportChoice::OneOf(&[Transport::Polling, Transport::Webhook]),
            )
        },
        ConfigKeys::people(API_KEYS, &["webhook_secret"], HEARING_SETTINGS),
        |channel, config, parts| Ok(Some(Arc::new(TelegramAdapter::new(channel, config, parts)?))),
    )
};

fn ask_for_name(api: PlatformApi, _: &ChannelConfig, token: &str) -> Result<CredentialProbe, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_');
    if !token.chars().all(fits) {
        return Err("the bot token holds characters that no bot token has".to_owned());
    }
    let path = format!("bot{token}/getMe");
    Ok(CredentialProbe::for_post(
        api,
        &path,
        json!({}),
        CredentialProof::Name("/result/username"),
    ))
}

fn read_rights(answer: &PlatformResponse) -> Option<Finding> {
    let reads = answer
        .body
        .pointer("/result/can_read_all_group_messages")?
        .as_bool()?;
    Some(match reads {
        true => Finding::ok(RIGHTS, "reads and sends, also in groups"),
        false => Finding::new(
            RIGHTS,
            CheckGrade::Warn,
            "reads and sends in direct messages; in groups only what mentions it, answers it, or is a command",
            "where it is to read everything in groups: @BotFather, /setprivacy, Disable, and add it to the group again",
        ),
    })
}
