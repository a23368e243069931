//! The files of a guest: `wasi:filesystem` with checks of `denied_paths` on the real paths (R33).
//!
//! wasmtime keeps every path beneath its folder. This module checks it twice more: as text before anything happens, and by its real
//! path with links followed. An opened file is checked again by its descriptor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemCtxView};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    self, DescriptorFlags, ErrorCode, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{FsError, FsResult};

use super::guest::State;
use super::names::{self, HardLinkTarget};
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::{Denied, Filesystem};
use clawk_plan::preflight::path::lexical_path;

/// Folders that a guest never sees in any mode, because they show the agent's own process.
pub(super) const NEVER: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Kernel file systems, wherever they are mounted: proc, sysfs, cgroups, debugfs, tracefs, securityfs.
const KERNELS: [i64; 7] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
];

/// The maximum number of folders that are listed at the same time. A listing is in the agent's memory.
const MAX_LISTINGS: usize = 16;

/// The maximum number of entries of a listed folder.
const MAX_LISTED: usize = 1 << 16;

/// The files that a guest must not open.
#[derive(Debug)]
pub(super) struct GuestFileAccess {
    denied: Vec<Denied>,
    /// The agent's own files. They may be read, but never changed.
    kept: RuntimeFileGuard,
    base: PathBuf,
    /// The real path of each root, and its name in the plan.
    roots: Vec<(PathBuf, PathBuf)>,
    open: u64,
    max_open: u64,
    listings: usize,
}

impl GuestFileAccess {
    pub(super) fn new(
        filesystem: &Filesystem,
        base: PathBuf,
        roots: Vec<(PathBuf, PathBuf)>,
        max_open: u64,
    ) -> Self {
        Self {
            denied: filesystem.denied.clone(),
            kept: RuntimeFileGuard::from_paths(&filesystem.own),
            base,
            roots,
            open: 0,
            max_open,
            listings: 0,
        }
    }

    /// Whether a real path, or its name in the plan, is denied.
    pub(super) fn is_denied(&self, real: &Path) -> bool {
        if NEVER.iter().any(|never| real.starts_with(never)) {
            return true;
        }
        let named = self
            .roots
            .iter()
            .filter_map(|(root, name)| Some(name.join(real.strip_prefix(root).ok()?)));
        let mut names = named.chain([real.to_owned()]);
        names.any(|name| self.denied.iter().any(|denied| self.rule_denies(denied, &name)))
    }

    fn rule_denies(&self, denied: &Denied, path: &Path) -> bool {
        let literal = || lexical_path(&self.base, Path::new(denied.text())).canonicalize();
        denied.covers_path(path, &self.base)
            || (!denied.is_pattern() && literal().is_ok_and(|real| path.starts_with(real)))
    }

    /// The real paths of entries that are denied by path.
    pub(super) fn denied_places(&self) -> impl Iterator<Item = PathBuf> {
        let literal = self.denied.iter().filter(|denied| !denied.is_pattern());
        literal.filter_map(|denied| {
            lexical_path(&self.base, Path::new(denied.text()))
                .canonicalize()
                .ok()
        }) // silent-ok: nothing there
    }

    /// The real paths of the folders that the guest gets.
    pub(super) fn shown_places(&self) -> impl Iterator<Item = PathBuf> {
        self.roots.iter().map(|(real, _)| real.clone())
    }

    /// Checks the file behind a descriptor.
    fn judge_open(&self, fd: BorrowedFd<'_>) -> FsResult<()> {
        let real = real_path(fd)?;
        if self.is_denied(&real) {
            return Err(ErrorCode::Access.into());
        }
        let meta = rustix::fs::fstat(fd).map_err(io::Error::from)?;
        let kernels = rustix::fs::fstatfs(fd).map_err(io::Error::from)?.f_type;
        if KERNELS.contains(&kernels) {
            return Err(ErrorCode::Access.into());
        }
        // Another hard link of a denied file is the same file.
        if !self.denied.is_empty() && FileType::from_raw_mode(meta.st_mode).is_file() && meta.st_nlink > 1 {
            let wanted = HardLinkTarget {
                device: meta.st_dev,
                inode: meta.st_ino,
                names: meta.st_nlink,
            };
            if names::any_denied(self, &wanted) {
                return Err(ErrorCode::Access.into());
            }
        }
        Ok(())
    }

    /// Checks that a descriptor is not one of the agent's own files and, with `moves`, not a folder on the path to one.
    fn check_changeable(&self, fd: BorrowedFd<'_>, moves: bool) -> FsResult<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let real = real_path(fd)?;
        let meta = rustix::fs::fstat(fd).map_err(io::Error::from)?;
        if self.kept.is_same_file(meta.st_dev, meta.st_ino)
            || self.kept.contains_path(&real)
            || (moves && self.kept.leads_to_own(&real))
        {
            return Err(ErrorCode::ReadOnly.into());
        }
        Ok(())
    }

    /// Whether renaming a folder could take a denied path out of its rule: it contains something denied, or a glob depends on more
    /// than the last name.
    fn holds_denied(&self, real: &Path) -> bool {
        self.denied.iter().any(|denied| match denied.is_pattern() {
            false => {
                let text = lexical_path(&self.base, Path::new(denied.text()));
                text.starts_with(real) || text.canonicalize().is_ok_and(|place| place.starts_with(real))
            }
            true => denied
                .text()
                .strip_prefix("**/")
                .is_none_or(|last| last.contains('/')),
        })
    }
}

/// Checks that a folder has few enough entries for a listing in memory.
fn within_bounds(dir: BorrowedFd<'_>) -> FsResult<()> {
    // The guest's own descriptor may be opened for its path only.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let readable = rustix::fs::openat(dir, ".", flags, Mode::empty()).map_err(io::Error::from)?;
    let mut entries = 0;
    for entry in rustix::fs::Dir::new(readable).map_err(io::Error::from)? {
        entry.map_err(io::Error::from)?;
        entries += 1;
        if entries > MAX_LISTED {
            return Err(ErrorCode::Overflow.into());
        }
    }
    Ok(())
}

/// The real path of a descriptor.
fn real_path(fd: BorrowedFd<'_>) -> FsResult<PathBuf> {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let real = rustix::fs::readlink(link, Vec::new()).map_err(io::Error::from)?;
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(real.as_bytes())))
}

/// The checks around wasmtime's own files.
pub(super) struct GuardedFilesystem<'a> {
    pub(super) inner: WasiFilesystemCtxView<'a>,
    pub(super) walls: &'a mut GuestFileAccess,
}

struct GuardedFilesystemMarker;

impl HasData for GuardedFilesystemMarker {
    type Data<'a> = GuardedFilesystem<'a>;
}

/// Replaces wasmtime's own files by the checked ones in the linker.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    types::add_to_linker::<State, GuardedFilesystemMarker>(linker, State::guarded_filesystem)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl GuardedFilesystem<'_> {
    /// Checks `path` below a folder before it is used.
    fn judge_path(&self, fd: &Resource<Descriptor>, path: &str, follow: bool) -> FsResult<()> {
        let dir = match self.inner.table.get(fd)? {
            Descriptor::Dir(dir) => dir,
            Descriptor::File(_) => return Err(ErrorCode::NotDirectory.into()),
        };
        let at = real_path(dir.dir.as_fd())?;
        if self.walls.is_denied(&lexical_path(&at, Path::new(path))) || self.walls.is_denied(&at) {
            return Err(ErrorCode::Access.into());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let last = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        match rustix::fs::openat2(&*dir.dir, path, flags | last, Mode::empty(), resolve) {
            Ok(found) => {
                self.walls.judge_open(found.as_fd())?;
                let kind =
                    FileType::from_raw_mode(rustix::fs::fstat(&found).map_err(io::Error::from)?.st_mode);
                // Guests must not open pipes or devices of the host: they could block on them.
                match kind {
                    FileType::RegularFile | FileType::Directory | FileType::Symlink => Ok(()),
                    FileType::Fifo
                    | FileType::Socket
                    | FileType::CharacterDevice
                    | FileType::BlockDevice
                    | FileType::Unknown => Err(ErrorCode::Access.into()),
                }
            }
            // A path that does not exist yet is checked by its future real path.
            Err(rustix::io::Errno::NOENT) => {
                let path = Path::new(path);
                let (Some(name), parent) = (path.file_name(), path.parent().unwrap_or(Path::new(""))) else {
                    return Err(ErrorCode::NoEntry.into());
                };
                let parent = if parent.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    parent
                };
                let parent = rustix::fs::openat2(
                    &*dir.dir,
                    parent,
                    flags | OFlags::DIRECTORY,
                    Mode::empty(),
                    resolve,
                )
                .map_err(io::Error::from)?;
                let dangling = rustix::fs::readlinkat(&parent, name, Vec::new()).is_ok();
                if dangling || self.walls.is_denied(&real_path(parent.as_fd())?.join(name)) {
                    return Err(ErrorCode::Access.into());
                }
                Ok(())
            }
            Err(rustix::io::Errno::XDEV) => Err(ErrorCode::NotPermitted.into()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Checks a change of the entry at `path`: of its content, times or name, or its creation. Own files are refused and, with
    /// `moves`, also folders on the path to one.
    fn judge_change(&self, fd: &Resource<Descriptor>, path: &str, follow: bool, moves: bool) -> FsResult<()> {
        self.judge_path(fd, path, follow)?;
        let kept = &self.walls.kept;
        if kept.is_empty() {
            return Ok(());
        }
        let Descriptor::Dir(dir) = self.inner.table.get(fd)? else {
            return Err(ErrorCode::NotDirectory.into());
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let last = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        if let Ok(found) = rustix::fs::openat2(&*dir.dir, path, flags | last, Mode::empty(), resolve) {
            self.walls.check_changeable(found.as_fd(), moves)?;
        }
        // Check the name itself, whatever is there.
        let path = Path::new(path);
        let Some(name) = path.file_name() else {
            return Ok(());
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let folder = flags | OFlags::DIRECTORY;
        if let Ok(folder) = rustix::fs::openat2(&*dir.dir, parent, folder, Mode::empty(), resolve) {
            let place = real_path(folder.as_fd())?.join(name);
            if kept.contains_path(&place) || (moves && kept.leads_to_own(&place)) {
                return Err(ErrorCode::ReadOnly.into());
            }
        }
        Ok(())
    }

    /// Checks a change through an open descriptor.
    fn judge_open_change(&self, fd: &Resource<Descriptor>) -> FsResult<()> {
        match self.inner.table.get(fd)? {
            Descriptor::Dir(dir) => self.walls.check_changeable(dir.dir.as_fd(), false),
            Descriptor::File(file) => self.walls.check_changeable(file.file.as_fd(), false),
        }
    }

    /// Checks moving the entry at `path`.
    fn judge_move(&self, fd: &Resource<Descriptor>, path: &str) -> FsResult<()> {
        self.judge_change(fd, path, false, true)?;
        if self.walls.denied.is_empty() {
            return Ok(());
        }
        let Descriptor::Dir(dir) = self.inner.table.get(fd)? else {
            return Err(ErrorCode::NotDirectory.into());
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if let Ok(found) = rustix::fs::openat2(&*dir.dir, path, flags, Mode::empty(), resolve) {
            let is_dir =
                rustix::fs::fstat(&found).is_ok_and(|meta| FileType::from_raw_mode(meta.st_mode).is_dir());
            if is_dir && self.walls.holds_denied(&real_path(found.as_fd())?) {
                return Err(ErrorCode::Access.into());
            }
        }
        Ok(())
    }

    /// Checks again what was really opened, and closes it if it is denied.
    fn judge_opened(&mut self, fd: Resource<Descriptor>, changes: bool) -> FsResult<Resource<Descriptor>> {
        let judged = match self.inner.table.get(&fd)? {
            Descriptor::Dir(dir) => self.walls.judge_open(dir.dir.as_fd()),
            Descriptor::File(file) => self.walls.judge_open(file.file.as_fd()),
        };
        let judged = judged.and_then(|()| match changes {
            true => self.judge_open_change(&fd),
            false => Ok(()),
        });
        match judged {
            Ok(()) => Ok(fd),
            Err(error) => {
                self.inner.table.delete(fd)?;
                Err(error)
            }
        }
    }
}

fn follows_links(flags: PathFlags) -> bool {
    flags.contains(PathFlags::SYMLINK_FOLLOW)
}

impl types::Host for GuardedFilesystem<'_> {
    fn convert_error_code(&mut self, error: FsError) -> wasmtime::Result<ErrorCode> {
        types::Host::convert_error_code(&mut self.inner, error)
    }

    fn filesystem_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        types::Host::filesystem_error_code(&mut self.inner, error)
    }
}

impl types::HostDescriptor for GuardedFilesystem<'_> {
    async fn advise(
        &mut self,
        fd: Resource<Descriptor>,
        offset: u64,
        len: u64,
        advice: types::Advice,
    ) -> FsResult<()> {
        types::HostDescriptor::advise(&mut self.inner, fd, offset, len, advice).await
    }

    async fn sync_data(&mut self, fd: Resource<Descriptor>) -> FsResult<()> {
        types::HostDescriptor::sync_data(&mut self.inner, fd).await
    }

    async fn get_flags(&mut self, fd: Resource<Descriptor>) -> FsResult<DescriptorFlags> {
        types::HostDescriptor::get_flags(&mut self.inner, fd).await
    }

    async fn get_type(&mut self, fd: Resource<Descriptor>) -> FsResult<types::DescriptorType> {
        types::HostDescriptor::get_type(&mut self.inner, fd).await
    }

    async fn set_size(&mut self, fd: Resource<Descriptor>, size: u64) -> FsResult<()> {
        self.judge_open_change(&fd)?;
        types::HostDescriptor::set_size(&mut self.inner, fd, size).await
    }

    async fn set_times(
        &mut self,
        fd: Resource<Descriptor>,
        atim: types::NewTimestamp,
        mtim: types::NewTimestamp,
    ) -> FsResult<()> {
        self.judge_open_change(&fd)?;
        types::HostDescriptor::set_times(&mut self.inner, fd, atim, mtim).await
    }

    async fn read(&mut self, fd: Resource<Descriptor>, len: u64, offset: u64) -> FsResult<(Vec<u8>, bool)> {
        types::HostDescriptor::read(&mut self.inner, fd, len, offset).await
    }

    async fn write(&mut self, fd: Resource<Descriptor>, buf: Vec<u8>, offset: u64) -> FsResult<u64> {
        types::HostDescriptor::write(&mut self.inner, fd, buf, offset).await
    }

    async fn read_directory(
        &mut self,
        fd: Resource<Descriptor>,
    ) -> FsResult<Resource<types::DirectoryEntryStream>> {
        if self.walls.listings >= MAX_LISTINGS {
            return Err(ErrorCode::Quota.into());
        }
        if let Descriptor::Dir(dir) = self.inner.table.get(&fd)? {
            within_bounds(dir.dir.as_fd())?;
        }
        let listing = types::HostDescriptor::read_directory(&mut self.inner, fd).await?;
        self.walls.listings += 1;
        Ok(listing)
    }

    async fn sync(&mut self, fd: Resource<Descriptor>) -> FsResult<()> {
        types::HostDescriptor::sync(&mut self.inner, fd).await
    }

    async fn create_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        self.judge_change(&fd, &path, false, false)?;
        types::HostDescriptor::create_directory_at(&mut self.inner, fd, path).await
    }

    async fn stat(&mut self, fd: Resource<Descriptor>) -> FsResult<types::DescriptorStat> {
        types::HostDescriptor::stat(&mut self.inner, fd).await
    }

    async fn stat_at(
        &mut self,
        fd: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
    ) -> FsResult<types::DescriptorStat> {
        self.judge_path(&fd, &path, follows_links(flags))?;
        types::HostDescriptor::stat_at(&mut self.inner, fd, flags, path).await
    }

    async fn set_times_at(
        &mut self,
        fd: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
        atim: types::NewTimestamp,
        mtim: types::NewTimestamp,
    ) -> FsResult<()> {
        self.judge_change(&fd, &path, follows_links(flags), false)?;
        types::HostDescriptor::set_times_at(&mut self.inner, fd, flags, path, atim, mtim).await
    }

    async fn link_at(
        &mut self,
        fd: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
        new_fd: Resource<Descriptor>,
        new_path: String,
    ) -> FsResult<()> {
        self.judge_change(&fd, &path, true, false)?;
        self.judge_change(&new_fd, &new_path, false, true)?;
        types::HostDescriptor::link_at(&mut self.inner, fd, flags, path, new_fd, new_path).await
    }

    async fn readlink_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<String> {
        self.judge_path(&fd, &path, false)?;
        types::HostDescriptor::readlink_at(&mut self.inner, fd, path).await
    }

    async fn remove_directory_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        self.judge_change(&fd, &path, false, true)?;
        types::HostDescriptor::remove_directory_at(&mut self.inner, fd, path).await
    }

    async fn rename_at(
        &mut self,
        fd: Resource<Descriptor>,
        path: String,
        new_fd: Resource<Descriptor>,
        new_path: String,
    ) -> FsResult<()> {
        self.judge_move(&fd, &path)?;
        self.judge_move(&new_fd, &new_path)?;
        types::HostDescriptor::rename_at(&mut self.inner, fd, path, new_fd, new_path).await
    }

    async fn symlink_at(&mut self, fd: Resource<Descriptor>, target: String, path: String) -> FsResult<()> {
        self.judge_change(&fd, &path, false, true)?;
        types::HostDescriptor::symlink_at(&mut self.inner, fd, target, path).await
    }

    async fn unlink_file_at(&mut self, fd: Resource<Descriptor>, path: String) -> FsResult<()> {
        self.judge_change(&fd, &path, false, true)?;
        types::HostDescriptor::unlink_file_at(&mut self.inner, fd, path).await
    }

    async fn metadata_hash(&mut self, fd: Resource<Descriptor>) -> FsResult<types::MetadataHashValue> {
        types::HostDescriptor::metadata_hash(&mut self.inner, fd).await
    }

    async fn metadata_hash_at(
        &mut self,
        fd: Resource<Descriptor>,
        flags: PathFlags,
        path: String,
    ) -> FsResult<types::MetadataHashValue> {
        self.judge_path(&fd, &path, follows_links(flags))?;
        types::HostDescriptor::metadata_hash_at(&mut self.inner, fd, flags, path).await
    }

    async fn open_at(
        &mut self,
        fd: Resource<Descriptor>,
        path_flags: PathFlags,
        path: String,
        open: OpenFlags,
        flags: DescriptorFlags,
    ) -> FsResult<Resource<Descriptor>> {
        if self.walls.open >= self.walls.max_open {
            return Err(ErrorCode::Quota.into());
        }
        // For a folder opened for writing, each later action in it is checked.
        let changes = open.intersects(OpenFlags::CREATE | OpenFlags::TRUNCATE)
            || flags.contains(DescriptorFlags::WRITE);
        match changes {
            true => self.judge_change(&fd, &path, follows_links(path_flags), false)?,
            false => self.judge_path(&fd, &path, follows_links(path_flags))?,
        }
        let opened =
            types::HostDescriptor::open_at(&mut self.inner, fd, path_flags, path, open, flags).await?;
        let opened = self.judge_opened(opened, changes)?;
        self.walls.open += 1;
        Ok(opened)
    }

    fn drop(&mut self, fd: Resource<Descriptor>) -> wasmtime::Result<()> {
        self.walls.open = self.walls.open.saturating_sub(1);
        types::HostDescriptor::drop(&mut self.inner, fd)
    }

    fn read_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: u64,
    ) -> FsResult<Resource<types::InputStream>> {
        types::HostDescriptor::read_via_stream(&mut self.inner, fd, offset)
    }

    fn write_via_stream(
        &mut self,
        fd: Resource<Descriptor>,
        offset: u64,
    ) -> FsResult<Resource<types::OutputStream>> {
        types::HostDescriptor::write_via_stream(&mut self.inner, fd, offset)
    }

    fn append_via_stream(&mut self, fd: Resource<Descriptor>) -> FsResult<Resource<types::OutputStream>> {
        types::HostDescriptor::append_via_stream(&mut self.inner, fd)
    }

    async fn is_same_object(
        &mut self,
        a: Resource<Descriptor>,
        b: Resource<Descriptor>,
    ) -> wasmtime::Result<bool> {
        types::HostDescriptor::is_same_object(&mut self.inner, a, b).await
    }
}

impl types::HostDirectoryEntryStream for GuardedFilesystem<'_> {
    async fn read_directory_entry(
        &mut self,
        stream: Resource<types::DirectoryEntryStream>,
    ) -> FsResult<Option<types::DirectoryEntry>> {
        types::HostDirectoryEntryStream::read_directory_entry(&mut self.inner, stream).await
    }

    fn drop(&mut self, stream: Resource<types::DirectoryEntryStream>) -> wasmtime::Result<()> {
        self.walls.listings = self.walls.listings.saturating_sub(1);
        types::HostDirectoryEntryStream::drop(&mut self.inner, stream)
    }
}
