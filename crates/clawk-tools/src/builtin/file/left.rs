//! What a walk through folders leaves out: what the plan denies, what the rules have a stricter word for, and further names of
//! files that have one there.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::root::Root;
use super::{FileTool, FileToolStop, Job};

/// Entries of closed places that are looked through for files of several names; beyond, every file of several names is closed.
const MAX_ENTRIES: usize = 100_000;

/// Files of several names that have one in a closed place. Found outside of the box, which covers those places.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum HardLinkedFiles {
    /// Device and inode of each.
    These(HashSet<(u64, u64)>),
    /// There are too many files to tell.
    Unknown,
}

impl Default for HardLinkedFiles {
    fn default() -> Self {
        Self::These(HashSet::new())
    }
}

impl Job {
    /// Looks for files that must not be read by another name, where this job could read one. Blocking.
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
            self.linked = linked(self.apart.out.iter().cloned().chain(denied).collect());
        }
        self
    }

    /// Whether what is at `named`, really at `real`, is left out of a walk.
    pub(super) fn leaves_out(&self, named: &Path, real: &Path, stat: &Stat) -> bool {
        let closed = |path: &Path| self.apart.leaves_out(path) || self.filesystem.denies(path, &self.workdir);
        closed(named) || closed(real) || self.is_linked(stat)
    }

    /// A regular file for reading that is not closed by another of its names.
    pub(super) fn file(
        &self,
        root: &Root<'_>,
        below: &Path,
        write: bool,
    ) -> Result<(File, Stat), FileToolStop> {
        let (file, stat) = root.file(below, write)?;
        if self.is_linked(&stat) {
            return Err(FileToolStop::Failed(format!(
                "`{}` is another name of a file that the policy or the sandbox closes",
                root.shown(below)
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

fn linked(mut open: Vec<PathBuf>) -> HardLinkedFiles {
    let mut files = HashSet::new();
    let mut left = MAX_ENTRIES;
    while let Some(path) = open.pop() {
        let Some(rest) = left.checked_sub(1) else {
            return HardLinkedFiles::Unknown;
        };
        left = rest;
        // silent-ok: what is not there, or can't be looked at, has no name that could be found
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

/// What is said of entries that were left out.
pub(super) fn note(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "\n[1 entry was left out: a rule or the sandbox closes it to this call]".to_owned(),
        many => format!("\n[{many} entries were left out: a rule or the sandbox closes them to this call]"),
    }
}
