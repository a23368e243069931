//! What the program knows of `custom` channels.

use std::sync::Arc;

use super::CustomAdapter;
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile};

/// The type `custom`.
pub(crate) const CUSTOM: PlatformEntry = PlatformEntry::new(
    PlatformProfile {
        typing: true,
        ..PlatformProfile::people("a program")
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
