//! Durations: digits and one unit, `30d`, `24h`, `5m`, `90s`.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A length of time in whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ManifestDuration(u64);

/// The text is not a valid duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a duration is digits and one unit of `s`, `m`, `h`, `d`, such as `30d`")]
pub struct NotADuration;

impl ManifestDuration {
    const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

    /// A duration of this many seconds.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds)
    }

    /// Its length in seconds.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0
    }

    /// As the standard library's type.
    #[must_use]
    pub const fn as_std(self) -> std::time::Duration {
        std::time::Duration::from_secs(self.0)
    }

    /// Reads digits and one unit: `s`, `m`, `h` or `d`.
    ///
    /// ```
    /// use clawk_manifest::model::ManifestDuration;
    ///
    /// assert_eq!(ManifestDuration::parse("30d")?.as_secs(), 30 * 86_400);
    /// assert!(ManifestDuration::parse("1h30m").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another form, or longer than 2^63 milliseconds.
    pub fn parse(text: &str) -> Result<Self, NotADuration> {
        let (unit, scale) = Self::UNITS
            .into_iter()
            .find(|(unit, _)| text.ends_with(*unit))
            .ok_or(NotADuration)?;
        let digits = text.trim_end_matches(unit);
        if digits.len() + 1 != text.len() || digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(NotADuration);
        }
        let count: u64 = digits.parse().map_err(|_| NotADuration)?; // silent-ok: only an overflow is left
        let seconds = count.checked_mul(scale).ok_or(NotADuration)?;
        if seconds > u64::MAX / 2_000 {
            Err(NotADuration)
        } else {
            Ok(Self(seconds))
        }
    }
}

impl TryFrom<String> for ManifestDuration {
    type Error = NotADuration;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<ManifestDuration> for String {
    fn from(duration: ManifestDuration) -> Self {
        duration.to_string()
    }
}

impl fmt::Display for ManifestDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, scale): &(char, u64)| self.0.is_multiple_of(*scale) && (self.0 > 0 || *scale == 1);
        let (unit, scale) = Self::UNITS.into_iter().find(fits).unwrap_or(('s', 1));
        write!(f, "{}{unit}", self.0 / scale)
    }
}
