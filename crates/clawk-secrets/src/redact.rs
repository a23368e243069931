//! Removes secrets from text that came from outside.

use std::fmt;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::Secret;

mod stream;

pub use stream::RedactStream;

/// Shortest encoded form that is searched for, in characters. A shorter one would match ordinary text.
const ENCODED_MIN_CHARS: usize = 6;

/// Replaces secrets in text by `[secret NAME]`. It finds a secret in raw form, JSON-escaped, URL-encoded, hexadecimal, and in
/// base64 at any offset inside a longer encoded text. It replaces the longest form first and in one pass, so it never searches a
/// replacement.
pub struct SecretRedactor {
    search: Option<AhoCorasick>,
    /// The replacement for each pattern, by pattern index.
    marks: Vec<String>,
    forms: Vec<Zeroizing<String>>,
}

impl SecretRedactor {
    /// Makes a redactor for `secrets`. Empty values are ignored.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let (mut patterns, mut marks): (Vec<Zeroizing<String>>, Vec<String>) = Default::default();
        for secret in secrets {
            for form in encoded_forms(secret.expose()) {
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

    /// Returns `text` without the secrets. If the search could not be built (extremely large secrets), the whole text is withheld.
    pub fn redact_text(&self, text: &str) -> String {
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

fn encoded_forms(value: &str) -> Vec<Zeroizing<String>> {
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
        percent_encode(value, false, true),
        percent_encode(value, false, false),
        percent_encode(value, true, true),
    ];
    if let Ok(quoted) = serde_json::to_string(value) {
        let inner = quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned();
        encoded.push(inner.replace('/', "\\/"));
        encoded.push(inner);
    }
    for lead in 0..3 {
        let bytes: Vec<u8> = std::iter::repeat_n(0, lead).chain(value.bytes()).collect();
        // Use only the base64 characters that depend on the secret alone. The first and last ones share bits with the neighbouring
        // text.
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

/// Percent-encodes every character except RFC 3986's unreserved ones. With `plus`, a space becomes `+` (HTML forms).
fn percent_encode(value: &str, plus: bool, upper: bool) -> String {
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
