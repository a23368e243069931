//! Errors of outgoing connections. Each cause is a variant, so that callers need not parse text.

use std::error::Error as StdError;
use std::io;

use crate::UrlRefusal;

/// The phase whose deadline passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadlinePhase {
    /// Name look-up, TCP and TLS.
    Connect,
    /// From the request to the response's head.
    FirstByte,
    /// Between two pieces of the body.
    Idle,
    /// The whole exchange.
    Total,
}

impl DeadlinePhase {
    /// The phase's name for a message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connecting",
            Self::FirstByte => "waiting for the first byte",
            Self::Idle => "waiting for the next piece",
            Self::Total => "the whole exchange",
        }
    }
}

/// The reason why there is no complete answer. It contains no URL, because a query may contain a key.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The rules forbid the request; nothing was sent.
    #[error("refused: {0}")]
    Refused(#[from] UrlRefusal),
    /// The client can't be set up.
    #[error("cannot set up HTTP: {0}")]
    Setup(String),
    /// The host name has no address.
    #[error("no address for host `{host}`: {reason}")]
    Dns {
        /// The host name.
        host: String,
        /// The resolver's message.
        reason: String,
    },
    /// Connecting failed.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The certificate or the handshake was rejected.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// A deadline passed.
    #[error("timed out {} after {ms} ms", .phase.as_str())]
    Timeout {
        /// The phase that took too long.
        phase: DeadlinePhase,
        /// Its limit, in milliseconds.
        ms: u64,
    },
    /// The body is larger than this limit, in bytes.
    #[error("the response is larger than {0} bytes")]
    TooLarge(u64),
    /// The connection broke, or the server does not speak HTTP.
    #[error("connection broke: {0}")]
    Broken(String),
    /// A server accepted the request and answered with a redirect. Following the redirect failed with this error.
    #[error("after a redirect: {0}")]
    Onward(Box<EgressError>),
}

impl EgressError {
    /// A short code for programs and the trace.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.code(),
            Self::Setup(_) => "setup",
            Self::Dns { .. } => "dns",
            Self::Connect(_) => "connect",
            Self::Tls(_) => "tls",
            Self::Timeout { .. } => "timeout",
            Self::TooLarge(_) => "too-large",
            Self::Broken(_) => "broken",
            Self::Onward(error) => error.code(),
        }
    }
}

/// Marks a resolver failure inside a client error, so that [`classify_error`] can find it.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct LookupFailed {
    pub(crate) host: String,
    pub(crate) reason: String,
}

pub(crate) fn classify_error(error: reqwest::Error, connect_ms: u64) -> EgressError {
    let error = error.without_url();
    if error.is_timeout() {
        return EgressError::Timeout {
            phase: DeadlinePhase::Connect,
            ms: connect_ms,
        };
    }
    let mut words = Vec::new();
    let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(current) = cause {
        if let Some(found) = known_cause(current) {
            return found;
        }
        let said = current.to_string();
        if !words.contains(&said) {
            words.push(said);
        }
        cause = current.source();
    }
    if error.is_connect() {
        // The outer errors only say that connecting failed; the innermost has the reason.
        return EgressError::Connect(words.pop().unwrap_or_default());
    }
    EgressError::Broken(words.join(": "))
}

/// Converts `error` if it is a known cause; `None` otherwise.
fn known_cause(error: &(dyn StdError + 'static)) -> Option<EgressError> {
    if let Some(lookup) = error.downcast_ref::<LookupFailed>() {
        return Some(EgressError::Dns {
            host: lookup.host.clone(),
            reason: lookup.reason.clone(),
        });
    }
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(EgressError::Tls(tls.to_string()));
    }
    // `io::Error` does not show its inner error as `source`, so get it explicitly.
    known_cause(error.downcast_ref::<io::Error>()?.get_ref()?)
}
