//! The connections of a call. The runner reports them, and the trace has them with the call.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// One connection of a call, or one that was refused. No content, no URL: a place, a rule, counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallConnection {
    /// How it was asked for: `http`, `connect`, `socks5`, `wasi-http`, `guarded-client`, `declared-endpoint`.
    pub via: &'static str,
    /// The name asked for.
    pub host: String,
    /// The port asked for; 0 where none could be read.
    pub port: u16,
    /// The address connected to.
    pub address: Option<IpAddr>,
    /// The entry that let it pass.
    pub rule: Option<String>,
    /// It may go into the own network.
    pub private: bool,
    /// Its TLS ended at the proxy.
    pub terminated: bool,
    /// Bytes that left.
    pub bytes_out: u64,
    /// Bytes that came.
    pub bytes_in: u64,
    /// How long it lasted, milliseconds.
    pub duration_ms: u64,
    /// Names of secrets that were put in.
    pub secrets: Vec<Arc<str>>,
    /// Kinds of secrets that were found in it.
    pub findings: Vec<String>,
    /// Why it was refused or cut: a word, and a sentence.
    pub refused: Option<(&'static str, String)>,
}

/// Connections of a call: some one by one, the rest in sums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReachedConnections {
    /// One by one.
    pub connections: Vec<CallConnection>,
    /// Served beyond those.
    pub more_connected: u64,
    /// Refused beyond those.
    pub more_refused: u64,
    /// Bytes that left by them.
    pub more_bytes_out: u64,
    /// Bytes that came by them.
    pub more_bytes_in: u64,
}

/// Collects the connections of one call. A runner gets it with the permit; clones share the same list.
#[derive(Debug, Clone, Default)]
pub struct ConnectionCollector(Arc<Mutex<ReachedConnections>>);

impl ConnectionCollector {
    /// The most connections that are recorded one by one for each call; the others are summed up.
    pub const KEPT: usize = 64;

    /// Tells more of them.
    pub fn tell(&self, more: ReachedConnections) {
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

    /// Bytes that left so far: what a budget counts.
    #[must_use]
    pub fn bytes_out(&self) -> u64 {
        let reached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let each = reached.connections.iter().map(|one| one.bytes_out);
        each.fold(reached.more_bytes_out, u64::saturating_add)
    }

    /// Everything told so far.
    pub fn take(&self) -> ReachedConnections {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
