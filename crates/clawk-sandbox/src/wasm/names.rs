//! A file with several names is denied by any of them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::GuestFileAccess;

/// The most files that are looked at for one that is opened; beyond that it is taken as denied.
const MAX_LOOKED_AT: usize = 200_000;

/// Device and inode, and how many names there are.
pub(super) struct HardLinkTarget {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) names: u64,
}

/// Whether one of a file's names is denied, or lies below something denied; also one beyond what the guest sees. True where that
/// can't be found out.
pub(super) fn any_denied(walls: &GuestFileAccess, wanted: &HardLinkTarget) -> bool {
    let mut left = MAX_LOOKED_AT;
    let mut seen = 0;
    let hidden = walls.denied_places().map(|place| (place, true));
    let shown = walls.shown_places().map(|place| (place, false));
    // By its places below: what is denied comes first, and counts once more in a root.
    hidden
        .chain(shown)
        .any(|(place, denied)| below(walls, place, denied, wanted, &mut left, &mut seen))
}

fn below(
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
        let denied = denied || walls.covers(&path);
        if meta.is_file() && (meta.dev(), meta.ino()) == (wanted.device, wanted.inode) {
            if denied {
                return true;
            }
            *seen += 1;
        } else if meta.is_dir() && !is_kernels(&path) {
            match std::fs::read_dir(&path) {
                Ok(listing) => open.extend(listing.flatten().map(|entry| (entry.path(), denied))),
                // What can't be looked into may hold a name.
                Err(_) if denied => return true,
                Err(_) => {} // silent-ok: a folder that we can't read shows its files to nobody
            }
        }
    }
    false
}

/// No file of a disk is in there.
fn is_kernels(path: &Path) -> bool {
    super::files::NEVER.iter().any(|never| path.starts_with(never))
}
