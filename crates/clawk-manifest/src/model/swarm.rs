//! Swarm (CKP §5.9): several agents at one task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::closed::closed_set;

closed_set! {
    /// The topology of a swarm.
    pub enum Topology {
        LeaderWorker = "leader-worker", PeerToPeer = "peer-to-peer", Pipeline = "pipeline",
        Broadcast = "broadcast", Hierarchical = "hierarchical",
    }
}

closed_set! {
    /// The kind of message passing.
    pub enum MessagePassing {
        Queue = "queue", SharedMemory = "shared-memory", EventBus = "event-bus", Direct = "direct",
    }
}

closed_set! {
    /// The back end of the message bus.
    pub enum BusBackend { SqliteWal = "sqlite-wal", Redis = "redis", Nats = "nats", InProcess = "in-process" }
}

closed_set! {
    /// How answers become one.
    pub enum AggregationStrategy {
        LeaderDecides = "leader-decides", MajorityVote = "majority-vote", Merge = "merge", Chain = "chain",
        BestOfN = "best-of-n",
    }
}

/// Several agents at one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swarm {
    /// Name; `swarm` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Who talks to whom.
    pub topology: Topology,
    /// At least one.
    pub agents: Vec<SwarmAgent>,
    /// How they talk.
    pub coordination: SwarmCoordination,
    /// How answers become one.
    pub aggregation: SwarmAggregation,
    /// The handling of failures.
    #[serde(default)]
    pub failure: SwarmFailureHandling,
    /// Limits of the whole swarm.
    #[serde(default)]
    pub resource_limits: SwarmLimits,
}

/// A participant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwarmAgent {
    /// Name or `claw://` URI of its identity; other agents' identities are not declared here.
    pub identity_ref: String,
    /// Its part (`leader`, `worker`, `peer`, …).
    pub role: String,
    /// Name of a declared provider.
    #[serde(default)]
    pub provider_ref: Option<String>,
    /// Instances; 1 by default.
    #[serde(default = "one")]
    pub count: u32,
}

/// The coordination of a swarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwarmCoordination {
    /// The manner.
    pub message_passing: MessagePassing,
    /// The carrier.
    pub backend: BusBackend,
    /// The limits of parallel work.
    pub concurrency: SwarmConcurrency,
}

/// How much at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmConcurrency {
    /// Absent: the runtime's own limit.
    pub max_parallel: Option<u32>,
    /// One task at a time per agent; on by default.
    pub sequential_within_agent: bool,
}

impl Default for SwarmConcurrency {
    fn default() -> Self {
        Self {
            max_parallel: None,
            sequential_within_agent: true,
        }
    }
}

/// How answers become one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwarmAggregation {
    /// The way.
    pub strategy: AggregationStrategy,
    /// Prefer the cheapest capable provider.
    #[serde(default)]
    pub cost_aware: bool,
    /// Of the whole operation.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// What happens on failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmFailureHandling {
    /// Retries per agent.
    pub retry_per_agent: u32,
    /// The dead-letter box for tasks that could not be done.
    pub dead_letter: Option<DeadLetter>,
    /// The circuit breaker: when a failing agent gets no tasks for a while.
    pub circuit_breaker: Option<CircuitBreaker>,
}

/// Where undeliverable tasks go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetter {
    /// On by default once the block is given.
    pub enabled: bool,
    /// 5 by default.
    pub max_retries: u32,
}

impl Default for DeadLetter {
    fn default() -> Self {
        Self {
            enabled: true,
            max_retries: 5,
        }
    }
}

/// When an agent is left alone for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// Failures in a row; 3 by default.
    pub failure_threshold: u32,
    /// 60 000 by default.
    pub reset_timeout_ms: u64,
}

impl Default for CircuitBreaker {
    fn default() -> Self {
        Self {
            failure_threshold: 3,
            reset_timeout_ms: 60_000,
        }
    }
}

/// Limits of the whole swarm; absent means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmLimits {
    /// Tokens in all.
    pub max_total_tokens: Option<u64>,
    /// US dollars in all.
    pub max_total_cost_usd: Option<f64>,
    /// Time in all.
    pub max_duration_ms: Option<u64>,
}

fn one() -> u32 {
    1
}
