//! Finds the arguments of a call that are paths; see the rules in [`super`].

use serde_json::{Map, Value};

use super::MAX_DEPTH;

/// The largest number of checked strings that only may be paths. With more, every restrictive rule about paths applies.
const MAX_GUESSES: usize = 4096;

/// The longest string that can name a file, bytes. This is the system's limit.
const MAX_PATH_BYTES: usize = 4096;

const NAMES: &[&str] = &[
    "path",
    "file",
    "filename",
    "dir",
    "directory",
    "folder",
    "source",
    "src",
    "destination",
    "dest",
    "dst",
    "workdir",
    "workingdirectory",
    "cwd",
    "root",
    "base",
    "location",
];
const PLURALS: &[&str] = &[
    "paths",
    "files",
    "filenames",
    "dirs",
    "directories",
    "folders",
    "sources",
    "destinations",
    "roots",
    "locations",
];
const ENDINGS: &[&str] = &[
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "dir",
    "dirs",
    "directory",
    "directories",
];
const FORMATS: &[&str] = &[
    "path",
    "file",
    "file-path",
    "filepath",
    "directory",
    "directory-path",
    "dir",
    "folder",
];
const WORKDIRS: &[&str] = &["workdir", "workingdirectory", "cwd"];

/// The arguments that are paths, unchanged: JSON pointer and text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedPaths {
    /// The call's own working directories; relative paths start there.
    pub workdirs: Vec<(String, String)>,
    /// All other paths.
    pub paths: Vec<(String, String)>,
}

/// Collects the arguments that are paths, without resolving them. For callers that must access the files.
#[must_use]
pub fn named_paths(arguments: &Map<String, Value>, schema: Option<&Value>) -> NamedPaths {
    let found = PathCollector::from_arguments(arguments, schema);
    NamedPaths {
        workdirs: found.workdirs,
        paths: found.paths,
    }
}

/// JSON pointer and text of every argument that is a path, including the call's own working directory.
pub(crate) fn path_arguments(
    arguments: &Map<String, Value>,
    schema: Option<&Value>,
) -> Vec<(String, String)> {
    let mut found = PathCollector::from_arguments(arguments, schema);
    found.workdirs.append(&mut found.paths);
    found.workdirs
}

#[derive(Default)]
pub(super) struct PathCollector {
    /// JSON pointer and text.
    pub(super) paths: Vec<(String, String)>,
    pub(super) workdirs: Vec<(String, String)>,
    /// All other strings that could name a file.
    pub(super) guesses: Vec<String>,
    /// There were more strings than are checked.
    pub(super) overfull: bool,
    pub(super) refused: Option<String>,
}

impl PathCollector {
    pub(super) fn from_arguments(arguments: &Map<String, Value>, schema: Option<&Value>) -> Self {
        let mut found = Self::default();
        found.collect_object(arguments, schema, &mut String::new(), 0);
        found
    }

    fn add_guess(&mut self, text: &str) {
        if text.is_empty() || text.len() > MAX_PATH_BYTES || text.contains('\0') {
            return;
        }
        if self.guesses.len() == MAX_GUESSES {
            self.overfull = true;
        } else {
            self.guesses.push(text.to_owned());
        }
    }

    fn collect_object(
        &mut self,
        map: &Map<String, Value>,
        schema: Option<&Value>,
        pointer: &mut String,
        depth: usize,
    ) {
        for (key, value) in map {
            let length = pointer.len();
            pointer.push('/');
            pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            let folded = fold_key(key);
            match value {
                Value::String(text) if depth == 0 && WORKDIRS.contains(&folded.as_str()) => {
                    self.workdirs.push((pointer.clone(), text.clone()));
                }
                _ => {
                    let named =
                        is_path_name(&folded) || schema.is_some_and(|schema| has_path_format(schema, key));
                    self.collect_value(value, named, pointer, depth + 1);
                }
            }
            pointer.truncate(length);
        }
    }

    fn collect_value(&mut self, value: &Value, named: bool, pointer: &mut String, depth: usize) {
        match value {
            _ if depth > MAX_DEPTH => {
                self.refused
                    .get_or_insert_with(|| format!("`{pointer}`: arguments are nested too deep"));
            }
            Value::String(text) if named || reads_as_path(text) => {
                self.paths.push((pointer.clone(), text.clone()));
            }
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    let length = pointer.len();
                    pointer.push_str(&format!("/{at}"));
                    self.collect_value(item, named, pointer, depth + 1);
                    pointer.truncate(length);
                }
            }
            Value::Object(map) => self.collect_object(map, None, pointer, depth),
            Value::String(text) => self.add_guess(text),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// The key in lower case, without `_` and `-`.
fn fold_key(key: &str) -> String {
    key.chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .map(|c| c.to_ascii_lowercase())
        .collect()
}

fn is_path_name(folded: &str) -> bool {
    NAMES.contains(&folded) || PLURALS.contains(&folded) || ENDINGS.iter().any(|end| folded.ends_with(end))
}

fn has_path_format(schema: &Value, key: &str) -> bool {
    let Some(property) = schema
        .get("properties")
        .and_then(|properties| properties.get(key))
    else {
        return false;
    };
    [Some(property), property.get("items")]
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("format").and_then(Value::as_str))
        .any(|format| FORMATS.contains(&format))
}

fn reads_as_path(text: &str) -> bool {
    if text.contains(char::is_whitespace) {
        return false;
    }
    text.starts_with(['/', '~'])
        || text.starts_with("./")
        || super::is_file_uri(text)
        || text.split('/').any(|component| component == "..")
}
