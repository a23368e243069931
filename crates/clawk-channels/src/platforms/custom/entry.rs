//! What the program knows of `custom` channels.

use std::sync::Arc;

use super::CustomAdapter;
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, TransportChoice};
use clawk_manifest::model::Transport;

/// The type `custom`.
pub(crate) const CUSTOM: PlatformEntry = PlatformEntry::new(
    PlatformProfile {
        typing: true,
        ..PlatformProfile::people("a program", TransportChoice::Fixed(&[Transport::Stdio]))
    },
    ConfigKeys::people(
        &[
            "command",
            "sandbox",
            "allowed_hosts",
            "read_paths",
            "env",
            "secret_env",
        ],
        &[],
        &[],
    ),
    |channel, _, parts| Ok(Some(Arc::new(CustomAdapter::new(channel, parts)?))),
);
