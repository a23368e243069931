//! Stores entries: all or none, each once, and never over another writer's concurrent change.

use std::collections::BTreeMap;

use clawk_kernel::time::Timestamp;
use clawk_recall::compact::has_unique_keys;
use clawk_recall::entry::check_free_size;

use super::rows::{self, NewRow};
use super::spec::Spec;
use super::{parts, retain};
use crate::connect::PgConnection;
use crate::error::PgFailure;

/// Stores entries in a part; then applies retention, and compaction if it is due.
pub(super) async fn insert_entries(
    session: &PgConnection,
    part: i64,
    store: &Spec<'_>,
    new: Vec<NewRow>,
    at: Timestamp,
) -> Result<Vec<String>, PgFailure> {
    let mut names: BTreeMap<String, &str> = BTreeMap::new();
    if has_unique_keys(store.kind) {
        for key in new.iter().filter_map(|row| row.key.as_deref()) {
            names.insert(store.name_of(key)?, key);
        }
    }
    let keys: Vec<&str> = names.keys().map(String::as_str).collect();
    let seen = rows_by_key(session, part, &keys).await?;
    parts::lock_part(session, part).await?;
    // INVARIANT: after the wait for the lock, the current entries are compared with those seen before. A write in between is never
    // overwritten unnoticed.
    if let Some(name) = changed_key(&seen, &rows_by_key(session, part, &keys).await?) {
        let key = names.get(name).copied().unwrap_or(name);
        return Err(PgFailure::Conflict(format!(
            "`{}` in the store `{}`",
            key.chars().take(64).collect::<String>(),
            store.name
        )));
    }
    check_size(session, part, store, &new).await?;
    for row in &new {
        if rows::is_kept(session, part, &row.id).await? {
            continue;
        }
        if let (true, Some(key)) = (has_unique_keys(store.kind), &row.key) {
            let sql = "SELECT n FROM memory WHERE part = $1 AND key = $2";
            let old = rows::row_numbers(&session.query_rows(sql, &[&part, &store.name_of(key)?]).await?)?;
            rows::delete_entries(session, part, &old).await?;
        }
        rows::insert(session, store, part, row, at).await?;
    }
    retain::apply_retention(session, part, store, at).await?;
    Ok(new.into_iter().map(|row| row.id).collect())
}

/// The entry that each key has now.
async fn rows_by_key(
    session: &PgConnection,
    part: i64,
    keys: &[&str],
) -> Result<BTreeMap<String, i64>, PgFailure> {
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let sql = "SELECT key, max(n) FROM memory WHERE part = $1 AND key = ANY ($2) GROUP BY key";
    let rows = session.query_rows(sql, &[&part, &keys]).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}

fn changed_key<'a>(seen: &'a BTreeMap<String, i64>, now: &'a BTreeMap<String, i64>) -> Option<&'a str> {
    let other = |key: &&String| seen.get(*key) != now.get(*key);
    seen.keys().chain(now.keys()).find(other).map(String::as_str)
}

/// Checks `max_size_mb`, which limits all scopes of the store together.
async fn check_size(
    session: &PgConnection,
    part: i64,
    store: &Spec<'_>,
    new: &[NewRow],
) -> Result<(), PgFailure> {
    if store.max_size_mb.is_none() {
        return Ok(());
    }
    let there = parts::store_bytes(session, part).await?;
    let more = new.iter().map(NewRow::bytes).sum();
    check_free_size(store.store, there, more).map_err(|reason| PgFailure::Entry { index: 0, reason })
}
