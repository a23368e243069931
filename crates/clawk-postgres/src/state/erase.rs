//! Erases content. The bytes are deleted in the commit of the event that records it. The chain stays intact, because it contains
//! only digests.

use std::collections::BTreeSet;

use clawk_kernel::ports::{Batch, JournalError};
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, SessionId};

use super::queue::{ExtraWrite, PgWriterWork};
use super::row::{self, read_unsigned, to_i64};
use super::{PgReader, PgState, PgStateError};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// An event whose content is to be erased: row, session and digest.
pub type ErasedReference = (u64, SessionId, Digest);

/// Contents to be removed.
#[derive(Debug, Clone, Default)]
pub struct ContentRemoval {
    /// The digests of the contents.
    pub digests: Vec<Digest>,
    /// Content is kept if an event after this row refers to it.
    pub upto: u64,
    /// The position of the expiry.
    pub mark: Option<u64>,
}

pub(super) async fn remove(session: &PgConnection, removal: &ContentRemoval) -> Result<(), PgFailure> {
    let digests: Vec<&[u8]> = removal.digests.iter().map(|digest| digest.0.as_slice()).collect();
    let sql = "DELETE FROM contents c WHERE c.digest = ANY ($1) \
        AND NOT EXISTS (SELECT 1 FROM events e WHERE e.content_digest = c.digest AND e.row > $2)";
    session.run(sql, &[&digests, &to_i64(removal.upto)]).await?;
    if let Some(mark) = removal.mark {
        let sql = "INSERT INTO marks (name, value) VALUES ('expired', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        session.run(sql, &[&to_i64(mark)]).await?;
    }
    Ok(())
}

impl PgState {
    /// Removes contents in the same commit as the event that records it.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn remove(&self, record: Batch, removal: ContentRemoval) -> Result<(), JournalError> {
        self.run(PgWriterWork::AppendAnd(record, ExtraWrite::Remove(removal)))
            .await
    }
}

impl PgReader {
    /// Events with content: of a session, of one of its events, with one digest. Absent conditions hold for all. The reasons of erasures
    /// are found by their event or digest alone.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn with_content(
        &self,
        of: Option<SessionId>,
        sequence: Option<u64>,
        digest: Option<Digest>,
    ) -> Result<Vec<ErasedReference>, PgStateError> {
        let of = of.map(|session| session.0.as_bytes().to_vec());
        let (sequence, digest) = (sequence.map(to_i64), digest.map(|digest| digest.0.to_vec()));
        let sql = "SELECT row, session, content_digest FROM events WHERE content_digest IS NOT NULL \
            AND ($1::bytea IS NULL OR session = $1) AND ($2::bigint IS NULL OR sequence = $2) \
            AND ($3::bytea IS NULL OR content_digest = $3) \
            AND ($2::bigint IS NOT NULL OR $3::bytea IS NOT NULL OR kind <> 'ckp.content.redacted') ORDER BY row";
        self.run_with_connection(async |session| {
            let rows = session.query_rows(sql, &[&of, &sequence, &digest]).await?;
            rows.iter().map(erased_reference).collect()
        })
        .await
    }

    /// Those of the digests to which something outside the scope refers: another session, a later time, or a row after `upto`.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn referred_elsewhere(
        &self,
        digests: &[Digest],
        of: Option<SessionId>,
        before: Option<Timestamp>,
        upto: u64,
    ) -> Result<BTreeSet<Digest>, PgStateError> {
        let digests: Vec<&[u8]> = digests.iter().map(|digest| digest.0.as_slice()).collect();
        let of = of.map(|session| session.0.as_bytes().to_vec());
        let before = before.map(|time| time.0);
        let sql = "SELECT DISTINCT content_digest FROM events WHERE content_digest = ANY ($1) AND (row > $4 \
            OR ($2::bytea IS NOT NULL AND session <> $2) OR ($3::bigint IS NOT NULL AND at >= $3))";
        self.run_with_connection(async |session| {
            let rows = session
                .query_rows(sql, &[&digests, &of, &before, &to_i64(upto)])
                .await?;
            rows.iter().map(|found| row::read_digest(found, 0)).collect()
        })
        .await
    }

    /// The next events after the position of the expiry, at most `limit`, that are older than `time`. Returns those with content,
    /// the last row, and whether more may follow.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn expired_events(
        &self,
        time: Timestamp,
        limit: i64,
    ) -> Result<(Vec<ErasedReference>, Option<u64>, bool), PgStateError> {
        self.run_with_connection(async |session| {
            let sql = "SELECT coalesce((SELECT value FROM marks WHERE name = 'expired'), 0)";
            let mark: i64 = session.query_value(sql, &[]).await?;
            let sql =
                "SELECT row, session, content_digest, at FROM events WHERE row > $1 ORDER BY row LIMIT $2";
            let rows = session.query_rows(sql, &[&mark, &limit]).await?;
            let (mut due, mut last, mut seen) = (Vec::new(), None, 0);
            for found in &rows {
                if found.try_get::<_, i64>(3)? >= time.0 {
                    return Ok((due, last, false));
                }
                seen += 1;
                last = Some(read_unsigned(found, 0)?);
                if row::maybe_digest(found, 2)?.is_some() {
                    due.push(erased_reference(found)?);
                }
            }
            Ok((due, last, seen == limit))
        })
        .await
    }
}

fn erased_reference(found: &tokio_postgres::Row) -> Result<ErasedReference, PgFailure> {
    Ok((
        read_unsigned(found, 0)?,
        row::read_session(found, 1)?,
        row::read_digest(found, 2)?,
    ))
}
