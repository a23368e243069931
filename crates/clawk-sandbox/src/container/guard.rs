//! The guard of a container (ADR 0028), with the same checks as in a sandbox of level `process`. The runtime passes on the
//! descriptor on which the tool's calls wait (the OCI's `seccomp.listenerPath`). A clawk process enters the container, becomes its
//! user without any capabilities, and answers the calls: it checks denied paths and the agent's own files. It ends with the
//! container's first process. If it ends earlier, every call that would wait for it fails.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sched::CloneFlags;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::net::RecvFlags;
use rustix::process::{DumpableBehavior, Signal, WaitOptions};
use serde::{Deserialize, Serialize};

use super::mask::VisibleMount;
use crate::child::cell::Guard;
use crate::child::sys;
use crate::passing;
use clawk_plan::own::RuntimeFileGuard;
use clawk_plan::plan::{Denied, Filesystem};
use clawk_plan::preflight::path::lexical_path;

/// The socket in a run's folder over which the runtime passes the descriptor.
pub(super) const SOCKET: &str = "guard";

/// The maximum size of the runtime's description of a container, in bytes.
const MAX_STATE_BYTES: usize = 64 << 10;

/// Which calls wait for the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerGuardedCalls {
    /// No calls: there is no guard.
    Nothing,
    /// Calls that change something, and calls that start a program. The first start of a program ends the runtime's own work.
    Changes,
    /// All calls that name a file.
    All,
}

impl ContainerGuardedCalls {
    /// Names for the trace. `keeps`: the agent's own files are protected.
    pub(super) fn trace_names(self, keeps: bool) -> impl Iterator<Item = &'static str> {
        let denied = (self == Self::All).then_some("guard:denied_paths");
        let own = (self != Self::Nothing && keeps).then_some("guard:own_files");
        denied.into_iter().chain(own)
    }
}

/// The rules for one run's guard, with the container's paths.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct ContainerGuardRules {
    pub(super) filesystem: Filesystem,
    pub(super) base: PathBuf,
    /// Device and inode of denied files that have other hard links.
    pub(super) aliases: HashSet<(u64, u64)>,
    pub(super) kept: RuntimeFileGuard,
    /// The container's groups. The guard joins them, because it works for the tool.
    pub(super) groups: Vec<PathBuf>,
    /// The tool's user id inside the container.
    pub(super) user: u32,
    /// Whether the container has a user namespace.
    pub(super) mapped: bool,
}

/// The runtime's description of the container to which the descriptor belongs.
#[derive(Deserialize)]
struct State {
    pid: i32,
}

/// The denied paths under the container's names. If a mount's name, or a name below it, is a link, the real path of a denied path
/// differs from its text.
pub(super) fn denied_inside(
    denied: &[Denied],
    base: &Path,
    shown: &[VisibleMount],
) -> Result<Vec<Denied>, String> {
    let mut all = denied.to_vec();
    for entry in denied.iter().filter(|entry| !entry.text().starts_with('~')) {
        let place = lexical_path(base, Path::new(entry.fixed_part()));
        let Ok(real) = place.canonicalize() else {
            continue; // nothing is there: the name is all there is
        };
        for part in shown.iter().filter(|part| !part.system) {
            let Ok(below) = real.strip_prefix(&part.source) else {
                continue;
            };
            let inside: PathBuf = part.target.join(below).components().collect();
            all.push(entry.with_fixed_part(&inside)?);
        }
    }
    Ok(all)
}

/// Starts the process that waits for the runtime. The stage, which has one thread, calls this. Whatever the result is, the stage
/// continues and becomes the runtime.
pub(super) fn start_guard(folder: &Path, watch: &ContainerGuardRules) -> io::Result<()> {
    let listener = UnixListener::bind(folder.join(SOCKET))?;
    let parent = rustix::process::getpid();
    if sys::fork_into(0)?.is_some() {
        return Ok(());
    }
    let done = run_guard_parent(&listener, watch, parent);
    sys::exit_now(i32::from(done.is_err()))
}

/// Waits for the descriptor, and then for the guard's end. The container's first process can end only after the guard was reaped.
fn run_guard_parent(
    listener: &UnixListener,
    watch: &ContainerGuardRules,
    parent: rustix::process::Pid,
) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() != Some(parent) {
        return Ok(());
    }
    let_go_of_the_tools_streams()?;
    let (stream, _) = listener.accept()?;
    let (calls, state) = receive_listener(&stream)?;
    drop(stream);
    let namespace = |name: &str| File::open(format!("/proc/{}/ns/{name}", state.pid));
    if watch.mapped {
        nix::sched::setns(namespace("user")?, CloneFlags::CLONE_NEWUSER)?;
    }
    let mounts = namespace("mnt")?;
    nix::sched::setns(namespace("pid")?, CloneFlags::CLONE_NEWPID)?;
    match sys::fork_into(0)? {
        Some(guard) => {
            drop(calls);
            rustix::process::waitpid(Some(guard), WaitOptions::empty())?;
            Ok(())
        }
        None => run_guard(calls, watch, &mounts),
    }
}

/// The guard itself: a process in the container, with the tool's user.
fn run_guard(calls: OwnedFd, watch: &ContainerGuardRules, mounts: &File) -> io::Result<()> {
    for group in &watch.groups {
        std::fs::write(group.join("cgroup.procs"), "0")?;
    }
    nix::sched::setns(mounts, CloneFlags::CLONE_NEWNS)?;
    std::env::set_current_dir("/")?;
    give_up_rights(watch.user)?;
    let guard = Guard {
        listener: calls,
        itself: std::process::id(),
        filesystem: watch.filesystem.clone(),
        base: watch.base.clone(),
        aliases: watch.aliases.clone(),
        kept: watch.kept.clone(),
    };
    let mut begun = false;
    loop {
        let mut fds = [PollFd::new(&guard.listener, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [asks] = fds.map(|fd| fd.revents());
        if asks.contains(PollFlags::IN) {
            let Some(notice) = sys::next_notice(&guard.listener)? else {
                continue;
            };
            begun |= matches!(notice.call, libc::SYS_execve | libc::SYS_execveat);
            match begun {
                true => guard.answer_notification(&notice)?,
                // This call comes from the runtime before it becomes the tool; it waits for its last message over its own pipe.
                false => sys::let_through(&guard.listener, notice.id),
            }
        } else if !asks.is_empty() {
            return Ok(()); // nobody is left who could ask
        }
    }
}

/// Becomes the tool's user, keeps only the capability to read the memory that a call's arguments point to, and prevents other
/// processes from inspecting this one.
fn give_up_rights(user: u32) -> io::Result<()> {
    // The guard applies the tool's umask itself.
    rustix::process::umask(Mode::empty());
    // Children open pipes that wait for their other end; nobody waits for these children.
    sys::forget_children()?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_keep_capabilities(true)?;
    if user != 0 {
        rustix::thread::set_thread_groups(&[])?;
    }
    let (uid, gid) = (
        rustix::process::Uid::from_raw(user),
        rustix::process::Gid::from_raw(user),
    );
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    sys::read_by_right()?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let held = rustix::thread::capabilities(None)?;
    let who = rustix::process::geteuid() == uid && rustix::process::getuid() == uid;
    if who && held.effective.is_empty() && rustix::thread::no_new_privs()? {
        Ok(())
    } else {
        Err(io::Error::other("the guard did not give its privileges up"))
    }
}

/// Closes the tool's streams: they must end when the tool closes them.
fn let_go_of_the_tools_streams() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Receives the descriptor and the container's description.
fn receive_listener(stream: &UnixStream) -> io::Result<(OwnedFd, State)> {
    let mut text = vec![0_u8; MAX_STATE_BYTES];
    let (bytes, fds) = passing::receive_with_fds(stream, &mut text, RecvFlags::empty())?;
    let fd = fds
        .into_iter()
        .next()
        .ok_or_else(|| io::Error::other("no descriptor came"))?;
    let state = serde_json::from_slice(text.get(..bytes).unwrap_or_default())?;
    Ok((fd, state))
}
