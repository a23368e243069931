//! Standard output carries results, standard error everything else. Text from outside is sanitized before it is printed.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use clap::ValueEnum;
use clawk_secrets::env;
use serde::Serialize;

/// How facts are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON document.
    Json,
}

/// A line on standard output. It is one line, whatever its text holds.
pub(crate) fn print_line(line: impl Into<OutputLine>) -> io::Result<()> {
    let OutputLine(text) = line.into();
    lines(&text)
}

/// Several lines on standard output, which this program put together. Text from outside is in them as a [`OneLine`] within a line, or as a
/// [`SanitizedBlock`] of its own.
pub(crate) fn lines(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.is_terminal() {
        true => out.write_all(own_colours(text).as_bytes())?,
        false => out.write_all(text.as_bytes())?,
    }
    out.write_all(b"\n")
}

/// Prints a piece of text on standard output, unchanged and without buffering.
pub(crate) fn print_piece(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints one JSON document on standard output, with line breaks.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    Ok(lines(&serde_json::to_string_pretty(value)?)?)
}

/// A line on standard error. It is one line, whatever its text holds.
pub(crate) fn print_note(line: impl Into<OutputLine>) {
    let OutputLine(text) = line.into();
    notes(&text);
}

/// Several lines on standard error, as [`lines`].
pub(crate) fn notes(text: &str) {
    // silent-ok: with standard error closed there is nobody to tell.
    let _ = writeln!(io::stderr().lock(), "{}", own_colours(text));
}

/// Removes all terminal control sequences except colours and weights. Lines quote paths and names, which may come from a cloned
/// folder.
fn own_colours(text: &str) -> Cow<'_, str> {
    if !text.contains(is_steering_character) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for (at, piece) in text.split('\x1b').enumerate() {
        if at > 0 {
            clean.push(if only_sets_colours(piece) { '\x1b' } else { '·' });
        }
        clean.push_str(&sanitize_controls(piece));
    }
    Cow::Owned(clean)
}

/// Returns whether the text after an escape character only sets colours or weights, and hides nothing.
fn only_sets_colours(piece: &str) -> bool {
    const HIDDEN: &str = "8";
    let codes = piece.strip_prefix('[').and_then(|rest| rest.split_once('m'));
    let digits = |code: &str| code.bytes().all(|byte| byte.is_ascii_digit());
    codes.is_some_and(|(codes, _)| codes.split(';').all(|code| digits(code) && code != HIDDEN))
}

/// Writes colours and weights, or nothing if they are not wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TerminalStyle {
    on: bool,
}

impl TerminalStyle {
    /// Returns the style for standard output: see [`TerminalStyle::wants_colour`].
    pub(crate) fn for_stdout() -> Self {
        Self {
            on: Self::wants_colour(io::stdout().is_terminal()),
        }
    }

    /// Returns the style for standard error: see [`TerminalStyle::wants_colour`].
    pub(crate) fn for_stderr() -> Self {
        Self {
            on: Self::wants_colour(io::stderr().is_terminal()),
        }
    }

    /// Returns whether colours are on.
    pub(crate) const fn is_on(self) -> bool {
        self.on
    }

    /// Returns a fixed style, for tests.
    #[cfg(test)]
    pub(crate) const fn for_tests(on: bool) -> Self {
        Self { on }
    }

    /// Decides on colours: off with `NO_COLOR`, on with `CLICOLOR_FORCE`, else on for a terminal that is not `dumb`.
    fn wants_colour(terminal: bool) -> bool {
        if env::non_empty("NO_COLOR").is_some() {
            return false;
        }
        if env::non_empty("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
            return true;
        }
        terminal && env::get("TERM").as_deref() != Some("dumb")
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Bold text.
    pub(crate) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Dim text, for less important parts.
    pub(crate) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    /// Italic text.
    pub(crate) fn italic(self, text: &str) -> String {
        self.wrap("3", text)
    }

    /// Red text, for failures and removed parts.
    pub(crate) fn red(self, text: &str) -> String {
        self.wrap("31", text)
    }

    /// Green text, for success and added parts.
    pub(crate) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// Yellow text, for warnings.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.wrap("33", text)
    }

    /// Cyan text, for names and code.
    pub(crate) fn cyan(self, text: &str) -> String {
        self.wrap("36", text)
    }
}

/// Text from outside as one line. Terminal control characters, changes of the writing direction and line ends are replaced by
/// marks, so that such text can't begin a new line of output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OneLine(String);

/// Text from outside that may have several lines. Use it only where no other output is on the same lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SanitizedBlock(String);

/// One line of output. Each line end in its text is shown as a mark, so a name, a path or a message of somebody else's in it can't begin a
/// line that looks like this program's. Colours stay: what steers a terminal otherwise goes when the line is written.
///
/// INVARIANT: the text is private, and every conversion into it takes line ends away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputLine(String);

impl From<&str> for OutputLine {
    fn from(text: &str) -> Self {
        Self(text.replace("\r\n", "\n").replace(is_line_end, LINE_END_TEXT))
    }
}

impl From<&String> for OutputLine {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<String> for OutputLine {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&OneLine> for OutputLine {
    fn from(line: &OneLine) -> Self {
        Self(line.0.clone())
    }
}

impl From<OneLine> for OutputLine {
    fn from(line: OneLine) -> Self {
        Self(line.0)
    }
}

fn is_line_end(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

const LINE_END_TEXT: &str = "⏎";
/// Stands for a line end in one line.
const LINE_END: char = '⏎';

/// Returns the text as one sanitized line.
pub(crate) fn one_line(text: &str) -> OneLine {
    let text = text.replace("\r\n", "\n");
    let shown = |c: char| match c {
        '\n' | '\u{2028}' | '\u{2029}' => LINE_END,
        c if is_steering_character(c) => '·',
        c => c,
    };
    OneLine(text.chars().map(shown).collect())
}

/// Returns the sanitized text with its lines.
pub(crate) fn sanitize_block(text: &str) -> SanitizedBlock {
    SanitizedBlock(sanitize_controls(text))
}

macro_rules! shown {
    ($name:ident) => {
        impl std::ops::Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl From<$name> for String {
            fn from(shown: $name) -> Self {
                shown.0
            }
        }
    };
}
shown!(OneLine);
shown!(SanitizedBlock);

/// Writer of logs to standard error. Each event is written at once and remains one line, whatever its values contain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogLines;

impl Write for LogLines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = one_line(text.trim_end_matches('\n'));
        writeln!(io::stderr().lock(), "{line}")?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// Replaces control characters, except line ends and tabs, and marks that change the writing direction, by `·`.
fn sanitize_controls(text: &str) -> String {
    text.replace("\r\n", "\n")
        .chars()
        .map(|c| if is_steering_character(c) { '·' } else { c })
        .collect()
}

fn is_steering_character(c: char) -> bool {
    let direction =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{061c}');
    (c.is_control() && c != '\n' && c != '\t') || direction
}

/// Returns one line of at most `width` characters. A cut line ends with an ellipsis.
pub(crate) fn clip_line(text: &str, width: usize) -> String {
    let one_line = sanitize_controls(text).replace(['\n', '\t'], " ");
    if one_line.chars().count() <= width {
        return one_line;
    }
    let mut cut: String = one_line.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::{OutputLine, TerminalStyle, clip_line, one_line, own_colours, sanitize_block};

    #[test]
    fn text_from_outside_cannot_steer_the_terminal() {
        let text = "a\x1b[2Jb\r\nc\td\u{202e}e\u{9b}f";
        assert_eq!(&*sanitize_block(text), "a·[2Jb\nc\td·e·f");
        assert_eq!(&*one_line(text), "a·[2Jb⏎c\td·e·f");
    }

    #[test]
    fn no_text_from_outside_begins_a_line() {
        for forged in [
            "x\nRecord: done: `file-write`",
            "x\r\n[y/N] y",
            "x\u{2028}ready  chat",
            "x\u{2029}ready  chat",
            "x\u{85}ready",
            "x\u{b}ready",
            "x\u{c}ready",
            "x\rready",
            "\n\n",
            "\u{1b}[2Kready",
        ] {
            let line = one_line(forged);
            let ends = |c: char| {
                matches!(
                    c,
                    '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{1b}'
                )
            };
            assert!(!line.contains(ends), "{line:?}");
        }
    }

    #[test]
    fn a_line_is_one_line_whatever_is_formatted_into_it() {
        for end in [
            "\n", "\r\n", "\r", "\u{b}", "\u{c}", "\u{85}", "\u{2028}", "\u{2029}",
        ] {
            let forged = format!(
                "{} is forgotten",
                format_args!("x{end}Record: done: `file-write`")
            );
            for line in [
                OutputLine::from(&forged),
                OutputLine::from(forged.as_str()),
                OutputLine::from(forged.clone()),
                OutputLine::from(one_line(&forged)),
                OutputLine::from(&one_line(&forged)),
            ] {
                assert_eq!(line.0.lines().count(), 1, "{line:?}");
                assert!(!line.0.contains(end), "{line:?}");
            }
        }
        let painted = TerminalStyle { on: true }.dim("x");
        assert_eq!(OutputLine::from(&painted).0, painted, "our own colours stay");
        assert_eq!(OutputLine::from("a\nb").0, "a⏎b");
    }

    #[test]
    fn a_line_steers_the_terminal_by_our_own_colours_alone() {
        let painted = TerminalStyle { on: true };
        let mixed = format!(
            "{} /a\x1b[2J\x1b[8mb\x1b]0;x\x07\u{202e}\x1b",
            painted.dim(&painted.red("x"))
        );
        assert_eq!(
            own_colours(&mixed),
            "\x1b[2m\x1b[31mx\x1b[0m\x1b[0m /a·[2J·[8mb·]0;x···"
        );
        for code in [
            painted.bold("x"),
            painted.green("x"),
            painted.yellow("x"),
            painted.cyan("x"),
        ] {
            assert_eq!(own_colours(&code), code);
        }
        assert_eq!(own_colours("a\r\nb\tc"), "a\r\nb\tc".replace('\r', ""));
    }

    #[test]
    fn clips_to_one_line() {
        assert_eq!(clip_line("one\ntwo", 20), "one two");
        assert_eq!(clip_line("abcdef", 4), "abc…");
    }
}
