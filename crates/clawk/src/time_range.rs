//! `--since` and `--until`, with one meaning for every verb. Days are UTC, as the days of budgets.

use clawk_kernel::time::{Clock as _, SystemClock, Timestamp};

/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// Which part of the record.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct TimeRangeArgs {
    /// Only from this time on: a day (`2026-11-27`, `today`, `yesterday`; UTC), a time (RFC 3339), or how long ago (`90m`, `36h`, `7d`)
    #[arg(long, value_name = "TIME", value_parser = parse_bound)]
    since: Option<RangeBound>,

    /// Only up to this time; a day counts whole
    #[arg(long, value_name = "TIME", value_parser = parse_bound)]
    until: Option<RangeBound>,
}

/// One end of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeBound {
    /// A day, by its first moment.
    Day(Timestamp),
    /// A moment.
    Moment(Timestamp),
}

impl TimeRangeArgs {
    /// The range of one day.
    pub(crate) const fn of_day(day: RangeBound) -> Self {
        Self {
            since: Some(day),
            until: Some(day),
        }
    }

    /// Returns whether the command line names a range.
    pub(crate) const fn is_given(&self) -> bool {
        self.since.is_some() || self.until.is_some()
    }

    /// Returns the first moment of the range.
    pub(crate) const fn first_moment(&self) -> Option<Timestamp> {
        match self.since {
            Some(RangeBound::Day(at) | RangeBound::Moment(at)) => Some(at),
            None => None,
        }
    }

    /// Returns the first moment behind the range.
    pub(crate) const fn end_moment(&self) -> Option<Timestamp> {
        match self.until {
            Some(RangeBound::Day(at)) => Some(at.plus_millis(DAY_MS)),
            Some(RangeBound::Moment(at)) => Some(at),
            None => None,
        }
    }

    /// Returns whether the moment is in the range.
    pub(crate) fn contains(&self, at: Timestamp) -> bool {
        self.first_moment().is_none_or(|first| at >= first) && self.end_moment().is_none_or(|end| at < end)
    }
}

/// Parses one end of a range.
///
/// # Errors
/// The text is none of the forms; the error lists them.
pub(crate) fn parse_bound(text: &str) -> Result<RangeBound, String> {
    bound_at(text.trim(), SystemClock::default().now())
}

fn bound_at(text: &str, now: Timestamp) -> Result<RangeBound, String> {
    match text {
        "today" => return Ok(RangeBound::Day(now.day_start())),
        "yesterday" => return Ok(RangeBound::Day(now.day_start().plus_millis(-DAY_MS))),
        "now" => return Ok(RangeBound::Moment(now)),
        _ => {}
    }
    if let Ok(day) = Timestamp::parse(&format!("{text}T00:00:00Z")) {
        return Ok(RangeBound::Day(day));
    }
    if let Ok(at) = Timestamp::parse(text) {
        return Ok(RangeBound::Moment(at));
    }
    let ago = text
        .char_indices()
        .last()
        .and_then(|(at, unit)| Some((text.get(..at)?.parse::<i64>().ok()?, unit))) // silent-ok: the error below lists the forms
        .filter(|(count, _)| *count >= 0);
    let unit_ms = match ago.map(|(_, unit)| unit) {
        Some('s') => 1_000,
        Some('m') => 60_000,
        Some('h') => 3_600_000,
        Some('d') => DAY_MS,
        Some('w') => 7 * DAY_MS,
        Some(_) | None => 0,
    };
    match ago {
        Some((count, _)) if unit_ms > 0 => Ok(RangeBound::Moment(
            now.plus_millis(-count.saturating_mul(unit_ms)),
        )),
        Some(_) | None => Err(format!(
            "`{text}` is not a time: take a day (`2026-11-27`, `today`, `yesterday`), a time (`2026-11-27T08:00:00Z`), or how long ago \
             (`90m`, `36h`, `7d`, `2w`)"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn a_day_counts_whole_and_a_moment_is_exact() {
        let now = at("2026-11-28T10:30:00Z");
        let range = |since: &str, until: &str| TimeRangeArgs {
            since: Some(bound_at(since, now).unwrap()),
            until: Some(bound_at(until, now).unwrap()),
        };
        let yesterday = range("yesterday", "yesterday");
        assert!(yesterday.contains(at("2026-11-27T00:00:00Z")));
        assert!(yesterday.contains(at("2026-11-27T23:59:59.999999Z")));
        assert!(!yesterday.contains(at("2026-11-28T00:00:00Z")));
        assert!(!yesterday.contains(at("2026-11-26T23:59:59.999999Z")));
        let days = range("2026-11-26", "2026-11-27");
        assert!(days.contains(at("2026-11-26T00:00:00Z")) && days.contains(at("2026-11-27T12:00:00Z")));
        let moments = range("36h", "2026-11-28T08:00:00+02:00");
        assert!(
            moments.contains(at("2026-11-26T22:30:00Z")) && !moments.contains(at("2026-11-26T22:29:59Z"))
        );
        assert!(
            moments.contains(at("2026-11-28T05:59:59Z")) && !moments.contains(at("2026-11-28T06:00:00Z"))
        );
        assert!(TimeRangeArgs::default().contains(now));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let now = at("2026-11-28T10:30:00Z");
        for text in ["", "soon", "7", "h", "-3h", "2026-13-01", "3 h", "4é"] {
            let refused = bound_at(text, now).unwrap_err();
            assert!(refused.contains("yesterday"), "{text}: {refused}");
        }
    }
}
