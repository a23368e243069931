//! Numbers as servers send them. They are limited when they are decoded, and a bad number never invalidates the answer around it.

use clawk_core::ports::Usage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A count, or an index in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WireNumber {
    /// The member is missing or null.
    #[default]
    Absent,
    /// A valid number, at most [`Usage::TOKENS_MAX`].
    Given(u64),
    /// The value is negative, a fraction, not a number, or too large to record.
    Unreadable,
}

impl WireNumber {
    fn from_text(text: &str) -> Self {
        match text.parse::<u64>() {
            Ok(number) if number <= Usage::TOKENS_MAX => Self::Given(number),
            Err(_) if text == "null" => Self::Absent,
            Ok(_) | Err(_) => Self::Unreadable,
        }
    }

    pub(crate) const fn value(self) -> Option<u64> {
        match self {
            Self::Given(number) => Some(number),
            Self::Absent | Self::Unreadable => None,
        }
    }

    /// Returns the sum, limited to the maximum.
    pub(crate) fn add_bounded(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unreadable, _) | (_, Self::Unreadable) => Self::Unreadable,
            (Self::Absent, other) | (other, Self::Absent) => other,
            (Self::Given(one), Self::Given(two)) => match one.saturating_add(two) {
                sum if sum <= Usage::TOKENS_MAX => Self::Given(sum),
                _ => Self::Unreadable,
            },
        }
    }
}

impl<'de> Deserialize<'de> for WireNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Decode as text: a number that no type can hold (`1e999`) would otherwise make the whole answer unreadable.
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self::from_text(raw.get()))
    }
}

/// Decodes a part of an answer that holds only usage data. Returns `None` if it is missing, and `Err` if it is malformed.
pub(crate) fn parse_accounting<T: DeserializeOwned>(
    raw: Option<&RawValue>,
) -> Option<Result<T, serde_json::Error>> {
    raw.map(|raw| serde_json::from_str(raw.get()))
}
