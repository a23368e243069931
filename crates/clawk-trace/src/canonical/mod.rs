//! Canonical JSON (R27). We write RFC 8785 (JCS); a verifier also accepts the two other profiles in use.
//!
//! All three profiles sort keys and remove blanks. For our own payloads (no floats, no integer above 2^53) they differ only for
//! non-ASCII text and DEL, so one scan of the bytes usually covers all three: see `scan`.

mod number;
mod scan;
mod transcode;

#[cfg(test)]
mod tests;

use serde::Serialize;
use serde_json::value::RawValue;

pub(crate) use scan::printable_run;
pub use scan::{CanonicalPlainness, scan_canonical};
pub use transcode::transcode_json;

/// The deepest nesting of a payload.
pub const MAX_DEPTH: usize = 128;

/// The canonical text of a payload (and of the timestamp) that was hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// RFC 8785: raw UTF-8, keys by UTF-16 unit, ECMAScript numbers. clawk writes this profile.
    Jcs,
    /// ASCII-escaped as in Python's `json.dumps`, keys by code point, exact integers.
    AppendixB,
    /// The reference program's text: raw UTF-8, keys by code point and unescaped, the timestamp with `+00:00`.
    CraCore,
}

impl Profile {
    /// Every profile. The first one is the profile that clawk writes.
    pub const ALL: [Self; 3] = [Self::Jcs, Self::AppendixB, Self::CraCore];

    /// The profile's name in reports: `jcs`, `appendix-b`, `cra-core`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jcs => "jcs",
            Self::AppendixB => "appendix-b",
            Self::CraCore => "cra-core",
        }
    }
}

impl std::fmt::Display for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a text has no canonical form.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// The text is not JSON, contains a lone surrogate, or can't be serialised.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// An object has the same key twice.
    #[error("the key `{0}` occurs twice in one object")]
    DuplicateKey(String),
    /// The value nests too deeply.
    #[error("nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// A payload contains a float or an integer above 2^53 (R27): readers would write different texts for it.
    #[error("the number {0} has no agreed text; write milliseconds, micro-units or a string")]
    Number(String),
}

/// The RFC 8785 text of any value; floats are allowed. For digests of arguments and results.
///
/// # Errors
/// The value can't be serialised as JSON, or nests deeper than [`MAX_DEPTH`].
pub fn text_of<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonicalError> {
    let text = serde_json::to_string(value)?;
    if scan_canonical(&text).is_some() {
        Ok(text)
    } else {
        transcode_json(Profile::Jcs, &text)
    }
}

/// The RFC 8785 text of an event's payload, as the journal stores it.
///
/// ```
/// let payload = clawk_trace::canonical::payload_of(&serde_json::json!({ "b": 1, "a": "x" }))?;
/// assert_eq!(payload.get(), r#"{"a":"x","b":1}"#);
/// // A fraction has no agreed text: record integers in small units instead.
/// assert!(clawk_trace::canonical::payload_of(&0.5).is_err());
/// # Ok::<(), clawk_trace::canonical::CanonicalError>(())
/// ```
///
/// # Errors
/// As [`text_of`], and [`CanonicalError::Number`] for numbers that R27 does not allow in payloads.
pub fn payload_of<T: Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, CanonicalError> {
    let text = serde_json::to_string(value)?;
    let canonical = if scan_canonical(&text).is_some() {
        text
    } else {
        payload_text(&text)?
    };
    Ok(RawValue::from_string(canonical)?)
}

/// The RFC 8785 text of a payload given as JSON text.
///
/// # Errors
/// As [`payload_of`].
pub fn payload_text(text: &str) -> Result<String, CanonicalError> {
    transcode::refuse_disputed_numbers(text)?;
    transcode_json(Profile::Jcs, text)
}

/// Whether `text` is a payload exactly as [`payload_of`] writes it.
#[must_use]
pub fn is_payload(text: &str) -> bool {
    text.starts_with('{')
        && (scan_canonical(text).is_some() || payload_text(text).is_ok_and(|canonical| canonical == text))
}
