//! Other readings of a text: characters with hidden letters, base64, and rot13.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The largest number of base64 pieces that are decoded per text.
const MAX_PIECES: usize = 64;
/// The shortest piece that could contain a phrase and the longest piece that is decoded, bytes.
const PIECE_BYTES: std::ops::RangeInclusive<usize> = 20..=65_536;
/// The smallest number of letters that count as a message. An emoji flag hides up to six letters.
const MESSAGE_LETTERS: usize = 8;

/// A decoded piece of a text.
pub(super) struct DecodedView {
    pub(super) text: String,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl DecodedView {
    /// Whether it is long enough for a message and consists of letters.
    pub(super) fn is_message(&self) -> bool {
        let letters = self.text.chars().filter(char::is_ascii_alphabetic).count();
        letters >= MESSAGE_LETTERS
    }
}

/// Letters hidden in tag characters (U+E0000) and in variation selectors (one byte each).
pub(super) fn decode_hidden(text: &str) -> Vec<DecodedView> {
    let (mut tags, mut bytes) = (String::new(), Vec::new());
    let (mut start, mut end) = (None, 0);
    for (at, c) in text.char_indices() {
        let code = u32::from(c);
        match code {
            0xe0020..=0xe007e => tags.extend(char::from_u32(code - 0xe0000)),
            0xfe00..=0xfe0f => bytes.extend(u8::try_from(code - 0xfe00)),
            0xe0100..=0xe01ef => bytes.extend(u8::try_from(code - 0xe0100 + 16)),
            _ => continue,
        }
        start = start.or(Some(at));
        end = at + c.len_utf8();
    }
    let Some(start) = start else { return Vec::new() };
    let carried = String::from_utf8_lossy(&bytes).into_owned();
    [tags, carried]
        .into_iter()
        .filter(|text| !text.is_empty())
        .map(|text| DecodedView { text, start, end })
        .collect()
}

/// Pieces of base64 that contain text.
pub(super) fn decode_base64(text: &str) -> Vec<DecodedView> {
    let mut views = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() && views.len() < MAX_PIECES {
        let letter = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
        let rest = bytes.get(at..).unwrap_or_default();
        let skip = rest.iter().take_while(|byte| !letter(byte)).count();
        let start = at + skip;
        let len = bytes
            .get(start..)
            .unwrap_or_default()
            .iter()
            .take_while(|byte| letter(byte))
            .count();
        at = start + len.max(1);
        let piece = bytes.get(start..start + len).unwrap_or_default();
        // Ordinary words have no upper case inside; a sentence in base64 always has.
        if !PIECE_BYTES.contains(&len) || !piece.iter().any(u8::is_ascii_uppercase) {
            continue;
        }
        let decoded = STANDARD_NO_PAD
            .decode(piece)
            .or_else(|_| URL_SAFE_NO_PAD.decode(piece));
        let Ok(decoded) = decoded else { continue };
        let Ok(decoded) = String::from_utf8(decoded) else {
            continue;
        };
        if decoded.chars().all(|c| !c.is_control() || c.is_whitespace()) {
            views.push(DecodedView {
                text: decoded,
                start,
                end: start + len,
            });
        }
    }
    views
}

/// Decodes rot13.
pub(super) fn decode_rot13(text: &str) -> String {
    let turn = |c: char| match c {
        'a'..='m' | 'A'..='M' => char::from_u32(u32::from(c) + 13).unwrap_or(c),
        'n'..='z' | 'N'..='Z' => char::from_u32(u32::from(c) - 13).unwrap_or(c),
        c => c,
    };
    text.chars().map(turn).collect()
}
