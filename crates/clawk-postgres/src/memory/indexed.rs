//! The word index of encrypted entries. It exists only in memory; the first search builds it from the entries on the server.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use clawk_recall::index::Index;
use clawk_recall::words;
use tokio::sync::Mutex;
use tokio_postgres::Row;

use super::rows::row_numbers;
use super::spec::Spec;
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// The largest size of indexed text, bytes. Parts above it are read and indexed again for each search.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// The number of entries read at once.
const PAGE: i64 = 1024;

#[derive(Debug, Default)]
struct PgIndexedPart {
    index: Index,
    /// The owner of each entry.
    held: BTreeMap<i64, i64>,
    /// The value of `memory_parts.changed` at the last comparison.
    seen: i64,
    bytes: usize,
}

/// The words of each part, as far as this process has read them.
#[derive(Debug, Default)]
pub(super) struct PgWordIndex {
    parts: Mutex<HashMap<i64, Arc<Mutex<PgIndexedPart>>>>,
}

impl PgWordIndex {
    /// Finds the best entries among the allowed owners, best first, with scores within 0..1.
    pub(super) async fn find_entries(
        &self,
        (session, store, part): (&PgConnection, &Spec<'_>, i64),
        question: &str,
        limit: usize,
        counts: impl Fn(i64) -> bool,
    ) -> Result<Vec<(i64, f64)>, PgFailure> {
        let known = {
            let mut parts = self.parts.lock().await;
            let held = parts
                .values()
                .filter_map(|part| part.try_lock().ok().map(|part| part.bytes));
            if held.sum::<usize>() > MAX_BYTES {
                parts.clear();
            }
            Arc::clone(parts.entry(part).or_default())
        };
        let mut known = known.lock().await;
        known.catch_up(session, store, part).await?;
        let PgIndexedPart { index, held, .. } = &*known;
        Ok(index.find(question, limit, |n| {
            held.get(&n).is_some_and(|whose| counts(*whose))
        }))
    }
}

impl PgIndexedPart {
    async fn catch_up(
        &mut self,
        session: &PgConnection,
        store: &Spec<'_>,
        part: i64,
    ) -> Result<(), PgFailure> {
        let seen: i64 = session
            .query_value("SELECT changed FROM memory_parts WHERE id = $1", &[&part])
            .await?;
        if seen != self.seen {
            self.sync_entries(session, store, part).await?;
            self.seen = seen;
        }
        let sql =
            "SELECT n, whose, id, key, content FROM memory WHERE part = $1 AND n > $2 ORDER BY n LIMIT $3";
        loop {
            let upto = self.held.last_key_value().map_or(0, |(n, _)| *n);
            let rows = session.query_rows(sql, &[&part, &upto, &PAGE]).await?;
            for row in &rows {
                self.add_row(store, part, row)?;
            }
            if rows.len() < usize::try_from(PAGE).unwrap_or(usize::MAX) {
                return Ok(());
            }
        }
    }

    /// Updates the index: removes deleted entries and adds restored ones.
    async fn sync_entries(
        &mut self,
        session: &PgConnection,
        store: &Spec<'_>,
        part: i64,
    ) -> Result<(), PgFailure> {
        let there = row_numbers(
            &session
                .query_rows("SELECT n FROM memory WHERE part = $1", &[&part])
                .await?,
        )?;
        let there: BTreeSet<i64> = there.into_iter().collect();
        let gone: Vec<i64> = self.held.keys().copied().filter(|n| !there.contains(n)).collect();
        for n in gone {
            self.index.remove(n);
            self.held.remove(&n);
        }
        let upto = self.held.last_key_value().map_or(0, |(n, _)| *n);
        let back: Vec<i64> = there
            .into_iter()
            .filter(|n| *n < upto && !self.held.contains_key(n))
            .collect();
        let sql = "SELECT n, whose, id, key, content FROM memory WHERE part = $1 AND n = ANY ($2)";
        for row in &session.query_rows(sql, &[&part, &back]).await? {
            self.add_row(store, part, row)?;
        }
        Ok(())
    }

    fn add_row(&mut self, store: &Spec<'_>, part: i64, row: &Row) -> Result<(), PgFailure> {
        let (n, whose): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let place = (part, row.try_get(2)?);
        let (content, key) = store.open_content(place, row.try_get(4)?, row.try_get(3)?)?;
        let text = words::text_of(&content, key.as_deref());
        self.bytes += text.len();
        self.index.add(n, text);
        self.held.insert(n, whose);
        Ok(())
    }
}
