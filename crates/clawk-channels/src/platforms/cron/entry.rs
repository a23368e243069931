//! What the program knows of `cron` channels.

use std::sync::Arc;

use super::CronAdapter;
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, TriggerOption};

/// The type `cron`.
pub(crate) const CRON: PlatformEntry = PlatformEntry {
    trigger_option: Some(TriggerOption {
        name: "schedule",
        value: |trigger| trigger.schedule.as_deref(),
    }),
    ..PlatformEntry::new(
        PlatformProfile::trigger("a schedule"),
        ConfigKeys::trigger(&["timezone", "missed"], &[]),
        |channel, config, _| Ok(Some(Arc::new(CronAdapter::new(channel, config)?))),
    )
};
