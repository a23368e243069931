//! Host paths as descriptors: each is opened once by its host name, and then mounted by descriptor.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};

use super::identity::ToolIdentity;
use super::mounts::fd_owner;
use super::order::{HostBind, SandboxEnclosure};
use super::world::ObservationLog;
use crate::child::sys::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};
use clawk_plan::own::RuntimeFileGuard;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Opens a host path. Links are followed, except links of `/proc`.
pub(in crate::child) fn open_host(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat2(CWD, path, PATH_ONLY, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

/// Opens a mount of the plan. Links that a tool could have made are not followed, even if it makes them at this moment.
pub(in crate::child) fn open_mount(path: &Path, writable: &[PathBuf]) -> io::Result<OwnedFd> {
    let real = clawk_plan::place::resolve_path(path, writable)?;
    let how = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(CWD, real, PATH_ONLY, Mode::empty(), how)?)
}

/// The real path of a descriptor.
pub(in crate::child) fn real_path(fd: impl AsFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()))
}

/// Attaches a detached mount at the target descriptor.
pub(in crate::child) fn attach_mount(mount: &OwnedFd, target: &OwnedFd) -> rustix::io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", target, "", flags)
}

/// Attaches a detached mount over the root of this mount namespace. This process still sees what is below, because its root is
/// there.
pub(in crate::child) fn attach_at_root(mount: &OwnedFd) -> rustix::io::Result<()> {
    rustix::mount::move_mount(mount, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

pub(in crate::child) fn is_folder(fd: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::Directory)
}

/// A detached copy of the mount at a descriptor.
pub(in crate::child) fn copy_of(fd: impl AsFd, recursive: bool) -> rustix::io::Result<OwnedFd> {
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(fd, "", flags)
}

pub(in crate::child) fn named_error(what: &str) -> impl Fn(rustix::io::Errno) -> io::Error + '_ {
    move |error| io::Error::new(io::Error::from(error).kind(), format!("{what}: {error}"))
}

/// All host paths of an order, opened.
pub(super) struct HostPieces {
    pub(super) binds: Vec<HostMountPiece>,
    /// The working directory, opened.
    pub(super) workdir: Option<PathBuf>,
    /// The agent's own files.
    pub(super) kept: RuntimeFileGuard,
    /// The mechanisms for the trace.
    pub(super) held: Vec<String>,
}

/// One of the plan's mounts, or the program's installation.
pub(super) struct HostMountPiece {
    pub(super) bind: HostBind,
    /// Its real path on the host.
    pub(super) real: PathBuf,
    /// The mount, not attached yet. It is protected as requested, and its owner's files appear as the tool's.
    pub(super) mount: OwnedFd,
    pub(super) folder: bool,
}

impl HostPieces {
    /// Opens all paths. Call it while names are the host's. `idmaps` has the user namespaces for idmapped mounts, by owner.
    pub(super) fn gather(
        order: &SandboxEnclosure,
        identity: ToolIdentity,
        idmaps: &HashMap<(u32, u32), OwnedFd>,
        workdir: Option<&Path>,
        notes: &mut ObservationLog,
    ) -> io::Result<Self> {
        let mut pieces = Self {
            binds: Vec::new(),
            workdir: None,
            kept: RuntimeFileGuard::from_paths(&order.filesystem.own),
            held: Vec::new(),
        };
        let owned = clawk_plan::place::writable_places(&order.filesystem, &order.base);
        for bind in order.host_binds() {
            pieces.add_bind(bind, &owned, identity.dropped.then_some(idmaps), notes)?;
        }
        if let Some(workdir) = workdir {
            if !workdir.is_dir() {
                let text = format!("the working directory `{}` is not a folder", workdir.display());
                return Err(io::Error::other(text));
            }
            if notes.taken {
                notes.record_opened(workdir, open_host(workdir)?, None)?;
            }
            pieces.workdir = Some(workdir.to_path_buf());
        }
        notes.record_own_files(order);
        notes.record_denied_paths(order);
        Ok(pieces)
    }

    fn add_bind(
        &mut self,
        bind: HostBind,
        owned: &[PathBuf],
        idmaps: Option<&HashMap<(u32, u32), OwnedFd>>,
        notes: &mut ObservationLog,
    ) -> io::Result<()> {
        let shown = bind.path.display();
        let fd = open_mount(&bind.path, owned)
            .map_err(|error| io::Error::new(error.kind(), format!("the mount `{shown}`: {error}")))?;
        let real = real_path(&fd)?;
        notes.record_opened(&bind.path, &fd, Some(&real))?;
        if real == Path::new("/")
            || ["/proc", "/sys", "/dev"]
                .iter()
                .any(|root| real.starts_with(root))
        {
            return Err(io::Error::other(format!(
                "`{shown}` can't be mounted: it is the whole system or shows the kernel; use the mode `full`, or name a folder"
            )));
        }
        let mut mount = copy_of(&fd, true).map_err(named_error(&format!("the mount `{shown}`")))?;
        if let Some(idmaps) = idmaps {
            let userns = idmaps.get(&fd_owner(&fd)?).ok_or_else(|| {
                io::Error::other(format!("the owner of `{shown}` changed while it was mounted"))
            })?;
            if sys::set_idmap(&mount, true, userns).is_err() {
                // Something below does not support id maps: mount without what is mounted below.
                mount = copy_of(&fd, false)?;
                match sys::set_idmap(&mount, false, userns) {
                    Ok(()) => self.held.push(format!("without-submounts:{shown}")),
                    Err(error) if bind.writable => {
                        return Err(io::Error::other(format!(
                            "the file system of `{shown}` knows no id maps ({error}), so a tool that is not root can't write there; use ext4, xfs or btrfs (tmpfs from Linux 6.3), or run clawk as an ordinary user"
                        )));
                    }
                    Err(_) => self.held.push(format!("unmapped:{shown}")), // silent-ok: read as a stranger, which is stronger
                }
            }
        }
        let protect = if bind.writable { 0 } else { ATTR_RDONLY };
        sys::set_attributes(&mount, true, protect | ATTR_NOSUID | ATTR_NODEV, 0)?;
        let folder = is_folder(&fd)?;
        self.binds.push(HostMountPiece {
            bind,
            real,
            mount,
            folder,
        });
        Ok(())
    }
}
