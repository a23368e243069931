//! Applies `denied_paths` in the file server (R33). Paths that existed at the start of the run are covered in the sandbox already.
//! Here the real path of every name that the machine requests is checked, so that a rule also applies to files created later, and
//! to other hard links of a denied file. The agent's own files are checked before changes. Everything else is passed through
//! unchanged.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fuse_backend_rs::abi::fuse_abi::{CreateIn, FsOptions, OpenOptions, SetattrValid, stat64, statvfs64};
use fuse_backend_rs::api::filesystem::{
    Context, DirEntry, Entry, FileLock, FileSystem, GetxattrReply, ListxattrReply, ZeroCopyReader,
    ZeroCopyWriter,
};
use fuse_backend_rs::passthrough::PassthroughFs;

use super::wire::FileServerRules;
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::{Denied, Filesystem, FsMode};
use clawk_plan::preflight::path::lexical_path;

pub(super) struct GuardedPassthrough {
    inner: PassthroughFs<()>,
    filesystem: Filesystem,
    base: PathBuf,
    /// Device and inode of denied files that have other hard links.
    aliases: HashSet<(u64, u64)>,
    /// The agent's own files. They may be read, but never changed.
    kept: RuntimeFileGuard,
}

fn refused_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EACCES)
}

fn own_file_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EROFS)
}

/// Open flags that allow changing a file.
const CHANGES: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC).unsigned_abs();

impl GuardedPassthrough {
    pub(super) fn new(inner: PassthroughFs<()>, rules: FileServerRules) -> Self {
        let mut filesystem = rules.filesystem;
        let renamed = filesystem
            .denied
            .iter()
            .flat_map(|entry| real_rules(entry, &rules.base));
        let renamed: Vec<Denied> = renamed.collect();
        filesystem.denied.extend(renamed);
        Self {
            inner,
            filesystem,
            base: rules.base,
            aliases: rules.aliases.into_iter().collect(),
            kept: rules.kept,
        }
    }

    fn is_unrestricted(&self) -> bool {
        self.filesystem.denied.is_empty()
    }

    /// The real path of a name.
    fn real_path(&self, parent: u64, name: &CStr) -> io::Result<PathBuf> {
        let folder = self.inner.readlinkat_proc_file(parent)?;
        Ok(lexical_path(
            &folder,
            Path::new(OsStr::from_bytes(name.to_bytes())),
        ))
    }

    fn check_admitted(&self, parent: u64, name: &CStr) -> io::Result<()> {
        if self.is_unrestricted()
            || !self
                .filesystem
                .denies_path(&self.real_path(parent, name)?, &self.base)
        {
            Ok(())
        } else {
            Err(refused_error())
        }
    }

    /// Checks a file that was opened before a rule applied to it.
    fn admit_inode(&self, inode: u64) -> io::Result<()> {
        if self.is_unrestricted()
            || !self
                .filesystem
                .denies_path(&self.inner.readlinkat_proc_file(inode)?, &self.base)
        {
            Ok(())
        } else {
            Err(refused_error())
        }
    }

    /// Checks that this is neither a denied path nor a folder that a rule names.
    fn check_movable(&self, parent: u64, name: &CStr) -> io::Result<()> {
        if self.is_unrestricted() {
            return Ok(());
        }
        let place = self.real_path(parent, name)?;
        let spoken_of = self.filesystem.denied.iter().any(|denied| {
            let fixed = lexical_path(&self.base, Path::new(denied.fixed_part()));
            fixed != Path::new("/") && fixed.starts_with(&place)
        });
        if spoken_of || self.filesystem.denies_path(&place, &self.base) {
            return Err(refused_error());
        }
        Ok(())
    }

    /// Checks that an entry with this name may be created, removed or moved: not one of the agent's own files, and not a folder on
    /// the path to one.
    fn check_changeable(&self, parent: u64, name: &CStr) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let place = self.real_path(parent, name)?;
        if self.kept.contains_path(&place) || self.kept.leads_to_own(&place) {
            return Err(own_file_error());
        }
        Ok(())
    }

    /// Checks that the content, the mode and the names of this file may be changed.
    fn changeable_inode(&self, ctx: &Context, inode: u64) -> io::Result<()> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let (about, _) = self.inner.getattr(ctx, inode, None)?;
        if self.kept.is_same_file(about.st_dev, about.st_ino)
            || self.kept.contains_path(&self.inner.readlinkat_proc_file(inode)?)
        {
            return Err(own_file_error());
        }
        Ok(())
    }

    fn admit_entry(&self, ctx: &Context, entry: Entry) -> io::Result<Entry> {
        if self.aliases.contains(&(entry.attr.st_dev, entry.attr.st_ino)) {
            self.inner.forget(ctx, entry.inode, 1);
            return Err(refused_error());
        }
        Ok(entry)
    }
}

/// The rule under its real names here, if a link leads elsewhere.
fn real_rules(entry: &Denied, base: &Path) -> Vec<Denied> {
    let place = lexical_path(base, Path::new(entry.fixed_part()));
    let mut names = Vec::new();
    names.extend(place.canonicalize().ok());
    if !entry.is_pattern() {
        let last = place.file_name().unwrap_or_default();
        let folder = place.parent().and_then(|folder| folder.canonicalize().ok());
        names.extend(folder.map(|folder| folder.join(last)));
    }
    let new = names.into_iter().filter(|name| *name != place);
    new.filter_map(|name| entry.with_fixed_part(&name).ok()).collect() // silent-ok: the rule holds as it was written
}

/// How many files of a mount are checked for other hard links of denied files. Beyond that, only the covers protect them.
const MAX_ENTRIES: usize = 50_000;

/// Device and inode of denied files of the host that have other hard links. They are found before a sandbox covers them.
pub(super) fn find_aliases(filesystem: &Filesystem, base: &Path) -> Vec<(u64, u64)> {
    let roots = filesystem
        .shown_mounts()
        .into_iter()
        .map(|(path, _)| lexical_path(base, &path));
    let named = filesystem.denied.iter().filter(|entry| !entry.is_pattern());
    let named = named.map(|entry| lexical_path(base, Path::new(entry.text())));
    let mut open: Vec<PathBuf> = match filesystem.mode {
        FsMode::Full => named.collect(),
        FsMode::Deny | FsMode::ReadOnly | FsMode::Scoped => roots.chain(named).collect(),
    };
    let mut found = HashSet::new();
    let mut left = MAX_ENTRIES;
    while let (Some(path), Some(rest)) = (open.pop(), left.checked_sub(1)) {
        left = rest;
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        if about.is_dir() {
            let listing = std::fs::read_dir(&path).into_iter().flatten().flatten();
            open.extend(listing.map(|entry| entry.path()));
        } else if about.nlink() > 1 && filesystem.denies_path(&path, base) {
            found.insert((about.dev(), about.ino()));
        }
    }
    found.into_iter().collect()
}

/// Forwards calls to the passthrough.
macro_rules! passes {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, ctx: &Context, $($arg: $kind),*) -> $result {
            self.inner.$name(ctx, $($arg),*)
        })*
    };
}

/// Forwards calls to the passthrough after the named path was checked.
macro_rules! judges {
    ($(fn $name:ident($parent:ident, $named:ident $(, $arg:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self, ctx: &Context, $parent: u64, $named: &CStr, $($arg: $kind),*) -> $result {
            self.check_admitted($parent, $named)?;
            self.check_changeable($parent, $named)?;
            self.inner.$name(ctx, $parent, $named, $($arg),*)
        })*
    };
}

type VirtiofsOpenReply = (Option<u64>, OpenOptions, Option<u32>);

impl FileSystem for GuardedPassthrough {
    type Inode = u64;
    type Handle = u64;

    fn init(&self, capable: FsOptions) -> io::Result<FsOptions> {
        // Listings that include attributes would bypass the checks.
        let plus = FsOptions::DO_READDIRPLUS | FsOptions::READDIRPLUS_AUTO;
        Ok(self.inner.init(capable - plus)? - plus)
    }

    fn destroy(&self) {
        self.inner.destroy();
    }

    /// The requester is the sandbox's user, which can't become another user.
    fn id_remap(&self, ctx: &mut Context) -> io::Result<()> {
        (ctx.uid, ctx.gid) = (0, 0);
        Ok(())
    }

    fn lookup(&self, ctx: &Context, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.check_admitted(parent, name)?;
        let entry = self.inner.lookup(ctx, parent, name)?;
        self.admit_entry(ctx, entry)
    }

    fn open(&self, ctx: &Context, inode: u64, flags: u32, fuse_flags: u32) -> io::Result<VirtiofsOpenReply> {
        self.admit_inode(inode)?;
        if flags & CHANGES != 0 {
            self.changeable_inode(ctx, inode)?;
        }
        self.inner.open(ctx, inode, flags, fuse_flags)
    }

    fn opendir(&self, ctx: &Context, inode: u64, flags: u32) -> io::Result<(Option<u64>, OpenOptions)> {
        self.admit_inode(inode)?;
        self.inner.opendir(ctx, inode, flags)
    }

    fn symlink(&self, ctx: &Context, target: &CStr, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.check_admitted(parent, name)?;
        self.check_changeable(parent, name)?;
        self.inner.symlink(ctx, target, parent, name)
    }

    fn link(&self, ctx: &Context, inode: u64, parent: u64, name: &CStr) -> io::Result<Entry> {
        self.admit_inode(inode)?;
        self.check_admitted(parent, name)?;
        self.changeable_inode(ctx, inode)?;
        self.check_changeable(parent, name)?;
        self.inner.link(ctx, inode, parent, name)
    }

    fn rename(
        &self,
        ctx: &Context,
        from: u64,
        old: &CStr,
        to: u64,
        new: &CStr,
        flags: u32,
    ) -> io::Result<()> {
        self.check_movable(from, old)?;
        self.check_movable(to, new)?;
        self.check_changeable(from, old)?;
        self.check_changeable(to, new)?;
        self.inner.rename(ctx, from, old, to, new, flags)
    }

    fn forget(&self, ctx: &Context, inode: u64, count: u64) {
        self.inner.forget(ctx, inode, count);
    }

    fn batch_forget(&self, ctx: &Context, requests: Vec<(u64, u64)>) {
        self.inner.batch_forget(ctx, requests);
    }

    fn setattr(
        &self,
        ctx: &Context,
        inode: u64,
        attr: stat64,
        handle: Option<u64>,
        valid: SetattrValid,
    ) -> io::Result<(stat64, Duration)> {
        self.changeable_inode(ctx, inode)?;
        self.inner.setattr(ctx, inode, attr, handle, valid)
    }

    judges! {
        fn mknod(parent, name, mode: u32, rdev: u32, umask: u32) -> io::Result<Entry>;
        fn mkdir(parent, name, mode: u32, umask: u32) -> io::Result<Entry>;
        fn unlink(parent, name) -> io::Result<()>;
        fn rmdir(parent, name) -> io::Result<()>;
        fn create(parent, name, args: CreateIn) -> io::Result<(Entry, Option<u64>, OpenOptions, Option<u32>)>;
    }

    passes! {
        fn getattr(inode: u64, handle: Option<u64>) -> io::Result<(stat64, Duration)>;
        fn readlink(inode: u64) -> io::Result<Vec<u8>>;
        fn read(
            inode: u64, handle: u64, w: &mut dyn ZeroCopyWriter, size: u32, offset: u64,
            lock_owner: Option<u64>, flags: u32
        ) -> io::Result<usize>;
        fn write(
            inode: u64, handle: u64, r: &mut dyn ZeroCopyReader, size: u32, offset: u64,
            lock_owner: Option<u64>, delayed_write: bool, flags: u32, fuse_flags: u32
        ) -> io::Result<usize>;
        fn flush(inode: u64, handle: u64, lock_owner: u64) -> io::Result<()>;
        fn fsync(inode: u64, datasync: bool, handle: u64) -> io::Result<()>;
        fn fallocate(inode: u64, handle: u64, mode: u32, offset: u64, length: u64) -> io::Result<()>;
        fn release(
            inode: u64, flags: u32, handle: u64, flush: bool, flock_release: bool,
            lock_owner: Option<u64>
        ) -> io::Result<()>;
        fn statfs(inode: u64) -> io::Result<statvfs64>;
        fn getxattr(inode: u64, name: &CStr, size: u32) -> io::Result<GetxattrReply>;
        fn listxattr(inode: u64, size: u32) -> io::Result<ListxattrReply>;
        fn readdir(
            inode: u64, handle: u64, size: u32, offset: u64,
            add: &mut dyn FnMut(DirEntry<'_>) -> io::Result<usize>
        ) -> io::Result<()>;
        fn fsyncdir(inode: u64, datasync: bool, handle: u64) -> io::Result<()>;
        fn releasedir(inode: u64, flags: u32, handle: u64) -> io::Result<()>;
        fn access(inode: u64, mask: u32) -> io::Result<()>;
        fn lseek(inode: u64, handle: u64, offset: u64, whence: u32) -> io::Result<u64>;
        fn getlk(inode: u64, handle: u64, owner: u64, lock: FileLock, flags: u32) -> io::Result<FileLock>;
        fn setlk(inode: u64, handle: u64, owner: u64, lock: FileLock, flags: u32) -> io::Result<()>;
    }
}
