//! `[http.oauth]`: an authorization server whose tokens the listener accepts; `[http] push_hosts`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clawk_egress::{HostAllowList, HostPattern, Url};
use clawk_proto::Digest;
use clawk_recall::seal::{SealKey, SealKeyring};
use clawk_secrets::SecretResolver;
use clawk_server::PushNotifier;
use clawk_server::http::Scope;
use clawk_server::oauth::{IntrospectionEndpoint, JwtAlgorithm, OAuth, OAuthOptions};
use serde::{Deserialize, Serialize};

use crate::peers::kept_key;

/// `[http.oauth]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OAuthConfig {
    /// The issuer, exactly as in its tokens.
    pub(crate) issuer: String,
    /// This server's public URL. A token's audience must be this URL or the URL of one entry point.
    pub(crate) resource: String,
    /// Other accepted audiences.
    #[serde(default)]
    pub(crate) audiences: Vec<String>,
    /// URL of the issuer's keys. Absent: the URL in the issuer's metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) jwks: Option<String>,
    /// Accepted signature algorithms.
    #[serde(default = "default_algorithms")]
    pub(crate) algorithms: Vec<JwtAlgorithm>,
    /// Maps a scope of a token to permissions here.
    pub(crate) scopes: BTreeMap<String, Vec<Scope>>,
    /// Tokens are checked by introspection instead of by their signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) introspection: Option<IntrospectionConfig>,
}

/// `[http.oauth.introspection]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IntrospectionConfig {
    /// The endpoint's URL (RFC 7662).
    pub(crate) url: String,
    /// This server's client id at the endpoint.
    pub(crate) client_id: String,
    /// Reference to the client's secret.
    pub(crate) secret_ref: String,
}

fn default_algorithms() -> Vec<JwtAlgorithm> {
    vec![JwtAlgorithm::RS256, JwtAlgorithm::ES256]
}

impl OAuthConfig {
    /// Builds the token verifier. The issuer is not contacted yet.
    ///
    /// # Errors
    /// A URL is not valid or not safe, no scope allows anything, or the secret is not known.
    pub(crate) fn build_verifier(&self, secrets: &SecretResolver) -> Result<OAuth> {
        let jwks = self
            .jwks
            .as_deref()
            .map(|text| parse_safe_url("jwks", text))
            .transpose()?;
        parse_safe_url("issuer", &self.issuer)?;
        let resource = Url::parse(&self.resource).context("`resource`")?;
        if resource.query().is_some() || resource.fragment().is_some() {
            bail!("`resource` is the server's address, without a query or a fragment");
        }
        if self.scopes.is_empty() || self.algorithms.is_empty() {
            bail!("`scopes` and `algorithms` must name at least one each: else no token allows anything");
        }
        let introspection = self.introspection.as_ref().map(|whom| {
            anyhow::Ok(IntrospectionEndpoint {
                url: parse_safe_url("introspection.url", &whom.url)?,
                client_id: whom.client_id.clone(),
                secret: secrets.resolve(&whom.secret_ref)?,
            })
        });
        let options = OAuthOptions {
            issuer: self.issuer.clone(),
            resource: self.resource.clone(),
            audiences: self.audiences.clone(),
            jwks,
            introspection: introspection.transpose()?,
            algorithms: self.algorithms.clone(),
            scopes: self.scopes.clone(),
        };
        Ok(OAuth::new(options, secrets.env())?)
    }
}

/// Parses a URL that nobody can intercept: https, or this machine.
fn parse_safe_url(name: &str, text: &str) -> Result<Url> {
    let url = Url::parse(text).with_context(|| format!("`{name}` is not a URL"))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let here = host == "localhost"
        || host
            .parse()
            .is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    match url.scheme() {
        "https" => Ok(url),
        "http" if here => Ok(url),
        _ => bail!("`{name}` must be https (plain http only on this machine)"),
    }
}

/// Builds the sender of push notifications, if hosts are configured. `private`: addresses in the private network that the operator
/// allows; such a receiver must be in both lists.
///
/// Undelivered notifications are stored encrypted below `state`.
///
/// # Errors
/// The root certificates are not usable, or undelivered notifications can't be stored.
pub(crate) fn push(
    hosts: &[HostPattern],
    private: &[HostPattern],
    secrets: &SecretResolver,
    state: &Path,
) -> Result<Option<PushNotifier>> {
    if hosts.is_empty() {
        return Ok(None);
    }
    let both = |entry: &&HostPattern| hosts.contains(entry);
    let rules = HostAllowList {
        hosts: hosts.to_vec(),
        allow_private: private.iter().filter(both).cloned().collect(),
        ..HostAllowList::default()
    };
    let open = || -> Result<PushNotifier> {
        let key = SealKey::from_hex(&Digest(kept_key(state, "keys/push")?).to_hex())?;
        Ok(PushNotifier::new(
            rules,
            secrets.env(),
            &state.join("push.db"),
            SealKeyring::new(key),
        )?)
    };
    open().map(Some).context("`[http] push_hosts`")
}
