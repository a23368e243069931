//! The issuer's keys. They are fetched at first use, cached for an hour, and fetched again when a token names an unknown key.

use std::time::Duration;

use clawk_egress::{EgressClient, EgressError, Request, Url};
use clawk_secrets::EnvironmentSource;
use http::{HeaderMap, Method};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::jwt::{IssuerKey, UnverifiedJwt};
use super::{OAuthOptions, TokenRefusal, client_for};

/// How long keys are used without a refresh. The clock is monotonic: a jump of the wall clock must not make clawk refuse new keys
/// or keep old ones.
const FRESH: Duration = Duration::from_secs(3_600);
/// How long keys stay usable while the issuer can't be reached.
const STALE: Duration = Duration::from_secs(2 * 3_600);
/// The shortest time between two fetches, so that forged tokens can't cause a flood of requests.
const PAUSE: Duration = Duration::from_secs(30);
/// The largest number of keys in a set.
const MAX_KEYS: usize = 64;

/// The keys of one issuer.
pub(super) struct Keys {
    /// The URL of the keys; `None`: the URL comes from the issuer's metadata.
    place: Option<Url>,
    issuer: String,
    client: EgressClient,
    kept: Mutex<IssuerKeyCache>,
}

#[derive(Default)]
struct IssuerKeyCache {
    keys: Vec<IssuerKey>,
    /// When the keys were received. `tried` is the time of the last request.
    came: Option<Instant>,
    tried: Option<Instant>,
}

impl Keys {
    pub(super) fn new(options: &OAuthOptions, env: &EnvironmentSource) -> Result<Self, EgressError> {
        let issuer = Url::parse(&options.issuer)
            .map_err(|error| EgressError::Setup(format!("the issuer `{}`: {error}", options.issuer)))?;
        Ok(Self {
            client: client_for(options.jwks.as_ref().unwrap_or(&issuer), env)?,
            place: options.jwks.clone(),
            issuer: options.issuer.clone(),
            kept: Mutex::default(),
        })
    }

    /// The keys that may have signed the token.
    pub(super) async fn fitting_keys(&self, parsed: &UnverifiedJwt) -> Result<Vec<IssuerKey>, TokenRefusal> {
        // Only one fetch runs at a time: others wait and use its result.
        let mut kept = self.kept.lock().await;
        let now = Instant::now();
        let age = |since: Option<Instant>| since.map_or(Duration::MAX, |since| now.duration_since(since));
        let known = kept.keys.iter().any(|key| parsed.may_be_of(key));
        let wanted = !known || age(kept.came) > FRESH;
        if wanted && age(kept.tried) > PAUSE {
            kept.tried = Some(now);
            match self.fetch_keys().await {
                Ok(keys) => (kept.keys, kept.came) = (keys, Some(now)),
                Err(reason) => {
                    tracing::warn!(%reason, issuer = self.issuer, "the issuer's keys could not be fetched");
                    if kept.keys.is_empty() {
                        kept.tried = None;
                        return Err(TokenRefusal::Issuer(reason));
                    }
                }
            }
        }
        if age(kept.came) > STALE {
            return Err(TokenRefusal::Issuer(
                "its keys are too old, and it does not answer".to_owned(),
            ));
        }
        Ok(kept
            .keys
            .iter()
            .filter(|key| parsed.may_be_of(key))
            .cloned()
            .collect())
    }

    async fn fetch_keys(&self) -> Result<Vec<IssuerKey>, String> {
        let place = match &self.place {
            Some(place) => place.clone(),
            None => self.discover_url().await?,
        };
        let set = self.get(place).await?;
        let all = set
            .get("keys")
            .and_then(Value::as_array)
            .ok_or("it has no `keys`")?;
        let keys: Vec<IssuerKey> = all.iter().take(MAX_KEYS).filter_map(IssuerKey::read).collect();
        if keys.is_empty() {
            return Err("it publishes no key that can be used here".to_owned());
        }
        Ok(keys)
    }

    /// Reads `jwks_uri` from the issuer's metadata (RFC 8414, OpenID Connect Discovery).
    async fn discover_url(&self) -> Result<Url, String> {
        let issuer = Url::parse(&self.issuer).map_err(|error| error.to_string())?;
        let path = issuer.path().trim_end_matches('/').to_owned();
        let places = [
            format!("/.well-known/oauth-authorization-server{path}"),
            format!("/.well-known/openid-configuration{path}"),
            format!("{path}/.well-known/openid-configuration"),
        ];
        let mut last = String::new();
        for place in places {
            let mut url = issuer.clone();
            url.set_path(&place);
            match self.get(url).await {
                Ok(metadata) if metadata.get("issuer").and_then(Value::as_str) == Some(&self.issuer) => {
                    let keys = metadata.get("jwks_uri").and_then(Value::as_str);
                    let keys = keys.ok_or("its metadata has no `jwks_uri`")?;
                    let keys = Url::parse(keys).map_err(|error| error.to_string())?;
                    // The keys' URL must be as secure as the issuer's.
                    if keys.scheme() != issuer.scheme() {
                        return Err("its `jwks_uri` has another scheme than the issuer".to_owned());
                    }
                    return Ok(keys);
                }
                Ok(_) => last = format!("the metadata at {place} is of another issuer"),
                Err(reason) => last = reason,
            }
        }
        Err(last)
    }

    async fn get(&self, url: Url) -> Result<Value, String> {
        let request = Request {
            method: Method::GET,
            url,
            headers: HeaderMap::new(),
            body: bytes::Bytes::new(),
        };
        let answer = self
            .client
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        if !answer.status().is_success() {
            return Err(format!("it answers with {}", answer.status()));
        }
        let body = answer.bytes().await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body).map_err(|error| error.to_string())
    }
}
