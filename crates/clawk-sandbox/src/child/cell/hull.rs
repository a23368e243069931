//! The sandbox template: the part of a sandbox's first process that no order changes. It consists of namespaces, groups, and the
//! common part of the view. In a prewarmed sandbox it is made before the order. The process has then left the host's view already,
//! and visits it again to open what the order needs.

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
use super::{network, wall_error};
use crate::child::sys;
use crate::launch::wire::SandboxOrder;
use clawk_plan::plan::FsMode;

const OWN: &str = "/proc/self/ns/mnt";

/// A sandbox without the parts that depend on an order.
pub(super) struct SandboxTemplate {
    pub(super) held: Vec<String>,
    /// The file for entering the CPU weight group. Opened while its name is still visible.
    weight: Option<OwnedFd>,
    view: SandboxView,
    /// The host's mounts; only in a prewarmed sandbox.
    host: Option<HostNamespace>,
}

impl SandboxTemplate {
    /// Makes the template for this order.
    pub(super) fn for_order(
        groups: &RunCgroups,
        identity: ToolIdentity,
        network: Option<OwnedFd>,
        order: (&SandboxOrder, &SandboxEnclosure),
        idmaps: &HashMap<(u32, u32), OwnedFd>,
    ) -> io::Result<Self> {
        let held = enter_namespaces(groups, identity, network)?;
        let weight = groups.open_cpu().map_err(wall_error("cgroup"))?;
        let (order, enclosure) = order;
        let noting = order.call.is_none();
        let view = match enclosure.filesystem.mode {
            FsMode::Full => SandboxView::of_host(identity, idmaps, noting, enclosure.kvm),
            FsMode::Deny | FsMode::ReadOnly | FsMode::Scoped => {
                SandboxView::with_system_parts(identity, noting, enclosure.kvm)
            }
        };
        Ok(Self {
            held,
            weight,
            view: view.map_err(wall_error("mounts"))?,
            host: None,
        })
    }

    /// Makes the template before the order is known, for every mode but `full`.
    pub(super) fn without_order(
        groups: &RunCgroups,
        identity: ToolIdentity,
        network: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let held = enter_namespaces(groups, identity, network)?;
        let weight = groups.open_cpu().map_err(wall_error("cgroup"))?;
        let host = HostNamespace::leave_for_copy().map_err(wall_error("namespaces"))?;
        let view = SandboxView::with_system_parts(identity, true, false).map_err(wall_error("mounts"))?;
        view.enter_root().map_err(wall_error("mounts"))?;
        // Check that a visit works, before an order relies on it.
        host.run_inside(&view.root, || Ok(()))
            .map_err(wall_error("namespaces"))?;
        Ok(Self {
            held,
            weight,
            view,
            host: Some(host),
        })
    }

    /// The observations of the host from which it was made, and the host's view. `None`: it has its order already.
    pub(super) fn prewarmed_state(&self) -> Option<(&[super::world::HostObservation], &OwnedFd)> {
        let host = self.host.as_ref()?;
        Some((&self.view.notes.seen, &host.namespace))
    }

    /// Adds the order's part, and makes the view this process's root. Adds the enforced mechanisms to the report.
    pub(super) fn finish_view(
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
            // This sandbox does not wait, so the host is not compared again.
            view.notes = super::world::ObservationLog::default();
        }
        let mut notes = std::mem::take(&mut view.notes);
        let workdir = order.workdir.as_deref().map(Path::new);
        let mut gather = || HostPieces::gather(enclosure, identity, idmaps, workdir, &mut notes);
        let pieces = match &host {
            Some(host) => host.run_inside(&view.root, gather),
            None => gather(),
        };
        view.apply_order(enclosure, pieces.map_err(wall_error("mounts"))?, order.memory_mb)
            .map_err(wall_error("mounts"))?;
        view.notes = notes;
        if host.is_none() {
            view.enter_root().map_err(wall_error("mounts"))?;
        }
        drop(host);
        let built = view.into_built();
        held.extend(built.held.iter().cloned());
        // After the isolation is complete: setting it up is clawk's work, not the tool's.
        if let Some(weight) = weight {
            rustix::io::write(&weight, b"0").map_err(|error| wall_error("cgroup")(error.into()))?;
        }
        Ok((built, held))
    }
}

/// Creates or enters the namespaces and the limiting groups that a process can enter by itself.
fn enter_namespaces(
    groups: &RunCgroups,
    identity: ToolIdentity,
    network: Option<OwnedFd>,
) -> io::Result<Vec<String>> {
    groups
        .enter_v1_groups()
        .map_err(|error| io::Error::other(format!("cgroup: {error}")))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::system::sethostname(b"clawk").map_err(|error| wall_error("namespaces")(error.into()))?;
    match network {
        Some(made) => network::enter_namespace(&made).map_err(wall_error("namespaces"))?,
        None => sys::loopback_up().map_err(wall_error("namespaces"))?,
    }
    let mut held = vec!["namespaces:mount,pid,net,ipc,uts,cgroup".to_owned()];
    if !identity.dropped {
        held.push("namespace:user".to_owned());
    }
    Ok(held)
}

/// A mount namespace with the host's mounts. This process has left it and can still visit it.
struct HostNamespace {
    namespace: OwnedFd,
    /// This process's root there, which may differ from the namespace's root.
    root: OwnedFd,
    home: OwnedFd,
}

impl HostNamespace {
    /// Moves this process from the namespace to a copy.
    fn leave_for_copy() -> io::Result<Self> {
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

    /// Runs `work` there, then returns to `root`.
    fn run_inside<T>(&self, root: &OwnedFd, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let step = |namespace: &OwnedFd, root: &OwnedFd| -> io::Result<()> {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
            rustix::process::fchdir(root)?;
            Ok(rustix::process::chroot(".")?)
        };
        let done = step(&self.namespace, &self.root).and_then(|()| work());
        // INVARIANT: no work continues among the host's mounts.
        if step(&self.home, root).is_err() {
            sys::exit_now(2);
        }
        done
    }
}
