//! Memory (CKP §5.6, 0.3.0) and WorldModel (0.3.0).

use clawk_proto::uri::Kind;

use super::{AT_LEAST_ONE, FieldType, MapShape, TEXTS, optional_field, required_field};
use crate::model::{
    AcquisitionMode, CompactionStrategy, ConfidenceDecay, ConsolidationMode, Evidence, ForgettingStrategy,
    PlanFallback, PlanningHorizon, RetrievalMode, SearchFusion, SearchStrategy, StoreBackend, StoreRole,
    StoreScope, StoreType, UncertaintyMode, UpdateMode, WorkspaceIsolation, WorldModelBackendType,
    WorldModelParadigm, WorldModelScope,
};

pub(super) static MEMORY: MapShape = MapShape {
    title: "a Memory",
    doc: "What the agent keeps (CKP 5.6).",
    fields: &[required_field(
        "stores",
        FieldType::List {
            of: &FieldType::Map(&STORE),
            min: 1,
        },
        "The stores of the memory; at least one.",
    )],
};

static STORE: MapShape = MapShape {
    title: "a memory store",
    doc: "One store.",
    fields: &[
        required_field("name", FieldType::FullText, "Unique within the memory."),
        required_field(
            "type",
            FieldType::Word(StoreType::WORDS),
            "What the store is for (`checkpoint`: 0.3.0).",
        ),
        optional_field(
            "backend",
            FieldType::Word(StoreBackend::WORDS),
            "Where the store keeps its entries.",
        ),
        optional_field(
            "retention",
            FieldType::Map(&RETENTION),
            "How long and how many entries clawk keeps.",
        ),
        optional_field(
            "compaction",
            FieldType::Map(&COMPACTION),
            "How clawk makes the store smaller.",
        ),
        optional_field(
            "embedding",
            FieldType::Map(&EMBEDDING),
            "How a semantic store makes vectors.",
        ),
        optional_field(
            "search",
            FieldType::Map(&SEARCH),
            "How a semantic store searches.",
        ),
        optional_field(
            "scope",
            FieldType::Word(StoreScope::WORDS),
            "Who shares its entries.",
        ),
        optional_field("encryption", FieldType::Bool, "Entries are encrypted at rest."),
        optional_field(
            "path",
            FieldType::FullText,
            "Directory of a workspace; may hold `{identity_name}` and `{tenant_id}`.",
        ),
        optional_field(
            "isolation",
            FieldType::Word(WorkspaceIsolation::WORDS),
            "Who shares a workspace's files.",
        ),
        optional_field("max_size_mb", AT_LEAST_ONE, "Size limit of a workspace."),
        optional_field(
            "checkpoint",
            FieldType::Map(&CHECKPOINT),
            "Snapshots of a checkpoint store (0.3.0).",
        )
        .since_v03(),
        optional_field(
            "role",
            FieldType::Word(StoreRole::WORDS),
            "The store's part in the memory (0.3.0).",
        )
        .since_v03(),
        optional_field(
            "lifecycle",
            FieldType::Map(&LIFECYCLE),
            "How entries come in, settle and come back (0.3.0).",
        )
        .since_v03(),
        optional_field(
            "forgetting",
            FieldType::Map(&FORGETTING),
            "Which entries clawk forgets (0.3.0).",
        )
        .since_v03(),
        optional_field(
            "salience",
            FieldType::Map(&SALIENCE),
            "What makes an entry important (0.3.0).",
        )
        .since_v03(),
        optional_field(
            "confidence",
            FieldType::Map(&CONFIDENCE),
            "How sure an entry is, and how that changes (0.3.0).",
        )
        .since_v03(),
    ],
};

static RETENTION: MapShape = MapShape {
    title: "retention",
    doc: "How long and how much.",
    fields: &[
        optional_field(
            "max_age",
            FieldType::Duration,
            "clawk removes entries older than this.",
        ),
        optional_field(
            "max_entries",
            AT_LEAST_ONE,
            "The most entries; clawk removes the oldest beyond this number.",
        ),
    ],
};

static COMPACTION: MapShape = MapShape {
    title: "compaction",
    doc: "How a conversation is made smaller.",
    fields: &[
        optional_field("enabled", FieldType::Bool, "On by default."),
        optional_field(
            "strategy",
            FieldType::Word(CompactionStrategy::WORDS),
            "`summarize` by default.",
        ),
    ],
};

static EMBEDDING: MapShape = MapShape {
    title: "an embedding",
    doc: "Vectors of a semantic store.",
    fields: &[
        required_field(
            "provider_ref",
            FieldType::Ref(Kind::Provider),
            "The name of a provider of this manifest.",
        ),
        required_field("model", FieldType::FullText, "The embedding model."),
        required_field("dimensions", AT_LEAST_ONE, "Numbers in a vector."),
    ],
};

static SEARCH: MapShape = MapShape {
    title: "search",
    doc: "Search of a semantic store.",
    fields: &[
        optional_field(
            "strategy",
            FieldType::Word(SearchStrategy::WORDS),
            "`hybrid` by default.",
        ),
        optional_field(
            "fusion",
            FieldType::Word(SearchFusion::WORDS),
            "`reciprocal-rank` by default.",
        ),
        optional_field(
            "top_k",
            AT_LEAST_ONE,
            "The most entries of a result; 10 by default.",
        ),
    ],
};

static CHECKPOINT: MapShape = MapShape {
    title: "a checkpoint",
    doc: "Snapshots of a checkpoint store.",
    fields: &[
        optional_field("max_snapshots", AT_LEAST_ONE, "Snapshots kept for each task."),
        optional_field("ttl", FieldType::Duration, "How long a snapshot is kept."),
    ],
};

static LIFECYCLE: MapShape = MapShape {
    title: "a store's lifecycle",
    doc: "How entries come in, settle and come back.",
    fields: &[
        optional_field(
            "acquisition",
            FieldType::Word(AcquisitionMode::WORDS),
            "How entries come in.",
        ),
        optional_field(
            "consolidation",
            FieldType::Word(ConsolidationMode::WORDS),
            "How entries are consolidated.",
        ),
        optional_field(
            "retrieval",
            FieldType::Word(RetrievalMode::WORDS),
            "How entries are found.",
        ),
    ],
};

static FORGETTING: MapShape = MapShape {
    title: "forgetting",
    doc: "How entries fade.",
    fields: &[
        optional_field(
            "strategy",
            FieldType::Word(ForgettingStrategy::WORDS),
            "The method.",
        ),
        optional_field("signals", TEXTS, "Which facts count."),
    ],
};

static SALIENCE: MapShape = MapShape {
    title: "salience",
    doc: "What makes an entry stand out.",
    fields: &[
        optional_field("enabled", FieldType::Bool, "Off by default."),
        optional_field("signals", TEXTS, "Which facts count."),
    ],
};

static CONFIDENCE: MapShape = MapShape {
    title: "confidence",
    doc: "How sure an entry is.",
    fields: &[
        optional_field(
            "source_tracking",
            FieldType::Bool,
            "Records where an entry came from.",
        ),
        optional_field(
            "decay",
            FieldType::Word(ConfidenceDecay::WORDS),
            "How confidence decreases with time.",
        ),
    ],
};

pub(super) static WORLD_MODEL: MapShape = MapShape {
    title: "a WorldModel",
    doc: "What a skill plans with (CKP 0.3.0).",
    fields: &[
        required_field(
            "paradigm",
            FieldType::Word(WorldModelParadigm::WORDS),
            "What kind of model it is.",
        ),
        optional_field(
            "scope",
            FieldType::Word(WorldModelScope::WORDS),
            "How long the world model lives; `agent-wide` by default.",
        ),
        optional_field(
            "memory_ref",
            FieldType::FullText,
            "The memory, or one of its stores.",
        ),
        required_field(
            "backend",
            FieldType::Map(&WORLD_MODEL_BACKEND),
            "What answers for the world model.",
        ),
        optional_field(
            "predicts",
            FieldType::Map(&PREDICTS),
            "What the world model predicts.",
        ),
        optional_field("planning", FieldType::Map(&PLANNING), "How it plans."),
        optional_field("update", FieldType::Map(&UPDATE), "How the world model learns."),
        optional_field(
            "constraints",
            FieldType::Map(&CONSTRAINTS),
            "What limits the world model.",
        ),
    ],
};

static WORLD_MODEL_BACKEND: MapShape = MapShape {
    title: "a world model's backend",
    doc: "What answers.",
    fields: &[
        required_field("type", FieldType::Word(WorldModelBackendType::WORDS), "The kind."),
        required_field(
            "ref",
            FieldType::FullText,
            "The declared tool or provider; any text for `custom`.",
        ),
    ],
};

static PREDICTS: MapShape = MapShape {
    title: "predicts",
    doc: "What it foretells; all off by default.",
    fields: &[
        optional_field("state", FieldType::Bool, "The next state."),
        optional_field("observation", FieldType::Bool, "The next observation."),
        optional_field("risk", FieldType::Bool, "The risk of an action."),
        optional_field("cost", FieldType::Bool, "The cost of an action."),
    ],
};

static PLANNING: MapShape = MapShape {
    title: "planning",
    doc: "How it plans.",
    fields: &[
        optional_field(
            "horizon",
            FieldType::Word(PlanningHorizon::WORDS),
            "How far ahead.",
        ),
        optional_field(
            "uncertainty_mode",
            FieldType::Word(UncertaintyMode::WORDS),
            "How uncertainty is handled.",
        ),
        optional_field(
            "fallback",
            FieldType::Word(PlanFallback::WORDS),
            "What happens when no future is good.",
        ),
    ],
};

static UPDATE: MapShape = MapShape {
    title: "update",
    doc: "How it learns.",
    fields: &[
        optional_field("mode", FieldType::Word(UpdateMode::WORDS), "When it learns."),
        optional_field(
            "evidence",
            FieldType::Word(Evidence::WORDS),
            "What it learns from.",
        ),
    ],
};

static CONSTRAINTS: MapShape = MapShape {
    title: "constraints",
    doc: "What binds it.",
    fields: &[optional_field(
        "policy_ref",
        FieldType::Ref(Kind::Policy),
        "A declared policy.",
    )],
};
