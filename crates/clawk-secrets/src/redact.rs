//! Taking secrets out of text that came from outside.

use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::Secret;

mod stream;

pub use stream::RedactStream;

/// Encoded forms shorter than this would match ordinary text.
const ENCODED_MIN_CHARS: usize = 6;

/// Replaces secrets in text by `[secret NAME]`: raw, JSON-escaped, URL-encoded, hexadecimal, and in base64 at whatever offset inside a
/// longer encoded text. Longest form first, in one pass, so a replacement is never searched again.
pub struct SecretRedactor {
    search: Option<AhoCorasick>,
    /// The mark for each pattern, by pattern index.
    marks: Vec<String>,
    forms: Vec<Zeroizing<String>>,
}

impl SecretRedactor {
    /// A redactor for `secrets`. Empty values are passed over.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let (mut patterns, mut marks): (Vec<Zeroizing<String>>, Vec<String>) = Default::default();
        for secret in secrets {
            for form in forms(secret.expose()) {
                patterns.push(form);
                marks.push(format!("[secret {}]", secret.name()));
            }
        }
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(patterns.iter().map(|form| form.as_bytes()))
            .ok(); // silent-ok: see `clean`, which then withholds the text
        Self {
            search,
            marks,
            forms: patterns,
        }
    }

    /// `text` without the secrets. When the search could not be built (absurdly large secrets), nothing of it is shown.
    pub fn clean(&self, text: &str) -> String {
        match &self.search {
            Some(search) if self.marks.is_empty() || !search.is_match(text) => text.to_owned(),
            Some(search) => search.replace_all(text, &self.marks),
            None => "[text withheld: it may hold secrets]".to_owned(),
        }
    }
}

impl fmt::Debug for SecretRedactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redactor({} forms)", self.marks.len())
    }
}

fn forms(value: &str) -> Vec<Zeroizing<String>> {
    if value.is_empty() {
        return Vec::new();
    }
    let hex = |upper: bool| -> String {
        let digits = |byte: u8| {
            if upper {
                format!("{byte:02X}")
            } else {
                format!("{byte:02x}")
            }
        };
        value.bytes().map(digits).collect()
    };
    let mut encoded = vec![
        hex(false),
        hex(true),
        percent(value, false, true),
        percent(value, false, false),
        percent(value, true, true),
    ];
    if let Ok(quoted) = serde_json::to_string(value) {
        let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned();
        encoded.push(inner.replace('/', "\\/"));
        encoded.push(inner);
    }
    for lead in 0..3 {
        let bytes: Vec<u8> = std::iter::repeat_n(0, lead).chain(value.bytes()).collect();
        // Only the characters that depend on nothing but the secret: not those shared with a neighbour's bits.
        let (from, to) = ((lead * 8).div_ceil(6), bytes.len() * 8 / 6);
        for whole in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            encoded.push(whole.get(from..to).unwrap_or_default().to_owned());
        }
    }
    let mut forms: Vec<_> = encoded
        .into_iter()
        .filter(|form| form.len() >= ENCODED_MIN_CHARS)
        .map(Zeroizing::new)
        .collect();
    forms.push(Zeroizing::new(value.to_owned()));
    forms
}

/// Percent-encoding of everything but RFC 3986's unreserved characters; `plus`: a space becomes `+` (forms).
fn percent(value: &str, plus: bool, upper: bool) -> String {
    let mut out = String::with_capacity(value.len() * 3);
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            b' ' if plus => out.push('+'),
            _ if upper => out.push_str(&format!("%{byte:02X}")),
            _ => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out
}
