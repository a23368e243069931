//! Renders findings in the style of a compiler.

use std::fmt::Write as _;

use crate::diagnostic::{Diagnostic, Severity, SourceFiles};
use crate::yaml::holds_key;

/// The longest piece of a source line that is shown, characters.
const WIDTH: usize = 120;

/// Renders findings with their source lines. `colour` adds terminal colours.
#[must_use]
pub fn render_diagnostics(diagnostics: &[Diagnostic], sources: &SourceFiles, colour: bool) -> String {
    let mut out = String::new();
    for diagnostic in diagnostics {
        render_one(diagnostic, sources, &DiagnosticPainter { on: colour }, &mut out);
        out.push('\n');
    }
    let count = |severity| {
        diagnostics
            .iter()
            .filter(|found| found.severity == severity)
            .count()
    };
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    match (errors, warnings) {
        (0, 0) => {}
        (0, _) => out.push_str(&format!("{}\n", plural(warnings, "warning"))),
        (_, 0) => out.push_str(&format!("{}\n", plural(errors, "error"))),
        _ => out.push_str(&format!(
            "{}, {}\n",
            plural(errors, "error"),
            plural(warnings, "warning")
        )),
    }
    out
}

struct DiagnosticPainter {
    on: bool,
}

impl DiagnosticPainter {
    fn wrap_code(&self, code: &str, text: &str) -> String {
        if self.on {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    fn strong_text(&self, severity: Severity, text: &str) -> String {
        match severity {
            Severity::Error => self.wrap_code("1;31", text),
            Severity::Warning => self.wrap_code("1;33", text),
        }
    }

    fn frame_text(&self, text: &str) -> String {
        self.wrap_code("1;34", text)
    }
}

fn render_one(diagnostic: &Diagnostic, sources: &SourceFiles, paint: &DiagnosticPainter, out: &mut String) {
    let word = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let head = paint.strong_text(diagnostic.severity, &format!("{word}[{}]", diagnostic.code));
    let _ = writeln!(
        out,
        "{head}: {}",
        paint.wrap_code("1", &sanitize_line(&diagnostic.message))
    );
    let number = diagnostic.line.map(|line| line.to_string()).unwrap_or_default();
    let margin = " ".repeat(number.len());
    if let Some(file) = &diagnostic.file {
        let mut place = sanitize_line(&file.to_string_lossy());
        if let (Some(line), Some(column)) = (diagnostic.line, diagnostic.column) {
            let _ = write!(place, ":{line}:{column}");
        }
        let _ = writeln!(out, "{margin}{} {place}", paint.frame_text("-->"));
    }
    if let Some((line, before, width)) = source_excerpt(diagnostic, sources) {
        let bar = paint.frame_text("|");
        let _ = writeln!(out, "{margin} {bar}");
        let _ = writeln!(out, "{} {bar} {line}", paint.frame_text(&number));
        let marks = paint.strong_text(diagnostic.severity, &"^".repeat(width));
        let _ = writeln!(out, "{margin} {bar} {}{marks}", " ".repeat(before));
    }
    if !diagnostic.path.is_empty() {
        let _ = writeln!(
            out,
            "{margin} {} at {}",
            paint.frame_text("="),
            sanitize_line(&diagnostic.path)
        );
    }
    if let Some(help) = &diagnostic.help {
        let _ = writeln!(
            out,
            "{margin} {} help: {}",
            paint.frame_text("="),
            sanitize_line(help)
        );
    }
}

/// The source line, the number of characters before the marker, and the marker's width.
fn source_excerpt(diagnostic: &Diagnostic, sources: &SourceFiles) -> Option<(String, usize, usize)> {
    let text = sources.text(diagnostic.file.as_ref()?)?;
    let span = diagnostic.span.clone()?;
    let line = text
        .lines()
        .nth(usize::try_from(diagnostic.line?).ok()?.checked_sub(1)?)?;
    if holds_key(line) {
        return None;
    }
    let before = usize::try_from(diagnostic.column?).ok()?.saturating_sub(1);
    let marked = text
        .get(span)?
        .lines()
        .next()
        .unwrap_or_default()
        .trim_end()
        .chars()
        .count()
        .max(1);
    let (skip, lead) = if before > WIDTH / 2 {
        (before - WIDTH / 4, "…")
    } else {
        (0, "")
    };
    let shown: String = line.chars().skip(skip).take(WIDTH).collect();
    let left = before - skip + lead.chars().count();
    let room = (shown.chars().count() + lead.chars().count())
        .saturating_sub(left)
        .max(1);
    Some((format!("{lead}{}", sanitize_line(&shown)), left, marked.min(room)))
}

/// Replaces characters that could control a terminal. Each character keeps one column.
fn sanitize_line(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c) || ('\u{2066}'..='\u{2069}').contains(&c)
    };
    text.chars()
        .map(|c| {
            if c == '\t' {
                ' '
            } else if harmful(c) {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
