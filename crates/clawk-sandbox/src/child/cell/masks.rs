//! Applies `denied_paths` to the view (R33). Existing paths are covered by an empty file or folder that nobody can open. The
//! folders above become mount points, so that the tool can't move them away from the rule. Files that are created later, or have
//! other names, are checked by the guard, which checks the real path of every opened file.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::order::SandboxEnclosure;
use super::pieces::named_error;
use super::view::{SandboxView, attach_at_root, attach_mount, copy_of, create_tmpfs, real_path};
use crate::child::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY};
use clawk_plan::plan::Denied;
use clawk_plan::preflight::path::lexical_path;

/// How many entries of mounted folders are searched for files that match a pattern. Beyond that, only the guard protects them.
const MAX_ENTRIES: usize = 50_000;

/// The covers: an empty file and an empty folder that nobody can open, on their own file system. All places of a sandbox share
/// them, because a file system per place would be most of a view's cost.
pub(super) struct MaskCovers {
    file: OwnedFd,
    folder: OwnedFd,
}

impl MaskCovers {
    /// Creates the covers. Linux before 6.15 can copy only mounted file systems, so the file system is mounted where no path leads.
    /// In mode `full` that is below the view's root, which will hide it; otherwise in a folder of that root, which the next mount
    /// there hides.
    pub(super) fn create_covers(hidden: Option<&OwnedFd>) -> io::Result<Self> {
        let store = create_tmpfs(64 << 10, "000", None)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        drop(rustix::fs::openat(&store, "e", flags, Mode::empty())?);
        rustix::fs::mkdirat(&store, "d", Mode::empty())?;
        let protect = ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC;
        sys::set_attributes(&store, false, protect, 0)?;
        match hidden {
            Some(folder) => attach_mount(&store, folder).map_err(named_error("the root"))?,
            None => attach_at_root(&store).map_err(named_error("the root"))?,
        }
        let path_only = OFlags::PATH | OFlags::CLOEXEC;
        Ok(Self {
            file: rustix::fs::openat(&store, "e", path_only, Mode::empty())?,
            folder: rustix::fs::openat(&store, "d", path_only, Mode::empty())?,
        })
    }

    /// Covers a place.
    pub(super) fn cover_place(&self, target: &OwnedFd) -> io::Result<()> {
        let folder = FileType::from_raw_mode(rustix::fs::fstat(target)?.st_mode) == FileType::Directory;
        // A copy has the same attributes as the original.
        let cover = copy_of(if folder { &self.folder } else { &self.file }, false)?;
        Ok(attach_mount(&cover, target)?)
    }
}

/// Covers the denied paths that exist.
pub(super) fn cover_denied_paths(view: &mut SandboxView, order: &SandboxEnclosure) -> io::Result<()> {
    let denied = &order.filesystem.denied;
    if denied.is_empty() {
        return Ok(());
    }
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in denied {
        let place = lexical_path(&order.base, Path::new(entry.fixed_part()));
        add_real_name(view, entry, &place)?;
        if entry.is_pattern() {
            pin_folders(view, &place)?;
        } else {
            if place == Path::new("/") {
                return Err(io::Error::other(
                    "`denied_paths` denies everything: nothing can run",
                ));
            }
            pin_folders(view, place.parent().unwrap_or(Path::new("/")))?;
            found.push(place);
        }
    }
    if denied.iter().any(Denied::is_pattern) {
        let mut left = MAX_ENTRIES;
        for root in order.host_binds().iter().map(|bind| bind.path.clone()) {
            collect_matching_paths(view, order, &root, &mut left, &mut found)?;
        }
    }
    let mut covered = 0_usize;
    for path in found {
        // Links are followed, because the target must not be readable.
        if let Ok(target) = view.open_path(&path) {
            record_aliases(&target, &mut view.aliases)?;
            view.covers.cover_place(&target)?;
            covered += 1;
        }
    }
    view.held.push(format!("masks:{covered}"));
    Ok(())
}

/// If a link leads elsewhere, adds the rule under the real name of its folder in the view, because the guard knows only real names.
fn add_real_name(view: &mut SandboxView, entry: &Denied, place: &Path) -> io::Result<()> {
    let (folder, name) = match entry.is_pattern() {
        true => (place, None),
        false => (place.parent().unwrap_or(Path::new("/")), place.file_name()),
    };
    let Ok(fd) = view.open_path(folder) else {
        return Ok(());
    };
    let real = real_path(&fd)?;
    if real != folder && !entry.text().starts_with('~') {
        let fixed = name.map_or_else(|| real.clone(), |name| real.join(name));
        view.denied
            .push(entry.with_fixed_part(&fixed).map_err(io::Error::other)?);
    }
    // The last component may be a link: its target is denied as well.
    if !entry.is_pattern()
        && let Ok(fd) = view.open_path(place)
    {
        let real = real_path(&fd)?;
        if real != place {
            view.denied.push(Denied::from_path(real));
        }
    }
    Ok(())
}

/// Records denied files that have other hard links, which covers can't reach.
fn record_aliases(target: &OwnedFd, found: &mut HashSet<(u64, u64)>) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;
    let stat = rustix::fs::fstat(target)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink > 1 => {
            found.insert((stat.st_dev, stat.st_ino));
        }
        FileType::Directory => {
            let mut open = vec![PathBuf::from(format!("/proc/self/fd/{}", target.as_raw_fd()))];
            let mut left = MAX_ENTRIES;
            while let Some(folder) = open.pop() {
                let Ok(listing) = std::fs::read_dir(&folder) else {
                    continue;
                };
                for entry in listing.flatten() {
                    let Some(rest) = left.checked_sub(1) else {
                        return Ok(());
                    };
                    left = rest;
                    let Ok(about) = entry.metadata() else { continue };
                    if about.is_dir() {
                        open.push(entry.path());
                    } else if about.nlink() > 1 {
                        found.insert((about.dev(), about.ino()));
                    }
                }
            }
        }
        _ => {}
    }
    Ok(())
}

/// Makes a folder and its parents mount points, up to the writable mount that contains it. Mount points can't be renamed.
pub(super) fn pin_folders(view: &mut SandboxView, folder: &Path) -> io::Result<()> {
    let root = if view.is_full() {
        PathBuf::from("/")
    } else {
        let holder = view.writable.iter().filter(|root| folder.starts_with(root));
        match holder.max_by_key(|root| root.components().count()) {
            Some(root) => root.clone(),
            None => return Ok(()),
        }
    };
    let mut chain: Vec<&Path> = folder.ancestors().take_while(|part| **part != *root).collect();
    chain.reverse();
    for part in chain {
        let Ok(fd) = view.open_path(part) else {
            return Ok(());
        };
        if view.pinned.insert(part.to_path_buf()) {
            attach_mount(&copy_of(fd.as_fd(), true)?, &fd)?;
        }
    }
    Ok(())
}

/// Existing files and folders below `root` that match a pattern.
fn collect_matching_paths(
    view: &SandboxView,
    order: &SandboxEnclosure,
    root: &Path,
    left: &mut usize,
    found: &mut Vec<PathBuf>,
) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        let Ok(fd) = view.open_path(&folder) else { continue };
        let Ok(listing) = std::fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd())) else {
            continue;
        };
        for entry in listing {
            let entry = entry?;
            let Some(rest) = left.checked_sub(1) else {
                return Ok(());
            };
            *left = rest;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            if order.filesystem.denies_path(&path, &order.base) {
                found.push(path);
            } else if kind.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}
