//! Identifies the client by the headers of a request.

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

/// The header beside `Authorization: Bearer`.
const API_KEY: &str = "x-api-key";
/// Who asks where no tokens are configured.
pub(crate) const LOCAL: &str = "local";

/// The tokens in force and how often each was used lately. A reload replaces all of it at once.
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

    /// These tokens are no longer in force.
    pub(crate) fn retire(&self) {
        self.replaced.cancel();
    }

    /// Completes when these tokens are no longer in force.
    pub(crate) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }
}

/// When a stream must end, whatever it has still to tell: the server ends, or the token that opened it may be gone.
#[derive(Debug, Clone)]
pub(crate) struct StreamEndSignal {
    over: CancellationToken,
    access: Arc<ActiveTokens>,
}

impl StreamEndSignal {
    /// Of a stream that opens now.
    pub(crate) fn of(app: &HttpApp) -> Self {
        Self {
            over: app.over.clone(),
            access: app.access(),
        }
    }

    /// Completes then.
    pub(crate) async fn comes(&self) {
        tokio::select! {
            () = self.over.cancelled() => {}
            () = self.access.replaced() => {}
        }
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct HttpPrincipal {
    pub(crate) name: Arc<str>,
    /// Its place among the tokens.
    pub(crate) index: usize,
    rights: ClientRights,
    /// When its token is over, seconds since 1970; none: when the operator says so.
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

    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.rights.may(scope)
    }

    /// # Errors
    /// 403, which names the scope that is missing.
    pub(crate) fn needs(&self, scope: Scope) -> Result<(), ApiError> {
        if self.may(scope) {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "scope_missing",
            format!("this token lacks the scope `{}`", scope.name()),
        )
        .lacking(scope))
    }

    /// Whether it sees a session: its own; an admin all.
    pub(crate) fn owns(&self, owner: Option<&str>) -> bool {
        self.is_admin() || owner == Some(&*self.name)
    }
}

/// Who sends these headers.
///
/// # Errors
/// 401: no token, two different ones, or an unknown one; it doesn't say which. 503: the issuer of tokens can't be asked.
pub(crate) async fn principal(
    app: &HttpApp,
    access: &ActiveTokens,
    headers: &HeaderMap,
) -> Result<HttpPrincipal, ApiError> {
    if access.tokens.len() == 0 && app.options.oauth.is_none() {
        return Ok(HttpPrincipal::new(ClientRights::admin(LOCAL), 0));
    }
    let presented = presented(headers).ok_or_else(ApiError::unauthorized)?;
    holder(app, access, presented).await
}

/// Who holds this token: one of the table, or one of the authorization server's.
///
/// # Errors
/// As [`principal`].
pub(crate) async fn holder(
    app: &HttpApp,
    access: &ActiveTokens,
    presented: &[u8],
) -> Result<HttpPrincipal, ApiError> {
    if let Some((index, token)) = access.tokens.find(presented) {
        return Ok(HttpPrincipal::new(token.rights(), index));
    }
    let oauth = app.options.oauth.as_ref().ok_or_else(ApiError::unauthorized)?;
    let token = std::str::from_utf8(presented).map_err(|_| ApiError::unauthorized())?; // silent-ok: it is none
    match oauth.bearer(token, app.clock.now()).await {
        Ok(bearer) => {
            let index = access
                .limiter
                .shared(bearer.rights.name(), bearer.rights.is_admin());
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

/// The token's bytes; `None` when there is none, or the two headers disagree.
fn presented(headers: &HeaderMap) -> Option<&[u8]> {
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

/// When a principal's token is over, by the runtime's clock.
pub(crate) fn until(app: &HttpApp, principal: &HttpPrincipal) -> Option<Instant> {
    let left = principal.until_s?.saturating_mul(1000) - app.clock.now().as_millis();
    Some(Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0)))
}

/// Completes then; never without an end.
pub(crate) async fn over(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
