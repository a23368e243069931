//! Times of a cron expression in a time zone.

use std::str::FromStr as _;

use clawk_kernel::time::Timestamp;
use croner::Cron as Pattern;
use jiff::Zoned;
use jiff::tz::TimeZone;

/// A time zone by its IANA name.
///
/// # Errors
/// For people: it is not known here.
pub(crate) fn time_zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|error| format!("`timezone` `{name}` is not known on this machine: {error}"))
}

/// A cron expression and its zone.
#[derive(Debug, Clone)]
pub(crate) struct CronTimetable {
    pattern: Pattern,
    zone: TimeZone,
}

impl CronTimetable {
    /// # Errors
    /// For people: which of both is wrong.
    pub(crate) fn new(schedule: &str, timezone: Option<&str>) -> Result<Self, String> {
        let pattern = Pattern::from_str(schedule)
            .map_err(|error| format!("`{schedule}` is not a schedule: {error}"))?;
        let zone = match timezone {
            None => TimeZone::UTC,
            Some(name) => time_zone(name)?,
        };
        Ok(Self { pattern, zone })
    }

    pub(crate) fn as_str(&self) -> &str {
        self.pattern.as_str()
    }

    fn to_zoned(&self, at: Timestamp) -> Option<Zoned> {
        let at = jiff::Timestamp::from_microsecond(at.0).ok()?; // silent-ok: no clock says such a time
        Some(at.to_zoned(self.zone.clone()))
    }

    /// A time as a person in the zone reads it: RFC 3339 with the zone's offset.
    pub(crate) fn local_time(&self, at: Timestamp) -> String {
        match self.to_zoned(at) {
            Some(at) => at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            None => at.to_string(),
        }
    }

    /// The next time after this one; none: there is none in centuries.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let next = self
            .pattern
            .find_next_occurrence(&self.to_zoned(after)?, false)
            .ok()?; // silent-ok: as above
        Some(Timestamp(next.timestamp().as_microsecond()))
    }
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;

    use super::CronTimetable;

    #[test]
    fn a_time_is_told_in_the_schedules_zone() {
        for (zone, at, told) in [
            (None, "2026-11-27T08:00:00Z", "2026-11-27T08:00:00+00:00"),
            (
                Some("Europe/Berlin"),
                "2026-11-27T08:00:00Z",
                "2026-11-27T09:00:00+01:00",
            ),
            (
                Some("Europe/Berlin"),
                "2026-07-01T07:00:00Z",
                "2026-07-01T09:00:00+02:00",
            ),
            (
                Some("America/New_York"),
                "2026-01-01T02:00:00Z",
                "2025-12-31T21:00:00-05:00",
            ),
        ] {
            let table = CronTimetable::new("0 9 * * *", zone).unwrap();
            assert_eq!(table.local_time(Timestamp::parse(at).unwrap()), told);
        }
    }
}
