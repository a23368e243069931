//! Reads files; no other module does. References stay inside the manifest's directory tree (R9).

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use globset::{Glob, GlobMatcher};

use crate::diagnostic::quote_text;

/// The largest file, bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 4 << 20;
/// The largest number of files in one manifest, and of directory entries searched for one glob.
pub(crate) const MAX_FILES: usize = 10_000;
/// The largest total size of one manifest's files, bytes.
const MAX_TOTAL_BYTES: u64 = 64 << 20;

/// Why a reference or file could not be used: code, message, advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileRefusal {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

fn refuse_file<T>(code: &'static str, message: impl Into<String>, help: &str) -> Result<T, FileRefusal> {
    let help = (!help.is_empty()).then(|| help.to_owned());
    Err(FileRefusal {
        code,
        message: message.into(),
        help,
    })
}

/// A file to read: its path, and its name for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedFile {
    /// The canonical path.
    pub(crate) path: PathBuf,
    pub(crate) shown: PathBuf,
}

/// Finds and reads a manifest's files.
#[derive(Debug)]
pub(crate) struct ManifestFileLoader {
    /// The manifest's directory, canonical and as shown; `None`: no file may be read.
    base: Option<(PathBuf, PathBuf)>,
    allow_outside: bool,
    registries: BTreeMap<String, PathBuf>,
    bytes_left: u64,
}

impl ManifestFileLoader {
    /// A loader for files below `dir`. Messages show paths as they were given.
    pub(crate) fn new(
        dir: Option<&Path>,
        allow_outside: bool,
        registries: BTreeMap<String, PathBuf>,
    ) -> Result<Self, FileRefusal> {
        let base = match dir {
            None => None,
            Some(dir) => {
                let canonical = std::fs::canonicalize(dir).or_else(|error| refuse_unreadable(dir, &error))?;
                Some((canonical, dir.to_owned()))
            }
        };
        Ok(Self {
            base,
            allow_outside,
            registries,
            bytes_left: MAX_TOTAL_BYTES,
        })
    }

    /// The manifest's directory.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.base.as_ref().map(|(canonical, _)| canonical.as_path())
    }

    /// The files that a path or glob names, sorted.
    pub(crate) fn find_files(&self, reference: &str) -> Result<Vec<ResolvedFile>, FileRefusal> {
        let Some((base, shown)) = &self.base else {
            let help = "send the primitive `inline`, or start the agent with `--manifest-root DIR`";
            return refuse_file(
                "file-refused",
                format!(
                    "file references such as {} are refused here",
                    quote_text(reference)
                ),
                help,
            );
        };
        if reference.trim().is_empty() || reference.contains('\0') {
            return refuse_file("bad-reference", "an empty file reference", "");
        }
        self.check_lexically(reference)?;
        let relative = Path::new(reference);
        if !reference.contains(['*', '?', '[', '{']) {
            return self
                .resolve_file(
                    &base.join(relative),
                    normalize_path(&shown.join(relative)),
                    reference,
                )
                .map(|found| vec![found]);
        }
        let mut matches = Vec::new();
        let mut budget = MAX_FILES;
        let parts: Vec<&str> = reference
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        let start = if relative.is_absolute() {
            PathBuf::from("/")
        } else {
            PathBuf::new()
        };
        expand_pattern(base, &start, &parts, &mut matches, &mut budget)?;
        matches.sort();
        matches.dedup();
        if matches.is_empty() {
            let message = format!("{} matches no file", quote_text(reference));
            return refuse_file(
                "empty-glob",
                message,
                "the glob is relative to the manifest's directory",
            );
        }
        matches
            .iter()
            .map(|path| {
                self.resolve_file(
                    &base.join(path),
                    normalize_path(&shown.join(path)),
                    &path.to_string_lossy(),
                )
            })
            .collect()
    }

    /// The folder that a pattern searches, in the form for messages; `None`: the reference is not a pattern.
    pub(crate) fn looks_into(&self, reference: &str) -> Option<PathBuf> {
        let (_, shown) = self.base.as_ref()?;
        let plain = |part: &&str| !part.contains(['*', '?', '[', '{']);
        let fixed: PathBuf = reference.split_inclusive('/').take_while(plain).collect();
        (fixed != Path::new(reference)).then(|| normalize_path(&shown.join(fixed)))
    }

    /// Refuses a reference whose text leaves the tree, so that nothing outside is even searched.
    fn check_lexically(&self, reference: &str) -> Result<(), FileRefusal> {
        if self.allow_outside || stays_inside(reference) {
            Ok(())
        } else {
            self.refuse_outside(reference)
        }
    }

    /// Checks an agent's context file: it must be inside the tree by its text, and by its links if it exists. `allow_outside` does
    /// not apply here: the agent reads and writes context files only in the tree.
    pub(crate) fn check_context_file(&self, reference: &str) -> Result<(), FileRefusal> {
        if reference.trim().is_empty() || reference.contains('\0') {
            return refuse_file("bad-reference", "an empty file name", "");
        }
        let outside = || {
            let message = format!("{} leads outside the manifest's directory", quote_text(reference));
            refuse_file(
                "outside-tree",
                message,
                "an agent keeps its context files in its directory",
            )
        };
        if !stays_inside(reference) {
            return outside();
        }
        let Some((base, _)) = &self.base else {
            return Ok(());
        };
        match std::fs::canonicalize(base.join(reference)) {
            Ok(path) if !path.starts_with(base) => outside(),
            _ => Ok(()), // it may be made later
        }
    }

    fn refuse_outside<T>(&self, reference: &str) -> Result<T, FileRefusal> {
        let message = format!("{} leads outside the manifest's directory", quote_text(reference));
        refuse_file(
            "outside-tree",
            message,
            "move the file into the directory, or pass `--allow-outside`",
        )
    }

    fn resolve_file(
        &self,
        path: &Path,
        shown: PathBuf,
        reference: &str,
    ) -> Result<ResolvedFile, FileRefusal> {
        let canonical =
            std::fs::canonicalize(path).or_else(|error| refuse_unreadable(Path::new(reference), &error))?;
        let inside = self
            .base
            .as_ref()
            .is_some_and(|(base, _)| canonical.starts_with(base));
        if !inside && !self.allow_outside {
            return self.refuse_outside(reference); // through a symbolic link
        }
        Ok(ResolvedFile {
            path: canonical,
            shown,
        })
    }

    /// Finds the file of a registry URI: `NAMESPACE/NAME@VERSION.yaml` or `NAMESPACE/NAME/VERSION.yaml`. A registry with the same
    /// name as the namespace may omit the namespace folder.
    pub(crate) fn find_registered(
        &self,
        namespace: &str,
        name: &str,
        version: &str,
    ) -> Result<ResolvedFile, FileRefusal> {
        let uri = format!("`claw://registry/{namespace}/{name}@{version}`");
        if self.registries.is_empty() {
            let message = format!("{uri} cannot be resolved: no registry is configured");
            return refuse_file(
                "no-registry",
                message,
                "add one to `clawk.toml`: `[registries]` then `default = \"DIR\"`",
            );
        }
        for (registry, dir) in &self.registries {
            let Ok(base) = std::fs::canonicalize(dir) else {
                continue;
            };
            let mut stems = vec![
                format!("{namespace}/{name}@{version}"),
                format!("{namespace}/{name}/{version}"),
            ];
            if registry == namespace {
                stems.extend([format!("{name}@{version}"), format!("{name}/{version}")]);
            }
            let files = stems
                .iter()
                .flat_map(|stem| ["yaml", "yml", "json"].map(|kind| format!("{stem}.{kind}")));
            for relative in files {
                let Ok(path) = std::fs::canonicalize(base.join(&relative)) else {
                    continue;
                };
                if path.starts_with(&base) {
                    return Ok(ResolvedFile {
                        path,
                        shown: dir.join(relative),
                    });
                }
            }
        }
        let names: Vec<String> = self.registries.keys().map(|name| quote_text(name)).collect();
        let help = format!(
            "looked in {} for `{namespace}/{name}@{version}.yaml` and `{namespace}/{name}/{version}.yaml`",
            names.join(", ")
        );
        refuse_file(
            "not-in-registry",
            format!("{uri} is in no configured registry"),
            &help,
        )
    }

    /// Reads a file's text up to the size limit, without a byte-order mark.
    pub(crate) fn read(&mut self, found: &ResolvedFile) -> Result<String, FileRefusal> {
        let shown = &found.shown;
        let metadata = std::fs::metadata(&found.path).or_else(|error| refuse_unreadable(shown, &error))?;
        if metadata.is_dir() {
            return refuse_file(
                "not-a-file",
                format!("{} is a folder, not a file", quote_text(&shown.to_string_lossy())),
                "name a file in it; an agent's folder has a `claw.yaml`, and `clawk init DIR` writes one",
            );
        }
        if !metadata.is_file() {
            return refuse_file(
                "not-a-file",
                format!("{} is not a regular file", quote_text(&shown.to_string_lossy())),
                "",
            );
        }
        let limit = MAX_FILE_BYTES.min(self.bytes_left);
        let file = std::fs::File::open(&found.path).or_else(|error| refuse_unreadable(shown, &error))?;
        let mut bytes = Vec::new();
        file.take(limit + 1)
            .read_to_end(&mut bytes)
            .or_else(|error| refuse_unreadable(shown, &error))?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > limit {
            let message = format!(
                "{} is larger than {} MiB",
                quote_text(&shown.to_string_lossy()),
                MAX_FILE_BYTES >> 20
            );
            return refuse_file(
                "too-large",
                message,
                "a manifest describes an agent; keep its data elsewhere",
            );
        }
        self.bytes_left -= length;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to();
                let line = error.as_bytes().iter().take(at).filter(|b| **b == b'\n').count() + 1;
                let message = format!(
                    "{} is not UTF-8 text (line {line})",
                    quote_text(&shown.to_string_lossy())
                );
                refuse_file("not-utf8", message, "save the file as UTF-8")
            }
        }
    }
}

fn refuse_unreadable<T>(path: &Path, error: &std::io::Error) -> Result<T, FileRefusal> {
    let shown = quote_text(&path.to_string_lossy());
    if error.kind() == std::io::ErrorKind::NotFound {
        return refuse_file(
            "file-not-found",
            format!("{shown} does not exist"),
            "paths are relative to the manifest's directory",
        );
    }
    refuse_file("unreadable", format!("{shown} cannot be read: {error}"), "")
}

/// The path without `.` components.
fn normalize_path(path: &Path) -> PathBuf {
    path.components()
        .filter(|component| *component != Component::CurDir)
        .collect()
}

/// The paths below `base` that match the rest of a pattern, relative to `base`.
fn expand_pattern(
    base: &Path,
    at: &Path,
    parts: &[&str],
    out: &mut Vec<PathBuf>,
    budget: &mut usize,
) -> Result<(), FileRefusal> {
    let Some((part, rest)) = parts.split_first() else {
        if base.join(at).is_file() {
            out.push(at.to_owned());
        }
        return Ok(());
    };
    if !part.contains(['*', '?', '[', '{']) {
        return expand_pattern(base, &at.join(part), rest, out, budget);
    }
    let deep = *part == "**";
    if deep {
        expand_pattern(base, at, rest, out, budget)?;
    }
    let matcher = glob_matcher(part)?;
    let Ok(entries) = std::fs::read_dir(base.join(at)) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        *budget = match budget.checked_sub(1) {
            Some(left) => left,
            None => {
                return refuse_file(
                    "too-large",
                    "the glob looks at too many files",
                    "use a narrower pattern",
                );
            }
        };
        let name = entry.file_name();
        let hidden = name.to_string_lossy().starts_with('.') && !part.starts_with('.');
        if hidden || !matcher.is_match(Path::new(&name)) {
            continue;
        }
        let next = at.join(&name);
        match (deep, rest.is_empty()) {
            // Links to directories are not followed, so `**` terminates.
            (true, _) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => {
                expand_pattern(base, &next, parts, out, budget)?
            }
            (true, true) | (false, _) => expand_pattern(base, &next, rest, out, budget)?,
            (true, false) => {}
        }
    }
    Ok(())
}

fn glob_matcher(part: &str) -> Result<GlobMatcher, FileRefusal> {
    match Glob::new(part) {
        Ok(glob) => Ok(glob.compile_matcher()),
        Err(error) => refuse_file(
            "bad-glob",
            format!("{} is not a glob: {}", quote_text(part), error.kind()),
            "",
        ),
    }
}

/// Whether a reference stays in its directory, judged by its text alone.
fn stays_inside(reference: &str) -> bool {
    let mut depth = 0_i32;
    for component in Path::new(reference).components() {
        match component {
            Component::ParentDir => depth -= 1,
            Component::Normal(_) => depth += 1,
            Component::RootDir | Component::Prefix(_) => return false,
            Component::CurDir => {}
        }
        if depth < 0 {
            return false;
        }
    }
    true
}
