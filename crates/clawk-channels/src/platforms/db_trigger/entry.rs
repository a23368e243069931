//! What the program knows of `db-trigger` channels.

use std::sync::Arc;

use super::{DbTrigger, remove};
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, TriggerOption, left_out};

/// The type `db-trigger`.
pub(crate) const DB_TRIGGER: PlatformEntry = PlatformEntry {
    url_schemes: &["sqlite:", "postgres://", "postgresql://"],
    build_fault: |channel, config| {
        let remote = config.url.as_deref()?.starts_with("postgres");
        (remote && cfg!(not(feature = "postgres"))).then(|| left_out(channel, "postgres"))
    },
    trigger_option: Some(TriggerOption {
        name: "table",
        value: |trigger| trigger.table.as_deref(),
    }),
    remove: Some(|request| Box::pin(remove(request))),
    ..PlatformEntry::new(
        PlatformProfile::trigger("a database"),
        ConfigKeys::trigger(&["url"], &[]),
        |channel, config, parts| Ok(Some(Arc::new(DbTrigger::new(channel, config, parts)?))),
    )
};
