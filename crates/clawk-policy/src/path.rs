//! `conditions.path_within`: which arguments of a call are paths, and whether they lie inside a root.
//!
//! **What is a path.** In the arguments, at any depth (at most [`MAX_DEPTH`]):
//! 1. a string, or an array of strings, under a key that names a path. Keys are compared without case, `_` and `-`:
//!    `path`, `file`, `filename`, `dir`, `directory`, `folder`, `source`, `src`, `destination`, `dest`, `dst`, `workdir`,
//!    `workingdirectory`, `cwd`, `root`, `base`, `location`, each also in the plural, and every key that ends in
//!    `path`, `paths`, `file`, `files`, `filename`, `dir`, `dirs`, `directory` or `directories` (`output_path`);
//! 2. a top-level string, or array of strings, whose property in the tool's `input_schema` has (itself or in `items`) a
//!    `format` of `path`, `file`, `file-path`, `filepath`, `directory`, `directory-path`, `dir` or `folder`;
//! 3. any other string without white space that reads as one: it begins with `/`, `~`, `./`, `../` or `file:`, or has a
//!    `..` component. A tool that hides its path under an unusual key doesn't escape that way.
//!
//! A call without any path acts in its working directory, which then is its path.
//!
//! **Where it lies.** Purely lexical: `.` components vanish; NUL, `..`, an empty component (`//`), a component that begins
//! with `~`, and `file:` are *refused*, never resolved. Relative paths start at the call's own `workdir`/`cwd` argument, where
//! it has one, else at [`Subject::workdir`](crate::Subject). Links are not followed here: the sandbox's view protects against them.
//!
//! **Which way it fails.** For `allow` and `audit-only` rules every path must lie inside and none be refused. For `deny`
//! and `require-approval` rules one path inside, or one refused, is enough. Command lines are no paths: a rule that allows
//! `shell` with `path_within` bounds its working directory only.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// Arguments nested deeper count as a refused path.
pub const MAX_DEPTH: usize = 64;

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

/// The paths of one call, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPaths {
    /// Absolute, lexically normal; never empty unless something was refused.
    inside: Vec<PathBuf>,
    /// Why a path could not be resolved, with the JSON pointer of the first such argument.
    refused: Option<String>,
}

impl CallPaths {
    /// Collects and resolves the paths of `arguments`.
    #[must_use]
    pub fn of(arguments: &Map<String, Value>, schema: Option<&Value>, workdir: &Path) -> Self {
        let mut found = Collector::default();
        found.object(arguments, schema, &mut String::new(), 0);
        let mut paths = Self {
            inside: Vec::new(),
            refused: found.refused.clone(),
        };
        if !workdir.is_absolute() {
            paths.refuse("the working directory is not absolute".to_owned());
            return paths;
        }
        let mut bases = Vec::new();
        for (key, text) in &found.workdirs {
            match resolve(text, workdir) {
                Ok(base) => bases.push(base),
                Err(why) => paths.refuse(format!("`{key}`: {why}")),
            }
        }
        if bases.is_empty() {
            bases.push(workdir.components().collect());
        }
        if found.paths.is_empty() {
            paths.inside.append(&mut bases);
            return paths;
        }
        for (pointer, text) in &found.paths {
            for base in &bases {
                match resolve(text, base) {
                    Ok(path) => paths.inside.push(path),
                    Err(why) => paths.refuse(format!("`{pointer}`: {why}")),
                }
            }
        }
        paths
            .inside
            .extend(bases.into_iter().filter(|_| !found.workdirs.is_empty()));
        paths
    }

    fn refuse(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    /// Every path lies inside one of the roots and none is refused: what lets a permissive rule apply.
    #[must_use]
    pub fn all_within(&self, roots: &[PathBuf]) -> bool {
        self.refused.is_none() && self.outside(roots).is_none()
    }

    /// A path lies inside one of the roots, or one is refused: what makes a restrictive rule apply.
    #[must_use]
    pub fn any_within(&self, roots: &[PathBuf]) -> bool {
        self.refused.is_some() || self.inside.iter().any(|path| within(path, roots))
    }

    /// The first path that lies outside, for explanations.
    #[must_use]
    pub fn outside(&self, roots: &[PathBuf]) -> Option<&Path> {
        self.inside
            .iter()
            .find(|path| !within(path, roots))
            .map(PathBuf::as_path)
    }

    /// Why a path was refused, with its pointer.
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}

/// `Path::starts_with` compares whole components, so `/workspace-2` is not inside `/workspace`.
fn within(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}

/// The lexically normal absolute form of `text`, relative ones from `base` (absolute, normal).
///
/// # Errors
/// What makes the text unfit to be judged.
pub fn resolve(text: &str, base: &Path) -> Result<PathBuf, &'static str> {
    if text.contains('\0') {
        return Err("NUL in a path");
    }
    if is_file_uri(text) {
        return Err("a `file:` URI is not judged as a path");
    }
    if text.contains("//") {
        return Err("empty component (`//`) in a path");
    }
    let mut path = if text.starts_with('/') {
        PathBuf::from("/")
    } else {
        base.to_path_buf()
    };
    for component in text.split('/') {
        match component {
            "" | "." => {}
            ".." => return Err("`..` in a path"),
            _ if component.starts_with('~') => return Err("`~` in a path"),
            _ => path.push(component),
        }
    }
    Ok(path)
}

/// The arguments that are paths, as given: JSON pointer and text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// The call's own working directory; relative paths start there.
    pub workdirs: Vec<(String, String)>,
    /// All others.
    pub paths: Vec<(String, String)>,
}

/// Collects the arguments that are paths, unresolved: for who must look at the files themselves.
#[must_use]
pub fn named(arguments: &Map<String, Value>, schema: Option<&Value>) -> Named {
    let mut found = Collector::default();
    found.object(arguments, schema, &mut String::new(), 0);
    Named {
        workdirs: found.workdirs,
        paths: found.paths,
    }
}

/// JSON pointer and text of every argument that is a path, the call's own working directory among them.
pub(crate) fn arguments(arguments: &Map<String, Value>, schema: Option<&Value>) -> Vec<(String, String)> {
    let mut found = Collector::default();
    found.object(arguments, schema, &mut String::new(), 0);
    found.workdirs.append(&mut found.paths);
    found.workdirs
}

fn is_file_uri(text: &str) -> bool {
    text.get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}

#[derive(Default)]
struct Collector {
    /// JSON pointer and text.
    paths: Vec<(String, String)>,
    workdirs: Vec<(String, String)>,
    refused: Option<String>,
}

impl Collector {
    fn object(
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
            let folded = fold(key);
            match value {
                Value::String(text) if depth == 0 && WORKDIRS.contains(&folded.as_str()) => {
                    self.workdirs.push((pointer.clone(), text.clone()));
                }
                _ => {
                    let named =
                        is_path_name(&folded) || schema.is_some_and(|schema| has_path_format(schema, key));
                    self.value(value, named, pointer, depth + 1);
                }
            }
            pointer.truncate(length);
        }
    }

    fn value(&mut self, value: &Value, named: bool, pointer: &mut String, depth: usize) {
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
                    self.value(item, named, pointer, depth + 1);
                    pointer.truncate(length);
                }
            }
            Value::Object(map) => self.object(map, None, pointer, depth),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Lower case, without `_` and `-`.
fn fold(key: &str) -> String {
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
        || is_file_uri(text)
        || text.split('/').any(|component| component == "..")
}
