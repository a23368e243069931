//! The agent's own files at the guard: what may not be changed, replaced, moved, or made. Covers hold them as well, until the
//! host puts another file in the place of a covered one, which takes the cover away.

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::{Guard, PATH_ONLY, ResolvedName, real};

impl Guard {
    /// What is there may be changed: its content, its mode, its names.
    pub(super) fn changeable(&self, place: &std::os::fd::OwnedFd) -> Result<(), Errno> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let stat = rustix::fs::fstat(place)?;
        if self.kept.is(stat.st_dev, stat.st_ino) || self.kept.holds(&real(place)?) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// Something may be made by this name.
    pub(super) fn free_entry(&self, name: &ResolvedName) -> Result<(), Errno> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let folder = rustix::fs::fstat(&name.folder)?;
        if self.kept.holds(&name.real) || self.kept.is_entry(folder.st_dev, folder.st_ino, &name.last) {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// The same of a link, which could stand for a folder that leads to an own file and is not there.
    pub(super) fn free_for_link(&self, name: &ResolvedName) -> Result<(), Errno> {
        self.free_entry(name)?;
        let there = || rustix::fs::statat(&name.folder, &name.last, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if self.kept.leads(&name.real) && !there() {
            return Err(Errno::ROFS);
        }
        Ok(())
    }

    /// What is by this name may be moved or removed, and something else may come to be there: also not in the place of a folder
    /// that leads to an own file.
    pub(super) fn movable(&self, name: &ResolvedName) -> Result<(), Errno> {
        if self.kept.is_empty() {
            return Ok(());
        }
        self.free_entry(name)?;
        if self.kept.leads(&name.real) {
            return Err(Errno::ROFS);
        }
        let flags = PATH_ONLY | OFlags::NOFOLLOW;
        let mode = rustix::fs::Mode::empty();
        if let Ok(place) = rustix::fs::openat(&name.folder, &name.last, flags, mode) {
            let stat = rustix::fs::statat(&place, "", AtFlags::EMPTY_PATH)?;
            // Where capitals don't count, one file has many names.
            if self.kept.is_above(stat.st_dev, stat.st_ino) || self.kept.holds(&real(&place)?) {
                return Err(Errno::ROFS);
            }
        }
        Ok(())
    }
}
