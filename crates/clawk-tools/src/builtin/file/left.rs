//! What a folder walk excludes: paths that the plan denies, paths with stricter policy rules, and other hard links to those files.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::root::Root;
use super::{FileTool, FileToolStop, Job};

/// How many entries of closed folders are searched for files with several hard links. Above this limit, every file with several
/// hard links counts as closed.
const MAX_ENTRIES: usize = 100_000;

/// Files that also have a hard link in a closed folder. They are found outside the sandbox, because the sandbox hides these
/// folders.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum HardLinkedFiles {
    /// Device and inode of each file.
    These(HashSet<(u64, u64)>),
    /// There are too many files to list.
    Unknown,
}

impl Default for HardLinkedFiles {
    fn default() -> Self {
        Self::These(HashSet::new())
    }
}

impl Job {
    /// Finds files that must not be read under another hard link, if this job could read one. Blocking.
    pub(super) fn with_linked(mut self) -> Self {
        let named = || {
            let path = self.arguments.get("path").and_then(Value::as_str)?;
            self.workdir.join(path).metadata().ok() // silent-ok: what is not there is not read
        };
        let reads = match self.tool {
            FileTool::Search => true,
            FileTool::Read | FileTool::Edit => named().is_some_and(|about| about.nlink() > 1),
            FileTool::Write | FileTool::List => false,
        };
        if reads {
            let denied = self.filesystem.denied.iter();
            let denied = denied.map(|denied| self.workdir.join(denied.text()));
            self.linked = find_hard_links(self.apart.out.iter().cloned().chain(denied).collect());
        }
        self
    }

    /// Whether a walk excludes the entry `named`, whose real path is `real`.
    pub(super) fn leaves_out(&self, named: &Path, real: &Path, stat: &Stat) -> bool {
        let closed =
            |path: &Path| self.apart.leaves_out(path) || self.filesystem.denies_path(path, &self.workdir);
        closed(named) || closed(real) || self.is_linked(stat)
    }

    /// Opens a regular file for reading, unless another of its hard links is closed.
    pub(super) fn open_file(
        &self,
        root: &Root<'_>,
        below: &Path,
        write: bool,
    ) -> Result<(File, Stat), FileToolStop> {
        let (file, stat) = root.open_file(below, write)?;
        if self.is_linked(&stat) {
            return Err(FileToolStop::Failed(format!(
                "`{}` is another name of a file that the policy or the sandbox closes",
                root.display_path(below)
            )));
        }
        Ok((file, stat))
    }

    fn is_linked(&self, stat: &Stat) -> bool {
        let several = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1;
        several
            && match &self.linked {
                HardLinkedFiles::These(files) => files.contains(&(stat.st_dev, stat.st_ino)),
                HardLinkedFiles::Unknown => true,
            }
    }
}

fn find_hard_links(mut open: Vec<PathBuf>) -> HardLinkedFiles {
    let mut files = HashSet::new();
    let mut left = MAX_ENTRIES;
    while let Some(path) = open.pop() {
        let Some(rest) = left.checked_sub(1) else {
            return HardLinkedFiles::Unknown;
        };
        left = rest;
        // silent-ok: a path that does not exist or can't be read has no links to find
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        if about.is_dir() {
            let listing = path.read_dir().into_iter().flatten().flatten();
            open.extend(listing.map(|entry| entry.path()).take(MAX_ENTRIES));
        } else if about.is_file() && about.nlink() > 1 {
            files.insert((about.dev(), about.ino()));
        }
    }
    HardLinkedFiles::These(files)
}

/// The note about excluded entries.
pub(super) fn left_out_note(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "\n[1 entry was left out: a rule or the sandbox closes it to this call]".to_owned(),
        many => format!("\n[{many} entries were left out: a rule or the sandbox closes them to this call]"),
    }
}
