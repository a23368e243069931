//! `timezone`: the time zone of the agent's users, as an IANA name.

use jiff::tz::TimeZone;
use serde::{Deserialize as _, Deserializer};

use super::Settings;

impl Settings {
    /// Returns the agent's time zone: the given one, else the host's, else UTC.
    pub(crate) fn time_zone(&self) -> TimeZone {
        let given = self.timezone.as_deref().and_then(|name| TimeZone::get(name).ok()); // silent-ok: judged when the file was read
        // silent-ok: a host without a time zone uses UTC
        given.unwrap_or_else(|| TimeZone::try_system().unwrap_or(TimeZone::UTC))
    }
}

/// Deserialises and checks a time zone's name.
pub(super) fn deserialize_zone<'de, D: Deserializer<'de>>(given: D) -> Result<Option<String>, D::Error> {
    let name = Option::<String>::deserialize(given)?;
    if let Some(name) = &name
        && let Err(error) = TimeZone::get(name)
    {
        return Err(serde::de::Error::custom(format!(
            "`{name}` is not a known time zone (example: `Europe/Berlin`): {error}"
        )));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn a_zone_is_known_or_refused() {
        let settings: Settings = toml::from_str("timezone = \"Asia/Kolkata\"").unwrap();
        assert_eq!(settings.time_zone().iana_name(), Some("Asia/Kolkata"));
        let error = toml::from_str::<Settings>("timezone = \"Mars/Base\"")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`Mars/Base` is not a known time zone (example: `Europe/Berlin`)"),
            "{error}"
        );
    }
}
