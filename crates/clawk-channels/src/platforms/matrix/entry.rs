//! What the program knows of `matrix` channels.

use std::sync::Arc;

use super::MatrixAdapter;
use crate::platform_kit::{
    API_KEYS, ConfigKeys, CredentialCheck, CredentialProbe, PlatformEntry, PlatformProfile, TransportChoice,
};
use clawk_manifest::model::Transport;

/// The type `matrix`.
pub(crate) const MATRIX: PlatformEntry = PlatformEntry {
    credential: Some(CredentialCheck {
        vendor: "",
        question: |api, _, token| {
            let api = api.with_authorization("Bearer", token)?;
            let path = "_matrix/client/v3/account/whoami".to_owned();
            Ok(CredentialProbe::get(api, path, "/user_id"))
        },
        rights: None,
        has_user_id: true,
    }),
    ..PlatformEntry::new(
        PlatformProfile {
            reacts: true,
            threads: true,
            hears: true,
            typing: true,
            receipts: true,
            ..PlatformProfile::people("Matrix", TransportChoice::OneOf(&[Transport::Polling]))
        },
        ConfigKeys::people(API_KEYS, &[], &["user_id", "transcribe"]),
        |channel, config, parts| Ok(Some(Arc::new(MatrixAdapter::new(channel, config, parts)?))),
    )
};
