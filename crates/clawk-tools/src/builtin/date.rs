//! `date`: the date, the weekday and the time of day.

use clawk_kernel::ports::RunOutcome;
use clawk_kernel::time::Timestamp;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_json::json;

use crate::call::{ExecutorCall, failure_outcome, success_outcome};

#[derive(Deserialize)]
struct Args {
    #[serde(default)]
    timezone: Option<String>,
}

/// Returns the time `now` in the wanted time zone, by default the agent's own.
pub(super) fn run_date(call: &ExecutorCall<'_>, now: Timestamp, own: &TimeZone) -> RunOutcome {
    let args: Args = match call.parse() {
        Ok(args) => args,
        Err(outcome) => return outcome,
    };
    let zone = match args.timezone.as_deref() {
        None => own.clone(),
        Some(name) => match TimeZone::get(name) {
            Ok(zone) => zone,
            Err(_unknown) => {
                return failure_outcome(
                    "`timezone` is not an IANA name of a time zone (example: `Europe/Berlin`)",
                );
            }
        },
    };
    let Ok(at) = jiff::Timestamp::from_microsecond(now.0) else {
        return failure_outcome("the clock of this machine is outside of the calendar");
    };
    let at = at.to_zoned(zone);
    let place = at.time_zone().iana_name().unwrap_or("UTC").to_owned();
    let text = format!("{} ({place})", at.strftime("%A, %Y-%m-%d %H:%M:%S, UTC%:z"));
    success_outcome(
        text,
        json!({
            "date": at.strftime("%Y-%m-%d").to_string(),
            "time": at.strftime("%H:%M:%S").to_string(),
            "weekday": at.strftime("%A").to_string(),
            "utc_offset": at.strftime("%:z").to_string(),
            "timezone": place,
            "rfc3339": at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
            "week": at.date().iso_week_date().week(),
            "day_of_year": at.day_of_year(),
        }),
    )
}
