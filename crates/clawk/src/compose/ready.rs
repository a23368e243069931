//! Prepares an agent's start: opens its state, and starts and checks a sandbox of each level that it needs (R32). A missing
//! capability is reported before anybody relies on it.

use std::path::Path;

use crate::state::kept::StateDir;
use anyhow::{Result, anyhow};
use clawk_kernel::StartError;
use clawk_plan::{Level, Plan, SandboxRefusal};

use super::{ResolvedConfig, lacks, own};

impl ResolvedConfig {
    /// Opens the agent's state and checks that its sandbox works here. The probe's box starts while `check` examines the state.
    ///
    /// # Errors
    /// Another process owns the state, the state is damaged, or can't be created; [`StartError::Sandbox`]; the errors of `check`.
    pub(crate) async fn open_ready_state(
        &self,
        flag: Option<&Path>,
        waits: bool,
        check: impl FnOnce(&StateDir) -> Result<()>,
    ) -> Result<StateDir> {
        let dir = self.state_dir(flag)?;
        let opened = async {
            let state = self.open_state(&dir, flag, waits).await?;
            check(&state)?;
            anyhow::Ok(state)
        };
        let (enclosed, state) = tokio::join!(self.probe_sandboxes(&dir), opened);
        enclosed.map_err(|error| match &error {
            StartError::Sandbox(SandboxRefusal::Unavailable { level, .. }) => {
                anyhow!("{error} [{}]", lacks::of_level(*level))
            }
            StartError::Sandbox(_) | StartError::Unserved(_) | StartError::Journal(_) => error.into(),
        })?;
        // Nothing is written into a refused directory.
        let state = state?;
        if let Some(consent) = &self.consent {
            consent.record_in_state(&dir)?;
        }
        Ok(state)
    }

    /// Starts a sandbox of each level that the agent's tools need (R32). The result is cached for the process.
    ///
    /// # Errors
    /// [`StartError::Sandbox`]: the first level that this host does not support, the reason, and how to fix it.
    pub(crate) async fn probe_sandboxes(&self, state: &Path) -> Result<(), StartError> {
        let launcher = self.launcher(Some(&state.join("cache")));
        let levels = self.needed_levels();
        if levels.is_empty() {
            launcher.end_unused();
        } else {
            for plan in self.declared_plans() {
                plan.check_available().map_err(StartError::Sandbox)?;
                own::make_missing(&plan, &self.read, &self.workdir)
                    .map_err(|error| StartError::Unserved(vec![format!("{error:#}")]))?;
            }
        }
        for level in levels {
            launcher.probe_level(level).await.map_err(StartError::Sandbox)?;
        }
        Ok(())
    }

    /// Returns each distinct sandbox plan of the tools, or the default plan for tools without one.
    pub(super) fn declared_plans(&self) -> Vec<Plan> {
        let defaults = self.config.settings.sandbox.plan_defaults();
        let mut seen = Vec::new();
        let mut plans = Vec::new();
        for tool in &self.manifest.tools {
            let sandbox = self.manifest.sandbox_of(tool);
            let name = sandbox.map(|sandbox| &sandbox.name);
            if !seen.contains(&name) {
                seen.push(name);
                plans.push(Plan::compile(sandbox, &defaults));
            }
        }
        plans
    }

    /// Returns the levels that calls will need; empty if no tool runs.
    pub(super) fn needed_levels(&self) -> Vec<Level> {
        let simulated = self.atlases.fallback.as_ref();
        let mut tools = self.manifest.tools.iter();
        if !tools.any(|tool| Some(&tool.name) != simulated) {
            return Vec::new();
        }
        let mut levels: Vec<Level> = self.declared_plans().iter().map(Plan::level).collect();
        levels.sort_unstable();
        levels.dedup();
        let guests = self.config.settings.tools.tools.values();
        let guest = guests.into_iter().any(|tool| tool.wasm.is_some());
        if guest && levels.iter().any(|level| *level < Level::Wasm) && !levels.contains(&Level::Wasm) {
            levels.push(Level::Wasm);
        }
        levels
    }
}
