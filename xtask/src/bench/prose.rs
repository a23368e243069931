//! Generates text that resembles a person's: English words with their natural frequency (Zipf's law). The same number gives the
//! same text in every run.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::run::root;

/// The vocabulary of the built-in word vectors, ordered by frequency, most common first.
const VOCABULARY: &str = "crates/clawk-recall/data/vocab.txt";
const WORDS: usize = 20_000;
/// Zipf and Mandelbrot: a word's frequency is `1 / (rank + SHIFT)`.
const SHIFT: f64 = 2.7;
/// Ranks below this are too common to be rare words of a question.
const RARE: usize = 60;

/// A generator of texts.
#[derive(Debug)]
pub(crate) struct Prose {
    words: Vec<String>,
    /// Cumulative frequency of the words up to each rank.
    upto: Vec<f64>,
}

impl Prose {
    /// Reads the vocabulary.
    ///
    /// # Errors
    /// The file is missing.
    pub(crate) fn load() -> Result<Self> {
        let path = root().join(VOCABULARY);
        let text = fs::read_to_string(&path).with_context(|| format!("can't read `{}`", path.display()))?;
        let words: Vec<String> = text
            .lines()
            .filter(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_lowercase()))
            .take(WORDS)
            .map(str::to_owned)
            .collect();
        ensure!(words.len() == WORDS, "`{VOCABULARY}` holds too few words");
        let mut sum = 0.0;
        let often = words.iter().zip(0_u32..).map(|(_, rank)| {
            sum += 1.0 / (f64::from(rank) + SHIFT);
            sum
        });
        let upto = often.collect();
        Ok(Self { words, upto })
    }

    /// Returns a text of exactly `characters` characters, which is different for each number.
    pub(crate) fn text(&self, number: u32, characters: usize) -> String {
        let mut state = u64::from(number);
        let mut text = format!("note {number}:");
        while text.len() < characters {
            text.push(' ');
            text.push_str(self.word(random(&mut state), 0));
        }
        text.truncate(characters);
        text
    }

    /// Returns a question with four words chosen by its number; three of them are rare.
    pub(crate) fn question(&self, number: u32) -> String {
        let mut state = u64::from(number) | 1 << 40;
        let mut word = |from| self.word(random(&mut state), from).to_owned();
        let (a, b, c) = (word(RARE), word(RARE), word(RARE));
        format!("what did {} say of the {a} {b} and {c}", word(0))
    }

    /// Returns the word at a share (0 to 2^64) of the cumulative frequency, from a rank on.
    fn word(&self, share: u64, from: usize) -> &str {
        let total = self.upto.last().copied().unwrap_or(0.0);
        let before = from
            .checked_sub(1)
            .and_then(|last| self.upto.get(last))
            .copied()
            .unwrap_or(0.0);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let wanted = before + (total - before) * (share as f64 / u64::MAX as f64);
        let at = self.upto.partition_point(|upto| *upto < wanted);
        self.words.get(at).map_or("the", String::as_str)
    }
}

/// Returns the next number of a sequence (splitmix64).
pub(crate) fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Prose;

    #[test]
    fn a_number_has_a_text_of_its_own_and_common_words_are_common() {
        let prose = Prose::load().unwrap();
        let text = prose.text(7, 1_000);
        assert_eq!(text.len(), 1_000);
        assert_eq!(text, prose.text(7, 1_000));
        assert_ne!(prose.text(1, 200), prose.text(2, 200));
        let all: String = (0..100).map(|n| prose.text(n, 1_000)).collect();
        let times = |word: &str| all.split(' ').filter(|one| *one == word).count();
        assert!(times("the") > 200, "{}", times("the"));
        assert!(times("garden") < 20, "{}", times("garden"));
        assert_eq!(prose.question(3).split(' ').count(), 10);
    }
}
