//! A box: the walls of level `process`. Here is the supervisor's side, outside of them: it makes the namespaces and groups,
//! keeps the clock, and sees to it that nothing lives on.

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

/// What every box needs and no call changes, made once by the process that supervisors are forked from.
pub(super) struct CellPrerequisites {
    hierarchies: CgroupHierarchies,
    /// For the next box: to make one is the longest step of all.
    network: Option<OwnedFd>,
}

impl CellPrerequisites {
    /// The least, so that the first box starts soon: it makes what else it needs itself.
    pub(super) fn make() -> Self {
        Self {
            hierarchies: CgroupHierarchies::read(),
            network: None,
        }
    }

    /// Makes the rest, for all boxes after the first ones.
    pub(super) fn complete(&mut self) {
        let _ = filter::make_ready(); // silent-ok: each box makes its own then
        self.prepare_if_none();
    }

    /// When a supervisor has been forked, which has the network namespace now: makes one for the next. An ordinary user's belongs to
    /// the box's user namespace, which is not there yet.
    pub(super) fn prepare(&mut self) {
        self.network = match rustix::process::geteuid().is_root() {
            true => network::make().ok(), // silent-ok: the box makes its own then, and tells why it can't
            false => None,
        };
    }

    /// The same, where none is there.
    pub(super) fn prepare_if_none(&mut self) {
        if self.network.is_none() {
            self.prepare();
        }
    }

    /// A process that was forked has the network namespace now, and uses it.
    pub(super) fn give_away(&mut self) {
        self.network = None;
    }

    /// Where it can be used. Its box alone has it: the process that this one was forked from has let go of it.
    fn network_for(&self, identity: ToolIdentity) -> io::Result<Option<OwnedFd>> {
        let network = self.network.as_ref().filter(|_| identity.dropped);
        network.map(OwnedFd::try_clone).transpose()
    }

    /// The one that was made ahead, for who forked with it.
    pub(super) fn network(&self) -> io::Result<Option<OwnedFd>> {
        self.network.as_ref().map(OwnedFd::try_clone).transpose()
    }

    /// Before each supervisor: what of the host has changed.
    pub(super) fn refresh(&mut self) {
        self.hierarchies.refresh();
    }
}

const NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Runs an order in a box to its end; returns when no process of it is left.
pub(super) fn run(
    socket: &UnixStream,
    order: &SandboxOrder,
    enclosure: &SandboxEnclosure,
    streams: OrderStreams,
    ready: &CellPrerequisites,
    blank: Option<PrewarmedSandbox>,
) -> io::Result<()> {
    let left = match blank {
        Some(blank) => blank.serve(socket, order, enclosure, streams)?,
        None => Some(streams),
    };
    let Some(streams) = left else {
        return Ok(());
    };
    let identity = ToolIdentity::choose()?;
    let mut idmaps = HashMap::new();
    if identity.dropped {
        for owner in mounts::owners(enclosure) {
            let userns = identity
                .shown_as(owner)
                .map_err(|error| io::Error::other(format!("an id map: {error}")))?;
            idmaps.insert(owner, userns);
        }
    }
    let network = ready.network_for(identity)?;
    let mut groups = RunCgroups::make(&ready.hierarchies, GroupName::random()?);
    groups.limit(order);
    let ended = enclose(
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
    /// Made ahead.
    network: Option<OwnedFd>,
}

fn enclose(
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
    // Where nothing is to be done between the walls and the tool, the first process need not wait for the word; where nothing
    // is to be done from outside at all, it finds the word when it comes.
    let by_itself = order.call.is_some() && !enclosure.door;
    let ahead = identity.dropped && groups.entered_from_inside();
    let said = match ahead {
        true => say(groups, &ours, by_itself)?,
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
        init.live();
    };
    drop((theirs, parts));
    let built = match ahead {
        true => Ok(said),
        false => prepare(identity, first, groups).and_then(|()| say(groups, &ours, by_itself)),
    };
    let (built, runs) = match built {
        Ok(at_once) => (Ok(()), at_once),
        Err(error) => (Err(error), false),
    };
    attend(
        (socket, &ours),
        order,
        first,
        enclosure.door || runs,
        groups,
        (built, None),
    )
}

/// Watches over a box to its end. `told`: somebody else says when its tool starts. `host`: what is to be closed when nobody waits.
fn attend(
    (socket, control): (&UnixStream, &UnixStream),
    order: &SandboxOrder,
    first: Pid,
    told: bool,
    groups: &RunCgroups,
    (built, host): (io::Result<()>, Option<OwnedFd>),
) -> io::Result<()> {
    let mut watch = watch::SandboxWatch::new(socket, control, order, first, told, groups);
    watch.later = host;
    // Among a thousand children of a tool gone wild, the one that ends them must get its turn. Only root may.
    let _ = rustix::process::setpriority_process(None, -10); // silent-ok: see above
    let ended = match (built, rustix::process::pidfd_open(first, PidfdFlags::empty())) {
        (Ok(()), Ok(handle)) => watch.until_end(&handle).and_then(|()| watch.tell_early()),
        (Err(error), _) => Err(error),
        (_, Err(error)) => Err(wall("pidfd")(error.into())),
    };
    // Whatever happened: the first process ends, and with it all of them; reaping it waits for that.
    let _ = rustix::process::kill_process(first, rustix::process::Signal::KILL); // silent-ok: it has ended
    reap(first);
    ended?;
    watch.tell_end()
}

/// What the first process can't do itself.
fn prepare(identity: ToolIdentity, first: Pid, groups: &mut RunCgroups) -> io::Result<()> {
    if !identity.dropped {
        identity
            .map(first)
            .map_err(|error| io::Error::other(format!("user namespace: {error}")))?;
    }
    groups.take_in(first);
    Ok(())
}

/// Tells the first process to build the walls, and whether to go on by itself then.
fn say(groups: &RunCgroups, control: &UnixStream, by_itself: bool) -> io::Result<bool> {
    // Without a group for it, the weight is set between the two.
    let at_once = by_itself && groups.holds_cpu();
    let words: &[u8] = if at_once { &[BUILD, RUN] } else { &[BUILD] };
    word(control, words)?;
    Ok(at_once)
}

/// A word to the first process. Where that has ended meanwhile, no signal ends this one.
fn word(control: &UnixStream, words: &[u8]) -> rustix::io::Result<()> {
    rustix::net::send(control, words, SendFlags::NOSIGNAL).map(drop)
}

fn reap(first: Pid) {
    loop {
        match rustix::process::waitpid(Some(first), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return, // silent-ok: it is gone
        }
    }
}

/// Names the wall that the kernel did not let us put up. What says more already stays as it is.
fn wall(name: &str) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| match error.raw_os_error() {
        Some(_) => io::Error::other(format!("{name}: {error}")),
        None => error,
    }
}

/// Sends one descriptor over a socket.
fn send_descriptor(socket: impl AsFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    passing::send(socket, &[IoSlice::new(b"d")], &[fd], SendFlags::empty())?;
    Ok(())
}
