//! How a store is searched by text, the same for every back end: by words, by vectors or both, and how the rankings are fused.

use std::hash::Hash;

use clawk_manifest::model::{RetrievalMode, SearchFusion, SearchStrategy, Store};

use crate::compact::model_of;
use crate::entry::{SearchMethod, Vector};
use crate::fuse::{self, ScoreMeaning, WeightedRanking};
use crate::table;

/// The minimum number of candidates that each ranking gives to the fusion.
const PER_LEG: usize = 50;

/// How many candidates each ranking gives to the fusion for a result of `limit` entries.
#[must_use]
pub fn candidate_depth(limit: usize) -> usize {
    PER_LEG.max(limit.saturating_mul(2))
}

/// The store's search strategy. If `search` does not set it, `lifecycle.retrieval` (0.3.0) decides.
#[must_use]
pub fn search_strategy(store: &Store) -> SearchStrategy {
    let retrieval = store.lifecycle.as_ref().and_then(|lifecycle| lifecycle.retrieval);
    match (store.search.strategy, retrieval) {
        (SearchStrategy::Hybrid, Some(RetrievalMode::Exact)) => SearchStrategy::FtsOnly,
        (SearchStrategy::Hybrid, Some(RetrievalMode::Semantic)) => SearchStrategy::VectorOnly,
        (strategy, _) => strategy,
    }
}

/// A search by vectors: the question's vector, and how to use the ranking.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorQuery {
    /// `static` or `PROVIDER/MODEL`. Only vectors of this model are compared.
    pub model: String,
    /// The vector of the question.
    pub query: Vec<f32>,
    /// Entries with a smaller cosine than this are ignored.
    pub floor: f64,
    /// Whether only vectors count, not words.
    pub only: bool,
    /// The search method that the result reports.
    pub used: SearchMethod,
    weight: f64,
    fusion: SearchFusion,
}

/// Decides how this text is searched by vectors. `None`: by words only. `vector` is the question's vector from the store's
/// embedding model; a vector of another model is not used.
#[must_use]
pub fn vector_query(store: &Store, text: &str, vector: Option<&Vector>) -> Option<VectorQuery> {
    let model = model_of(store)?;
    let built_in = model == table::NAME;
    let query = match vector {
        Some(vector) if vector.model == model => vector.values.clone(),
        Some(_) => return None,
        None if built_in => table::embed_text(text)?,
        None => return None,
    };
    let only = search_strategy(store) == SearchStrategy::VectorOnly;
    Some(VectorQuery {
        model,
        query,
        floor: if built_in { table::FLOOR } else { 0.0 },
        only,
        used: match (built_in, only) {
            (true, _) => SearchMethod::Static,
            (false, true) => SearchMethod::Vector,
            (false, false) => SearchMethod::Hybrid,
        },
        weight: if built_in { table::WEIGHT } else { 1.0 },
        fusion: store.search.fusion,
    })
}

impl VectorQuery {
    /// Combines the rankings by words and by vectors into one, best entry first.
    #[must_use]
    pub fn fuse_rankings<I: Copy + Eq + Hash + Ord>(
        &self,
        words: &[(I, f64)],
        near: &[(I, f64)],
    ) -> Vec<(I, f64)> {
        let legs = [
            WeightedRanking {
                ranked: words,
                weight: 1.0,
                scores: ScoreMeaning::Share,
            },
            WeightedRanking {
                ranked: near,
                weight: self.weight,
                scores: ScoreMeaning::Order,
            },
        ];
        match self.fusion {
            SearchFusion::ReciprocalRank => fuse::by_rank(&legs),
            SearchFusion::LinearCombination => fuse::by_score(&legs),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn retrieval_says_how_a_store_is_searched() {
        for (spec, wanted) in [
            (json!({}), SearchStrategy::Hybrid),
            (
                json!({"lifecycle": {"retrieval": "hybrid"}}),
                SearchStrategy::Hybrid,
            ),
            (
                json!({"lifecycle": {"retrieval": "contextual"}}),
                SearchStrategy::Hybrid,
            ),
            (
                json!({"lifecycle": {"retrieval": "exact"}}),
                SearchStrategy::FtsOnly,
            ),
            (
                json!({"lifecycle": {"retrieval": "semantic"}}),
                SearchStrategy::VectorOnly,
            ),
            // `search` overrides `lifecycle`, because it is more specific.
            (
                json!({"search": {"strategy": "fts-only"}, "lifecycle": {"retrieval": "semantic"}}),
                SearchStrategy::FtsOnly,
            ),
        ] {
            let mut spec = spec;
            spec["name"] = json!("s");
            spec["type"] = json!("semantic");
            let store: Store = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(search_strategy(&store), wanted, "{spec}");
            let near = vector_query(&store, "the doctor", None);
            assert_eq!(
                near.map(|near| near.only),
                match wanted {
                    SearchStrategy::FtsOnly => None,
                    SearchStrategy::VectorOnly => Some(true),
                    SearchStrategy::Hybrid => Some(false),
                }
            );
        }
    }
}
