//! A word index in memory. It serves stores whose texts must not be readable on a disk, and stores in files of their own.

use std::collections::{BTreeMap, HashMap};

use crate::words::{self, QueryTerm};

/// The maximum number of entries whose text is scored for one question.
const MAX_RANKED: usize = 256;

/// Maps words to the entries that contain them.
#[derive(Debug, Default)]
pub struct Index {
    held: HashMap<String, BTreeMap<i64, ()>>,
    texts: HashMap<i64, String>,
}

/// The first letters of a word. Words are indexed by them, so that forms of one word are found together.
fn word_stem(word: &str) -> &str {
    let end = word.char_indices().nth(6).map_or(word.len(), |(at, _)| at);
    let whole = word.get(..end).unwrap_or(word);
    if word.len() > 4 && end == word.len() {
        let endings = ["ing", "ed", "es", "s"];
        let cut = endings.iter().find_map(|ending| whole.strip_suffix(ending));
        return cut.filter(|rest| rest.len() >= 3).unwrap_or(whole);
    }
    whole
}

/// The stems of a text's words, as the index stores them: all forms of one word have the same stem. Repeated words are repeated.
pub fn text_stems(text: &str) -> impl Iterator<Item = String> + '_ {
    words::folded_words(text).map(|word| word_stem(&word).to_owned())
}

impl Index {
    /// Adds a text under the number `n`, and replaces an earlier text with that number.
    pub fn add(&mut self, n: i64, text: String) {
        self.remove(n);
        for word in words::folded_words(&text) {
            self.held
                .entry(word_stem(&word).to_owned())
                .or_default()
                .insert(n, ());
        }
        self.texts.insert(n, text);
    }

    /// Removes a text.
    pub fn remove(&mut self, n: i64) {
        let Some(text) = self.texts.remove(&n) else { return };
        for word in words::folded_words(&text) {
            let stem = word_stem(&word);
            if let Some(rows) = self.held.get_mut(stem) {
                rows.remove(&n);
                if rows.is_empty() {
                    self.held.remove(stem);
                }
            }
        }
    }

    /// Searches entries: the best first, with scores within 0..1. Only entries that `keep` accepts are returned.
    #[must_use]
    pub fn find(&self, question: &str, limit: usize, keep: impl Fn(i64) -> bool) -> Vec<(i64, f64)> {
        let mut found: HashMap<i64, f64> = HashMap::new();
        let mut terms = Vec::new();
        let total = real(self.texts.len());
        for text in words::query_terms(question) {
            let rows = self.held.get(word_stem(&text));
            let weight = words::word_rarity(total, real(rows.map_or(0, BTreeMap::len)));
            for n in rows
                .into_iter()
                .flat_map(BTreeMap::keys)
                .rev()
                .filter(|n| keep(**n))
            {
                *found.entry(*n).or_default() += weight;
            }
            terms.push(QueryTerm { text, weight });
        }
        let mut likely: Vec<(i64, f64)> = found.into_iter().collect();
        likely.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
        likely.truncate(MAX_RANKED.max(limit));
        let scored = likely.into_iter().map(|(n, known)| {
            let text = self.texts.get(&n).map(String::as_str).unwrap_or_default();
            (n, words::text_score(&terms, text, known))
        });
        let mut ranked: Vec<(i64, f64)> = scored.collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
        ranked.truncate(limit);
        ranked
    }
}

/// Converts a count; the counts here are far below 2^53, so this is exact.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
const fn real(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_with_the_rarest_words_comes_first() {
        let mut index = Index::default();
        index.add(1, "the pipeline of the water works was repaired".to_owned());
        index.add(
            2,
            "Q4 revenue projected at 2.1M based on current pipeline".to_owned(),
        );
        index.add(3, "revenue of last year".to_owned());
        let found = index.find("revenue projections Q4", 5, |_| true);
        assert_eq!(found.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [2, 3]);
        assert!(found.iter().all(|(_, score)| (0.0..=1.0).contains(score)));
        assert_eq!(index.find("pipelines", 5, |n| n != 2)[0].0, 1);
        index.remove(2);
        index.remove(2);
        assert_eq!(index.find("revenue", 5, |_| true).len(), 1);
        assert!(index.find("nothing like it", 5, |_| true).is_empty());
        assert!(index.find("\"; OR (", 5, |_| true).is_empty());
    }
}
