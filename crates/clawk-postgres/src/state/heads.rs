//! Signed heads: the journal as an append-only Merkle tree, with a signed root over all events from time to time. This module does
//! not know the signer.

use clawk_kernel::ports::JournalError;
use clawk_kernel::time::Timestamp;
use clawk_proto::{Digest, SessionId};
use tokio_postgres::Row;

use super::queue::{ExtraWrite, PgWriterWork};
use super::row::{self, read_unsigned, row_limit, to_i64};
use super::{PgReader, PgState, PgStateError};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The number of hashes read at once.
const PAGE: i64 = 10_000;

/// A stored signed head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptHead {
    /// The number of events that it covers.
    pub size: u64,
    /// The tree's root.
    pub root: Digest,
    /// The roots of the tree's complete subtrees, 32 bytes each.
    pub peaks: Vec<u8>,
    /// When it was signed.
    pub at: Timestamp,
    /// The lines of a checkpoints file: first the tree's line, then the sessions'.
    pub lines: String,
}

/// A head to store.
#[derive(Debug)]
pub(super) struct NewHead(KeptHead);

/// The progress of the delivery of heads to a second location.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeadDelivery {
    /// The size of the last delivered head.
    pub size: u64,
    /// The number of failed attempts since the beginning.
    pub failures: u64,
    /// Why the last attempt failed; `None`: it succeeded.
    pub error: Option<String>,
}

/// The events after a head, in one snapshot.
#[derive(Debug, Default)]
pub struct ToSign {
    /// The events' hashes in row order.
    pub hashes: Vec<Digest>,
    /// The journal's last row.
    pub last_row: u64,
    /// The sessions with new events, latest first: their number of events and their head.
    pub sessions: Vec<(SessionId, u64, Digest)>,
}

pub(super) async fn insert_head(session: &PgConnection, NewHead(head): &NewHead) -> Result<(), PgFailure> {
    let sql =
        "INSERT INTO heads (size, root, peaks, at, lines) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    let root: &[u8] = &head.root.0;
    session
        .run(
            sql,
            &[&to_i64(head.size), &root, &head.peaks, &head.at.0, &head.lines],
        )
        .await?;
    Ok(())
}

pub(super) async fn note_delivery(
    session: &PgConnection,
    place: &str,
    sent: &HeadDelivery,
) -> Result<(), PgFailure> {
    let sql = "INSERT INTO deliveries (place, size, failures, error) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (place) DO UPDATE SET size = excluded.size, failures = excluded.failures, error = excluded.error";
    let error = sent.error.as_ref().map(|error| error.as_bytes());
    session
        .run(sql, &[&place, &to_i64(sent.size), &to_i64(sent.failures), &error])
        .await?;
    Ok(())
}

impl PgState {
    /// Stores a head.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn keep_head(&self, head: KeptHead) -> Result<(), JournalError> {
        self.run(PgWriterWork::Run(ExtraWrite::Head(NewHead(head)))).await
    }

    /// Records the result of a delivery to a second location.
    ///
    /// # Errors
    /// The journal can't be written.
    pub async fn note_delivery(&self, place: &str, sent: HeadDelivery) -> Result<(), JournalError> {
        self.run(PgWriterWork::Run(ExtraWrite::Sent(place.to_owned(), sent)))
            .await
    }
}

impl PgReader {
    /// Heads larger than `size`, oldest first.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn heads_after(&self, size: u64, limit: usize) -> Result<Vec<KeptHead>, PgStateError> {
        let sql = "SELECT size, root, peaks, at, lines FROM heads WHERE size > $1 ORDER BY size LIMIT $2";
        self.run_with_connection(async |session| {
            let rows = session
                .query_rows(sql, &[&to_i64(size), &row_limit(limit)])
                .await?;
            rows.iter().map(head_from_row).collect()
        })
        .await
    }

    /// The last head.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn last_head(&self) -> Result<Option<KeptHead>, PgStateError> {
        let sql = "SELECT size, root, peaks, at, lines FROM heads ORDER BY size DESC LIMIT 1";
        self.run_with_connection(async |session| {
            session
                .query_first(sql, &[])
                .await?
                .as_ref()
                .map(head_from_row)
                .transpose()
        })
        .await
    }

    /// The progress of the delivery to each second location.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn deliveries(&self) -> Result<Vec<(String, HeadDelivery)>, PgStateError> {
        let sql = "SELECT place, size, failures, error FROM deliveries ORDER BY place";
        self.run_with_connection(async |session| {
            let rows = session.query_rows(sql, &[]).await?;
            let one = |found: &Row| {
                let sent = HeadDelivery {
                    size: read_unsigned(found, 1)?,
                    failures: read_unsigned(found, 2)?,
                    error: row::maybe_text(found, 3)?,
                };
                Ok((found.try_get(0)?, sent))
            };
            rows.iter().map(one).collect()
        })
        .await
    }

    /// The events after a head of this size.
    ///
    /// # Errors
    /// The database can't be read.
    pub async fn to_sign(&self, size: u64, sessions: usize) -> Result<ToSign, PgStateError> {
        let after = to_i64(size);
        self.run_with_connection(async |session| {
            let mut found = ToSign::default();
            let mut at = after;
            loop {
                let sql = "SELECT hash, row FROM events WHERE row > $1 ORDER BY row LIMIT $2";
                let page = session.query_rows(sql, &[&at, &PAGE]).await?;
                let Some(last) = page.last() else { break };
                at = last.try_get(1)?;
                for one in &page {
                    found.hashes.push(row::read_digest(one, 0)?);
                }
            }
            found.last_row = super::read::last_row(session).await?;
            let sql = "SELECT session, events, head FROM sessions WHERE session IN (SELECT session FROM events WHERE row > $1) \
                ORDER BY last DESC, session DESC LIMIT $2";
            for one in session.query_rows(sql, &[&after, &row_limit(sessions)]).await? {
                let grown = (row::read_session(&one, 0)?, read_unsigned(&one, 1)?, row::read_digest(&one, 2)?);
                found.sessions.push(grown);
            }
            Ok(found)
        })
        .await
    }
}

fn head_from_row(found: &Row) -> Result<KeptHead, PgFailure> {
    Ok(KeptHead {
        size: read_unsigned(found, 0)?,
        root: row::read_digest(found, 1)?,
        peaks: found.try_get(2)?,
        at: Timestamp(found.try_get(3)?),
        lines: found.try_get(4)?,
    })
}
