//! Tool (CKP §5.4): a function that the agent can call.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::mcp::{McpSource, McpUri};
use super::provider::BackoffStrategy;

/// A function that the agent can call. A superset of an MCP tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Unique name; `tool-N` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels. Policy rules of scope `category` match the label `category`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The description; present unless an MCP server supplies it.
    #[serde(default)]
    pub description: Option<String>,
    /// JSON Schema of the arguments (`type: object`); present unless an MCP server supplies it.
    #[serde(default)]
    pub input_schema: Option<Value>,
    /// JSON Schema of the result; a result that does not fit reaches the model as an error.
    #[serde(default)]
    pub output_schema: Option<Value>,
    /// The name of the tool's declared sandbox.
    #[serde(default)]
    pub sandbox_ref: Option<String>,
    /// The name of a declared policy that applies in addition to the manifest's list.
    #[serde(default)]
    pub policy_ref: Option<String>,
    /// The MCP server that runs the tool.
    #[serde(default)]
    pub mcp_source: Option<McpSource>,
    /// MCP annotations as given, including unknown ones.
    #[serde(default)]
    pub annotations: Map<String, Value>,
    /// Runs a skill's workflow as one call; then `skill_ref` is present.
    #[serde(default)]
    pub composite: bool,
    /// Name of the declared skill.
    #[serde(default)]
    pub skill_ref: Option<String>,
    /// The time limit of one execution (`-32014` above it).
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Retries after transient failures, for idempotent tools.
    #[serde(default)]
    pub retry: Option<ToolRetry>,
}

/// Retries after a tool's transient failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolRetry {
    /// The total number of attempts; 3 by default.
    pub max_attempts: u32,
    /// How the delay grows; `exponential` by default.
    pub backoff: BackoffStrategy,
}

impl Default for ToolRetry {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            backoff: BackoffStrategy::Exponential,
        }
    }
}

impl Tool {
    /// The label that category rules match.
    #[must_use]
    pub fn category(&self) -> Option<&str> {
        self.labels.get("category").map(String::as_str)
    }

    /// A boolean annotation; `None` when absent or not a boolean.
    #[must_use]
    pub fn hint(&self, name: &str) -> Option<bool> {
        self.annotations.get(name).and_then(Value::as_bool)
    }

    /// The annotation `readOnlyHint`.
    #[must_use]
    pub fn read_only_hint(&self) -> Option<bool> {
        self.hint("readOnlyHint")
    }

    /// The annotation `destructiveHint`.
    #[must_use]
    pub fn destructive_hint(&self) -> Option<bool> {
        self.hint("destructiveHint")
    }

    /// The annotation `idempotentHint`.
    #[must_use]
    pub fn idempotent_hint(&self) -> Option<bool> {
        self.hint("idempotentHint")
    }

    /// The annotation `openWorldHint`.
    #[must_use]
    pub fn open_world_hint(&self) -> Option<bool> {
        self.hint("openWorldHint")
    }
}
