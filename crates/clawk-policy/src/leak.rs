//! Finds secrets in text: known values in any common encoding, and the formats of well-known keys (CKP §5.8).
//!
//! No I/O. [`Scanner`] scans a whole text. [`LeakRedactingStream`] scans a text in pieces and holds back bytes that may still
//! become a secret. Findings report kind, position and count; the secret itself is never kept, printed or returned.

mod check;
mod known;
mod shapes;
mod special;
mod stream;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

pub use known::KnownSecret;
pub use stream::LeakRedactingStream;

/// The longest secret that is recognised as one, bytes.
pub const MAX_SECRET_BYTES: usize = 16 * 1024;
/// How many bytes before a secret's first byte the detection may look.
const LOOK_BEHIND: usize = 512;

/// The position and the kind of a found secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretLeak {
    /// The kind of secret.
    pub kind: Kind,
    /// The first byte.
    pub start: usize,
    /// The byte after the last one.
    pub end: usize,
}

/// The kind of a found secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A known value; holds the name of its reference.
    Known(Arc<str>),
    /// The format of a well-known key.
    Shape(&'static str),
}

impl Kind {
    /// A stable name: `known-secret`, or the format's name.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Known(_) => "known-secret",
            Self::Shape(kind) => kind,
        }
    }

    /// The text that replaces the secret.
    #[must_use]
    pub fn mark(&self) -> String {
        match self {
            Self::Known(name) => format!("[redacted:known-secret {name}]"),
            Self::Shape(kind) => format!("[redacted:{kind}]"),
        }
    }
}

/// The number of found secrets by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeakTally(BTreeMap<&'static str, usize>);

impl LeakTally {
    /// The kinds with their counts, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, usize)> + '_ {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts one secret.
    fn add(&mut self, kind: &Kind) {
        *self.0.entry(kind.word()).or_default() += 1;
    }

    /// Adds the counts of another tally.
    pub fn join(&mut self, other: &Self) {
        for (kind, count) in other.iter() {
            *self.0.entry(kind).or_default() += count;
        }
    }
}

/// Finds secrets. Cheap to clone. It holds the known values but never shows them.
#[derive(Clone)]
pub struct Scanner {
    known: Arc<known::KnownSecretSearch>,
    shapes: bool,
}

impl fmt::Debug for Scanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scanner({} known, shapes: {})", self.known.len(), self.shapes)
    }
}

impl Scanner {
    /// A scanner for these values and for every key format.
    #[must_use]
    pub fn new(known: impl IntoIterator<Item = KnownSecret>) -> Self {
        Self {
            known: Arc::new(known::KnownSecretSearch::new(known)),
            shapes: true,
        }
    }

    /// A scanner for these values only.
    #[must_use]
    pub fn known_only(known: impl IntoIterator<Item = KnownSecret>) -> Self {
        Self {
            shapes: false,
            ..Self::new(known)
        }
    }

    /// The same known values, without the key formats.
    #[must_use]
    pub fn without_shapes(&self) -> Self {
        Self {
            known: Arc::clone(&self.known),
            shapes: false,
        }
    }

    /// The number of known key formats. The manifest's `patterns` may ask for at most this many.
    #[must_use]
    pub fn shape_count() -> usize {
        shapes::kind_count()
    }

    /// Whether the scanner searches for nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.shapes && self.known.len() == 0
    }

    /// The longest secret, bytes, except those that begin with an anchor of [`Self::vast`].
    fn longest(&self) -> usize {
        let shapes = if self.shapes { shapes::SHORT } else { 0 };
        self.known.longest_form().min(MAX_SECRET_BYTES).max(shapes)
    }

    /// Where a secret of up to [`MAX_SECRET_BYTES`] may begin.
    fn vast(&self, text: &[u8]) -> Option<usize> {
        self.shapes.then(|| shapes::find_long_key(text)).flatten()
    }

    /// The names of known values that are not searched for. They are too short or too plain, so a search would redact ordinary
    /// text.
    #[must_use]
    pub fn passed_over(&self) -> &[Arc<str>] {
        self.known.passed_over()
    }

    /// Every secret in a text, in order. Touching or overlapping secrets are merged.
    #[must_use]
    pub fn find(&self, text: &[u8]) -> Vec<SecretLeak> {
        joined(self.candidates(text))
    }

    /// Unordered findings, which may overlap.
    fn candidates(&self, text: &[u8]) -> Vec<SecretLeak> {
        let mut found = Vec::new();
        self.known.find_leaks(text, &mut found);
        if self.shapes {
            shapes::find_keys(text, &mut found);
        }
        found
    }

    /// The text with every secret replaced by `[redacted:KIND]`, and the counts; `None` if there is no secret.
    #[must_use]
    pub fn redact(&self, text: &str) -> Option<(String, LeakTally)> {
        let leaks = self.find(text.as_bytes());
        if leaks.is_empty() {
            return None;
        }
        let mut tally = LeakTally::default();
        let mut out = Vec::with_capacity(text.len());
        let mut at = 0;
        for leak in &leaks {
            out.extend_from_slice(text.as_bytes().get(at..leak.start).unwrap_or_default());
            out.extend_from_slice(leak.kind.mark().as_bytes());
            tally.add(&leak.kind);
            at = leak.end;
        }
        out.extend_from_slice(text.as_bytes().get(at..).unwrap_or_default());
        // Secrets begin and end at character boundaries. If one did not, the broken character becomes a replacement character.
        Some((String::from_utf8_lossy(&out).into_owned(), tally))
    }

    /// Redacts every text and key inside a JSON value, in place.
    pub fn redact_json(&self, value: &mut Value) -> LeakTally {
        let mut tally = LeakTally::default();
        self.redact_within(value, &mut tally);
        tally
    }

    fn redact_within(&self, value: &mut Value, tally: &mut LeakTally) {
        match value {
            Value::String(text) => {
                if let Some((clean, found)) = self.redact(text) {
                    *text = clean;
                    tally.join(&found);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_within(item, tally)),
            Value::Object(members) => {
                let dirty = members.keys().any(|key| !self.find(key.as_bytes()).is_empty());
                if dirty {
                    let old = std::mem::take(members);
                    for (key, inner) in old {
                        let key = match self.redact(&key) {
                            Some((clean, found)) => {
                                tally.join(&found);
                                clean
                            }
                            None => key,
                        };
                        members.insert(key, inner);
                    }
                }
                members
                    .values_mut()
                    .for_each(|inner| self.redact_within(inner, tally));
            }
            // A number may be a known value too, such as an account or card number.
            Value::Number(number) => {
                if let Some((clean, found)) = self.redact(&number.to_string()) {
                    *value = Value::String(clean);
                    tally.join(&found);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    /// Counts the secrets in the texts and keys of a JSON value. Changes nothing.
    #[must_use]
    pub fn tally_json(&self, value: &Value) -> LeakTally {
        let mut copy = value.clone();
        self.redact_json(&mut copy)
    }

    /// Counts the secrets in a text.
    #[must_use]
    pub fn tally(&self, text: &str) -> LeakTally {
        let mut tally = LeakTally::default();
        for leak in self.find(text.as_bytes()) {
            tally.add(&leak.kind);
        }
        tally
    }

    /// A scanner for a text that arrives in pieces.
    #[must_use]
    pub fn stream(&self) -> LeakRedactingStream {
        LeakRedactingStream::new(self.clone())
    }
}

/// Sorts findings and merges touching ones; the first finding gives the kind.
fn joined(mut candidates: Vec<SecretLeak>) -> Vec<SecretLeak> {
    candidates.sort_by(|a, b| (a.start, &a.kind, b.end).cmp(&(b.start, &b.kind, a.end)));
    let mut leaks: Vec<SecretLeak> = Vec::with_capacity(candidates.len());
    for leak in candidates {
        match leaks.last_mut() {
            Some(last) if leak.start <= last.end => last.end = last.end.max(leak.end),
            _ => leaks.push(leak),
        }
    }
    leaks
}
