//! Levels above `process`: which back end serves a run, and what is known about it on this host.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LaunchError, LaunchOutcome, Launcher, SandboxedService, Spec};
use crate::container;
#[cfg(feature = "vm")]
use crate::vm;
use clawk_plan::level::{Level, ObtainedEnforcement, SandboxRefusal};

/// This machine's settings for the levels above `process`.
#[derive(Debug, Clone, Default)]
pub struct LevelSettings {
    /// The settings of level `container`: `[sandbox.container]`.
    pub container: container::Settings,
    /// The settings of level `vm`: `[sandbox.vm]`.
    pub vm: VmSettings,
    /// Where unpacked images and compiled guests are cached. Absent: a folder for temporary files.
    pub cache: Option<PathBuf>,
}

/// `[sandbox.vm]` of `clawk.toml`: the settings of level `vm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VmSettings {
    /// If KVM can't boot a machine, use emulation: the same isolation, but many times slower. Default false.
    pub allow_slow: bool,
    /// The kernel: a file `…/boot/vmlinuz-VERSION` with its modules in `…/lib/modules/VERSION`. Absent: the newest one in `/boot`.
    pub kernel: Option<PathBuf>,
    /// The qemu program, as a name or a full path.
    pub qemu: String,
}

impl Default for VmSettings {
    fn default() -> Self {
        Self {
            allow_slow: false,
            kernel: None,
            qemu: "qemu-system-x86_64".to_owned(),
        }
    }
}

/// The back ends that one launcher and its clones share.
#[derive(Debug, Default)]
pub(super) struct LevelBackends {
    pub(super) container: container::Backend,
    #[cfg(feature = "vm")]
    pub(super) vm: vm::Backend,
    #[cfg(feature = "wasm")]
    pub(super) wasm: Arc<crate::wasm::Backend>,
}

impl Launcher {
    /// Returns this launcher with settings for the levels above `process`.
    #[must_use]
    pub fn with_levels(mut self, settings: LevelSettings) -> Self {
        self.levels = Arc::new(LevelBackends {
            #[cfg(feature = "wasm")]
            wasm: Arc::new(crate::wasm::Backend::new(settings.cache.clone())),
            #[cfg(feature = "vm")]
            vm: vm::Backend::new(settings.vm, settings.cache.clone()),
            container: container::Backend::new(settings.container, settings.cache),
        });
        self
    }

    /// The path of this program, as an argument of a [`Spec`].
    #[cfg(feature = "vm")]
    pub(crate) fn program_path(&self) -> &std::path::Path {
        &self.program
    }

    /// The path of this program as text.
    pub(crate) fn program_text(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Really starts a sandbox of this level, once, and returns the mechanisms that enforced it (R32).
    ///
    /// # Errors
    /// The reason why the level can't be served here, and how to fix it.
    pub async fn probe_level(&self, level: Level) -> Result<ObtainedEnforcement, SandboxRefusal> {
        match level {
            Level::None => Ok(ObtainedEnforcement {
                level,
                ..ObtainedEnforcement::default()
            }),
            Level::Process => self.probe_process().await,
            Level::Container => {
                let found = self.levels.container.usable_runtime(self).await?;
                self.levels.container.image_rootfs(self).await?;
                Ok(ObtainedEnforcement {
                    level,
                    mechanisms: found.mechanisms.clone(),
                    ..ObtainedEnforcement::default()
                })
            }
            Level::Wasm => self.wasm_ready(),
            Level::Vm => self.vm_ready().await,
        }
    }

    #[cfg(feature = "wasm")]
    fn wasm_ready(&self) -> Result<ObtainedEnforcement, SandboxRefusal> {
        self.levels.wasm.engine()?;
        Ok(ObtainedEnforcement {
            level: Level::Wasm,
            mechanisms: vec!["wasmtime".to_owned()],
            ..ObtainedEnforcement::default()
        })
    }

    #[cfg(not(feature = "wasm"))]
    #[expect(clippy::unused_self, reason = "as in a build that has it")]
    fn wasm_ready(&self) -> Result<ObtainedEnforcement, SandboxRefusal> {
        Err(left_out(Level::Wasm))
    }

    #[cfg(feature = "vm")]
    async fn vm_ready(&self) -> Result<ObtainedEnforcement, SandboxRefusal> {
        let found = self.levels.vm.usable_runtime(self).await?;
        Ok(ObtainedEnforcement {
            level: Level::Vm,
            mechanisms: found.mechanisms.clone(),
            ..ObtainedEnforcement::default()
        })
    }

    #[cfg(not(feature = "vm"))]
    #[expect(clippy::unused_async, reason = "as in a build that has it")]
    async fn vm_ready(&self) -> Result<ObtainedEnforcement, SandboxRefusal> {
        Err(left_out(Level::Vm))
    }

    #[cfg(feature = "vm")]
    async fn vm_launch(&self, spec: &Spec) -> Result<LaunchOutcome, LaunchError> {
        vm::launch_machine(self, &self.levels.vm, spec).await
    }

    #[cfg(not(feature = "vm"))]
    #[expect(clippy::unused_async, reason = "as in a build that has it")]
    async fn vm_launch(&self, _: &Spec) -> Result<LaunchOutcome, LaunchError> {
        Err(left_out(Level::Vm).into())
    }

    #[cfg(feature = "vm")]
    async fn vm_serve(&self, spec: &Spec) -> Result<SandboxedService, LaunchError> {
        vm::start_service(self, &self.levels.vm, spec).await
    }

    #[cfg(not(feature = "vm"))]
    #[expect(clippy::unused_async, reason = "as in a build that has it")]
    async fn vm_serve(&self, _: &Spec) -> Result<SandboxedService, LaunchError> {
        Err(left_out(Level::Vm).into())
    }

    #[cfg(feature = "vm")]
    fn vm_known(&self) -> Result<(), SandboxRefusal> {
        self.levels.vm.known_refusal().map_or(Ok(()), Err)
    }

    #[cfg(not(feature = "vm"))]
    #[expect(clippy::unused_self, reason = "as in a build that has it")]
    fn vm_known(&self) -> Result<(), SandboxRefusal> {
        Err(left_out(Level::Vm))
    }

    #[cfg(feature = "wasm")]
    async fn wasm_launch(&self, spec: &Spec) -> Result<LaunchOutcome, LaunchError> {
        crate::wasm::launch_guest(&self.levels.wasm, spec).await
    }

    #[cfg(not(feature = "wasm"))]
    #[expect(clippy::unused_async, reason = "as in a build that has it")]
    async fn wasm_launch(&self, _: &Spec) -> Result<LaunchOutcome, LaunchError> {
        Err(left_out(Level::Wasm).into())
    }

    /// Returns the result of an earlier probe or run of this level, or checks that its programs are installed. Starts nothing.
    ///
    /// # Errors
    /// The level can't be served here.
    pub fn level_availability(&self, level: Level) -> Result<(), SandboxRefusal> {
        match level {
            Level::None => Ok(()),
            Level::Process => match clawk_plan::probed::probe_result() {
                Some(Err(refusal)) => Err(refusal.clone()),
                Some(Ok(_)) | None => Ok(()),
            },
            Level::Container => container::known_refusal(&self.levels.container).map_or(Ok(()), Err),
            // Creating the engine takes memory, so only a run does it.
            Level::Wasm if cfg!(feature = "wasm") => Ok(()),
            Level::Wasm => Err(left_out(Level::Wasm)),
            Level::Vm => self.vm_known(),
        }
    }

    /// Runs a spec of a level above `process`; `None` for the other levels.
    pub(super) async fn launch_above_process(
        &self,
        spec: &Spec,
    ) -> Option<Result<LaunchOutcome, LaunchError>> {
        match spec.plan.level() {
            Level::None | Level::Process => None,
            Level::Container => {
                Some(Box::pin(container::launch_container(self, &self.levels.container, spec)).await)
            }
            Level::Wasm => Some(Box::pin(self.wasm_launch(spec)).await),
            Level::Vm => Some(Box::pin(self.vm_launch(spec)).await),
        }
    }

    /// Starts a service of a level above `process`; `None` for the other levels.
    pub(super) async fn above_serve(&self, spec: &Spec) -> Option<Result<SandboxedService, LaunchError>> {
        match spec.plan.level() {
            Level::None | Level::Process => None,
            Level::Container => {
                Some(Box::pin(container::start_service(self, &self.levels.container, spec)).await)
            }
            Level::Wasm => Some(Err(SandboxRefusal::Unavailable {
                level: Level::Wasm,
                mechanism: "wasmtime".to_owned(),
                missing: "a server that lives on is not a WebAssembly command".to_owned(),
                hint: "run MCP servers at level `process` or `container`".to_owned(),
            }
            .into())),
            Level::Vm => Some(Box::pin(self.vm_serve(spec)).await),
        }
    }
}

/// The refusal of a level whose back end is not compiled in. The cargo feature has the level's name.
fn left_out(level: Level) -> SandboxRefusal {
    SandboxRefusal::Unavailable {
        level,
        mechanism: format!("feature `{level}`"),
        missing: format!("this build of clawk leaves out level `{level}`"),
        hint: format!(
            "build clawk with `--features {level}`, use a shipped build (`cargo xtask dist`), or set the Sandbox's `level` to \
             `process` or `container`"
        ),
    }
}
