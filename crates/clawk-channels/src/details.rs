//! `/details` (or `/why`) in a chat: what the last turn did, call by call. Arguments and results are not shown: others may read the room, and
//! `clawk sessions record` has them.

use clawk_kernel::shown::TurnRecord;

use crate::plain_name::harmless;

/// Calls that are listed; the others are counted.
const MAX_CALLS: usize = 20;

/// The record in words, Markdown.
#[must_use]
pub fn render_details(record: &TurnRecord) -> String {
    let mut lines = vec![format!("Record of the last answer (`{}`):", record.message)];
    for (number, call) in (1..).zip(record.calls.iter().take(MAX_CALLS)) {
        let mut line = format!(
            "{number}. `{}`: {}",
            harmless(&call.tool).replace('`', "'"),
            call.outcome.name()
        );
        if let Some(rule) = &call.rule_id {
            line.push_str(&format!(", rule `{}`", harmless(rule).replace('`', "'")));
        }
        if let Some(reason) = &call.reason {
            line.push_str(&format!(" ({})", harmless(reason)));
        }
        lines.push(line);
    }
    if record.calls.len() > MAX_CALLS {
        lines.push(format!("… and {} more.", record.calls.len() - MAX_CALLS));
    }
    if record.calls.is_empty() {
        lines.push("No call was made.".to_owned());
    }
    if let Some(judged) = &record.judged {
        lines.push(match &judged.failed {
            Some(why) => format!("Nothing was judged: {why}."),
            None => format!(
                "Judged by `{}`: {} of {} sentences are marked.",
                harmless(&judged.by).replace('`', "'"),
                judged.marks.len(),
                judged.sentences
            ),
        });
    }
    lines.join("\n")
}
