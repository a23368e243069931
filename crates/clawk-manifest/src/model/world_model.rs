//! WorldModel (CKP 0.3.0): what a skill plans with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// What kind of model it is.
    pub enum WorldModelParadigm { Implicit = "implicit", Explicit = "explicit", Simulator = "simulator", Hybrid = "hybrid" }
}

closed_set! {
    /// How long it lives.
    pub enum WorldModelScope { AgentWide = "agent-wide", TaskScoped = "task-scoped" }
}

closed_set! {
    /// What answers.
    pub enum WorldModelBackendType { Tool = "tool", Provider = "provider", Custom = "custom" }
}

closed_set! {
    /// How far ahead.
    pub enum PlanningHorizon { Adaptive = "adaptive", Bounded = "bounded", Fixed = "fixed" }
}

closed_set! {
    /// How uncertainty is handled.
    pub enum UncertaintyMode { None = "none", Bounded = "bounded", Calibrated = "calibrated" }
}

closed_set! {
    /// What happens when no future is good.
    pub enum PlanFallback { Conservative = "conservative", Retry = "retry", Escalate = "escalate" }
}

closed_set! {
    /// When the model learns.
    pub enum UpdateMode { Online = "online", Batch = "batch", Hybrid = "hybrid" }
}

closed_set! {
    /// From what the model learns.
    pub enum Evidence { Observations = "observations", ObservationsOutcomes = "observations+outcomes" }
}

/// What a skill plans with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldModel {
    /// Unique name; `world-model-N` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What kind of model it is.
    pub paradigm: WorldModelParadigm,
    /// `agent-wide` by default.
    #[serde(default = "default_scope")]
    pub scope: WorldModelScope,
    /// Name of the memory, or of one of its stores.
    #[serde(default)]
    pub memory_ref: Option<String>,
    /// What answers.
    pub backend: WorldModelBackend,
    /// What it foretells.
    #[serde(default)]
    pub predicts: PredictionTargets,
    /// How it plans.
    #[serde(default)]
    pub planning: PlanningSettings,
    /// How it learns.
    #[serde(default)]
    pub update: WorldModelUpdate,
    /// What binds it.
    #[serde(default)]
    pub constraints: WorldModelConstraints,
}

/// What answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldModelBackend {
    /// Its kind.
    #[serde(rename = "type")]
    pub kind: WorldModelBackendType,
    /// Name of the declared tool or provider; any text for `custom`.
    #[serde(rename = "ref")]
    pub reference: String,
}

/// What it foretells; all off by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PredictionTargets {
    /// The next state.
    pub state: bool,
    /// The next observation.
    pub observation: bool,
    /// What may go wrong.
    pub risk: bool,
    /// What it costs.
    pub cost: bool,
}

/// How it plans.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanningSettings {
    /// How far ahead.
    pub horizon: Option<PlanningHorizon>,
    /// How uncertainty is handled.
    pub uncertainty_mode: Option<UncertaintyMode>,
    /// What happens when no future is good.
    pub fallback: Option<PlanFallback>,
}

/// How it learns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelUpdate {
    /// When.
    pub mode: Option<UpdateMode>,
    /// From what.
    pub evidence: Option<Evidence>,
}

/// What binds it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelConstraints {
    /// Name of a declared policy.
    pub policy_ref: Option<String>,
}

fn default_scope() -> WorldModelScope {
    WorldModelScope::AgentWide
}
