//! `cli`: the terminal of `clawk run`. It has no adapter.

use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, TransportChoice};
use clawk_manifest::model::Transport;

/// What the program knows of `cli` channels.
pub(crate) const CLI: PlatformEntry = PlatformEntry::new(
    PlatformProfile::people("the terminal", TransportChoice::Fixed(&[Transport::Stdio])),
    ConfigKeys::NONE,
    |_, _, _| Ok(None),
);
