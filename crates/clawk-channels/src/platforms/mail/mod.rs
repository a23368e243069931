//! `email` and `imap`. The adapters are there with the feature `mail` alone; their settings are checked in any build.

#[cfg(feature = "mail")]
mod adapter;
#[cfg(feature = "mail")]
pub use adapter::results as authentication_results;

use std::sync::Arc;

use clawk_manifest::model::{Channel, Transport};

use crate::adapter::ChannelAdapter;
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::platform_kit::{ConfigKeys, PlatformEntry, PlatformProfile, TransportChoice, left_out};

/// The type `email`.
pub(crate) const EMAIL: PlatformEntry = PlatformEntry {
    url_schemes: &["imap://", "imaps://"],
    build_fault: |channel, _| cfg!(not(feature = "mail")).then(|| left_out(channel, "mail")),
    ..PlatformEntry::new(
        PlatformProfile {
            without_threads: "a mail is answered in its thread in any case",
            hears: true,
            ..PlatformProfile::people("e-mail", TransportChoice::OneOf(&[Transport::Polling]))
        },
        ConfigKeys::people(
            &["url", "smtp_url", "settings"],
            &[],
            &["address", "authserv_id", "transcribe"],
        ),
        make_email,
    )
};

/// The type `imap`.
pub(crate) const IMAP: PlatformEntry = PlatformEntry {
    url_schemes: &["imap://", "imaps://"],
    build_fault: |channel, _| cfg!(not(feature = "mail")).then(|| left_out(channel, "mail")),
    ..PlatformEntry::new(
        PlatformProfile::trigger("a mailbox"),
        ConfigKeys::trigger(&["url", "settings"], &["authserv_id"]),
        make_imap,
    )
};

type MadeAdapter = Result<Option<Arc<dyn ChannelAdapter>>, String>;

#[cfg(feature = "mail")]
fn make_email(channel: &Channel, config: &ChannelConfig, parts: &ChannelDependencies) -> MadeAdapter {
    Ok(Some(Arc::new(adapter::EmailAdapter::new(
        channel, config, parts,
    )?)))
}

#[cfg(feature = "mail")]
fn make_imap(channel: &Channel, config: &ChannelConfig, parts: &ChannelDependencies) -> MadeAdapter {
    Ok(Some(Arc::new(adapter::ImapAdapter::new(channel, config, parts)?)))
}

#[cfg(not(feature = "mail"))]
fn make_email(channel: &Channel, _: &ChannelConfig, _: &ChannelDependencies) -> MadeAdapter {
    Err(left_out(channel, "mail"))
}

#[cfg(not(feature = "mail"))]
fn make_imap(channel: &Channel, _: &ChannelConfig, _: &ChannelDependencies) -> MadeAdapter {
    Err(left_out(channel, "mail"))
}
