//! What the program knows of `wechat` channels.

use std::sync::Arc;

use super::{TOKEN_PATH, VENDOR, WechatAdapter, token_request};
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, CredentialProof, PlatformEntry, PlatformProfile,
    TransportChoice, setting,
};
use clawk_manifest::model::Transport;

/// The type `wechat`.
pub(crate) const WECHAT: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, config, token| {
            let body = token_request(&setting(config, "app_id")?, token);
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
        PlatformProfile {
            typing: true,
            ..PlatformProfile::people("WeChat", TransportChoice::OneOf(&[Transport::Webhook]))
        },
        ConfigKeys::people(API_KEYS, &["token", "encoding_aes_key"], &["app_id"]),
        |channel, config, parts| Ok(Some(Arc::new(WechatAdapter::new(channel, config, parts)?))),
    )
};
