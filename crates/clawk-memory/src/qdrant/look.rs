//! Access to stores for operators, from outside the agent.

use std::collections::BTreeMap;

use clawk_core::ports::{BoxFuture, MemoryError, MemoryInspector, Page};
use clawk_manifest::model::Store;
use clawk_recall::entry::EntryHit;
use serde_json::json;

use super::row::{ASIDE, LIVE, PointPayload, match_condition, scope_name};
use super::{QdrantCollection, QdrantMemory};

impl QdrantCollection<'_> {
    async fn list_parts(self) -> Result<Vec<(String, u64)>, MemoryError> {
        let mut parts: BTreeMap<String, u64> = BTreeMap::new();
        for state in [ASIDE, LIVE] {
            for (scope, count) in self.counted_of(state, "scope").await? {
                let part = scope.as_str().and_then(|scope| scope.strip_prefix('/'));
                let Some(part) = part else { continue };
                let entries = parts.entry(part.to_owned()).or_default();
                if state == LIVE {
                    *entries += count;
                }
            }
        }
        Ok(parts.into_iter().collect())
    }

    async fn entry_page(self, scope: &str, page: Page) -> Result<Vec<(i64, EntryHit)>, MemoryError> {
        let state = if page.aside { ASIDE } else { LIVE };
        let mut conditions = vec![match_condition("scope", scope), match_condition("state", state)];
        if let Some(before) = page.before {
            conditions.push(json!({"key": "n", "range": {"lt": before}}));
        }
        let rows = self.ordered_entries(conditions, ("n", true), page.limit).await?;
        Ok(rows.iter().map(|row| (row.n, row.entry_hit())).collect())
    }

    async fn entries_named(self, scope: &str, name: &str) -> Result<Vec<EntryHit>, MemoryError> {
        let by_id = self
            .all_points(vec![match_condition("scope", scope), match_condition("id", name)])
            .await?;
        let by_key = vec![
            match_condition("scope", scope),
            match_condition("state", LIVE),
            match_condition("key", name),
        ];
        let mut rows: BTreeMap<String, PointPayload> = BTreeMap::new();
        for point in by_id.into_iter().chain(self.all_points(by_key).await?) {
            rows.extend(point.payload.map(|row| (point.id, row)));
        }
        let mut rows: Vec<PointPayload> = rows.into_values().collect();
        rows.sort_by_key(|row| row.n);
        Ok(rows.iter().map(PointPayload::entry_hit).collect())
    }
}

impl MemoryInspector for QdrantMemory {
    fn list_parts<'a>(
        &'a self,
        store: &'a Store,
        _known: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, MemoryError>> {
        Box::pin(async move { self.collection(&self.name(store)).list_parts().await })
    }

    fn list_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        page: Page,
    ) -> BoxFuture<'a, Result<Vec<(i64, EntryHit)>, MemoryError>> {
        Box::pin(async move {
            self.collection(&self.name(store))
                .entry_page(&scope_name(part), page)
                .await
        })
    }

    fn find_entries<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Vec<EntryHit>, MemoryError>> {
        Box::pin(async move {
            self.collection(&self.name(store))
                .entries_named(&scope_name(part), name)
                .await
        })
    }

    fn bring_back<'a>(
        &'a self,
        store: &'a Store,
        part: &'a str,
        id: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, MemoryError>> {
        Box::pin(async move {
            let name = self.name(store);
            let known = self.store_state(&name).await;
            let _held = known.lock().await;
            self.collection(&name)
                .restore_entries(&scope_name(part), id)
                .await
        })
    }
}
