//! Time windows: hours and days on a local clock.
//!
//! A window uses the wall clock of its zone. `02:15`–`02:45` does not occur in the night when that hour is skipped, and occurs
//! twice when it is repeated. A window that spans midnight belongs to the day on which it begins. `start` is included, `end` is
//! not. Equal values mean the whole day.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde_json::{Map, Value, json};

use crate::fault::{FaultCollector, InputPath, LengthBounds, nearest_word};

const DAY: u32 = 86_400;

const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];

/// A condition on the time of day.
#[derive(Debug, Clone)]
pub struct TimeWindow {
    start: u32,
    end: u32,
    /// One bit per day; bit 0 is Monday.
    days: u8,
    zone: TimeZone,
    zone_name: Box<str>,
}

impl TimeWindow {
    /// Whether the moment is inside the window.
    #[must_use]
    pub fn contains(&self, now: Timestamp) -> bool {
        let local = self.zone.to_datetime(now);
        let second = u32::try_from(
            i32::from(local.hour()) * 3600 + i32::from(local.minute()) * 60 + i32::from(local.second()),
        )
        .unwrap_or(0); // INVARIANT: hours, minutes and seconds are not negative
        let today = local.weekday();
        if self.start < self.end {
            self.is_on_day(today) && (self.start..self.end).contains(&second)
        } else {
            let began_today = second >= self.start && self.is_on_day(today);
            let began_yesterday = second < self.end && self.is_on_day(today.wrapping_sub(1));
            if self.start == self.end {
                self.is_on_day(today)
            } else {
                began_today || began_yesterday
            }
        }
    }

    fn is_on_day(&self, day: Weekday) -> bool {
        let bit = day.to_monday_zero_offset();
        self.days & (1u8 << bit) != 0
    }

    /// The window in the manifest's form.
    #[must_use]
    pub fn parameters(&self) -> Map<String, Value> {
        let days: Vec<&str> = DAYS
            .iter()
            .filter(|(_, day)| self.is_on_day(*day))
            .map(|(name, _)| *name)
            .collect();
        let mut out = Map::new();
        out.insert("start".to_owned(), json!(Clock(self.start).to_string()));
        out.insert("end".to_owned(), json!(Clock(self.end).to_string()));
        out.insert("timezone".to_owned(), json!(self.zone_name));
        out.insert("days".to_owned(), json!(days));
        out
    }

    /// A key: two windows with the same key are equal.
    pub(crate) fn key(&self) -> (u32, u32, u8, Box<str>) {
        (self.start, self.end, self.days, self.zone_name.clone())
    }

    pub(crate) fn read(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> Option<Self> {
        let map = report.read_object(value, at, &["start", "end", "timezone", "days"])?;
        let (start, end) = match (map.get("start"), map.get("end")) {
            (None, None) => (Some(0), Some(0)),
            (start, end) => {
                let from = at.key("start");
                let to = at.key("end");
                let start = match start {
                    Some(value) => read_clock(report, value, &from, DAY - 1),
                    None => {
                        report.add_fault(&from, "missing", "`start` is required beside `end`");
                        None
                    }
                };
                let end = match end {
                    Some(value) => read_clock(report, value, &to, DAY),
                    None => {
                        report.add_fault(&to, "missing", "`end` is required beside `start`");
                        None
                    }
                };
                (start, end)
            }
        };
        let zone_name = report
            .optional_text(map, at, "timezone", LengthBounds(1, 64))
            .unwrap_or("UTC");
        let zone = read_zone(report, zone_name, &at.key("timezone"));
        let days = match map.get("days") {
            None => 0b111_1111,
            Some(value) => read_days(report, value, &at.key("days")),
        };
        Some(Self {
            start: start?,
            end: end?,
            days,
            zone: zone?,
            zone_name: zone_name.into(),
        })
    }
}

/// A time of day in seconds, parsed from `HH:MM` or `HH:MM:SS`.
struct Clock(u32);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 3600, self.0 / 60 % 60)?;
        match self.0 % 60 {
            0 => Ok(()),
            second => write!(f, ":{second:02}"),
        }
    }
}

fn read_clock(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>, most: u32) -> Option<u32> {
    let text = report.read_text(value, at, LengthBounds(0, 64))?;
    let read = || {
        let mut seconds = 0;
        let mut parts = 0;
        for (part, (limit, unit)) in text.split(':').zip([(24, 3600), (59, 60), (59, 1)]) {
            let two_digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            let number: u32 = part
                .parse()
                .ok()
                .filter(|number| two_digits && *number <= limit)?; // silent-ok: the fault below names the text
            seconds += number * unit;
            parts += 1;
        }
        (parts >= 2 && parts == text.split(':').count() && seconds <= most).then_some(seconds)
    };
    let found = read();
    if found.is_none() {
        report.add_fault(
            at,
            "pattern",
            format!("`{text}` is not a valid time of day (`HH:MM` or `HH:MM:SS`)"),
        );
    }
    found
}

fn read_zone(report: &mut FaultCollector, name: &str, at: &InputPath<'_>) -> Option<TimeZone> {
    let database = TimeZoneDatabase::bundled();
    match database.get(name) {
        Ok(zone) => Some(zone),
        Err(_) => {
            // silent-ok: the only cause is an unknown name
            let names: Vec<String> = database
                .available()
                .map(|name| name.as_str().to_owned())
                .collect();
            let hint = nearest_word(name, names.iter().map(String::as_str)).map_or_else(
                || "an IANA name such as `Europe/Berlin`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            report.add_fault(
                at,
                "time_zone",
                format!("`{name}` is not a valid time zone ({hint})"),
            );
            None
        }
    }
}

fn read_days(report: &mut FaultCollector, value: &Value, at: &InputPath<'_>) -> u8 {
    let mut bits = 0u8;
    report.read_list(value, at, 7, |report, item, at| {
        if let Some(day) = report.read_word(item, at, &DAYS) {
            bits |= 1u8 << day.to_monday_zero_offset();
        }
    });
    if value.as_array().is_some_and(Vec::is_empty) {
        report.add_fault(
            at,
            "empty",
            "an empty list never holds; leave `days` out to mean every day",
        );
    }
    bits
}
