//! Explains a syntax error in plain English. The parser names its own state; the lines around the place say what a person wrote.

use std::ops::Range;

use crate::diagnostic::Diagnostic;
use crate::tree::Location;

/// Begins of values that YAML keeps for itself.
const RESERVED: [char; 6] = ['@', '`', '%', '*', '&', '!'];

/// A line of the file, and where it lies.
#[derive(Clone, Copy)]
struct SourceLine<'a> {
    text: &'a str,
    /// Line number, from 1.
    number: u32,
    /// Byte offset of its beginning.
    start: usize,
}

impl<'a> SourceLine<'a> {
    fn indentation(&self) -> usize {
        self.text.len() - self.text.trim_start_matches([' ', '\t']).len()
    }

    /// The line without indentation and without the dashes of list items.
    fn content(&self) -> &'a str {
        let mut rest = self.text.trim_start();
        while let Some(inner) = rest.strip_prefix("- ") {
            rest = inner.trim_start();
        }
        rest
    }

    fn is_empty(&self) -> bool {
        let text = self.text.trim();
        text.is_empty() || text.starts_with('#')
    }

    /// The key and the value of `key: value`, and the value's byte offset in the line.
    fn pair(&self) -> Option<(&'a str, &'a str, usize)> {
        let content = self.content();
        let (key, value) = content.split_once(':')?;
        if !value.is_empty() && !value.starts_with([' ', '\t']) {
            return None;
        }
        let value = value.trim();
        let at = self.text.rfind(value).filter(|_| !value.is_empty());
        Some((key.trim(), value, at.unwrap_or(self.text.len())))
    }

    fn location(&self, range: Range<usize>) -> Location {
        let before = self.text.get(..range.start).unwrap_or_default();
        let column = u32::try_from(before.chars().count()).unwrap_or(u32::MAX);
        Location {
            start: self.start + range.start,
            end: self.start + range.end.min(self.text.len()),
            line: self.number,
            column: column.saturating_add(1),
        }
    }

    fn whole(&self) -> Range<usize> {
        self.indentation()..self.text.trim_end().len()
    }
}

/// What is wrong: the message, the cure, and the place that a person must change.
struct SyntaxFault {
    message: String,
    cure: String,
    place: Location,
}

/// Returns the error for the place at which the parser stopped. `parser`: its own words, for a case that no rule here knows.
pub(super) fn explain_syntax(parser: &str, text: &str, stopped: Location) -> Diagnostic {
    let lines = split_lines(text);
    let index = usize::try_from(stopped.line.saturating_sub(1)).unwrap_or(usize::MAX);
    let index = index.min(lines.len().saturating_sub(1));
    let source = SyntaxSource {
        lines: &lines,
        index,
        stopped,
        parser,
    };
    let found = source
        .tab()
        .or_else(|| source.open_quote())
        .or_else(|| source.text_after_quote())
        .or_else(|| source.open_bracket())
        .or_else(|| source.reserved_begin())
        .or_else(|| source.no_blank_after_colon())
        .or_else(|| source.colon_in_value())
        .or_else(|| source.wrong_indentation())
        .or_else(|| source.no_colon());
    let fault = found.unwrap_or_else(|| SyntaxFault {
        message: "this line, or the one above it, is not YAML".to_owned(),
        cure: format!(
            "compare its indentation, quotes and brackets with the lines above (the parser says: {})",
            super::lower_first(parser)
        ),
        place: stopped,
    });
    let shown = lines.iter().find(|line| line.number == fault.place.line);
    let hidden = shown.is_some_and(|line| holds_key(line.text));
    let mut diagnostic = Diagnostic::error("yaml-syntax", "", fault.message)
        .with_location(Some(fault.place))
        .with_help(fault.cure);
    if hidden {
        diagnostic.span = None;
    }
    diagnostic
}

/// Returns whether a word of the line looks like a secret. Such a line is not shown.
pub(crate) fn holds_key(line: &str) -> bool {
    line.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '{' | '}' | '[' | ']'))
        .any(clawk_proto::secret_name::looks_like_key)
}

fn split_lines(text: &str) -> Vec<SourceLine<'_>> {
    let mut start = 0;
    let mut lines = Vec::new();
    for (number, piece) in (1_u32..).zip(text.split_inclusive('\n')) {
        lines.push(SourceLine {
            text: piece.trim_end_matches(['\n', '\r']),
            number,
            start,
        });
        start += piece.len();
    }
    lines
}

struct SyntaxSource<'a> {
    lines: &'a [SourceLine<'a>],
    index: usize,
    stopped: Location,
    parser: &'a str,
}

impl SyntaxSource<'_> {
    fn line(&self) -> Option<SourceLine<'_>> {
        self.lines.get(self.index).copied()
    }

    /// The last line with content before the one at which the parser stopped.
    fn line_above(&self) -> Option<SourceLine<'_>> {
        let above = self.lines.get(..self.index)?;
        above.iter().rev().find(|line| !line.is_empty()).copied()
    }

    fn tab(&self) -> Option<SyntaxFault> {
        let near = self.lines.get(self.index..self.lines.len().min(self.index + 2))?;
        near.iter().find_map(|line| {
            let indentation = line.text.get(..line.indentation())?;
            let at = indentation.find('\t')?;
            Some(SyntaxFault {
                message: "a tab stands in the indentation; YAML is indented with spaces only".to_owned(),
                cure: "replace the tab by spaces, as many as the neighbouring lines of the same block have"
                    .to_owned(),
                place: line.location(at..at + 1),
            })
        })
    }

    /// A quote that no line closes. The parser stops at the first line that can't belong to the text, or at the end of the file.
    fn open_quote(&self) -> Option<SyntaxFault> {
        if !self.parser.contains("quoted scalar") || self.parser.contains("trailing content") {
            return None;
        }
        let until = self.lines.get(..=self.index)?;
        let (line, at, quote) = until.iter().rev().find_map(|line| {
            let (value, at) = match line.pair() {
                Some((_, value, at)) => (value, at),
                None => (line.content().trim_end(), line.text.len() - line.content().len()),
            };
            let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let closed = value.len() > 1 && value.ends_with(quote);
            (!closed).then_some((*line, at, quote))
        })?;
        Some(SyntaxFault {
            message: format!("the text that begins with {quote} has no closing {quote}"),
            cure: format!("write {quote} at its end"),
            place: line.location(at..line.text.trim_end().len()),
        })
    }

    fn text_after_quote(&self) -> Option<SyntaxFault> {
        if !self.parser.contains("trailing content") {
            return None;
        }
        let line = self.line()?;
        let (message, cure) = if self.parser.contains("single") {
            (
                "the text in '…' ends at its second ', and more text follows",
                "write a ' inside of '…' twice (`'It''s'`), or put the text between \"…\"",
            )
        } else {
            (
                "the text in \"…\" ends at its second \", and more text follows",
                "write a \" inside of \"…\" as \\\", or put the text between '…'",
            )
        };
        Some(SyntaxFault {
            message: message.to_owned(),
            cure: cure.to_owned(),
            place: line.location(line.whole()),
        })
    }

    /// A list or a map on one line whose bracket no line closes.
    fn open_bracket(&self) -> Option<SyntaxFault> {
        let flow = [
            "flow",
            "illegal placement",
            "unexpected end",
            "stream contents",
            "bracket",
        ];
        if !flow.iter().any(|word| self.parser.contains(word)) {
            return None;
        }
        let until = self.lines.get(..=self.index)?;
        let first = until.len().saturating_sub(20);
        let (line, at, open) = until.get(first..)?.iter().rev().find_map(|line| {
            let (_, value, at) = line.pair()?;
            let open = value.chars().next().filter(|c| matches!(c, '[' | '{'))?;
            let close = if open == '[' { ']' } else { '}' };
            let count = |wanted: char| value.chars().filter(|c| *c == wanted).count();
            (count(open) > count(close)).then_some((*line, at, open))
        })?;
        let close = if open == '[' { ']' } else { '}' };
        Some(SyntaxFault {
            message: format!("`{open}` has no closing `{close}`"),
            cure: format!("write `{close}` at the end, or put the whole value between quotes if it is text"),
            place: line.location(at..line.text.trim_end().len()),
        })
    }

    fn reserved_begin(&self) -> Option<SyntaxFault> {
        let line = self.line()?;
        let (key, value, at) = match line.pair() {
            Some(pair) => pair,
            None => {
                let content = line.content().trim_end();
                ("", content, line.text.len() - line.content().len())
            }
        };
        let begin = value.chars().next().filter(|c| RESERVED.contains(c))?;
        let place = line.location(at..at + value.len());
        if self.stopped.start < place.start.saturating_sub(1) || self.stopped.start > place.end {
            return None;
        }
        let example = match key {
            "" => format!("\"{begin}…\""),
            key => format!("{key}: \"{begin}…\""),
        };
        let cure = match begin {
            '*' => format!(
                "put the text between quotes (`{example}`); `*name` stands for what `&name` marks further up"
            ),
            _ => format!("put the text between quotes: `{example}`"),
        };
        Some(SyntaxFault {
            message: format!(
                "a text can't begin with `{begin}` without quotes: YAML keeps that sign for itself"
            ),
            cure,
            place,
        })
    }

    fn no_blank_after_colon(&self) -> Option<SyntaxFault> {
        if !self.parser.contains("simple key") {
            return None;
        }
        let line = self.line()?;
        let content = line.content();
        let (key, value) = content.split_once(':')?;
        let is_key = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        if !is_key || value.is_empty() || value.starts_with([' ', '\t', '/']) {
            return None;
        }
        Some(SyntaxFault {
            message: format!("a blank is missing after `{key}:`"),
            cure: format!("write `{key}: …`"),
            place: line.location(line.whole()),
        })
    }

    fn colon_in_value(&self) -> Option<SyntaxFault> {
        if !self.parser.contains("mapping values") {
            return None;
        }
        let line = self.line()?;
        let (key, value, at) = line.pair()?;
        let quoted = value.starts_with(['"', '\'', '[', '{']);
        let inside = value.contains(": ") || value.ends_with(':');
        if quoted || !inside || self.stopped.start <= line.start + at {
            return None;
        }
        Some(SyntaxFault {
            message: format!("the value of `{key}` has a colon in it, and is not between quotes"),
            cure: format!("put the value between quotes: `{key}: \"…\"`"),
            place: line.location(at..line.text.trim_end().len()),
        })
    }

    fn wrong_indentation(&self) -> Option<SyntaxFault> {
        let line = self.line().filter(|line| !line.is_empty())?;
        let words = [
            "mapping values",
            "expected key",
            "block",
            "indent",
            "sequence entr",
        ];
        if !words.iter().any(|word| self.parser.contains(word)) {
            return None;
        }
        let above = self.line_above()?;
        let (here, there) = (line.indentation(), above.indentation());
        let name = |line: &SourceLine<'_>| {
            let content = line.content();
            let first = content.split([':', ' ']).next().unwrap_or_default();
            clip_word(first).to_owned()
        };
        let message = match above.pair() {
            Some((_, value, _)) if here > there && !value.is_empty() => format!(
                "`{}` is indented by {here} spaces, deeper than `{}` above it ({there}), which has a value already",
                name(&line),
                name(&above)
            ),
            _ => format!(
                "`{}` is indented by {here} spaces, and no block above it begins there; the line above has {there}",
                name(&line)
            ),
        };
        Some(SyntaxFault {
            message,
            cure: "members of one block begin in the same column; what belongs to a key stands deeper than the key"
                .to_owned(),
            place: line.location(line.whole()),
        })
    }

    fn no_colon(&self) -> Option<SyntaxFault> {
        if !self.parser.contains("simple key") && !self.parser.contains("':'") {
            return None;
        }
        let line = self.line().filter(|line| !line.is_empty())?;
        let content = clip_word(line.content().trim_end());
        Some(SyntaxFault {
            message: format!("`{content}` is neither `key: value` nor an item of a list"),
            cure: "write a colon and a blank after a key, `- ` before an item, and a long text as `key: |` with its lines below"
                .to_owned(),
            place: line.location(line.whole()),
        })
    }
}

/// Shortens a word to 40 characters. A word that looks like a secret is not repeated.
fn clip_word(word: &str) -> &str {
    if holds_key(word) {
        return "…";
    }
    let end = word.char_indices().nth(40).map_or(word.len(), |(at, _)| at);
    word.get(..end).unwrap_or(word)
}
