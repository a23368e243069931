//! What the program knows of `lark` channels.

use std::sync::Arc;

use clawk_manifest::model::Transport;
use serde_json::json;

use super::{LarkAdapter, TOKEN_PATH, VENDOR};
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, CredentialProof, PlatformEntry, PlatformProfile,
    TransportChoice, setting,
};

/// The type `lark`.
pub(crate) const LARK: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, config, token| {
            let body = json!({"app_id": setting(config, "app_id")?, "app_secret": token});
            Ok(CredentialProbe::for_post(
                api,
                TOKEN_PATH,
                body,
                CredentialProof::Token("/tenant_access_token"),
            ))
        },
        rights: None,
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            reacts: true,
            threads: true,
            hears: true,
            ..PlatformProfile::people(
                "Lark",
                TransportChoice::OneOf(&[Transport::Webhook, Transport::Websocket]),
            )
        },
        ConfigKeys::people(
            API_KEYS,
            &["verification_token", "encrypt_key"],
            &["app_id", "transcribe"],
        ),
        |channel, config, parts| Ok(Some(Arc::new(LarkAdapter::new(channel, config, parts)?))),
    )
};
