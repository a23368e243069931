//! Level `vm`: a kernel of the tool's own, in qemu, in a box (CKP §5.7, R32–R36).
//!
//! The box is the one that level `process` would have been, with the same view, user, filters and groups; in the place of the
//! tool it runs the [`stage`], which starts qemu and a file server (`files`). So a tool that breaks out of the machine is
//! where it would have been without one. The machine has no disk, no network card and no device but a serial port, which
//! carries orders and output, and virtiofs, which shows the box's view. Its first process is this program again (`agent`).

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

use clawk_plan::machine::servable;

pub use crate::launch::VmSettings as Settings;
use crate::launch::{LaunchError, LaunchOutcome, Launcher, SandboxedService, Spec};
use clawk_plan::level::SandboxRefusal;

/// The level's state in one agent: what was found, once.
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

    /// What an earlier probe or a look at the host has shown.
    pub(crate) fn known_refusal(&self) -> Option<SandboxRefusal> {
        match self.found.get() {
            Some(found) => found.as_ref().err().cloned(),
            None => host::programs(&self.settings).err(),
        }
    }

    /// What really boots here; probed once.
    pub(crate) async fn found(&self, launcher: &Launcher) -> Result<&MachineRuntime, SandboxRefusal> {
        let found = self
            .found
            .get_or_init(|| host::probe(launcher, &self.settings, self.cache.as_deref()))
            .await;
        found.as_ref().map_err(Clone::clone)
    }
}

/// Runs a program in a machine of its own.
pub(crate) async fn launch(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<LaunchOutcome, LaunchError> {
    servable(&spec.plan)?;
    let found = backend.found(launcher).await?;
    run::run(launcher, found, spec).await
}

/// Starts a service in a machine of its own.
pub(crate) async fn serve(
    launcher: &Launcher,
    backend: &Backend,
    spec: &Spec,
) -> Result<SandboxedService, LaunchError> {
    servable(&spec.plan)?;
    let found = backend.found(launcher).await?;
    run::serve(launcher, found, spec).await
}

#[cfg(test)]
mod tests;
