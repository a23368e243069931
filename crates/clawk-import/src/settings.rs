//! A configuration file as a tree that marks the members that were read. The report names the rest.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::ImportError;
use crate::source::SourcePath;

/// The largest configuration file, bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// A parsed file. Members are found by path, in any spelling (`allowFrom`, `allow_from`, `allow-from`).
#[derive(Debug, Default)]
pub(crate) struct Settings {
    file: String,
    root: Value,
    taken: RefCell<BTreeSet<Vec<String>>>,
}

/// Reads a file as text, up to a size limit.
pub(crate) fn text_of(path: &SourcePath) -> Result<String, ImportError> {
    let bytes = path.read(MAX_FILE_BYTES)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

impl Settings {
    /// Parses JSON with comments, TOML, YAML or `NAME=value` lines, by the file's name.
    pub(crate) fn read(path: &SourcePath) -> Result<Self, ImportError> {
        let text = text_of(path)?;
        let name = path.file_name();
        let malformed = |format, cause: String| ImportError::Malformed {
            path: path.display_path(),
            format,
            cause,
        };
        let root = match name.rsplit('.').next().unwrap_or_default() {
            "toml" => toml::from_str::<Value>(&text)
                .map_err(|error| malformed("TOML", error.message().to_owned()))?,
            "yaml" | "yml" => yaml_value(&text).map_err(|cause| malformed("YAML", cause))?,
            "env" => env_lines(&text),
            _ => json5::from_str::<Value>(&text)
                .map_err(|error| malformed("JSON", place_of(&error.to_string())))?,
        };
        Ok(Self::of_value(&name, root))
    }

    /// Settings from a tree that was parsed elsewhere; `file` is its name in the report.
    pub(crate) fn of_value(file: &str, root: Value) -> Self {
        Self {
            file: file.to_owned(),
            root,
            taken: RefCell::default(),
        }
    }

    /// The value at a path of words separated by dots. Marks the member as read.
    pub(crate) fn take_value(&self, path: &str) -> Option<&Value> {
        let found = self.find_member(path)?;
        self.taken.borrow_mut().insert(found.0);
        Some(found.1)
    }

    /// Whether the member at a path was read.
    pub(crate) fn is_taken(&self, path: &str) -> bool {
        self.find_member(path)
            .is_some_and(|(words, _)| self.taken.borrow().contains(&words))
    }

    /// The value at a path, without marking it.
    pub(crate) fn peek_value(&self, path: &str) -> Option<&Value> {
        self.find_member(path).map(|found| found.1)
    }

    /// A text or a number as text; `None` if it is empty.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let value = self.take_value(path)?;
        plain_text(value)
    }

    /// The first existing value of several paths.
    pub(crate) fn first_text(&self, paths: &[&str]) -> Option<String> {
        paths.iter().find_map(|path| self.text(path))
    }

    /// A boolean; `"true"` and `"false"` count too.
    pub(crate) fn flag(&self, path: &str) -> Option<bool> {
        match self.take_value(path)? {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) => text.parse().ok(), // silent-ok: another word is no flag
            _ => None,
        }
    }

    /// A whole number.
    pub(crate) fn number(&self, path: &str) -> Option<u64> {
        match self.take_value(path)? {
            Value::Number(number) => number.as_u64().or_else(|| number.as_f64().map(truncate_number)),
            Value::String(text) => text.parse().ok(), // silent-ok: another word is no number
            _ => None,
        }
    }

    /// A list of texts; a single text counts as a list of one.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        match self.take_value(path) {
            Some(Value::Array(items)) => items.iter().filter_map(plain_text).collect(),
            Some(other) => plain_text(other).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The names of an object's members, in file order if the parser keeps it.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let object = if path.is_empty() {
            self.root.as_object()
        } else {
            self.peek_value(path).and_then(Value::as_object)
        };
        object
            .map(|members| members.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// The name of a member in the report.
    pub(crate) fn display_path(&self, path: &str) -> String {
        match self.find_member(path) {
            Some((words, _)) => format!("{}: {}", self.file, words.join(".")),
            None => format!("{}: {path}", self.file),
        }
    }

    /// The paths of all members that were not read. Members of an object that was read count as read.
    pub(crate) fn untaken_members(&self) -> Vec<(String, String)> {
        let mut rest = Vec::new();
        self.collect_untaken(&self.root, &mut Vec::new(), &mut rest);
        rest
    }

    fn collect_untaken(&self, value: &Value, at: &mut Vec<String>, rest: &mut Vec<(String, String)>) {
        if self.taken.borrow().contains(at.as_slice()) {
            return;
        }
        match value {
            Value::Object(members) if !members.is_empty() => {
                for (name, member) in members {
                    at.push(name.clone());
                    self.collect_untaken(member, at, rest);
                    at.pop();
                }
            }
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            Value::Array(items) if items.is_empty() => {}
            Value::Object(_) => {}
            _ => {
                let path = at.join(".");
                rest.push((format!("{}: {path}", self.file), path));
            }
        }
    }

    fn find_member(&self, path: &str) -> Option<(Vec<String>, &Value)> {
        let mut at = &self.root;
        let mut words = Vec::new();
        for step in path.split('.') {
            let (name, member) = member_of(at.as_object()?, step)?;
            words.push(name.clone());
            at = member;
        }
        Some((words, at))
    }
}

/// A member by its name, or by the same words in another spelling.
fn member_of<'a>(members: &'a Map<String, Value>, step: &str) -> Option<(&'a String, &'a Value)> {
    let folded = fold_name(step);
    members
        .get_key_value(step)
        .or_else(|| members.iter().find(|(name, _)| fold_name(name) == folded))
}

/// The name in lower case without separators.
fn fold_name(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

fn plain_text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// A number without its fraction; negative numbers become 0.
fn truncate_number(number: f64) -> u64 {
    format!("{:.0}", number.max(0.0).trunc())
        .parse()
        .unwrap_or(u64::MAX)
}

/// Parses YAML as the runtimes do.
///
/// # Errors
/// The parser's error, without the file's content.
pub(crate) fn yaml_value(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options::<Value>(text, options).map_err(|error| place_of(&error.to_string()))
}

/// The first line of a parser's error. Further lines may show the file's content, which may contain keys.
fn place_of(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    line.chars().take(160).collect()
}

/// Parses `NAME=value` lines in the form of shells and dotenv files.
fn env_lines(text: &str) -> Value {
    let mut members = Map::new();
    for line in text.lines() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        if line.starts_with('#') {
            continue;
        }
        if let Some((name, value)) = line.split_once('=') {
            let value = value.trim();
            let quoted = |mark| value.strip_prefix(mark).and_then(|rest| rest.strip_suffix(mark));
            let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
            members.insert(name.trim().to_owned(), Value::String(value.to_owned()));
        }
    }
    Value::Object(members)
}

/// The first existing file of these names in a folder.
///
/// # Errors
/// One of the names is a link. It may lead anywhere, so no other file replaces it.
pub(crate) fn first_file(root: &SourcePath, names: &[&str]) -> Result<Option<SourcePath>, ImportError> {
    for path in names.iter().map(|name| root.join(name)) {
        if path.is_link() {
            return Err(ImportError::Link {
                path: path.display_path(),
            });
        }
        if path.is_file() {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
