//! Several rankings as one, with scores within 0..1.

use std::collections::HashMap;
use std::hash::Hash;

/// A ranking, the best first, and what it counts for.
#[derive(Debug, Clone, Copy)]
pub struct Leg<'a, K> {
    /// Scores within 0..1.
    pub ranked: &'a [(K, f64)],
    /// At least 0.
    pub weight: f64,
}

/// The constant of reciprocal-rank fusion: how little the first places differ.
const K: f64 = 60.0;

/// By places (`reciprocal-rank`): 1 for what is first everywhere.
#[must_use]
pub fn by_rank<I: Copy + Eq + Hash + Ord>(legs: &[Leg<'_, I>]) -> Vec<(I, f64)> {
    let ranks = std::iter::successors(Some(1.0_f64), |rank| Some(rank + 1.0));
    combined(legs, |leg| {
        let places = leg.ranked.iter().zip(ranks.clone());
        places
            .map(|((id, _), rank)| (*id, (K + 1.0) / (K + rank)))
            .collect()
    })
}

/// By scores (`linear-combination`): their weighted mean.
#[must_use]
pub fn by_score<I: Copy + Eq + Hash + Ord>(legs: &[Leg<'_, I>]) -> Vec<(I, f64)> {
    combined(legs, |leg| leg.ranked.to_vec())
}

fn combined<I: Copy + Eq + Hash + Ord>(
    legs: &[Leg<'_, I>],
    points: impl Fn(&Leg<'_, I>) -> Vec<(I, f64)>,
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
    // Equal scores: the later first, so that the answer is the same every time.
    fused.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    fused
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [(i32, f64); 3] = [(1, 0.9), (2, 0.8), (3, 0.2)];
    const MEANING: [(i32, f64); 3] = [(3, 0.99), (2, 0.5), (4, 0.4)];

    fn legs(weight: f64) -> [Leg<'static, i32>; 2] {
        let (words, meaning) = (&WORDS[..], &MEANING[..]);
        [
            Leg {
                ranked: words,
                weight: 1.0,
            },
            Leg {
                ranked: meaning,
                weight,
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
        }
        assert_eq!(by_rank(&legs(1.0))[0].0, 3, "first and third beat second twice");
        let all = [(7, 1.0)];
        let both = [
            Leg {
                ranked: &all[..],
                weight: 1.0,
            },
            Leg {
                ranked: &all[..],
                weight: 0.2,
            },
        ];
        assert!((by_rank(&both)[0].1 - 1.0).abs() < 1e-9);
        assert!((by_score(&both)[0].1 - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_light_leg_adds_and_does_not_overrule() {
        assert_eq!(by_rank(&legs(0.2))[0].0, 2, "the one that both know");
        assert_eq!(by_rank(&legs(0.0))[0].0, 1);
        assert!(by_rank(&legs(0.2)).iter().any(|(id, _)| *id == 4));
        assert!(by_rank::<i32>(&[]).is_empty());
    }
}
