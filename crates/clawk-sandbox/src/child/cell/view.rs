//! The view: which of the host's files a sandbox sees (R33). It is built on a tmpfs before anything of the tool runs. Each host
//! path is resolved once, to a descriptor, and mounted by descriptor.
//!
//! Long because the order in which the pieces are put in place matters, and a reader must see all of it.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};

use super::identity::ToolIdentity;
use super::mounts::{fd_owner, mount_points};
use super::order::SandboxEnclosure;
use super::pieces::{HostMountPiece, HostPieces, is_folder, named_error};
pub(super) use super::pieces::{attach_at_root, attach_mount, copy_of, open_host, real_path};
use super::world::{HostObservation, ObservationLog};
use super::{etc, keep, kvm, masks};
use crate::child::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY};
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::Denied;

/// The device nodes of `/dev`.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Parts of the system view that are folders on some systems and links on others.
const MERGED: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Files of `/proc` that describe the host, not the sandbox.
const PROC_FILES: [&str; 9] = [
    "keys",
    "key-users",
    "kcore",
    "cmdline",
    "sysrq-trigger",
    "kallsyms",
    "config.gz",
    "timer_list",
    "modules",
];
const PROC_FOLDERS: [&str; 6] = ["acpi", "scsi", "bus", "fs", "irq", "driver"];

/// Files in `/tmp` may use the memory limit divided by this. Their pages count as memory, too.
const TMP_SHARE: u64 = 2;

/// The maximum number of open terminals per sandbox. The kernel has a few thousand for the whole system.
const MAX_TERMINALS: &str = "32";

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A view under construction. It begins without an order ([`SandboxView::with_system_parts`]) or with the whole host
/// ([`SandboxView::of_host`]), and is completed with the order's parts ([`SandboxView::apply_order`]).
pub(super) struct SandboxView {
    pub(super) identity: ToolIdentity,
    /// The sandbox's root.
    pub(super) root: OwnedFd,
    /// The device number of the root's own file system. Files may be created there without touching the host. `None` in mode
    /// `full`.
    skeleton: Option<u64>,
    /// The device number of the sandbox's own `/tmp`, if it exists.
    in_memory: Option<u64>,
    /// Folders that are known to exist.
    made: RefCell<HashSet<PathBuf>>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    pub(super) held: Vec<String>,
    /// Device and inode of denied files that have other hard links.
    pub(super) aliases: HashSet<(u64, u64)>,
    /// The denied paths, including their real names behind links.
    pub(super) denied: Vec<Denied>,
    /// The covers for denied places.
    pub(super) covers: masks::MaskCovers,
    /// Observations of the host from which the view is made.
    pub(super) notes: ObservationLog,
    /// Folders that can no longer be moved.
    pub(super) pinned: HashSet<PathBuf>,
    /// The agent's own files.
    pub(super) kept: RuntimeFileGuard,
}

/// The parts of the view that the later isolation steps need.
pub(super) struct BuiltView {
    pub(super) readable: Vec<PathBuf>,
    pub(super) writable: Vec<PathBuf>,
    pub(super) held: Vec<String>,
    pub(super) aliases: HashSet<(u64, u64)>,
    pub(super) denied: Vec<Denied>,
    pub(super) kept: RuntimeFileGuard,
    pub(super) seen: Vec<HostObservation>,
}

/// Creates a file system in memory.
pub(super) fn create_tmpfs(bytes: u64, mode: &str, owner: Option<ToolIdentity>) -> io::Result<OwnedFd> {
    let context =
        rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(named_error("tmpfs"))?;
    let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(context.as_fd(), key, value);
    set("size", &bytes.to_string())?;
    // A folder with a million empty files also uses memory.
    set("nr_inodes", &(bytes / 4096).clamp(1024, 1 << 20).to_string())?;
    set("mode", mode)?;
    if let Some(owner) = owner {
        set("uid", &owner.uid.to_string())?;
        set("gid", &owner.gid.to_string())?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).map_err(named_error("tmpfs"))?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        flags,
    )?)
}

/// The host's root for mode `full`. Mounts below it follow in [`SandboxView::mount_host`].
fn host_root(identity: ToolIdentity, idmaps: &HashMap<(u32, u32), OwnedFd>) -> io::Result<OwnedFd> {
    let root = open_host(Path::new("/"))?;
    let copy = copy_of(&root, !identity.dropped).map_err(named_error("the host's root"))?;
    sys::set_attributes(&copy, true, ATTR_NOSUID | ATTR_NODEV, 0)?;
    if identity.dropped
        && let Some(userns) = idmaps.get(&(0, 0))
    {
        sys::set_idmap(&copy, false, userns)
            .map_err(|error| io::Error::other(format!("idmapped mount of `/`: {error}")))?;
    }
    Ok(copy)
}

impl SandboxView {
    /// The view of every mode but `full`: programs and libraries, a synthetic `/etc`, `/dev`, `/proc`. `kvm`: with `/dev/kvm`.
    pub(super) fn with_system_parts(identity: ToolIdentity, noting: bool, kvm: bool) -> io::Result<Self> {
        sys::make_all_private()?;
        let root = create_tmpfs(4 << 20, "755", None)?;
        let skeleton = rustix::fs::fstat(&root)?.st_dev;
        let mut view = Self::from_root(root, Some(skeleton), identity, noting)?;
        view.mount_programs()?;
        view.mount_kernel_parts(kvm)?;
        Ok(view)
    }

    /// The view of mode `full`: the whole host, except for kernel interfaces and devices.
    pub(super) fn of_host(
        identity: ToolIdentity,
        idmaps: &HashMap<(u32, u32), OwnedFd>,
        noting: bool,
        kvm: bool,
    ) -> io::Result<Self> {
        sys::make_all_private()?;
        let root = host_root(identity, idmaps)?;
        let mut view = Self::from_root(root, None, identity, noting)?;
        view.mount_host(idmaps)?;
        view.mount_kernel_parts(kvm)?;
        Ok(view)
    }

    fn from_root(
        root: OwnedFd,
        skeleton: Option<u64>,
        identity: ToolIdentity,
        noting: bool,
    ) -> io::Result<Self> {
        let covers = match skeleton {
            None => {
                let covers = masks::MaskCovers::create_covers(None)?;
                attach_at_root(&root).map_err(named_error("the root"))?;
                covers
            }
            Some(_) => {
                attach_at_root(&root).map_err(named_error("the root"))?;
                rustix::fs::mkdirat(&root, "tmp", Mode::from_raw_mode(0o755))?;
                let flags = PATH_ONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
                // Until `/tmp` is mounted.
                masks::MaskCovers::create_covers(Some(&rustix::fs::openat(
                    &root,
                    "tmp",
                    flags,
                    Mode::empty(),
                )?))?
            }
        };
        Ok(Self {
            identity,
            root,
            skeleton,
            in_memory: None,
            made: RefCell::default(),
            readable: Vec::new(),
            writable: Vec::new(),
            held: vec!["view".to_owned(), "nosuid,nodev".to_owned()],
            aliases: HashSet::new(),
            denied: Vec::new(),
            covers,
            notes: ObservationLog {
                taken: noting,
                owned: identity.dropped,
                seen: Vec::new(),
            },
            pinned: HashSet::new(),
            kept: RuntimeFileGuard::default(),
        })
    }

    fn mount_kernel_parts(&mut self, kvm: bool) -> io::Result<()> {
        self.mount_devices(kvm)?;
        if kvm {
            kvm::mount_kvm_node(self)?;
        }
        self.mount_proc()
    }

    /// Whether the whole host is shown.
    pub(super) fn is_full(&self) -> bool {
        self.skeleton.is_none()
    }

    /// Adds the order's parts. `memory_mb` limits files in memory.
    pub(super) fn apply_order(
        &mut self,
        order: &SandboxEnclosure,
        pieces: HostPieces,
        memory_mb: u64,
    ) -> io::Result<()> {
        self.mount_writable_memory(memory_mb)?;
        self.mount_memory_files(order)?;
        self.held.extend(pieces.held);
        for piece in pieces.binds {
            self.bind_piece(piece)?;
        }
        // If nothing of the working directory is shown, an empty folder takes its place.
        if let Some(workdir) = pieces.workdir.filter(|_| !self.is_full()) {
            self.create_folder(&workdir)?;
        }
        self.kept = pieces.kept;
        keep::cover_own_files(self)?;
        self.denied.clone_from(&order.filesystem.denied);
        masks::cover_denied_paths(self, order)?;
        if self.skeleton.is_some() {
            sys::set_attributes(&self.root, false, ATTR_RDONLY, 0)?;
        }
        Ok(())
    }

    /// Mounts programs and libraries, and creates a synthetic `/etc`.
    fn mount_programs(&mut self) -> io::Result<()> {
        self.bind_system(Path::new("/usr"))?;
        for name in MERGED {
            let path = Path::new("/").join(name);
            let link = std::fs::read_link(&path);
            self.notes.record_link(&path, link.as_deref().ok());
            match link {
                Ok(target) => rustix::fs::symlinkat(&target, &self.root, name)?,
                Err(_) if path.is_dir() => self.bind_system(&path)?, // silent-ok: no link
                Err(_) => self.notes.record_absent(&path),           // silent-ok: not on this system
            }
        }
        for store in ["/nix/store", "/gnu/store"] {
            if Path::new(store).is_dir() {
                self.bind_system(Path::new(store))?;
            } else {
                self.notes.record_absent(Path::new(store));
            }
        }
        etc::create_etc(self)?;
        for (name, mode) in [
            ("run", 0o755),
            ("var", 0o755),
            ("home", 0o755),
            ("proc", 0o555),
            ("dev", 0o755),
        ] {
            rustix::fs::mkdirat(&self.root, name, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    /// Mounts the places in memory that a tool can always write to.
    fn mount_writable_memory(&mut self, memory_mb: u64) -> io::Result<()> {
        let shm = create_tmpfs(((memory_mb << 20) / 4).max(1 << 20), "1777", None)?;
        self.mount_at(&shm, Path::new("/dev/shm"))?;
        self.writable.push(PathBuf::from("/dev/shm"));
        if self.is_full() {
            return Ok(());
        }
        let bytes = (memory_mb << 20) / TMP_SHARE;
        let tmp = create_tmpfs(bytes.max(1 << 20), "1777", None)?;
        self.in_memory = Some(rustix::fs::fstat(&tmp)?.st_dev);
        self.mount_creating(&tmp, Path::new("/tmp"), true)?;
        // A separate mount and not a link: a path in it must have the name that the rules use.
        self.mount_creating(
            &copy_of(self.open_path(Path::new("/tmp"))?, false)?,
            Path::new("/var/tmp"),
            true,
        )?;
        self.writable.push(PathBuf::from("/var/tmp"));
        self.writable.push(PathBuf::from("/tmp"));
        self.held.push(format!("tmpfs:{}MiB", (bytes >> 20).max(1)));
        Ok(())
    }

    fn bind_system(&mut self, path: &Path) -> io::Result<()> {
        let fd = open_host(path).map_err(named_error(&path.to_string_lossy()))?;
        self.notes.record_opened(path, &fd, None)?;
        let copy = copy_of(&fd, true)?;
        sys::set_attributes(&copy, true, ATTR_RDONLY | ATTR_NOSUID | ATTR_NODEV, 0)?;
        self.mount_creating(&copy, path, true)?;
        self.readable.push(path.to_path_buf());
        Ok(())
    }

    /// Mounts the host's mounts.
    fn mount_host(&mut self, idmaps: &HashMap<(u32, u32), OwnedFd>) -> io::Result<()> {
        self.writable.push(PathBuf::from("/"));
        if self.identity.dropped {
            for path in mount_points()? {
                self.host_mount(&path, idmaps)?;
            }
        }
        for path in ["/sys", "/dev", "/proc"] {
            if Path::new(path).is_dir() {
                let empty = create_tmpfs(1 << 20, "755", None)?;
                self.mount_creating(&empty, Path::new(path), true)?;
            }
        }
        self.held.push("host-view".to_owned());
        Ok(())
    }

    fn host_mount(&mut self, path: &Path, idmaps: &HashMap<(u32, u32), OwnedFd>) -> io::Result<()> {
        let Ok(fd) = open_host(path) else {
            self.notes.record_absent(path);
            return Ok(()); // hidden below another mount
        };
        let owner = fd_owner(&fd)?;
        self.notes.record_opened(path, &fd, Some(path))?;
        let copy = copy_of(&fd, false)?;
        sys::set_attributes(&copy, false, ATTR_NOSUID | ATTR_NODEV, 0)?;
        if let Some(userns) = idmaps.get(&owner).or_else(|| idmaps.get(&(0, 0)))
            && sys::set_idmap(&copy, false, userns).is_err()
        {
            // Some file systems do not support id maps. The tool is then a foreign user there, which is stricter.
            self.held.push(format!("unmapped:{}", path.display()));
        }
        self.mount_creating(&copy, path, is_folder(&fd)?)
    }

    /// Mounts one of the plan's mounts, or the program's installation.
    fn bind_piece(&mut self, piece: HostMountPiece) -> io::Result<()> {
        let HostMountPiece {
            bind,
            real,
            mount,
            folder,
        } = piece;
        if !self.is_full()
            && let Some(above) = real.parent()
        {
            // Below a writable mount: pin the parents, otherwise the next call would find something else under this name.
            masks::pin_folders(self, above)?;
        }
        self.mount_creating(&mount, &real, folder)?;
        if real != bind.path {
            self.create_link(&bind.path, &real)?;
        }
        if bind.writable {
            self.writable.push(real);
        } else {
            self.readable.push(real);
        }
        Ok(())
    }

    fn mount_devices(&mut self, kvm: bool) -> io::Result<()> {
        let dev = create_tmpfs(1 << 20, "755", None)?;
        let mut sources = Vec::with_capacity(NODES.len());
        for node in NODES {
            let source = open_host(&Path::new("/dev").join(node)).map_err(named_error(node))?;
            self.notes
                .record_opened(&Path::new("/dev").join(node), &source, None)?;
            if FileType::from_raw_mode(rustix::fs::fstat(&source)?.st_mode) != FileType::CharacterDevice {
                return Err(io::Error::other(format!("`/dev/{node}` is not a device")));
            }
            let target = rustix::fs::openat(
                &dev,
                node,
                OFlags::CREATE | OFlags::CLOEXEC,
                Mode::from_raw_mode(0o666),
            )?;
            drop(target);
            sources.push(source);
        }
        if kvm {
            let flags = OFlags::CREATE | OFlags::CLOEXEC;
            drop(rustix::fs::openat(
                &dev,
                "kvm",
                flags,
                Mode::from_raw_mode(0o600),
            )?);
        }
        for (name, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ] {
            rustix::fs::symlinkat(target, &dev, name)?;
        }
        rustix::fs::symlinkat("pts/ptmx", &dev, "ptmx")?;
        for name in ["shm", "pts"] {
            rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755))?;
        }
        self.mount_creating(&dev, Path::new("/dev"), true)?;
        for (node, source) in NODES.into_iter().zip(sources) {
            let path = Path::new("/dev").join(node);
            let copy = copy_of(source, true)?;
            // Only these are devices; `nodev` applies everywhere else.
            sys::set_attributes(&copy, false, ATTR_NOSUID | ATTR_NOEXEC, 0)?;
            self.mount_at(&copy, &path)?;
            self.writable.push(path);
        }
        self.mount_terminals()?;
        let dev = self.open_path(Path::new("/dev"))?;
        sys::set_attributes(&dev, false, ATTR_RDONLY | ATTR_NOEXEC, 0)?;
        self.readable.push(PathBuf::from("/dev"));
        self.held.push("dev:6".to_owned());
        Ok(())
    }

    /// Gives the sandbox its own pseudo-terminals, for programs that need one. The host's terminals are not visible. If the kernel
    /// does not support this, there are none.
    fn mount_terminals(&mut self) -> io::Result<()> {
        let Ok(context) = rustix::mount::fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC) else {
            return Ok(()); // silent-ok: see above
        };
        let set = |key: &str, value: &str| rustix::mount::fsconfig_set_string(context.as_fd(), key, value);
        for (key, value) in [("ptmxmode", "666"), ("mode", "600"), ("max", MAX_TERMINALS)] {
            set(key, value).map_err(named_error("devpts"))?;
        }
        rustix::mount::fsconfig_create(context.as_fd()).map_err(named_error("devpts"))?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let terminals = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        self.mount_at(&terminals, Path::new("/dev/pts"))?;
        self.writable.push(PathBuf::from("/dev/pts"));
        Ok(())
    }

    /// Mounts `/proc` read-only, with only the sandbox's own processes.
    fn mount_proc(&mut self) -> io::Result<()> {
        let context =
            rustix::mount::fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC).map_err(named_error("proc"))?;
        rustix::mount::fsconfig_set_string(context.as_fd(), "hidepid", "invisible")
            .map_err(named_error("proc's `hidepid`"))?;
        rustix::mount::fsconfig_create(context.as_fd()).map_err(named_error(
            "a proc file system of its own (in a container, its /proc must not be covered)",
        ))?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_RDONLY;
        let proc = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        self.mount_creating(&proc, Path::new("/proc"), true)?;
        for name in PROC_FILES.iter().chain(&PROC_FOLDERS) {
            let path = Path::new("/proc").join(name);
            if let Ok(fd) = self.open_path(&path) {
                self.covers.cover_place(&fd)?;
            }
        }
        self.readable.push(PathBuf::from("/proc"));
        self.held.push("proc:own".to_owned());
        Ok(())
    }

    /// Creates files in memory that only this run sees (R37).
    fn mount_memory_files(&mut self, order: &SandboxEnclosure) -> io::Result<()> {
        if order.files.is_empty() {
            return Ok(());
        }
        let bytes: usize = order.files.iter().map(|(_, bytes)| bytes.len()).sum();
        let store = create_tmpfs(
            u64::try_from(bytes).unwrap_or(0) + (1 << 20),
            "500",
            Some(self.identity),
        )?;
        for (name, bytes) in &order.files {
            if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
                return Err(io::Error::other(
                    "a file of the run has a name that is not a valid name",
                ));
            }
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(&store, name.as_str(), flags, Mode::from_raw_mode(0o400))?;
            let mut file = std::fs::File::from(fd);
            io::Write::write_all(&mut file, bytes)?;
            if self.identity.dropped {
                std::os::unix::fs::fchown(&file, Some(self.identity.uid), Some(self.identity.gid))?;
            }
        }
        sys::set_attributes(&store, false, ATTR_RDONLY | ATTR_NOEXEC, 0)?;
        let folder = Path::new(crate::launch::InMemoryFile::FOLDER);
        if self.skeleton.is_none() {
            return Err(io::Error::other(
                "files in memory can't be given in the filesystem mode `full`",
            ));
        }
        self.mount_creating(&store, folder, true)?;
        self.readable.push(folder.to_path_buf());
        Ok(())
    }

    /// Opens a path in the view. Links can't lead out of it.
    pub(super) fn open_path(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.root, path_below_root(path), PATH_ONLY, Mode::empty(), flags)
    }

    /// Mounts on an existing path.
    pub(super) fn mount_at(&self, mount: &OwnedFd, path: &Path) -> io::Result<()> {
        let target = self
            .open_path(path)
            .map_err(named_error(&path.to_string_lossy()))?;
        // Paths below it are hidden now.
        self.made
            .borrow_mut()
            .retain(|known| known == path || !known.starts_with(path));
        attach_mount(mount, &target).map_err(named_error(&path.to_string_lossy()))
    }

    /// Mounts on a path, which is created if it is missing.
    pub(super) fn mount_creating(&self, mount: &OwnedFd, path: &Path, folder: bool) -> io::Result<()> {
        if folder {
            self.create_folder(path)?;
        } else {
            self.create_folder(path.parent().unwrap_or(Path::new("/")))?;
            if self.open_path(path).is_err() {
                let parent = self.open_path(path.parent().unwrap_or(Path::new("/")))?;
                self.require_own_filesystem(&parent, path)?;
                let name = path.file_name().unwrap_or_default();
                rustix::fs::openat(
                    &parent,
                    name,
                    OFlags::CREATE | OFlags::CLOEXEC,
                    Mode::from_raw_mode(0o444),
                )?;
            }
        }
        self.mount_at(mount, path)
    }

    /// Creates a folder and its parents, only on the sandbox's own file systems.
    pub(super) fn create_folder(&self, path: &Path) -> io::Result<()> {
        let mut so_far = PathBuf::from("/");
        for component in path.components() {
            let Component::Normal(name) = component else {
                continue;
            };
            let above = so_far.clone();
            so_far.push(name);
            if self.made.borrow().contains(&so_far) {
                continue;
            }
            if self.open_path(&so_far).is_err() {
                let parent = self.open_path(&above)?;
                self.require_own_filesystem(&parent, path)?;
                rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))
                    .map_err(named_error(&so_far.to_string_lossy()))?;
            }
            self.made.borrow_mut().insert(so_far.clone());
        }
        Ok(())
    }

    fn create_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let parent = from.parent().unwrap_or(Path::new("/"));
        self.create_folder(parent)?;
        let holder = self.open_path(parent)?;
        if self.open_path(from).is_err() && self.require_own_filesystem(&holder, from).is_ok() {
            rustix::fs::symlinkat(to, &holder, from.file_name().unwrap_or_default())?;
        }
        Ok(())
    }

    /// INVARIANT: nothing is ever created on a file system of the host.
    fn require_own_filesystem(&self, folder: &OwnedFd, path: &Path) -> io::Result<()> {
        let dev = Some(rustix::fs::fstat(folder)?.st_dev);
        if dev == self.skeleton || (self.skeleton.is_some() && dev == self.in_memory) {
            Ok(())
        } else {
            Err(io::Error::other(format!(
                "`{}` vanished while it was mounted",
                path.display()
            )))
        }
    }

    /// Makes the view this process's root, and detaches the old root.
    pub(super) fn enter_root(&self) -> io::Result<()> {
        rustix::process::fchdir(&self.root)?;
        rustix::process::pivot_root(".", ".").map_err(named_error("pivot_root"))?;
        // The host's root now covers the view's root; in mode `full`, the covers' file system covers both. `/..` leads to the
        // topmost.
        for _ in 0..if self.is_full() { 2 } else { 1 } {
            rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(named_error("pivot_root"))?;
        }
        rustix::process::chdir("/")?;
        if mount_of("/..")? != mount_of(".")? {
            return Err(io::Error::other("pivot_root: something still lies over the root"));
        }
        Ok(())
    }

    pub(super) fn into_built(self) -> BuiltView {
        BuiltView {
            readable: self.readable,
            writable: self.writable,
            held: self.held,
            aliases: self.aliases,
            denied: self.denied,
            kept: self.kept,
            seen: self.notes.seen,
        }
    }
}

/// The mount id of the mount that a path leads to.
fn mount_of(path: &str) -> io::Result<u64> {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(io::Error::other(
            "pivot_root: this kernel does not tell mounts apart",
        ));
    }
    Ok(found.stx_mnt_id)
}

/// The path in the form that calls relative to the root's descriptor need.
fn path_below_root(path: &Path) -> &Path {
    match path.strip_prefix("/") {
        Ok(rest) if rest.as_os_str().is_empty() => Path::new("."),
        Ok(rest) => rest,
        Err(_) => path, // silent-ok: relative already
    }
}
