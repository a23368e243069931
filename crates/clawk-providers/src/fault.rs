//! Faults of an attempt, before they become errors of the kernel.

use clawk_egress::EgressError;
use clawk_kernel::ports::FaultKind;
use http::HeaderMap;
use serde_json::Value;

use crate::sse::TooLarge;

/// A failed attempt in this crate's words; [`crate::endpoint::Endpoint::error`] names the provider, redacts and shortens.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
    pub(crate) status: Option<u16>,
    pub(crate) retry_after_ms: Option<u64>,
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: None,
            retry_after_ms: None,
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

    /// From an HTTP status that is not success, with what the server said.
    pub(crate) fn of_status(status: u16, headers: &HeaderMap, body: &str) -> Self {
        let said = said(body);
        let kind = kind_of_status(status, &said);
        let hint = match (kind, status) {
            (FaultKind::Auth, _) => "; check the secret that `auth.secret_ref` names",
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
            retry_after_ms: retry_after_ms(headers),
        }
    }

    /// From an `error` member inside an answer or a stream.
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
        let kind = if too_long(&words) || too_long(&said) {
            FaultKind::ContextTooLong
        } else if let Some(status) = status {
            kind_of_status(status, &said)
        } else if has("rate_limit") || has("insufficient_quota") {
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
            ..Self::new(kind, message)
        }
    }
}

impl From<TooLarge> for Fault {
    fn from(error: TooLarge) -> Self {
        Self::malformed(error.to_string())
    }
}

impl From<EgressError> for Fault {
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

pub(crate) fn kind_of_status(status: u16, said: &str) -> FaultKind {
    match status {
        413 => FaultKind::ContextTooLong,
        // Some servers answer 500 to a prompt that does not fit; a retry would not mend it.
        400 | 422 | 500 if too_long(said) => FaultKind::ContextTooLong,
        401 | 403 => FaultKind::Auth,
        408 => FaultKind::Timeout,
        429 => FaultKind::RateLimited,
        500.. => FaultKind::ServerFault,
        _ => FaultKind::Rejected,
    }
}

fn too_long(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    [
        "context_length",
        "context length",
        "context size",
        "context window",
        "context_size",
        "maximum context",
        "prompt is too long",
        "too many tokens",
        "input is too long",
    ]
    .iter()
    .any(|words| said.contains(words))
}

/// The server's own words: of a JSON body its message, else the text.
fn said(body: &str) -> String {
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

/// `retry-after-ms`, or `retry-after` in seconds or as a date (measured from the server's own `date`); at most a day.
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
