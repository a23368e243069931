//! The guard for `denied_paths` (R33). If a plan denies something that a mount could show, every access to a file by name is
//! checked here. The tool's call waits (seccomp user notification). The sandbox's first process, which has the same root, user and
//! rules, resolves the path itself, checks the real place, and passes the opened file to the tool. So a rule applies to files
//! created later, to files that the host puts in the place of covered ones, through links, and to other names of the same file.
//! Nothing can change between check and use, because the checked file itself is passed on. The agent's own files ([`keep`]) are
//! checked here, too; if nothing is denied, only for calls that change something.

mod acts;
mod keep;

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;
use seccompiler::{SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition, SeccompRule};

use crate::child::sys::{self, SyscallNotification};
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::Filesystem;
use clawk_plan::preflight::path::lexical_path;

/// The maximum length of a path in bytes; the kernel has the same limit.
const MAX_PATH: usize = 4096;
const PAGE: u64 = 4096;

/// The system calls that the guard answers.
const CALLS: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_symlinkat,
    libc::SYS_mknodat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// Older system calls that only x86-64 has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_mkdir,
    libc::SYS_symlink,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_rename,
    libc::SYS_link,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// `AT_FDCWD` as a call's argument.
const HERE: u64 = u64::MAX - 99;

/// The set-user-id and set-group-id bits. A sandbox's filter refuses them earlier; that of a container may not.
const SET_ID: u64 = 0o6000;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The filter's return value for calls that wait for the guard.
pub(super) const USER_NOTIF: u32 = 0x7fc0_0000;

/// The calls that the filter sends to the guard, with rules for their arguments. With `changing_only`, opening is sent only if it
/// could change or create a file.
pub(super) fn guarded_call_rules(
    changing_only: bool,
) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::BackendError> {
    let calls = CALLS.iter().chain(OLDER);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (*call, Vec::new())).collect();
    if changing_only {
        rules.remove(&libc::SYS_execve);
        rules.remove(&libc::SYS_execveat);
        rules.insert(libc::SYS_openat, write_flag_rules(2)?);
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_open, write_flag_rules(1)?);
    }
    Ok(rules)
}

/// Rules for open flags that may change or create a file.
fn write_flag_rules(argument: u8) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    let bits = |mask: i32| {
        let mask = u64::from(mask.unsigned_abs());
        SeccompCondition::new(argument, Len::Dword, Op::MaskedEq(mask), mask)
    };
    [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC]
        .into_iter()
        .map(|flag| SeccompRule::new(vec![bits(flag)?]))
        .collect()
}

/// Whether a file opened with these flags could be changed.
fn may_change_file(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) && !flags.contains(OFlags::PATH)
}

/// A running guard.
pub(crate) struct Guard {
    pub(crate) listener: OwnedFd,
    /// The guard's own process id in the tool's process namespace; in a sandbox it is 1. Tools can't access its files in `/proc`.
    pub(crate) itself: u32,
    pub(crate) filesystem: Filesystem,
    pub(crate) base: PathBuf,
    /// Device and inode of denied files that have other hard links.
    pub(crate) aliases: HashSet<(u64, u64)>,
    /// The agent's own files. Tools may read them, but never change them.
    pub(crate) kept: RuntimeFileGuard,
}

/// `fchmodat2`, Linux 6.6; the same number on every architecture.
const SYS_FCHMODAT2: i64 = 452;

/// A resolved name: the folder and the last component.
struct ResolvedName {
    folder: OwnedFd,
    last: std::ffi::OsString,
    /// The whole real path.
    real: PathBuf,
}

impl Guard {
    /// Answers the next waiting call.
    pub(crate) fn answer_next_notification(&self) -> io::Result<()> {
        match sys::next_notice(&self.listener)? {
            Some(notice) => self.answer_notification(&notice),
            None => Ok(()),
        }
    }

    /// Answers this call.
    pub(crate) fn answer_notification(&self, notice: &SyscallNotification) -> io::Result<()> {
        let [a, b, c, d, e, _] = notice.args;
        let here = HERE;
        let result = match notice.call {
            libc::SYS_openat => return self.answer_open(notice, a, b, c, d),
            libc::SYS_execve => return self.answer_execute(notice, (here, a), 0),
            libc::SYS_execveat => return self.answer_execute(notice, (a, b), e),
            libc::SYS_unlinkat => self.remove(notice, (a, b), c),
            libc::SYS_mkdirat => self.make_node(notice, (a, b), u64::from(libc::S_IFDIR) | c),
            libc::SYS_mknodat => self.make_node(notice, (a, b), c),
            libc::SYS_symlinkat => self.symlink(notice, a, (b, c)),
            libc::SYS_fchmod => self.chmod_open(notice, a, b),
            libc::SYS_fchmodat => self.chmod(notice, (a, b), c),
            // With flags, the C library uses another way, which the guard checks again.
            SYS_FCHMODAT2 if d == 0 => self.chmod(notice, (a, b), c),
            libc::SYS_renameat => self.rename(notice, (a, b), (c, d), 0),
            libc::SYS_renameat2 => self.rename(notice, (a, b), (c, d), e),
            libc::SYS_linkat => self.link(notice, (a, b), (c, d), e),
            libc::SYS_truncate => self.truncate(notice, a, b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => self.remove(notice, (here, a), 0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rmdir => self.remove(notice, (here, a), u64::from(AtFlags::REMOVEDIR.bits())),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir => self.make_node(notice, (here, a), u64::from(libc::S_IFDIR) | b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mknod => self.make_node(notice, (here, a), b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_symlink => self.symlink(notice, a, (here, b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_chmod => self.chmod(notice, (here, a), b),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => return self.answer_open(notice, here, a, b, c),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_creat => {
                let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
                return self.answer_open(notice, here, a, u64::from(flags.unsigned_abs()), b);
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename => self.rename(notice, (here, a), (here, b), 0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_link => self.link(notice, (here, a), (here, b), 0),
            _ => Err(Errno::NOSYS),
        };
        sys::answer_notification(
            &self.listener,
            notice.id,
            result.map(|()| 0).map_err(Errno::raw_os_error),
        );
        Ok(())
    }

    fn answer_open(
        &self,
        notice: &SyscallNotification,
        folder: u64,
        path: u64,
        flags: u64,
        mode: u64,
    ) -> io::Result<()> {
        let flags = OFlags::from_bits_retain(u32::try_from(flags & 0xffff_ffff).unwrap_or(0));
        let close = flags.contains(OFlags::CLOEXEC);
        let opened = self.open_admitted(notice, folder, path, flags, mode);
        match opened {
            Ok(OpenedObject::File(fd)) => {
                if let Err(error) = sys::answer_with(&self.listener, notice.id, &fd, close) {
                    let number = error.raw_os_error().unwrap_or(libc::EACCES);
                    sys::answer_notification(&self.listener, notice.id, Err(number));
                }
            }
            // The kernel can't pass on such a descriptor, so it opens the name itself. Whatever it finds can be used only by a
            // name, which is checked again.
            Ok(OpenedObject::Place) => sys::let_through(&self.listener, notice.id),
            // Opening a pipe waits for its other end, which may come from another call that waits here.
            Ok(OpenedObject::Pipe(place)) => {
                if sys::fork_into(0)?.is_none() {
                    match reopen_for_use(&place, flags) {
                        Ok(fd) => drop(sys::answer_with(&self.listener, notice.id, &fd, close)),
                        Err(error) => {
                            sys::answer_notification(&self.listener, notice.id, Err(error.raw_os_error()))
                        }
                    }
                    sys::exit_now(0);
                }
            }
            Err(error) => sys::answer_notification(&self.listener, notice.id, Err(error.raw_os_error())),
        }
        Ok(())
    }

    fn open_admitted(
        &self,
        notice: &SyscallNotification,
        folder: u64,
        path: u64,
        flags: OFlags,
        mode: u64,
    ) -> Result<OpenedObject, Errno> {
        let path = read_tool_path(notice.pid, path)?;
        let (base, path) = resolve_start(notice.pid, folder, path)?;
        let resolve = self.resolve_flags(&path);
        let creating = flags.contains(OFlags::CREATE);
        let follow = flags & OFlags::NOFOLLOW;
        match rustix::fs::openat2(&base, &path, PATH_ONLY | follow, Mode::empty(), resolve) {
            Ok(place) => {
                self.check_admitted(&place)?;
                if may_change_file(flags) {
                    self.check_changeable(&place)?;
                }
                if creating && flags.contains(OFlags::EXCL) {
                    return Err(Errno::EXIST);
                }
                if flags.contains(OFlags::PATH) {
                    return Ok(OpenedObject::Place);
                }
                match FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode) {
                    FileType::Symlink => Err(Errno::LOOP),
                    FileType::Fifo if !flags.contains(OFlags::NONBLOCK) => Ok(OpenedObject::Pipe(place)),
                    _ if flags.contains(OFlags::TMPFILE) => {
                        let mode = u32::try_from(mode & 0o7777).unwrap_or(0) & !umask_of(notice.pid);
                        reopen_with(&place, flags, mode).map(OpenedObject::File)
                    }
                    _ => reopen_for_use(&place, flags).map(OpenedObject::File),
                }
            }
            Err(Errno::NOENT) if creating => {
                let name = self.name(&base, &path)?;
                if self.is_path_denied(&name.real) {
                    return Err(Errno::ACCESS);
                }
                self.free_entry(&name)?;
                if mode & SET_ID > 0 {
                    return Err(Errno::PERM);
                }
                let mode = u32::try_from(mode & 0o1777).unwrap_or(0) & !umask_of(notice.pid);
                let fd = rustix::fs::openat(
                    &name.folder,
                    &name.last,
                    flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                    Mode::from_raw_mode(mode),
                )?;
                // The folder may have been moved in the meantime.
                self.check_admitted(&fd)?;
                Ok(OpenedObject::File(fd))
            }
            Err(error) => Err(error),
        }
    }

    fn rename(
        &self,
        notice: &SyscallNotification,
        from: (u64, u64),
        to: (u64, u64),
        flags: u64,
    ) -> Result<(), Errno> {
        let from = self.resolve_name(notice, from)?;
        let to = self.resolve_name(notice, to)?;
        // Neither a denied path nor a folder that a rule names.
        let spoken_of = |path: &Path| {
            self.is_path_denied(path)
                || self.filesystem.denied.iter().any(|denied| {
                    let fixed = lexical_path(&self.base, Path::new(denied.fixed_part()));
                    fixed != Path::new("/") && fixed.starts_with(path)
                })
        };
        if spoken_of(&from.real) || spoken_of(&to.real) {
            return Err(Errno::ACCESS);
        }
        self.check_movable(&from)?;
        self.check_movable(&to)?;
        if let Ok(place) = rustix::fs::openat(
            &from.folder,
            &from.last,
            PATH_ONLY | OFlags::NOFOLLOW,
            Mode::empty(),
        ) {
            self.check_admitted(&place)?;
        }
        let flags = RenameFlags::from_bits_retain(u32::try_from(flags).map_err(|_large| Errno::INVAL)?);
        let moved = [Some(&from), flags.contains(RenameFlags::EXCHANGE).then_some(&to)];
        if moved
            .into_iter()
            .flatten()
            .any(|name| self.holds_denied(&name.real))
        {
            return Err(Errno::ACCESS);
        }
        rustix::fs::renameat_with(&from.folder, &from.last, &to.folder, &to.last, flags)
    }

    fn link(
        &self,
        notice: &SyscallNotification,
        from: (u64, u64),
        to: (u64, u64),
        flags: u64,
    ) -> Result<(), Errno> {
        let path = read_tool_path(notice.pid, from.1)?;
        let (base, path) = resolve_start(notice.pid, from.0, path)?;
        let follow = u64::from(AtFlags::SYMLINK_FOLLOW.bits());
        let nofollow = if flags & follow == 0 {
            OFlags::NOFOLLOW
        } else {
            OFlags::empty()
        };
        // A nameless file gets its name by a link from its `/proc` entry.
        let resolve = match nofollow.is_empty() && is_own_link(&path, self.itself) {
            true => ResolveFlags::empty(),
            false => ResolveFlags::NO_MAGICLINKS,
        };
        let place = rustix::fs::openat2(&base, &path, PATH_ONLY | nofollow, Mode::empty(), resolve)?;
        self.check_admitted(&place)?;
        self.check_changeable(&place)?;
        let to = self.resolve_name(notice, to)?;
        if self.is_path_denied(&to.real) {
            return Err(Errno::ACCESS);
        }
        self.free_for_link(&to)?;
        let by_descriptor = format!("/proc/self/fd/{}", place.as_raw_fd());
        rustix::fs::linkat(CWD, by_descriptor, &to.folder, &to.last, AtFlags::SYMLINK_FOLLOW)
    }

    fn truncate(&self, notice: &SyscallNotification, path: u64, length: u64) -> Result<(), Errno> {
        let path = read_tool_path(notice.pid, path)?;
        let (base, path) = resolve_start(notice.pid, u64::MAX - 99, path)?;
        let place = rustix::fs::openat2(
            &base,
            &path,
            PATH_ONLY,
            Mode::empty(),
            ResolveFlags::NO_MAGICLINKS,
        )?;
        self.check_admitted(&place)?;
        self.check_changeable(&place)?;
        let file = reopen_for_use(&place, OFlags::WRONLY | OFlags::NONBLOCK)?;
        rustix::fs::ftruncate(&file, length)
    }

    fn resolve_name(
        &self,
        notice: &SyscallNotification,
        (folder, path): (u64, u64),
    ) -> Result<ResolvedName, Errno> {
        let path = read_tool_path(notice.pid, path)?;
        let (base, path) = resolve_start(notice.pid, folder, path)?;
        self.name(&base, &path)
    }

    fn name(&self, base: &OwnedFd, path: &Path) -> Result<ResolvedName, Errno> {
        let last = path.file_name().ok_or(Errno::BUSY)?.to_owned();
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let flags = PATH_ONLY | OFlags::DIRECTORY;
        let folder = rustix::fs::openat2(base, parent, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
        let real = real_path(&folder)?.join(&last);
        Ok(ResolvedName { folder, last, real })
    }

    /// Checks that the opened file may be used.
    fn check_admitted(&self, place: &OwnedFd) -> Result<(), Errno> {
        let real = real_path(place)?;
        let stat = rustix::fs::fstat(place)?;
        // The guard's own folder in `/proc`, reached through `self` on a path that was not recognized as the tool's own.
        let ours = real.starts_with(format!("/proc/{}", self.itself)) || real.starts_with("/proc/self");
        if ours || self.is_path_denied(&real) || self.aliases.contains(&(stat.st_dev, stat.st_ino)) {
            Err(Errno::ACCESS)
        } else {
            Ok(())
        }
    }

    fn is_path_denied(&self, real: &Path) -> bool {
        self.filesystem.denies_path(real, &self.base)
    }

    /// The flags for resolving a path of the tool.
    fn resolve_flags(&self, path: &Path) -> ResolveFlags {
        if is_own_link(path, self.itself) {
            ResolveFlags::empty()
        } else {
            ResolveFlags::NO_MAGICLINKS
        }
    }
}

enum OpenedObject {
    Place,
    File(OwnedFd),
    Pipe(OwnedFd),
}

/// Opens a checked file for use.
fn reopen_for_use(place: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    reopen_with(place, flags, 0o600)
}

/// As [`reopen_for_use`], with the mode for a nameless file that is created.
fn reopen_with(place: &OwnedFd, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
    let flags =
        flags.difference(OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW) | OFlags::CLOEXEC | OFlags::NOCTTY;
    rustix::fs::open(
        format!("/proc/self/fd/{}", place.as_raw_fd()),
        flags,
        Mode::from_raw_mode(mode),
    )
}

fn real_path(place: impl AsFd) -> Result<PathBuf, Errno> {
    let name = format!("/proc/self/fd/{}", place.as_fd().as_raw_fd());
    let text = rustix::fs::readlink(name, Vec::new())?.into_bytes();
    // The path of a deleted file has this suffix.
    let text = text.strip_suffix(b" (deleted)").unwrap_or(&text);
    Ok(PathBuf::from(OsStr::from_bytes(text)))
}

/// Reads a path from the tool's memory.
fn read_tool_path(pid: u32, address: u64) -> Result<PathBuf, Errno> {
    let mut whole = Vec::new();
    let mut address = address;
    while whole.len() < MAX_PATH {
        // Never read across the end of a page, because the next page may not exist.
        let room = usize::try_from(PAGE - address % PAGE).unwrap_or(1);
        let mut part = vec![0; room];
        let read = sys::read_memory(pid, address, &mut part).map_err(|_error| Errno::FAULT)?;
        let part = part.get(..read).unwrap_or_default();
        if let Some(end) = part.iter().position(|byte| *byte == 0) {
            whole.extend_from_slice(part.get(..end).unwrap_or_default());
            if whole.is_empty() {
                return Err(Errno::NOENT);
            }
            return Ok(PathBuf::from(std::ffi::OsString::from_vec(whole)));
        }
        if read == 0 {
            return Err(Errno::FAULT);
        }
        whole.extend_from_slice(part);
        address = address.saturating_add(u64::try_from(read).unwrap_or(1));
    }
    Err(Errno::NAMETOOLONG)
}

/// The start folder of a tool's path, and the path with references to the process itself replaced by the requesting process.
fn resolve_start(pid: u32, folder: u64, path: PathBuf) -> Result<(OwnedFd, PathBuf), Errno> {
    let own = format!("/proc/{pid}");
    let path = if let Ok(rest) = path.strip_prefix("/proc/self") {
        Path::new(&own).join(rest)
    } else if let Ok(rest) = path.strip_prefix("/proc/thread-self") {
        Path::new(&own).join("task").join(pid.to_string()).join(rest)
    } else if let Ok(rest) = path.strip_prefix("/dev/fd") {
        Path::new(&own).join("fd").join(rest)
    } else {
        match path.to_str() {
            Some("/dev/stdin") => Path::new(&own).join("fd/0"),
            Some("/dev/stdout") => Path::new(&own).join("fd/1"),
            Some("/dev/stderr") => Path::new(&own).join("fd/2"),
            Some(_) | None => path,
        }
    };
    let number = i32::try_from(folder & 0xffff_ffff).unwrap_or(-1);
    let base = if path.is_absolute() {
        "/".to_owned()
    } else if number < 0 {
        format!("{own}/cwd")
    } else {
        format!("{own}/fd/{number}")
    };
    // A trailing slash requires a folder; the components express the same.
    let path = path.components().as_path().to_owned();
    Ok((rustix::fs::open(base, PATH_ONLY, Mode::empty())?, path))
}

/// Whether the path is `/proc/PID/fd/N` or `/proc/PID/exe` of the requesting process. These links refer to an open object. Always
/// false for `guard`, which is the guard's own process.
fn is_own_link(path: &Path, guard: u32) -> bool {
    let parts: Vec<&str> = path.to_str().unwrap_or_default().split('/').skip(1).collect();
    let number = |text: &str| text.parse::<u32>().is_ok();
    let theirs = |text: &str| text.parse().is_ok_and(|pid: u32| pid != guard);
    match parts.as_slice() {
        ["proc", pid, "fd", fd] => theirs(pid) && number(fd),
        ["proc", pid, "task", task, "fd", fd] => theirs(pid) && theirs(task) && number(fd),
        ["proc", pid, "exe"] => theirs(pid),
        _ => false,
    }
}

/// The umask of the requesting process.
fn umask_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o077)
}
