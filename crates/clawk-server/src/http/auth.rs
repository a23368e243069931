//! Identifies the client from the headers of a request.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::HttpApp;
use super::error::ApiError;
use super::limit::RequestLimiter;
use crate::access::{ClientRights, Scope, Token, Tokens};
use crate::oauth::TokenRefusal;

/// The header that may replace `Authorization: Bearer`.
const API_KEY: &str = "x-api-key";
/// The client's name when no tokens are configured.
pub(crate) const LOCAL: &str = "local";

/// The current tokens with their recent use. A reload replaces both at once.
#[derive(Debug)]
pub(crate) struct ActiveTokens {
    pub(crate) tokens: Tokens,
    pub(crate) limiter: RequestLimiter,
    replaced: CancellationToken,
}

impl ActiveTokens {
    pub(crate) fn new(tokens: Vec<Token>, requests_per_second: u32) -> Self {
        let tokens = Tokens::new(tokens);
        Self {
            limiter: RequestLimiter::new(requests_per_second, tokens.len()),
            tokens,
            replaced: CancellationToken::new(),
        }
    }

    /// Marks these tokens as replaced.
    pub(crate) fn retire(&self) {
        self.replaced.cancel();
    }

    /// Completes when these tokens have been replaced.
    pub(crate) async fn wait_replaced(&self) {
        self.replaced.cancelled().await;
    }
}

/// Ends a stream early: when the server stops, or when the token that opened the stream may be revoked.
#[derive(Debug, Clone)]
pub(crate) struct StreamEndSignal {
    over: CancellationToken,
    access: Arc<ActiveTokens>,
}

impl StreamEndSignal {
    /// The signal for a stream that opens now.
    pub(crate) fn for_app(app: &HttpApp) -> Self {
        Self {
            over: app.over.clone(),
            access: app.access(),
        }
    }

    /// Completes when the stream must end.
    pub(crate) async fn wait_end(&self) {
        tokio::select! {
            () = self.over.cancelled() => {}
            () = self.access.wait_replaced() => {}
        }
    }
}

/// The client of a request.
#[derive(Debug, Clone)]
pub(crate) struct HttpPrincipal {
    pub(crate) name: Arc<str>,
    /// Its index among the tokens.
    pub(crate) index: usize,
    rights: ClientRights,
    /// When its token expires, seconds since 1970; `None`: when the operator removes it.
    pub(crate) until_s: Option<i64>,
}

impl HttpPrincipal {
    fn new(rights: ClientRights, index: usize) -> Self {
        Self {
            name: rights.shared_name(),
            index,
            rights,
            until_s: None,
        }
    }

    /// The holder of a token of the table.
    #[cfg(test)]
    pub(crate) fn of_token(token: &Token) -> Self {
        Self::new(token.rights(), 0)
    }

    /// What it may do.
    pub(crate) fn rights(&self) -> ClientRights {
        self.rights.clone()
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.rights.is_admin()
    }

    pub(crate) fn has_scope(&self, scope: Scope) -> bool {
        self.rights.has_scope(scope)
    }

    /// Checks that the client has a scope.
    ///
    /// # Errors
    /// 403, which names the missing scope.
    pub(crate) fn require_scope(&self, scope: Scope) -> Result<(), ApiError> {
        if self.has_scope(scope) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "scope_missing",
            format!("this token lacks the scope `{}`", scope.name()),
        )
        .with_missing_scope(scope))
    }

    /// Whether the client may see a session: its own; an admin sees all.
    pub(crate) fn may_see_session(&self, owner: Option<&str>) -> bool {
        self.is_admin() || owner == Some(&*self.name)
    }
}

/// Identifies the sender of these headers.
///
/// # Errors
/// 401: no token, two different ones, or an unknown one; the answer does not say which. 503: the token issuer can't be reached.
pub(crate) async fn authenticate_headers(
    app: &HttpApp,
    access: &ActiveTokens,
    headers: &HeaderMap,
) -> Result<HttpPrincipal, ApiError> {
    if access.tokens.len() == 0 && app.options.oauth.is_none() {
        return Ok(HttpPrincipal::new(ClientRights::for_admin(LOCAL), 0));
    }
    let presented = presented_token(headers).ok_or_else(ApiError::unauthorized)?;
    authenticate_token(app, access, presented).await
}

/// Finds the client with this token, in the table or at the authorization server.
///
/// # Errors
/// As [`authenticate_headers`].
pub(crate) async fn authenticate_token(
    app: &HttpApp,
    access: &ActiveTokens,
    presented: &[u8],
) -> Result<HttpPrincipal, ApiError> {
    if let Some((index, token)) = access.tokens.find_token(presented) {
        return Ok(HttpPrincipal::new(token.rights(), index));
    }
    let oauth = app.options.oauth.as_ref().ok_or_else(ApiError::unauthorized)?;
    let token = std::str::from_utf8(presented).map_err(|_| ApiError::unauthorized())?; // silent-ok: it is none
    match oauth.identify_bearer(token, app.clock.now()).await {
        Ok(bearer) => {
            let index = access
                .limiter
                .shared_bucket(bearer.rights.name(), bearer.rights.is_admin());
            let until_s = Some(bearer.until_s);
            Ok(HttpPrincipal {
                until_s,
                ..HttpPrincipal::new(bearer.rights, index)
            })
        }
        Err(fault @ TokenRefusal::Token(_)) => {
            tracing::debug!(%fault, "a token of the authorization server was refused");
            Err(ApiError::unauthorized())
        }
        Err(fault @ TokenRefusal::Issuer(_)) => {
            tracing::warn!(%fault, "a token could not be looked at");
            Err(ApiError::unavailable("the authorization server does not answer"))
        }
    }
}

/// The token's bytes; `None` if there is none, or if the two headers differ.
fn presented_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut bearers = headers.get_all(AUTHORIZATION).iter();
    let bearer = bearers.next().map(http::HeaderValue::as_bytes);
    let mut keys = headers.get_all(API_KEY).iter();
    let key = keys.next().map(http::HeaderValue::as_bytes);
    if bearers.next().is_some() || keys.next().is_some() {
        return None;
    }
    let bearer = match bearer {
        Some(value) => {
            let (scheme, rest) = value.split_at_checked(7)?;
            if !scheme.eq_ignore_ascii_case(b"bearer ") {
                return None;
            }
            Some(rest.trim_ascii())
        }
        None => None,
    };
    match (bearer, key) {
        (Some(bearer), Some(key)) => Some(bearer).filter(|_| bearer == key),
        (one, other) => one.or(other),
    }
}

/// When the client's token expires, by the runtime's clock.
pub(crate) fn token_deadline(app: &HttpApp, principal: &HttpPrincipal) -> Option<Instant> {
    let left = principal.until_s?.saturating_mul(1000) - app.clock.now().as_millis();
    Some(Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0)))
}

/// Completes at that time; never for `None`.
pub(crate) async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
