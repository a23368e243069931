//! Tokens of an authorization server (OAuth 2.1, as in the MCP authorization specification). This server is a protected resource. A
//! token is a JWT, verified by the issuer's published keys, or an opaque token, checked by asking the issuer (RFC 7662). The
//! operator's table maps its scopes to the scopes of R43; other claims give no rights.

mod ask;
pub(crate) mod jwt;
mod keys;
mod metadata;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use clawk_egress::{ClientDeadlines, EgressClient, EgressError, Url};
use clawk_kernel::time::Timestamp;
use clawk_secrets::{EnvironmentSource, Secret};
use serde_json::Value;

use crate::access::{ClientRights, Scope};
use ask::TokenIntrospector;
pub use jwt::JwtAlgorithm;
use keys::Keys;
pub(crate) use metadata::{PATH, routes};

/// The accepted difference to the issuer's clock, seconds.
const LEEWAY_S: i64 = 60;
/// The longest subject, characters.
const MAX_SUBJECT: usize = 200;
/// The longest answer of the issuer, bytes.
const MAX_ANSWER_BYTES: u64 = 256 << 10;
/// How long the issuer may take to answer, milliseconds.
const ANSWER_MS: u64 = 10_000;
/// Paths below the resource that may be the audience of a token.
const DOORS: [&str; 6] = ["/mcp", "/a2a", "/claw", "/claw/ws", "/openai/v1", "/v1"];

/// The introspection endpoint of the authorization server (RFC 7662).
#[derive(Debug, Clone)]
pub struct IntrospectionEndpoint {
    /// The URL of the endpoint.
    pub url: Url,
    /// The client id of this server.
    pub client_id: String,
    /// The client's secret.
    pub secret: Secret,
}

/// The accepted authorization server, and the rights of its tokens.
#[derive(Debug, Clone)]
pub struct OAuthOptions {
    /// The issuer, exactly as in the tokens' `iss` claim.
    pub issuer: String,
    /// This server's public address, such as `https://agent.example.com`. A token's audience must be this address or one of its
    /// doors.
    pub resource: String,
    /// Other accepted audiences.
    pub audiences: Vec<String>,
    /// The URL of the issuer's keys; `None`: the URL comes from the issuer's metadata.
    pub jwks: Option<Url>,
    /// If set, tokens are checked at this endpoint instead of by their signature.
    pub introspection: Option<IntrospectionEndpoint>,
    /// The accepted signature algorithms.
    pub algorithms: Vec<JwtAlgorithm>,
    /// Maps a token's scope to scopes of this server.
    pub scopes: BTreeMap<String, Vec<Scope>>,
}

/// Why a token is refused. The client does not learn the reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenRefusal {
    /// The token is malformed, forged, expired, or made for another server.
    #[error("{0}")]
    Token(&'static str),
    /// The issuer can't be reached. Holds the reason.
    #[error("the issuer can't be asked: {0}")]
    Issuer(String),
}

/// The holder of a valid token.
#[derive(Debug, Clone)]
pub(crate) struct BearerIdentity {
    pub(crate) rights: ClientRights,
    /// When the token expires, seconds since 1970.
    pub(crate) until_s: i64,
}

/// An authorization server whose tokens are accepted. Cheap to clone.
#[derive(Clone)]
pub struct OAuth(Arc<OAuthInner>);

struct OAuthInner {
    options: OAuthOptions,
    keys: Keys,
    asking: Option<TokenIntrospector>,
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OAuth({})", self.0.options.issuer)
    }
}

impl OAuth {
    /// Prepares the checks. Sends nothing to the issuer yet.
    ///
    /// # Errors
    /// An address can't be used.
    pub fn new(mut options: OAuthOptions, env: &EnvironmentSource) -> Result<Self, EgressError> {
        let length = options.resource.trim_end_matches('/').len();
        options.resource.truncate(length);
        let keys = Keys::new(&options, env)?;
        let asking = options
            .introspection
            .clone()
            .map(|whom| TokenIntrospector::new(whom, env));
        Ok(Self(Arc::new(OAuthInner {
            asking: asking.transpose()?,
            keys,
            options,
        })))
    }

    /// Checks a token and returns its holder.
    pub(crate) async fn identify_bearer(
        &self,
        token: &str,
        now: Timestamp,
    ) -> Result<BearerIdentity, TokenRefusal> {
        let OAuthInner {
            options,
            keys,
            asking,
        } = &*self.0;
        let claims = match asking {
            Some(asking) => asking.fetch_claims(token).await?,
            None => {
                let parsed = jwt::UnverifiedJwt::read(token, &options.algorithms)?;
                let keys = keys.fitting_keys(&parsed).await?;
                parsed.verified_claims(&keys)?
            }
        };
        self.judge_claims(&claims, now, asking.is_some())
    }

    /// Checks the claims of a token and derives its holder. `asked`: the issuer itself sent the claims, so `iss` may be absent.
    fn judge_claims(
        &self,
        claims: &Value,
        now: Timestamp,
        asked: bool,
    ) -> Result<BearerIdentity, TokenRefusal> {
        let options = &self.0.options;
        let now_s = now.as_millis() / 1000;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        match text("iss") {
            Some(issuer) if issuer == options.issuer => {}
            None if asked => {}
            Some(_) | None => return Err(TokenRefusal::Token("it is of another issuer")),
        }
        let until_s = claim_seconds(claims, "exp").ok_or(TokenRefusal::Token("it has no end"))?;
        if now_s >= until_s.saturating_add(LEEWAY_S) {
            return Err(TokenRefusal::Token("it has expired"));
        }
        if claim_seconds(claims, "nbf").is_some_and(|from| now_s.saturating_add(LEEWAY_S) < from) {
            return Err(TokenRefusal::Token("it does not hold yet"));
        }
        if !self.is_for_us(claims.get("aud")) {
            return Err(TokenRefusal::Token("it was made for another audience"));
        }
        let subject = text("sub").or_else(|| text("client_id")).unwrap_or_default();
        let fits = |c: char| !c.is_control();
        if subject.is_empty() || subject.chars().count() > MAX_SUBJECT || !subject.chars().all(fits) {
            return Err(TokenRefusal::Token("it names no subject"));
        }
        let mut scopes: Vec<Scope> = Vec::new();
        let listed = claims.get("scp").and_then(Value::as_array);
        let listed = listed.into_iter().flatten().filter_map(Value::as_str);
        let given = text("scope")
            .unwrap_or_default()
            .split_ascii_whitespace()
            .chain(listed);
        for scope in given.filter_map(|name| options.scopes.get(name)).flatten() {
            if !scopes.contains(scope) {
                scopes.push(*scope);
            }
        }
        Ok(BearerIdentity {
            rights: ClientRights::of_subject(&format!("oauth:{subject}"), scopes),
            until_s: until_s.saturating_add(LEEWAY_S),
        })
    }

    fn is_for_us(&self, audience: Option<&Value>) -> bool {
        let options = &self.0.options;
        let ours = |one: &str| {
            let door = one.trim_end_matches('/').strip_prefix(options.resource.as_str());
            let own = door.is_some_and(|door| door.is_empty() || DOORS.contains(&door));
            own || options.audiences.iter().any(|other| other == one)
        };
        match audience {
            Some(Value::String(one)) => ours(one),
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).any(ours),
            Some(_) | None => false,
        }
    }

    /// The `WWW-Authenticate` header for a request without a valid token or without a required scope (RFC 6750, RFC 9728).
    pub(crate) fn challenge_header(&self, path: &str, presented: bool, missing: Option<Scope>) -> String {
        let options = &self.0.options;
        let metadata = format!("{}{PATH}{}", options.resource, metadata::door_of_path(path));
        let mut words = vec![format!("resource_metadata=\"{metadata}\"")];
        let wanted: Vec<&str> = match missing {
            None => Vec::new(),
            Some(scope) => {
                let allowing = options
                    .scopes
                    .iter()
                    .filter(|(_, allowed)| allowed.contains(&scope));
                allowing.map(|(name, _)| name.as_str()).collect()
            }
        };
        match missing {
            Some(_) => words.push("error=\"insufficient_scope\"".to_owned()),
            None if presented => words.push("error=\"invalid_token\"".to_owned()),
            None => {}
        }
        if !wanted.is_empty() {
            words.push(format!("scope=\"{}\"", wanted.join(" ")));
        }
        format!("Bearer {}", words.join(", "))
    }
}

/// A time in the claims, whole seconds.
fn claim_seconds(claims: &Value, name: &str) -> Option<i64> {
    let number = claims.get(name)?;
    let whole = number.as_i64();
    // Some issuers send fractions of a second.
    whole.or_else(|| {
        number
            .as_f64()
            .and_then(|float| format!("{:.0}", float.trunc()).parse().ok())
    }) // silent-ok: no time
}

/// An HTTP client for an address from the operator's configuration.
fn client_for(url: &Url, env: &EnvironmentSource) -> Result<EgressClient, EgressError> {
    let deadlines = ClientDeadlines {
        connect_ms: ANSWER_MS,
        first_byte_ms: ANSWER_MS,
        idle_ms: ANSWER_MS,
        total_ms: ANSWER_MS,
    };
    EgressClient::for_provider(url, env, deadlines, MAX_ANSWER_BYTES)
}
