//! Errors of outgoing connections. Each cause is a variant, so that callers need not read text.

use std::error::Error as StdError;
use std::io;

use crate::UrlRefusal;

/// The wait that ended without an answer.
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
    /// The phase in words, for a message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connecting",
            Self::FirstByte => "waiting for the first byte",
            Self::Idle => "waiting for the next piece",
            Self::Total => "the whole exchange",
        }
    }
}

/// Why there is no (whole) answer. No URL in it: a query may hold a key.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The rules forbid the request; nothing was sent.
    #[error("refused: {0}")]
    Refused(#[from] UrlRefusal),
    /// The client cannot be set up.
    #[error("cannot set up HTTP: {0}")]
    Setup(String),
    /// The name has no address.
    #[error("no address for host `{host}`: {reason}")]
    Dns {
        /// The host looked up.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// A certificate or handshake was not acceptable.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// A deadline passed.
    #[error("timed out {} after {ms} ms", .phase.as_str())]
    Timeout {
        /// The wait that was too long.
        phase: DeadlinePhase,
        /// Its limit, in milliseconds.
        ms: u64,
    },
    /// The body is larger than allowed.
    #[error("the response is larger than {0} bytes")]
    TooLarge(u64),
    /// The connection broke, or the peer does not speak HTTP.
    #[error("connection broke: {0}")]
    Broken(String),
    /// A server took the request and answered with a redirect; this is what became of that.
    #[error("after a redirect: {0}")]
    Onward(Box<EgressError>),
}

impl EgressError {
    /// A word for programs and the trace.
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

/// The resolver's failure inside a client error, found again by [`classify`].
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct LookupFailed {
    pub(crate) host: String,
    pub(crate) reason: String,
}

pub(crate) fn classify(error: reqwest::Error, connect_ms: u64) -> EgressError {
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
        if let Some(found) = known(current) {
            return found;
        }
        let said = current.to_string();
        if !words.contains(&said) {
            words.push(said);
        }
        cause = current.source();
    }
    if error.is_connect() {
        // The outer ones only say that it was a connection.
        return EgressError::Connect(words.pop().unwrap_or_default());
    }
    EgressError::Broken(words.join(": "))
}

/// The cause that decides, if `error` is one.
fn known(error: &(dyn StdError + 'static)) -> Option<EgressError> {
    if let Some(lookup) = error.downcast_ref::<LookupFailed>() {
        return Some(EgressError::Dns {
            host: lookup.host.clone(),
            reason: lookup.reason.clone(),
        });
    }
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return Some(EgressError::Tls(tls.to_string()));
    }
    // An `io::Error` shows what it wraps only when asked.
    known(error.downcast_ref::<io::Error>()?.get_ref()?)
}
