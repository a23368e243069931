//! Prints an agent's work: tool calls with their verdicts, approval requests with previews, ends of turns. The agent's text goes to
//! standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};

use clawk_kernel::sheet::visible_text;
use clawk_kernel::{ApprovalQuestion, Plan, SessionNotice, TurnEnd};
use serde_json::{Map, Value};

use super::thoughts::{ThoughtDetail, thought_detail, thought_lines};
use super::{markdown, terminal_columns};
use crate::out::{self, TerminalStyle, clip_line, one_line, sanitize_block};

const SUMMARY_LINES: usize = 4;

/// Prints notices as they arrive.
#[derive(Debug)]
pub(crate) struct NoticePrinter {
    paint: TerminalStyle,
    /// Text is streamed as Markdown if standard output is a terminal. Otherwise each text is printed complete and unchanged.
    streaming: Option<StreamedMarkdown>,
    /// A line `thinking` is shown since this many seconds and must be removed.
    waiting: Option<u64>,
    /// Standard error is a terminal.
    lively: bool,
    /// Who answers approval requests here.
    pub(crate) asks: QuestionResponder,
    /// How much of the model's thoughts is shown.
    thoughts: ThoughtDetail,
}

/// Who answers the approval requests of a conversation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum QuestionResponder {
    /// The person at the terminal.
    Person,
    /// There is no terminal: every request is denied.
    Nobody,
    /// A dry run: every request is approved, and nothing happens.
    DryRun,
}

#[derive(Debug)]
struct StreamedMarkdown {
    markdown: markdown::MarkdownStream,
    /// The pieces received so far.
    seen: String,
}

impl StreamedMarkdown {
    fn new() -> Self {
        Self {
            markdown: markdown::MarkdownStream::new(TerminalStyle::for_stdout(), terminal_columns(100)),
            seen: String::new(),
        }
    }
}

impl NoticePrinter {
    /// Makes a printer for this terminal, or for output without one.
    pub(crate) fn new() -> Self {
        Self {
            paint: TerminalStyle::for_stderr(),
            streaming: io::stdout().is_terminal().then(StreamedMarkdown::new),
            waiting: None,
            lively: io::stderr().is_terminal(),
            asks: QuestionResponder::Person,
            thoughts: thought_detail(),
        }
    }

    /// Prints one notice.
    #[expect(clippy::too_many_lines, reason = "one arm for each kind, read side by side")]
    pub(crate) fn print_notice(&mut self, notice: &SessionNotice) -> io::Result<()> {
        match notice {
            SessionNotice::TurnStarted { .. } => self.start_waiting(),
            SessionNotice::Delta(piece) => self.print_delta(piece)?,
            SessionNotice::Said(text) => self.print_text(text)?,
            SessionNotice::Thought(text) => {
                let lines = thought_lines(text, self.thoughts, terminal_columns(100));
                if self.lively && !lines.is_empty() {
                    self.break_off()?;
                    lines
                        .iter()
                        .for_each(|line| self.print_line(&self.paint.dim(line)));
                    self.start_waiting();
                }
            }
            SessionNotice::Missed(count) => {
                self.break_off()?;
                let told = format!(
                    "  ({count} notices were missed: this terminal read too slowly; `clawk trace show` has them)"
                );
                self.print_line(&self.paint.dim(&told));
            }
            SessionNotice::Retrying {
                provider,
                reason,
                wait_ms,
                next,
            } => {
                self.break_off()?;
                self.print_retry(provider, reason, *wait_ms, next);
                self.start_waiting();
            }
            SessionNotice::CallDecided {
                tool,
                arguments,
                verdict,
                rule_id,
                refused_by,
                ..
            } => {
                self.break_off()?;
                let verdict = self.format_verdict(verdict, rule_id.as_deref(), *refused_by);
                self.print_decision(tool, arguments, &verdict);
            }
            SessionNotice::Screened { place, action, kinds } => {
                self.break_off()?;
                self.print_screening(place, action, kinds);
            }
            SessionNotice::Asking(_) | SessionNotice::Planned(_) | SessionNotice::Handed(_) => {
                self.break_off()?
            }
            // The calls were shown as they ended. Only calls that an answer may deny are shown again.
            SessionNotice::Shown(shown, line) => {
                let unjudged = shown
                    .judged
                    .as_ref()
                    .is_some_and(|judged| judged.failed.is_some());
                if shown.may_contradict() || shown.done.is_empty() || unjudged {
                    self.break_off()?;
                    self.print_line(&format!("  {}", self.paint.dim(&one_line(line))));
                }
            }
            SessionNotice::Warned(text) => {
                self.break_off()?;
                self.print_line(&format!("  {} {}", self.paint.yellow("warning:"), one_line(text)));
            }
            SessionNotice::Unreachable(text) => {
                self.break_off()?;
                self.print_line(&format!("  {} {}", self.paint.yellow("model:"), one_line(text)));
            }
            SessionNotice::CallFinished {
                tool,
                is_error,
                summary,
                duration_ms,
                level,
                ..
            } => {
                self.break_off()?;
                self.print_finished_call(tool, *is_error, summary, *duration_ms, level);
                self.start_waiting();
            }
            SessionNotice::TurnEnded { end, usage, .. } => {
                self.break_off()?;
                self.print_end(end);
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

    fn print_decision(&self, tool: &str, arguments: &Map<String, Value>, verdict: &str) {
        let width = terminal_columns(100).saturating_sub(tool.len() + 5);
        let arguments = clip_line(&arguments_text(arguments), width);
        self.print_line(&format!(
            "  → {} {}",
            self.paint.cyan(&one_line(tool)),
            self.paint.dim(&arguments)
        ));
        self.print_line(&format!("    {verdict}"));
    }

    /// Returns a verdict like `allowed (rule `read-notes`)` in its colour.
    fn format_verdict(&self, verdict: &str, rule_id: Option<&str>, refused_by: Option<&str>) -> String {
        let paint = self.paint;
        if let Some(by) = refused_by {
            let text = match (by, self.asks) {
                ("approval_denied", QuestionResponder::Nobody) => "denied: nobody could be asked",
                _ => refused_text(by),
            };
            let rule = rule_id.map_or_else(String::new, |rule| rule_text(Some(rule)));
            return format!("{} {}", paint.red(text), paint.dim(&rule));
        }
        let text = match (verdict, self.asks) {
            ("allow", _) => paint.green("allowed"),
            ("approved", QuestionResponder::DryRun) => paint.yellow("a person would be asked"),
            ("approved", QuestionResponder::Person | QuestionResponder::Nobody) => {
                paint.green("approved by a person")
            }
            ("audit-only", _) => paint.green("allowed, audited in full"),
            (other, _) => paint.yellow(other),
        };
        format!("{text} {}", paint.dim(&rule_text(rule_id)))
    }

    fn print_end(&self, end: &TurnEnd) {
        match end {
            TurnEnd::Answered => {}
            TurnEnd::Cancelled => self.print_line(&self.paint.yellow("  turn cancelled")),
            TurnEnd::Failed(why) => {
                self.print_line(&format!("{} {}", self.paint.red("  turn failed:"), one_line(why)));
            }
        }
    }

    fn print_screening(&self, place: &str, action: &str, kinds: &[String]) {
        let did = match action {
            "redact" => "taken out of",
            "block" => "withheld:",
            _ => "found in",
        };
        let line = format!("  ⚠ {} {did} the {place}", kinds.join(", "));
        self.print_line(&self.paint.yellow(&line));
        if (place, action) == ("arguments", "block") {
            let cure = "    the call does not run. A tool gets its secrets by `[secrets]` in clawk.toml; what may stand in \
                        arguments is said by the policy's `secret_scanning`";
            self.print_line(cure);
        }
    }

    fn print_retry(&self, provider: &str, reason: &str, wait_ms: u64, next: &str) {
        let again = if next == provider {
            "again".to_owned()
        } else {
            format!("with `{next}`")
        };
        let line = format!("  ↻ {}; trying {again} in {wait_ms} ms", clip_line(reason, 160));
        self.print_line(&self.paint.yellow(&line));
    }

    fn print_finished_call(&self, tool: &str, is_error: bool, summary: &str, duration_ms: u64, level: &str) {
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
        self.print_line(&format!(
            "  {mark} {} {}",
            one_line(tool),
            self.paint.dim(&format!("{duration_ms} ms{level}"))
        ));
        let clean = sanitize_block(summary);
        let lines: Vec<&str> = clean.lines().filter(|line| !line.trim().is_empty()).collect();
        for line in lines.iter().take(SUMMARY_LINES) {
            self.print_line(&format!(
                "    {}",
                self.paint
                    .dim(&clip_line(line, terminal_columns(100).saturating_sub(4)))
            ));
        }
        let more = lines.len().saturating_sub(SUMMARY_LINES);
        if more > 0 {
            let lines = if more == 1 { "line" } else { "lines" };
            self.print_line(&self.paint.dim(&format!("    … {more} more {lines}")));
        }
    }

    /// Prints an approval request: what will happen, with every argument. Long values are folded.
    ///
    /// # Errors
    /// The output can't be written.
    pub(crate) fn print_question(&self, question: &ApprovalQuestion) -> io::Result<()> {
        let mut lines = vec![format!(
            "{} {} wants to run {}",
            self.paint.yellow("?"),
            self.paint.bold(&visible_text(&question.tool)),
            self.paint.dim(&rule_text(question.rule_id.as_deref()))
        )];
        lines.extend(self.format_sources(question));
        self.add_action_lines(question, &mut lines);
        print_lines(&lines)
    }

    /// Returns the sources of untrusted text in the conversation, if a rule asks because of them.
    fn format_sources(&self, question: &ApprovalQuestion) -> Option<String> {
        let because = question.reason.contains(" (from ");
        because.then(|| {
            self.paint
                .yellow(&format!("    {}", visible_text(&question.reason)))
        })
    }

    /// Prints one request for several calls, in their order of execution.
    ///
    /// # Errors
    /// The output can't be written.
    pub(crate) fn print_plan(&self, plan: &Plan) -> io::Result<()> {
        let mut lines = vec![format!(
            "{} a plan: {} steps need your word before the first of them runs",
            self.paint.yellow("?"),
            plan.steps.len()
        )];
        for question in &plan.steps {
            lines.push(format!(
                "  {} {} {}",
                self.paint.bold(&format!("{}.", question.step_number())),
                self.paint.bold(&visible_text(&question.tool)),
                self.paint.dim(&rule_text(question.rule_id.as_deref()))
            ));
            lines.extend(self.format_sources(question));
            self.add_action_lines(question, &mut lines);
        }
        for line in plan.uncovered_calls() {
            lines.push(self.paint.dim(&format!("  {}", visible_text(line))));
        }
        print_lines(&lines)
    }

    /// Prints a request's whole text.
    ///
    /// # Errors
    /// The output can't be written.
    pub(crate) fn print_full_question(&self, question: &ApprovalQuestion) -> io::Result<()> {
        let whole = question.sheet.whole();
        let mut lines = vec![self.paint.dim(&format!("    all {} bytes:", whole.len()))];
        let indented = whole.split('\n').map(|line| self.sheet_line(line));
        lines.extend(indented);
        print_lines(&lines)
    }

    fn sheet_line(&self, line: &str) -> String {
        format!("    {}", paint_line(self.paint, line))
    }

    /// Adds the lines that say what will happen.
    fn add_action_lines(&self, question: &ApprovalQuestion, lines: &mut Vec<String>) {
        let short = question.sheet.short();
        lines.extend(short.iter().map(|line| self.sheet_line(line)));
        if let Some(cost) = &question.cost {
            lines.push(format!("    cost: {}", visible_text(cost)));
        }
    }

    /// Prints why approval is requested.
    pub(crate) fn print_reason(&self, question: &ApprovalQuestion) {
        self.print_line(&format!("    {}", one_line(&question.reason)));
        for line in &question.explanation {
            self.print_line(&format!("    {}", self.paint.dim(&one_line(line))));
        }
        let lapses = format!(
            "    unanswered, it lapses at {} and counts as `{}`",
            question.expires_at, question.default_if_timeout
        );
        self.print_line(&self.paint.dim(&lapses));
    }

    /// Clears the line for other output.
    pub(crate) fn pause(&mut self) {
        self.stop_waiting();
    }

    /// A line beside the conversation. It is one line, whatever its text holds.
    pub(crate) fn print_line(&self, text: &str) {
        out::print_note(text);
    }

    fn print_delta(&mut self, piece: &str) -> io::Result<()> {
        let Some(streaming) = &mut self.streaming else {
            return Ok(());
        };
        streaming.seen.push_str(piece);
        let shown = streaming.markdown.push(piece);
        if !shown.is_empty() {
            self.stop_waiting();
            out::print_piece(&shown)?;
        }
        Ok(())
    }

    fn print_text(&mut self, text: &str) -> io::Result<()> {
        self.stop_waiting();
        let Some(streaming) = &mut self.streaming else {
            return out::lines(&sanitize_block(text));
        };
        // Some pieces may have been dropped; the whole text has them all.
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
        out::print_piece(&shown)
    }

    /// Ends a streamed text, so that other lines are separate from it.
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
            out::print_piece(&rest)
        }
    }

    fn start_waiting(&mut self) {
        if self.lively && self.waiting.is_none() {
            self.waiting = Some(0);
            self.print_thinking(0);
        }
    }

    /// Called once a second.
    pub(crate) fn tick(&mut self) {
        if let Some(seconds) = &mut self.waiting {
            *seconds += 1;
            let seconds = *seconds;
            self.print_thinking(seconds);
        }
    }

    fn print_thinking(&self, seconds: u64) {
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

/// Prints all lines at once on standard error.
fn print_lines(lines: &[String]) -> io::Result<()> {
    let mut text = lines.join("\n");
    text.push('\n');
    io::stderr().lock().write_all(text.as_bytes())
}

/// Returns the refusing part as text, from the trace's word for it.
fn refused_text(by: &str) -> &'static str {
    match by {
        "policy" => "denied by the policy",
        "autonomy" => "denied by the autonomy",
        "skill" => "denied by the skill's permissions",
        "atlas" => "denied by an Atlas",
        "role" => "denied by the role of who asked",
        "stop" => "denied by an emergency stop",
        "rate_limit" => "denied by a rate limit",
        "quota" => "denied by a budget",
        "screening" => "denied by screening",
        "sandbox" => "refused by the sandbox",
        "approval_denied" => "denied by a person",
        "approval_timeout" => "denied: nobody answered in time",
        "approval_void" => "denied: what was asked about has changed",
        "approval_pending" => "waits for a person",
        "cancelled" => "cancelled",
        "unknown_tool" => "refused: no such tool",
        "invalid_parameters" => "refused: its arguments are not right",
        _ => "did not run",
    }
}

fn rule_text(rule_id: Option<&str>) -> String {
    rule_id.map_or_else(
        || "(no rule)".to_owned(),
        |rule| format!("(rule `{}`)", visible_text(rule)),
    )
}

fn arguments_text(arguments: &Map<String, Value>) -> String {
    let parts: Vec<String> = arguments
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    parts.join(", ")
}

/// Returns a line of a request in the colour of its effect.
fn paint_line(paint: TerminalStyle, line: &str) -> String {
    match line.chars().next() {
        Some('+') => paint.green(line),
        Some('-') => paint.red(line),
        Some('⟨') => paint.yellow(line),
        _ => line.to_owned(),
    }
}
