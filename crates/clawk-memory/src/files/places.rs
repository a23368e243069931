//! Which folders hold which stores: a line each in `.places.jsonl`, so that retention and the verbs find them without the manifest.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::line;

/// The file, below the folder of stores without a `path`.
const FILE: &str = ".places.jsonl";

/// One scope of one store. Below the root, the folder is written relative to it, so that a root can be moved and copied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct FolderScopeLocation {
    pub(super) store: String,
    /// As [`clawk_core::ports::Scope::part`] names it.
    pub(super) scope: String,
    pub(super) folder: PathBuf,
}

/// All that are known and still there, in order.
pub(super) fn known(root: &Path) -> io::Result<BTreeSet<FolderScopeLocation>> {
    let text = match std::fs::read_to_string(root.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    // silent-ok: a line that a crash cut is written again by the next start of its store
    let places = text
        .lines()
        .filter_map(|line| serde_json::from_str::<FolderScopeLocation>(line).ok())
        .map(|place| FolderScopeLocation {
            folder: root.join(place.folder),
            ..place
        });
    Ok(places.filter(|place| place.folder.is_dir()).collect())
}

/// Notes a part, once.
pub(super) fn note(root: &Path, store: &str, scope: &str, folder: &Path) -> io::Result<()> {
    let mut place = FolderScopeLocation {
        store: store.to_owned(),
        scope: scope.to_owned(),
        folder: folder.to_owned(),
    };
    line::make_folder(folder)?;
    if known(root)?.contains(&place) {
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
    // Behind a line that was cut, too.
    writeln!(file, "\n{}", serde_json::to_string(&place)?)?;
    file.sync_data()
}
