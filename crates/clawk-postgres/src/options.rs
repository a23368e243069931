//! How the server is reached, checked before anything is connected.

use std::path::PathBuf;
use std::time::Duration;

use clawk_secrets::Secret;

/// Most connections of one process.
const MAX_CONNECTIONS: usize = 100;
/// The longest time limit; the server counts in 31 bits.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// The longest name of a schema that PostgreSQL keeps whole, bytes.
const MAX_SCHEMA_BYTES: usize = 63;

/// How the server is reached, and how much of it is used.
#[derive(Debug, Clone)]
pub struct Options {
    /// `postgres://USER@HOST:PORT/DATABASE`; with a password if it comes from a secret as a whole.
    pub url: Secret,
    /// The password, where the URL has none.
    pub password: Option<Secret>,
    /// Who the server must prove to be.
    pub tls: TlsMode,
    /// PEM certificates of the authorities that count instead of the platform's.
    pub ca_file: Option<PathBuf>,
    /// Our tables' schema; made when missing.
    pub schema: String,
    /// Connections open at once, at most; what needs one more waits.
    pub connections: usize,
    /// How long a connection, or a place in the pool, is waited for.
    pub connect_timeout: Duration,
    /// How long one operation may take, all its statements together.
    pub operation_timeout: Duration,
    /// How long a transaction may stand still: a process that sleeps in one keeps no lock for longer. `None`: twice the operation's time.
    pub idle_timeout: Option<Duration>,
    /// Use the extension `vector` where the database has it, or lets us add it.
    pub pgvector: bool,
    /// The server is asked, and never told: nothing is migrated, and a replica will do.
    pub read_only: bool,
}

/// Who the server must prove to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Its certificate comes from a known authority and names the host.
    #[default]
    VerifyFull,
    /// Its certificate comes from a known authority, whatever host it names.
    VerifyCa,
    /// No encryption. For a server on this machine only.
    Disable,
}

impl Options {
    /// The defaults, for this server.
    #[must_use]
    pub fn new(url: Secret) -> Self {
        Self {
            url,
            password: None,
            tls: TlsMode::default(),
            ca_file: None,
            schema: "clawk".to_owned(),
            connections: 8,
            connect_timeout: Duration::from_secs(5),
            operation_timeout: Duration::from_secs(10),
            idle_timeout: None,
            pgvector: true,
            read_only: false,
        }
    }

    /// What contradicts itself, or cannot be.
    pub(crate) fn fault(&self) -> Option<String> {
        let first = |c: char| c.is_ascii_lowercase() || c == '_';
        let plain = self.schema.starts_with(first)
            && self.schema.chars().all(|c| first(c) || c.is_ascii_digit())
            && self.schema.len() <= MAX_SCHEMA_BYTES
            && !self.schema.starts_with("pg_");
        if !plain {
            return Some(format!(
                "`{}` is not a valid name of a schema (example: `clawk`): lower-case letters, digits and `_`, at most \
                 {MAX_SCHEMA_BYTES} bytes, not beginning with `pg_`",
                self.schema.escape_debug()
            ));
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            return Some(format!(
                "{} connections; 1 to {MAX_CONNECTIONS} can be used",
                self.connections
            ));
        }
        let times = [self.connect_timeout, self.operation_timeout];
        if times.iter().any(|time| time.is_zero() || *time > MAX_TIMEOUT) {
            return Some(format!(
                "`connect_timeout_ms` and `operation_timeout_ms` must lie between 1 and {}",
                MAX_TIMEOUT.as_millis()
            ));
        }
        None
    }
}
