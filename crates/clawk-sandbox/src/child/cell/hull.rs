//! What the first process of a box begins with, whatever its order: namespaces, groups, and the part of the view that every box
//! has. In a blank box it is made ahead of the order, and this process has left the host's view by then; what the order asks for
//! of the host is opened by a visit there.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use nix::sched::CloneFlags;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::cgroup::RunCgroups;
use super::identity::ToolIdentity;
use super::order::SandboxEnclosure;
use super::pieces::{HostPieces, open_host};
use super::view::{BuiltView, SandboxView};
use super::{network, wall};
use crate::child::sys;
use crate::launch::wire::SandboxOrder;
use clawk_plan::plan::FsMode;

const OWN: &str = "/proc/self/ns/mnt";

/// A box without an order's part of it.
pub(super) struct SandboxTemplate {
    pub(super) held: Vec<String>,
    /// Where the group that weighs is entered. Opened while it has a name.
    weight: Option<OwnedFd>,
    view: SandboxView,
    /// Of a blank box.
    host: Option<HostNamespace>,
}

impl SandboxTemplate {
    /// For this order.
    pub(super) fn make(
        groups: &RunCgroups,
        identity: ToolIdentity,
        network: Option<OwnedFd>,
        order: (&SandboxOrder, &SandboxEnclosure),
        idmaps: &HashMap<(u32, u32), OwnedFd>,
    ) -> io::Result<Self> {
        let held = separate(groups, identity, network)?;
        let weight = groups.open_cpu().map_err(wall("cgroup"))?;
        let (order, enclosure) = order;
        let noting = order.call.is_none();
        let view = match enclosure.filesystem.mode {
            FsMode::Full => SandboxView::of_host(identity, idmaps, noting, enclosure.kvm),
            FsMode::Deny | FsMode::ReadOnly | FsMode::Scoped => {
                SandboxView::system(identity, noting, enclosure.kvm)
            }
        };
        Ok(Self {
            held,
            weight,
            view: view.map_err(wall("mounts"))?,
            host: None,
        })
    }

    /// For an order to come, of any mode but `full`.
    pub(super) fn ahead(
        groups: &RunCgroups,
        identity: ToolIdentity,
        network: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let held = separate(groups, identity, network)?;
        let weight = groups.open_cpu().map_err(wall("cgroup"))?;
        let host = HostNamespace::leave().map_err(wall("namespaces"))?;
        let view = SandboxView::system(identity, true, false).map_err(wall("mounts"))?;
        view.enter().map_err(wall("mounts"))?;
        // Whether the way is open, somebody should know before he relies on it.
        host.visit(&view.root, || Ok(())).map_err(wall("namespaces"))?;
        Ok(Self {
            held,
            weight,
            view,
            host: Some(host),
        })
    }

    /// What of the host it was made from, and the host's view. `None`: it has its order.
    pub(super) fn blank(&self) -> Option<(&[super::world::HostObservation], &OwnedFd)> {
        let host = self.host.as_ref()?;
        Some((&self.view.notes.seen, &host.namespace))
    }

    /// Puts the order's part in, and makes the view this process's root. What is held is told so far.
    pub(super) fn finish(
        self,
        (order, enclosure): (&SandboxOrder, &SandboxEnclosure),
        identity: ToolIdentity,
        idmaps: &HashMap<(u32, u32), OwnedFd>,
    ) -> io::Result<(BuiltView, Vec<String>)> {
        let Self {
            mut held,
            weight,
            mut view,
            host,
        } = self;
        if order.call.is_some() {
            // It does not wait: nobody will look again.
            view.notes = super::world::ObservationLog::default();
        }
        let mut notes = std::mem::take(&mut view.notes);
        let workdir = order.workdir.as_deref().map(Path::new);
        let mut gather = || HostPieces::gather(enclosure, identity, idmaps, workdir, &mut notes);
        let pieces = match &host {
            Some(host) => host.visit(&view.root, gather),
            None => gather(),
        };
        view.finish(enclosure, pieces.map_err(wall("mounts"))?, order.memory_mb)
            .map_err(wall("mounts"))?;
        view.notes = notes;
        if host.is_none() {
            view.enter().map_err(wall("mounts"))?;
        }
        drop(host);
        let built = view.built();
        held.extend(built.held.iter().cloned());
        // When the walls stand: they are our work, not the tool's.
        if let Some(weight) = weight {
            rustix::io::write(&weight, b"0").map_err(|error| wall("cgroup")(error.into()))?;
        }
        Ok((built, held))
    }
}

/// The namespaces that are made or entered from inside, and the groups that count.
fn separate(
    groups: &RunCgroups,
    identity: ToolIdentity,
    network: Option<OwnedFd>,
) -> io::Result<Vec<String>> {
    groups
        .enter()
        .map_err(|error| io::Error::other(format!("cgroup: {error}")))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::system::sethostname(b"clawk").map_err(|error| wall("namespaces")(error.into()))?;
    match network {
        Some(made) => network::enter(&made).map_err(wall("namespaces"))?,
        None => sys::loopback_up().map_err(wall("namespaces"))?,
    }
    let mut held = vec!["namespaces:mount,pid,net,ipc,uts,cgroup".to_owned()];
    if !identity.dropped {
        held.push("namespace:user".to_owned());
    }
    Ok(held)
}

/// A mount namespace with the host's mounts, which this process has left and can still visit.
struct HostNamespace {
    namespace: OwnedFd,
    /// This process's root there, which need not be the namespace's.
    root: OwnedFd,
    home: OwnedFd,
}

impl HostNamespace {
    /// Leaves it for a copy.
    fn leave() -> io::Result<Self> {
        sys::make_all_private()?;
        let namespace = File::open(OWN)?.into();
        let root = open_host(Path::new("/"))?;
        nix::sched::unshare(CloneFlags::CLONE_NEWNS)?;
        let home = File::open(OWN)?.into();
        Ok(Self {
            namespace,
            root,
            home,
        })
    }

    /// Does something there, and comes back to `root`.
    fn visit<T>(&self, root: &OwnedFd, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let step = |namespace: &OwnedFd, root: &OwnedFd| -> io::Result<()> {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
            rustix::process::fchdir(root)?;
            Ok(rustix::process::chroot(".")?)
        };
        let done = step(&self.namespace, &self.root).and_then(|()| work());
        // INVARIANT: nothing goes on among the host's mounts.
        if step(&self.home, root).is_err() {
            sys::end(2);
        }
        done
    }
}
