//! `clawk __oci FOLDER`: the process between the supervisor and the OCI runtime. It makes the mount and network namespaces in which
//! the container is created, so that nothing of them outlives the run. Then it becomes the runtime.

use std::fs;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use nix::sched::CloneFlags;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::MountPropagationFlags;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};

use super::guard::{self, ContainerGuardRules};
use super::root;
use crate::child::cell::filter;
use crate::passing;

/// The first argument that starts the stage.
pub const MODE: &str = "__oci";

/// The third argument if groups enforce the limits.
pub(crate) const HELD: &str = "held";

/// The first argument of the process that only provides its user namespace.
const HOLD: &str = "hold";

/// Names of files in a run's folder.
pub(super) const ORDER: &str = "stage.json";
pub(super) const DOOR: &str = "door";
pub(super) const FILTER: &str = "filter";

/// The order for the stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StageOrder {
    pub(super) runtime: PathBuf,
    pub(super) name: String,
    /// Whether the runtime runs under the filter in the folder.
    pub(super) filtered: bool,
    /// The guard's rules, if there is a guard.
    pub(super) watch: Option<ContainerGuardRules>,
    /// Host paths that the system's root shows read-only under the same names; `None`: there is no system root.
    pub(super) system: Option<Vec<PathBuf>>,
    /// Whether each control group hierarchy is a separate mount.
    pub(super) hierarchies: bool,
    pub(super) places: Vec<IdmappedMount>,
    /// Whether to bind a listening socket in the container's network and pass it out.
    pub(super) door: bool,
    /// The tool's user id on the host.
    pub(super) guest: u32,
}

/// A host path that is mounted so that the guest user appears as its owner.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct IdmappedMount {
    pub(super) source: PathBuf,
    pub(super) at: PathBuf,
    pub(super) owner: u32,
}

/// Runs the stage. Returns only on failure; the reason is written where the launcher reads it.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<PathBuf> = std::env::args_os().skip(2).map(PathBuf::from).collect();
    let Some(folder) = words.first() else {
        return ExitCode::from(2);
    };
    if folder.as_os_str() == HOLD {
        return hold_namespace();
    }
    ExitCode::from(run(folder, None))
}

/// Runs the stage in a process that was forked for it, with one thread and only its streams open. `network` is a network namespace
/// for this run alone, made in advance. Returns only on failure, with the exit code for the process.
pub(crate) fn run(folder: &Path, network: Option<OwnedFd>) -> u8 {
    let Err(error) = become_runtime(folder, network);
    let line = serde_json::json!({"level": "error", "msg": error.to_string()});
    let _ = fs::write(folder.join("log.json"), line.to_string()); // silent-ok: the exit code says that it failed
    2
}

fn become_runtime(folder: &Path, network: Option<OwnedFd>) -> io::Result<std::convert::Infallible> {
    crate::child::set_box_umask();
    let order: StageOrder = serde_json::from_slice(&fs::read(folder.join(ORDER))?)?;
    if rustix::process::geteuid().is_root() {
        nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
        match network {
            Some(network) => nix::sched::setns(network, CloneFlags::CLONE_NEWNET)?,
            None => {
                nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
                bring_loopback_up()?;
            }
        }
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private)?;
        if order.hierarchies {
            root::hide_other_hierarchies()?;
        }
        root::create_root(folder, &order)?;
        for owner in mount_owners(&order.places) {
            let users = create_user_namespace(owner, order.guest)?;
            for place in order.places.iter().filter(|place| place.owner == owner) {
                mount_idmapped(place, &users)?;
            }
        }
        if order.door {
            open_door(&folder.join(DOOR))?;
        }
    }
    if let Some(watch) = &order.watch {
        guard::start_guard(folder, watch)?;
    }
    if order.filtered {
        // Without the capability, a process needs no_new_privs to install a filter.
        if !rustix::process::geteuid().is_root() {
            rustix::thread::set_no_new_privs(true)?;
        }
        filter::install_filter_bytes(&fs::read(folder.join(FILTER))?)?;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "clawk-sandbox is the only process spawner"
    )]
    let mut runtime = Command::new(&order.runtime);
    runtime
        .arg("--root")
        .arg(root::memory_folder(folder).join("state"));
    runtime.env_clear().env("PATH", clawk_plan::plan::MINIMAL_PATH);
    runtime
        .arg("--log")
        .arg(folder.join("log.json"))
        .args(["--log-format", "json"]);
    runtime
        .arg("run")
        .arg("--bundle")
        .arg(folder)
        .arg("--pid-file")
        .arg(folder.join("pid"))
        .arg(&order.name);
    Err(runtime.exec())
}

fn mount_owners(places: &[IdmappedMount]) -> Vec<u32> {
    let mut owners: Vec<u32> = places.iter().map(|place| place.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Mounts a host path with the id map of `users`: files of its owner appear as the guest's, and files that the guest creates belong
/// to its owner. Set-id bits and devices do not work below it.
fn mount_idmapped(place: &IdmappedMount, users: &OwnedFd) -> io::Result<()> {
    match place.source.is_dir() {
        true => fs::create_dir_all(&place.at)?,
        false => {
            fs::create_dir_all(place.at.parent().unwrap_or(Path::new("/")))?;
            fs::File::create(&place.at).map(drop)?;
        }
    }
    // The path was found without following links that a tool could have made; check that none was made since.
    let how = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let path_only = OFlags::PATH | OFlags::CLOEXEC;
    let source = rustix::fs::openat2(CWD, &place.source, path_only, Mode::empty(), how)?;
    let tree = root::copy_of(&source)?;
    let set = libc::MOUNT_ATTR_IDMAP | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    set_attributes(&tree, set, Some(users)).map_err(|error| {
        io::Error::other(format!(
            "`{}` can't be lent to the tool's user on this file system: {error}",
            place.source.display()
        ))
    })?;
    root::attach_tree(&tree, &place.at)
}

#[expect(unsafe_code, reason = "no safe wrapper knows mount_setattr")]
pub(super) fn set_attributes(tree: &OwnedFd, set: u64, users: Option<&OwnedFd>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: match users {
            Some(users) => u64::try_from(users.as_raw_fd()).map_err(io::Error::other)?,
            None => 0,
        },
    };
    // SAFETY: the descriptors are open, the empty path ends in a null byte, and the kernel reads `attributes` only during
    // the call, for exactly the size that is given.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A user namespace that maps `owner` to `guest`. A process that does nothing else provides it.
fn create_user_namespace(owner: u32, guest: u32) -> io::Result<OwnedFd> {
    #[expect(
        clippy::disallowed_methods,
        reason = "clawk-sandbox is the only process spawner"
    )]
    let mut holder = Command::new("/proc/self/exe");
    holder
        .args([MODE, HOLD])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut holder = holder.spawn()?;
    let mut ready = [0_u8; 1];
    if let Some(out) = &mut holder.stdout {
        out.read_exact(&mut ready)?;
    }
    let map = format!("{owner} {guest} 1");
    let proc = PathBuf::from(format!("/proc/{}", holder.id()));
    let made = fs::write(proc.join("uid_map"), &map)
        .and_then(|()| fs::write(proc.join("gid_map"), &map))
        .and_then(|()| fs::File::open(proc.join("ns/user")));
    let _ = holder.kill(); // silent-ok: it ends with its input
    holder.wait()?;
    made.map(OwnedFd::from)
}

/// The process that [`create_user_namespace`] starts.
fn hold_namespace() -> ExitCode {
    if nix::sched::unshare(CloneFlags::CLONE_NEWUSER).is_err() {
        return ExitCode::FAILURE; // silent-ok: the waiting side reads no byte
    }
    let _ = rustix::io::write(rustix::stdio::stdout(), b"r"); // silent-ok: as above
    let mut end = [0_u8; 1];
    let _ = io::stdin().read(&mut end); // silent-ok: it is killed, or its owner is gone
    ExitCode::SUCCESS
}

/// Activates `lo`: a proxy listens there, and programs expect it.
#[expect(unsafe_code, reason = "no safe wrapper sets an interface's flags")]
fn bring_loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    // SAFETY: an all-zero `ifreq` is a valid value of this plain C structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::try_from(*from).unwrap_or_default();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or_default();
    // SAFETY: the socket is open and `request` is a whole `ifreq` that the kernel reads during the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Binds the listening socket for network access, passes it to clawk, and waits until it is served.
fn open_door(path: &Path) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", crate::launch::door::PORT))?;
    listener.set_nonblocking(true)?;
    let stream = UnixStream::connect(path)?;
    let part = [io::IoSlice::new(b"d")];
    passing::send_with_fds(&stream, &part, &[listener.as_fd()], SendFlags::empty())?;
    let mut served = [0_u8; 1];
    (&mut &stream).read_exact(&mut served)
}

/// Receives the listening socket in the launcher.
pub(super) fn receive_listener(stream: &UnixStream) -> io::Result<TcpListener> {
    let (_, fds) = passing::receive_with_fds(stream, &mut [0], RecvFlags::empty())?;
    let fd = fds.into_iter().next();
    fd.map(TcpListener::from)
        .ok_or_else(|| io::Error::other("no socket came"))
}
