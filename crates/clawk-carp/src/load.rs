//! Loads Atlases from disk; no other module of this crate accesses files.
//!
//! A context file must be inside the Atlas's directory, without `..` and without symbolic links on its path.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Component, Path, PathBuf};

use crate::atlas::{Atlas, ContextFileContent, bounds};
use crate::fault::{FaultCollector, InputFaults, InputPath};

/// Why an Atlas could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The manifest can't be read.
    #[error("cannot read `{path}`: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        cause: io::Error,
    },
    /// The manifest, or a file that it names, has faults.
    #[error("`{path}` is not a valid Atlas: {faults}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All faults.
        faults: InputFaults,
    },
}

/// Loads an Atlas from a directory with `atlas.json`, from that file, or from a single file with another name. A single file has no
/// directory, so its context files count as missing.
///
/// # Errors
/// The manifest can't be read; or all faults of it and of the files it names.
pub fn load_atlas(path: &Path) -> Result<Atlas, LoadError> {
    let (manifest, root) = if path.is_dir() {
        (path.join("atlas.json"), Some(path.to_owned()))
    } else if path.file_name().is_some_and(|name| name == "atlas.json") {
        (
            path.to_owned(),
            Some(path.parent().map_or_else(PathBuf::new, Path::to_owned)),
        )
    } else {
        (path.to_owned(), None)
    };
    let failed = |cause| LoadError::Io {
        path: manifest.clone(),
        cause,
    };
    let limit = u64::try_from(bounds::MANIFEST_BYTES).unwrap_or(u64::MAX);
    let bytes = read_at_most(&manifest, limit + 1).map_err(failed)?;
    let mut left = bounds::CONTEXT_BYTES;
    let atlas = Atlas::read(&bytes, |name| match &root {
        Some(root) => context_file(root, name, &mut left),
        None => ContextFileContent::Missing,
    });
    let mut atlas = atlas.map_err(|faults| LoadError::Invalid {
        path: manifest.clone(),
        faults,
    })?;
    if let Some(root) = &root {
        warn_of_unread(&mut atlas, root);
    }
    Ok(atlas)
}

/// Warns that policies in separate files are not in force, and that folders for other programs are not read.
fn warn_of_unread(atlas: &mut Atlas, root: &Path) {
    let mut report = FaultCollector::default();
    for (folder, instead) in [
        ("adapters", "`executor` of an action says what runs it"),
        (
            "tests",
            "`clawk policy test` and `clawk trace replay` test an agent with its Atlases",
        ),
    ] {
        let has_files = fs::read_dir(root.join(folder)).is_ok_and(|mut entries| entries.next().is_some());
        if has_files {
            let message = format!("files in `{folder}/` are not read; {instead}");
            report.add_warning(&InputPath::Root.key(folder), "not_read", message);
        }
    }
    for folder in ["policies", "actions"] {
        let holds_json = fs::read_dir(root.join(folder)).is_ok_and(|entries| {
            entries.flatten().any(|entry| {
                Path::new(&entry.file_name())
                    .extension()
                    .is_some_and(|extension| extension == "json")
            })
        });
        if holds_json {
            let message = format!("files in `{folder}/` are not read; what counts stands in `atlas.json`");
            report.add_warning(&InputPath::Root.key(folder), "not_read", message);
        }
    }
    atlas.warnings.append(&mut report.warnings);
}

fn read_at_most(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Checked before it is opened: opening a pipe would block without end.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a pack's file: as written from the Atlas's directory, or else from `context/` in it.
fn context_file(root: &Path, name: &str, left: &mut u64) -> ContextFileContent {
    let relative = Path::new(name);
    let plain = relative
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !plain || name.contains(['\\', '\0']) {
        return ContextFileContent::Refused("lies outside the Atlas's directory".to_owned());
    }
    for base in [root.to_owned(), root.join("context")] {
        match path_inside(&base, root, relative) {
            Ok(Some(path)) => return read_text(&path, left),
            Ok(None) => {}
            Err(why) => return ContextFileContent::Refused(why),
        }
    }
    ContextFileContent::Missing
}

/// The path, if it is a regular file. An error if a link is on the path.
fn path_inside(base: &Path, root: &Path, relative: &Path) -> Result<Option<PathBuf>, String> {
    let mut path = root.to_owned();
    let from_root = base.strip_prefix(root).unwrap_or(Path::new("")).join(relative);
    for part in from_root.components() {
        if part == Component::CurDir {
            continue;
        }
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_symlink() => return Err("is reached through a symbolic link".to_owned()),
            Ok(_) => {}
            Err(cause)
                if matches!(
                    cause.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(cause) => return Err(format!("cannot be read: {cause}")),
        }
    }
    match fs::symlink_metadata(&path) {
        Ok(found) if found.is_file() => Ok(Some(path)),
        Ok(_) => Err("is not a regular file".to_owned()),
        Err(cause) => Err(format!("cannot be read: {cause}")),
    }
}

fn read_text(path: &Path, left: &mut u64) -> ContextFileContent {
    let bytes = match read_at_most(path, bounds::FILE_BYTES + 1) {
        Ok(bytes) => bytes,
        Err(cause) => return ContextFileContent::Refused(format!("cannot be read: {cause}")),
    };
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if length > bounds::FILE_BYTES {
        return ContextFileContent::Refused(format!("is larger than {} bytes", bounds::FILE_BYTES));
    }
    if length > *left {
        return ContextFileContent::Refused(format!(
            "exceeds the {} bytes of context that an Atlas may hold",
            bounds::CONTEXT_BYTES
        ));
    }
    *left -= length;
    match String::from_utf8(bytes) {
        Ok(text) => ContextFileContent::Text(text),
        Err(_) => ContextFileContent::Refused("is not UTF-8 text".to_owned()), // silent-ok: the position says nothing to the reader
    }
}
