//! `conditions.path_within`: which arguments of a call are paths, and whether they are inside a root.
//!
//! **What is a path.** In the arguments, at any depth (at most [`MAX_DEPTH`]):
//! 1. a string, or an array of strings, under a key that names a path. Keys are compared without case, `_` and `-`:
//!    `path`, `file`, `filename`, `dir`, `directory`, `folder`, `source`, `src`, `destination`, `dest`, `dst`, `workdir`,
//!    `workingdirectory`, `cwd`, `root`, `base`, `location`, each also in the plural, and every key that ends in
//!    `path`, `paths`, `file`, `files`, `filename`, `dir`, `dirs`, `directory` or `directories` (`output_path`);
//! 2. a top-level string, or array of strings, whose property in the tool's `input_schema` has (itself or in `items`) a
//!    `format` of `path`, `file`, `file-path`, `filepath`, `directory`, `directory-path`, `dir` or `folder`;
//! 3. any other string without white space that looks like a path: it begins with `/`, `~`, `./`, `../` or `file:`, or has
//!    a `..` component. So a tool can't avoid the check by an unusual key.
//!
//! A call without any path acts in its working directory, which then is its path. For rules that deny or ask, other strings
//! count too, if they are inside a root and either have a separator or name something that exists.
//!
//! **Where a path is.** Each path is checked twice: by its text, and by the real location that would be opened. In the text,
//! `.` components are removed. NUL, `..`, an empty component (`//`), a component that begins with `~`, and `file:` are
//! *refused*, never resolved. Relative paths start at the call's own `workdir`/`cwd` argument, or else at
//! [`Subject::workdir`](crate::PolicySubject). The caller passes in the real locations ([`RealLocations`]): the kernel has
//! followed the links. Without them only the text is checked.
//!
//! **How the check fails.** For `allow` and `audit-only` rules, every path must be inside, by text and by real location, and
//! none may be refused. For `deny` and `require-approval` rules, one path that is inside, by text or by real location, or one
//! refused path, is enough. Command lines are not paths: a rule that allows `shell` with `path_within` limits only its
//! working directory.

mod collect;
mod places;

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use collect::PathCollector;
pub(crate) use collect::path_arguments;
pub use collect::{NamedPaths, named_paths};
pub use places::{RealLocation, RealLocations, RootPlace, RuleRoots};

/// Arguments nested deeper count as a refused path.
pub const MAX_DEPTH: usize = 64;

/// The largest number of paths and working directories in one call; a call with more is refused.
const MAX_PATHS: usize = 1024;
const MAX_BASES: usize = 4;

/// The paths of one call, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPaths {
    /// Absolute, lexically normalized paths. Empty only if something was refused.
    inside: Vec<PathBuf>,
    /// The real location of each path; empty without facts.
    places: Vec<PathBuf>,
    /// Strings that may be paths, by text and by real location.
    guesses: Vec<Vec<PathBuf>>,
    /// Paths that lead to another location than they name, with that location; refused ones too.
    elsewhere: Vec<(PathBuf, Vec<PathBuf>)>,
    /// There were more strings than are checked.
    overfull: bool,
    /// Why a path could not be resolved, with the JSON pointer of the first such argument.
    refused: Option<String>,
}

impl CallPaths {
    /// Collects and resolves the paths of `arguments`.
    #[must_use]
    pub fn from_arguments(
        arguments: &Map<String, Value>,
        schema: Option<&Value>,
        workdir: &Path,
        places: Option<&RealLocations>,
    ) -> Self {
        let found = PathCollector::from_arguments(arguments, schema);
        let mut paths = Self {
            inside: Vec::new(),
            places: Vec::new(),
            guesses: Vec::new(),
            elsewhere: Vec::new(),
            overfull: found.overfull,
            refused: found.refused.clone(),
        };
        if !workdir.is_absolute() {
            paths.refuse_with("the working directory is not absolute".to_owned());
            return paths;
        }
        if found.paths.len() > MAX_PATHS || found.workdirs.len() > MAX_BASES {
            paths.refuse_with(format!(
                "it names more than {MAX_PATHS} paths or {MAX_BASES} working directories"
            ));
            return paths;
        }
        let mut bases = Vec::new();
        for (key, text) in &found.workdirs {
            match resolve_lexically(text, workdir) {
                Ok(base) => bases.push(base),
                Err(why) => paths.refuse_with(format!("`{key}`: {why}")),
            }
        }
        if bases.is_empty() {
            bases.push(workdir.components().collect());
        }
        for text in &found.guesses {
            let counted = bases.iter().filter_map(|base| guess_path(text, base, places));
            paths.guesses.extend(counted);
        }
        for (pointer, text) in &found.paths {
            for base in &bases {
                match resolve_lexically(text, base) {
                    Ok(path) => paths.inside.push(path),
                    Err(why) => paths.refuse_with(format!("`{pointer}`: {why}")),
                }
                let path = base.join(strip_file_scheme(text));
                if let Some(RealLocation { at, .. }) = places.and_then(|places| places.location_of(&path))
                    && at != [lexical_path(&path)]
                {
                    paths.elsewhere.push((path, at));
                }
            }
        }
        if found.paths.is_empty() || !found.workdirs.is_empty() {
            paths.inside.append(&mut bases);
        }
        if let Some(places) = places {
            paths.follow_locations(places);
        }
        paths
    }

    /// Adds the real locations of the paths. A path without a known location is refused.
    fn follow_locations(&mut self, places: &RealLocations) {
        for path in &self.inside {
            let unknown = match places.location_of(path) {
                Some(RealLocation {
                    at, unknown: None, ..
                }) => {
                    self.places.extend(at);
                    continue;
                }
                Some(place) => place.unknown,
                None => None,
            };
            let why = unknown.unwrap_or_else(|| "nobody looked where it leads".to_owned());
            self.refused
                .get_or_insert_with(|| format!("`{}`: {why}", path.display()));
        }
    }

    fn refuse_with(&mut self, why: String) {
        self.refused.get_or_insert(why);
    }

    /// Whether every path is inside one of the roots, by text and by real location, and none is refused. This makes a permissive
    /// rule apply. A guessed path that is inside by its text must not lead out through a link.
    #[must_use]
    pub fn all_within(&self, roots: &RuleRoots) -> bool {
        let out = |guess: &Vec<PathBuf>| match guess.split_first() {
            Some((words, places)) => {
                roots.name(words) && !places.iter().all(|place| roots.contains_place(place))
            }
            None => false,
        };
        self.refused.is_none() && self.first_outside(roots).is_none() && !self.guesses.iter().any(out)
    }

    /// Whether a path is inside one of the roots, by text or by real location, or is refused. This makes a restrictive rule apply.
    /// `guesses`: strings that only may be paths count too.
    #[must_use]
    pub fn any_within(&self, roots: &RuleRoots, guesses: bool) -> bool {
        let touches = |path: &PathBuf| roots.touches_path(path);
        self.refused.is_some()
            || self.inside.iter().chain(&self.places).any(touches)
            || (guesses && (self.overfull || self.guesses.iter().flatten().any(touches)))
    }

    /// Whether there are strings that only may be paths.
    pub(crate) const fn has_guesses(&self) -> bool {
        self.overfull || !self.guesses.is_empty()
    }

    /// The first path or location outside the roots, for explanations.
    #[must_use]
    pub fn first_outside(&self, roots: &RuleRoots) -> Option<&Path> {
        let named = self.inside.iter().find(|path| !roots.name(path));
        let place = || {
            self.places
                .iter()
                .find(|path| roots.is_looked_up() && !roots.contains_place(path))
        };
        named.or_else(place).map(PathBuf::as_path)
    }

    /// Why a path was refused, with its pointer.
    #[must_use]
    pub fn refusal_reason(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The paths by their text.
    #[must_use]
    pub fn named_paths(&self) -> &[PathBuf] {
        &self.inside
    }

    /// The paths that lead to another location than they name, with that location.
    #[must_use]
    pub fn redirected_paths(&self) -> &[(PathBuf, Vec<PathBuf>)] {
        &self.elsewhere
    }

    /// The known locations of the paths.
    #[must_use]
    pub fn known_locations(&self) -> &[PathBuf] {
        &self.places
    }
}

/// A string that may be a path, by text and then by location: it has a separator or names something that exists.
fn guess_path(text: &str, base: &Path, places: Option<&RealLocations>) -> Option<Vec<PathBuf>> {
    let path = base.join(strip_file_scheme(text));
    let found = places.and_then(|places| places.location_of(&path));
    let exists = found.as_ref().is_some_and(|place| place.exists);
    (exists || text.contains('/')).then(|| {
        let mut all = vec![lexical_path(&path)];
        all.extend(found.into_iter().flat_map(|place| place.at));
        all
    })
}

/// The paths to look up for a decision: those that the call names, then all other strings that may be paths. They are absolute and
/// otherwise unchanged.
#[must_use]
pub fn paths_to_resolve(
    arguments: &Map<String, Value>,
    schema: Option<&Value>,
    workdir: &Path,
) -> Vec<PathBuf> {
    let found = PathCollector::from_arguments(arguments, schema);
    if found.paths.len() > MAX_PATHS || found.workdirs.len() > MAX_BASES {
        return Vec::new();
    }
    let mut bases: Vec<PathBuf> = found
        .workdirs
        .iter()
        .filter_map(|(_, text)| resolve_lexically(text, workdir).ok()) // silent-ok: what is refused is not looked up
        .collect();
    if bases.is_empty() {
        bases.push(workdir.to_path_buf());
    }
    let mut all = bases.clone();
    for base in &bases {
        // Unchanged, because only a lookup that follows links can resolve `..`.
        all.extend(
            found
                .paths
                .iter()
                .map(|(_, text)| base.join(strip_file_scheme(text))),
        );
        all.extend(
            found
                .guesses
                .iter()
                .map(|text| base.join(strip_file_scheme(text))),
        );
    }
    all
}

/// Strips the scheme: `file:` URIs name files too.
fn strip_file_scheme(text: &str) -> &str {
    text.strip_prefix("file://").unwrap_or(text)
}

/// Removes `.` and `..` by the text alone.
fn lexical_path(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => out.push(part),
        }
    }
    out
}

/// The absolute, lexically normalized form of `text`. A relative path starts at `base`, which is absolute and normalized.
///
/// # Errors
/// Why the path can't be judged.
pub fn resolve_lexically(text: &str, base: &Path) -> Result<PathBuf, &'static str> {
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

fn is_file_uri(text: &str) -> bool {
    text.get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}
