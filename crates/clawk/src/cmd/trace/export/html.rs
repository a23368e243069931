//! Writes a trace as one HTML page: no script, no requests, all text escaped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Result, bail};
use base64::Engine as _;
use clawk_kernel::kind;
use clawk_proto::SessionId;
use clawk_proto::trace::TraceEvent;
use clawk_trace::VerificationReport;
use clawk_trace::chain::digest_of;
use clawk_trace::show::printable;
use serde_json::Value;

use crate::cmd::trace::source::{SessionSelection, TraceSource};

/// Largest number of events on one page. Browsers become slow above it.
const MAX_EVENTS: usize = 20_000;
const STYLE: &str = include_str!("report.css");

/// The heading of one session on the page.
#[derive(Default)]
struct HtmlSessionSummary {
    events: u64,
    first: String,
    last: String,
    door: String,
    agent: String,
    messages: u64,
    allowed: u64,
    denied: u64,
    failed: u64,
    asked: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost_microusd: u64,
    levels: BTreeMap<String, u64>,
}

/// Writes the page.
pub(super) fn render_page(
    source: &TraceSource,
    pick: SessionSelection,
    report: &VerificationReport,
) -> Result<String> {
    let mut events = Vec::new();
    source.for_each_event(pick, |event| {
        if events.len() >= MAX_EVENTS {
            bail!("more than {MAX_EVENTS} events; take one session with `--session`");
        }
        events.push(event);
        Ok(())
    })?;
    let mut sessions: Vec<SessionId> = Vec::new();
    for event in &events {
        if !sessions.contains(&event.session_id) {
            sessions.push(event.session_id);
        }
    }
    let hash = base64::engine::general_purpose::STANDARD.encode(digest_of(STYLE.as_bytes()).0);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\"><title>clawk trace</title>\n<style>{STYLE}</style></head><body><main>\n"
    );
    render_verdict(&mut out, report, events.len(), sessions.len());
    if sessions.len() > 1 {
        out.push_str("<nav><h2>Sessions</h2><ol>");
        for session in &sessions {
            let summary = HtmlSessionSummary::from_events(&events, *session);
            let _ = write!(
                out,
                "<li><a href=\"#s-{session}\">{}</a> <span class=\"dim\">{} · {} events · {}</span></li>",
                short_id(*session),
                escape_html(&summary.door),
                summary.events,
                escape_html(&time_of_day(&summary.first))
            ); // silent-ok: writing to a String
        }
        out.push_str("</ol></nav>\n");
    }
    for session in sessions {
        render_section(&mut out, &events, session);
    }
    out.push_str("</main></body></html>\n");
    Ok(out)
}

fn render_verdict(out: &mut String, report: &VerificationReport, events: usize, sessions: usize) {
    let (class, word, detail) = match &report.fault {
        None => (
            "good",
            "Every chain holds",
            "No event was changed, removed, added or moved since it was hashed.".to_owned(),
        ),
        Some(fault) => (
            "bad",
            "The record does not hold",
            format!(
                "{}: {} (event {} of {})",
                fault.kind.code(),
                fault.detail,
                fault.index,
                report.event_count
            ),
        ),
    };
    let plural = if sessions == 1 { "" } else { "s" };
    let _ = writeln!(
        out,
        "<header><p class=\"brand\">clawk trace</p><h1><span class=\"mark {class}\"></span>{word}</h1>\
         <p>{}</p><p class=\"dim\">{events} events in {sessions} session{plural}. Prompts, arguments and results are not in a \
         trace; it names them by digest.</p></header>",
        escape_html(&detail)
    ); // silent-ok: writing to a String
}

fn render_section(out: &mut String, events: &[TraceEvent], session: SessionId) {
    let summary = HtmlSessionSummary::from_events(events, session);
    let _ = write!(
        out,
        "<section id=\"s-{session}\"><h2>Session {} <span class=\"dim\">{}</span></h2><p class=\"dim id\">{session} · {} – {}</p><dl class=\"cards\">",
        short_id(session),
        escape_html(&summary.door),
        escape_html(&day_and_clock(&summary.first)),
        escape_html(&time_of_day(&summary.last)),
    ); // silent-ok: writing to a String
    let levels: Vec<String> = summary
        .levels
        .iter()
        .map(|(level, count)| format!("{level} × {count}"))
        .collect();
    let cost = if summary.cost_microusd > 0 {
        format!(
            "{}.{:06} USD",
            summary.cost_microusd / 1_000_000,
            summary.cost_microusd % 1_000_000
        )
    } else {
        String::new()
    };
    for (name, value) in [
        ("Agent", summary.agent.clone()),
        ("Messages", format_count(summary.messages)),
        ("Calls allowed", format_count(summary.allowed)),
        ("Denied", format_count(summary.denied)),
        ("Failed", format_count(summary.failed)),
        ("People asked", format_count(summary.asked)),
        (
            "Tokens in / out",
            match (summary.input_tokens, summary.output_tokens) {
                (0, 0) => String::new(),
                (input, output) => format!("{input} / {output}"),
            },
        ),
        ("Cost", cost),
        ("Sandbox", levels.join(", ")),
    ] {
        if !value.is_empty() {
            let _ = write!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape_html(&value)); // silent-ok: as above
        }
    }
    out.push_str("</dl>");
    // Lifecycle sessions are folded, because readers seldom look for them.
    let quiet = summary.door == "runtime";
    if quiet {
        let _ = write!(
            out,
            "<details class=\"quiet\"><summary class=\"dim\">{} events of the agent's own run: its start, its tools, its end</summary>",
            summary.events
        ); // silent-ok: writing to a String
    }
    out.push_str("<ol class=\"events\">\n");
    for event in events.iter().filter(|event| event.session_id == session) {
        render_row(out, event);
    }
    out.push_str(if quiet {
        "</ol></details></section>\n"
    } else {
        "</ol></section>\n"
    });
}

fn format_count(value: u64) -> String {
    if value == 0 {
        String::new()
    } else {
        value.to_string()
    }
}

fn render_row(out: &mut String, event: &TraceEvent) {
    let text = |key: &str| event.payload.get(key).and_then(Value::as_str).unwrap_or_default();
    let class = class_of(event);
    let _ = write!(
        out,
        "<li class=\"{class}\"><details><summary><time>{}</time><span class=\"n\">{}</span><b>{}</b> <span>{}</span></summary><table>",
        escape_html(&time_of_day(&event.timestamp)),
        event.sequence,
        escape_html(&event.event_type),
        escape_html(&event_headline(event, &text)),
    ); // silent-ok: writing to a String
    for (key, value) in &event.payload {
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let _ = write!(
            out,
            "<tr><th>{}</th><td>{}</td></tr>",
            escape_html(key),
            escape_html(&shown)
        ); // silent-ok: as above
    }
    let _ = writeln!(
        out,
        "<tr class=\"dim\"><th>event_hash</th><td>{}</td></tr><tr class=\"dim\"><th>span</th><td>{}</td></tr></table></details></li>",
        event.event_hash, event.span_id
    ); // silent-ok: as above
}

/// Returns the important parts of an event as text.
fn event_headline<'a>(event: &'a TraceEvent, text: &dyn Fn(&str) -> &'a str) -> String {
    let number = |key: &str| event.payload.get(key).and_then(Value::as_u64).unwrap_or(0);
    let rule = match text("rule_id") {
        "" => String::new(),
        rule => format!(", rule {rule}"),
    };
    if let Some(said) = carp_headline(event, text) {
        return said;
    }
    match event.event_type.as_str() {
        kind::ACTION_REQUESTED => format!("{} wanted by {}", text("action_id"), text("door")),
        kind::ACTION_APPROVED => format!(
            "{} may run: {} by {}{rule}",
            text("action_id"),
            text("effect"),
            text("by")
        ),
        kind::ACTION_DENIED => format!("{} may not: {}{rule}", text("action_id"), text("reason")),
        kind::ACTION_EXECUTED => format!(
            "{} ran, level {}, {} ms",
            text("action_id"),
            text("level"),
            number("duration_ms")
        ),
        kind::ACTION_FAILED => format!("{}: {}", text("action_id"), text("error_message")),
        kind::APPROVAL_REQUESTED => format!("may {} run? {}{rule}", text("action_id"), text("reason")),
        kind::APPROVAL_ANSWERED => {
            let why = text("reason");
            let why = if why.is_empty() {
                String::new()
            } else {
                format!(": {why}")
            };
            format!("{} answered {}{why}", text("by"), text("answer"))
        }
        kind::PROVIDER_COMPLETED => format!(
            "{} ({}), {} tokens in, {} out, {} ms, {}",
            text("provider"),
            text("model"),
            number("input_tokens"),
            number("output_tokens"),
            number("duration_ms"),
            match number("call_count") {
                0 => "no call".to_owned(),
                1 => "1 call".to_owned(),
                count => format!("{count} calls"),
            }
        ),
        kind::PROVIDER_FAILED => format!("{}: {}", text("provider"), text("reason")),
        kind::LIFECYCLE => format!("{} → {}", text("from"), text("to")),
        kind::MESSAGE_ACCEPTED => format!(
            "from {} by {}, {} bytes",
            text("sender"),
            text("door"),
            number("size_bytes")
        ),
        kind::MESSAGE_ANSWERED => format!("{} after {} ms", text("end"), number("duration_ms")),
        kind::PROVIDER_REQUESTED => format!("{} is about to be asked", text("provider")),
        _ => ["reason", "action_id", "tool", "goal", "store", "skill"]
            .into_iter()
            .map(text)
            .find(|text| !text.is_empty())
            .unwrap_or_default()
            .to_owned(),
    }
}

fn carp_headline<'a>(event: &'a TraceEvent, text: &dyn Fn(&str) -> &'a str) -> Option<String> {
    let number = |key: &str| event.payload.get(key).and_then(Value::as_u64).unwrap_or(0);
    Some(match event.event_type.as_str() {
        kind::CARP_REQUEST => format!("{}: {}", text("operation"), text("goal")),
        kind::POLICY_EVALUATED => {
            let result = match text("result") {
                "not_applicable" => "passes, no policy speaks of it",
                result => result,
            };
            let policy = match text("policy_id") {
                "default" | "" => String::new(),
                policy => format!(" by {policy}"),
            };
            format!("{}: {result}{policy}", text("action_id"))
        }
        kind::POLICY_VIOLATED => format!("{} of {}", text("violation_type"), text("policy_id")),
        kind::CONTEXT_INJECTED => format!(
            "{} of {}, {} tokens",
            text("block_id"),
            text("source"),
            number("token_count")
        ),
        kind::CONTEXT_REDACTED => format!("{} left out: {}", text("block_id"), text("redaction_reason")),
        kind::CARP_COMPLETED => format!(
            "{}: {} allowed, {} denied, {} context blocks",
            text("decision_type"),
            number("allowed_count"),
            number("denied_count"),
            number("context_block_count")
        ),
        kind::ERROR_OCCURRED => format!("{}: {}", text("error_code"), text("error_message")),
        kind::ATLAS_DESCRIBED | kind::ATLAS_LOADED | kind::ATLAS_REMOVED => {
            format!("{} {}", text("atlas_id"), text("version"))
        }
        _ => return None,
    })
}

fn class_of(event: &TraceEvent) -> &'static str {
    match event.event_type.as_str() {
        kind::ACTION_DENIED
        | kind::ACTION_FAILED
        | kind::PROVIDER_FAILED
        | kind::MESSAGE_DEAD
        | kind::MESSAGE_REFUSED
        | kind::POLICY_VIOLATED
        | kind::ERROR_OCCURRED => "bad",
        kind::POLICY_EVALUATED if event.payload.get("result").is_some_and(|result| result == "deny") => "bad",
        kind::ACTION_EXECUTED if event.payload.get("is_error") == Some(&Value::Bool(true)) => "bad",
        kind::ACTION_EXECUTED | kind::ACTION_APPROVED | kind::MESSAGE_ANSWERED => "good",
        kind::APPROVAL_REQUESTED | kind::APPROVAL_ANSWERED | "ckp.content.redacted" => "ask",
        kind::PROVIDER_COMPLETED | kind::CONTEXT_INJECTED => "model",
        _ => "plain",
    }
}

impl HtmlSessionSummary {
    fn from_events(events: &[TraceEvent], session: SessionId) -> Self {
        let mut summary = Self::default();
        for event in events.iter().filter(|event| event.session_id == session) {
            summary.add_event(event);
        }
        summary
    }

    fn add_event(&mut self, event: &TraceEvent) {
        let text = |key: &str| {
            event
                .payload
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let number = |key: &str| event.payload.get(key).and_then(Value::as_u64).unwrap_or(0);
        if self.events == 0 {
            (self.first, self.door, self.agent) = (event.timestamp.clone(), text("door"), text("agent_id"));
        }
        self.events += 1;
        self.last.clone_from(&event.timestamp);
        match event.event_type.as_str() {
            kind::MESSAGE_ACCEPTED => self.messages += 1,
            kind::ACTION_APPROVED => self.allowed += 1,
            kind::ACTION_DENIED => self.denied += 1,
            kind::ACTION_FAILED => self.failed += 1,
            kind::ACTION_EXECUTED => *self.levels.entry(text("level")).or_default() += 1,
            kind::APPROVAL_REQUESTED => self.asked += 1,
            kind::PROVIDER_COMPLETED | kind::PROVIDER_FAILED => {
                self.input_tokens += number("input_tokens");
                self.output_tokens += number("output_tokens");
                self.cost_microusd += number("cost_microusd");
            }
            _ => {}
        }
    }
}

fn short_id(session: SessionId) -> String {
    let text = session.to_string();
    text.chars()
        .skip(text.chars().count().saturating_sub(12))
        .collect()
}

/// Returns the time of day, to the millisecond.
fn time_of_day(timestamp: &str) -> String {
    let time = timestamp.split_once('T').map_or(timestamp, |(_, time)| time);
    time.chars().take("00:00:00.000".len()).collect()
}

fn day_and_clock(timestamp: &str) -> String {
    let day = timestamp.split('T').next().unwrap_or_default();
    format!("{day} {}", time_of_day(timestamp))
}

/// Escapes text: no markup, no control characters, no changes of the writing direction.
fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escape_html;

    #[test]
    fn nothing_gets_out_of_its_text() {
        assert_eq!(
            escape_html("<img src=x onerror='a'>&\"\u{202e}\u{1b}"),
            "&lt;img src=x onerror=&#39;a&#39;&gt;&amp;&quot;\\u{202e}\\u{1b}"
        );
    }
}
