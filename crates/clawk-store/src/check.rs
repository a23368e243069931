//! Verifies chains at the start, beginning at their marks.
//!
//! A mark records how many events of a chain were verified, and the hash of the last one. Marks are written at a clean shutdown and
//! after the verification at a start, so a start only verifies new events. The marked row itself is hashed again, for every chain
//! with new events and for the latest [`RECENT`] others. `clawk trace verify --state` verifies everything.

use std::path::Path;

use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, SessionId};
use clawk_trace::{Draft, FaultKind, HashBuffer, SessionChain};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::append::{digest_at, integer, unsigned_at, uuid_at};
use crate::error::StateError;

/// The number of chains without new events whose mark is checked.
const RECENT: i64 = 256;

struct SqliteChainRow {
    id: i64,
    session: SessionId,
    trace_id: uuid::Uuid,
    events: u64,
    head: Digest,
    verified: u64,
    verified_hash: Option<Digest>,
}

/// The first fault of a chain.
struct SqliteChainFault {
    sequence: u64,
    kind: FaultKind,
    detail: &'static str,
}

/// The first fault that a start finds in a chain.
pub(crate) struct BrokenChain {
    session: SessionId,
    found: SqliteChainFault,
}

impl std::fmt::Display for BrokenChain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { session, found } = self;
        let (sequence, code, detail) = (found.sequence, found.kind.code(), found.detail);
        write!(f, "session {session}, event {sequence}: {code} ({detail})")
    }
}

/// Verifies the new events of every chain and writes the marks.
pub(crate) fn verify_chains(
    connection: &Connection,
    state: &Path,
    database: &Path,
) -> Result<(), StateError> {
    let broken = first_broken(connection).map_err(StateError::database_error(database))?;
    if let Some(BrokenChain { session, found }) = broken {
        return Err(StateError::Broken {
            path: state.display().to_string(),
            session,
            sequence: found.sequence,
            kind: found.kind,
            detail: found.detail.to_owned(),
        });
    }
    if let Some(detail) = check_rows(connection).map_err(StateError::database_error(database))? {
        return Err(StateError::Unvouched {
            path: state.to_owned(),
            detail,
        });
    }
    mark_all(connection).map_err(StateError::database_error(database))
}

/// The first chain with a fault in its new events or its mark.
pub(crate) fn first_broken(connection: &Connection) -> rusqlite::Result<Option<BrokenChain>> {
    let mut scratch = HashBuffer::default();
    for chain in &to_verify(connection)? {
        if let Some(found) = walk_chain(connection, chain, &mut scratch)? {
            let session = chain.session;
            return Ok(Some(BrokenChain { session, found }));
        }
    }
    Ok(None)
}

/// Checks that the last row's number is the sum of all chains' lengths, since rows are numbered without gaps and never deleted.
/// Returns the fault.
pub(crate) fn check_rows(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let sql =
        "SELECT (SELECT coalesce(max(row), 0) FROM events), (SELECT coalesce(sum(events), 0) FROM sessions)";
    let (last, sum): (i64, i64) = connection.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok((last != sum).then(|| {
        format!(
            "the last event is row {last}, the sessions have {sum} events: a session or events are missing"
        )
    }))
}

/// Marks every chain as verified up to its head.
pub(crate) fn mark_all(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE sessions SET verified = events, verified_hash = head WHERE verified <> events",
        [],
    )?;
    Ok(())
}

fn to_verify(connection: &Connection) -> rusqlite::Result<Vec<SqliteChainRow>> {
    const COLUMNS: &str = "id, session, trace_id, events, head, verified, verified_hash";
    let mut chains = Vec::new();
    for sql in [
        format!("SELECT {COLUMNS} FROM sessions WHERE verified <> events"),
        format!(
            "SELECT {COLUMNS} FROM sessions WHERE verified = events AND events > 0 ORDER BY last DESC LIMIT {RECENT}"
        ),
    ] {
        let mut select = connection.prepare(&sql)?;
        let rows = select.query_map([], |row| {
            let verified_hash = match row.get_ref(6)? {
                rusqlite::types::ValueRef::Null => None,
                _ => Some(digest_at(row, 6)?),
            };
            Ok(SqliteChainRow {
                id: row.get(0)?,
                session: SessionId(uuid_at(row, 1)?),
                trace_id: uuid_at(row, 2)?,
                events: unsigned_at(row, 3)?,
                head: digest_at(row, 4)?,
                verified: unsigned_at(row, 5)?,
                verified_hash,
            })
        })?;
        for chain in rows {
            chains.push(chain?);
        }
    }
    Ok(chains)
}

/// Verifies a chain from the marked row on: every row's hash, its link to the previous row, and that the last row is the head.
fn walk_chain(
    connection: &Connection,
    known: &SqliteChainRow,
    scratch: &mut HashBuffer,
) -> rusqlite::Result<Option<SqliteChainFault>> {
    let fault = |sequence, kind, detail| {
        Ok(Some(SqliteChainFault {
            sequence,
            kind,
            detail,
        }))
    };
    if known.verified > known.events {
        let detail = "events that were verified before are missing";
        return fault(known.events, FaultKind::Gap, detail);
    }
    let from = known.verified.saturating_sub(1);
    let before = hash_before(connection, known.id, from)?;
    let Some(before) = before else {
        return fault(from, FaultKind::Gap, "the event before it is missing");
    };
    let mut chain = SessionChain {
        session: known.session,
        trace_id: known.trace_id,
        next_sequence: from,
        head: before,
    };
    let mut select = connection.prepare_cached(
        "SELECT sequence, at, kind, event_id, span, parent, payload, hash FROM events \
         WHERE session = ?1 AND sequence >= ?2 ORDER BY sequence",
    )?;
    let mut rows = select.query(params![known.id, integer(from)])?;
    while let Some(row) = rows.next()? {
        let expected = chain.next_sequence;
        if unsigned_at(row, 0)? != expected {
            return fault(expected, FaultKind::Gap, "the event is missing");
        }
        let time = Timestamp(row.get(1)?).to_string();
        let parent = match row.get_ref(5)? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(uuid_at(row, 5)?),
        };
        let draft = Draft {
            event_id: uuid_at(row, 3)?,
            span: uuid_at(row, 4)?,
            parent,
            timestamp: &time,
            event_type: row.get_ref(2)?.as_str()?,
            payload: row.get_ref(6)?.as_str()?,
        };
        if chain.append(&draft, scratch).hash != digest_at(row, 7)? {
            return fault(expected, FaultKind::BadHash, "the row is not what was hashed");
        }
        if expected + 1 == known.verified && known.verified_hash != Some(chain.head) {
            return fault(
                expected,
                FaultKind::BrokenLink,
                "it is not the event that was verified before",
            );
        }
    }
    Ok(wrong_end(known, &chain))
}

/// The hash of the event before `sequence`; `None` if that event is missing.
fn hash_before(connection: &Connection, session: i64, sequence: u64) -> rusqlite::Result<Option<Digest>> {
    let Some(before) = sequence.checked_sub(1) else {
        return Ok(Some(Digest::ZERO));
    };
    connection
        .prepare_cached("SELECT hash FROM events WHERE session = ?1 AND sequence = ?2")?
        .query_row(params![session, integer(before)], |row| digest_at(row, 0))
        .optional()
}

/// Checks that the chain ends where the session's row says.
fn wrong_end(known: &SqliteChainRow, found: &SessionChain) -> Option<SqliteChainFault> {
    if found.next_sequence != known.events {
        let detail = "events at the end are missing, or more than were recorded";
        return Some(SqliteChainFault {
            sequence: found.next_sequence.min(known.events),
            kind: FaultKind::Gap,
            detail,
        });
    }
    (found.head != known.head).then_some(SqliteChainFault {
        sequence: known.events.saturating_sub(1),
        kind: FaultKind::BrokenLink,
        detail: "it is not the head that was recorded",
    })
}
