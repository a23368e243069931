//! Retention and compaction: deletes entries and sets entries aside.

use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{CompactionStrategy, ManifestDuration, Retention, Store, StoreType};
use clawk_recall::compact::{self, CompactionSummary};
use clawk_recall::entry::EntryHit;
use rusqlite::{Connection, params};

use super::rows::{
    self, ANY, count_entries, delete_entries, hit_columns, hit_from_row, insert, rows_of, set_aside,
};
use crate::append::integer;

/// The largest number of entries that one commit of [`remove_batch`] deletes.
pub(super) const AT_ONCE: u64 = 500;

/// Deletes at most [`AT_ONCE`] of the entries that are too old or too many. Returns their number; fewer than [`AT_ONCE`] means that
/// none are left.
pub(super) fn remove_batch(
    connection: &Connection,
    part: i64,
    store: &Store,
    at: Timestamp,
) -> rusqlite::Result<u64> {
    let mut gone = 0;
    for age in retention_ages(store) {
        let oldest = cutoff_time(age, at).0;
        let mut select =
            connection.prepare_cached("SELECT n FROM memory WHERE part = ?1 AND at < ?2 LIMIT ?3")?;
        let rows = select
            .query_map(params![part, oldest, integer(AT_ONCE)], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        forget_embedded(connection, "memory", &rows)?;
        delete_entries(connection, part, &rows)?;
        let mut select =
            connection.prepare_cached("SELECT n FROM memory_aside WHERE part = ?1 AND at < ?2 LIMIT ?3")?;
        let aside = select
            .query_map(params![part, oldest, integer(AT_ONCE)], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        forget_embedded(connection, "memory_aside", &aside)?;
        let mut erase = connection.prepare_cached("DELETE FROM memory_aside WHERE n = ?1")?;
        for n in &aside {
            erase.execute([n])?;
        }
        gone += u64::try_from(rows.len().max(aside.len())).unwrap_or(u64::MAX);
    }
    if gone >= AT_ONCE {
        return Ok(AT_ONCE);
    }
    let before = count_entries(connection, part)?;
    apply_retention(connection, part, store, at)?;
    // The other entries to delete are bounded by what one `keep` adds.
    Ok((gone + before.saturating_sub(count_entries(connection, part)?)).min(AT_ONCE - 1))
}

/// The ages after which entries of the store are deleted.
fn retention_ages(store: &Store) -> impl Iterator<Item = ManifestDuration> {
    let checkpoint = store.checkpoint.as_ref().and_then(|checkpoint| checkpoint.ttl);
    let ttl = checkpoint.filter(|_| store.kind == StoreType::Checkpoint);
    [store.retention.max_age, ttl].into_iter().flatten()
}

/// Deletes the cached embeddings of the entries' texts.
fn forget_embedded(connection: &Connection, table: &str, rows: &[i64]) -> rusqlite::Result<()> {
    let any: bool = connection
        .prepare_cached("SELECT 1 FROM embeddings LIMIT 1")?
        .exists([])?;
    if !any {
        return Ok(());
    }
    let mut select = connection.prepare_cached(&format!("SELECT {ANY} FROM {table} WHERE n = ?1"))?;
    for n in rows {
        let (content, key) = select.query_row([n], |row| rows::parse_content(row.get(0)?, row.get(1)?))?;
        rows::forget_embedded(connection, &content, key.as_deref())?;
    }
    Ok(())
}

/// Deletes entries that are too old or too many. Entries that were set aside expire at the same age.
pub(super) fn apply_retention(
    connection: &Connection,
    part: i64,
    store: &Store,
    at: Timestamp,
) -> rusqlite::Result<()> {
    let Retention { max_entries, .. } = store.retention;
    let snapshots = store.checkpoint.clone().unwrap_or_default();
    for age in retention_ages(store) {
        let oldest = cutoff_time(age, at);
        let mut select = connection.prepare_cached("SELECT n FROM memory WHERE part = ?1 AND at < ?2")?;
        let rows = select
            .query_map(params![part, oldest.0], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        delete_entries(connection, part, &rows)?;
        connection
            .prepare_cached("DELETE FROM memory_aside WHERE part = ?1 AND at < ?2")?
            .execute(params![part, oldest.0])?;
    }
    if let Some(max) = snapshots
        .max_snapshots
        .filter(|_| store.kind == StoreType::Checkpoint)
    {
        let mut select = connection.prepare_cached(
            "SELECT n FROM (SELECT n, row_number() OVER (PARTITION BY key ORDER BY n DESC) AS place FROM memory WHERE part = ?1) \
             WHERE place > ?2",
        )?;
        let rows = select
            .query_map(params![part, integer(max)], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        delete_entries(connection, part, &rows)?;
    }
    let Some(max) = max_entries else { return Ok(()) };
    if clawk_recall::compact::is_due(store, count_entries(connection, part)?) {
        compact_entries(connection, part, store, at, None)?;
    }
    let rows = oldest_rows(
        connection,
        part,
        count_entries(connection, part)?.saturating_sub(max),
    )?;
    delete_entries(connection, part, &rows)
}

fn cutoff_time(age: ManifestDuration, at: Timestamp) -> Timestamp {
    at.plus_millis(integer(age.as_secs()).saturating_mul(1000).saturating_neg())
}

/// The rows that compaction would set aside now, oldest first.
pub(super) fn rows_to_compact(
    connection: &Connection,
    part: i64,
    store: &Store,
) -> rusqlite::Result<Vec<i64>> {
    oldest_rows(
        connection,
        part,
        compact::compaction_count(store, count_entries(connection, part)?),
    )
}

/// Sets the oldest entries aside. `truncate` and `sliding-window` keep the newest entries; `summarize` replaces the old ones by one
/// summary.
pub(super) fn compact_entries(
    connection: &Connection,
    part: i64,
    store: &Store,
    at: Timestamp,
    summary: Option<&CompactionSummary>,
) -> rusqlite::Result<()> {
    let rows = rows_to_compact(connection, part, store)?;
    if compact::compaction_strategy(store) != Some(CompactionStrategy::Summarize) || rows.is_empty() {
        return set_aside(connection, part, &rows, "", at);
    }
    let mut new = compact::summary_entry(
        &load_hits(connection, &rows, store.encryption)?,
        summary,
        &at.to_string(),
    );
    while rows::is_kept(connection, part, &new.id)? {
        new.id.push('+');
    }
    // The summary gets the time of the last entry that it replaces, which keeps the order.
    let last: i64 = connection.query_row(
        "SELECT at FROM memory WHERE n = ?1",
        [rows.last().copied().unwrap_or_default()],
        |row| row.get(0),
    )?;
    set_aside(connection, part, &rows, &new.id, at)?;
    // A summary is always within the size limits of an entry.
    for row in rows_of(store, vec![new]).unwrap_or_default() {
        insert(connection, part, &row, Timestamp(last))?;
    }
    Ok(())
}

fn oldest_rows(connection: &Connection, part: i64, how_many: u64) -> rusqlite::Result<Vec<i64>> {
    if how_many == 0 {
        return Ok(Vec::new());
    }
    let mut select =
        connection.prepare_cached("SELECT n FROM memory WHERE part = ?1 ORDER BY at, n LIMIT ?2")?;
    select
        .query_map(params![part, integer(how_many)], |row| row.get(0))?
        .collect()
}

pub(super) fn delete_key(connection: &Connection, part: i64, key: &str) -> rusqlite::Result<()> {
    let mut select =
        connection.prepare_cached("SELECT n FROM memory WHERE part = ?1 AND key IN (?2, clawk_name(?2))")?;
    let rows = select
        .query_map(params![part, key], |row| row.get(0))?
        .collect::<Result<Vec<i64>, _>>()?;
    delete_entries(connection, part, &rows)
}

pub(super) fn load_hits(
    connection: &Connection,
    rows: &[i64],
    sealed: bool,
) -> rusqlite::Result<Vec<EntryHit>> {
    let sql = format!("SELECT {} FROM memory WHERE n = ?1", hit_columns(sealed));
    let mut select = connection.prepare_cached(&sql)?;
    rows.iter().map(|n| select.query_row([n], hit_from_row)).collect()
}

/// The number of entries in a part, and the number of the newest.
pub(super) fn part_extent(connection: &Connection, part: i64) -> rusqlite::Result<(u64, i64)> {
    let sql = "SELECT coalesce(max(n), 0) FROM memory WHERE part = ?1";
    let newest = connection
        .prepare_cached(sql)?
        .query_row([part], |row| row.get(0))?;
    Ok((count_entries(connection, part)?, newest))
}

/// The rows of a part that a later row repeats.
pub(super) fn said_again(connection: &Connection, part: i64, sealed: bool) -> rusqlite::Result<Vec<i64>> {
    let columns = hit_columns(sealed);
    let sql = format!("SELECT {columns}, n FROM memory WHERE part = ?1 ORDER BY at, n");
    let mut select = connection.prepare_cached(&sql)?;
    let rows = select.query_map([part], |row| Ok((row.get::<_, i64>(6)?, hit_from_row(row)?)))?;
    let rows: Vec<(i64, EntryHit)> = rows.collect::<Result<_, _>>()?;
    Ok(compact::said_again(rows.iter().map(|(n, hit)| (*n, hit))))
}
