//! Reads one session's chain by sequence number, for readers outside the kernel.

use clawk_proto::SessionId;
use clawk_proto::trace::SealedEvent;
use clawk_trace::VerificationReport;
use rusqlite::types::ToSql;

use crate::append::{integer, unsigned_at};
use crate::dir::StateDir;
use crate::error::StateError;
use crate::reader::{StateDirReader, stored};

impl StateDirReader {
    /// Events of a chain from sequence number `since` on, in order, at most `limit`. If `kinds` is not empty, only these types. The
    /// index on chain and sequence finds the first one.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn chain(
        &self,
        session: SessionId,
        since: u64,
        kinds: &[String],
        limit: usize,
    ) -> Result<Vec<SealedEvent>, StateError> {
        let mut sql =
            "SELECT e.row, s.session, s.trace_id, e.sequence, e.at, e.kind, e.event_id, e.span, e.parent, \
             e.payload, e.hash, e.content_digest, \
             (SELECT p.hash FROM events p WHERE p.session = e.session AND p.sequence = e.sequence - 1) \
             FROM sessions s CROSS JOIN events e ON e.session = s.id \
             WHERE s.session = ?1 AND e.sequence >= ?2"
                .to_owned();
        let (session, since) = (session.0.into_bytes(), integer(since));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut values: Vec<&dyn ToSql> = vec![&session, &since, &limit];
        if !kinds.is_empty() {
            let places: Vec<String> = (4..4 + kinds.len()).map(|n| format!("?{n}")).collect();
            sql.push_str(&format!(" AND e.kind IN ({})", places.join(",")));
            values.extend(kinds.iter().map(|kind| kind as &dyn ToSql));
        }
        sql.push_str(" ORDER BY e.sequence LIMIT ?3");
        self.with(|connection| {
            let mut select = connection.prepare_cached(&sql)?;
            let rows = select.query_map(values.as_slice(), |row| stored(row).map(|stored| stored.event))?;
            rows.collect()
        })
    }
}

impl StateDirReader {
    /// The number of events of a chain. If `kinds` is not empty, only these types.
    ///
    /// # Errors
    /// The database can't be read.
    pub fn count(&self, session: SessionId, kinds: &[String]) -> Result<u64, StateError> {
        let session = session.0.into_bytes();
        let mut values: Vec<&dyn ToSql> = vec![&session];
        let sql = if kinds.is_empty() {
            // A chain has no gaps, so its last number gives the length.
            "SELECT coalesce(max(e.sequence) + 1, 0) FROM sessions s CROSS JOIN events e ON e.session = s.id \
             WHERE s.session = ?1"
                .to_owned()
        } else {
            values.extend(kinds.iter().map(|kind| kind as &dyn ToSql));
            let places: Vec<String> = (2..2 + kinds.len()).map(|n| format!("?{n}")).collect();
            format!(
                "SELECT count(*) FROM sessions s CROSS JOIN events e ON e.session = s.id \
                 WHERE s.session = ?1 AND e.kind IN ({})",
                places.join(",")
            )
        };
        self.with(|connection| {
            let mut select = connection.prepare_cached(&sql)?;
            select.query_row(values.as_slice(), |row| unsigned_at(row, 0))
        })
    }
}

impl StateDir {
    /// As [`StateDirReader::count`], on a blocking thread.
    ///
    /// # Errors
    /// The database can't be read, or the directory is closed.
    pub async fn count(&self, session: SessionId, kinds: Vec<String>) -> Result<u64, String> {
        let read = move |reader: &StateDirReader| reader.count(session, &kinds);
        self.inner.readers.run(read).await
    }

    /// As [`StateDirReader::chain`], on a blocking thread.
    ///
    /// # Errors
    /// The database can't be read, or the directory is closed.
    pub async fn chain(
        &self,
        session: SessionId,
        since: u64,
        kinds: Vec<String>,
        limit: usize,
    ) -> Result<Vec<SealedEvent>, String> {
        let read = move |reader: &StateDirReader| reader.chain(session, since, &kinds, limit);
        self.inner.readers.run(read).await
    }

    /// As [`StateDirReader::verify`] for one chain, on a blocking thread.
    ///
    /// # Errors
    /// The database can't be read, or the directory is closed.
    pub async fn verify(&self, session: SessionId) -> Result<VerificationReport, String> {
        self.inner
            .readers
            .run(move |reader| reader.verify(Some(session)))
            .await
    }
}
