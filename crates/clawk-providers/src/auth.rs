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

/// The manifest's `auth` setting. No secret is resolved before the first request.
#[derive(Debug)]
pub(crate) enum EndpointAuth {
    None,
    Bearer(LazySecret),
    Header(HeaderName, LazySecret),
    OAuth2(Box<OAuth2>),
}

impl EndpointAuth {
    /// Adds the credentials to `headers`.
    pub(crate) async fn apply_to_headers(
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
                format!("Bearer {}", oauth2.access_token(resolver).await?.expose()),
                &oauth2.key,
            ),
        };
        headers.insert(name, sensitive_header(&value, &key.name)?);
        Ok(())
    }

    /// Called when the server refused the credentials: drops the cached ones. Returns `true` if a second request with fresh ones
    /// should follow at once.
    pub(crate) fn forget_rejected(&self) -> bool {
        match self {
            Self::None => false,
            // The next attempt resolves the secret again, because it may have been rotated.
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
        // A store command may take seconds, so it runs on a blocking thread.
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

    async fn access_token(&self, resolver: &SecretResolver) -> Result<Secret, AttemptFault> {
        if let Some(token) = lock(&self.cached)
            .clone()
            .filter(|token| Instant::now() < token.good_until)
        {
            return Ok(token.secret);
        }
        let token = self.fetch_token(resolver).await?;
        *lock(&self.cached) = Some(token.clone());
        Ok(token.secret)
    }

    async fn fetch_token(&self, resolver: &SecretResolver) -> Result<Token, AttemptFault> {
        let pair = self.key.get(resolver).await?;
        let Some((id, secret)) = pair.expose().split_once(':') else {
            let message = format!(
                "secret `{}` must be `client_id:client_secret` for oauth2",
                pair.name()
            );
            return Err(AttemptFault::new(FaultKind::Auth, message));
        };
        resolver.add_derived_secret(&Secret::new(format!("{} (client_secret)", pair.name()), secret));
        let basic = STANDARD.encode(format!("{}:{}", form_encode(id), form_encode(secret)));
        resolver.add_derived_secret(&Secret::new(format!("{} (encoded)", pair.name()), basic.as_str()));
        let mut headers = HeaderMap::new();
        headers.insert(
            AUTHORIZATION,
            sensitive_header(&format!("Basic {basic}"), &self.key.name)?,
        );
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        );
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("application/json"));
        let mut body = "grant_type=client_credentials".to_owned();
        if let Some(scope) = &self.scope {
            body.push_str("&scope=");
            body.push_str(&form_encode(scope));
        }
        let (url, body) = (self.token_url.clone(), Bytes::from(body));
        let response = self
            .http_client(resolver)?
            .send(Request {
                method: Method::POST,
                url,
                headers,
                body,
            })
            .await;
        let response = response.map_err(|error| explain_token_fault(error.into()))?;
        let status = response.status();
        if !status.is_success() {
            let headers = response.headers().clone();
            let said = response.read_beginning(16 * 1024).await;
            return Err(explain_token_fault(AttemptFault::of_status(
                status.as_u16(),
                &headers,
                &String::from_utf8_lossy(&said),
            )));
        }
        let body = response
            .bytes()
            .await
            .map_err(|error| explain_token_fault(error.into()))?;
        let answer: TokenAnswer = serde_json::from_slice(&body)
            // silent-ok: the parser's message could quote the token
            .map_err(|_| {
                explain_token_fault(AttemptFault::malformed("the answer holds no `access_token`"))
            })?;
        let secret = Secret::new(format!("{} (access token)", self.key.name), answer.access_token);
        resolver.add_derived_secret(&secret);
        // Renew the token 30 seconds before it expires, so that it stays valid on the way; keep it at most for a day.
        let seconds = answer.expires_in.unwrap_or(300).min(86_400);
        let good_until = Instant::now() + Duration::from_secs(seconds.saturating_sub(30.min(seconds / 2)));
        Ok(Token { secret, good_until })
    }

    fn http_client(&self, resolver: &SecretResolver) -> Result<&EgressClient, AttemptFault> {
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
        let client = client.map_err(|error| explain_token_fault(error.into()))?;
        Ok(self.client.get_or_init(|| client))
    }
}

/// Explains a fault of the token endpoint. A 4xx status there means that the credentials are wrong.
fn explain_token_fault(fault: AttemptFault) -> AttemptFault {
    let kind = if fault.kind == FaultKind::Rejected {
        FaultKind::Auth
    } else {
        fault.kind
    };
    AttemptFault {
        kind,
        message: format!("no access token: {}", fault.message),
        // The text describes the token request, not the request to the model.
        cause: None,
        ..fault
    }
}

fn sensitive_header(value: &str, name: &str) -> Result<HeaderValue, AttemptFault> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        // silent-ok: the source has no further information
        AttemptFault::new(
            FaultKind::Auth,
            format!("secret `{name}` holds characters that no HTTP header can carry"),
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Encodes text as `application/x-www-form-urlencoded`.
fn form_encode(text: &str) -> String {
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
