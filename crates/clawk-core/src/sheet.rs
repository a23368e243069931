//! The text of an approval request: the same text for every client.
//!
//! The whole text has every argument of the call, byte for byte, with invisible characters made visible. The short text is the
//! whole text with long values folded to beginning and end; it says how much is hidden, and a yes to it counts only from a person
//! who has seen the whole text ([`PreviewReceipt`]).

mod fold;
#[cfg(test)]
mod tests;
mod visible;

use clawk_proto::Digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use visible::visible_text;

use crate::canonical::digest;

/// Number of consecutive empty lines that are shown. A longer run is counted.
const EMPTY_LINES_SHOWN: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// A property of the call, or a short value.
    Fact,
    /// A line of a value.
    Value,
    /// An unchanged line of a file.
    Same,
}

/// One line of the text. Invisible characters are made visible when it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviewLine {
    kind: Kind,
    text: String,
}

impl PreviewLine {
    /// Makes a line about a property of the call.
    #[must_use]
    pub fn fact(text: &str) -> Self {
        Self {
            kind: Kind::Fact,
            text: visible_text(text),
        }
    }

    /// Makes a line of a value after `mark`, without its line end.
    #[must_use]
    pub fn value(mark: &str, text: &str) -> Self {
        Self {
            kind: Kind::Value,
            text: format!("{mark}{}", visible_text(text)),
        }
    }

    /// Makes an unchanged line after `mark`, which the short text may omit.
    #[must_use]
    pub fn same(mark: &str, text: &str) -> Self {
        Self {
            kind: Kind::Same,
            ..Self::value(mark, text)
        }
    }

    /// Makes all lines of a text, each after `mark`. A line end at the very end makes no further line.
    #[must_use]
    pub fn all(mark: &str, text: &str) -> Vec<Self> {
        let mut lines = Vec::new();
        let mut empty = 0;
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            if line.is_empty() {
                empty += 1;
                continue;
            }
            push_empty(&mut lines, mark, std::mem::take(&mut empty));
            lines.push(Self::value(mark, line));
        }
        push_empty(&mut lines, mark, empty);
        lines
    }
}

fn push_empty(lines: &mut Vec<PreviewLine>, mark: &str, count: usize) {
    let kind = Kind::Value;
    if count > EMPTY_LINES_SHOWN {
        let text = format!("{mark}⟨{count} empty lines⟩");
        lines.push(PreviewLine { kind, text });
    } else {
        lines.extend((0..count).map(|_| PreviewLine::value(mark, "")));
    }
}

/// The executor's description of a call for people, shown beside the arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecutorPreview {
    /// The lines that say what will happen.
    pub lines: Vec<PreviewLine>,
    /// Text arguments that `lines` contain completely. All others are added after `lines`.
    pub covers: &'static [&'static str],
}

/// The text of an approval request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<PreviewLine>", into = "Vec<PreviewLine>")]
pub struct CallPreview {
    lines: Vec<PreviewLine>,
    digest: Digest,
    bytes: usize,
    hidden_bytes: usize,
}

impl From<Vec<PreviewLine>> for CallPreview {
    fn from(lines: Vec<PreviewLine>) -> Self {
        let hidden_bytes = fold::fold_preview(&lines).hidden_bytes;
        let mut sheet = Self {
            lines,
            digest: Digest::ZERO,
            bytes: 0,
            hidden_bytes,
        };
        let whole = sheet.whole();
        (sheet.digest, sheet.bytes) = (digest(whole.as_bytes()), whole.len());
        sheet
    }
}

impl Default for CallPreview {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<CallPreview> for Vec<PreviewLine> {
    fn from(sheet: CallPreview) -> Self {
        sheet.lines
    }
}

impl CallPreview {
    /// The same with lines replaced; `None`: `replace` changes none.
    pub fn replaced(&self, replace: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let mut changed = false;
        let lines: Vec<PreviewLine> = self
            .lines
            .iter()
            .map(|line| match replace(&line.text) {
                Some(text) => {
                    changed = true;
                    PreviewLine { text, ..*line }
                }
                None => line.clone(),
            })
            .collect();
        changed.then(|| Self::from(lines))
    }

    /// Makes the text for a call with these arguments: the executor's lines, every argument that these do not show completely, and
    /// `after`.
    #[must_use]
    pub fn of(arguments: &Map<String, Value>, preview: ExecutorPreview, after: Vec<PreviewLine>) -> Self {
        let ExecutorPreview { mut lines, covers } = preview;
        let rest: Vec<_> = arguments
            .iter()
            .filter(|(name, value)| !(covers.contains(&name.as_str()) && covered(value, &lines)))
            .collect();
        for (name, value) in rest {
            argument(&mut lines, 0, &key(name), value);
        }
        lines.extend(after);
        lines.into()
    }

    /// Returns its first line.
    #[must_use]
    pub fn first(&self) -> &str {
        self.lines.first().map_or("", |line| &line.text)
    }

    /// Returns the whole text.
    #[must_use]
    pub fn whole(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(|line| line.text.as_str()).collect();
        lines.join("\n")
    }

    /// Returns the lines that clients show first: long values are folded.
    #[must_use]
    pub fn short(&self) -> Vec<String> {
        fold::fold_preview(&self.lines).lines
    }

    /// Returns the size of the whole text in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns how many bytes the short text hides. Unchanged lines of a file do not count.
    #[must_use]
    pub const fn hidden_bytes(&self) -> usize {
        self.hidden_bytes
    }

    /// Returns whether the short text hides something.
    #[must_use]
    pub const fn is_folded(&self) -> bool {
        self.hidden_bytes > 0
    }

    /// Returns the SHA-256 of the whole text. A client that names it has received the text.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// Returns the display for a client with room for `limit` bytes of text. `sends_files`: the client can send the whole text as a
    /// file. `answer`: the command to use elsewhere, `clawk approve ID`.
    #[must_use]
    pub fn offer(&self, limit: usize, sends_files: bool, answer: &str) -> PreviewDisplay {
        let whole = self.whole();
        if whole.len() <= limit {
            return PreviewDisplay::Whole(whole);
        }
        let short = self.short().join("\n");
        if sends_files && short.len() <= limit {
            return PreviewDisplay::File { short, whole };
        }
        PreviewDisplay::Elsewhere(format!(
            "{} bytes, too long to be shown here; read and answer it with `{answer}`",
            whole.len()
        ))
    }

    /// Returns whether a yes counts from a person who has seen `seen`.
    #[must_use]
    pub fn admits(&self, seen: &PreviewReceipt) -> bool {
        match seen {
            PreviewReceipt::Short => !self.is_folded(),
            PreviewReceipt::Whole(digests) => !self.is_folded() || digests.contains(&self.digest),
            PreviewReceipt::Sent => true,
        }
    }
}

/// The display of a request at a client with limited room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreviewDisplay {
    /// The whole text, with a way to answer.
    Whole(String),
    /// The short text, and the whole text as a file, with a way to answer.
    File {
        /// Text of the message.
        short: String,
        /// Text of the file.
        whole: String,
    },
    /// No way to answer here. Says where to answer.
    Elsewhere(String),
}

/// How much of the question's text the answering person received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PreviewReceipt {
    /// The short text.
    #[default]
    Short,
    /// The whole text of the questions with these digests.
    Whole(Vec<Digest>),
    /// The client's connection sends the whole text to every client that may answer (JSON-RPC), or the answering client made the
    /// call.
    Sent,
}

/// Returns whether `lines` contain a text completely, line by line. In doubt it is not covered, and is shown again.
fn covered(value: &Value, lines: &[PreviewLine]) -> bool {
    let Value::String(text) = value else {
        return false;
    };
    let mut lines = lines.iter();
    let mut parts = text.split('\n').filter(|part| !part.is_empty()).peekable();
    parts.peek().is_some()
        && parts.all(|part| {
            let shown = visible_text(part);
            lines.any(|line| line.text.contains(&shown))
        })
}

/// Adds an argument and its members in a form from which the value can be read back.
fn argument(lines: &mut Vec<PreviewLine>, depth: usize, name: &str, value: &Value) {
    let indent = "  ".repeat(depth);
    let mut fact = |text: String| {
        lines.push(PreviewLine {
            kind: Kind::Fact,
            text: format!("{indent}{name}: {text}"),
        });
    };
    match value {
        Value::String(text) if text.contains('\n') => {
            let open = if text.ends_with('\n') {
                ""
            } else {
                ", no line end at the end"
            };
            let count = text.strip_suffix('\n').unwrap_or(text).split('\n').count();
            fact(format!("{count} lines, {} bytes{open}", text.len()));
            lines.extend(PreviewLine::all(&format!("{indent}  | "), text));
        }
        Value::String(text) => fact(format!("\"{}\"", visible_text(text))),
        Value::Array(items) if items.iter().any(|item| !is_plain(item)) => {
            fact(format!("{} items", items.len()));
            for (number, item) in (1..).zip(items) {
                argument(lines, depth + 1, &format!("{number}."), item);
            }
        }
        Value::Object(members) if !members.is_empty() => {
            fact(format!("{} members", members.len()));
            for (name, member) in members {
                argument(lines, depth + 1, &key(name), member);
            }
        }
        plain => fact(plain.to_string()),
    }
}

/// Returns whether the value contains no text.
const fn is_plain(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(_) | Value::Number(_))
}

/// Returns a member's name, in quotes if it is ambiguous.
fn key(name: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(is_word) {
        return name.to_owned();
    }
    format!("\"{}\"", visible_text(name).replace('"', "⟨U+0022⟩"))
}
