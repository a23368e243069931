//! Text of payloads that no words from outside may enter, and JSON that is written as it was put into canonical form.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::value::RawValue;

/// Text of a payload that no words of a person, a model, a tool or a server can enter: a word that stands in this program's source.
/// What earlier versions wrote there is read as it stands.
///
/// INVARIANT: the field is private, and the only way to make one is from text of static life or from a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChainText(Cow<'static, str>);

impl ChainText {
    /// The words are in the event's content.
    pub const IN_CONTENT: Self = Self::from_code("in_content");

    /// A word of a closed set.
    #[must_use]
    pub const fn from_code(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }

    /// The word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<ChainText> for String {
    fn from(text: ChainText) -> Self {
        text.0.into_owned()
    }
}

impl fmt::Display for ChainText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A JSON object as canonical text. Reading it keeps the bytes.
#[derive(Debug, Clone)]
pub struct CanonicalObject(Box<RawValue>);

impl CanonicalObject {
    /// Takes what [`clawk_trace::canonical::payload_of`] answered.
    #[must_use]
    pub const fn new(canonical: Box<RawValue>) -> Self {
        Self(canonical)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for CanonicalObject {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for CanonicalObject {}

impl Serialize for CanonicalObject {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for CanonicalObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        if raw.get().starts_with('{') {
            Ok(Self(raw))
        } else {
            Err(de::Error::invalid_type(
                de::Unexpected::Other("another value"),
                &"an object",
            ))
        }
    }
}
