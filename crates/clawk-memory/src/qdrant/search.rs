//! Search on Qdrant: by words, by vectors, by key, by time.

use std::collections::{BTreeSet, HashMap};

use clawk_core::ports::{MemoryError, MemorySearch, StoreQuery};
use clawk_manifest::model::{Store, StoreType};
use clawk_recall::entry::{ConversationFilter, EntryHit, EntrySearchResult, SearchMethod, Vector};
use clawk_recall::way::{self, VectorQuery};
use clawk_recall::words::{self, QueryTerm};
use clawk_recall::{index, table};
use serde_json::{Value, json};

use super::row::{PointPayload, STATIC, WORDS, match_condition, of_owner, sparse_indices};
use super::{PointPage, QdrantCollection, QdrantPoint, all_conditions, live_conditions};

/// The maximum number of entries whose text is scored for one question.
const MAX_RANKED: usize = 256;

/// Identifies an entry in a ranking: its number, then its index in [`FoundRows`]. Of two equal entries the newer one comes first.
type RankKey = (i64, usize);

/// The entries that a query found, each once.
#[derive(Default)]
struct FoundRows {
    rows: Vec<PointPayload>,
    at: HashMap<String, usize>,
}

impl FoundRows {
    fn add_point(&mut self, point: QdrantPoint) -> Option<RankKey> {
        let row = point.payload?;
        let n = row.n;
        let rows = &mut self.rows;
        let index = *self.at.entry(point.id).or_insert_with(|| {
            rows.push(row);
            rows.len() - 1
        });
        Some((n, index))
    }

    fn ranked_hits(&self, ranked: &[(RankKey, f64)], limit: usize) -> Vec<EntryHit> {
        let hits = ranked.iter().filter_map(|((_, index), score)| {
            let mut hit = self.rows.get(*index)?.entry_hit();
            hit.entry.score = Some(score.clamp(0.0, 1.0));
            Some(hit)
        });
        hits.take(limit).collect()
    }
}

/// Converts a count; the counts here are far below 2^53, so this is exact.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
const fn to_f64(count: u64) -> f64 {
    count as f64
}

impl QdrantCollection<'_> {
    pub(super) async fn search_entries(
        self,
        store: &Store,
        scope: &str,
        ask: &MemorySearch,
    ) -> Result<EntrySearchResult, MemoryError> {
        let mut conditions = live_conditions(scope);
        conditions.extend(of_owner(&ask.whose));
        let rows = match &ask.query {
            StoreQuery::Text(text) => {
                return self
                    .by_text(
                        store,
                        (conditions, scope, &ask.whose),
                        text,
                        ask.vector.as_ref(),
                        ask.limit,
                    )
                    .await;
            }
            StoreQuery::Key(key) => {
                let mut named = vec![match_condition("key", key)];
                if store.kind != StoreType::KeyValue {
                    named.push(match_condition("id", key));
                }
                conditions.push(json!({"should": named}));
                self.ordered_entries(conditions, ("n", true), ask.limit).await?
            }
            StoreQuery::Between(from, to) => {
                conditions.push(json!({"key": "at", "range": {"gte": from.0, "lte": to.0}}));
                self.ordered_entries(conditions, ("at", false), ask.limit).await?
            }
        };
        Ok(EntrySearchResult {
            hits: rows.iter().map(PointPayload::entry_hit).collect(),
            ..EntrySearchResult::default()
        })
    }

    async fn by_text(
        self,
        store: &Store,
        (conditions, scope, whose): (Vec<Value>, &str, &ConversationFilter),
        text: &str,
        vector: Option<&Vector>,
        limit: usize,
    ) -> Result<EntrySearchResult, MemoryError> {
        let way = way::vector_query(store, text, vector);
        let mut seen = FoundRows::default();
        let depth = if way.is_some() {
            way::candidate_depth(limit)
        } else {
            limit
        };
        let near = match &way {
            Some(way) => {
                self.nearest_entries(way, &conditions, (scope, whose), depth, &mut seen)
                    .await?
            }
            None => Vec::new(),
        };
        let (ranked, used) = match &way {
            Some(way) if way.only => (near, way.used),
            Some(way) => {
                let words = self.by_words(&conditions, text, depth, &mut seen).await?;
                (way.fuse_rankings(&words, &near), way.used)
            }
            None => (
                self.by_words(&conditions, text, depth, &mut seen).await?,
                SearchMethod::FullText,
            ),
        };
        Ok(EntrySearchResult {
            hits: seen.ranked_hits(&ranked, limit),
            used: Some(used),
            ..EntrySearchResult::default()
        })
    }

    /// Searches by words. The server finds entries with the rarest words and tells how rare each word is. The texts are then scored
    /// here.
    async fn by_words(
        self,
        conditions: &[Value],
        question: &str,
        limit: usize,
        seen: &mut FoundRows,
    ) -> Result<Vec<(RankKey, f64)>, MemoryError> {
        let terms = words::query_terms(question);
        let stems: Vec<Vec<u32>> = terms
            .iter()
            .map(|term| {
                sparse_indices(
                    index::text_stems(term)
                        .collect::<Vec<_>>()
                        .iter()
                        .map(String::as_str),
                )
            })
            .collect();
        let every: BTreeSet<u32> = stems.iter().flatten().copied().collect();
        if every.is_empty() {
            return Ok(Vec::new());
        }
        let filter = all_conditions(conditions.iter().cloned());
        let query = |numbers: &[u32], limit: usize, with_payload: bool| {
            json!({
                "query": {"indices": numbers, "values": vec![1.0_f32; numbers.len()]},
                "using": WORDS,
                "filter": filter,
                "limit": limit,
                "with_payload": with_payload,
            })
        };
        // In a search for one word alone, the best score is the word's rarity.
        let asked: Vec<&Vec<u32>> = stems.iter().filter(|numbers| !numbers.is_empty()).collect();
        let mut searches: Vec<Value> = asked.iter().map(|numbers| query(numbers, 1, false)).collect();
        let every: Vec<u32> = every.into_iter().collect();
        searches.push(query(&every, MAX_RANKED.max(limit), true));
        let body = json!({ "searches": searches });
        let found: Option<Vec<PointPage>> = self.post_request(&["points", "query", "batch"], &body).await?;
        let Some(mut found) = found else {
            return Ok(Vec::new());
        };
        let likely = found.pop().map(|found| found.points).unwrap_or_default();
        let mut rarities = found
            .into_iter()
            .map(|found| found.points.first().map(|point| point.score));
        let total = to_f64(self.count_entries(Vec::new()).await?);
        let terms: Vec<QueryTerm> = terms
            .into_iter()
            .zip(&stems)
            .map(|(text, numbers)| {
                let told = (!numbers.is_empty()).then(|| rarities.next().flatten()).flatten();
                QueryTerm {
                    text,
                    weight: told.unwrap_or_else(|| words::word_rarity(total, 0.0)),
                }
            })
            .collect();
        let mut ranked: Vec<(RankKey, f64)> = likely
            .into_iter()
            .filter_map(|point| {
                let known = point.score;
                let which = seen.add_point(point)?;
                let row = seen.rows.get(which.1)?;
                Some((which, words::text_score(&terms, &row.text(), known)))
            })
            .collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
        ranked.truncate(limit);
        Ok(ranked)
    }

    /// Searches by vectors, nearest first.
    async fn nearest_entries(
        self,
        way: &VectorQuery,
        conditions: &[Value],
        (scope, whose): (&str, &ConversationFilter),
        limit: usize,
        seen: &mut FoundRows,
    ) -> Result<Vec<(RankKey, f64)>, MemoryError> {
        let points = if way.model == table::NAME {
            let body = json!({
                "query": way.query,
                "using": STATIC,
                "filter": all_conditions(conditions.iter().cloned()),
                "limit": limit,
                "score_threshold": way.floor,
                "with_payload": true,
            });
            let found: Option<PointPage> = self.post_request(&["points", "query"], &body).await?;
            found.map(|found| found.points).unwrap_or_default()
        } else {
            self.near_by_model(way, conditions, (scope, whose), limit).await?
        };
        let ranked = points
            .into_iter()
            .filter(|point| point.score > 0.0 && point.score >= way.floor);
        Ok(ranked
            .filter_map(|point| {
                let score = point.score.clamp(0.0, 1.0);
                Some((seen.add_point(point)?, score))
            })
            .collect())
    }

    /// Searches the model's vector collection, and then fetches the entries of the nearest vectors.
    async fn near_by_model(
        self,
        way: &VectorQuery,
        conditions: &[Value],
        (scope, whose): (&str, &ConversationFilter),
        limit: usize,
    ) -> Result<Vec<QdrantPoint>, MemoryError> {
        let of: Vec<Value> = std::iter::once(match_condition("scope", scope))
            .chain(of_owner(whose))
            .collect();
        let body =
            json!({"query": way.query, "filter": all_conditions(of), "limit": limit, "with_payload": false});
        let name = self.of_model(&way.model);
        let found: Option<PointPage> = self
            .server
            .post_request(&name, &["points", "query"], &body)
            .await?;
        let near = found.map(|found| found.points).unwrap_or_default();
        if near.is_empty() {
            return Ok(near);
        }
        let ids: Vec<&String> = near.iter().map(|point| &point.id).collect();
        let mut conditions = conditions.to_vec();
        conditions.push(json!({ "has_id": ids }));
        let rows = self.all_points(conditions).await?;
        let mut rows: HashMap<String, Option<PointPayload>> =
            rows.into_iter().map(|point| (point.id, point.payload)).collect();
        let with = near.into_iter().filter_map(|point| {
            let payload = rows.remove(&point.id)?;
            Some(QdrantPoint { payload, ..point })
        });
        Ok(with.collect())
    }
}
