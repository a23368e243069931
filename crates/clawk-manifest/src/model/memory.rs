//! Memory (CKP §5.6 and 0.3.0): what the agent keeps.

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
    /// The part a store plays (0.3.0).
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
    /// The handling of entries in idle time (0.3.0).
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
    /// At least one; names are unique.
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
    /// What it is for.
    #[serde(rename = "type")]
    pub kind: StoreType,
    /// Absent: the runtime's own storage.
    #[serde(default)]
    pub backend: Option<StoreBackend>,
    /// How long and how much.
    #[serde(default)]
    pub retention: Retention,
    /// How it is made smaller.
    #[serde(default)]
    pub compaction: Option<CompactionSettings>,
    /// Vectors of a semantic store.
    #[serde(default)]
    pub embedding: Option<Embedding>,
    /// Search of a semantic store.
    #[serde(default)]
    pub search: SearchSettings,
    /// Absent: the runtime's default.
    #[serde(default)]
    pub scope: Option<StoreScope>,
    /// Entries are encrypted at rest.
    #[serde(default)]
    pub encryption: bool,
    /// Directory of a workspace; may hold `{identity_name}` and `{tenant_id}`.
    #[serde(default)]
    pub path: Option<String>,
    /// Absent: the runtime's default.
    #[serde(default)]
    pub isolation: Option<WorkspaceIsolation>,
    /// Size limit of a workspace.
    #[serde(default)]
    pub max_size_mb: Option<u64>,
    /// Snapshots of a checkpoint store (0.3.0).
    #[serde(default)]
    pub checkpoint: Option<CheckpointSettings>,
    /// The part it plays (0.3.0).
    #[serde(default)]
    pub role: Option<StoreRole>,
    /// (0.3.0)
    #[serde(default)]
    pub lifecycle: Option<Lifecycle>,
    /// (0.3.0)
    #[serde(default)]
    pub forgetting: Option<ForgettingSettings>,
    /// (0.3.0)
    #[serde(default)]
    pub salience: Option<SalienceSettings>,
    /// (0.3.0)
    #[serde(default)]
    pub confidence: Option<ConfidenceSettings>,
}

impl Store {
    /// A store as it is looked at without its manifest: by words and by the built-in table, without bounds.
    #[must_use]
    pub fn named(name: &str) -> Self {
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
    /// Entries older than this go.
    pub max_age: Option<ManifestDuration>,
    /// The oldest beyond this go.
    pub max_entries: Option<u64>,
}

/// The compaction of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CompactionSettings {
    /// On by default once the block is given.
    pub enabled: bool,
    /// `summarize` by default.
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

/// Vectors of a semantic store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// Name of a declared provider.
    pub provider_ref: String,
    /// The embedding model.
    pub model: String,
    /// Length of a vector.
    pub dimensions: u64,
}

/// Search of a semantic store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSettings {
    /// `hybrid` by default.
    pub strategy: SearchStrategy,
    /// `reciprocal-rank` by default.
    pub fusion: SearchFusion,
    /// 10 by default.
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

/// Snapshots of a checkpoint store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSettings {
    /// Kept per task.
    pub max_snapshots: Option<u64>,
    /// Life of a snapshot.
    pub ttl: Option<ManifestDuration>,
}

/// The lifecycle of entries: acquisition, consolidation, retrieval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lifecycle {
    /// Taking in.
    pub acquisition: Option<AcquisitionMode>,
    /// Settling.
    pub consolidation: Option<ConsolidationMode>,
    /// Bringing back.
    pub retrieval: Option<RetrievalMode>,
}

/// The forgetting of entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForgettingSettings {
    /// The way.
    pub strategy: Option<ForgettingStrategy>,
    /// What counts.
    pub signals: Vec<String>,
}

/// The signals that rank an entry higher.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SalienceSettings {
    /// Off by default.
    pub enabled: bool,
    /// What counts.
    pub signals: Vec<String>,
}

/// The confidence in an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConfidenceSettings {
    /// Keep where an entry came from.
    pub source_tracking: bool,
    /// How it fades.
    pub decay: Option<ConfidenceDecay>,
}
