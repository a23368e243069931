//! The guard's checks for the agent's own files: they must not be changed, replaced, moved or created. Mounts also cover these
//! files, but a cover disappears if the host replaces the covered file.

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::{Guard, PATH_ONLY, ResolvedName, real_path};

impl Guard {
    /// Checks that this file's content, mode and names may be changed.
    pub(super) fn check_changeable(&self, place: &std::os::fd::OwnedFd) -> Result<(), Errno> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let stat = rustix::fs::fstat(place)?;
        if self.kept.is_same_file(stat.st_dev, stat.st_ino) || self.kept.contains_path(&real_path(place)?) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Checks that an entry with this name may be created.
    pub(super) fn free_entry(&self, name: &ResolvedName) -> Result<(), Errno> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let folder = rustix::fs::fstat(&name.folder)?;
        if self.kept.contains_path(&name.real) || self.kept.is_entry(folder.st_dev, folder.st_ino, &name.last)
        {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// As [`Self::free_entry`], for a link. The link could take the place of a missing folder on the path to one of the agent's own
    /// files.
    pub(super) fn free_for_link(&self, name: &ResolvedName) -> Result<(), Errno> {
        self.free_entry(name)?;
        let there = || rustix::fs::statat(&name.folder, &name.last, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if self.kept.leads_to_own(&name.real) && !there() {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Checks that this entry may be moved, removed or replaced: it is not one of the agent's own files and not a folder on the
    /// path to one.
    pub(super) fn check_movable(&self, name: &ResolvedName) -> Result<(), Errno> {
        if self.kept.is_empty() {
            return Ok(());
        }
        self.free_entry(name)?;
        if self.kept.leads_to_own(&name.real) {
            return Err(Errno::ROFS);
        }
        let flags = PATH_ONLY | OFlags::NOFOLLOW;
        let mode = rustix::fs::Mode::empty();
        if let Ok(place) = rustix::fs::openat(&name.folder, &name.last, flags, mode) {
            let stat = rustix::fs::statat(&place, "", AtFlags::EMPTY_PATH)?;
            // On a file system that ignores case, one file has many names.
            if self.kept.is_above(stat.st_dev, stat.st_ino) || self.kept.contains_path(&real_path(&place)?) {
                return Err(Errno::ROFS);
            }
        }
        Ok(())
    }
}
