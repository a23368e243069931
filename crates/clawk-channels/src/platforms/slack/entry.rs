//! What the program knows of `slack` channels.

use std::sync::Arc;

use clawk_manifest::model::Transport;
use serde_json::json;

use super::{SlackAdapter, VENDOR};
use crate::api::PlatformResponse;
use crate::platform_kit::{
    API_KEYS, CheckGrade, ConfigKeys, CredentialCheck, CredentialProbe, CredentialProof, Finding,
    HEARING_SETTINGS, PlatformEntry, PlatformProfile, RIGHTS, TransportChoice,
};

/// The type `slack`.
pub(crate) const SLACK: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: VENDOR,
        question: |api, _, token| {
            let api = api.with_authorization("Bearer", token)?;
            Ok(CredentialProbe::for_post(
                api,
                "auth.test",
                json!({}),
                CredentialProof::Name("/user"),
            ))
        },
        rights: Some(|_, answer| Box::pin(std::future::ready(read_scopes(answer)))),
        has_user_id: false,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            reacts: true,
            threads: true,
            hears: true,
            ..PlatformProfile::people(
                "Slack",
                TransportChoice::OneOf(&[Transport::Websocket, Transport::Webhook]),
            )
        },
        ConfigKeys::people(API_KEYS, &["app_token", "signing_secret"], HEARING_SETTINGS),
        |channel, config, parts| Ok(Some(Arc::new(SlackAdapter::new(channel, config, parts)?))),
    )
};

fn read_scopes(answer: &PlatformResponse) -> Option<Finding> {
    let scopes = answer.headers.get("x-oauth-scopes")?.to_str().ok()?; // silent-ok: the platform does not say
    let has = |wanted: &str| scopes.split(',').any(|scope| scope.trim() == wanted);
    let lacks: Vec<&str> = ["chat:write", "im:history", "app_mentions:read"]
        .into_iter()
        .filter(|wanted| !has(wanted))
        .collect();
    Some(match lacks.as_slice() {
        [] => Finding::ok(RIGHTS, "reads direct messages and mentions, and sends"),
        lacks => Finding::new(
            RIGHTS,
            match has("chat:write") {
                true => CheckGrade::Warn,
                false => CheckGrade::Fail,
            },
            format!("the app lacks {}", lacks.join(", ")),
            "api.slack.com/apps, OAuth & Permissions, Bot Token Scopes: add them, and reinstall the app",
        ),
    })
}
