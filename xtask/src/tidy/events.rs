//! Payloads of the journal's events are read in `clawk-events` alone: there a field of another type is an error that names it, and not
//! a default.

use std::path::Path;

use super::Finding;
use super::source::is_test;

/// Where payloads may be parsed.
const OWNER: &str = "crates/clawk-events/";

/// Reads text as JSON, whatever the text is.
const READERS: [&str; 2] = ["from_str", "from_slice"];

/// Places outside of the owner that parse a payload.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let source = path.starts_with("crates") && path.extension().is_some_and(|extension| extension == "rs");
    if !source || is_test(path) || path.starts_with(OWNER) {
        return Vec::new();
    }
    // Unit tests at a file's end may look at JSON.
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or(text);
    let mut findings = Vec::new();
    for reader in READERS {
        for (at, _) in text.match_indices(reader) {
            let Some(arguments) = text.get(at + reader.len()..).and_then(arguments) else {
                continue;
            };
            if is_event_payload(arguments) {
                let line = text.get(..at).map_or(0, |before| before.matches('\n').count()) + 1;
                findings.push(format!(
                    "{}:{line}: parses an event's payload; read it with `clawk_events`, for example `RecordedEvent::read_as`",
                    path.display()
                ));
            }
        }
    }
    findings
}

/// What stands between the parentheses of a call, behind its type arguments.
fn arguments(call: &str) -> Option<&str> {
    let open = call.find('(')?;
    let types = call.get(..open)?;
    if !(types.is_empty() || types.starts_with("::<")) {
        return None;
    }
    let mut depth = 0_usize;
    for (at, letter) in call.char_indices().skip_while(|(at, _)| *at < open) {
        match letter {
            '(' => depth += 1,
            ')' if depth == 1 => return call.get(open + 1..at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// `event.payload`, `&event.payload`, `event.payload.get()`, `event.payload_with_words()`, and the same of other names.
fn is_event_payload(arguments: &str) -> bool {
    let text = arguments.trim().trim_end_matches(',').trim_start_matches('&');
    let text = text.strip_suffix(".get()").unwrap_or(text);
    let text = text.strip_suffix("()").unwrap_or(text);
    // A frame of a platform's protocol has a payload, too.
    !text.starts_with("frame.") && (text.ends_with(".payload") || text.ends_with(".payload_with_words"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, line: &str) -> usize {
        check(Path::new(path), &format!("fn f() {{\n    {line}\n}}\n")).len()
    }

    #[test]
    fn a_payload_is_parsed_in_its_crate_alone() {
        let kernel = "crates/clawk-kernel/src/recover.rs";
        for line in [
            "let x: Value = serde_json::from_str(&event.payload).unwrap_or_default();",
            "let x = serde_json::from_str::<Fields>(&event.payload).ok()?;",
            "let x = serde_json::from_str(&event.payload_with_words())?;",
            "let x = serde_json::from_str(stored.event.payload.get())?;",
            "let x = serde_json::from_str(\n        &recorded.payload,\n    )?;",
        ] {
            assert_eq!(found(kernel, line), 1, "{line}");
            assert_eq!(found("crates/clawk-events/src/event.rs", line), 0, "{line}");
            assert_eq!(found("crates/clawk-kernel/src/tests/order.rs", line), 0, "{line}");
        }
        for line in [
            "let x = event.read_as::<SessionStarted>()?;",
            "let x = serde_json::from_slice(&content.bytes)?;",
            "let x = serde_json::from_slice::<Value>(&frame.payload).ok();",
            "let x = from_str_radix(&event.payload, 16);",
        ] {
            assert_eq!(found(kernel, line), 0, "{line}");
        }
    }
}
