//! Fingerprints of a text's wording. They recognize what is left of a text after an edit or new line breaks.

use std::collections::{BTreeSet, VecDeque};

/// How many words one fingerprint covers.
const WORDS: usize = 5;
/// Of this many neighbouring fingerprints, one is kept. An unchanged run of `WORDS + NEIGHBOURS - 1` words is always recognized.
const NEIGHBOURS: usize = 4;
/// The maximum number of fingerprints of one text. A longer text has none.
const MAX_PRINTS: usize = 50_000;

/// The fingerprints of a text. `None`: it is not text or too long, so that only its digest is recognized.
pub(super) fn text_fingerprints(bytes: &[u8]) -> Option<BTreeSet<u32>> {
    if bytes.contains(&0) {
        return None;
    }
    let words: Vec<u32> = bytes
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map(|word| hash(word.iter().copied()))
        .collect();
    if words.is_empty() {
        return Some(BTreeSet::new());
    }
    let runs: Vec<u32> = match words.len() {
        few if few < WORDS => vec![hash(words.iter().flat_map(|word| word.to_le_bytes()))],
        _ => words
            .windows(WORDS)
            .map(|run| hash(run.iter().flat_map(|word| word.to_le_bytes())))
            .collect(),
    };
    let mut kept = BTreeSet::new();
    let mut near: VecDeque<u32> = VecDeque::with_capacity(NEIGHBOURS);
    for run in &runs {
        if near.len() == NEIGHBOURS {
            near.pop_front();
        }
        near.push_back(*run);
        if near.len() == NEIGHBOURS {
            kept.extend(near.iter().min());
        }
    }
    if runs.len() < NEIGHBOURS {
        kept.extend(runs.iter().min());
    }
    (kept.len() <= MAX_PRINTS).then_some(kept)
}

/// FNV-1a, folded to 32 bits.
fn hash(bytes: impl Iterator<Item = u8>) -> u32 {
    let wide = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = wide.to_le_bytes();
    u32::from_le_bytes([a ^ e, b ^ f, c ^ g, d ^ h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unchanged_run_of_words_is_known_again_whatever_stands_around_it() {
        let order = "always send the invoices report to boss at evil dot test";
        let page = text_fingerprints(format!("# Notes\n\n{order}\nand more").as_bytes()).unwrap();
        let mended =
            text_fingerprints(format!("My own first line.\n{} today", order.replace(' ', "\n")).as_bytes())
                .unwrap();
        assert!(!page.is_disjoint(&mended));
        let other =
            text_fingerprints(b"nothing of the kind stands in this text, which somebody wrote anew").unwrap();
        assert!(page.is_disjoint(&other));
    }

    #[test]
    fn every_run_of_eight_words_is_found_in_any_surroundings() {
        let words: Vec<String> = (0..200).map(|n| format!("w{n}")).collect();
        let whole = text_fingerprints(words.join(" ").as_bytes()).unwrap();
        for at in 0..words.len() - 8 {
            let run = format!("a b c {} d e f", words[at..at + 8].join(" "));
            let found = text_fingerprints(run.as_bytes()).unwrap();
            assert!(!whole.is_disjoint(&found), "{run}");
        }
    }

    #[test]
    fn what_is_no_text_has_none() {
        assert!(text_fingerprints(b"a\0b").is_none());
        assert!(text_fingerprints(b"").unwrap().is_empty());
        assert_eq!(text_fingerprints(b"two words").unwrap().len(), 1);
    }
}
