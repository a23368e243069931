//! Checks hard links: a file with several names is denied if any of its names is.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::GuestFileAccess;

/// The maximum number of files that are checked for one opened file. Beyond that, the file counts as denied.
const MAX_LOOKED_AT: usize = 200_000;

/// A file's device and inode, and the number of its names.
pub(super) struct HardLinkTarget {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) names: u64,
}

/// Whether one of a file's names is denied or is below something denied, even outside what the guest sees. Also true if that can't
/// be determined.
pub(super) fn any_denied(walls: &GuestFileAccess, wanted: &HardLinkTarget) -> bool {
    let mut left = MAX_LOOKED_AT;
    let mut seen = 0;
    let hidden = walls.denied_places().map(|place| (place, true));
    let shown = walls.shown_places().map(|place| (place, false));
    // Denied places come first; the same place inside a root is counted again.
    hidden
        .chain(shown)
        .any(|(place, denied)| may_have_denied_name(walls, place, denied, wanted, &mut left, &mut seen))
}

fn may_have_denied_name(
    walls: &GuestFileAccess,
    place: PathBuf,
    denied: bool,
    wanted: &HardLinkTarget,
    left: &mut usize,
    seen: &mut u64,
) -> bool {
    let mut open = vec![(place, denied)];
    while let Some((path, denied)) = open.pop() {
        // All of its names are known, and none was denied.
        if *seen >= wanted.names {
            return false;
        }
        if *left == 0 {
            return true;
        }
        *left -= 1;
        let Ok(meta) = path.symlink_metadata() else {
            continue; // It has gone, and so has its name.
        };
        let denied = denied || walls.is_denied(&path);
        if meta.is_file() && (meta.dev(), meta.ino()) == (wanted.device, wanted.inode) {
            if denied {
                return true;
            }
            *seen += 1;
        } else if meta.is_dir() && !is_kernels(&path) {
            match std::fs::read_dir(&path) {
                Ok(listing) => open.extend(listing.flatten().map(|entry| (entry.path(), denied))),
                // A folder that can't be read may contain a name.
                Err(_) if denied => return true,
                Err(_) => {} // silent-ok: a folder that we can't read shows its files to nobody
            }
        }
    }
    false
}

/// Whether this is a kernel file system, which contains no files of a disk.
fn is_kernels(path: &Path) -> bool {
    super::files::NEVER.iter().any(|never| path.starts_with(never))
}
