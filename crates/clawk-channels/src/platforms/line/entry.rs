//! What the program knows of `line` channels.

use std::sync::Arc;

use super::{LineAdapter, VENDOR};
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, HEARING_SETTINGS, PlatformEntry, PlatformProfile,
    TransportChoice,
};
use clawk_manifest::model::Transport;

/// The type `line`.
pub(crate) const LINE: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, _, token| {
            let api = api.with_authorization("Bearer", token)?;
            Ok(CredentialProbe::get(
                api,
                "v2/bot/info".to_owned(),
                "/displayName",
            ))
        },
        rights: None,
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            hears: true,
            typing: true,
            ..PlatformProfile::people("LINE", TransportChoice::OneOf(&[Transport::Webhook]))
        },
        ConfigKeys::people(API_KEYS, &["channel_secret"], HEARING_SETTINGS),
        |channel, config, parts| Ok(Some(Arc::new(LineAdapter::new(channel, config, parts)?))),
    )
};
