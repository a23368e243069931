//! Reads values from rows.

use clawk_proto::{Digest, MessageId, SessionId};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::PgFailure;

fn row_failure(what: &str) -> PgFailure {
    PgFailure::Schema(format!("a row of the state holds {what}"))
}

pub(super) fn read_unsigned(row: &Row, at: usize) -> Result<u64, PgFailure> {
    let value: i64 = row.try_get(at)?;
    u64::try_from(value).map_err(|_| row_failure("a negative count")) // silent-ok: the number says no more
}

pub(super) fn read_uuid(row: &Row, at: usize) -> Result<Uuid, PgFailure> {
    Uuid::from_slice(row.try_get(at)?).map_err(|_| row_failure("bytes that are no UUID")) // silent-ok: as said
}

pub(super) fn read_session(row: &Row, at: usize) -> Result<SessionId, PgFailure> {
    read_uuid(row, at).map(SessionId)
}

pub(super) fn read_message(row: &Row, at: usize) -> Result<MessageId, PgFailure> {
    read_uuid(row, at).map(MessageId)
}

pub(super) fn maybe_uuid(row: &Row, at: usize) -> Result<Option<Uuid>, PgFailure> {
    match row.try_get::<_, Option<&[u8]>>(at)? {
        None => Ok(None),
        Some(_) => read_uuid(row, at).map(Some),
    }
}

pub(super) fn read_digest(row: &Row, at: usize) -> Result<Digest, PgFailure> {
    let bytes: &[u8] = row.try_get(at)?;
    bytes
        .try_into()
        .map(Digest)
        .map_err(|_| row_failure("bytes that are no digest")) // silent-ok: as said
}

pub(super) fn maybe_digest(row: &Row, at: usize) -> Result<Option<Digest>, PgFailure> {
    match row.try_get::<_, Option<&[u8]>>(at)? {
        None => Ok(None),
        Some(_) => read_digest(row, at).map(Some),
    }
}

/// A text that came from outside.
pub(super) fn read_text(row: &Row, at: usize) -> Result<String, PgFailure> {
    String::from_utf8(row.try_get(at)?).map_err(|_| row_failure("bytes that are no text")) // silent-ok: as said
}

pub(super) fn maybe_text(row: &Row, at: usize) -> Result<Option<String>, PgFailure> {
    match row.try_get::<_, Option<&[u8]>>(at)? {
        None => Ok(None),
        Some(_) => read_text(row, at).map(Some),
    }
}

/// The server's integers are signed; our counts never reach their limit.
pub(super) fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A row limit as the server's integer.
pub(super) fn row_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
