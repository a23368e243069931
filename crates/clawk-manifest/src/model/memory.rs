//! Memory (CKP §5.6 and 0.3.0): the stores of an agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ManifestDuration, closed::closed_set};

closed_set! {
    /// The purpose of a store.
    pub enum StoreType {
        Conversation = "conversation", Semantic = "semantic", KeyValue = "key-value", Workspace = "workspace",
        /// Resumable task state (0.3.0).
        Checkpoint = "checkpoint",
    }
}

closed_set! {
    /// The back end of a store.
    pub enum StoreBackend {
        Sqlite = "sqlite", Postgresql = "postgresql", Filesystem = "filesystem", SqliteVec = "sqlite-vec",
        Pgvector = "pgvector", Qdrant = "qdrant", Custom = "custom",
    }
}

closed_set! {
    /// The strategy of compaction.
    pub enum CompactionStrategy { Summarize = "summarize", Truncate = "truncate", SlidingWindow = "sliding-window" }
}

closed_set! {
    /// The search strategy of a semantic store.
    pub enum SearchStrategy { VectorOnly = "vector-only", FtsOnly = "fts-only", Hybrid = "hybrid" }
}

closed_set! {
    /// The fusion of two rankings.
    pub enum SearchFusion { ReciprocalRank = "reciprocal-rank", LinearCombination = "linear-combination" }
}

closed_set! {
    /// The scope that shares a store's entries.
    pub enum StoreScope { Global = "global", PerIdentity = "per-identity", PerChannel = "per-channel" }
}

closed_set! {
    /// The scope that shares a workspace's files.
    pub enum WorkspaceIsolation { Shared = "shared", PerIdentity = "per-identity", PerChannel = "per-channel" }
}

closed_set! {
    /// The role of a store (0.3.0).
    pub enum StoreRole {
        Sensory = "sensory", Working = "working", Episodic = "episodic", Semantic = "semantic",
        Procedural = "procedural",
    }
}

closed_set! {
    /// When a store accepts entries (0.3.0).
    pub enum AcquisitionMode { EventDriven = "event-driven", Continuous = "continuous", Manual = "manual" }
}

closed_set! {
    /// What happens to entries while the agent is idle (0.3.0).
    pub enum ConsolidationMode { None = "none", Summarize = "summarize", Merge = "merge", Adaptive = "adaptive" }
}

closed_set! {
    /// The way in which entries are found (0.3.0).
    pub enum RetrievalMode { Exact = "exact", Semantic = "semantic", Contextual = "contextual", Hybrid = "hybrid" }
}

closed_set! {
    /// The strategy of forgetting (0.3.0).
    pub enum ForgettingStrategy { None = "none", Decay = "decay", Summarize = "summarize", Adaptive = "adaptive" }
}

closed_set! {
    /// The decay of the confidence in an entry (0.3.0).
    pub enum ConfidenceDecay { Optional = "optional", None = "none", Adaptive = "adaptive" }
}

/// The memory of an agent: its stores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Name; `memory` when none is given (R7).
    pub name: String,
    /// Semantic version; the Claw's own when none is given.
    #[serde(default)]
    pub version: Option<String>,
    /// Labels, for filtering and policy.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The stores, at least one; their names are unique.
    pub stores: Vec<Store>,
}

impl Memory {
    /// The store of this name.
    #[must_use]
    pub fn store(&self, name: &str) -> Option<&Store> {
        self.stores.iter().find(|store| store.name == name)
    }
}

/// One store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// Unique within the memory.
    pub name: String,
    /// The purpose of the store.
    #[serde(rename = "type")]
    pub kind: StoreType,
    /// The back end; `None`: the runtime's own storage.
    #[serde(default)]
    pub backend: Option<StoreBackend>,
    /// The limits by age and number.
    #[serde(default)]
    pub retention: Retention,
    /// How the store is compacted.
    #[serde(default)]
    pub compaction: Option<CompactionSettings>,
    /// The embedding settings of a semantic store.
    #[serde(default)]
    pub embedding: Option<Embedding>,
    /// The search settings of a semantic store.
    #[serde(default)]
    pub search: SearchSettings,
    /// Who shares the entries; `None`: the runtime's default.
    #[serde(default)]
    pub scope: Option<StoreScope>,
    /// Entries are encrypted at rest.
    #[serde(default)]
    pub encryption: bool,
    /// The directory of a workspace; may contain `{identity_name}` and `{tenant_id}`.
    #[serde(default)]
    pub path: Option<String>,
    /// Who shares the workspace's files; `None`: the runtime's default.
    #[serde(default)]
    pub isolation: Option<WorkspaceIsolation>,
    /// The largest size of a workspace, MiB.
    #[serde(default)]
    pub max_size_mb: Option<u64>,
    /// The snapshot settings of a checkpoint store (0.3.0).
    #[serde(default)]
    pub checkpoint: Option<CheckpointSettings>,
    /// The store's role (0.3.0).
    #[serde(default)]
    pub role: Option<StoreRole>,
    /// How entries are acquired, consolidated and retrieved (0.3.0).
    #[serde(default)]
    pub lifecycle: Option<Lifecycle>,
    /// How entries are forgotten (0.3.0).
    #[serde(default)]
    pub forgetting: Option<ForgettingSettings>,
    /// The signals that rank entries higher (0.3.0).
    #[serde(default)]
    pub salience: Option<SalienceSettings>,
    /// How confidence in entries is tracked (0.3.0).
    #[serde(default)]
    pub confidence: Option<ConfidenceSettings>,
}

impl Store {
    /// A store with default settings, for access without its manifest: search by words and by the built-in vectors, without limits.
    #[must_use]
    pub fn with_name(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: StoreType::Semantic,
            backend: None,
            retention: Retention::default(),
            compaction: None,
            embedding: None,
            search: SearchSettings::default(),
            scope: None,
            encryption: false,
            path: None,
            isolation: None,
            max_size_mb: None,
            checkpoint: None,
            role: None,
            lifecycle: None,
            forgetting: None,
            salience: None,
            confidence: None,
        }
    }
}

/// The limits of a store by age and number; an absent member means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Entries older than this are deleted.
    pub max_age: Option<ManifestDuration>,
    /// The oldest entries above this number are deleted.
    pub max_entries: Option<u64>,
}

/// The compaction of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompactionSettings {
    /// Whether compaction is on; the default is `true` if the block exists.
    pub enabled: bool,
    /// The strategy; `summarize` by default.
    pub strategy: CompactionStrategy,
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            strategy: CompactionStrategy::Summarize,
        }
    }
}

/// The embedding settings of a semantic store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Name of a declared provider.
    pub provider_ref: String,
    /// The embedding model.
    pub model: String,
    /// The number of dimensions of a vector.
    pub dimensions: u64,
}

/// The search settings of a semantic store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSettings {
    /// The strategy; `hybrid` by default.
    pub strategy: SearchStrategy,
    /// The fusion of rankings; `reciprocal-rank` by default.
    pub fusion: SearchFusion,
    /// The largest number of results; 10 by default.
    pub top_k: u64,
}

impl Default for SearchSettings {
    fn default() -> Self {
        Self {
            strategy: SearchStrategy::Hybrid,
            fusion: SearchFusion::ReciprocalRank,
            top_k: 10,
        }
    }
}

/// The snapshot settings of a checkpoint store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// The largest number of snapshots per task.
    pub max_snapshots: Option<u64>,
    /// How long a snapshot is kept.
    pub ttl: Option<ManifestDuration>,
}

/// The lifecycle of entries: acquisition, consolidation, retrieval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lifecycle {
    /// When entries are accepted.
    pub acquisition: Option<AcquisitionMode>,
    /// What happens to entries in idle time.
    pub consolidation: Option<ConsolidationMode>,
    /// How entries are found.
    pub retrieval: Option<RetrievalMode>,
}

/// The forgetting of entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForgettingSettings {
    /// The strategy.
    pub strategy: Option<ForgettingStrategy>,
    /// The signals that the strategy considers.
    pub signals: Vec<String>,
}

/// The signals that rank an entry higher.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SalienceSettings {
    /// Whether ranking by signals is on; `false` by default.
    pub enabled: bool,
    /// The signals to consider.
    pub signals: Vec<String>,
}

/// The confidence in an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfidenceSettings {
    /// Store the origin of each entry.
    pub source_tracking: bool,
    /// How the confidence decays.
    pub decay: Option<ConfidenceDecay>,
}
