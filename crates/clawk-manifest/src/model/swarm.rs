//! Swarm (CKP §5.9): several agents that work on one task.

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
    /// How the agents' answers are combined.
    pub enum AggregationStrategy {
        LeaderDecides = "leader-decides", MajorityVote = "majority-vote", Merge = "merge", Chain = "chain",
        BestOfN = "best-of-n",
    }
}

/// Several agents that work on one task.
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
    /// Which agents communicate with each other.
    pub topology: Topology,
    /// The participants, at least one.
    pub agents: Vec<SwarmAgent>,
    /// How they communicate.
    pub coordination: SwarmCoordination,
    /// How their answers are combined.
    pub aggregation: SwarmAggregation,
    /// The handling of failures.
    #[serde(default)]
    pub failure: SwarmFailureHandling,
    /// Resource limits of the whole swarm.
    #[serde(default)]
    pub resource_limits: SwarmLimits,
}

/// A participant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwarmAgent {
    /// The name or `claw://` URI of its identity. The identities of other agents are not declared in this manifest.
    pub identity_ref: String,
    /// Its role (`leader`, `worker`, `peer`, …).
    pub role: String,
    /// Name of a declared provider.
    #[serde(default)]
    pub provider_ref: Option<String>,
    /// The number of instances; 1 by default.
    #[serde(default = "default_one")]
    pub count: u32,
}

/// The coordination of a swarm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwarmCoordination {
    /// The kind of message passing.
    pub message_passing: MessagePassing,
    /// The back end of the message bus.
    pub backend: BusBackend,
    /// The limits of parallel work.
    pub concurrency: SwarmConcurrency,
}

/// The limits of parallel work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmConcurrency {
    /// The largest number of parallel tasks; `None`: the runtime's own limit.
    pub max_parallel: Option<u32>,
    /// Whether each agent handles one task at a time; `true` by default.
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

/// How the agents' answers are combined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwarmAggregation {
    /// The strategy.
    pub strategy: AggregationStrategy,
    /// Whether the cheapest suitable provider is preferred.
    #[serde(default)]
    pub cost_aware: bool,
    /// The time limit of the whole operation.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// The handling of failures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmFailureHandling {
    /// The number of retries per agent.
    pub retry_per_agent: u32,
    /// The dead-letter queue for tasks that failed for good.
    pub dead_letter: Option<DeadLetter>,
    /// The circuit breaker: a failing agent gets no tasks for a while.
    pub circuit_breaker: Option<CircuitBreaker>,
}

/// The dead-letter queue for tasks that failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeadLetter {
    /// Whether it is on; the default is `true` if the block exists.
    pub enabled: bool,
    /// The retries before a task becomes a dead letter; 5 by default.
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

/// When a failing agent gets no tasks for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// The number of consecutive failures that open it; 3 by default.
    pub failure_threshold: u32,
    /// How long it stays open, milliseconds; 60 000 by default.
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

/// Resource limits of the whole swarm; `None` means unlimited.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwarmLimits {
    /// The total number of tokens.
    pub max_total_tokens: Option<u64>,
    /// The total cost, US dollars.
    pub max_total_cost_usd: Option<f64>,
    /// The total time, milliseconds.
    pub max_duration_ms: Option<u64>,
}

fn default_one() -> u32 {
    1
}
