//! Authentication of requests to providers.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use clawk_core::ports::FaultKind;
use clawk_egress::{ClientDeadlines, EgressClient, Request, Url};
use clawk_secrets::{Secret, SecretResolver};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use tokio::time::Instant;

use crate::fault::AttemptFault;

/// The manifest's `auth`, made ready. Nothing is resolved until the first request.
#[derive(Debug)]
pub(crate) enum EndpointAuth {
    None,
    Bearer(LazySecret),
    Header(HeaderName, LazySecret),
    OAuth2(Box<OAuth2>),
}

impl EndpointAuth {
    /// Puts the proof into `headers`.
    pub(crate) async fn apply(
        &self,
        headers: &mut HeaderMap,
        resolver: &SecretResolver,
    ) -> Result<(), AttemptFault> {
        let (name, value, key) = match self {
            Self::None => return Ok(()),
            Self::Bearer(key) => (
                AUTHORIZATION,
                format!("Bearer {}", key.get(resolver).await?.expose()),
                key,
            ),
            Self::Header(name, key) => (name.clone(), key.get(resolver).await?.expose().to_owned(), key),
            Self::OAuth2(oauth2) => (
                AUTHORIZATION,
                format!("Bearer {}", oauth2.token(resolver).await?.expose()),
                &oauth2.key,
            ),
        };
        headers.insert(name, sensitive(&value, &key.name)?);
        Ok(())
    }

    /// The server did not accept the proof: forget it. `true` when a fresh one is worth a second request at once.
    pub(crate) fn rejected(&self) -> bool {
        match self {
            Self::None => false,
            // Resolved anew by the next attempt: it may have been rotated.
            Self::Bearer(key) | Self::Header(_, key) => {
                key.forget();
                false
            }
            Self::OAuth2(oauth2) => {
                oauth2.key.forget();
                lock(&oauth2.cached).take().is_some()
            }
        }
    }
}

/// A secret by reference, resolved at first use.
pub(crate) struct LazySecret {
    name: String,
    cached: Mutex<Option<Secret>>,
}

impl LazySecret {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            cached: Mutex::new(None),
        }
    }

    async fn get(&self, resolver: &SecretResolver) -> Result<Secret, AttemptFault> {
        if let Some(secret) = lock(&self.cached).clone() {
            return Ok(secret);
        }
        let (resolver, name) = (resolver.clone(), self.name.clone());
        // A store command may take seconds.
        let resolved = tokio::task::spawn_blocking(move || resolver.resolve(&name)).await;
        let secret = resolved
            .map_err(|error| AttemptFault::new(FaultKind::Auth, format!("secret look-up ended: {error}")))?
            .map_err(|error| AttemptFault::new(FaultKind::Auth, error.to_string()))?;
        *lock(&self.cached) = Some(secret.clone());
        Ok(secret)
    }

    fn forget(&self) {
        lock(&self.cached).take();
    }
}

impl fmt::Debug for LazySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.name)
    }
}

/// Client credentials (RFC 6749 §4.4): the secret is `client_id:client_secret`.
#[derive(Debug)]
pub(crate) struct OAuth2 {
    key: LazySecret,
    token_url: Url,
    scope: Option<String>,
    deadlines: ClientDeadlines,
    client: OnceLock<EgressClient>,
    cached: Mutex<Option<Token>>,
}

#[derive(Debug, Clone)]
struct Token {
    secret: Secret,
    good_until: Instant,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    expires_in: Option<u64>,
}

impl OAuth2 {
    pub(crate) fn new(
        secret_ref: &str,
        token_url: Url,
        scope: Option<String>,
        deadlines: ClientDeadlines,
    ) -> Self {
        let (client, cached) = (OnceLock::new(), Mutex::new(None));
        Self {
            key: LazySecret::new(secret_ref),
            token_url,
            scope,
            deadlines,
            client,
            cached,
        }
    }

    async fn token(&self, resolver: &SecretResolver) -> Result<Secret, AttemptFault> {
        if let Some(token) = lock(&self.cached)
            .clone()
            .filter(|token| Instant::now() < token.good_until)
        {
            return Ok(token.secret);
        }
        let token = self.fetch(resolver).await?;
        *lock(&self.cached) = Some(token.clone());
        Ok(token.secret)
    }

    async fn fetch(&self, resolver: &SecretResolver) -> Result<Token, AttemptFault> {
        let pair = self.key.get(resolver).await?;
        let Some((id, secret)) = pair.expose().split_once(':') else {
            let message = format!(
                "secret `{}` must be `client_id:client_secret` for oauth2",
                pair.name()
            );
            return Err(AttemptFault::new(FaultKind::Auth, message));
        };
        resolver.guard(&Secret::new(format!("{} (client_secret)", pair.name()), secret));
        let basic = STANDARD.encode(format!("{}:{}", form(id), form(secret)));
        resolver.guard(&Secret::new(format!("{} (encoded)", pair.name()), basic.as_str()));
        let mut headers = HeaderMap::new();
        headers.insert(
            AUTHORIZATION,
            sensitive(&format!("Basic {basic}"), &self.key.name)?,
        );
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        let mut body = "grant_type=client_credentials".to_owned();
        if let Some(scope) = &self.scope {
            body.push_str("&scope=");
            body.push_str(&form(scope));
        }
        let (url, body) = (self.token_url.clone(), Bytes::from(body));
        let response = self
            .client(resolver)?
            .send(Request {
                method: Method::POST,
                url,
                headers,
                body,
            })
            .await;
        let response = response.map_err(|error| explain(error.into()))?;
        let status = response.status();
        if !status.is_success() {
            let headers = response.headers().clone();
            let said = response.beginning(16 * 1024).await;
            return Err(explain(AttemptFault::of_status(
                status.as_u16(),
                &headers,
                &String::from_utf8_lossy(&said),
            )));
        }
        let body = response.bytes().await.map_err(|error| explain(error.into()))?;
        let answer: TokenAnswer = serde_json::from_slice(&body)
            // silent-ok: the parser's message could quote the token
            .map_err(|_| explain(AttemptFault::malformed("the answer holds no `access_token`")))?;
        let secret = Secret::new(format!("{} (access token)", self.key.name), answer.access_token);
        resolver.guard(&secret);
        // Half a minute early, so that it does not lapse on the way; at most a day.
        let seconds = answer.expires_in.unwrap_or(300).min(86_400);
        let good_until = Instant::now() + Duration::from_secs(seconds.saturating_sub(30.min(seconds / 2)));
        Ok(Token { secret, good_until })
    }

    fn client(&self, resolver: &SecretResolver) -> Result<&EgressClient, AttemptFault> {
        const TOKEN_ANSWER_MAX_BYTES: u64 = 256 * 1024;
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = EgressClient::for_provider(
            &self.token_url,
            resolver.env(),
            self.deadlines,
            TOKEN_ANSWER_MAX_BYTES,
        );
        let client = client.map_err(|error| explain(error.into()))?;
        Ok(self.client.get_or_init(|| client))
    }
}

/// A fault at the token endpoint: a 4xx there means the credentials.
fn explain(fault: AttemptFault) -> AttemptFault {
    let kind = if fault.kind == FaultKind::Rejected {
        FaultKind::Auth
    } else {
        fault.kind
    };
    AttemptFault {
        kind,
        message: format!("no access token: {}", fault.message),
        // Its words are about the token, not about the request to the model.
        cause: None,
        ..fault
    }
}

fn sensitive(value: &str, name: &str) -> Result<HeaderValue, AttemptFault> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        // silent-ok: the cause says no more than this
        AttemptFault::new(
            FaultKind::Auth,
            format!("secret `{name}` holds characters that no HTTP header can carry"),
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// `application/x-www-form-urlencoded`.
fn form(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'*' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
