//! Splits texts and questions into words, and scores how much of a question a text answers.

use icu_normalizer::DecomposingNormalizerBorrowed;
use serde_json::Value;

use crate::pieces::is_accent;

/// How much text of one entry is indexed, in bytes.
const MAX_INDEXED_BYTES: usize = 256 * 1024;

/// How many words of a question are used.
pub const MAX_TERMS: usize = 16;

/// Stop words. They count only if the question has no other words.
const STOP: [&str; 73] = [
    "a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "been", "but", "by", "can", "could",
    "did", "do", "does", "for", "from", "had", "has", "have", "he", "her", "his", "how", "i", "if", "in",
    "is", "it", "its", "know", "me", "my", "no", "not", "of", "on", "or", "our", "please", "she", "should",
    "so", "some", "tell", "that", "the", "their", "them", "there", "they", "this", "to", "us", "was", "we",
    "were", "what", "when", "where", "which", "who", "why", "will", "with", "would", "you", "your", "der",
    "die",
];

/// All text of an entry: the key, and strings and numbers at any depth.
#[must_use]
pub fn text_of(content: &Value, key: Option<&str>) -> String {
    let mut out = String::new();
    if let Some(key) = key {
        out.extend([key, " "]);
    }
    collect_words(content, &mut out);
    out
}

fn collect_words(value: &Value, out: &mut String) {
    if out.len() > MAX_INDEXED_BYTES {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::Number(number) => out.extend([number.to_string().as_str(), " "]),
        Value::String(text) => {
            let room = MAX_INDEXED_BYTES.saturating_sub(out.len());
            let kept = text.get(..text.floor_char_boundary(room)).unwrap_or_default();
            out.extend([kept, " "]);
        }
        Value::Array(items) => items.iter().for_each(|item| collect_words(item, out)),
        Value::Object(members) => members.values().for_each(|member| collect_words(member, out)),
    }
}

/// The distinct words of a question in lower case and in order, at most [`MAX_TERMS`]. Stop words are dropped, unless there are no
/// other words.
#[must_use]
pub fn query_terms(question: &str) -> Vec<String> {
    let telling = distinct_words(folded_words(question).filter(|word| !STOP.contains(&word.as_str())));
    if telling.is_empty() {
        distinct_words(folded_words(question))
    } else {
        telling
    }
}

fn distinct_words(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut terms: Vec<String> = Vec::new();
    for word in words {
        if terms.len() == MAX_TERMS {
            break;
        }
        if !terms.contains(&word) {
            terms.push(word);
        }
    }
    terms
}

/// The words of a text as the full-text index stores them: lower case, without accents.
pub fn folded_words(text: &str) -> impl Iterator<Item = String> + '_ {
    written_words(text).map(fold_word)
}

/// The words of a text, unchanged.
fn written_words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || is_accent(c)))
        .filter(|word| !word.is_empty())
}

/// Whether a word can't match any of the terms, by its first letter. This quick check avoids a copy for most words of a text.
fn is_other(word: &str, terms: &[QueryTerm]) -> bool {
    let first = |text: &str| text.bytes().next().map(|byte| byte.to_ascii_lowercase());
    word.is_ascii() && terms.iter().all(|term| first(&term.text) != first(word))
}

fn fold_word(word: &str) -> String {
    if word.is_ascii() {
        return word.to_ascii_lowercase();
    }
    let decomposed = DecomposingNormalizerBorrowed::new_nfd().normalize(word);
    let letters = decomposed.chars().filter(|c| !is_accent(*c));
    letters.flat_map(char::to_lowercase).collect()
}

/// Whether two words are forms of one word: equal, or different only in a short ending (like a stemmer).
#[must_use]
pub fn same_word(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let common = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    common >= 4 && a.len().max(b.len()) - common <= 3
}

/// One word of a question, with its weight. Rare words have a higher weight.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryTerm {
    /// The word, in lower case.
    pub text: String,
    /// The weight, at least 0.
    pub weight: f64,
}

/// BM25's weight of a word that occurs in `held` of `total` entries.
#[must_use]
pub fn word_rarity(total: f64, held: f64) -> f64 {
    (1.0 + (total - held + 0.5).max(0.0) / (held + 0.5)).ln()
}

/// The share (0..1) of the question's weight that a text contains. A long text that contains a word only once gets a little less.
/// `known` is the part of that weight that an index has found already.
#[must_use]
pub fn text_score(terms: &[QueryTerm], text: &str, known: f64) -> f64 {
    let total: f64 = terms.iter().map(|term| term.weight).sum();
    let mut counts = vec![0_i32; terms.len()];
    let mut length = 0_i32;
    for word in written_words(text) {
        length += 1;
        if is_other(word, terms) {
            continue;
        }
        let word = fold_word(word);
        for (count, term) in counts.iter_mut().zip(terms) {
            *count += i32::from(same_word(&word, &term.text));
        }
    }
    let held: f64 = counts
        .iter()
        .zip(terms)
        .filter(|(count, _)| **count > 0)
        .map(|(_, term)| term.weight)
        .sum();
    let hits = f64::from(counts.iter().sum::<i32>());
    let density = hits / (hits + 1.0 + 0.02 * f64::from(length));
    let coverage = if total > 0.0 { held.max(known) / total } else { 0.0 };
    (coverage.min(1.0) * (0.8 + 0.2 * density)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn term(text: &str) -> QueryTerm {
        QueryTerm {
            text: text.to_owned(),
            weight: 1.0,
        }
    }

    proptest! {
        /// A word that the first-letter check rejects is never a form of a term.
        #[test]
        fn no_word_is_left_out_that_counts(word in "[a-zA-Zäöüé0-9]{1,9}", text in "[a-zA-Zäöüé0-9]{1,9}") {
            for other in [text, word.clone() + "s", word.to_uppercase()] {
                let terms = [term(&fold_word(&other))];
                prop_assert!(!is_other(&word, &terms) || !same_word(&fold_word(&word), &terms[0].text));
            }
        }
    }

    #[test]
    fn forms_of_a_word_count_in_any_case() {
        let terms = [term("garden"), term("muller")];
        let held = |text| text_score(&terms, text, 0.0);
        assert!(held("The GARDENS of Müller") > held("the gardens"));
        assert!(held("the gardens") > held("a winter"));
        assert_eq!(held("a winter"), 0.0);
    }
}
