//! Splits a text into tokens of the embedding table: WordPiece with MiniLM's uncased vocabulary.

use std::collections::HashMap;
use std::sync::OnceLock;

use icu_normalizer::DecomposingNormalizerBorrowed;

/// One token per line; the line number is the row in the table.
const VOCABULARY: &str = include_str!("../data/vocab.txt");

/// How many tokens of one text are used.
const MAX_TOKENS: usize = 512;

/// A longer word (in characters) is treated as unknown.
const MAX_WORD_CHARS: usize = 100;

/// The first row of a real token. Rows before it are `[PAD]`, unused ones, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`.
const FIRST_REAL: u16 = 999;

fn piece_vocabulary() -> &'static HashMap<&'static str, u16> {
    static KNOWN: OnceLock<HashMap<&'static str, u16>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let numbered = VOCABULARY.lines().zip(0_u16..);
        numbered.filter(|(_, row)| *row >= FIRST_REAL).collect()
    })
}

/// The table rows of a text's tokens. Unknown words are skipped.
pub(crate) fn text_tokens(text: &str) -> Vec<u16> {
    let known = piece_vocabulary();
    let mut rows = Vec::new();
    let lower: String = DecomposingNormalizerBorrowed::new_nfd()
        .normalize(text)
        .chars()
        .filter(|c| !is_accent(*c))
        .flat_map(char::to_lowercase)
        .collect();
    let mut rest = lower.as_str();
    while rows.len() < MAX_TOKENS {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { break };
        let end = if stands_alone(first) {
            first.len_utf8()
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || stands_alone(c));
            end.unwrap_or(rest.len())
        };
        let (word, behind) = rest.split_at_checked(end).unwrap_or((rest, ""));
        split_word(known, word, &mut rows);
        rest = behind;
    }
    rows.truncate(MAX_TOKENS);
    rows
}

/// Splits a word greedily, the longest token first. A word that can't be split completely is skipped.
fn split_word(known: &HashMap<&str, u16>, word: &str, rows: &mut Vec<u16>) {
    if word.chars().count() > MAX_WORD_CHARS {
        return;
    }
    let (before, mut rest, mut front) = (rows.len(), word, "");
    let mut piece = String::new();
    while !rest.is_empty() {
        let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
        let found = ends.into_iter().find_map(|end| {
            let text = rest.get(..end)?;
            piece.clear();
            piece.push_str(front);
            piece.push_str(text);
            known.get(piece.as_str()).map(|row| (*row, end))
        });
        let Some((row, end)) = found else {
            rows.truncate(before);
            return;
        };
        rows.push(row);
        (rest, front) = (rest.get(end..).unwrap_or_default(), "##");
    }
}

pub(crate) const fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

/// Whether this character is a word of its own: punctuation, symbols and ideographs are.
fn stands_alone(c: char) -> bool {
    let ideograph = matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}');
    ideograph || !(c.is_alphanumeric() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<&'static str> {
        let names: Vec<&str> = VOCABULARY.lines().collect();
        text_tokens(text)
            .into_iter()
            .map(|row| names[usize::from(row)])
            .collect()
    }

    #[test]
    fn words_split_into_the_longest_pieces() {
        assert_eq!(pieces("Hello, WORLD!"), ["hello", ",", "world", "!"]);
        assert_eq!(pieces("unaffable"), ["una", "##ffa", "##ble"]);
        assert_eq!(pieces("Müller café"), ["muller", "cafe"]);
        assert_eq!(pieces("日本 x"), ["日", "本", "x"]);
    }

    #[test]
    fn what_is_unknown_is_left_out_and_length_is_bounded() {
        assert!(text_tokens(&"a".repeat(101)).is_empty());
        assert!(text_tokens("[UNK] \u{10ffff}").len() < 5);
        assert_eq!(text_tokens(&"word ".repeat(5000)).len(), MAX_TOKENS);
    }
}
