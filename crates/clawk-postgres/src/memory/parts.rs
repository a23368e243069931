//! Parts of stores: owner, number of entries, size. Each change of a part locks its row.

use tokio_postgres::Row;

use crate::connect::PgConnection;
use crate::error::PgFailure;

/// One store's entries for one scope.
#[derive(Debug, Clone, Copy)]
pub(super) struct PgStorePart {
    pub(super) id: i64,
    pub(super) entries: i64,
}

impl PgStorePart {
    pub(super) fn count(self) -> u64 {
        u64::try_from(self.entries).unwrap_or_default() // silent-ok: a count is never below 0
    }

    fn from_row(row: &Row) -> Result<Self, PgFailure> {
        Ok(Self {
            id: row.try_get(0)?,
            entries: row.try_get(1)?,
        })
    }
}

pub(super) async fn find_part(
    session: &PgConnection,
    agent: &str,
    store: &str,
    scope: &str,
) -> Result<Option<PgStorePart>, PgFailure> {
    let sql = "SELECT id, entries FROM memory_parts WHERE agent = $1 AND store = $2 AND scope = $3";
    let row = session.query_first(sql, &[&agent, &store, &scope]).await?;
    row.as_ref().map(PgStorePart::from_row).transpose()
}

/// The part's number; creates a missing part. The part is not locked yet.
pub(super) async fn ensure_part(
    session: &PgConnection,
    agent: &str,
    store: &str,
    scope: &str,
) -> Result<i64, PgFailure> {
    if let Some(part) = find_part(session, agent, store, scope).await? {
        return Ok(part.id);
    }
    let sql = "INSERT INTO memory_parts (agent, store, scope) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    session.run(sql, &[&agent, &store, &scope]).await?;
    match find_part(session, agent, store, scope).await? {
        Some(part) => Ok(part.id),
        None => Err(PgFailure::Conflict(format!("the store `{store}`"))),
    }
}

/// Locks the part until the end of the transaction; waits for other writers.
pub(super) async fn lock_part(session: &PgConnection, id: i64) -> Result<PgStorePart, PgFailure> {
    let sql = "SELECT id, entries FROM memory_parts WHERE id = $1 FOR UPDATE";
    match session.query_first(sql, &[&id]).await? {
        Some(row) => PgStorePart::from_row(&row),
        None => Err(PgFailure::Conflict("the store".to_owned())),
    }
}

/// The parts of a store in all scopes.
pub(super) async fn list_parts(
    session: &PgConnection,
    agent: &str,
    store: &str,
) -> Result<Vec<i64>, PgFailure> {
    let sql = "SELECT id FROM memory_parts WHERE agent = $1 AND store = $2 ORDER BY id";
    let rows = session.query_rows(sql, &[&agent, &store]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(super) async fn count_entries(session: &PgConnection, id: i64) -> Result<u64, PgFailure> {
    let entries: i64 = session
        .query_value("SELECT entries FROM memory_parts WHERE id = $1", &[&id])
        .await?;
    Ok(PgStorePart { id, entries }.count())
}

/// The size of the entries in all scopes of this part's store, bytes.
pub(super) async fn store_bytes(session: &PgConnection, id: i64) -> Result<u64, PgFailure> {
    let sql = "SELECT coalesce(sum(p.bytes), 0)::bigint FROM memory_parts p \
               JOIN memory_parts own ON own.agent = p.agent AND own.store = p.store WHERE own.id = $1";
    let bytes: i64 = session.query_value(sql, &[&id]).await?;
    Ok(u64::try_from(bytes).unwrap_or_default()) // silent-ok: never below 0
}

/// Counts that entries were restored or deleted. Indexes in memory check this before they answer.
pub(super) async fn came_or_went(session: &PgConnection, id: i64) -> Result<(), PgFailure> {
    let sql = "UPDATE memory_parts SET changed = changed + 1 WHERE id = $1";
    session.run(sql, &[&id]).await?;
    Ok(())
}

/// Adds to the part's number of entries and bytes; negative values subtract.
pub(super) async fn adjust_counts(
    session: &PgConnection,
    id: i64,
    entries: i64,
    bytes: i64,
) -> Result<(), PgFailure> {
    let sql = "UPDATE memory_parts SET entries = entries + $2, bytes = greatest(0, bytes + $3) WHERE id = $1";
    session.run(sql, &[&id, &entries, &bytes]).await?;
    Ok(())
}
