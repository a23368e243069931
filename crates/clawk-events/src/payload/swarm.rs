//! Swarms: runs, tasks, attempts. The content of most events is the fact from which a start rebuilds the swarm's state.

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
        /// Name of the host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// Name of the member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// The report arrived after its task was no longer awaited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        orphan: Option<bool>,
        /// Id of the parent task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
        /// The peer's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_session: Option<Uuid>,
        /// Name of the provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// The reason, as text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Digest of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_hash: Option<Digest>,
        /// Id of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Id of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        /// Tokens of the whole run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run_tokens: Option<u64>,
        /// The state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<String>,
        /// The status; for a provider, the HTTP status.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        status: Option<String>,
        /// Name of the swarm.
        swarm: String,
        /// Id of the task.
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
        /// Name of the member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// Id of the parent task.
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
        /// Id of the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Id of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        /// The peer's index in the list.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seat: Option<u64>,
        /// Name of the swarm.
        swarm: String,
        /// Digest of the task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_hash: Option<Digest>,
        /// Id of the task.
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
        /// Name of the member.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        member: Option<String>,
        /// The report arrived after its task was no longer awaited.
        orphan: bool,
        /// Id of the parent task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<String>,
        /// The peer's session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peer_session: Option<Uuid>,
        /// The reason, as text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Digest of the result.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result_hash: Option<Digest>,
        /// The sender's role.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// Id of the run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<String>,
        /// The status; for a provider, the HTTP status.
        status: String,
        /// Name of the swarm.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        swarm: Option<String>,
        /// Id of the task.
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
        /// Name of the swarm.
        swarm: String,
    }
}
