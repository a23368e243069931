//! The validated manifest for the rest of the runtime. All defaults are applied, and every closed set is an enum.
//!
//! The loader builds these types after it has checked the whole document. Deserializing them directly skips the rules.

mod builtin;
mod channel;
mod closed;
mod duration;
mod identity;
mod level;
mod mcp;
mod memory;
mod policy;
mod provider;
mod sandbox;
mod skill;
mod swarm;
mod telemetry;
mod tool;
mod world_model;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use builtin::{BUILTIN_TOOL_NAMES, builtin_tool_help, builtin_tool_name, similar_builtin_tool};
pub use channel::*;
pub use duration::{ManifestDuration, NotADuration};
pub use identity::*;
pub use level::{ConformanceLevel, MissingForNext};
pub use mcp::McpUriError;
pub(crate) use mcp::host_of;
pub use memory::*;
pub use policy::*;
pub use provider::*;
pub use sandbox::*;
pub use skill::*;
pub use swarm::*;
pub use telemetry::*;
pub use tool::*;
pub use world_model::*;

/// A whole agent: the root document with every reference resolved (CKP §6).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Protocol version of the root document, 0.2.x or 0.3.x (R1).
    pub claw: semver::Version,
    /// The name, version and other metadata of the root.
    pub metadata: Metadata,
    /// The agent's identity.
    pub identity: Identity,
    /// Its providers, at least one; the first is the primary.
    pub providers: Vec<Provider>,
    /// Its channels. Empty: the implicit local channel.
    pub channels: Vec<Channel>,
    /// The tools that the agent can call.
    pub tools: Vec<Tool>,
    /// The skills of the agent.
    pub skills: Vec<Skill>,
    /// The memory stores of the agent.
    pub memory: Option<Memory>,
    /// The world models that skills plan with (0.3.0).
    pub world_models: Vec<WorldModel>,
    /// The sandbox of tools that name no other one; `None`: the most restrictive.
    pub sandbox: Option<Sandbox>,
    /// Further sandboxes, which tools name by `sandbox_ref`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_sandboxes: Vec<Sandbox>,
    /// The policies, in order: their rules form one list (CKP §5.8). Empty: everything is denied (R14).
    pub policies: Vec<Policy>,
    /// The swarm: several agents that work on one task.
    pub swarm: Option<Swarm>,
    /// The exported events and metrics.
    pub telemetry: Option<Telemetry>,
    /// The base directory of the manifest's relative paths.
    #[serde(skip)]
    pub dir: PathBuf,
}

/// The metadata of the root document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metadata {
    /// The agent's name (R8).
    pub name: String,
    /// Semantic version.
    pub version: Option<String>,
    /// The description, for people.
    pub description: Option<String>,
    /// Labels, for filtering.
    pub labels: BTreeMap<String, String>,
    /// Annotations, unchanged. They have no effect on the runtime, except for the heartbeat (R7a).
    pub annotations: Map<String, Value>,
    /// `annotations.heartbeat_interval_ms` (CKP §9.3.1); absent: 30 seconds.
    pub heartbeat_interval_ms: Option<u64>,
}

impl Manifest {
    /// The declared tool of this name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// The declared skill of this name.
    #[must_use]
    pub fn skill(&self, name: &str) -> Option<&Skill> {
        self.skills.iter().find(|skill| skill.name == name)
    }

    /// The declared provider of this name.
    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.iter().find(|provider| provider.name == name)
    }

    /// The declared channel of this name.
    #[must_use]
    pub fn channel(&self, name: &str) -> Option<&Channel> {
        self.channels.iter().find(|channel| channel.name == name)
    }

    /// The declared policy of this name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.iter().find(|policy| policy.name == name)
    }

    /// The declared sandbox of this name.
    #[must_use]
    pub fn sandbox_named(&self, name: &str) -> Option<&Sandbox> {
        self.sandboxes().find(|sandbox| sandbox.name == name)
    }

    /// All declared sandboxes. The first one is for tools without a `sandbox_ref`.
    pub fn sandboxes(&self) -> impl Iterator<Item = &Sandbox> {
        self.sandbox.iter().chain(&self.further_sandboxes)
    }

    /// The sandbox of a tool: the one that the tool names, or the first one.
    #[must_use]
    pub fn sandbox_of(&self, tool: &Tool) -> Option<&Sandbox> {
        match &tool.sandbox_ref {
            Some(name) => self.sandbox_named(name),
            None => self.sandbox.as_ref(),
        }
    }

    /// The declared world model of this name.
    #[must_use]
    pub fn world_model(&self, name: &str) -> Option<&WorldModel> {
        self.world_models.iter().find(|model| model.name == name)
    }
}
