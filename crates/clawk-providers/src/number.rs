//! Numbers as servers send them: bounded where they are decoded, and no reason to lose the answer beside which they stand.

use clawk_core::ports::Usage;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A count, or the place of something in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum WireNumber {
    /// The member is missing or null.
    #[default]
    Absent,
    /// At most [`Usage::TOKENS_MAX`].
    Given(u64),
    /// Negative, a fraction, no number at all, or more than can be recorded.
    Unreadable,
}

impl WireNumber {
    fn of(text: &str) -> Self {
        match text.parse::<u64>() {
            Ok(number) if number <= Usage::TOKENS_MAX => Self::Given(number),
            Err(_) if text == "null" => Self::Absent,
            Ok(_) | Err(_) => Self::Unreadable,
        }
    }

    pub(crate) const fn given(self) -> Option<u64> {
        match self {
            Self::Given(number) => Some(number),
            Self::Absent | Self::Unreadable => None,
        }
    }

    /// Both together, within the bound.
    pub(crate) fn plus(self, other: Self) -> Self {
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
        // As text: a number that no type holds (`1e999`) would else make the whole answer unreadable.
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self::of(raw.get()))
    }
}

/// A part of an answer that only accounts for it. `Err`: it is there and is not what was agreed.
pub(crate) fn accounts<T: DeserializeOwned>(raw: Option<&RawValue>) -> Option<Result<T, serde_json::Error>> {
    raw.map(|raw| serde_json::from_str(raw.get()))
}
