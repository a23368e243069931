//! What the program knows of `discord` channels.

use std::sync::Arc;
use std::time::Duration;

use clawk_manifest::model::{Channel, Transport};
use http::{HeaderName, Method};

use super::{DiscordAdapter, VENDOR};
use crate::config::ChannelConfig;
use crate::platform_kit::{
    API_KEYS, CHECK_LIMIT_MS, CheckGrade, ConfigKeys, CredentialCheck, CredentialProbe, Finding,
    PlatformEntry, PlatformProfile, RIGHTS, TransportChoice,
};

/// The type `discord`.
pub(crate) const DISCORD: PlatformEntry = PlatformEntry {
    setting_faults: find_intents_fault,
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, _, token| {
            let api = api.with_authorization("Bot", token)?.with_header(
                HeaderName::from_static("user-agent"),
                "DiscordBot (https://github.com/clawk/clawk, 1)",
            );
            Ok(CredentialProbe::get(api, "users/@me".to_owned(), "/username"))
        },
        rights: Some(|question, _| Box::pin(ask_for_rights(question))),
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            reacts: true,
            threads: true,
            hears: true,
            typing: true,
            ..PlatformProfile::people("Discord", TransportChoice::OneOf(&[Transport::Websocket]))
        },
        ConfigKeys::people(API_KEYS, &[], &["intents", "transcribe"]),
        |channel, config, parts| Ok(Some(Arc::new(DiscordAdapter::new(channel, config, parts)?))),
    )
};

/// The rights that Discord's applications have, as bits of `flags`: message content, also where it is limited to few guilds.
const MESSAGE_CONTENT: u64 = (1 << 18) | (1 << 19);

fn find_intents_fault(channel: &Channel, config: &ChannelConfig) -> Vec<String> {
    let Some(intents) = config.settings.get("intents") else {
        return Vec::new();
    };
    match intents.parse::<u64>() {
        Ok(_) => Vec::new(),
        // silent-ok: the text that is no number is told
        Err(_) => vec![format!(
            "`[channels.{}] settings.intents` is `{intents}`, not a whole number",
            channel.name
        )],
    }
}

async fn ask_for_rights(question: &CredentialProbe) -> Option<Finding> {
    let asked = question.api.send_json(Method::GET, "applications/@me", None);
    // silent-ok: what the platform does not say is not known
    let about = tokio::time::timeout(Duration::from_millis(CHECK_LIMIT_MS), asked)
        .await
        .ok()?
        .ok()?;
    let flags = about.body.get("flags")?.as_u64()?;
    Some(match flags & MESSAGE_CONTENT {
        0 => Finding::new(
            RIGHTS,
            CheckGrade::Fail,
            "the bot may not read what messages say",
            "discord.com/developers/applications, Bot: switch on MESSAGE CONTENT INTENT",
        ),
        _ => Finding::ok(RIGHTS, "reads what messages say"),
    })
}
