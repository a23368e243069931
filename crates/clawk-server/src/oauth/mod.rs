//! Tokens of an authorization server (OAuth 2.1, as the MCP authorization specification uses it): this server is a protected
//! resource. A token is a JWT that the issuer's published keys verify, or one that the issuer is asked about (RFC 7662). Its
//! scopes become the scopes of R43 by the operator's table; nothing else of it counts.

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

/// How far the issuer's clock may be off, seconds.
const LEEWAY_S: i64 = 60;
/// Characters of a subject.
const MAX_SUBJECT: usize = 200;
/// Bytes of an answer of the issuer's.
const MAX_ANSWER_BYTES: u64 = 256 << 10;
/// How long the issuer may take to answer, milliseconds.
const ANSWER_MS: u64 = 10_000;
/// Paths below the resource that a token may be made for.
const DOORS: [&str; 6] = ["/mcp", "/a2a", "/claw", "/claw/ws", "/openai/v1", "/v1"];

/// The introspection endpoint of the authorization server (RFC 7662).
#[derive(Debug, Clone)]
pub struct IntrospectionEndpoint {
    /// The endpoint.
    pub url: Url,
    /// By which this server is known there.
    pub client_id: String,
    /// The client's secret.
    pub secret: Secret,
}

/// The accepted authorization server, and the rights of its tokens.
#[derive(Debug, Clone)]
pub struct OAuthOptions {
    /// The issuer, exactly as it stands in its tokens.
    pub issuer: String,
    /// This server's public address, such as `https://agent.example.com`: tokens must be made for it or for one of its doors.
    pub resource: String,
    /// Other audiences that are taken.
    pub audiences: Vec<String>,
    /// Where the issuer's keys are; none: where its metadata says.
    pub jwks: Option<Url>,
    /// Tokens are asked about instead of being verified here.
    pub introspection: Option<IntrospectionEndpoint>,
    /// Signatures that are taken.
    pub algorithms: Vec<JwtAlgorithm>,
    /// What a scope of a token allows here.
    pub scopes: BTreeMap<String, Vec<Scope>>,
}

/// The reason why a token is refused. The client does not learn it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenRefusal {
    /// It is not one, or it is forged, over, or another's.
    #[error("{0}")]
    Token(&'static str),
    /// The issuer can't be asked.
    #[error("the issuer can't be asked: {0}")]
    Issuer(String),
}

/// Who a token stands for.
#[derive(Debug, Clone)]
pub(crate) struct BearerIdentity {
    pub(crate) rights: ClientRights,
    /// When it is over, seconds since 1970.
    pub(crate) until_s: i64,
}

/// An authorization server whose tokens are taken. Cheap to clone.
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
    /// Nothing is asked of the issuer yet.
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

    /// Who presents this token.
    pub(crate) async fn bearer(&self, token: &str, now: Timestamp) -> Result<BearerIdentity, TokenRefusal> {
        let OAuthInner {
            options,
            keys,
            asking,
        } = &*self.0;
        let claims = match asking {
            Some(asking) => asking.claims(token).await?,
            None => {
                let parsed = jwt::UnverifiedJwt::read(token, &options.algorithms)?;
                let keys = keys.fitting(&parsed).await?;
                parsed.verified(&keys)?
            }
        };
        self.judge(&claims, now, asking.is_some())
    }

    /// What a token's claims make of its holder. An answer of the issuer's need not repeat who the issuer is.
    fn judge(&self, claims: &Value, now: Timestamp, asked: bool) -> Result<BearerIdentity, TokenRefusal> {
        let options = &self.0.options;
        let now_s = now.as_millis() / 1000;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        match text("iss") {
            Some(issuer) if issuer == options.issuer => {}
            None if asked => {}
            Some(_) | None => return Err(TokenRefusal::Token("it is of another issuer")),
        }
        let until_s = seconds(claims, "exp").ok_or(TokenRefusal::Token("it has no end"))?;
        if now_s >= until_s.saturating_add(LEEWAY_S) {
            return Err(TokenRefusal::Token("it has expired"));
        }
        if seconds(claims, "nbf").is_some_and(|from| now_s.saturating_add(LEEWAY_S) < from) {
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

    /// What a request without a valid token, or one that lacks a scope, is told beside the refusal (RFC 6750, RFC 9728).
    pub(crate) fn challenge(&self, path: &str, presented: bool, missing: Option<Scope>) -> String {
        let options = &self.0.options;
        let metadata = format!("{}{PATH}{}", options.resource, metadata::door(path));
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

/// A time of the claims, whole seconds.
fn seconds(claims: &Value, name: &str) -> Option<i64> {
    let number = claims.get(name)?;
    let whole = number.as_i64();
    // Some issuers write fractions.
    whole.or_else(|| {
        number
            .as_f64()
            .and_then(|float| format!("{:.0}", float.trunc()).parse().ok())
    }) // silent-ok: no time
}

/// A client for an address that the operator wrote down.
fn client(url: &Url, env: &EnvironmentSource) -> Result<EgressClient, EgressError> {
    let deadlines = ClientDeadlines {
        connect_ms: ANSWER_MS,
        first_byte_ms: ANSWER_MS,
        idle_ms: ANSWER_MS,
        total_ms: ANSWER_MS,
    };
    EgressClient::for_provider(url, env, deadlines, MAX_ANSWER_BYTES)
}
