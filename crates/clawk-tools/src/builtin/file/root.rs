//! Opening files beneath a mount.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use clawk_kernel::place::ExcludedPaths;
use clawk_plan::Filesystem;
use clawk_plan::preflight::path::{AllowedPath, permit_path};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::FileToolStop;

/// An open mount.
pub(super) struct Root<'a> {
    filesystem: &'a Filesystem,
    apart: &'a ExcludedPaths,
    workdir: &'a Path,
    /// The path in the plan.
    named: PathBuf,
    /// The real path.
    real: PathBuf,
    fd: OwnedFd,
}

/// An admitted path, with its open mount.
pub(super) struct ResolvedPath<'a> {
    pub(super) root: Root<'a>,
    /// The path relative to the mount; empty for the mount itself.
    pub(super) below: PathBuf,
}

/// Checks that the plan admits `path`, and opens its mount.
pub(super) fn resolve_path<'a>(
    filesystem: &'a Filesystem,
    apart: &'a ExcludedPaths,
    workdir: &'a Path,
    path: &str,
    write: bool,
) -> Result<ResolvedPath<'a>, FileToolStop> {
    let AllowedPath {
        root: named,
        below,
        absolute: _,
    } = permit_path(filesystem, path, write, workdir).map_err(FileToolStop::Refused)?;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&named, flags, Mode::empty())
        .map_err(|e| FileToolStop::for_path(&named.to_string_lossy(), e))?;
    let real = real_path(&fd).map_err(|error| FileToolStop::for_path(path, error))?;
    Ok(ResolvedPath {
        root: Root {
            filesystem,
            apart,
            workdir,
            named,
            real,
            fd,
        },
        below,
    })
}

impl Root<'_> {
    /// Opens the entry at `below`. Links are followed as long as they stay inside the mount. The plan must also admit the real
    /// path.
    pub(super) fn open_below(
        &self,
        below: &Path,
        flags: OFlags,
        write: bool,
    ) -> Result<OwnedFd, FileToolStop> {
        let shown = self.display_path(below);
        let fd = self
            .open_raw(below, flags)
            .map_err(|error| FileToolStop::for_path(&shown, explain_error(error)))?;
        self.judge_opened(&fd, None, write, &shown)?;
        Ok(fd)
    }

    /// Opens a regular file for reading. It never blocks on a pipe or a device.
    pub(super) fn open_file(
        &self,
        below: &Path,
        write: bool,
    ) -> Result<(File, rustix::fs::Stat), FileToolStop> {
        let shown = self.display_path(below);
        let fd = self.open_below(below, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY, write)?;
        let stat = rustix::fs::fstat(&fd).map_err(|error| FileToolStop::for_path(&shown, error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((File::from(fd), stat)),
            FileType::Directory => Err(FileToolStop::Failed(format!("`{shown}` is a folder"))),
            _ => Err(FileToolStop::Failed(format!("`{shown}` is not a regular file"))),
        }
    }

    /// Opens the file that a write would replace, and returns its size; `None`: there is no file. A link is not followed, because
    /// writes do not follow links either.
    pub(super) fn existing_file(&self, below: &Path) -> Result<Option<(File, u64)>, FileToolStop> {
        let shown = self.display_path(below);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
        let fd = match self.open_raw(below, flags) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => {
                return Err(match rustix::fs::readlinkat(&self.fd, below, Vec::new()) {
                    Ok(target) => FileToolStop::Failed(format!(
                        "`{shown}` is a link to `{}`, and nothing is written through it",
                        target.to_string_lossy()
                    )),
                    Err(_) => FileToolStop::for_path(&shown, explain_error(error)), // silent-ok: it is no link
                });
            }
        };
        self.judge_opened(&fd, None, true, &shown)?;
        let stat = rustix::fs::fstat(&fd).map_err(|error| FileToolStop::for_path(&shown, error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(0);
                Ok(Some((File::from(fd), size)))
            }
            FileType::Directory => Err(FileToolStop::Failed(format!("`{shown}` is a folder"))),
            _ => Err(FileToolStop::Failed(format!("`{shown}` is not a regular file"))),
        }
    }

    /// Opens the folder that contains `below`, and returns the entry's name. If `make` is set, missing folders are created.
    pub(super) fn open_parent<'p>(
        &self,
        below: &'p Path,
        make: bool,
    ) -> Result<(OwnedFd, &'p OsStr), FileToolStop> {
        let shown = self.display_path(below);
        let name = below
            .file_name()
            .ok_or_else(|| FileToolStop::Failed(format!("`{shown}` is a folder")))?;
        let parent = below.parent().unwrap_or(Path::new(""));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        if make {
            let mut so_far = PathBuf::new();
            for component in parent.components() {
                let Component::Normal(part) = component else {
                    continue;
                };
                let holder = self.open_below(&so_far, flags, false)?;
                so_far.push(part);
                match rustix::fs::mkdirat(&holder, part, Mode::from_bits_truncate(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(FileToolStop::for_path(&self.display_path(&so_far), error)),
                }
            }
        }
        let fd = self
            .open_raw(parent, flags)
            .map_err(|error| FileToolStop::for_path(&shown, explain_error(error)))?;
        self.judge_opened(&fd, Some(name), true, &shown)?;
        Ok((fd, name))
    }

    /// The path that the model sees.
    pub(super) fn display_path(&self, below: &Path) -> String {
        let whole = self.named.join(below);
        let short = whole.strip_prefix(self.workdir).unwrap_or(&whole);
        if short.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            short.to_string_lossy().into_owned()
        }
    }

    /// Whether the plan admits this path below the mount, as text.
    pub(super) fn is_admitted(&self, below: &Path) -> bool {
        self.plan_path(below)
            .to_str()
            .is_some_and(|path| permit_path(self.filesystem, path, false, self.workdir).is_ok())
    }

    /// The path under the mount's name in the plan.
    pub(super) fn plan_path(&self, below: &Path) -> PathBuf {
        self.named.join(below)
    }

    fn open_raw(&self, below: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let below = if below.as_os_str().is_empty() {
            Path::new(".")
        } else {
            below
        };
        let mut resolve = ResolveFlags::NO_MAGICLINKS;
        // A mount of `/` is the whole host: links may lead anywhere, and their targets are checked.
        if self.named != Path::new("/") {
            resolve |= ResolveFlags::BENEATH;
        }
        rustix::fs::openat2(
            self.fd.as_fd(),
            below,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )
    }

    fn judge_opened(
        &self,
        fd: &OwnedFd,
        name: Option<&OsStr>,
        write: bool,
        shown: &str,
    ) -> Result<(), FileToolStop> {
        let mut real = real_path(fd).map_err(|error| FileToolStop::for_path(shown, error))?;
        real.extend(name);
        if self.apart.leaves_out(&real) {
            return Err(FileToolStop::Failed(format!(
                "`{shown}` leads to a place for which the policy has a stricter word; name that place itself"
            )));
        }
        // The mount itself may be behind a link. Below it, only the real path counts.
        let place = real
            .strip_prefix(&self.real)
            .map(|below| self.named.join(below))
            .unwrap_or(real);
        let place = place
            .to_str()
            .ok_or_else(|| FileToolStop::Failed(format!("`{shown}` has a name that is not UTF-8")))?;
        permit_path(self.filesystem, place, write, self.workdir)
            .map(drop)
            .map_err(FileToolStop::Refused)
    }
}

pub(super) fn real_path(fd: &OwnedFd) -> std::io::Result<PathBuf> {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// The kernel's error text for a path that leaves its root talks about devices. This replaces it.
fn explain_error(error: Errno) -> std::io::Error {
    match error {
        Errno::XDEV => std::io::Error::other("a link on the way leads out of the allowed folders"),
        Errno::NOSYS => {
            std::io::Error::other("this kernel can't open files safely (openat2, Linux 5.6); use `shell`")
        }
        other => other.into(),
    }
}
