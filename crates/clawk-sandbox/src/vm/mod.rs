//! Level `vm`: the tool gets its own kernel, in qemu, in a sandbox (CKP §5.7, R32–R36).
//!
//! The sandbox is the same as at level `process`, with the same view, user, filters and groups. Instead of the tool it runs the
//! [`stage`], which starts qemu and a file server (`files`). A tool that breaks out of the machine is still in that sandbox. The
//! machine has no disk, no network card and no devices except a serial port, which carries orders and output, and virtiofs, which
//! shows the sandbox's view. Its first process is this program again (`agent`).

mod agent;
mod drivers;
mod files;
mod host;
mod initrd;
mod judge;
mod run;
pub mod stage;
mod wire;

use std::path::PathBuf;

use tokio::sync::OnceCell;

pub use drivers::load_order;
pub(crate) use host::MachineRuntime;

use clawk_plan::machine::check_servable;

pub use crate::launch::VmSettings as Settings;
use crate::launch::{LaunchError, LaunchOutcome, Launcher, SandboxedService, Spec};
use clawk_plan::level::SandboxRefusal;

/// The state of this level in one agent: the cached results of probes.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    settings: Settings,
    cache: Option<PathBuf>,
    found: OnceCell<Result<MachineRuntime, SandboxRefusal>>,
}

impl Backend {
    pub(crate) fn new(settings: Settings, cache: Option<PathBuf>) -> Self {
        Self {
            settings,
            cache,
            found: OnceCell::new(),
        }
    }

    /// The refusal that an earlier probe or check of the host has shown, if any.
    pub(crate) fn known_refusal(&self) -> Option<SandboxRefusal> {
        match self.found.get() {
            Some(found) => found.as_ref().err().cloned(),
            None => host::locate_programs(&self.settings).err(),
        }
    }

    /// The way in which a machine really boots here. Probed once.
    pub(crate) async fn usable_runtime(
        &self,
        launcher: &Launcher,
    ) -> Result<&MachineRuntime, SandboxRefusal> {
        let found = self
            .found
            .get_or_init(|| host::probe_machine(launcher, &self.settings, self.cache.as_deref()))
            .await;
        found.as_ref().map_err(Clone::clone)
    }
}

/// Runs a program in a new machine.
pub(crate) async fn launch_machine(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<LaunchOutcome, LaunchError> {
    check_servable(&spec.plan)?;
    let found = backend.usable_runtime(launcher).await?;
    run::run(launcher, found, spec).await
}

/// Starts a service in a new machine.
pub(crate) async fn start_service(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<SandboxedService, LaunchError> {
    check_servable(&spec.plan)?;
    let found = backend.usable_runtime(launcher).await?;
    run::start_service(launcher, found, spec).await
}

#[cfg(test)]
mod tests;
