//! What the program knows of `queue` channels.

use std::sync::Arc;

use super::QueueAdapter;
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, TriggerOption, left_out};

/// The type `queue`.
pub(crate) const QUEUE: PlatformEntry = PlatformEntry {
    url_schemes: &["amqp://", "amqps://", "nats://", "tls://", "redis://"],
    build_fault: |channel, config| {
        let (feature, built) = match config.url.as_deref()?.split_once("://")?.0 {
            "nats" | "tls" => ("nats", cfg!(feature = "nats")),
            "redis" => ("redis", cfg!(feature = "redis")),
            _ => return None,
        };
        (!built).then(|| left_out(channel, feature))
    },
    trigger_option: Some(TriggerOption {
        name: "queue_name",
        value: |trigger| trigger.queue_name.as_deref(),
    }),
    ..PlatformEntry::new(
        PlatformProfile::trigger("a queue"),
        ConfigKeys::trigger(&["url"], &[]),
        |channel, config, parts| Ok(Some(Arc::new(QueueAdapter::new(channel, config, parts)?))),
    )
};
