//! Collects all faults of a document: pointers, unknown members, suggestions.

use std::fmt;

pub use clawk_proto::carp::CarpFault;
use serde_json::{Map, Value};

/// The largest number of stored faults; more are only counted.
const MAX_KEPT: usize = 200;

/// All faults of one input. As an error it is never empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, thiserror::Error)]
pub struct InputFaults {
    /// In the order of the input; at most 200.
    pub errors: Vec<CarpFault>,
    /// The number of faults that were not stored.
    pub left_out: usize,
}

impl InputFaults {
    /// A list with one fault.
    pub(crate) fn single_fault(path: &str, code: &'static str, message: String) -> Self {
        let mut faults = Self::default();
        faults.push(path.to_owned(), code, message);
        faults
    }

    pub(crate) fn push(&mut self, path: String, code: &'static str, message: String) {
        if self.errors.len() < MAX_KEPT {
            let code = code.to_owned();
            self.errors.push(CarpFault { path, code, message });
        } else {
            self.left_out += 1;
        }
    }

    /// Returns `value` if there is no fault.
    pub(crate) fn into_result<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            Some(_) => Err(self),
            None if self.errors.is_empty() => Err(Self::single_fault(
                "",
                "invalid",
                "the input could not be read".to_owned(),
            )),
            None => Err(self),
        }
    }
}

impl fmt::Display for InputFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fault) in self.errors.iter().enumerate() {
            if at > 0 {
                f.write_str("; ")?;
            }
            if !fault.path.is_empty() {
                write!(f, "{}: ", fault.path)?;
            }
            f.write_str(&fault.message)?;
        }
        if self.left_out > 0 {
            write!(f, "; and {} more", self.left_out)?;
        }
        Ok(())
    }
}

/// A position in the input. It becomes a JSON Pointer only for a fault.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InputPath<'p> {
    Root,
    Key(&'p InputPath<'p>, &'p str),
    Index(&'p InputPath<'p>, usize),
}

impl<'p> InputPath<'p> {
    pub(crate) fn key(&'p self, key: &'p str) -> InputPath<'p> {
        InputPath::Key(self, key)
    }

    pub(crate) fn index(&'p self, index: usize) -> InputPath<'p> {
        InputPath::Index(self, index)
    }

    pub(crate) fn pointer(&self) -> String {
        match self {
            Self::Root => String::new(),
            Self::Key(above, key) => {
                let short: String = key.chars().take(64).collect();
                format!(
                    "{}/{}",
                    above.pointer(),
                    short.replace('~', "~0").replace('/', "~1")
                )
            }
            Self::Index(above, index) => format!("{}/{index}", above.pointer()),
        }
    }
}

/// The shortest and longest text, in characters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LengthBounds(pub(crate) usize, pub(crate) usize);

/// Reads values and collects their faults.
#[derive(Debug, Default)]
pub(crate) struct FaultCollector {
    pub(crate) faults: InputFaults,
    pub(crate) warnings: Vec<CarpFault>,
}

impl FaultCollector {
    pub(crate) fn add_fault(&mut self, at: &InputPath<'_>, code: &'static str, message: impl Into<String>) {
        self.faults.push(at.pointer(), code, message.into());
    }

    pub(crate) fn add_warning(&mut self, at: &InputPath<'_>, code: &'static str, message: impl Into<String>) {
        if self.warnings.len() < MAX_KEPT {
            self.warnings.push(CarpFault {
                path: at.pointer(),
                code: code.to_owned(),
                message: message.into(),
            });
        }
    }

    fn add_type_fault(&mut self, at: &InputPath<'_>, what: &str, found: &Value) {
        self.add_fault(at, "type", format!("expected {what}, found {}", kind(found)));
    }

    /// Reads an object that may have only the members `known`.
    pub(crate) fn read_object<'v>(
        &mut self,
        value: &'v Value,
        at: &InputPath<'_>,
        known: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let map = self.read_map(value, at)?;
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            let shown: String = key.chars().take(64).collect();
            let hint = match nearest_word(key, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known: {}", known.join(", ")),
            };
            self.add_fault(
                &at.key(key),
                "unknown_field",
                format!("unknown field `{shown}` ({hint})"),
            );
        }
        Some(map)
    }

    /// Reads an object with any members.
    pub(crate) fn read_map<'v>(
        &mut self,
        value: &'v Value,
        at: &InputPath<'_>,
    ) -> Option<&'v Map<String, Value>> {
        let map = value.as_object();
        if map.is_none() {
            self.add_type_fault(at, "an object", value);
        }
        map
    }

    /// Reads a required member.
    pub(crate) fn read_required<'v>(
        &mut self,
        map: &'v Map<String, Value>,
        at: &InputPath<'_>,
        key: &str,
    ) -> Option<&'v Value> {
        let value = map.get(key);
        if value.is_none() {
            self.add_fault(&at.key(key), "missing", format!("`{key}` is required"));
        }
        value
    }

    pub(crate) fn read_text<'v>(
        &mut self,
        value: &'v Value,
        at: &InputPath<'_>,
        length: LengthBounds,
    ) -> Option<&'v str> {
        let Some(text) = value.as_str() else {
            self.add_type_fault(at, "a text", value);
            return None;
        };
        let LengthBounds(least, most) = length;
        // A text has at most as many characters as bytes, so most texts need not be counted.
        let count = if text.len() <= most && text.len() >= least * 4 {
            least
        } else {
            text.chars().count()
        };
        if count < least || count > most {
            self.add_fault(
                at,
                "length",
                format!("{least} to {most} characters are wanted, found {count}"),
            );
            return None;
        }
        Some(text)
    }

    /// Reads a required text.
    pub(crate) fn required_text<'v>(
        &mut self,
        map: &'v Map<String, Value>,
        at: &InputPath<'_>,
        key: &str,
        length: LengthBounds,
    ) -> Option<&'v str> {
        let value = self.read_required(map, at, key)?;
        self.read_text(value, &at.key(key), length)
    }

    /// Reads an optional text.
    pub(crate) fn optional_text<'v>(
        &mut self,
        map: &'v Map<String, Value>,
        at: &InputPath<'_>,
        key: &str,
        length: LengthBounds,
    ) -> Option<&'v str> {
        let value = map.get(key)?;
        self.read_text(value, &at.key(key), length)
    }

    pub(crate) fn read_flag(&mut self, map: &Map<String, Value>, at: &InputPath<'_>, key: &str) -> bool {
        match map.get(key) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                self.add_type_fault(&at.key(key), "true or false", other);
                false
            }
        }
    }

    pub(crate) fn read_integer(
        &mut self,
        value: &Value,
        at: &InputPath<'_>,
        least: u64,
        most: u64,
    ) -> Option<u64> {
        match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => Some(number),
            Some(number) => {
                self.add_fault(
                    at,
                    "range",
                    format!("{least} to {most} is wanted, found {number}"),
                );
                None
            }
            None => {
                self.add_type_fault(at, &format!("a whole number from {least} to {most}"), value);
                None
            }
        }
    }

    /// Reads a list of at most `most` items. Calls `each` with every item and its position.
    pub(crate) fn read_list<'v>(
        &mut self,
        value: &'v Value,
        at: &InputPath<'_>,
        most: usize,
        mut each: impl FnMut(&mut Self, &'v Value, &InputPath<'_>),
    ) {
        let Some(items) = value.as_array() else {
            self.add_type_fault(at, "a list", value);
            return;
        };
        if items.len() > most {
            self.add_fault(
                at,
                "too_many",
                format!("at most {most} are allowed, found {}", items.len()),
            );
            return;
        }
        for (index, item) in items.iter().enumerate() {
            each(self, item, &at.index(index));
        }
    }

    /// Reads a list of texts under `key`; empty if absent.
    pub(crate) fn read_texts(
        &mut self,
        map: &Map<String, Value>,
        at: &InputPath<'_>,
        key: &str,
        most: usize,
        length: LengthBounds,
    ) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(value) = map.get(key) {
            self.read_list(value, &at.key(key), most, |report, item, at| {
                out.extend(report.read_text(item, at, length).map(str::to_owned));
            });
        }
        out
    }

    /// Reads one word of a closed set.
    pub(crate) fn read_word<T: Copy>(
        &mut self,
        value: &Value,
        at: &InputPath<'_>,
        words: &[(&str, T)],
    ) -> Option<T> {
        let text = self.read_text(value, at, LengthBounds(0, 10_000))?;
        let found = words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, known)| *known);
        if found.is_none() {
            let shown: String = text.chars().take(64).collect();
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let hint = match nearest_word(text, all.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("one of {}", all.join(", ")),
            };
            self.add_fault(at, "value", format!("`{shown}` is not known here ({hint})"));
        }
        found
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The known word that was probably meant, if one is near enough.
pub(crate) fn nearest_word<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if word.len() > 64 {
        return None;
    }
    known
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.len() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The edit distance between two words.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, have) in from.chars().enumerate() {
        let mut next = vec![line + 1];
        for (column, want) in to.iter().enumerate() {
            let cost = |at: usize, row: &[usize]| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let swap = cost(column, &row) + usize::from(have != *want);
            next.push(swap.min(cost(column + 1, &row) + 1).min(cost(column, &next) + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}
