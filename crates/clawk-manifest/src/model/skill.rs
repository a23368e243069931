//! Skill (CKP §5.5): a workflow of tools, described in words.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::closed::closed_set;

closed_set! {
    /// The rights of a skill on files. The variants are ordered; a later one may do more.
    pub enum SkillFilesystem {
        None = "none", ReadOnly = "read-only", WriteWorkspace = "write-workspace", Full = "full",
    }
}

/// A workflow of tools, described in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// Unique name; `skill-N` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering and policy.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The skill's purpose.
    pub description: String,
    /// The names of the declared tools that it needs.
    pub tools_required: Vec<String>,
    /// Instructions for the model.
    pub instruction: String,
    /// JSON Schema of the input (`type: object`).
    #[serde(default)]
    pub input_schema: Option<Value>,
    /// JSON Schema of the result; a result that does not fit reaches the model as an error.
    #[serde(default)]
    pub output_schema: Option<Value>,
    /// Limits on everything that happens while the skill runs; `None`: no limits of its own.
    #[serde(default)]
    pub permissions: Option<SkillPermissions>,
    /// Expected use of resources.
    #[serde(default)]
    pub estimates: ResourceEstimates,
    /// The name of the declared world model for its plans (0.3.0).
    #[serde(default)]
    pub world_model_ref: Option<String>,
}

/// The limits of a skill. `None` sets no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SkillPermissions {
    /// Whether network access is allowed.
    pub network: Option<bool>,
    /// The allowed file access.
    pub filesystem: Option<SkillFilesystem>,
    /// Whether a person must approve before it starts.
    pub approval_required: bool,
}

/// Expected use of resources.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceEstimates {
    /// The average number of tokens of one run.
    pub avg_tokens: Option<u64>,
    /// The average duration of one run, seconds.
    pub avg_duration_seconds: Option<f64>,
    /// The average number of tool calls of one run.
    pub avg_tool_calls: Option<u64>,
}
