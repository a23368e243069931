//! Asks the issuer about a token (RFC 7662). Each answer is cached for a minute, by the token's digest.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clawk_egress::{EgressClient, EgressError, Request};
use clawk_secrets::EnvironmentSource;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

use super::{IntrospectionEndpoint, TokenRefusal, client_for, jwt};

/// How long an answer is cached, by a monotonic clock: a revoked token works no longer than this.
const KEPT: Duration = Duration::from_secs(60);
/// The largest number of cached answers.
const MAX_KEPT: usize = 1_024;
/// The largest number of simultaneous requests to the issuer.
const MAX_ASKED: usize = 16;

type IntrospectionCache = HashMap<[u8; 32], (Instant, Option<Value>)>;

/// Asks the issuer about tokens.
pub(super) struct TokenIntrospector {
    whom: IntrospectionEndpoint,
    client: EgressClient,
    kept: Mutex<IntrospectionCache>,
    places: Semaphore,
}

impl TokenIntrospector {
    pub(super) fn new(whom: IntrospectionEndpoint, env: &EnvironmentSource) -> Result<Self, EgressError> {
        Ok(Self {
            client: client_for(&whom.url, env)?,
            whom,
            kept: Mutex::default(),
            places: Semaphore::new(MAX_ASKED),
        })
    }

    /// Returns the claims of an active token.
    pub(super) async fn fetch_claims(&self, token: &str) -> Result<Value, TokenRefusal> {
        let visible = |byte: u8| byte.is_ascii_graphic();
        if token.is_empty() || token.len() > jwt::MAX_BYTES || !token.bytes().all(visible) {
            return Err(TokenRefusal::Token("it is not a token"));
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let now = Instant::now();
        let holds = |(at, _): &(Instant, Option<Value>)| now.duration_since(*at) < KEPT;
        let known = self
            .kept
            .lock()
            .await
            .get(&digest)
            .filter(|kept| holds(kept))
            .cloned();
        let claims = match known {
            Some((_, claims)) => claims,
            None => {
                let Ok(_place) = self.places.acquire().await else {
                    return Err(TokenRefusal::Issuer("too many questions".to_owned()));
                };
                let claims = self.introspect_token(token).await.map_err(TokenRefusal::Issuer)?;
                let mut kept = self.kept.lock().await;
                kept.retain(|_, kept| holds(kept));
                if kept.len() < MAX_KEPT {
                    kept.insert(digest, (now, claims.clone()));
                }
                claims
            }
        };
        claims.ok_or(TokenRefusal::Token("the issuer says that it is not active"))
    }

    async fn introspect_token(&self, token: &str) -> Result<Option<Value>, String> {
        let percent = |text: &str| -> String { form_encode(text) };
        let (id, secret) = (
            percent(&self.whom.client_id),
            percent(self.whom.secret.expose().trim()),
        );
        let basic = format!("Basic {}", STANDARD.encode(format!("{id}:{secret}")));
        let mut basic = HeaderValue::from_str(&basic).map_err(|error| error.to_string())?;
        basic.set_sensitive(true);
        let headers = HeaderMap::from_iter([
            (AUTHORIZATION, basic),
            (
                CONTENT_TYPE,
                HeaderValue::from_static("application/x-www-form-urlencoded"),
            ),
            (ACCEPT, HeaderValue::from_static("application/json")),
        ]);
        let request = Request {
            method: Method::POST,
            url: self.whom.url.clone(),
            headers,
            body: format!("token={}&token_type_hint=access_token", percent(token)).into(),
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
        let said: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        Ok((said.get("active") == Some(&Value::Bool(true))).then_some(said))
    }
}

/// Encodes text as `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
