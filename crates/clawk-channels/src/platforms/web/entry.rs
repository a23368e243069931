//! What the program knows of `web` and `voice` channels.

use std::sync::Arc;

use super::{WebAdapter, log, sound};
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, StoredConversations, TransportChoice};
use clawk_manifest::model::Transport;

/// The type `web`.
pub(crate) const WEB: PlatformEntry = PlatformEntry {
    stored: Some(StoredConversations {
        extension: "web",
        seal: log::seal_files,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            typing: true,
            is_served_here: true,
            ..PlatformProfile::people("a web page", TransportChoice::Fixed(&[Transport::Websocket]))
        },
        ConfigKeys::people(&["users", "public_url"], &[], &[]),
        |channel, config, parts| Ok(Some(Arc::new(WebAdapter::new(channel, config, parts)?))),
    )
};

/// The type `voice`.
pub(crate) const VOICE_ENTRY: PlatformEntry = PlatformEntry {
    provider_faults: sound::provider_faults,
    ..PlatformEntry::new(
        PlatformProfile {
            typing: true,
            speaks: true,
            is_served_here: true,
            ..PlatformProfile::people("voice", TransportChoice::Fixed(&[Transport::Websocket]))
        },
        ConfigKeys::people(
            &["users", "public_url", "settings"],
            &[],
            &["transcribe", "speak", "voice"],
        ),
        |channel, config, parts| Ok(Some(Arc::new(WebAdapter::with_voice(channel, config, parts)?))),
    )
};
