//! How a platform is asked whether it takes a secret, and what is told of it.

use clawk_kernel::ports::BoxFuture;
use http::Method;
use serde_json::Value;

use crate::api::{PlatformApi, PlatformResponse};
use crate::config::ChannelConfig;

/// How long one check may take, milliseconds.
pub(crate) const CHECK_LIMIT_MS: u64 = 5_000;
/// The code of findings about what the bot may do.
pub(crate) const RIGHTS: &str = "channel-rights";

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckGrade {
    /// Fine.
    Ok,
    /// Works, but perhaps not as expected; or it could not be found out.
    Warn,
    /// Does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// `channel-token`, `channel-rights`, `channel-clock` or `channel-webhook`.
    pub code: &'static str,
    /// How it went.
    pub grade: CheckGrade,
    /// What was found, for people; never a secret.
    pub result: String,
    /// What mends it; empty where nothing is to be mended.
    pub cure: String,
}

impl Finding {
    pub(crate) fn ok(code: &'static str, result: impl Into<String>) -> Self {
        Self::new(code, CheckGrade::Ok, result, "")
    }

    pub(crate) fn new(
        code: &'static str,
        grade: CheckGrade,
        result: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Self {
            code,
            grade,
            result: result.into(),
            cure: cure.into(),
        }
    }
}

/// Compares what the bot may do with what its channel needs.
pub(crate) type FindMissingRights =
    for<'a> fn(&'a CredentialProbe, &'a PlatformResponse) -> BoxFuture<'a, Option<Finding>>;

/// How the secret of a channel is tried.
#[derive(Clone, Copy)]
pub(crate) struct CredentialCheck {
    /// The vendor's address, which `base_url` replaces; empty: only `base_url` says it.
    pub(crate) vendor: &'static str,
    /// The question to the platform, by the channel's token. The error says why it can't be asked, for people.
    pub(crate) question: fn(PlatformApi, &ChannelConfig, &str) -> Result<CredentialProbe, String>,
    /// What the bot may do, where the platform says so.
    pub(crate) rights: Option<FindMissingRights>,
    /// `settings.user_id` must be the name that the platform gives.
    pub(crate) has_user_id: bool,
}

/// How a platform says that it takes a secret.
pub(crate) struct CredentialProbe {
    pub(crate) api: PlatformApi,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
    pub(crate) proof: CredentialProof,
}

impl CredentialProbe {
    pub(crate) const fn get(api: PlatformApi, path: String, name: &'static str) -> Self {
        Self {
            api,
            method: Method::GET,
            path,
            body: None,
            proof: CredentialProof::Name(name),
        }
    }

    pub(crate) fn for_post(api: PlatformApi, path: &str, body: Value, proof: CredentialProof) -> Self {
        Self {
            api,
            method: Method::POST,
            path: path.to_owned(),
            body: Some(body),
            proof,
        }
    }
}

/// What in an answer shows that the secret was taken.
#[derive(Clone, Copy)]
pub(crate) enum CredentialProof {
    /// The bot's name stands there.
    Name(&'static str),
    /// A token stands there. It is shown to nobody, and lapses unused.
    Token(&'static str),
}
