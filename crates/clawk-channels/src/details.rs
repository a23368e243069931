//! `/details` (or `/why`) in a chat: what the last turn did, call by call. Arguments and results are not shown: others may read the room, and
//! `clawk sessions record` has them.

use clawk_kernel::shown::TurnRecord;

use crate::plain_name::harmless;

/// What is typed.
const COMMANDS: [&str; 2] = ["/details", "/why"];
/// Calls that are listed; the others are counted.
const MAX_CALLS: usize = 20;

/// Whether a text asks for details: the command alone, also with the agent's name behind it as some platforms write it.
pub(crate) fn is_details_command(text: &str) -> bool {
    let mut words = text.trim().splitn(2, '@');
    let command = words
        .next()
        .is_some_and(|word| COMMANDS.iter().any(|known| word.eq_ignore_ascii_case(known)));
    command
        && words
            .next()
            .is_none_or(|name| !name.contains(char::is_whitespace))
}

/// The record in words, Markdown.
pub(crate) fn render_details(record: &TurnRecord) -> String {
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

#[cfg(test)]
mod tests {
    use super::is_details_command;

    #[test]
    fn only_the_command_alone_asks() {
        for text in [
            "/details",
            " /Details \n",
            "/details@my_bot",
            "/why",
            "/Why@my_bot",
        ] {
            assert!(is_details_command(text), "{text}");
        }
        for text in [
            "/detail",
            "/details please",
            "what are the /details?",
            "/details@my bot",
            "",
        ] {
            assert!(!is_details_command(text), "{text}");
        }
    }
}
