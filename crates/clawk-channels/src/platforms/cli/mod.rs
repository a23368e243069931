//! `cli`: the terminal of `clawk run`. It has no adapter.

use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile};

/// What the program knows of `cli` channels.
pub(crate) const CLI: PlatformEntry = PlatformEntry::new(
    PlatformProfile::people("the terminal"),
    ConfigKeys::NONE,
    |_, _, _| Ok(None),
);
