//! How a text is searched in a store, the same for every back end: by words, by vectors, or both, and how they are fused.

use std::hash::Hash;

use clawk_manifest::model::{RetrievalMode, SearchFusion, SearchStrategy, Store};

use crate::compact::model_of;
use crate::entry::{SearchMethod, Vector};
use crate::fuse::{self, ScoreMeaning, WeightedRanking};
use crate::table;

/// Candidates that each ranking brings into the fusion, at least.
const PER_LEG: usize = 50;

/// How many candidates each ranking brings for an answer of so many.
#[must_use]
pub fn depth(limit: usize) -> usize {
    PER_LEG.max(limit.saturating_mul(2))
}

/// The store's strategy; `lifecycle.retrieval` (0.3.0) says it for stores whose `search` says nothing.
#[must_use]
pub fn strategy(store: &Store) -> SearchStrategy {
    let retrieval = store.lifecycle.as_ref().and_then(|lifecycle| lifecycle.retrieval);
    match (store.search.strategy, retrieval) {
        (SearchStrategy::Hybrid, Some(RetrievalMode::Exact)) => SearchStrategy::FtsOnly,
        (SearchStrategy::Hybrid, Some(RetrievalMode::Semantic)) => SearchStrategy::VectorOnly,
        (strategy, _) => strategy,
    }
}

/// A question with a vector of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct VectorQuery {
    /// `static` or `PROVIDER/MODEL`: vectors of this model are compared.
    pub model: String,
    /// The question's vector.
    pub query: Vec<f32>,
    /// What is less alike than this does not count.
    pub floor: f64,
    /// Vectors count alone.
    pub only: bool,
    /// What the answer says of the search.
    pub used: SearchMethod,
    weight: f64,
    fusion: SearchFusion,
}

/// How this text is searched in the store; `None`: by words alone. `vector` is the question's, by the store's embedding model; one
/// of another model does not count.
#[must_use]
pub fn near(store: &Store, text: &str, vector: Option<&Vector>) -> Option<VectorQuery> {
    let model = model_of(store)?;
    let built_in = model == table::NAME;
    let query = match vector {
        Some(vector) if vector.model == model => vector.values.clone(),
        Some(_) => return None,
        None if built_in => table::embed(text)?,
        None => return None,
    };
    let only = strategy(store) == SearchStrategy::VectorOnly;
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
    /// Both rankings as one, the best first.
    #[must_use]
    pub fn fused<I: Copy + Eq + Hash + Ord>(&self, words: &[(I, f64)], near: &[(I, f64)]) -> Vec<(I, f64)> {
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
            // What `search` says is nearer to the matter.
            (
                json!({"search": {"strategy": "fts-only"}, "lifecycle": {"retrieval": "semantic"}}),
                SearchStrategy::FtsOnly,
            ),
        ] {
            let mut spec = spec;
            spec["name"] = json!("s");
            spec["type"] = json!("semantic");
            let store: Store = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(strategy(&store), wanted, "{spec}");
            let near = near(&store, "the doctor", None);
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
