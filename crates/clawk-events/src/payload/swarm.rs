//! Swarms: runs, tasks, tries. The content of most is the fact that a start folds.

use clawk_proto::Digest;
use uuid::Uuid;

use crate::field::payloads;

payloads! {
    /// `ckp.swarm.run`, `ckp.swarm.try`, `ckp.swarm.refused`, `ckp.swarm.circuit`, `ckp.swarm.dead_lettered`,
    /// `ckp.swarm.aggregated`, `ckp.swarm.ended`, `ckp.swarm.led`. What an event has nothing to say of is left out.
    #[derive(Default)]
    SwarmProgress {
        /// Which attempt this is, from 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        /// Cost in millionths of a US dollar.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost_microusd: Option<u64>,
        /// Duration in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
        /// Digest of the fact, which is the content.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fact_hash: Option<Digest>,
        /// The host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// The member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// Nobody waited for the report any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        orphan: Option<bool>,
        /// The task that it is a part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
        /// The peer's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_session: Option<Uuid>,
        /// The provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_hash: Option<Digest>,
        /// The request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        /// Tokens of the whole run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run_tokens: Option<u64>,
        /// The state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<String>,
        /// The status; of HTTP for a provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<String>,
        /// The swarm.
        swarm: String,
        /// The task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<String>,
        /// Tokens of the task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_usage: Option<u64>,
    }

    /// `ckp.swarm.delegated`. A task was given to a peer. `peer`, `seat` and `task_hash`: written by the first versions only.
    #[derive(Default)]
    SwarmDelegated {
        /// Which attempt this is, from 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        /// Digest of the fact, which is the content.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fact_hash: Option<Digest>,
        /// The member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// The task that it is a part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
        /// The peer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer: Option<String>,
        /// The peer's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_session: Option<Uuid>,
        /// Digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_hash: Option<Digest>,
        /// The request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        /// The peer's place in the list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seat: Option<u64>,
        /// The swarm.
        swarm: String,
        /// Digest of the task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_hash: Option<Digest>,
        /// The task.
        task_id: String,
    }

    /// `ckp.swarm.reported`. A task's end was reported. With `result_hash` it is a single peer's report, with `fact_hash` that
    /// of a team.
    #[derive(Default)]
    SwarmReported {
        /// Which attempt this is, from 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        /// Cost in millionths of a US dollar.
        cost_microusd: u64,
        /// Duration in milliseconds.
        duration_ms: u64,
        /// Digest of the fact, which is the content.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fact_hash: Option<Digest>,
        /// The member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// Nobody waited for the report any more.
        orphan: bool,
        /// The task that it is a part of.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
        /// The peer's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_session: Option<Uuid>,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Digest of the result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result_hash: Option<Digest>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        /// The status; of HTTP for a provider.
        status: String,
        /// The swarm.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        swarm: Option<String>,
        /// The task.
        task_id: String,
        /// Tokens of the task.
        token_usage: u64,
    }

    /// `ckp.swarm.broadcast`. A message went to all peers.
    SwarmBroadcast {
        /// Digest of the message.
        message_hash: Digest,
        /// How many peers.
        peers: u64,
        /// The swarm.
        swarm: String,
    }
}
