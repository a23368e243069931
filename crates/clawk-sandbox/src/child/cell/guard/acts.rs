//! Guarded calls that use a name without opening it: remove, create, change the mode, execute.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{Guard, PATH_ONLY, ResolvedName, read_tool_path, resolve_start, umask_of};
use crate::child::sys::{self, SyscallNotification};
use clawk_plan::plan::Denied;

/// How many entries of a moved folder are checked.
const MAX_ENTRIES: usize = 50_000;

const FILE_KIND: u64 = 0o170_000;

impl Guard {
    /// Checks that a name is not denied, before something is created or removed there.
    fn resolve_free_name(
        &self,
        notice: &SyscallNotification,
        place: (u64, u64),
    ) -> Result<ResolvedName, Errno> {
        let name = self.resolve_name(notice, place)?;
        if self.is_path_denied(&name.real) {
            return Err(Errno::ACCESS);
        }
        Ok(name)
    }

    pub(super) fn remove(
        &self,
        notice: &SyscallNotification,
        place: (u64, u64),
        flags: u64,
    ) -> Result<(), Errno> {
        let name = self.resolve_free_name(notice, place)?;
        let found = rustix::fs::openat(
            &name.folder,
            &name.last,
            PATH_ONLY | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        self.check_admitted(&found)?;
        self.check_movable(&name)?;
        let flags = AtFlags::from_bits_retain(u32::try_from(flags).map_err(|_large| Errno::INVAL)?);
        rustix::fs::unlinkat(&name.folder, &name.last, flags)
    }

    /// Creates a folder, a pipe or an empty file, depending on `mode`. The filter has refused devices and sockets already.
    pub(super) fn make_node(
        &self,
        notice: &SyscallNotification,
        place: (u64, u64),
        mode: u64,
    ) -> Result<(), Errno> {
        let name = self.resolve_free_name(notice, place)?;
        self.free_entry(&name)?;
        let bits = u32::try_from(mode & 0o7777).unwrap_or(0) & !umask_of(notice.pid);
        let bits = Mode::from_raw_mode(bits);
        let kind = FileType::from_raw_mode(u32::try_from(mode & FILE_KIND).unwrap_or(0));
        match kind {
            FileType::Directory => rustix::fs::mkdirat(&name.folder, &name.last, bits),
            FileType::Fifo => rustix::fs::mknodat(&name.folder, &name.last, kind, bits, 0),
            FileType::RegularFile | FileType::Unknown => {
                rustix::fs::mknodat(&name.folder, &name.last, FileType::RegularFile, bits, 0)
            }
            _ => Err(Errno::PERM),
        }
    }

    pub(super) fn symlink(
        &self,
        notice: &SyscallNotification,
        target: u64,
        place: (u64, u64),
    ) -> Result<(), Errno> {
        let target = read_tool_path(notice.pid, target)?;
        let name = self.resolve_free_name(notice, place)?;
        self.free_for_link(&name)?;
        rustix::fs::symlinkat(target, &name.folder, &name.last)
    }

    pub(super) fn chmod(
        &self,
        notice: &SyscallNotification,
        (folder, path): (u64, u64),
        mode: u64,
    ) -> Result<(), Errno> {
        let path = read_tool_path(notice.pid, path)?;
        let (base, path) = resolve_start(notice.pid, folder, path)?;
        let found = rustix::fs::openat2(&base, &path, PATH_ONLY, Mode::empty(), self.resolve_flags(&path))?;
        self.check_admitted(&found)?;
        self.check_changeable(&found)?;
        let mode = Mode::from_raw_mode(u32::try_from(mode & 0o7777).unwrap_or(0));
        rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)
    }

    /// Changes the mode of an open file. The file may have become one of the agent's own files after it was opened.
    pub(super) fn chmod_open(&self, notice: &SyscallNotification, fd: u64, mode: u64) -> Result<(), Errno> {
        let number = i32::try_from(fd & 0xffff_ffff).map_err(|_large| Errno::BADF)?;
        let link = format!("/proc/{}/fd/{number}", notice.pid);
        let found = match rustix::fs::open(link, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) => return Err(Errno::BADF),
            found => found?,
        };
        self.check_changeable(&found)?;
        let mode = Mode::from_raw_mode(u32::try_from(mode & 0o7777).unwrap_or(0));
        rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_raw_fd()), mode)
    }

    /// Checks a program and lets the kernel start it. A multi-threaded tool can change the name in between. Then it has run a
    /// denied program, but it still can't read it.
    pub(super) fn answer_execute(
        &self,
        notice: &SyscallNotification,
        (folder, path): (u64, u64),
        flags: u64,
    ) -> io::Result<()> {
        let empty = flags & u64::from(AtFlags::EMPTY_PATH.bits()) != 0;
        let found = match read_tool_path(notice.pid, path) {
            Err(Errno::NOENT) if empty => {
                let number = i32::try_from(folder & 0xffff_ffff).unwrap_or(-1);
                let link = format!("/proc/{}/fd/{number}", notice.pid);
                rustix::fs::open(link, PATH_ONLY, Mode::empty())
            }
            Err(error) => Err(error),
            Ok(path) => resolve_start(notice.pid, folder, path).and_then(|(base, path)| {
                rustix::fs::openat2(&base, &path, PATH_ONLY, Mode::empty(), self.resolve_flags(&path))
            }),
        };
        match found.and_then(|found| self.check_admitted(&found)) {
            Err(Errno::ACCESS) => {
                sys::answer_notification(&self.listener, notice.id, Err(Errno::ACCESS.raw_os_error()))
            }
            // If the program can't be found, the kernel does not find it either, and reports that.
            Ok(()) | Err(_) => sys::let_through(&self.listener, notice.id), // silent-ok: see above
        }
        Ok(())
    }
}

impl Guard {
    /// Whether a folder contains something that is denied at its present path and would not be denied elsewhere. Also true if there
    /// are too many entries to check.
    pub(super) fn holds_denied(&self, folder: &Path) -> bool {
        if !self.filesystem.denied.iter().any(Denied::depends_on_place) {
            return false;
        }
        let mut left = MAX_ENTRIES;
        let mut open = vec![folder.to_path_buf()];
        while let Some(folder) = open.pop() {
            let Ok(listing) = std::fs::read_dir(&folder) else {
                continue; // silent-ok: no folder, or one that may not be read by the tool's user either
            };
            for entry in listing.flatten() {
                let path = entry.path();
                let Some(rest) = left.checked_sub(1) else {
                    return true;
                };
                left = rest;
                if self.is_path_denied(&path) {
                    return true;
                }
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    open.push(path);
                }
            }
        }
        false
    }
}
