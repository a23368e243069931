//! A sandbox of level `process`. This module is the supervisor's part, outside the sandbox: it makes the namespaces and groups,
//! enforces the time limit, and makes sure that no process survives.

mod allowed;
mod blank;
mod cgroup;
mod etc;
pub(crate) mod filter;
mod guard;
mod hand;
mod hull;
mod identity;
mod init;
mod inside;
mod keep;
mod kvm;
mod landlock;
mod masks;
mod mounts;
mod network;
pub(crate) mod order;
mod pieces;
mod rlimits;
mod view;
mod watch;
pub(crate) mod world;

pub(super) use blank::PrewarmedSandbox;
pub(crate) use cgroup::{GroupName, remove_left, remove_stale};
pub(crate) use guard::Guard;
pub(super) use hand::read_whole;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, WaitOptions};

use self::cgroup::{CgroupHierarchies, RunCgroups};
use self::identity::ToolIdentity;
use self::init::{BUILD, RUN, SandboxInit};
use self::order::SandboxEnclosure;
use super::{OrderStreams, sys};
use crate::launch::wire::SandboxOrder;
use crate::passing;

/// Parts that every sandbox needs and that no call changes. The process that forks supervisors makes them once.
pub(super) struct CellPrerequisites {
    hierarchies: CgroupHierarchies,
    /// A network namespace for the next sandbox: creating one is the slowest step.
    network: Option<OwnedFd>,
}

impl CellPrerequisites {
    /// Makes only the minimum, so that the first sandbox starts soon. That sandbox makes the other parts itself.
    pub(super) fn create_minimal() -> Self {
        Self {
            hierarchies: CgroupHierarchies::read(),
            network: None,
        }
    }

    /// Makes the remaining parts, for all sandboxes after the first ones.
    pub(super) fn prepare_remaining(&mut self) {
        let _ = filter::make_ready(); // silent-ok: each box makes its own then
        self.prepare_if_none();
    }

    /// Makes the next network namespace, after the previous one was given to a forked supervisor. For an ordinary user this is not
    /// possible: the namespace must belong to the sandbox's user namespace, which does not exist yet.
    pub(super) fn create_next_network(&mut self) {
        self.network = match rustix::process::geteuid().is_root() {
            true => network::create_namespace().ok(), // silent-ok: the box makes its own then, and tells why it can't
            false => None,
        };
    }

    /// As [`Self::prepare`], if there is none.
    pub(super) fn prepare_if_none(&mut self) {
        if self.network.is_none() {
            self.create_next_network();
        }
    }

    /// Drops the network namespace, because a forked process has it now and uses it.
    pub(super) fn give_away(&mut self) {
        self.network = None;
    }

    /// The prepared network namespace, if it can be used. Only its sandbox has it: the process that forked this one has closed it.
    fn network_for(&self, identity: ToolIdentity) -> io::Result<Option<OwnedFd>> {
        let network = self.network.as_ref().filter(|_| identity.dropped);
        network.map(OwnedFd::try_clone).transpose()
    }

    /// The network namespace that was made in advance, for the forked process.
    pub(super) fn prepared_network(&self) -> io::Result<Option<OwnedFd>> {
        self.network.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Reads again what has changed on the host. Called before each supervisor is forked.
    pub(super) fn refresh(&mut self) {
        self.hierarchies.refresh();
    }
}

const NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Runs an order in a sandbox to its end. Returns when no process of it is left.
pub(super) fn run(
    socket: &UnixStream,
    order: &SandboxOrder,
    enclosure: &SandboxEnclosure,
    streams: OrderStreams,
    ready: &CellPrerequisites,
    blank: Option<PrewarmedSandbox>,
) -> io::Result<()> {
    crate::child::set_box_umask();
    let left = match blank {
        Some(blank) => blank.serve_order(socket, order, enclosure, streams)?,
        None => Some(streams),
    };
    let Some(streams) = left else {
        return Ok(());
    };
    let identity = ToolIdentity::choose()?;
    let mut idmaps = HashMap::new();
    if identity.dropped {
        for owner in mounts::bind_owners(enclosure) {
            let userns = identity
                .shown_as(owner)
                .map_err(|error| io::Error::other(format!("an id map: {error}")))?;
            idmaps.insert(owner, userns);
        }
    }
    let network = ready.network_for(identity)?;
    let mut groups = RunCgroups::create_groups(&ready.hierarchies, GroupName::random()?);
    groups.apply_limits(order);
    let ended = run_enclosed_order(
        socket,
        order,
        enclosure,
        CellParts {
            identity,
            idmaps,
            streams,
            network,
        },
        &mut groups,
    );
    groups.remove();
    ended
}

struct CellParts {
    identity: ToolIdentity,
    idmaps: HashMap<(u32, u32), OwnedFd>,
    streams: OrderStreams,
    /// The network namespace, if it was made in advance.
    network: Option<OwnedFd>,
}

fn run_enclosed_order(
    socket: &UnixStream,
    order: &SandboxOrder,
    enclosure: &SandboxEnclosure,
    parts: CellParts,
    groups: &mut RunCgroups,
) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    let identity = parts.identity;
    let user = if identity.dropped { 0 } else { libc::CLONE_NEWUSER };
    let network = if parts.network.is_some() {
        0
    } else {
        libc::CLONE_NEWNET
    };
    // If nothing remains to be done between isolation and start, the first process need not wait for permission. If nothing is to
    // be done from outside at all, the permission is there before it asks.
    let by_itself = order.call.is_some() && !enclosure.door;
    let ahead = identity.dropped && groups.entered_from_inside();
    let said = match ahead {
        true => request_build(groups, &ours, by_itself)?,
        false => false,
    };
    let started = sys::fork_into(NAMESPACES | user | network).map_err(|error| {
        let mend = "user namespaces must be allowed: `sysctl user.max_user_namespaces`, `kernel.apparmor_restrict_unprivileged_userns=0`";
        io::Error::other(format!("namespaces: {error}; {mend}"))
    })?;
    let Some(first) = started else {
        drop(ours);
        let CellParts {
            identity,
            idmaps,
            streams,
            network,
        } = parts;
        let init = SandboxInit {
            order,
            enclosure,
            identity,
            idmaps,
            control: theirs,
            input: streams.input,
            output: streams.output,
            groups: std::mem::take(groups).without_locks(),
            door: streams.door,
            network,
            hull: None,
        };
        init.run_to_end();
    };
    drop((theirs, parts));
    let built = match ahead {
        true => Ok(said),
        false => prepare_first_process(identity, first, groups)
            .and_then(|()| request_build(groups, &ours, by_itself)),
    };
    let (built, runs) = match built {
        Ok(at_once) => (Ok(()), at_once),
        Err(error) => (Err(error), false),
    };
    watch_sandbox(
        (socket, &ours),
        order,
        first,
        enclosure.door || runs,
        groups,
        (built, None),
    )
}

/// Watches a sandbox until its end. `told`: another process reports the tool's start. `host`: a descriptor to close when nobody
/// waits.
fn watch_sandbox(
    (socket, control): (&UnixStream, &UnixStream),
    order: &SandboxOrder,
    first: Pid,
    told: bool,
    groups: &RunCgroups,
    (built, host): (io::Result<()>, Option<OwnedFd>),
) -> io::Result<()> {
    let mut watch = watch::SandboxWatch::new(socket, control, order, first, told, groups);
    watch.later = host;
    // If a tool starts a thousand processes, the supervisor that ends them must still get CPU time. Only root may raise the
    // priority.
    let _ = rustix::process::setpriority_process(None, -10); // silent-ok: see above
    let ended = match (built, rustix::process::pidfd_open(first, PidfdFlags::empty())) {
        (Ok(()), Ok(handle)) => watch.until_end(&handle).and_then(|()| watch.tell_early()),
        (Err(error), _) => Err(error),
        (_, Err(error)) => Err(wall_error("pidfd")(error.into())),
    };
    // In every case, the first process ends, and with it all others. Reaping it waits for that.
    let _ = rustix::process::kill_process(first, rustix::process::Signal::KILL); // silent-ok: it has ended
    reap_first_process(first);
    ended?;
    watch.tell_end()
}

/// Does what the first process can't do itself.
fn prepare_first_process(identity: ToolIdentity, first: Pid, groups: &mut RunCgroups) -> io::Result<()> {
    if !identity.dropped {
        identity
            .write_id_maps(first)
            .map_err(|error| io::Error::other(format!("user namespace: {error}")))?;
    }
    groups.take_in(first);
    Ok(())
}

/// Tells the first process to apply the isolation, and whether it should then continue by itself.
fn request_build(groups: &RunCgroups, control: &UnixStream, by_itself: bool) -> io::Result<bool> {
    // Without a CPU group, the weight is set between the two steps.
    let at_once = by_itself && groups.holds_cpu();
    let words: &[u8] = if at_once { &[BUILD, RUN] } else { &[BUILD] };
    send_word(control, words)?;
    Ok(at_once)
}

/// Sends a message to the first process. If that process has ended, no SIGPIPE ends this one.
fn send_word(control: &UnixStream, words: &[u8]) -> rustix::io::Result<()> {
    rustix::net::send(control, words, SendFlags::NOSIGNAL).map(drop)
}

fn reap_first_process(first: Pid) {
    loop {
        match rustix::process::waitpid(Some(first), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return, // silent-ok: it is gone
        }
    }
}

/// Names the mechanism that the kernel refused. An error that is already more specific stays as it is.
fn wall_error(name: &str) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| match error.raw_os_error() {
        Some(_) => io::Error::other(format!("{name}: {error}")),
        None => error,
    }
}

/// Sends one descriptor over a socket.
fn send_descriptor(socket: impl AsFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    passing::send_with_fds(socket, &[IoSlice::new(b"d")], &[fd], SendFlags::empty())?;
    Ok(())
}
