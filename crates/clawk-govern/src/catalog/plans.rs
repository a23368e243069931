//! The sandbox plan of each tool, without the paths that rules deny to it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use clawk_manifest::model::{Manifest, Sandbox};
use clawk_plan::{Plan, PlanDefaults, RuntimeFiles};
use clawk_policy::HiddenRoots;

/// The settings of this machine for sandboxes.
#[derive(Debug, Clone, Copy)]
pub struct SandboxSettings<'a> {
    /// The tools' working directory, absolute.
    pub workdir: &'a Path,
    /// Limits and levels that apply if the manifest's sandbox does not set them.
    pub defaults: &'a PlanDefaults,
    /// The runtime's own files.
    pub own: &'a RuntimeFiles,
}

/// The plans of the manifest's sandboxes, without the paths that rules deny to a tool. Tools with the same denied paths share one
/// plan.
#[derive(Debug)]
pub(super) struct SandboxPlans {
    /// By name. `None` is the plan for tools without a declared sandbox.
    declared: BTreeMap<Option<String>, Plan>,
    own: RuntimeFiles,
    workdir: PathBuf,
    made: Mutex<BTreeMap<NarrowedSandbox, Arc<Plan>>>,
}

/// A sandbox, and the paths denied in it.
type NarrowedSandbox = (Option<String>, HiddenRoots);

impl SandboxPlans {
    pub(super) fn new(manifest: &Manifest, settings: SandboxSettings<'_>) -> Self {
        let compile = |sandbox: Option<&Sandbox>| Plan::compile(sandbox, settings.defaults);
        let named = manifest
            .sandboxes()
            .map(|sandbox| (Some(sandbox.name.clone()), compile(Some(sandbox))));
        Self {
            declared: named.chain([(None, compile(None))]).collect(),
            own: settings.own.clone(),
            workdir: settings.workdir.to_owned(),
            made: Mutex::default(),
        }
    }

    pub(super) fn plan_hiding(&self, sandbox: Option<String>, closed: &HiddenRoots) -> Arc<Plan> {
        let at = (sandbox, closed.clone());
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = made.get(&at) {
            return Arc::clone(plan);
        }
        let declared = self.declared.get(&at.0).or_else(|| self.declared.get(&None));
        // INVARIANT: the entry `None` always exists.
        let declared = declared
            .cloned()
            .unwrap_or_else(|| Plan::compile(None, &PlanDefaults::default()));
        let plan = declared.with_denied(&closed.denied, &closed.open);
        let plan = Arc::new(plan.with_runtime_files(&self.own, &self.workdir));
        made.insert(at, Arc::clone(&plan));
        plan
    }
}
