//! What the program knows of `webhook` channels.

use std::sync::Arc;

use super::WebhookAdapter;
use crate::platform_kit::{API_KEYS, ConfigKeys, PlatformEntry, PlatformProfile, TransportChoice};
use clawk_manifest::model::Transport;

/// The type `webhook`.
pub(crate) const WEBHOOK: PlatformEntry = PlatformEntry::new(
    PlatformProfile::people("a webhook", TransportChoice::Fixed(&[Transport::Webhook])),
    ConfigKeys::people(API_KEYS, &[], &[]),
    |channel, config, parts| Ok(Some(Arc::new(WebhookAdapter::new(channel, config, parts)?))),
);
