//! Search in one scope: by words, by vectors, by key, by time.

use clawk_core::ports::{MemorySearch, StoreQuery};
use clawk_manifest::model::{Store, StoreType};
use clawk_recall::entry::{ConversationFilter, EntrySearchResult, SearchMethod, Vector, conversation_number};
use clawk_recall::way;

use super::{FolderEntryRow, FolderScopeStore};

impl FolderScopeStore {
    pub(in crate::files) fn search_entries(&self, store: &Store, ask: &MemorySearch) -> EntrySearchResult {
        let MemorySearch {
            whose,
            query,
            vector,
            limit,
            ..
        } = ask;
        let limit = *limit;
        let mine = |row: &&FolderEntryRow| whose.includes_owner(&row.kept.mark.whose);
        let hits = match query {
            StoreQuery::Text(text) => return self.by_text(store, whose, text, vector.as_ref(), limit),
            StoreQuery::Key(key) => {
                let named = |row: &&FolderEntryRow| {
                    row.kept.key.as_ref() == Some(key)
                        || (row.kept.id == *key && store.kind != StoreType::KeyValue)
                };
                self.rows
                    .values()
                    .rev()
                    .filter(named)
                    .filter(mine)
                    .take(limit)
                    .map(FolderEntryRow::entry_hit)
                    .collect()
            }
            StoreQuery::Between(from, to) => {
                let mut rows: Vec<(&i64, &FolderEntryRow)> = self
                    .rows
                    .iter()
                    .filter(|(_, row)| (*from..=*to).contains(&row.at))
                    .collect();
                rows.sort_by_key(|(n, row)| (row.at, **n));
                rows.into_iter()
                    .map(|(_, row)| row)
                    .filter(mine)
                    .take(limit)
                    .map(FolderEntryRow::entry_hit)
                    .collect()
            }
        };
        EntrySearchResult {
            hits,
            ..EntrySearchResult::default()
        }
    }

    fn by_text(
        &self,
        store: &Store,
        whose: &ConversationFilter,
        text: &str,
        vector: Option<&Vector>,
        limit: usize,
    ) -> EntrySearchResult {
        let mine = |n: i64| {
            self.rows
                .get(&n)
                .is_some_and(|row| whose.includes_owner(&row.kept.mark.whose))
        };
        let Some(way) = way::vector_query(store, text, vector) else {
            return self.search_result(&self.index.find(text, limit, mine), SearchMethod::FullText, limit);
        };
        let depth = way::candidate_depth(limit);
        let numbers: Option<Vec<i64>> = match whose {
            ConversationFilter::All => None,
            ConversationFilter::Of(known) => Some(known.iter().map(|one| conversation_number(one)).collect()),
        };
        let keep = |whose: i64| whose == 0 || numbers.as_ref().is_none_or(|known| known.contains(&whose));
        let near = self
            .vectors
            .get(&way.model)
            .map(|matrix| matrix.nearest_rows(&way.query, depth.saturating_mul(2), keep));
        let near: Vec<(i64, f64)> = near
            .unwrap_or_default()
            .into_iter()
            .filter(|(n, score)| *score >= way.floor && mine(*n))
            .take(depth)
            .collect();
        if way.only {
            return self.search_result(&near, way.used, limit);
        }
        let fused = way.fuse_rankings(&self.index.find(text, depth, mine), &near);
        self.search_result(&fused, way.used, limit)
    }

    fn search_result(&self, ranked: &[(i64, f64)], used: SearchMethod, limit: usize) -> EntrySearchResult {
        let hits = ranked.iter().filter_map(|(n, score)| {
            let mut hit = self.rows.get(n)?.entry_hit();
            hit.entry.score = Some(*score);
            Some(hit)
        });
        EntrySearchResult {
            hits: hits.take(limit).collect(),
            used: Some(used),
            ..EntrySearchResult::default()
        }
    }
}
