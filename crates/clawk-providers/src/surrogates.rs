//! Lone surrogates: JavaScript and Python write `\\ud83d` alone if they cut an emoji in two. A JSON decoder refuses such text.
//!
//! This module replaces a lone surrogate by a private-use character (plane 16), joins it with the second half if that follows, and
//! else replaces it by U+FFFD.

use std::borrow::Cow;

const FIRST_HIGH: u32 = 0xd800;
const FIRST_LOW: u32 = 0xdc00;
const LAST: u32 = 0xdfff;
/// The private-use character that represents U+D800.
const PRIVATE: u32 = 0x10_f800;

/// Returns the JSON text with private-use characters in place of lone surrogates.
pub(crate) fn read_halves(json: &str) -> Cow<'_, str> {
    if !json.contains("\\ud") && !json.contains("\\uD") {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len() + 16);
    let mut rest = json;
    while let Some((before, behind)) = rest.split_once('\\') {
        out.push_str(before);
        if let Some(half) = escaped_half(behind) {
            let follows = behind
                .get(5..)
                .and_then(|next| next.strip_prefix('\\'))
                .and_then(escaped_half);
            let is_pair = half < FIRST_LOW && follows.is_some_and(|next| next >= FIRST_LOW);
            let (taken, text) = match is_pair {
                true => (11, format!("\\{}", behind.get(..11).unwrap_or_default())),
                false => (5, private_escape(half)),
            };
            out.push_str(&text);
            rest = behind.get(taken..).unwrap_or_default();
        } else {
            let escape = behind.chars().next();
            out.push('\\');
            out.extend(escape);
            rest = behind.get(escape.map_or(0, char::len_utf8)..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Parses `uD83D…` and returns the surrogate.
fn escaped_half(behind: &str) -> Option<u32> {
    let digits = behind.strip_prefix('u')?.get(..4)?;
    let code = u32::from_str_radix(digits, 16).ok()?; // silent-ok: no digits are no half
    (FIRST_HIGH..=LAST).contains(&code).then_some(code)
}

fn private_escape(half: u32) -> String {
    let offset = PRIVATE + (half - FIRST_HIGH) - 0x1_0000;
    let (high, low) = (FIRST_HIGH + (offset >> 10), FIRST_LOW + (offset & 0x3ff));
    format!("\\u{high:04x}\\u{low:04x}")
}

/// Returns the surrogate that a private-use character represents.
fn half_of(c: char) -> Option<u32> {
    let code = u32::from(c);
    (code >= PRIVATE).then(|| code - PRIVATE + FIRST_HIGH)
}

fn join_pair(high: u32, low: u32) -> Option<char> {
    char::from_u32(0x1_0000 + ((high - FIRST_HIGH) << 10) + (low - FIRST_LOW))
}

/// Joins surrogates across the pieces of a text.
#[derive(Debug, Default)]
pub(crate) struct HalfJoiner {
    /// A first surrogate at the end of the last piece.
    waiting: Option<u32>,
}

impl HalfJoiner {
    /// Takes a piece and returns it with complete characters only.
    pub(crate) fn push_text<'t>(&mut self, text: &'t str) -> Cow<'t, str> {
        if text.is_empty() || (self.waiting.is_none() && !text.chars().any(|c| half_of(c).is_some())) {
            return Cow::Borrowed(text);
        }
        let mut out = String::with_capacity(text.len() + 4);
        for c in text.chars() {
            let half = half_of(c);
            match (self.waiting.take(), half) {
                (Some(high), Some(low)) if low >= FIRST_LOW => out.extend(join_pair(high, low)),
                (before, half) => {
                    out.extend(before.map(|_| char::REPLACEMENT_CHARACTER));
                    match half {
                        None => out.push(c),
                        Some(high) if high < FIRST_LOW => self.waiting = Some(high),
                        Some(_) => out.push(char::REPLACEMENT_CHARACTER),
                    }
                }
            }
        }
        Cow::Owned(out)
    }

    /// Ends the text and returns the replacement for a pending surrogate.
    pub(crate) fn finish(&mut self) -> &'static str {
        self.waiting.take().map_or("", |_| "\u{fffd}")
    }
}

/// Returns the complete text with complete characters only.
pub(crate) fn join_halves(text: &str) -> String {
    let mut joiner = HalfJoiner::default();
    let mut out = joiner.push_text(text).into_owned();
    out.push_str(joiner.finish());
    out
}

#[cfg(test)]
mod tests {
    use super::{HalfJoiner, join_halves, read_halves};

    fn read(json: &str) -> String {
        join_halves(&serde_json::from_str::<String>(&read_halves(json)).unwrap())
    }

    #[test]
    fn halves_are_joined_or_replaced_and_nothing_else_changes() {
        for (json, text) in [
            (r#""plain é 😀""#, "plain é 😀"),
            (r#""\ud83d\ude00""#, "😀"),
            (r#""\uD83D\uDE00!""#, "😀!"),
            (r#""a\ud83d""#, "a\u{fffd}"),
            (r#""\ude00b""#, "\u{fffd}b"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀"),
            (r#""\ude00\ud83d""#, "\u{fffd}\u{fffd}"),
            (r#""\\ud83d""#, "\\ud83d"),
            (r#""\\\ud83d""#, "\\\u{fffd}"),
            (r#""\n\"\ud83dx\t""#, "\n\"\u{fffd}x\t"),
            (r#""é\ud83dé""#, "é\u{fffd}é"),
        ] {
            assert_eq!(read(json), text, "{json}");
        }
    }

    #[test]
    fn a_character_that_is_cut_into_two_pieces_is_whole_again() {
        let piece = |json: &str| serde_json::from_str::<String>(&read_halves(json)).unwrap();
        let mut joiner = HalfJoiner::default();
        let mut out = String::new();
        for json in [
            r#""Hi \ud83d""#,
            r#""""#,
            r#""\ude00!\ud83d""#,
            r#""?""#,
            r#""\ud83d""#,
        ] {
            out.push_str(&joiner.push_text(&piece(json)));
        }
        out.push_str(joiner.finish());
        assert_eq!(out, "Hi 😀!\u{fffd}?\u{fffd}");
    }
}
