//! What the program knows of `dingtalk` channels.

use std::sync::Arc;

use clawk_manifest::model::Transport;
use serde_json::json;

use super::{DingtalkAdapter, TOKEN_PATH, VENDOR};
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, CredentialProof, PlatformEntry, PlatformProfile,
    TransportChoice, setting,
};

/// The type `dingtalk`.
pub(crate) const DINGTALK: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, config, token| {
            let body = json!({"appKey": setting(config, "client_id")?, "appSecret": token});
            Ok(CredentialProbe::for_post(
                api,
                TOKEN_PATH,
                body,
                CredentialProof::Token("/accessToken"),
            ))
        },
        rights: None,
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile::people(
            "DingTalk",
            TransportChoice::OneOf(&[Transport::Websocket, Transport::Webhook]),
        ),
        ConfigKeys::people(API_KEYS, &[], &["client_id", "robot_code"]),
        |channel, config, parts| Ok(Some(Arc::new(DingtalkAdapter::new(channel, config, parts)?))),
    )
};
