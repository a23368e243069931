//! Reads stores for tools outside of the agent, and restores entries that compaction set aside.

use clawk_kernel::ports::{BoxFuture, MemoryError, MemoryInspector, Page};
use clawk_manifest::model::Store;
use clawk_recall::entry::EntryHit;

use super::parts::{self, lock_part};
use super::rows::{COLUMNS, hit_from_row};
use super::{PgMemory, undo};
use crate::error::PgFailure;
use crate::pool::Mode;

impl PgMemory {
    /// Every store of this agent in the database: its name, and whether it is encrypted. The database knows nothing more about a
    /// store.
    ///
    /// # Errors
    /// The server is unreachable or refuses.
    pub async fn list_stores(&self) -> Result<Vec<Store>, MemoryError> {
        let agent: &str = &self.agent;
        let work = self.database.read(async |session| {
            let sql = "SELECT DISTINCT p.store, s.store IS NOT NULL FROM memory_parts p \
                       LEFT JOIN memory_seals s ON s.agent = p.agent AND s.store = p.store WHERE p.agent = $1 ORDER BY 1";
            let rows = session.query_rows(sql, &[&agent]).await?;
            let one = |row: &tokio_postgres::Row| {
                Ok(Store {
                    encryption: row.try_get(1)?,
                    ..Store::with_name(row.try_get(0)?)
                })
            };
            rows.iter().map(one).collect::<Result<Vec<Store>, PgFailure>>()
        });
        work.await.map_err(|failure| failure.of_memory(false))
    }

    async fn all_parts(&self, store: &Store) -> Result<Vec<(String, u64)>, PgFailure> {
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let agent: &str = &self.agent;
        let done = async {
            let sql =
                "SELECT scope, entries FROM memory_parts WHERE agent = $1 AND store = $2 ORDER BY scope";
            let rows = tx.query_rows(sql, &[&agent, &store.name]).await?;
            let one = |row: &tokio_postgres::Row| {
                let entries: i64 = row.try_get(1)?;
                Ok((row.try_get(0)?, u64::try_from(entries).unwrap_or_default())) // silent-ok: a count is never below 0
            };
            rows.iter().map(one).collect()
        }
        .await;
        tx.commit_or_rollback(done).await
    }

    async fn one_page(
        &self,
        store: &Store,
        part: &str,
        page: Page,
    ) -> Result<Vec<(i64, EntryHit)>, PgFailure> {
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let done = async {
            let Some(part) = parts::find_part(&tx, &self.agent, &store.name, part).await? else {
                return Ok(Vec::new());
            };
            let table = if page.aside { "memory_aside" } else { "memory" };
            let sql = format!(
                "SELECT {COLUMNS}, n FROM {table} WHERE part = $1 AND n < $2 ORDER BY n DESC LIMIT $3"
            );
            let before = page.before.unwrap_or(i64::MAX);
            let limit = i64::try_from(page.limit).unwrap_or(i64::MAX);
            let rows = tx.query_rows(&sql, &[&part.id, &before, &limit]).await?;
            let spec = self.store_spec(store);
            rows.iter()
                .map(|row| Ok((row.try_get(7)?, hit_from_row(&spec, row)?)))
                .collect()
        }
        .await;
        tx.commit_or_rollback(done).await
    }

    async fn with_name(&self, store: &Store, part: &str, name: &str) -> Result<Vec<EntryHit>, PgFailure> {
        if name.contains('\0') {
            return Ok(Vec::new()); // nothing that was kept has such a name
        }
        let tx = self.begin_transaction(store, Mode::Read).await?;
        let done = async {
            let Some(part) = parts::find_part(&tx, &self.agent, &store.name, part).await? else {
                return Ok(Vec::new());
            };
            let spec = self.store_spec(store);
            let sql = format!(
                "SELECT {COLUMNS}, n FROM memory WHERE part = $1 AND (id = $2 OR key = $3) UNION ALL \
                 SELECT {COLUMNS}, n FROM memory_aside WHERE part = $1 AND id = $2 ORDER BY n"
            );
            let rows = tx
                .query_rows(&sql, &[&part.id, &name, &spec.name_of(name)?])
                .await?;
            rows.iter().map(|row| hit_from_row(&spec, row)).collect()
        }
        .await;
        tx.commit_or_rollback(done).await
    }

    async fn brought_back(&self, store: &Store, part: &str, id: Option<&str>) -> Result<u64, PgFailure> {
        let tx = self.begin_transaction(store, Mode::Write).await?;
        let done = async {
            let Some(part) = parts::find_part(&tx, &self.agent, &store.name, part).await? else {
                return Ok(0);
            };
            let part = lock_part(&tx, part.id).await?;
            undo::restore_entries(&tx, part, &self.store_spec(store), id).await
        }
        .await;
        tx.commit_or_rollback(done).await
    }
}

impl MemoryInspector for PgMemory {
    fn list_parts<'a>(
        &'a self,
        store: &'a Store,
        _known: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, MemoryError>> {
        Box::pin(async move {
            let found = self.database.run_within_deadline(self.all_parts(store)).await;
            found.map_err(|failure| failure.of_memory(false))
        })
    }

    fn list_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        page: Page,
    ) -> BoxFuture<'a, Result<Vec<(i64, EntryHit)>, MemoryError>> {
        Box::pin(async move {
            let found = self
                .database
                .run_within_deadline(self.one_page(store, part, page))
                .await;
            found.map_err(|failure| failure.of_memory(false))
        })
    }

    fn find_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(async move {
            let found = self
                .database
                .run_within_deadline(self.with_name(store, part, name))
                .await;
            found.map_err(|failure| failure.of_memory(false))
        })
    }

    fn bring_back<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let done = self
                .database
                .run_within_deadline(self.brought_back(store, part, id))
                .await;
            done.map_err(|failure| failure.of_memory(true))
        })
    }
}
