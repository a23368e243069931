//! Converts scheduled jobs to `cron` channels.

use serde_json::Value;

use crate::channels::quote_toml;
use crate::draft::{Channel, Draft, fit_name};

/// Adds a job that sends `prompt` to the agent at the times of `schedule` (five fields).
pub(crate) fn add_job(draft: &mut Draft, name: &str, schedule: &str, timezone: Option<&str>, prompt: &str) {
    let fields = schedule.split_whitespace().count();
    if !(5..=6).contains(&fields) {
        draft.report.add_left_out(
            format!("job {name}"),
            format!("`{schedule}` is not a cron expression"),
        );
        return;
    }
    let mut channel = Channel {
        name: fit_name(&format!("cron-{name}")),
        kind: "cron",
        transport: "stdio",
        secret: "UNUSED".to_owned(),
        schedule: Some(schedule.to_owned()),
        ..Channel::default()
    };
    channel.local.insert("prompt".into(), quote_toml(prompt));
    if let Some(zone) = timezone.filter(|zone| !zone.is_empty()) {
        channel.local.insert("timezone".into(), quote_toml(zone));
    }
    draft.report.add_carried(format!("job `{name}`, at `{schedule}`"));
    draft.add_channel(channel);
}

/// Adds the jobs of a `jobs.json`: a list, or a list below `jobs`. Members occur in two spellings.
pub(crate) fn from_json(draft: &mut Draft, file: &str, root: &Value) {
    let list = root.get("jobs").unwrap_or(root);
    let Some(jobs) = list.as_array() else { return };
    for (index, job) in jobs.iter().enumerate() {
        let name = first_text(job, &["name", "id"]).unwrap_or_else(|| format!("{}", index + 1));
        if job.get("enabled") == Some(&Value::Bool(false)) {
            draft
                .report
                .add_left_out(format!("{file}: job {name}"), "it was switched off");
            continue;
        }
        let payload = job.get("payload").unwrap_or(job);
        let prompt = first_text(payload, &["message", "text", "prompt", "task"]);
        let Some(prompt) = prompt else {
            let reason = "it says nothing to the agent (a command of its own?): declare a tool and a cron channel for it";
            draft.report.add_left_out(format!("{file}: job {name}"), reason);
            continue;
        };
        let schedule = job.get("schedule").unwrap_or(job);
        let zone = first_text(schedule, &["tz", "timezone"]);
        match cron_expression(schedule) {
            Ok(expression) => add_job(draft, &name, &expression, zone.as_deref(), &prompt),
            Err(reason) => draft.report.add_left_out(format!("{file}: job {name}"), reason),
        }
        if let Some(to) = first_text(payload, &["to", "channel"]).or_else(|| {
            job.get("delivery")
                .and_then(|d| first_text(d, &["to", "channel"]))
        }) {
            let reason = format!(
                "its answers went to `{to}`: set `deliver_to = \"CHANNEL:CONVERSATION\"` in `[channels.cron-…]`"
            );
            draft
                .report
                .add_left_out(format!("{file}: job {name}, delivery"), reason);
        }
    }
}

/// Converts a schedule to five fields. The error says why that is not possible.
fn cron_expression(schedule: &Value) -> Result<String, String> {
    if let Some(expression) = schedule.as_str() {
        return Ok(expression.to_owned());
    }
    if let Some(expression) = first_text(schedule, &["expr", "expression", "cron", "schedule"]) {
        return Ok(expression);
    }
    let every = ["everyMs", "every_ms", "interval_ms"]
        .iter()
        .find_map(|name| schedule.get(name).and_then(Value::as_u64));
    if let Some(every) = every {
        return every_ms(every);
    }
    Err("it runs once, at a fixed time: ask the agent for it when the time has come".to_owned())
}

/// Converts a fixed interval to five fields. Only intervals that divide an hour or a day are regular.
pub(crate) fn every_ms(every: u64) -> Result<String, String> {
    let minutes = every / 60_000;
    match minutes {
        1 => Ok("* * * * *".to_owned()),
        2..60 if 60_u64.is_multiple_of(minutes) => Ok(format!("*/{minutes} * * * *")),
        60 => Ok("0 * * * *".to_owned()),
        61..1440 if minutes.is_multiple_of(60) && 24_u64.is_multiple_of(minutes / 60) => {
            Ok(format!("0 */{} * * *", minutes / 60))
        }
        1440 => Ok("0 0 * * *".to_owned()),
        _ => Err(format!(
            "an interval of {every} ms can't be written as a cron expression: choose one and add a cron channel"
        )),
    }
}

fn first_text(value: &Value, names: &[&str]) -> Option<String> {
    let found = names.iter().find_map(|name| value.get(name))?;
    found
        .as_str()
        .map(str::to_owned)
        .filter(|text| !text.trim().is_empty())
}
