//! The connections of a call. The runner reports them, and the trace records them with the call.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// One connection of a call, served or refused. It has no content and no URL: only host, rule and counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallConnection {
    /// The network path: `http`, `connect`, `socks5`, `wasi-http`, `guarded-client`, `declared-endpoint`.
    pub via: &'static str,
    /// The requested host name.
    pub host: String,
    /// The requested port; 0 if it could not be parsed.
    pub port: u16,
    /// The address connected to.
    pub address: Option<IpAddr>,
    /// The rule that allowed it.
    pub rule: Option<String>,
    /// It may reach the private network.
    pub private: bool,
    /// The proxy terminated its TLS.
    pub terminated: bool,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
    /// Names of the inserted secrets.
    pub secrets: Vec<Arc<str>>,
    /// Kinds of secrets that were found in it.
    pub findings: Vec<String>,
    /// Why it was refused or closed: a word, and a sentence.
    pub refused: Option<(&'static str, String)>,
}

/// The connections of a call: some individually, the rest as totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReachedConnections {
    /// The individual connections.
    pub connections: Vec<CallConnection>,
    /// Number of further served connections.
    pub more_connected: u64,
    /// Number of further refused connections.
    pub more_refused: u64,
    /// Bytes sent over the further connections.
    pub more_bytes_out: u64,
    /// Bytes received over the further connections.
    pub more_bytes_in: u64,
}

/// Collects the connections of one call. A runner gets it with the permit; clones share the same list.
#[derive(Debug, Clone, Default)]
pub struct ConnectionCollector(Arc<Mutex<ReachedConnections>>);

impl ConnectionCollector {
    /// Largest number of connections recorded individually for each call; further ones are totalled.
    pub const KEPT: usize = 64;

    /// Adds connections.
    pub fn add_connections(&self, more: ReachedConnections) {
        let mut reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reached.more_connected = reached.more_connected.saturating_add(more.more_connected);
        reached.more_refused = reached.more_refused.saturating_add(more.more_refused);
        reached.more_bytes_out = reached.more_bytes_out.saturating_add(more.more_bytes_out);
        reached.more_bytes_in = reached.more_bytes_in.saturating_add(more.more_bytes_in);
        for one in more.connections {
            if reached.connections.len() < Self::KEPT {
                reached.connections.push(one);
                continue;
            }
            match one.refused {
                Some(_) => reached.more_refused += 1,
                None => reached.more_connected += 1,
            }
            reached.more_bytes_out = reached.more_bytes_out.saturating_add(one.bytes_out);
            reached.more_bytes_in = reached.more_bytes_in.saturating_add(one.bytes_in);
        }
    }

    /// Returns the bytes sent so far, which a budget counts.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        let reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = reached.connections.iter().map(|one| one.bytes_out);
        each.fold(reached.more_bytes_out, u64::saturating_add)
    }

    /// Everything told so far.
    pub fn take_connections(&self) -> ReachedConnections {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
