//! What became of each connection, for the trace: by which rule, to which address, how much, how long. Never what was said.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How a connection was asked for.
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
    /// A client of ours, for an address that an agent chose.
    Guarded,
    /// A client of ours, for an endpoint that the operator declared.
    Declared,
}

impl ConnectionMethod {
    /// The word for the trace.
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

/// One connection, or one that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// How it was asked for.
    pub via: ConnectionMethod,
    /// The name asked for, in normal form where it has one; at most 255 characters.
    pub host: String,
    /// The port asked for; 0 where none could be read.
    pub port: u16,
    /// The address connected to.
    pub address: Option<IpAddr>,
    /// The entry that let it pass.
    pub rule: Option<String>,
    /// An entry allows the connection into the own network.
    pub private: bool,
    /// Its TLS ends here, so that requests and answers were seen.
    pub terminated: bool,
    /// Bytes that left.
    pub bytes_out: u64,
    /// Bytes that came.
    pub bytes_in: u64,
    /// From the request to its end, milliseconds.
    pub duration_ms: u64,
    /// Names of secrets that were put in.
    pub secrets: Vec<Arc<str>>,
    /// What the screen found and did not block.
    pub findings: Vec<String>,
    /// Why it was refused or ended; `None` for an ordinary end.
    pub refused: Option<ConnectionDenial>,
}

/// Why a connection was not served, or cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionDenial {
    /// A word for programs: `host`, `address`, `sni`, `smuggling`, …
    pub code: &'static str,
    /// For people. No URL, no header value.
    pub reason: String,
}

/// Connections of one call: the first [`ConnectionLedger::KEPT`] one by one, the rest in sums.
#[derive(Debug, Default)]
pub struct ConnectionLedger(Mutex<ConnectionReport>);

/// What [`ConnectionLedger::take`] gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionReport {
    /// One by one, in the order of their ends.
    pub connections: Vec<ConnectionRecord>,
    /// Connections beyond those that are listed one by one.
    pub more: ConnectionTotals,
}

/// Sums over connections that are not told one by one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionTotals {
    /// Connections that were served.
    pub connected: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Their bytes out.
    pub bytes_out: u64,
    /// Their bytes in.
    pub bytes_in: u64,
}

impl ConnectionReport {
    /// Bytes that left by all of them.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        self.connections
            .iter()
            .fold(self.more.bytes_out, |sum, one| sum.saturating_add(one.bytes_out))
    }
}

impl ConnectionLedger {
    /// How many connections are told one by one.
    pub const KEPT: usize = 64;

    /// Adds one.
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

    /// Everything so far; the ledger begins anew.
    pub fn take(&self) -> ConnectionReport {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A connection at work: written to the ledger when it is dropped, however it ends.
pub(crate) struct OpenConnection {
    ledger: Arc<ConnectionLedger>,
    started: Instant,
    pub(crate) connection: ConnectionRecord,
    /// What a client of ours sends, counted when the server has answered.
    pub(crate) sent: u64,
    pub(crate) counts: Arc<ByteCounters>,
}

/// Bytes of one connection.
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

    /// The requested host, shortened, because the tool chose it.
    pub(crate) fn asked(&mut self, host: &str, port: u16) {
        self.connection.host = host.chars().filter(|c| !c.is_control()).take(255).collect();
        self.connection.port = port;
    }

    pub(crate) fn refuse(&mut self, code: &'static str, reason: impl Into<String>) {
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
