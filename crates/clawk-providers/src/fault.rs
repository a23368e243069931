//! Faults of one attempt, before they become kernel errors.

use clawk_core::ports::{FaultKind, RefusalCause};
use clawk_egress::EgressError;
use http::HeaderMap;
use serde_json::Value;

use crate::refusal::{cause_of, is_used_up};
use crate::sse::TooLarge;

/// A failed attempt in this crate's terms. [`crate::endpoint::Endpoint::provider_error`] adds the provider's name, redacts and shortens.
#[derive(Debug)]
pub(crate) struct AttemptFault {
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
    pub(crate) status: Option<u16>,
    pub(crate) retry_after_ms: Option<u64>,
    /// The cause that the server names, if a changed request may succeed.
    pub(crate) cause: Option<RefusalCause>,
}

impl AttemptFault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after_ms: None,
            cause: None,
        }
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(FaultKind::Malformed, message)
    }

    pub(crate) fn cut() -> Self {
        Self::new(FaultKind::Cut, "the stream ended before the answer did")
    }

    pub(crate) fn cancelled() -> Self {
        Self::new(FaultKind::Cancelled, "cancelled")
    }

    /// Makes a fault from an HTTP status that is not a success, and the response.
    pub(crate) fn of_status(status: u16, headers: &HeaderMap, body: &str) -> Self {
        let said = server_message(body);
        let (kind, cause) = classify_refusal(status, body);
        let used_up = matches!(status, 402 | 429) && is_used_up(body);
        let hint = match (kind, status) {
            (FaultKind::Auth, _) => "; check the secret that `auth.secret_ref` names",
            (FaultKind::Rejected, _) if used_up => {
                "; the account has nothing left: waiting does not help, add credit at the provider"
            }
            (FaultKind::Rejected, 404) => "; check `endpoint` and `model`",
            (FaultKind::Rejected, 300..=399) => "; redirects are not followed: write the final `endpoint`",
            (FaultKind::ContextTooLong, _) => "; the conversation is too long for this model",
            _ => "",
        };
        let message = match said.as_str() {
            "" => format!("HTTP {status}{hint}"),
            said => format!("HTTP {status}: {said}{hint}"),
        };
        Self {
            kind,
            message,
            status: Some(status),
            retry_after_ms: retry_after_ms(headers).or_else(|| retry_in_body(body)),
            cause,
        }
    }

    /// Makes a fault from an `error` member inside an answer or a stream.
    pub(crate) fn of_error_object(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default();
        let said = error.as_str().map_or_else(|| message_of(error), str::to_owned);
        let status = [error.get("code"), error.get("status")]
            .into_iter()
            .flatten()
            .find_map(Value::as_u64);
        let status = status
            .and_then(|status| u16::try_from(status).ok())
            .filter(|status| (400..600).contains(status));
        let words = format!("{} {}", text("type"), text("code"));
        let has = |word: &str| words.contains(word);
        let cause = cause_of(status, &error.to_string());
        let kind = if let Some(cause) = &cause {
            kind_of_cause(cause)
        } else if is_used_up(&error.to_string()) {
            FaultKind::Rejected
        } else if let Some(status) = status {
            kind_of_status(status)
        } else if has("rate_limit") {
            FaultKind::RateLimited
        } else if has("authentication") || has("permission") || has("invalid_api_key") {
            FaultKind::Auth
        } else if has("invalid_request") || has("not_found") || has("billing") {
            FaultKind::Rejected
        } else {
            FaultKind::ServerFault
        };
        let message = format!("the server reports an error: {} {said}", words.trim());
        Self {
            status,
            cause,
            ..Self::new(kind, message)
        }
    }
}

impl From<TooLarge> for AttemptFault {
    fn from(error: TooLarge) -> Self {
        Self::malformed(error.to_string())
    }
}

impl From<EgressError> for AttemptFault {
    fn from(error: EgressError) -> Self {
        let kind = match &error {
            EgressError::Refused(_) | EgressError::Setup(_) | EgressError::Onward(_) => FaultKind::Rejected,
            EgressError::Dns { .. } | EgressError::Connect(_) | EgressError::Tls(_) => FaultKind::Unreachable,
            EgressError::Timeout { .. } => FaultKind::Timeout,
            EgressError::TooLarge(_) => FaultKind::Malformed,
            EgressError::Broken(_) => FaultKind::Cut,
        };
        let hint = match &error {
            EgressError::Connect(_) => "; is the model's server running, and is `endpoint` its address?",
            EgressError::Dns { .. } => "; check `endpoint`",
            _ => "",
        };
        Self::new(kind, format!("{error}{hint}"))
    }
}

/// Returns the kind of a refusal with this status and body, and the cause that it names.
pub(crate) fn classify_refusal(status: u16, body: &str) -> (FaultKind, Option<RefusalCause>) {
    let cause = cause_of(Some(status), body);
    let kind = match &cause {
        Some(cause) => kind_of_cause(cause),
        None if matches!(status, 402 | 429) && is_used_up(body) => FaultKind::Rejected,
        None => kind_of_status(status),
    };
    (kind, cause)
}

const fn kind_of_cause(cause: &RefusalCause) -> FaultKind {
    match cause {
        RefusalCause::TooLong { .. } => FaultKind::ContextTooLong,
        RefusalCause::Parameter { .. }
        | RefusalCause::Roles
        | RefusalCause::CallIds
        | RefusalCause::ResponsesApi => FaultKind::Rejected,
    }
}

/// Returns the kind of a refusal that names no cause.
fn kind_of_status(status: u16) -> FaultKind {
    match status {
        401 | 403 => FaultKind::Auth,
        408 => FaultKind::Timeout,
        429 => FaultKind::RateLimited,
        500.. => FaultKind::ServerFault,
        _ => FaultKind::Rejected,
    }
}

/// Returns the server's message: the `message` of a JSON body, else the whole text.
fn server_message(body: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(body) else {
        return body.split_whitespace().collect::<Vec<_>>().join(" ");
    };
    let error = value.get("error").unwrap_or(&value);
    error.as_str().map_or_else(|| message_of(error), str::to_owned)
}

fn message_of(error: &Value) -> String {
    let text = |name: &str| error.get(name).and_then(Value::as_str);
    let message = text("message").or_else(|| text("detail"));
    let Some(message) = message else {
        return error.to_string();
    };
    match text("code").or_else(|| text("type")) {
        Some(code) => format!("{message} ({code})"),
        None => message.to_owned(),
    }
}

/// Reads the retry delay that Google's servers send in the body: `"retryDelay": "34s"`. In milliseconds.
fn retry_in_body(body: &str) -> Option<u64> {
    let (_, rest) = body.split_once("\"retryDelay\"")?;
    let (seconds, _) = rest.trim_start_matches([':', ' ', '"']).split_once('s')?;
    let seconds: f64 = seconds.parse().ok()?; // silent-ok: unreadable counts as absent
    let whole = jiff::SignedDuration::try_from_secs_f64(seconds.clamp(0.0, 86_400.0)).ok()?; // silent-ok: as above
    u64::try_from(whole.as_millis()).ok() // silent-ok: as above
}

/// Reads `retry-after-ms`, or `retry-after` in seconds or as a date (relative to the server's own `date`). Returns milliseconds, at
/// most a day.
fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    const DAY_MS: u64 = 86_400_000;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()); // silent-ok: unreadable counts as absent
    if let Some(ms) = text("retry-after-ms").and_then(|text| text.trim().parse::<u64>().ok()) {
        return Some(ms.min(DAY_MS));
    }
    let wish = text("retry-after")?.trim();
    if let Ok(seconds) = wish.parse::<u64>() {
        return Some(seconds.saturating_mul(1000).min(DAY_MS));
    }
    if let Some((whole, _)) = wish.split_once('.') {
        return whole
            .parse::<u64>()
            .ok()
            .map(|seconds| seconds.saturating_add(1).saturating_mul(1000).min(DAY_MS));
    }
    let date = |text: &str| jiff::fmt::rfc2822::parse(text).ok(); // silent-ok: unreadable counts as absent
    let wait = date(wish)?.timestamp().as_millisecond() - date(text("date")?)?.timestamp().as_millisecond();
    Some(u64::try_from(wait).unwrap_or(0).min(DAY_MS))
}
