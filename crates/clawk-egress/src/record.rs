//! The record of each connection for the trace: rule, address, bytes, duration. It never contains the transferred data.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The way in which a connection was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionMethod {
    /// Plain HTTP through the proxy.
    Http,
    /// `CONNECT`.
    Connect,
    /// SOCKS5.
    Socks,
    /// `wasi:http` of a WebAssembly guest.
    Guest,
    /// An HTTP client of clawk, for an address that an agent chose.
    Guarded,
    /// An HTTP client of clawk, for an endpoint that the operator declared.
    Declared,
}

impl ConnectionMethod {
    /// The name for the trace.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Connect => "connect",
            Self::Socks => "socks5",
            Self::Guest => "wasi-http",
            Self::Guarded => "guarded-client",
            Self::Declared => "declared-endpoint",
        }
    }
}

/// The record of one connection; also of a refused one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// How the connection was requested.
    pub via: ConnectionMethod,
    /// The requested host name, normalized if possible; at most 255 characters.
    pub host: String,
    /// The requested port; 0 if none could be parsed.
    pub port: u16,
    /// The address that the proxy connected to.
    pub address: Option<IpAddr>,
    /// The allow-list entry that allowed it.
    pub rule: Option<String>,
    /// Whether an entry allows this connection into a private network.
    pub private: bool,
    /// Whether TLS was terminated, so that requests and answers were visible.
    pub terminated: bool,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Time from the request to the end, in milliseconds.
    pub duration_ms: u64,
    /// Names of the inserted secrets.
    pub secrets: Vec<Arc<str>>,
    /// Findings of the screen that did not block the request.
    pub findings: Vec<String>,
    /// The reason why the connection was refused or cut; `None` if it ended normally.
    pub refused: Option<ConnectionDenial>,
}

/// The reason why a connection was refused or cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionDenial {
    /// A code for programs: `host`, `address`, `sni`, `smuggling`, …
    pub code: &'static str,
    /// The reason in words. It contains no URL and no header value.
    pub reason: String,
}

/// The connections of one call: the first [`ConnectionLedger::KEPT`] with details, the others as sums.
#[derive(Debug, Default)]
pub struct ConnectionLedger(Mutex<ConnectionReport>);

/// The result of [`ConnectionLedger::take_report`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionReport {
    /// Connections with details, ordered by their end.
    pub connections: Vec<ConnectionRecord>,
    /// Sums over the other connections.
    pub more: ConnectionTotals,
}

/// Sums over connections that are not listed one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionTotals {
    /// Connections that were served.
    pub connected: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
}

impl ConnectionReport {
    /// Bytes sent by all connections.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.connections
            .iter()
            .fold(self.more.bytes_out, |sum, one| sum.saturating_add(one.bytes_out))
    }
}

impl ConnectionLedger {
    /// How many connections are listed one by one.
    pub const KEPT: usize = 64;

    /// Adds a connection.
    pub fn add(&self, connection: ConnectionRecord) {
        let mut reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reached.connections.len() < Self::KEPT {
            reached.connections.push(connection);
            return;
        }
        let more = &mut reached.more;
        if connection.refused.is_some() {
            more.refused += 1;
        } else {
            more.connected += 1;
        }
        more.bytes_out = more.bytes_out.saturating_add(connection.bytes_out);
        more.bytes_in = more.bytes_in.saturating_add(connection.bytes_in);
    }

    /// Returns all records so far, and clears the ledger.
    pub fn take_report(&self) -> ConnectionReport {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The record of an open connection. It is written to the ledger when this is dropped.
pub(crate) struct OpenConnection {
    ledger: Arc<ConnectionLedger>,
    started: Instant,
    pub(crate) connection: ConnectionRecord,
    /// Bytes that a client of clawk sends. They are added to the record when the server has answered.
    pub(crate) sent: u64,
    pub(crate) counts: Arc<ByteCounters>,
}

/// Counters of the bytes of one connection.
#[derive(Debug, Default)]
pub(crate) struct ByteCounters {
    pub(crate) bytes_out: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
}

impl OpenConnection {
    pub(crate) fn new(ledger: Arc<ConnectionLedger>, via: ConnectionMethod) -> Self {
        Self {
            ledger,
            started: Instant::now(),
            connection: ConnectionRecord {
                via,
                host: String::new(),
                port: 0,
                address: None,
                rule: None,
                private: false,
                terminated: false,
                bytes_out: 0,
                bytes_in: 0,
                duration_ms: 0,
                secrets: Vec::new(),
                findings: Vec::new(),
                refused: None,
            },
            sent: 0,
            counts: Arc::default(),
        }
    }

    /// Notes the requested host. The name is shortened, because the tool chose it.
    pub(crate) fn set_requested(&mut self, host: &str, port: u16) {
        self.connection.host = host.chars().filter(|c| !c.is_control()).take(255).collect();
        self.connection.port = port;
    }

    pub(crate) fn record_refusal(&mut self, code: &'static str, reason: impl Into<String>) {
        let reason = reason.into().chars().take(400).collect();
        self.connection.refused = Some(ConnectionDenial { code, reason });
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut connection = self.connection.clone();
        connection.bytes_out = self.counts.bytes_out.load(Ordering::Relaxed);
        connection.bytes_in = self.counts.bytes_in.load(Ordering::Relaxed);
        connection.duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.ledger.add(connection);
    }
}
