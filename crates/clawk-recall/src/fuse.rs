//! Rank fusion: combines several rankings into one, with scores within 0..1.

use std::collections::HashMap;
use std::hash::Hash;

/// The meaning of a ranking's scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreMeaning {
    /// The share of the question that an entry answers. An entry that has one common word of five gets a score near 0, even if it
    /// is first.
    Share,
    /// Only the order. A model's cosines are in a narrow band, whether or not the entry fits the question.
    Order,
}

/// A ranking (best entry first) and its weight in the fusion.
#[derive(Debug, Clone, Copy)]
pub struct WeightedRanking<'a, K> {
    /// Entries with scores within 0..1.
    pub ranked: &'a [(K, f64)],
    /// The weight, at least 0.
    pub weight: f64,
    /// The meaning of the scores.
    pub scores: ScoreMeaning,
}

/// The constant of reciprocal-rank fusion. The usual value 60 is for lists of a thousand entries. These lists have a few hundred,
/// and only the first entries are read.
const K: f64 = 20.0;

/// The points of a rank are multiplied by the entry's share of the question to this power: an entry that answers a third of the
/// question is hardly an answer.
const SHARE_POWER: i32 = 3;

/// Fusion by rank (`reciprocal-rank`). The score is 1 for an entry that is first in every ranking and answers the whole question.
#[must_use]
pub fn by_rank<I: Copy + Eq + Hash + Ord>(legs: &[WeightedRanking<'_, I>]) -> Vec<(I, f64)> {
    let ranks = std::iter::successors(Some(1.0_f64), |rank| Some(rank + 1.0));
    combine_rankings(legs, |leg| {
        let places = leg.ranked.iter().zip(ranks.clone());
        let points = places.map(|((id, score), rank)| {
            let sure = match leg.scores {
                ScoreMeaning::Share => score.powi(SHARE_POWER),
                ScoreMeaning::Order => 1.0,
            };
            (*id, sure * (K + 1.0) / (K + rank))
        });
        points.collect()
    })
}

/// Fusion by score (`linear-combination`): the weighted mean of the scores. Scores that mean only an order are first spread over
/// 0..1.
#[must_use]
pub fn by_score<I: Copy + Eq + Hash + Ord>(legs: &[WeightedRanking<'_, I>]) -> Vec<(I, f64)> {
    combine_rankings(legs, |leg| match leg.scores {
        ScoreMeaning::Share => leg.ranked.to_vec(),
        ScoreMeaning::Order => spread_scores(leg.ranked),
    })
}

/// Spreads scores over 0..1: the nearest gets 1, the farthest 0. If all are equal, all get 1.
fn spread_scores<I: Copy>(ranked: &[(I, f64)]) -> Vec<(I, f64)> {
    let scores = || ranked.iter().map(|(_, score)| *score);
    let (low, high) = (scores().fold(1.0, f64::min), scores().fold(0.0, f64::max));
    let width = high - low;
    let even = |score: f64| if width > 0.0 { (score - low) / width } else { 1.0 };
    ranked.iter().map(|(id, score)| (*id, even(*score))).collect()
}

fn combine_rankings<I: Copy + Eq + Hash + Ord>(
    legs: &[WeightedRanking<'_, I>],
    points: impl Fn(&WeightedRanking<'_, I>) -> Vec<(I, f64)>,
) -> Vec<(I, f64)> {
    let total: f64 = legs.iter().map(|leg| leg.weight).sum();
    let mut sums: HashMap<I, f64> = HashMap::new();
    for leg in legs {
        for (id, point) in points(leg) {
            *sums.entry(id).or_default() += leg.weight * point / total.max(f64::MIN_POSITIVE);
        }
    }
    let mut fused: Vec<(I, f64)> = sums
        .into_iter()
        .map(|(id, sum)| (id, sum.clamp(0.0, 1.0)))
        .collect();
    // For equal scores, the later entry comes first, so that the result is always the same.
    fused.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [(i32, f64); 3] = [(1, 0.95), (2, 0.9), (3, 0.2)];
    const MEANING: [(i32, f64); 3] = [(3, 0.89), (2, 0.88), (4, 0.86)];

    fn legs(weight: f64) -> [WeightedRanking<'static, i32>; 2] {
        of(&WORDS, &MEANING, weight)
    }

    fn of<'a>(words: &'a [(i32, f64)], near: &'a [(i32, f64)], weight: f64) -> [WeightedRanking<'a, i32>; 2] {
        [
            WeightedRanking {
                ranked: words,
                weight: 1.0,
                scores: ScoreMeaning::Share,
            },
            WeightedRanking {
                ranked: near,
                weight,
                scores: ScoreMeaning::Order,
            },
        ]
    }

    #[test]
    fn scores_stay_within_one_and_both_legs_count() {
        for fused in [by_rank(&legs(1.0)), by_score(&legs(1.0))] {
            assert!(
                fused.iter().all(|(_, score)| (0.0..=1.0).contains(score)),
                "{fused:?}"
            );
            assert_eq!(fused.len(), 4);
            assert_eq!(fused[0].0, 2, "second in both beats first in one: {fused:?}");
        }
        let all = [(7, 1.0)];
        assert!((by_rank(&of(&all, &all, 0.2))[0].1 - 1.0).abs() < 1e-9);
        assert!((by_score(&of(&all, &all, 0.2))[0].1 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_light_leg_adds_and_does_not_overrule() {
        assert_eq!(by_rank(&legs(0.2))[0].0, 2, "the one that both know");
        assert_eq!(by_rank(&legs(0.0))[0].0, 1);
        assert!(by_rank(&legs(0.2)).iter().any(|(id, _)| *id == 4));
        assert!(by_rank::<i32>(&[]).is_empty());
    }

    #[test]
    fn an_entry_with_one_word_of_the_question_does_not_overrule_its_meaning() {
        // `8` and `9` have a common word of the question. `1` is the wanted entry, but has none of the words.
        let (words, near) = ([(8, 0.25), (9, 0.2)], [(1, 0.85), (9, 0.84), (8, 0.83)]);
        for fused in [
            by_rank(&of(&words, &near, 1.0)),
            by_score(&of(&words, &near, 1.0)),
        ] {
            assert_eq!(fused[0].0, 1, "{fused:?}");
        }
        // Only `8` has the number that the question asks for. The model's vectors do not see the difference.
        let (words, near) = (
            [(8, 0.95), (9, 0.3)],
            [(9, 0.91), (7, 0.909), (8, 0.908), (6, 0.8)],
        );
        for fused in [
            by_rank(&of(&words, &near, 1.0)),
            by_score(&of(&words, &near, 1.0)),
        ] {
            assert_eq!(fused[0].0, 8, "{fused:?}");
        }
    }
}
