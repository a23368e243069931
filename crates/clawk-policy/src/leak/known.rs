//! Known values, searched in every common text encoding.

use std::fmt;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use memchr::memchr;
use zeroize::Zeroizing;

use super::{Kind, MAX_SECRET_BYTES, SecretLeak};

/// The shortest value that is searched for, bytes. Shorter ones would redact ordinary text.
const MIN_BYTES: usize = 8;
/// The shortest value with only one kind of character (a word or a number), bytes.
const MIN_PLAIN_BYTES: usize = 12;
/// A value with fewer different characters than this is not treated as a secret.
const MIN_DIFFERENT: usize = 4;
/// Longer values are searched in pieces of this size, bytes, so that a stream holds back little.
const PIECE_BYTES: usize = 256;
/// The largest part of one value that is searched for, bytes.
const MAX_VALUE_BYTES: usize = 64 * 1024;
/// The shortest line of a multi-line value that is searched for separately, bytes.
const MIN_LINE_BYTES: usize = 20;
/// The shortest encoded form that is searched for, bytes. Shorter ones would match ordinary text.
const MIN_FORM_BYTES: usize = 8;

/// A secret value with the name of its reference. It can't be printed.
pub struct KnownSecret {
    name: Arc<str>,
    value: Zeroizing<String>,
}

impl KnownSecret {
    /// Makes a known value to search for. `name` names the secret in findings.
    pub fn new(name: impl Into<Arc<str>>, value: &str) -> Self {
        Self {
            name: name.into(),
            value: Zeroizing::new(value.to_owned()),
        }
    }
}

impl fmt::Debug for KnownSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({})", self.name)
    }
}

/// The search over all forms of all values.
pub(super) struct KnownSecretSearch {
    search: Option<AhoCorasick>,
    /// By pattern: the name of its secret.
    owners: Vec<Arc<str>>,
    values: usize,
    longest: usize,
    passed_over: Vec<Arc<str>>,
    /// The search could not be built: then everything counts as found.
    broken: bool,
}

impl KnownSecretSearch {
    pub(super) fn new(known: impl IntoIterator<Item = KnownSecret>) -> Self {
        let (mut patterns, mut owners, mut passed_over) = (Vec::new(), Vec::new(), Vec::new());
        let mut values = 0;
        for KnownSecret { name, value } in known {
            if too_plain(&value) {
                if !value.is_empty() {
                    passed_over.push(name);
                }
                continue;
            }
            values += 1;
            for piece in value_pieces(&value) {
                for form in encoded_forms(piece) {
                    patterns.push(form);
                    owners.push(Arc::clone(&name));
                }
            }
        }
        let search = (!patterns.is_empty()).then(|| {
            AhoCorasick::builder()
                .match_kind(MatchKind::Standard)
                .build(patterns.iter().map(|form| form.as_slice()))
        });
        let broken = matches!(search, Some(Err(_)));
        let longest = patterns.iter().map(|form| form.len()).max().unwrap_or(0);
        Self {
            search: search.and_then(Result::ok), // silent-ok: `broken` says so, and withholds all text
            owners,
            values,
            longest,
            passed_over,
            broken,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.values
    }

    /// The most bytes that one form takes in a text, including the line breaks that tools insert.
    pub(super) const fn longest_form(&self) -> usize {
        if self.broken {
            MAX_SECRET_BYTES
        } else {
            self.longest * 2 + 64
        }
    }

    pub(super) fn passed_over(&self) -> &[Arc<str>] {
        &self.passed_over
    }

    /// Finds every occurrence of every form, even if its encoding is wrapped over lines.
    pub(super) fn find_leaks(&self, text: &[u8], found: &mut Vec<SecretLeak>) {
        if self.broken && !text.is_empty() {
            found.push(SecretLeak {
                kind: Kind::Known("unsearchable".into()),
                start: 0,
                end: text.len(),
            });
        }
        let Some(search) = &self.search else { return };
        for hit in search.find_overlapping_iter(text) {
            found.extend(self.leak_at(hit.pattern().as_usize(), hit.start(), hit.end()));
        }
        if memchr(b'\n', text).is_some() {
            self.find_wrapped(search, text, found);
        }
    }

    /// Searches the text without line ends, because `base64` and hex dumps wrap their lines.
    fn find_wrapped(&self, search: &AhoCorasick, text: &[u8], found: &mut Vec<SecretLeak>) {
        let (mut bare, mut places) = (Vec::with_capacity(text.len()), Vec::with_capacity(text.len()));
        for (at, byte) in text.iter().enumerate() {
            if !matches!(byte, b'\n' | b'\r') {
                bare.push(*byte);
                places.push(at);
            }
        }
        for hit in search.find_overlapping_iter(&bare) {
            let (Some(&start), Some(&last)) = (places.get(hit.start()), places.get(hit.end() - 1)) else {
                continue;
            };
            let wrapped = last + 1 - start > hit.end() - hit.start();
            if wrapped && last + 1 - start <= MAX_SECRET_BYTES {
                found.extend(self.leak_at(hit.pattern().as_usize(), start, last + 1));
            }
        }
    }

    fn leak_at(&self, pattern: usize, start: usize, end: usize) -> Option<SecretLeak> {
        let kind = Kind::Known(Arc::clone(self.owners.get(pattern)?));
        Some(SecretLeak { kind, start, end })
    }
}

/// Whether the value is too short, or an ordinary word or number.
fn too_plain(value: &str) -> bool {
    let different = {
        let mut bytes: Vec<u8> = value.bytes().collect();
        bytes.sort_unstable();
        bytes.dedup();
        bytes.len()
    };
    let one_class = value.bytes().all(|b| b.is_ascii_lowercase())
        || value.bytes().all(|b| b.is_ascii_uppercase())
        || value.bytes().all(|b| b.is_ascii_digit());
    value.len() < MIN_BYTES || different < MIN_DIFFERENT || (one_class && value.len() < MIN_PLAIN_BYTES)
}

/// The value, or its parts: lines, and consecutive pieces of long ones.
fn value_pieces(value: &str) -> Vec<&str> {
    let value = slice_from(value, 0, MAX_VALUE_BYTES);
    let mut parts = Vec::new();
    let trimmed = value.trim();
    if value.len() <= PIECE_BYTES {
        parts.push(value);
        if trimmed.len() < value.len() && !too_plain(trimmed) {
            parts.push(trimmed);
        }
    } else {
        let mut at = 0;
        while at < value.len() {
            let piece = slice_from(value, at, PIECE_BYTES);
            if piece.is_empty() {
                break;
            }
            at += piece.len();
            if piece.len() >= MIN_LINE_BYTES && !too_plain(piece) {
                parts.push(piece);
            }
        }
    }
    if trimmed.contains('\n') {
        let lines = trimmed.lines().map(str::trim);
        parts.extend(
            lines
                .filter(|line| {
                    line.len() >= MIN_LINE_BYTES && !line.starts_with("-----") && !line.contains(' ')
                })
                .filter(|line| line.len() <= PIECE_BYTES && !too_plain(line)),
        );
    }
    parts
}

/// At most `len` bytes from `at`, cut at character boundaries.
fn slice_from(text: &str, at: usize, len: usize) -> &str {
    let end = (at..=text.len().min(at.saturating_add(len)))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(at);
    text.get(at..end).unwrap_or_default()
}

/// Every encoding of a value with at least [`MIN_FORM_BYTES`].
fn encoded_forms(value: &str) -> Vec<Zeroizing<Vec<u8>>> {
    let mut forms = vec![value.as_bytes().to_vec()];
    for (plus, upper) in [(false, true), (false, false), (true, true), (true, false)] {
        forms.push(percent_encode(value, plus, upper));
    }
    for style in EscapeStyle::ALL {
        forms.push(escape_characters(value, style, char::is_ascii_alphanumeric));
    }
    // Every character by its number in other styles makes forms of six times the length, which a stream would have to hold back.
    for upper in [true, false] {
        forms.push(escape_characters(value, EscapeStyle::Percent { upper }, |_| {
            false
        }));
    }
    let json = json_inner(value, false);
    forms.push(json_inner(&json, false).into_bytes()); // JSON within a JSON text
    forms.push(json.replace('/', "\\/").into_bytes());
    forms.push(json_inner(value, true).into_bytes());
    forms.push(json.into_bytes());
    forms.push(encode_hex(value, false));
    forms.push(encode_hex(value, true));
    for lead in 0..3 {
        let bytes: Zeroizing<Vec<u8>> =
            Zeroizing::new(std::iter::repeat_n(0, lead).chain(value.bytes()).collect());
        // Only characters that depend on the value alone, without those that share bits with a neighbour.
        let (from, to) = ((lead * 8).div_ceil(6), bytes.len() * 8 / 6);
        for whole in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            let whole = Zeroizing::new(whole);
            let core = whole.get(from..to).unwrap_or_default();
            forms.push(percent_encode(core, false, true));
            forms.push(core.replace('/', "\\/").into_bytes());
            forms.push(core.as_bytes().to_vec());
        }
    }
    forms.retain(|form| form.len() >= MIN_FORM_BYTES);
    forms.sort_unstable();
    forms.dedup();
    forms.into_iter().map(Zeroizing::new).collect()
}

/// How a character is written by its number.
#[derive(Debug, Clone, Copy)]
enum EscapeStyle {
    /// `%2D` and `%2d`.
    Percent { upper: bool },
    /// `=2D`, as in mails.
    QuotedPrintable,
    /// `\u002D` and `\u002d`, as in JSON and most languages.
    Unicode { upper: bool },
    /// `\x2D` and `\x2d`, as shells and C write it.
    Hex { upper: bool },
    /// `&#45;`, as in HTML and XML.
    EntityDecimal,
    /// `&#x2D;` and `&#x2d;`.
    EntityHex { upper: bool },
}

impl EscapeStyle {
    const ALL: [Self; 10] = [
        Self::Percent { upper: true },
        Self::Percent { upper: false },
        Self::QuotedPrintable,
        Self::Unicode { upper: true },
        Self::Unicode { upper: false },
        Self::Hex { upper: true },
        Self::Hex { upper: false },
        Self::EntityDecimal,
        Self::EntityHex { upper: true },
        Self::EntityHex { upper: false },
    ];

    fn escape(self, c: char, out: &mut String) {
        let mut bytes = [0; 4];
        let utf8 = c.encode_utf8(&mut bytes).bytes();
        let number = u32::from(c);
        match self {
            Self::Percent { upper: true } => utf8.for_each(|b| out.push_str(&format!("%{b:02X}"))),
            Self::Percent { upper: false } => utf8.for_each(|b| out.push_str(&format!("%{b:02x}"))),
            Self::QuotedPrintable => utf8.for_each(|b| out.push_str(&format!("={b:02X}"))),
            Self::Hex { upper: true } => utf8.for_each(|b| out.push_str(&format!("\\x{b:02X}"))),
            Self::Hex { upper: false } => utf8.for_each(|b| out.push_str(&format!("\\x{b:02x}"))),
            Self::Unicode { upper } => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&if upper {
                        format!("\\u{unit:04X}")
                    } else {
                        format!("\\u{unit:04x}")
                    });
                }
            }
            Self::EntityDecimal => out.push_str(&format!("&#{number};")),
            Self::EntityHex { upper: true } => out.push_str(&format!("&#x{number:X};")),
            Self::EntityHex { upper: false } => out.push_str(&format!("&#x{number:x};")),
        }
    }
}

/// The value with its characters written by their numbers, those apart for which `stays` holds.
fn escape_characters(value: &str, style: EscapeStyle, stays: impl Fn(&char) -> bool) -> Vec<u8> {
    let mut out = String::with_capacity(value.len() * 4);
    for c in value.chars() {
        if stays(&c) {
            out.push(c);
        } else {
            style.escape(c, &mut out);
        }
    }
    out.into_bytes()
}

fn encode_hex(value: &str, upper: bool) -> Vec<u8> {
    let digit = |b: u8| {
        if upper {
            format!("{b:02X}")
        } else {
            format!("{b:02x}")
        }
    };
    value.bytes().flat_map(|b| digit(b).into_bytes()).collect()
}

/// Percent-encoding of everything except RFC 3986's unreserved characters. `plus`: a space becomes `+`, as in forms.
fn percent_encode(value: &str, plus: bool, upper: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() * 3);
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            b' ' if plus => out.push(b'+'),
            _ if upper => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            _ => out.extend_from_slice(format!("%{byte:02x}").as_bytes()),
        }
    }
    out
}

/// The content of a JSON string. `ascii`: other characters are escaped.
fn json_inner(value: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(value.len() + 8);
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if ascii && !c.is_ascii() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
pub(super) fn forms_of(value: &str) -> Vec<Vec<u8>> {
    value_pieces(value)
        .into_iter()
        .flat_map(encoded_forms)
        .map(|form| form.to_vec())
        .collect()
}
