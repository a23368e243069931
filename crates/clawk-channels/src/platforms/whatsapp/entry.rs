//! What the program knows of `whatsapp` channels.

use std::sync::Arc;

use super::{VENDOR, WhatsappAdapter};
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, PlatformEntry, PlatformProfile, TransportChoice,
    escaped, setting,
};
use clawk_manifest::model::Transport;

/// The type `whatsapp`.
pub(crate) const WHATSAPP: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, config, token| {
            let number = escaped(&setting(config, "phone_number_id")?);
            let path = format!("{number}?fields=id");
            Ok(CredentialProbe::get(
                api.with_authorization("Bearer", token)?,
                path,
                "/id",
            ))
        },
        rights: None,
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            reacts: true,
            hears: true,
            receipts: true,
            ..PlatformProfile::people("WhatsApp", TransportChoice::OneOf(&[Transport::Webhook]))
        },
        ConfigKeys::people(
            API_KEYS,
            &["app_secret", "verify_token"],
            &["phone_number_id", "transcribe"],
        ),
        |channel, config, parts| Ok(Some(Arc::new(WhatsappAdapter::new(channel, config, parts)?))),
    )
};
