//! Levels that more than a process serves: which back end takes a run, and what is known about it here.

use std::path::PathBuf;
use std::sync::Arc;

use super::{LaunchError, Launcher, Outcome, Service, Spec};
use crate::container;
use crate::level::{Level, Obtained, Refusal};

/// What is local to this machine about the levels above `process`.
#[derive(Debug, Clone, Default)]
pub struct LevelSettings {
    /// `[sandbox.container]`.
    pub container: container::Settings,
    /// Where unpacked images and compiled guests are kept; a folder for temporary files when absent.
    pub cache: Option<PathBuf>,
}

/// The back ends of one launcher and all its clones.
#[derive(Debug, Default)]
pub(super) struct Levels {
    pub(super) container: container::Backend,
}

impl Launcher {
    /// With these settings for the levels above `process`.
    #[must_use]
    pub fn with_levels(mut self, settings: LevelSettings) -> Self {
        self.levels = Arc::new(Levels {
            container: container::Backend::new(settings.container, settings.cache),
        });
        self
    }

    /// This program, as the argument of a [`Spec`].
    pub(crate) fn program_text(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Starts a sandbox of this level for real, once, and says what held it (R32).
    ///
    /// # Errors
    /// Why the level can't be served here, and what would mend it.
    pub async fn probe(&self, level: Level) -> Result<Obtained, Refusal> {
        match level {
            Level::None => Ok(Obtained {
                level,
                ..Obtained::default()
            }),
            Level::Process => self.probe_process().await,
            Level::Container => {
                let found = self.levels.container.found(self).await?;
                self.levels.container.rootfs().await?;
                Ok(Obtained {
                    level,
                    mechanisms: found.mechanisms.clone(),
                    ..Obtained::default()
                })
            }
            Level::Wasm | Level::Vm => Err(no_back_end(level)),
        }
    }

    /// What an earlier probe or run has shown about this level, without starting anything.
    ///
    /// # Errors
    /// The level can't be served here.
    pub fn known(&self, level: Level) -> Result<(), Refusal> {
        match level {
            Level::None => Ok(()),
            Level::Process => match super::found() {
                Some(Err(refusal)) => Err(refusal.clone()),
                Some(Ok(_)) | None => Ok(()),
            },
            Level::Container => container::known_refusal(&self.levels.container).map_or(Ok(()), Err),
            Level::Wasm | Level::Vm => Err(no_back_end(level)),
        }
    }

    /// A run of a level above `process`; `None` for the others.
    pub(super) async fn above(&self, spec: &Spec) -> Option<Result<Outcome, LaunchError>> {
        match spec.plan.level() {
            Level::None | Level::Process => None,
            Level::Container => Some(Box::pin(container::launch(self, &self.levels.container, spec)).await),
            level @ (Level::Wasm | Level::Vm) => Some(Err(no_back_end(level).into())),
        }
    }

    /// A service of a level above `process`; `None` for the others.
    pub(super) async fn above_serve(&self, spec: &Spec) -> Option<Result<Service, LaunchError>> {
        match spec.plan.level() {
            Level::None | Level::Process => None,
            Level::Container => Some(Box::pin(container::serve(self, &self.levels.container, spec)).await),
            level @ (Level::Wasm | Level::Vm) => Some(Err(no_back_end(level).into())),
        }
    }
}

fn no_back_end(level: Level) -> Refusal {
    Refusal::Unavailable {
        level,
        mechanism: if level == Level::Wasm { "wasmtime" } else { "qemu" }.to_owned(),
        missing: format!("this version has no `{level}` back end"),
        hint: "set the Sandbox's `level` to `process` or `container`".to_owned(),
    }
}
