//! Events that begin, describe and end a chain of events, and the agent's lifecycle.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::ForkPoint;

payloads! {
    /// `session.started`. A chain of events begins. A chain of the CRA interface holds only the agent and the goal.
    SessionStarted {
        /// Digest of the agent's resolved manifest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_hash: Option<Digest>,
        /// The agent's name.
        agent_id: String,
        /// Name of the entry point.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        door: Option<String>,
        /// The step that the session goes on from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fork: Option<ForkPoint>,
        /// The goal, as text.
        goal: String,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Id of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Uuid>,
    }

    /// `ckp.agent.described`. An agent starts. The content is the agent's configuration that a replay needs.
    AgentDescribed {
        /// The agent's name.
        agent: String,
        /// Digest of the agent's resolved manifest.
        agent_hash: Digest,
    }

    /// `ckp.tool.described`. The agent read a tool's description for the first time in this run. The content is the description
    /// that rules see.
    ToolDescribed {
        /// Name of the tool or of the Atlas action.
        action_id: String,
        /// Digest of the tool's description.
        tool_hash: Digest,
    }

    /// `session.ended`. A chain of events ends normally.
    SessionEnded {
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The reason, as text.
        reason: String,
    }

    /// `ckp.lifecycle.transition`. The agent's lifecycle state changed (CKP §8).
    LifecycleChanged {
        /// The agent's name.
        agent: String,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The state before the change.
        from: String,
        /// The reason, as text.
        reason: String,
        /// The state after the change.
        to: String,
    }
}
