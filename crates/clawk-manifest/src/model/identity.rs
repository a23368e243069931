//! Identity (CKP §5.1): the agent's name, system prompt and autonomy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// The autonomy: what the agent may do without approval (CKP §5.1, R13). The variants are ordered; a later one may do
    /// more.
    pub enum AutonomyLevel {
        /// Runs no tool at all.
        Observer = "observer",
        /// Asks for every tool call that has side effects.
        Supervised = "supervised",
        /// Policy alone decides.
        Autonomous = "autonomous",
    }
}

/// The agent's name, system prompt and autonomy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Unique name; the Claw's own when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering and policy.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The system prompt's core; never empty.
    pub personality: String,
    /// Files that persist across sessions: role (`user`, `memory`, …) to path, relative to the manifest's directory.
    #[serde(default)]
    pub context_files: BTreeMap<String, String>,
    /// BCP 47 locale; `en-US` by default.
    #[serde(default = "default_locale")]
    pub locale: String,
    /// Capabilities that the agent announces; they have no effect.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The autonomy; `supervised` by default.
    #[serde(default = "default_autonomy")]
    pub autonomy: AutonomyLevel,
}

fn default_locale() -> String {
    "en-US".to_owned()
}

fn default_autonomy() -> AutonomyLevel {
    AutonomyLevel::Supervised
}
