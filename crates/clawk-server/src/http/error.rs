//! An HTTP error as the CRA API writes it: status, code and `Error`. `crate::error` decides which error gets which.

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::model;
use crate::access::Scope;
use crate::oauth::OAuth;

/// OpenAI client libraries repeat a failed request unless this header forbids it.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// An error response. `guard` writes its body, because only `guard` knows the request's id.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    code: &'static str,
    message: String,
    details: Map<String, Value>,
    request_id: Option<Uuid>,
    retry_after_ms: Option<u64>,
    /// The scope that the token lacks.
    lacking: Option<Scope>,
    /// The client library must not repeat the request.
    final_word: bool,
}

/// The format of an error body; the request's path decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorDialect {
    /// The format of the CRA API, and the default.
    Cra,
    /// The format of `/openai/v1`.
    OpenAi,
}

impl ErrorDialect {
    pub(crate) fn for_path(path: &str) -> Self {
        if path.starts_with(crate::openai::PREFIX) {
            Self::OpenAi
        } else {
            Self::Cra
        }
    }
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            details: Map::new(),
            request_id: None,
            retry_after_ms: None,
            lacking: None,
            final_word: false,
        }
    }

    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "a valid token is wanted: `Authorization: Bearer …` or `X-API-Key: …`";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn no_session(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            "session_not_found",
            format!("there is no session `{shown}`"),
        )
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path knows no such method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).after_ms(1_000)
    }

    pub(crate) fn too_many(code: &'static str, message: impl Into<String>, wait_ms: u64) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, code, message).after_ms(wait_ms)
    }

    /// An internal error. The log has the cause; the response does not.
    pub(crate) fn internal(cause: &str) -> Self {
        tracing::error!(cause, "a request failed for a reason of ours");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the request could not be answered",
        )
    }

    pub(crate) fn after_ms(mut self, wait_ms: u64) -> Self {
        self.retry_after_ms = Some(wait_ms);
        self
    }

    pub(crate) fn with_detail(mut self, key: &str, value: Value) -> Self {
        self.details.insert(key.to_owned(), value);
        self
    }

    /// Marks the error as final: the request was accepted or refused for good, and a repeated one would be a new request.
    pub(crate) const fn without_retry(mut self) -> Self {
        self.final_word = true;
        self
    }

    /// Adds the scope that the token lacks.
    pub(crate) const fn with_missing_scope(mut self, scope: Scope) -> Self {
        self.lacking = Some(scope);
        self
    }

    /// The message for people.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error body of `/openai/v1`.
    pub(crate) fn openai_body(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let param = self.details.get("param").cloned().unwrap_or_default();
        json!({"error": {"message": self.message, "type": kind, "param": param, "code": self.code}})
    }

    /// Makes this the answer to a CARP request.
    pub(crate) fn for_request(mut self, request_id: Uuid) -> Self {
        self.request_id = Some(request_id);
        self
    }

    /// The complete response.
    pub(crate) fn render_response(
        self,
        request_id: Uuid,
        dialect: ErrorDialect,
        asked: &ChallengedRequest<'_>,
    ) -> Response {
        let body = match dialect {
            ErrorDialect::OpenAi => axum::Json(self.openai_body()).into_response(),
            ErrorDialect::Cra => axum::Json(model::Error {
                error: model::ErrorBody {
                    code: self.code.to_owned(),
                    message: self.message,
                    details: self.details,
                    request_id: self.request_id.unwrap_or(request_id),
                },
            })
            .into_response(),
        };
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        if self.final_word {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if let Some(wait) = self.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(wait.div_ceil(1000).max(1)));
        }
        if self.status == StatusCode::UNAUTHORIZED || self.lacking.is_some() {
            let challenge = asked
                .oauth
                .map(|oauth| oauth.challenge_header(asked.path, asked.presented, self.lacking));
            let challenge = challenge.and_then(|text| HeaderValue::from_str(&text).ok()); // silent-ok: then the plain one
            headers.insert(
                WWW_AUTHENTICATE,
                challenge.unwrap_or_else(|| HeaderValue::from_static("Bearer")),
            );
        }
        if self.status == StatusCode::UPGRADE_REQUIRED {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The request that was refused; the challenge header depends on it.
#[derive(Debug)]
pub(crate) struct ChallengedRequest<'a> {
    /// The authorization server whose tokens are accepted.
    pub(crate) oauth: Option<&'a OAuth>,
    pub(crate) path: &'a str,
    /// The request had a token.
    pub(crate) presented: bool,
}

/// Writes the body of an error response. Keeps the `Allow` header of the router.
pub(crate) fn finish_refusal(
    mut response: Response,
    request_id: Uuid,
    dialect: ErrorDialect,
    asked: &ChallengedRequest<'_>,
) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else {
        return response;
    };
    let allow = response.headers_mut().remove(ALLOW);
    let mut rendered = error.render_response(request_id, dialect, asked);
    if let Some(allow) = allow {
        rendered.headers_mut().insert(ALLOW, allow);
    }
    rendered
}
