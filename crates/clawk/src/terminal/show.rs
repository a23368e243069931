//! An agent's work as lines of text: tool calls with their verdicts, questions with previews, ends of turns.
//! The agent's words go to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};

use clawk_kernel::{Notice, Plan, Question, TurnEnd};
use serde_json::{Map, Value};

use super::{columns, markdown};
use crate::out::{self, Paint, clipped, harmless};

const SUMMARY_LINES: usize = 4;
const PREVIEW_LINES: usize = 40;

/// Shows notices as they come.
#[derive(Debug)]
pub(crate) struct Show {
    paint: Paint,
    /// Words stream as Markdown when standard output is a terminal; else each text is written whole and unchanged.
    streaming: Option<Streaming>,
    /// A line `thinking` stands there, for so many seconds, and is to be removed.
    waiting: Option<u64>,
    /// Standard error is a terminal.
    lively: bool,
}

#[derive(Debug)]
struct Streaming {
    markdown: markdown::Stream,
    /// What came in pieces so far.
    seen: String,
}

impl Streaming {
    fn new() -> Self {
        Self {
            markdown: markdown::Stream::new(Paint::stdout(), columns(100)),
            seen: String::new(),
        }
    }
}

impl Show {
    /// For this terminal, or the lack of one.
    pub(crate) fn new() -> Self {
        Self {
            paint: Paint::stderr(),
            streaming: io::stdout().is_terminal().then(Streaming::new),
            waiting: None,
            lively: io::stderr().is_terminal(),
        }
    }

    /// Shows one notice.
    pub(crate) fn notice(&mut self, notice: &Notice) -> io::Result<()> {
        match notice {
            Notice::TurnStarted { .. } => self.wait(),
            Notice::Delta(piece) => self.delta(piece)?,
            Notice::Said(text) => self.said(text)?,
            Notice::Retrying {
                provider,
                reason,
                wait_ms,
                next,
            } => {
                self.break_off()?;
                self.retrying(provider, reason, *wait_ms, next);
                self.wait();
            }
            Notice::CallDecided {
                tool,
                arguments,
                verdict,
                rule_id,
                ..
            } => {
                self.break_off()?;
                let verdict = verdict_text(self.paint, verdict, rule_id.as_deref());
                let width = columns(100).saturating_sub(tool.len() + 4);
                let arguments = clipped(&arguments_text(arguments), width);
                self.line(&format!(
                    "  → {} {}",
                    self.paint.cyan(tool),
                    self.paint.dim(&arguments)
                ));
                self.line(&format!("    {verdict}"));
            }
            Notice::Screened { place, action, kinds } => {
                self.break_off()?;
                self.screened(place, action, kinds);
            }
            Notice::Asking(_) | Notice::Planned(_) => self.break_off()?,
            Notice::Warned(text) => {
                self.break_off()?;
                self.line(&format!("  {} {}", self.paint.yellow("budget:"), harmless(text)));
            }
            Notice::Unreachable(text) => {
                self.break_off()?;
                self.line(&format!("  {} {}", self.paint.yellow("model:"), harmless(text)));
            }
            Notice::CallFinished {
                tool,
                is_error,
                summary,
                duration_ms,
                level,
                ..
            } => {
                self.break_off()?;
                self.finished(tool, *is_error, summary, *duration_ms, level);
                self.wait();
            }
            Notice::TurnEnded { end, usage, .. } => {
                self.break_off()?;
                self.ended(end);
                let about = if usage.estimated { "about " } else { "" };
                tracing::info!(
                    input = usage.input_tokens,
                    output = usage.output_tokens,
                    "{about}tokens of the turn"
                );
            }
        }
        Ok(())
    }

    fn ended(&self, end: &TurnEnd) {
        match end {
            TurnEnd::Answered => {}
            TurnEnd::Cancelled => self.line(&self.paint.yellow("  turn cancelled")),
            TurnEnd::Failed(why) => {
                self.line(&format!("{} {}", self.paint.red("  turn failed:"), harmless(why)));
            }
        }
    }

    fn screened(&self, place: &str, action: &str, kinds: &[String]) {
        let did = match action {
            "redact" => "taken out of",
            "block" => "withheld:",
            _ => "found in",
        };
        let line = format!("  ⚠ {} {did} the {place}", kinds.join(", "));
        self.line(&self.paint.yellow(&line));
        if (place, action) == ("arguments", "block") {
            let cure = "    the call does not run. A tool gets its secrets by `[secrets]` in clawk.toml; what may stand in \
                        arguments is said by the policy's `secret_scanning`";
            self.line(cure);
        }
    }

    fn retrying(&self, provider: &str, reason: &str, wait_ms: u64, next: &str) {
        let again = if next == provider {
            "again".to_owned()
        } else {
            format!("with `{next}`")
        };
        let line = format!("  ↻ {}; trying {again} in {wait_ms} ms", clipped(reason, 160));
        self.line(&self.paint.yellow(&line));
    }

    fn finished(&self, tool: &str, is_error: bool, summary: &str, duration_ms: u64, level: &str) {
        let mark = if is_error {
            self.paint.red("✗")
        } else {
            self.paint.green("✓")
        };
        let level = match level {
            "" => String::new(),
            "built-in" | "remote" => format!(" · {level}"),
            level => format!(" · sandbox {level}"),
        };
        self.line(&format!(
            "  {mark} {tool} {}",
            self.paint.dim(&format!("{duration_ms} ms{level}"))
        ));
        let clean = harmless(summary);
        let lines: Vec<&str> = clean.lines().filter(|line| !line.trim().is_empty()).collect();
        for line in lines.iter().take(SUMMARY_LINES) {
            self.line(&format!(
                "    {}",
                self.paint.dim(&clipped(line, columns(100).saturating_sub(4)))
            ));
        }
        if lines.len() > SUMMARY_LINES {
            self.line(
                &self
                    .paint
                    .dim(&format!("    … {} more lines", lines.len() - SUMMARY_LINES)),
            );
        }
    }

    /// Shows what is asked, exactly what it will get, and what will happen.
    pub(crate) fn question(&self, question: &Question) {
        let by = rule_text(question.rule_id.as_deref());
        self.line(&format!(
            "{} {} wants to run {}",
            self.paint.yellow("?"),
            self.paint.bold(&question.tool),
            self.paint.dim(&by)
        ));
        self.what(question);
    }

    /// Shows several calls that are asked about together, in the order in which they would run.
    pub(crate) fn plan(&self, plan: &Plan) {
        self.line(&format!(
            "{} a plan: {} steps need your word before the first of them runs",
            self.paint.yellow("?"),
            plan.steps.len()
        ));
        for question in &plan.steps {
            self.line(&format!(
                "  {} {} {}",
                self.paint.bold(&format!("{}.", question.number())),
                self.paint.bold(&question.tool),
                self.paint.dim(&rule_text(question.rule_id.as_deref()))
            ));
            self.what(question);
        }
        for line in plan.beside() {
            self.line(&self.paint.dim(&format!("  {}", harmless(line))));
        }
    }

    /// What will happen.
    fn what(&self, question: &Question) {
        if question.preview.is_empty() {
            for (name, value) in &question.arguments {
                self.line(&format!(
                    "    {name}: {}",
                    clipped(&value.to_string(), columns(100).saturating_sub(6))
                ));
            }
        }
        for line in question.preview.iter().take(PREVIEW_LINES) {
            self.line(&format!("    {}", preview_line(self.paint, line)));
        }
        if question.preview.len() > PREVIEW_LINES {
            self.line(&self.paint.dim(&format!(
                "    … {} more lines",
                question.preview.len() - PREVIEW_LINES
            )));
        }
        if let Some(cost) = &question.cost {
            self.line(&format!("    cost: {}", harmless(cost)));
        }
    }

    /// Shows why it is asked.
    pub(crate) fn why(&self, question: &Question) {
        self.line(&format!("    {}", harmless(&question.reason)));
        for line in &question.explanation {
            self.line(&format!("    {}", self.paint.dim(&harmless(line))));
        }
        let lapses = format!(
            "    unanswered, it lapses at {} and counts as `{}`",
            question.expires_at, question.default_if_timeout
        );
        self.line(&self.paint.dim(&lapses));
        self.line(&self.paint.dim(&format!(
            "    exact arguments: {}",
            harmless(&arguments_text(&question.arguments))
        )));
    }

    /// Makes room for lines of others.
    pub(crate) fn pause(&mut self) {
        self.stop_waiting();
    }

    /// A line beside the conversation.
    pub(crate) fn line(&self, text: &str) {
        out::note(text);
    }

    fn delta(&mut self, piece: &str) -> io::Result<()> {
        let Some(streaming) = &mut self.streaming else {
            return Ok(());
        };
        streaming.seen.push_str(piece);
        let shown = streaming.markdown.push(piece);
        if !shown.is_empty() {
            self.stop_waiting();
            out::piece(&shown)?;
        }
        Ok(())
    }

    fn said(&mut self, text: &str) -> io::Result<()> {
        self.stop_waiting();
        let Some(streaming) = &mut self.streaming else {
            return out::line(&harmless(text));
        };
        // Pieces may have been dropped; the whole text has them all.
        let missing = text.strip_prefix(streaming.seen.as_str());
        let mut shown = match missing {
            Some(rest) => streaming.markdown.push(rest),
            None => {
                let cut = streaming.markdown.finish();
                cut + &streaming.markdown.push(text)
            }
        };
        shown.push_str(&streaming.markdown.finish());
        streaming.seen.clear();
        out::piece(&shown)
    }

    /// Ends a text that was still streaming, so that other lines stand apart from it.
    fn break_off(&mut self) -> io::Result<()> {
        self.stop_waiting();
        let Some(streaming) = &mut self.streaming else {
            return Ok(());
        };
        streaming.seen.clear();
        let rest = streaming.markdown.finish();
        if rest.is_empty() {
            Ok(())
        } else {
            out::piece(&rest)
        }
    }

    fn wait(&mut self) {
        if self.lively && self.waiting.is_none() {
            self.waiting = Some(0);
            self.thinking(0);
        }
    }

    /// A second has passed.
    pub(crate) fn tick(&mut self) {
        if let Some(seconds) = &mut self.waiting {
            *seconds += 1;
            let seconds = *seconds;
            self.thinking(seconds);
        }
    }

    fn thinking(&self, seconds: u64) {
        let text = match seconds {
            0..3 => "  ⋯ thinking".to_owned(),
            3..15 => format!("  ⋯ thinking, {seconds} s"),
            15.. => format!("  ⋯ thinking, {seconds} s · Ctrl-C cancels"),
        };
        // silent-ok: decoration
        let _ = write!(io::stderr(), "\r{}", self.paint.dim(&text));
    }

    fn stop_waiting(&mut self) {
        if self.waiting.take().is_some() {
            // silent-ok: decoration
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `allowed (rule `read-notes`)` and the like, in the colour of its meaning.
fn verdict_text(paint: Paint, verdict: &str, rule_id: Option<&str>) -> String {
    let text = match verdict {
        "allow" => paint.green("allowed"),
        "approved" => paint.green("approved by a person"),
        "audit-only" => paint.green("allowed, audited in full"),
        "deny" => paint.red("denied"),
        other => paint.yellow(other),
    };
    format!("{text} {}", paint.dim(&rule_text(rule_id)))
}

fn rule_text(rule_id: Option<&str>) -> String {
    rule_id.map_or_else(
        || "(no rule)".to_owned(),
        |rule| format!("(rule `{}`)", harmless(rule)),
    )
}

fn arguments_text(arguments: &Map<String, Value>) -> String {
    let parts: Vec<String> = arguments
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    parts.join(", ")
}

fn preview_line(paint: Paint, line: &str) -> String {
    let clean = harmless(line);
    match clean.chars().next() {
        Some('+') => paint.green(&clean),
        Some('-') => paint.red(&clean),
        Some('@') => paint.cyan(&clean),
        _ => clean,
    }
}
