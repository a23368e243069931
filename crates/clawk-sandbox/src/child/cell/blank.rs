//! A prewarmed sandbox, seen from outside. It is made before any order, from the parts that all orders have in common. The first
//! order uses it, if it fits and the host has not changed since. Otherwise it is discarded, and a normal sandbox is made for the
//! order.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::cgroup::{GroupName, RunCgroups};
use super::identity::ToolIdentity;
use super::init::{self, BUILD, RUN};
use super::order::SandboxEnclosure;
use super::world::{self, HostObservation};
use super::{
    CellPrerequisites, NAMESPACES, hand, mounts, prepare_first_process, reap_first_process, send_word,
    watch_sandbox,
};
use crate::child::{OrderStreams, sys};
use crate::launch::wire::{MAX_REPORT_BYTES, SandboxOrder, SupervisorReport};
use clawk_plan::plan::FsMode;

/// How long its first process may take to become ready.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// How many different owners of mounts one order may have here.
const MAX_OWNERS: usize = 16;

/// A first process that waits for an order, with everything around it that does not depend on the order. Dropping it ends it.
pub(in crate::child) struct PrewarmedSandbox {
    control: UnixStream,
    /// The first process; `None`: it has ended.
    first: Option<Pid>,
    identity: ToolIdentity,
    groups: RunCgroups,
    seen: Vec<HostObservation>,
    /// A file on which the kernel reports changes of the host's mounts.
    table: File,
    /// The host's mounts, which the first process visits. Whoever closes this last waits for the kernel.
    host: Option<OwnedFd>,
}

/// An order in the form in which a prewarmed sandbox's first process gets it. The attached descriptors are the tool's streams, then
/// the socket for the listener, then the id maps in the order of their owners.
#[derive(Serialize, Deserialize)]
pub(super) struct OrderMessage<O> {
    pub(super) order: O,
    pub(super) outputs: bool,
    pub(super) door: bool,
    pub(super) owners: Vec<(u32, u32)>,
}

impl PrewarmedSandbox {
    /// Makes a prewarmed sandbox, with control groups of this name. The first process must not keep `outer`, so it is returned
    /// here.
    pub(in crate::child) fn create_named<T>(
        ready: &CellPrerequisites,
        name: GroupName,
        outer: T,
    ) -> io::Result<(Self, T)> {
        let table = File::open("/proc/self/mountinfo")?;
        let identity = ToolIdentity::choose()?;
        let network = ready.network_for(identity)?;
        let (control, theirs) = UnixStream::pair()?;
        let mut groups = RunCgroups::create_groups(&ready.hierarchies, name);
        let user = if identity.dropped { 0 } else { libc::CLONE_NEWUSER };
        let net = if network.is_some() { 0 } else { libc::CLONE_NEWNET };
        let first = match sys::fork_into(NAMESPACES | user | net) {
            Ok(Some(first)) => first,
            Ok(None) => {
                drop((outer, control, table));
                init::wait_for_order(theirs, identity, groups.without_locks(), network);
            }
            Err(error) => {
                groups.remove();
                return Err(error);
            }
        };
        drop((theirs, network));
        let prepared = prepare_first_process(identity, first, &mut groups);
        let mut blank = Self {
            control,
            first: Some(first),
            identity,
            groups,
            seen: Vec::new(),
            table,
            host: None,
        };
        prepared.and_then(|()| blank.until_made())?;
        Ok((blank, outer))
    }

    fn until_made(&mut self) -> io::Result<()> {
        send_word(&self.control, &[BUILD])?;
        let mut fds = [PollFd::new(&self.control, PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&PATIENCE))? == 0 {
            return Err(io::Error::other("a blank box was not made in time"));
        }
        self.host = hand::receive_listener(&self.control).flatten();
        let mut line = Vec::new();
        let mut reader = io::BufReader::new(&self.control).take(MAX_REPORT_BYTES);
        io::BufRead::read_until(&mut reader, b'\n', &mut line)?;
        match serde_json::from_slice(&line)? {
            SupervisorReport::Waiting { seen, .. } if self.host.is_some() => self.seen = seen,
            _ => return Err(io::Error::other("no blank box can be made")),
        }
        Ok(())
    }

    /// Descriptors that must stay silent while it waits: its first process's output, and the host's mount table.
    pub(in crate::child) fn watched_fds(&self) -> [PollFd<'_>; 2] {
        [
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.table, PollFlags::PRI),
        ]
    }

    /// Runs an order to its end. If this sandbox can't be used, returns the streams; then surely nothing has run.
    pub(super) fn serve_order(
        mut self,
        socket: &UnixStream,
        order: &SandboxOrder,
        enclosure: &SandboxEnclosure,
        streams: OrderStreams,
    ) -> io::Result<Option<OrderStreams>> {
        // Check first if there is a listener: it can't be taken back after it was opened.
        let early = !enclosure.door || self.is_fresh(enclosure);
        let fits = early && can_prewarm(enclosure) && self.groups.apply_limits(order);
        let taken = fits && self.hand_over(order, enclosure, &streams).is_ok();
        // Checked while the first process works already. It starts no program before it is told to.
        if !taken || !self.is_fresh(enclosure) {
            return Ok(Some(streams));
        }
        let Some(first) = self.first.take() else {
            return Ok(Some(streams));
        };
        drop(streams);
        let runs = order.call.is_some() && !enclosure.door && self.groups.holds_cpu();
        if runs {
            let _ = send_word(&self.control, &[RUN]); // silent-ok: its end is seen by its handle
        }
        let ended = watch_sandbox(
            (socket, &self.control),
            order,
            first,
            enclosure.door || runs,
            &self.groups,
            (Ok(()), self.host.take()),
        );
        ended.map(|()| None)
    }

    fn hand_over(
        &self,
        order: &SandboxOrder,
        enclosure: &SandboxEnclosure,
        streams: &OrderStreams,
    ) -> io::Result<()> {
        let owners = match self.identity.dropped {
            true => mounts::bind_owners(enclosure),
            false => Vec::new(),
        };
        if owners.len() > MAX_OWNERS {
            return Err(io::Error::other("too many owners"));
        }
        let idmaps = owners.iter().map(|owner| self.identity.shown_as(*owner));
        let idmaps = idmaps.collect::<io::Result<Vec<OwnedFd>>>()?;
        let mut fds: Vec<BorrowedFd<'_>> = vec![streams.input.as_fd()];
        fds.extend(streams.output.iter().flatten().map(AsFd::as_fd));
        fds.extend(streams.door.iter().map(AsFd::as_fd));
        fds.extend(idmaps.iter().map(AsFd::as_fd));
        let text = serde_json::to_vec(&OrderMessage {
            order,
            outputs: streams.output.is_some(),
            door: streams.door.is_some(),
            owners,
        })?;
        hand::send_whole(&self.control, &text, &fds)
    }

    /// Whether the host would still give an identical sandbox.
    fn is_fresh(&self, enclosure: &SandboxEnclosure) -> bool {
        let mut fds = [PollFd::new(&self.table, PollFlags::PRI)];
        let ready = rustix::event::poll(&mut fds, Some(&Timespec::default()));
        let [table] = fds;
        let mounted = ready.is_err() || table.revents().intersects(PollFlags::PRI | PollFlags::ERR);
        !mounted && world::is_host_unchanged(&self.seen, enclosure)
    }
}

impl Drop for PrewarmedSandbox {
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            let _ = rustix::process::kill_process(first, Signal::KILL); // silent-ok: it has ended
            reap_first_process(first);
        }
        self.groups.remove();
    }
}

/// Whether an order can use a prewarmed sandbox: not in mode `full`, and not with `/dev/kvm`.
fn can_prewarm(enclosure: &SandboxEnclosure) -> bool {
    enclosure.filesystem.mode != FsMode::Full && !enclosure.kvm
}
