//! Errors without secrets: no message contains a URL or a password.

use clawk_kernel::ports::MemoryError;
use tokio_postgres::error::SqlState;

/// Why the server can't be used as configured. No connection was made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SetupError(pub(crate) String);

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum PgFailure {
    /// No connection is possible: the server and the reason.
    Away { server: String, why: String },
    /// All connections are in use.
    Busy { connections: usize },
    /// The operation exceeded its time limit.
    Late { milliseconds: u128 },
    /// The server refused the statement, or the connection broke.
    Database(tokio_postgres::Error),
    /// The connection broke during a commit: the commit may have happened.
    Unknown(String),
    /// Another process wrote the same key at the same time.
    Conflict(String),
    /// An entry does not fit the store: its index and the reason.
    Entry { index: usize, reason: String },
    /// Our tables do not exist yet.
    Absent(String),
    /// A later version made our tables, or they hold something unreadable.
    Schema(String),
}

impl From<tokio_postgres::Error> for PgFailure {
    fn from(error: tokio_postgres::Error) -> Self {
        let state = error.code();
        let race = [
            &SqlState::T_R_SERIALIZATION_FAILURE,
            &SqlState::T_R_DEADLOCK_DETECTED,
        ];
        if state.is_some_and(|state| race.contains(&state)) {
            return Self::Conflict("the same entries".to_owned());
        }
        Self::Database(error)
    }
}

impl PgFailure {
    /// The error as text for people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Away { server, why } => {
                format!("the PostgreSQL server at {server} can't be used: {why}")
            }
            Self::Busy { connections } => format!(
                "all {connections} connections to PostgreSQL are in use; raise `[postgres] connections`, or ask less at once"
            ),
            Self::Late { milliseconds } => {
                format!("PostgreSQL did not answer in {milliseconds} ms (`[postgres] operation_timeout_ms`)")
            }
            Self::Database(error) => error_text(error),
            Self::Unknown(why) => format!(
                "the connection to PostgreSQL broke at the commit, so it may or may not be written; the same request again is safe: {why}"
            ),
            Self::Conflict(what) => format!(
                "another writer changed {what} at the same time: nothing was written; read it and store again"
            ),
            Self::Entry { reason, .. } => reason.clone(),
            Self::Schema(why) | Self::Absent(why) => why.clone(),
        }
    }

    /// Whether the server is unreachable or restarting, so that a retry may succeed soon. Nothing was written, except perhaps with
    /// [`Self::Unknown`].
    pub(crate) fn is_away(&self) -> bool {
        match self {
            Self::Away { .. } | Self::Late { .. } | Self::Unknown(_) => true,
            Self::Database(error) => match error.code() {
                None => true,
                // Connection errors, a shutdown, a server that became a standby, and a transaction that was idle for too long.
                Some(state) => {
                    let code = state.code();
                    code.starts_with("08") || code.starts_with("57P") || ["25006", "25P03"].contains(&code)
                }
            },
            Self::Busy { .. }
            | Self::Conflict(_)
            | Self::Entry { .. }
            | Self::Schema(_)
            | Self::Absent(_) => false,
        }
    }

    /// Converts to the port's error; `writes`: the operation was a write.
    pub(crate) fn of_memory(self, writes: bool) -> MemoryError {
        let text = self.text();
        match self {
            Self::Entry { index, reason } => MemoryError::Entry { index, reason },
            Self::Conflict(_) => MemoryError::Conflict(text),
            Self::Database(error) if !writes && error.as_db_error().is_some() => MemoryError::Query(text),
            Self::Away { .. }
            | Self::Busy { .. }
            | Self::Late { .. }
            | Self::Database(_)
            | Self::Unknown(_)
            | Self::Schema(_)
            | Self::Absent(_) => MemoryError::Backend(text),
        }
    }
}

/// An error of the server or the connection in one line. The server's messages name tables and users, never the values that were
/// sent.
pub(crate) fn error_text(error: &tokio_postgres::Error) -> String {
    if let Some(database) = error.as_db_error() {
        return format!(
            "PostgreSQL says: {} ({})",
            database.message(),
            database.code().code()
        );
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
