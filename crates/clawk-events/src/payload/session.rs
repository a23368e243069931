//! What begins, describes and ends a chain, and the agent's lifecycle.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;
use crate::shape::ForkPoint;

payloads! {
    /// `session.started`. A chain begins. A chain of the CRA interface says only the agent and the goal.
    SessionStarted {
        /// Digest of the agent's resolved manifest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_hash: Option<Digest>,
        /// The agent's name.
        agent_id: String,
        /// The entry point.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        door: Option<String>,
        /// The step that the session goes on from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fork: Option<ForkPoint>,
        /// What it is for.
        goal: String,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<Uuid>,
    }

    /// `ckp.agent.described`. An agent starts; the content is what a replay needs of it.
    AgentDescribed {
        /// The agent's name.
        agent: String,
        /// Digest of the agent's resolved manifest.
        agent_hash: Digest,
    }

    /// `ckp.tool.described`. A tool was first looked at in this run; the content is what rules see of it.
    ToolDescribed {
        /// The tool, or the Atlas action.
        action_id: String,
        /// Digest of the tool's description.
        tool_hash: Digest,
    }

    /// `session.ended`. A chain ends in order.
    SessionEnded {
        /// Duration in milliseconds.
        duration_ms: u64,
        /// Why.
        reason: String,
    }

    /// `ckp.lifecycle.transition`. The lifecycle moved (CKP §8).
    LifecycleChanged {
        /// The agent's name.
        agent: String,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// The state before.
        from: String,
        /// Why.
        reason: String,
        /// The state afterwards.
        to: String,
    }
}
