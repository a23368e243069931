//! The word index of encrypted entries. It exists only in memory; the first search builds it from the database.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use clawk_recall::index::Index;
use clawk_recall::words;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::rows::{CAME_OR_WENT, parse_content, told_columns};

/// The largest size of indexed text, bytes. Parts above it are read and indexed again for each search.
const MAX_BYTES: usize = 512 * 1024 * 1024;

#[derive(Debug, Default)]
struct SqliteIndexedPart {
    index: Index,
    /// The owner of each entry.
    held: BTreeMap<i64, i64>,
    /// The value of [`CAME_OR_WENT`] at the last comparison.
    seen: i64,
    bytes: usize,
}

/// The words of each part.
#[derive(Debug, Default)]
pub(super) struct SqliteWordIndex {
    parts: Mutex<HashMap<i64, Arc<Mutex<SqliteIndexedPart>>>>,
}

impl SqliteWordIndex {
    /// Finds the best entries among the allowed owners, best first, with scores within 0..1.
    pub(super) fn find_entries(
        &self,
        connection: &Connection,
        part: i64,
        question: &str,
        limit: usize,
        counts: impl Fn(i64) -> bool,
    ) -> rusqlite::Result<Vec<(i64, f64)>> {
        let known = {
            let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes: usize = parts
                .values()
                .filter_map(|part| part.try_lock().ok().map(|part| part.bytes))
                .sum();
            if bytes > MAX_BYTES {
                parts.clear();
            }
            Arc::clone(parts.entry(part).or_default())
        };
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.catch_up(connection, part)?;
        let SqliteIndexedPart { index, held, .. } = &*known;
        Ok(index.find(question, limit, |n| {
            held.get(&n).is_some_and(|whose| counts(*whose))
        }))
    }
}

impl SqliteIndexedPart {
    fn catch_up(&mut self, connection: &Connection, part: i64) -> rusqlite::Result<()> {
        let sql = "SELECT value FROM marks WHERE name = ?1";
        let seen = connection
            .prepare_cached(sql)?
            .query_row([CAME_OR_WENT], |row| row.get(0))
            .optional()?
            .unwrap_or(0);
        if seen != self.seen {
            self.sync_entries(connection, part)?;
            self.seen = seen;
        }
        let upto = self.held.last_key_value().map_or(0, |(n, _)| *n);
        let told = told_columns(true);
        let sql = format!("SELECT n, whose, {told} FROM memory WHERE part = ?1 AND n > ?2 ORDER BY n");
        let mut select = connection.prepare_cached(&sql)?;
        let mut rows = select.query(params![part, upto])?;
        while let Some(row) = rows.next()? {
            self.add_row(row)?;
        }
        Ok(())
    }

    /// Updates the index: removes deleted entries and adds restored ones.
    fn sync_entries(&mut self, connection: &Connection, part: i64) -> rusqlite::Result<()> {
        let mut select = connection.prepare_cached("SELECT n FROM memory WHERE part = ?1")?;
        let there: BTreeSet<i64> = select
            .query_map([part], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let gone: Vec<i64> = self.held.keys().copied().filter(|n| !there.contains(n)).collect();
        for n in gone {
            self.index.remove(n);
            self.held.remove(&n);
        }
        let upto = self.held.last_key_value().map_or(0, |(n, _)| *n);
        let sql = format!("SELECT n, whose, {} FROM memory WHERE n = ?1", told_columns(true));
        let mut select = connection.prepare_cached(&sql)?;
        for n in there.into_iter().take_while(|n| *n < upto) {
            if !self.held.contains_key(&n) {
                let mut rows = select.query([n])?;
                if let Some(row) = rows.next()? {
                    self.add_row(row)?;
                }
            }
        }
        Ok(())
    }

    fn add_row(&mut self, row: &Row<'_>) -> rusqlite::Result<()> {
        let (n, whose) = (row.get(0)?, row.get(1)?);
        let (content, key) = parse_content(row.get(2)?, row.get(3)?)?;
        let text = words::text_of(&content, key.as_deref());
        self.bytes += text.len();
        self.index.add(n, text);
        self.held.insert(n, whose);
        Ok(())
    }
}
