//! WorldModel (CKP 0.3.0): a model that predicts outcomes for a skill's plans.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// The kind of the world model.
    pub enum WorldModelParadigm { Implicit = "implicit", Explicit = "explicit", Simulator = "simulator", Hybrid = "hybrid" }
}

closed_set! {
    /// The lifetime of the world model.
    pub enum WorldModelScope { AgentWide = "agent-wide", TaskScoped = "task-scoped" }
}

closed_set! {
    /// What computes the predictions.
    pub enum WorldModelBackendType { Tool = "tool", Provider = "provider", Custom = "custom" }
}

closed_set! {
    /// How far a plan looks ahead.
    pub enum PlanningHorizon { Adaptive = "adaptive", Bounded = "bounded", Fixed = "fixed" }
}

closed_set! {
    /// How uncertainty is handled.
    pub enum UncertaintyMode { None = "none", Bounded = "bounded", Calibrated = "calibrated" }
}

closed_set! {
    /// What happens if no plan is good enough.
    pub enum PlanFallback { Conservative = "conservative", Retry = "retry", Escalate = "escalate" }
}

closed_set! {
    /// When the model learns.
    pub enum UpdateMode { Online = "online", Batch = "batch", Hybrid = "hybrid" }
}

closed_set! {
    /// The data that the model learns from.
    pub enum Evidence { Observations = "observations", ObservationsOutcomes = "observations+outcomes" }
}

/// A model that predicts outcomes for a skill's plans.
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
    /// The kind of the world model.
    pub paradigm: WorldModelParadigm,
    /// The lifetime; `agent-wide` by default.
    #[serde(default = "default_scope")]
    pub scope: WorldModelScope,
    /// The name of the memory, or of one of its stores.
    #[serde(default)]
    pub memory_ref: Option<String>,
    /// What computes the predictions.
    pub backend: WorldModelBackend,
    /// What the model predicts.
    #[serde(default)]
    pub predicts: PredictionTargets,
    /// The planning settings.
    #[serde(default)]
    pub planning: PlanningSettings,
    /// How the model learns.
    #[serde(default)]
    pub update: WorldModelUpdate,
    /// The limits of the model.
    #[serde(default)]
    pub constraints: WorldModelConstraints,
}

/// What computes the predictions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorldModelBackend {
    /// The kind of back end.
    #[serde(rename = "type")]
    pub kind: WorldModelBackendType,
    /// The name of the declared tool or provider; any text for `custom`.
    #[serde(rename = "ref")]
    pub reference: String,
}

/// What the model predicts; everything is off by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PredictionTargets {
    /// The next state.
    pub state: bool,
    /// The next observation.
    pub observation: bool,
    /// The risks of an action.
    pub risk: bool,
    /// The cost of an action.
    pub cost: bool,
}

/// The planning settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlanningSettings {
    /// How far a plan looks ahead.
    pub horizon: Option<PlanningHorizon>,
    /// How uncertainty is handled.
    pub uncertainty_mode: Option<UncertaintyMode>,
    /// What happens if no plan is good enough.
    pub fallback: Option<PlanFallback>,
}

/// How the model learns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelUpdate {
    /// When the model learns.
    pub mode: Option<UpdateMode>,
    /// The data that the model learns from.
    pub evidence: Option<Evidence>,
}

/// The limits of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldModelConstraints {
    /// The name of a declared policy that applies to it.
    pub policy_ref: Option<String>,
}

fn default_scope() -> WorldModelScope {
    WorldModelScope::AgentWide
}
