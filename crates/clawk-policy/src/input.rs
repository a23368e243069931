//! Validates inbound text (CKP §5.8 `input_validation`): size, null bytes, encoding, white space, and invisible characters.

use std::collections::BTreeSet;
use std::fmt;

use clawk_manifest::model;
use serde_json::Value;

/// At most this many line ends in a row. More would push the following text out of view.
const MAX_LINE_ENDS: usize = 40;
/// At most this many blanks in a row. More would push the following text past the window's edge.
const MAX_BLANKS: usize = 200;
/// At most this many joiners in one text, which is enough for scripts and emoji. More may hide something.
const MAX_JOINERS: usize = 64;

/// A fault of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TextFault {
    /// Larger than `max_size_bytes`.
    Size,
    /// A null byte.
    NullByte,
    /// The text does not have the expected encoding: invalid UTF-8, an overlong form, a lone surrogate, or a character that the
    /// encoding lacks.
    Encoding,
    /// White space hides text: very long runs, carriage returns that overwrite, unusual blanks.
    Whitespace,
    /// Invisible characters: tags, zero-width characters, invisible operators, selectors that encode bytes.
    Invisible,
    /// Characters that change the visible order of text.
    Bidirectional,
    /// Control characters that affect a terminal.
    Control,
}

impl TextFault {
    /// The fault's stable name, `data.reason` on the wire (R16a).
    #[must_use]
    pub const fn reason_word(self) -> &'static str {
        match self {
            Self::Size => "input_size",
            Self::NullByte => "null_byte",
            Self::Encoding => "encoding",
            Self::Whitespace => "hidden_by_whitespace",
            Self::Invisible => "invisible_characters",
            Self::Bidirectional => "bidirectional_characters",
            Self::Control => "control_characters",
        }
    }
}

/// A fault with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The fault.
    pub fault: TextFault,
    /// JSON pointer to the text inside a value; empty for a plain text.
    pub pointer: String,
    /// Byte offset in the text.
    pub at: usize,
    /// For people: the character's name or number, or the sizes. Never the text.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            TextFault::Size => write!(f, "{}", self.detail),
            _ if self.pointer.is_empty() => write!(f, "{} at byte {}", self.detail, self.at),
            _ => write!(f, "{} at `{}`, byte {}", self.detail, self.pointer, self.at),
        }
    }
}

/// The required encoding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TextEncoding {
    Ascii,
    Latin1,
    Utf8,
}

/// The requirements for a text. Empty rules accept every text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputTextRules {
    max_size_bytes: Option<u64>,
    null_bytes: bool,
    whitespace: bool,
    encoding: Option<TextEncoding>,
}

impl InputTextRules {
    /// Combines the rules of several policies to the strictest.
    ///
    /// # Errors
    /// The name of an unknown `encoding`.
    pub fn compile<'a>(blocks: impl IntoIterator<Item = &'a model::InputValidation>) -> Result<Self, String> {
        let mut rules = Self::default();
        for block in blocks {
            let encoding = match block.encoding.to_ascii_lowercase().replace('_', "-").as_str() {
                "utf-8" | "utf8" | "unicode" => TextEncoding::Utf8,
                "ascii" | "us-ascii" => TextEncoding::Ascii,
                "latin1" | "latin-1" | "iso-8859-1" => TextEncoding::Latin1,
                other => return Err(other.chars().take(40).collect()),
            };
            rules.encoding = Some(rules.encoding.map_or(encoding, |known| known.min(encoding)));
            rules.max_size_bytes = match (rules.max_size_bytes, block.max_size_bytes) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            rules.null_bytes |= block.null_byte_detection;
            rules.whitespace |= block.whitespace_analysis;
        }
        Ok(rules)
    }

    /// Whether there are no requirements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Finds the first fault in bytes that claim to be text.
    ///
    /// # Errors
    /// The fault with its position.
    pub fn check_bytes(&self, bytes: &[u8]) -> Result<(), Finding> {
        self.check_size(bytes.len())?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.check_text(text, ""),
            Err(_) if self.encoding.is_none() => Ok(()),
            Err(error) => {
                let at = error.valid_up_to();
                let byte = bytes.get(at).copied().unwrap_or_default();
                let what = match byte {
                    0xc0 | 0xc1 => "an overlong form of an ASCII character".to_owned(),
                    0xe0 | 0xf0 if error.error_len().is_some() => "an overlong form".to_owned(),
                    0xed => "half of a surrogate pair".to_owned(),
                    0xfe | 0xff => "a byte order mark of UTF-16 within UTF-8".to_owned(),
                    byte => format!("the byte 0x{byte:02x}, which is not UTF-8"),
                };
                Err(text_finding(TextFault::Encoding, "", at, what))
            }
        }
    }

    /// Finds the first fault in a text.
    ///
    /// # Errors
    /// The fault with its position.
    pub fn check_input(&self, text: &str) -> Result<(), Finding> {
        self.check_size(text.len())?;
        self.check_text(text, "")
    }

    /// Finds the first fault in a JSON value: its total size, then every text and every key.
    ///
    /// # Errors
    /// The fault with its position.
    pub fn check_json(&self, value: &Value, size_bytes: usize) -> Result<(), Finding> {
        if self.is_empty() {
            return Ok(());
        }
        self.check_size(size_bytes)?;
        self.check_within(value, &mut String::new())
    }

    fn check_within(&self, value: &Value, pointer: &mut String) -> Result<(), Finding> {
        let depth = pointer.len();
        match value {
            Value::String(text) => self.check_text(text, pointer),
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    pointer.push_str(&format!("/{at}"));
                    self.check_within(item, pointer)?;
                    pointer.truncate(depth);
                }
                Ok(())
            }
            Value::Object(members) => {
                for (key, inner) in members {
                    self.check_text(key, pointer)?;
                    pointer.push('/');
                    pointer.extend(key.chars().take(64).filter(|c| !c.is_control()));
                    self.check_within(inner, pointer)?;
                    pointer.truncate(depth);
                }
                Ok(())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    fn check_size(&self, size: usize) -> Result<(), Finding> {
        match self.max_size_bytes {
            Some(most) if u64::try_from(size).unwrap_or(u64::MAX) > most => {
                let what = format!("it has {size} bytes, `max_size_bytes` is {most}");
                Err(text_finding(TextFault::Size, "", 0, what))
            }
            _ => Ok(()),
        }
    }

    fn check_text(&self, text: &str, pointer: &str) -> Result<(), Finding> {
        if self.null_bytes
            && let Some(at) = text.find('\0')
        {
            return Err(text_finding(
                TextFault::NullByte,
                pointer,
                at,
                "a null byte".to_owned(),
            ));
        }
        if let Some(encoding) = self.encoding {
            check_encoding(text, pointer, encoding)?;
        }
        if self.whitespace {
            check_hidden(text, pointer)?;
        }
        Ok(())
    }
}

fn text_finding(fault: TextFault, pointer: &str, at: usize, detail: String) -> Finding {
    let pointer = pointer.to_owned();
    Finding {
        fault,
        pointer,
        at,
        detail,
    }
}

fn check_encoding(text: &str, pointer: &str, encoding: TextEncoding) -> Result<(), Finding> {
    let (most, name) = match encoding {
        TextEncoding::Utf8 => {
            // A replacement character, or UTF-8 that was read as Latin-1 and encoded again: an earlier step decoded it wrongly.
            let at = text
                .find('\u{fffd}')
                .or_else(|| text.find("\u{c3}\u{82}\u{c2}"))
                .or_else(|| text.find('\u{feff}').filter(|at| *at > 0));
            return match at {
                Some(at) => Err(text_finding(
                    TextFault::Encoding,
                    pointer,
                    at,
                    "a sign of mixed encodings".to_owned(),
                )),
                None => Ok(()),
            };
        }
        TextEncoding::Ascii => ('\u{7f}', "ASCII"),
        TextEncoding::Latin1 => ('\u{ff}', "Latin-1"),
    };
    match text.char_indices().find(|(_, c)| *c > most) {
        Some((at, c)) => {
            let what = format!("the character U+{:04X}, which {name} lacks", u32::from(c));
            Err(text_finding(TextFault::Encoding, pointer, at, what))
        }
        None => Ok(()),
    }
}

/// Finds every kind of hidden text in one pass.
fn check_hidden(text: &str, pointer: &str) -> Result<(), Finding> {
    let (mut line_ends, mut blanks, mut joiners) = (0, 0, 0);
    let mut chars = text.char_indices().peekable();
    let mut before = None;
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, c)| *c);
        let refuse = |fault, what: String| Err(text_finding(fault, pointer, at, what));
        let named = |what: &str| format!("{what} U+{:04X}", u32::from(c));
        line_ends = if c == '\n' {
            line_ends + 1
        } else if c == '\r' {
            line_ends
        } else {
            0
        };
        blanks = if c != '\n' && c.is_whitespace() {
            blanks + 1
        } else {
            0
        };
        match kind_of(c) {
            Some(TextFault::Invisible) if is_joiner(c) => {
                // Legitimate between letters of some scripts and inside emoji; elsewhere it splits words to evade a filter.
                joiners += 1;
                let belongs = !before.is_some_and(|b: char| b.is_ascii())
                    && !next.is_some_and(|n| n.is_ascii_alphanumeric());
                if !belongs || joiners > MAX_JOINERS {
                    return refuse(TextFault::Invisible, named("the invisible character"));
                }
            }
            Some(TextFault::Invisible) => {
                return refuse(TextFault::Invisible, named("the invisible character"));
            }
            Some(TextFault::Bidirectional) => {
                return refuse(TextFault::Bidirectional, named("the direction mark"));
            }
            Some(TextFault::Control) => return refuse(TextFault::Control, named("the control character")),
            Some(TextFault::Whitespace) => return refuse(TextFault::Whitespace, named("the unusual blank")),
            Some(TextFault::Size | TextFault::NullByte | TextFault::Encoding) | None => {}
        }
        if c == '\r' && next.is_some_and(|n| n != '\n' && n != '\r') {
            return refuse(
                TextFault::Whitespace,
                "a carriage return that overwrites its line".to_owned(),
            );
        }
        if line_ends > MAX_LINE_ENDS || blanks > MAX_BLANKS {
            return refuse(TextFault::Whitespace, "a very long run of white space".to_owned());
        }
        before = Some(c);
    }
    Ok(())
}

/// Zero-width joiner and non-joiner, and the selector of emoji style.
const fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe0e}' | '\u{fe0f}')
}

/// The fault of a character that is invisible or shown at another position.
pub(crate) const fn kind_of(c: char) -> Option<TextFault> {
    match c {
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' => {
            Some(TextFault::Bidirectional)
        }
        '\u{ad}'
        | '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200d}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => Some(TextFault::Invisible),
        '\u{0}' | '\t' | '\n' | '\r' | '\u{c}' => None,
        '\u{1}'..='\u{1f}' | '\u{7f}'..='\u{9f}' => Some(TextFault::Control),
        '\u{2028}' | '\u{2029}' | '\u{2800}' | '\u{1680}' => Some(TextFault::Whitespace),
        _ => None,
    }
}

/// The faults by name, for events.
#[must_use]
pub fn fault_words(findings: &[Finding]) -> BTreeSet<&'static str> {
    findings
        .iter()
        .map(|finding| finding.fault.reason_word())
        .collect()
}
