//! Retention and compaction: deletes entries and sets entries aside. The caller has locked the part.

use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{CompactionStrategy, ManifestDuration, Retention, StoreType};
use clawk_recall::compact::{self, CompactionSummary};
use clawk_recall::entry::EntryHit;

use super::parts;
use super::rows::{self, COLUMNS, delete_entries, hit_from_row, insert, row_numbers, rows_of, set_aside};
use super::spec::Spec;
use crate::connect::PgConnection;
use crate::error::PgFailure;

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Deletes entries that are too old or too many. Entries that were set aside expire at the same age.
pub(super) async fn apply_retention(
    session: &PgConnection,
    part: i64,
    store: &Spec<'_>,
    at: Timestamp,
) -> Result<(), PgFailure> {
    let Retention { max_age, max_entries } = store.retention;
    let snapshots = store.checkpoint.clone().unwrap_or_default();
    let is_checkpoint = store.kind == StoreType::Checkpoint;
    for age in [max_age, snapshots.ttl.filter(|_| is_checkpoint)]
        .into_iter()
        .flatten()
    {
        let oldest = cutoff_time(age, at).0;
        let sql = "SELECT n FROM memory WHERE part = $1 AND at < $2";
        let old = row_numbers(&session.query_rows(sql, &[&part, &oldest]).await?)?;
        delete_entries(session, part, &old).await?;
        session
            .run(
                "DELETE FROM memory_aside WHERE part = $1 AND at < $2",
                &[&part, &oldest],
            )
            .await?;
    }
    if let Some(max) = snapshots.max_snapshots.filter(|_| is_checkpoint) {
        let sql = "SELECT n FROM (SELECT n, row_number() OVER (PARTITION BY key ORDER BY n DESC) AS place \
                   FROM memory WHERE part = $1) AS placed WHERE place > $2";
        let old = row_numbers(&session.query_rows(sql, &[&part, &to_i64(max)]).await?)?;
        delete_entries(session, part, &old).await?;
    }
    let Some(max) = max_entries else { return Ok(()) };
    if compact::is_due(store, parts::count_entries(session, part).await?) {
        compact_entries(session, part, store, at, None).await?;
    }
    let more = parts::count_entries(session, part).await?.saturating_sub(max);
    let old: Vec<i64> = oldest_entries(session, store, part, more)
        .await?
        .iter()
        .map(|(n, _)| *n)
        .collect();
    delete_entries(session, part, &old).await
}

fn cutoff_time(age: ManifestDuration, at: Timestamp) -> Timestamp {
    at.plus_millis(to_i64(age.as_secs()).saturating_mul(1000).saturating_neg())
}

/// The entries that compaction would set aside now, oldest first.
pub(super) async fn entries_to_compact(
    session: &PgConnection,
    part: i64,
    store: &Spec<'_>,
) -> Result<Vec<(i64, EntryHit)>, PgFailure> {
    let entries = parts::count_entries(session, part).await?;
    oldest_entries(session, store, part, compact::compaction_count(store, entries)).await
}

async fn oldest_entries(
    session: &PgConnection,
    store: &Spec<'_>,
    part: i64,
    how_many: u64,
) -> Result<Vec<(i64, EntryHit)>, PgFailure> {
    if how_many == 0 {
        return Ok(Vec::new());
    }
    let sql = format!("SELECT {COLUMNS}, n FROM memory WHERE part = $1 ORDER BY at, n LIMIT $2");
    let rows = session.query_rows(&sql, &[&part, &to_i64(how_many)]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(7)?, hit_from_row(store, row)?)))
        .collect()
}

/// Sets the oldest entries aside. `truncate` and `sliding-window` keep the newest entries; `summarize` replaces the old ones by one
/// summary.
pub(super) async fn compact_entries(
    session: &PgConnection,
    part: i64,
    store: &Spec<'_>,
    at: Timestamp,
    summary: Option<&CompactionSummary>,
) -> Result<(), PgFailure> {
    let old = entries_to_compact(session, part, store).await?;
    let numbers: Vec<i64> = old.iter().map(|(n, _)| *n).collect();
    let Some(last) = numbers.last().copied() else {
        return Ok(());
    };
    if compact::compaction_strategy(store) != Some(CompactionStrategy::Summarize) {
        return set_aside(session, part, &numbers, "", at).await;
    }
    let hits: Vec<EntryHit> = old.into_iter().map(|(_, hit)| hit).collect();
    let mut new = compact::summary_entry(&hits, summary, &at.to_string());
    while rows::is_kept(session, part, &new.id).await? {
        new.id.push('+');
    }
    // The summary gets the time of the last entry that it replaces, which keeps the order.
    let when: i64 = session
        .query_value("SELECT at FROM memory WHERE n = $1", &[&last])
        .await?;
    set_aside(session, part, &numbers, &new.id, at).await?;
    for row in rows_of(store, vec![new])? {
        insert(session, store, part, &row, Timestamp(when)).await?;
    }
    Ok(())
}

/// Sets entries aside that a later entry of the part repeats.
pub(super) async fn merge_duplicates(
    session: &PgConnection,
    part: i64,
    store: &Spec<'_>,
    at: Timestamp,
) -> Result<(), PgFailure> {
    if !compact::merges_duplicates(store) {
        return Ok(());
    }
    let sql = format!("SELECT {COLUMNS}, n FROM memory WHERE part = $1 ORDER BY at, n");
    let mut all: Vec<(i64, EntryHit)> = Vec::new();
    for row in &session.query_rows(&sql, &[&part]).await? {
        all.push((row.try_get(7)?, hit_from_row(store, row)?));
    }
    let again = compact::said_again(all.iter().map(|(n, hit)| (*n, hit)));
    set_aside(session, part, &again, "", at).await
}
