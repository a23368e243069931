//! Records which folder holds which store, one line each in `.places.jsonl`. Retention and commands find stores through it without
//! the manifest.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::line;

/// The file's name; it is in the folder of stores without a `path`.
const FILE: &str = ".places.jsonl";

/// The location of one scope of one store. A folder below the root is written relative to the root, so that the root can be moved
/// or copied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct FolderScopeLocation {
    pub(super) store: String,
    /// As [`clawk_core::ports::Scope::part_name`] names it.
    pub(super) scope: String,
    pub(super) folder: PathBuf,
}

/// All recorded locations that still exist, sorted.
pub(super) fn known_scopes(root: &Path) -> io::Result<BTreeSet<FolderScopeLocation>> {
    let text = match std::fs::read_to_string(root.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    // silent-ok: if a crash cut a line, the next start of its store writes it again
    let places = text
        .lines()
        .filter_map(|line| serde_json::from_str::<FolderScopeLocation>(line).ok())
        .map(|place| FolderScopeLocation {
            folder: root.join(place.folder),
            ..place
        });
    Ok(places.filter(|place| place.folder.is_dir()).collect())
}

/// Records a location, if it is not recorded yet.
pub(super) fn note_scope(root: &Path, store: &str, scope: &str, folder: &Path) -> io::Result<()> {
    let mut place = FolderScopeLocation {
        store: store.to_owned(),
        scope: scope.to_owned(),
        folder: folder.to_owned(),
    };
    line::make_folder(folder)?;
    if known_scopes(root)?.contains(&place) {
        return Ok(());
    }
    if let Ok(below) = folder.strip_prefix(root) {
        place.folder = below.to_owned();
    }
    line::make_folder(root)?;
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(root.join(FILE))?;
    // Starts with a newline, in case a crash cut the line before.
    writeln!(file, "\n{}", serde_json::to_string(&place)?)?;
    file.sync_data()
}
