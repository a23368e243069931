//! The settings of the connection, checked before anything connects.

use std::path::PathBuf;
use std::time::Duration;

use clawk_secrets::Secret;

/// The largest number of connections of one process.
const MAX_CONNECTIONS: usize = 100;
/// The longest time limit; the server stores it in 31 bits.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// The longest schema name that PostgreSQL does not truncate, bytes.
const MAX_SCHEMA_BYTES: usize = 63;

/// The settings of the connection and the limits of its use.
#[derive(Debug, Clone)]
pub struct Options {
    /// `postgres://USER@HOST:PORT/DATABASE`. It may hold a password only if the whole URL is a secret.
    pub url: Secret,
    /// The password, if the URL has none.
    pub password: Option<Secret>,
    /// How the server's certificate is checked.
    pub tls: TlsMode,
    /// A PEM file of certificate authorities that replaces the platform's.
    pub ca_file: Option<PathBuf>,
    /// The schema of our tables; created if missing.
    pub schema: String,
    /// The largest number of open connections; further operations wait.
    pub connections: usize,
    /// How long to wait for a connection, or for a place in the pool.
    pub connect_timeout: Duration,
    /// The time limit of one operation with all its statements.
    pub operation_timeout: Duration,
    /// How long a transaction may be idle, so that a suspended process does not hold its locks for longer. `None`: twice the
    /// operation's time limit.
    pub idle_timeout: Option<Duration>,
    /// Use the extension `vector` if the database has it, or if we may create it.
    pub pgvector: bool,
    /// Only read: nothing is migrated, and a replica is enough.
    pub read_only: bool,
}

/// How the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// A known authority signed the certificate, and it names the host.
    #[default]
    VerifyFull,
    /// A known authority signed the certificate; the host name is not checked.
    VerifyCa,
    /// No encryption. For a server on this machine only.
    Disable,
}

impl Options {
    /// The defaults, for the server at this URL.
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

    /// The first contradiction or impossible value, if any.
    pub(crate) fn find_fault(&self) -> Option<String> {
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
