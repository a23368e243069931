//! What a replay needs besides a session's own events: the agent, and its tools as rules saw them. Written as content.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clawk_manifest::model::Manifest;
use clawk_plan::Plan;
use serde::{Deserialize, Serialize};

use crate::carp::{AtlasSettings, CarpFacts};
pub use crate::catalog::ToolFacts;
use crate::claims::Claims;
use crate::options::Options;
use crate::output::ResultExcerpt;
use crate::prompt;
use crate::retry_policy::ModelOptions;
use crate::world_model::PlanLimits;

/// The content of `ckp.agent.described`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AgentFacts {
    /// Its Atlases, if it had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carp: Option<CarpFacts>,
    /// Who judged its answers, if anybody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Claims>,
    /// Texts of the Identity's context files when the agent started, by their paths in the manifest.
    pub context_files: BTreeMap<String, String>,
    /// How long each provider was asked again, by its name. None: the record is older than that, and a rate limit counted as an attempt.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, ModelOptions>,
    /// With every reference resolved. Secrets are references there, never values.
    pub manifest: Manifest,
    /// The agent's own files that its mounts showed writable: the static checks of a replay refuse what they refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<PathBuf>,
    /// How much a plan step might take. None: the record is older than world models, and no skill planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planning: Option<PlanLimits>,
    /// What held where the manifest's sandbox is silent.
    pub sandbox: clawk_plan::PlanDefaults,
    /// How much of a result a model read.
    #[serde(default = "ResultExcerpt::legacy_default")]
    pub shown: ResultExcerpt,
    /// Where relative paths began.
    pub workdir: PathBuf,
}

impl AgentFacts {
    pub(crate) fn from_manifest(manifest: &Manifest, options: &Options, atlases: &AtlasSettings) -> Self {
        Self {
            carp: CarpFacts::from_settings(atlases),
            claims: options.claims.clone(),
            context_files: prompt::context_texts(manifest, &manifest.identity),
            models: manifest
                .providers
                .iter()
                .map(|spec| {
                    (
                        spec.name.clone(),
                        options.models.get(&spec.name).cloned().unwrap_or_default(),
                    )
                })
                .collect(),
            manifest: manifest.clone(),
            own: writable_own_files(manifest, options),
            planning: options.planning.filter(|_| !manifest.world_models.is_empty()),
            sandbox: options.sandbox,
            shown: options.shown,
            workdir: options.workdir.clone(),
        }
    }
}

/// The agent's own files that any of its sandboxes shows writable.
fn writable_own_files(manifest: &Manifest, options: &Options) -> Vec<PathBuf> {
    let undeclared = manifest.sandbox.is_none().then_some(None);
    let sandboxes = manifest.sandboxes().map(Some).chain(undeclared);
    let plans = sandboxes.map(|sandbox| {
        let plan = Plan::compile(sandbox, &options.sandbox);
        plan.with_runtime_files(&options.own, &options.workdir)
    });
    let mut all = Vec::new();
    for path in plans.flat_map(|plan| plan.filesystem().own.clone()) {
        if !all.contains(&path) {
            all.push(path);
        }
    }
    all
}
