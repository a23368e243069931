//! What is known of a tool, of one call of it, and of how it ended. Whoever runs a tool needs a permit, which is above this.

use std::path::Path;
use std::sync::Arc;

use clawk_plan::{ObtainedEnforcement, Plan, SandboxRefusal};
use clawk_proto::content::ContentBlock;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The executor's description of a tool. Fields of the manifest take precedence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolDescription {
    /// For the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of the result, where the executor has one.
    pub output_schema: Option<Value>,
    /// Hints that count: a built-in's own, or an MCP server's that `clawk.toml` trusts (R13).
    pub trusted_annotations: Map<String, Value>,
    /// The default `labels.category`, for tools whose manifest names none.
    pub category: Option<&'static str>,
    /// What runs the tool.
    pub executor: Executor,
}

/// What runs a tool: it decides whose text a result is (R50).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Executor {
    /// A record of an earlier version, which does not say.
    #[default]
    Unrecorded,
    /// clawk itself.
    Builtin,
    /// A program or a WebAssembly module of the operator's, in a sandbox.
    Command,
    /// An HTTP endpoint.
    Http,
    /// An MCP server.
    Mcp,
    /// Another agent.
    A2a,
}

impl Executor {
    /// The record does not say.
    pub fn is_unrecorded(&self) -> bool {
        *self == Self::Unrecorded
    }
}

/// One call to examine before a person is asked about it.
#[derive(Debug, Clone, Copy)]
pub struct InspectedCall<'a> {
    /// The tool.
    pub tool: &'a str,
    /// What it would get.
    pub arguments: &'a Map<String, Value>,
    /// The sandbox it would run in.
    pub plan: &'a Arc<Plan>,
    /// Where it would start; absolute.
    pub workdir: &'a Path,
}

/// A tool that ran (R20): it may have failed, and says so in `is_error`.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    /// What a model reads.
    pub content: Vec<ContentBlock>,
    /// It ran and failed.
    pub is_error: bool,
    /// Facts beside the text (R20a).
    pub structured: Option<Value>,
    /// What really enclosed it.
    pub obtained: ObtainedEnforcement,
}

/// A tool that did not run, or was cut short.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RunError {
    /// The sandbox refused or can't be had; nothing ran.
    #[error("{0}")]
    Sandbox(SandboxRefusal),
    /// It ran past its deadline and was ended with all its processes.
    #[error("ended after {timeout_ms} ms, its `timeout_ms`")]
    Timeout {
        /// The deadline, milliseconds.
        timeout_ms: u64,
        /// What enclosed it.
        obtained: ObtainedEnforcement,
    },
    /// It could not be started or reached; surely nothing happened. Says what would mend it.
    #[error("{0}")]
    Unavailable(String),
    /// This host may begin nothing now; nothing happened, and the same request may come again.
    #[error("nothing was begun: {0}")]
    NotBegun(String),
    /// It died or lost its connection on the way; what it did is not known.
    #[error("{0}; what it did before is not known")]
    Unknown(String),
    /// What a person was shown is not what is there now; nothing was done.
    #[error("{0}")]
    Changed(String),
    /// The caller cancelled; it was ended.
    #[error("cancelled; what it did before is not known")]
    Cancelled,
}

/// How clawk finds out the outcome of a run that was cut off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ReconcileMethod {
    /// A person is asked.
    #[default]
    Person,
    /// The same request again: the other side knows it by its key and does it once.
    SameKey,
    /// By the check that is configured for the tool.
    Check,
    /// By a declared tool without side effects.
    Tool(String),
}
