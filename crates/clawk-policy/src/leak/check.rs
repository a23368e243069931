//! Distinguishes keys from ordinary words: character sets, lengths, boundaries, entropy, placeholders.

/// The character set of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CharacterSet {
    /// Letters and digits.
    Alnum,
    /// Letters, digits and `_`.
    Word,
    /// Letters, digits, `_` and `-`: URL-safe base64.
    Url,
    /// Letters, digits and `-`.
    Dash,
    /// Letters, digits, `_`, `-` and `.`.
    Dotted,
    /// `A-Z2-7`.
    Base32,
    /// `0-9a-f`.
    HexLower,
    /// Upper-case letters and digits.
    Upper,
    /// Letters, digits, `+`, `/`, `=`.
    Base64,
    /// The characters of `Base64` and `%`, `-`, `_`: base64 in a URL.
    Escaped,
}

impl CharacterSet {
    pub(super) const fn contains(self, byte: u8) -> bool {
        match self {
            Self::Alnum => byte.is_ascii_alphanumeric(),
            Self::Word => byte.is_ascii_alphanumeric() || byte == b'_',
            Self::Url => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'),
            Self::Dash => byte.is_ascii_alphanumeric() || byte == b'-',
            Self::Dotted => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'),
            Self::Base32 => byte.is_ascii_uppercase() || matches!(byte, b'2'..=b'7'),
            Self::HexLower => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Base64 => byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='),
            Self::Escaped => {
                byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'%' | b'-' | b'_')
            }
        }
    }

    /// The smallest entropy of a key of this set, bits per character. A text below it is a pattern and not a key.
    fn least_disorder(self) -> f64 {
        match self {
            Self::HexLower => 2.4,
            Self::Base32 | Self::Upper => 2.7,
            Self::Alnum
            | Self::Word
            | Self::Url
            | Self::Dash
            | Self::Dotted
            | Self::Base64
            | Self::Escaped => 3.0,
        }
    }
}

/// The end of the run of such characters that starts at `from`. Looks at no more than `max + 1` characters.
pub(super) fn run(text: &[u8], from: usize, max: usize, set: CharacterSet) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest
        .iter()
        .take(max.saturating_add(1))
        .take_while(|byte| set.contains(**byte))
        .count()
}

/// The start of the run of such characters that ends before `to`. Looks back at most `max` characters.
pub(super) fn run_back(text: &[u8], to: usize, max: usize, set: CharacterSet) -> usize {
    let before = text.get(..to).unwrap_or_default();
    to - before
        .iter()
        .rev()
        .take(max)
        .take_while(|byte| set.contains(**byte))
        .count()
}

/// Whether a word can start here. The end of an escape or colour sequence does not belong to the word.
pub(super) fn is_word_start(text: &[u8], at: usize) -> bool {
    let back = |n: usize| at.checked_sub(n).and_then(|at| text.get(at)).copied();
    let Some(last) = back(1) else { return true };
    if !CharacterSet::Word.contains(last) {
        return true;
    }
    let escaped = back(2) == Some(b'\\') && matches!(last, b'n' | b't' | b'r' | b'b' | b'f' | b'e' | b'0');
    let percent =
        back(3) == Some(b'%') && last.is_ascii_hexdigit() && back(2).is_some_and(|b| b.is_ascii_hexdigit());
    let unicode = back(6) == Some(b'\\')
        && back(5) == Some(b'u')
        && (1..=4).all(|n| back(n).is_some_and(|b| b.is_ascii_hexdigit()));
    escaped || percent || unicode || (matches!(last, b'm' | b'K') && ends_colour(text, at))
}

/// Whether a colour sequence ends here: `ESC [ 0 1 ; 3 1 m`, `ESC [ K`.
fn ends_colour(text: &[u8], at: usize) -> bool {
    let before = text
        .get(at.saturating_sub(16)..at.saturating_sub(1))
        .unwrap_or_default();
    let mut rest = before
        .iter()
        .rev()
        .skip_while(|byte| byte.is_ascii_digit() || **byte == b';');
    rest.next() == Some(&b'[') && rest.next() == Some(&0x1b)
}

/// Whether the text is random enough for a key and is not an example.
pub(super) fn is_key(body: &[u8], set: CharacterSet) -> bool {
    byte_entropy(body) >= set.least_disorder() && !is_placeholder(body)
}

/// The Shannon entropy, bits per byte.
pub(super) fn byte_entropy(body: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in body {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count += 1;
        }
    }
    let total = f64::from(u32::try_from(body.len()).unwrap_or(u32::MAX));
    let parts = counts.iter().filter(|count| **count > 0).map(|count| {
        let share = f64::from(*count) / total;
        -share * share.log2()
    });
    parts.sum()
}

/// Words that mark a placeholder.
const PLACEHOLDERS: &[&[u8]] = &[
    b"example",
    b"xxxx",
    b"placehold",
    b"changeme",
    b"change-me",
    b"change_me",
    b"redacted",
    b"dummy",
    b"sample",
    b"your-",
    b"your_",
    b"yourkey",
    b"yourapi",
    b"yoursecret",
    b"yourtoken",
    b"insert",
    b"replace",
    b"fake",
    b"0000000",
    b"1234567",
    b"abcdefg",
    b"deadbeef",
    b"not-a-real",
    b"notarealkey",
    b"not_real",
    b"testtest",
    b"foobar",
    b"-here",
    b"_here",
    b"goes-here",
    b"qwerty",
    b"aaaaaa",
    b"......",
    b"------",
    b"______",
    b"lorem",
];

/// Whether the text is an example, by its words or its regularity.
pub(super) fn is_placeholder(body: &[u8]) -> bool {
    let lower = body.to_ascii_lowercase();
    if PLACEHOLDERS.iter().any(|word| contains_word(&lower, word)) {
        return true;
    }
    // Six equal characters, or eight in sequence: a person typed them, not a generator.
    let (mut same, mut rising, mut last) = (1, 1, None);
    for &byte in &lower {
        same = if last == Some(byte) { same + 1 } else { 1 };
        rising = if last.is_some_and(|last: u8| last.wrapping_add(1) == byte) {
            rising + 1
        } else {
            1
        };
        if same >= 6 || rising >= 7 {
            return true;
        }
        last = Some(byte);
    }
    false
}

pub(super) fn contains_word(text: &[u8], word: &[u8]) -> bool {
    memchr::memmem::find(text, word).is_some()
}

/// Whether the text has both letters and digits.
pub(super) fn has_letters_and_digits(body: &[u8]) -> bool {
    body.iter().any(u8::is_ascii_digit) && body.iter().any(u8::is_ascii_alphabetic)
}

/// Whether the text has upper case, lower case and digits.
pub(super) fn three_classes(body: &[u8]) -> bool {
    body.iter().any(u8::is_ascii_digit)
        && body.iter().any(u8::is_ascii_lowercase)
        && body.iter().any(u8::is_ascii_uppercase)
}
