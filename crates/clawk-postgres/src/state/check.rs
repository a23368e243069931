//! Verifies chains at the start, beginning at their marks.
//!
//! A mark records how many events of a chain were verified, and the hash of the last one. Marks are written at a clean shutdown and
//! after the verification at a start. The marked row itself is hashed again, for every chain with new events and for the latest
//! [`RECENT`] others.

use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, SessionId};
use clawk_trace::{Draft, HashBuffer, SessionChain};

use super::PgStateError;
use super::row::{self, read_unsigned, to_i64};
use crate::connect::PgConnection;
use crate::error::PgFailure;
use crate::pool::PgDatabase;

/// The number of chains without new events whose mark is checked.
const RECENT: i64 = 256;
/// The number of events of a chain read at once.
const PAGE: i64 = 2000;

struct PgChainRow {
    session: SessionId,
    trace_id: uuid::Uuid,
    events: u64,
    head: Digest,
    verified: u64,
    verified_hash: Option<Digest>,
}

/// Verifies the new events of every chain and writes the marks. Only the holder of the lease calls this.
pub(super) async fn verify_chains(database: &PgDatabase) -> Result<(), PgStateError> {
    if let Some(detail) = find_fault(database).await? {
        return Err(PgStateError::Broken(format!(
            "{detail}; nothing was started. Look with `clawk trace verify`, and keep the database as evidence"
        )));
    }
    Ok(database.write(mark_all).await?)
}

/// The first fault in a chain or in the rows; `None`: everything is correct.
pub(super) async fn find_fault(database: &PgDatabase) -> Result<Option<String>, PgStateError> {
    let chains = database.read(to_verify).await?;
    let mut scratch = HashBuffer::default();
    for known in &chains {
        if let Some((sequence, detail)) = walk_chain(database, known, &mut scratch).await? {
            return Ok(Some(format!(
                "session {}, event {sequence}: {detail}",
                known.session
            )));
        }
    }
    Ok(database.read(check_rows).await?)
}

/// Checks that the last row's number is the sum of all chains' lengths, since rows are numbered without gaps and never deleted.
/// Returns the fault.
async fn check_rows(session: &PgConnection) -> Result<Option<String>, PgFailure> {
    let sql = "SELECT (SELECT coalesce(max(row), 0) FROM events), (SELECT coalesce(sum(events), 0)::bigint FROM sessions), \
        (SELECT last_row FROM journal WHERE id = 1)";
    let Some(row) = session.query_first(sql, &[]).await? else {
        return Ok(None);
    };
    let (last, sum, said): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok((last != sum || last != said).then(|| {
        format!(
            "the last event is row {last}, the sessions have {sum} events, the journal says {said}: a session or events are missing"
        )
    }))
}

/// Marks every chain as verified up to its head.
pub(super) async fn mark_all(session: &PgConnection) -> Result<(), PgFailure> {
    // Locked first, as in every commit, because other hosts append at the same time.
    session
        .query_first("SELECT 1 FROM journal WHERE id = 1 FOR UPDATE", &[])
        .await?;
    let sql = "UPDATE sessions SET verified = events, verified_hash = head WHERE verified <> events";
    session.run(sql, &[]).await?;
    Ok(())
}

async fn to_verify(session: &PgConnection) -> Result<Vec<PgChainRow>, PgFailure> {
    const COLUMNS: &str = "session, trace_id, events, head, verified, verified_hash";
    let mut chains = Vec::new();
    for sql in [
        format!("SELECT {COLUMNS} FROM sessions WHERE verified <> events"),
        format!(
            "SELECT {COLUMNS} FROM sessions WHERE verified = events AND events > 0 ORDER BY last DESC LIMIT {RECENT}"
        ),
    ] {
        for found in session.query_rows(&sql, &[]).await? {
            chains.push(PgChainRow {
                session: row::read_session(&found, 0)?,
                trace_id: row::read_uuid(&found, 1)?,
                events: read_unsigned(&found, 2)?,
                head: row::read_digest(&found, 3)?,
                verified: read_unsigned(&found, 4)?,
                verified_hash: row::maybe_digest(&found, 5)?,
            });
        }
    }
    Ok(chains)
}

type PgChainFault = (u64, &'static str);

/// Verifies a chain from the marked row on: every row's hash, its link to the previous row, and that the last row is the head.
async fn walk_chain(
    database: &PgDatabase,
    known: &PgChainRow,
    scratch: &mut HashBuffer,
) -> Result<Option<PgChainFault>, PgStateError> {
    if known.verified > known.events {
        return Ok(Some((
            known.events,
            "events that were verified before are missing",
        )));
    }
    let from = known.verified.saturating_sub(1);
    let id: &[u8] = known.session.0.as_bytes();
    let head = database
        .read(async |session| {
            let Some(before) = from.checked_sub(1) else {
                return Ok(Some(Digest::ZERO));
            };
            let sql = "SELECT hash FROM events WHERE session = $1 AND sequence = $2";
            let found = session.query_first(sql, &[&id, &to_i64(before)]).await?;
            found.map(|found| row::read_digest(&found, 0)).transpose()
        })
        .await?;
    let Some(head) = head else {
        return Ok(Some((from, "the event before it is missing")));
    };
    let mut chain = SessionChain {
        session: known.session,
        trace_id: known.trace_id,
        next_sequence: from,
        head,
    };
    // Events appended during the check are not checked.
    while chain.next_sequence < known.events {
        let next = to_i64(chain.next_sequence);
        let sql = "SELECT sequence, at, kind, event_id, span, parent, payload, hash FROM events \
            WHERE session = $1 AND sequence >= $2 AND sequence < $3 ORDER BY sequence LIMIT $4";
        let page = database
            .read(async |session| {
                session
                    .query_rows(sql, &[&id, &next, &to_i64(known.events), &PAGE])
                    .await
            })
            .await?;
        if page.is_empty() {
            break;
        }
        for found in &page {
            if let Some(fault) = follow_row(found, known, &mut chain, scratch)? {
                return Ok(Some(fault));
            }
        }
    }
    if chain.next_sequence != known.events {
        return Ok(Some((chain.next_sequence, "events at the end are missing")));
    }
    Ok((chain.head != known.head).then_some((
        known.events.saturating_sub(1),
        "it is not the head that was recorded",
    )))
}

fn follow_row(
    found: &tokio_postgres::Row,
    known: &PgChainRow,
    chain: &mut SessionChain,
    scratch: &mut HashBuffer,
) -> Result<Option<PgChainFault>, PgFailure> {
    let expected = chain.next_sequence;
    if read_unsigned(found, 0)? != expected {
        return Ok(Some((expected, "the event is missing")));
    }
    let time = Timestamp(found.try_get(1)?).to_string();
    let draft = Draft {
        event_id: row::read_uuid(found, 3)?,
        span: row::read_uuid(found, 4)?,
        parent: row::maybe_uuid(found, 5)?,
        timestamp: &time,
        event_type: found.try_get(2)?,
        payload: found.try_get(6)?,
    };
    if chain.append(&draft, scratch).hash != row::read_digest(found, 7)? {
        return Ok(Some((expected, "the row is not what was hashed")));
    }
    if expected + 1 == known.verified && known.verified_hash != Some(chain.head) {
        return Ok(Some((expected, "it is not the event that was verified before")));
    }
    Ok(None)
}
