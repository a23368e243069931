//! What the program knows of `qq` channels.

use std::sync::Arc;

use clawk_manifest::model::Transport;
use serde_json::json;

use super::{QqAdapter, TOKEN_PATH, TOKENS};
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, CredentialProof, PlatformEntry, PlatformProfile,
    TransportChoice, setting,
};

/// The type `qq`.
pub(crate) const QQ: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: TOKENS,
        question: |api, config, token| {
            let body = json!({"appId": setting(config, "app_id")?, "clientSecret": token});
            Ok(CredentialProbe::for_post(
                api,
                TOKEN_PATH,
                body,
                CredentialProof::Token("/access_token"),
            ))
        },
        rights: None,
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile::people(
            "QQ",
            TransportChoice::OneOf(&[Transport::Webhook, Transport::Websocket]),
        ),
        ConfigKeys::people(API_KEYS, &[], &["app_id"]),
        |channel, config, parts| Ok(Some(Arc::new(QqAdapter::new(channel, config, parts)?))),
    )
};
