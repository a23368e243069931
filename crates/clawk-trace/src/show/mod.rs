//! Renders each event as one line for people. No I/O.

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use clawk_proto::trace::TraceEvent;
use serde_json::{Map, Value};

/// The style of printed lines.
#[derive(Debug, Clone, Copy)]
pub struct LineStyle {
    /// ANSI colours; only for a terminal.
    pub colour: bool,
    /// Cut lines after this many characters; 0: never.
    pub width: usize,
}

/// One event as one line: time of day, sequence, type, then the payload's members as `key=value`. Control characters are escaped,
/// so that a trace can't control the terminal.
#[must_use]
pub fn line(event: &TraceEvent, style: LineStyle) -> String {
    let mut facts = String::new();
    members(&event.payload, &mut facts);
    let time = event
        .timestamp
        .split_once('T')
        .map_or(event.timestamp.as_str(), |(_, time)| time);
    let time: String = time.chars().take("00:00:00.000".len()).collect();
    let (time, kind) = (printable(&time), printable(&event.event_type));
    let head = format!("{time}  {:>5}  ", event.sequence);
    let used = head.chars().count() + kind.chars().count() + 2;
    let facts = cut(&facts, style.width.saturating_sub(used), style.width > 0);
    if style.colour {
        let colour = colour_of(&event.event_type, &event.payload);
        format!("\u{1b}[2m{head}\u{1b}[0m\u{1b}[{colour}m{kind}\u{1b}[0m  {facts}")
    } else {
        format!("{head}{kind}  {facts}").trim_end().to_owned()
    }
}

/// Writes the payload's members as `key=value`: nested values as JSON, long values cut.
fn members(payload: &Map<String, Value>, out: &mut String) {
    for (key, value) in payload {
        if !out.is_empty() {
            out.push(' ');
        }
        let text = match value {
            Value::String(text) if is_digest(text) => text.chars().take(12).chain(['…']).collect(),
            Value::String(text) if text.is_empty() || text.contains([' ', '=', '"', '\n']) => {
                format!("{text:?}")
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let _ = write!(out, "{}={}", printable(key), cut(&printable(&text), 96, true)); // silent-ok: writing to a String
    }
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Escapes control characters and characters that change the text direction.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn cut(text: &str, width: usize, bounded: bool) -> String {
    if !bounded || text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// The colour: red for refusals and failures, yellow for waiting, green for finished actions, cyan for models, otherwise none.
fn colour_of(kind: &str, payload: &Map<String, Value>) -> &'static str {
    let effect = payload
        .get("result")
        .or_else(|| payload.get("effect"))
        .and_then(Value::as_str);
    match kind {
        "action.denied" | "action.failed" | "policy.violated" | "error.occurred" => "31",
        "policy.evaluated" if effect == Some("deny") => "31",
        "action.executed" | "action.approved" => "32",
        _ if kind.starts_with("ckp.approval.") => "33",
        _ if kind.starts_with("ckp.provider.") => "36",
        _ => "0",
    }
}
