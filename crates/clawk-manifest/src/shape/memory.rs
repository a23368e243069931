//! Memory (CKP §5.6, 0.3.0) and WorldModel (0.3.0).

use clawk_proto::uri::Kind;

use super::{AT_LEAST_ONE, FieldType, MapShape, TEXTS, opt, req};
use crate::model::{
    AcquisitionMode, CompactionStrategy, ConfidenceDecay, ConsolidationMode, Evidence, ForgettingStrategy,
    PlanFallback, PlanningHorizon, RetrievalMode, SearchFusion, SearchStrategy, StoreBackend, StoreRole,
    StoreScope, StoreType, UncertaintyMode, UpdateMode, WorkspaceIsolation, WorldModelBackendType,
    WorldModelParadigm, WorldModelScope,
};

pub(super) static MEMORY: MapShape = MapShape {
    title: "a Memory",
    doc: "What the agent keeps (CKP 5.6).",
    fields: &[req(
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
        req("name", FieldType::FullText, "Unique within the memory."),
        req(
            "type",
            FieldType::Word(StoreType::WORDS),
            "What the store is for (`checkpoint`: 0.3.0).",
        ),
        opt(
            "backend",
            FieldType::Word(StoreBackend::WORDS),
            "Where the store keeps its entries.",
        ),
        opt(
            "retention",
            FieldType::Map(&RETENTION),
            "How long and how many entries clawk keeps.",
        ),
        opt(
            "compaction",
            FieldType::Map(&COMPACTION),
            "How clawk makes the store smaller.",
        ),
        opt(
            "embedding",
            FieldType::Map(&EMBEDDING),
            "How a semantic store makes vectors.",
        ),
        opt(
            "search",
            FieldType::Map(&SEARCH),
            "How a semantic store searches.",
        ),
        opt(
            "scope",
            FieldType::Word(StoreScope::WORDS),
            "Who shares its entries.",
        ),
        opt("encryption", FieldType::Bool, "Entries are encrypted at rest."),
        opt(
            "path",
            FieldType::FullText,
            "Directory of a workspace; may hold `{identity_name}` and `{tenant_id}`.",
        ),
        opt(
            "isolation",
            FieldType::Word(WorkspaceIsolation::WORDS),
            "Who shares a workspace's files.",
        ),
        opt("max_size_mb", AT_LEAST_ONE, "Size limit of a workspace."),
        opt(
            "checkpoint",
            FieldType::Map(&CHECKPOINT),
            "Snapshots of a checkpoint store (0.3.0).",
        )
        .newer(),
        opt(
            "role",
            FieldType::Word(StoreRole::WORDS),
            "The store's part in the memory (0.3.0).",
        )
        .newer(),
        opt(
            "lifecycle",
            FieldType::Map(&LIFECYCLE),
            "How entries come in, settle and come back (0.3.0).",
        )
        .newer(),
        opt(
            "forgetting",
            FieldType::Map(&FORGETTING),
            "Which entries clawk forgets (0.3.0).",
        )
        .newer(),
        opt(
            "salience",
            FieldType::Map(&SALIENCE),
            "What makes an entry important (0.3.0).",
        )
        .newer(),
        opt(
            "confidence",
            FieldType::Map(&CONFIDENCE),
            "How sure an entry is, and how that changes (0.3.0).",
        )
        .newer(),
    ],
};

static RETENTION: MapShape = MapShape {
    title: "retention",
    doc: "How long and how much.",
    fields: &[
        opt(
            "max_age",
            FieldType::Duration,
            "clawk removes entries older than this.",
        ),
        opt(
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
        opt("enabled", FieldType::Bool, "On by default."),
        opt(
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
        req(
            "provider_ref",
            FieldType::Ref(Kind::Provider),
            "The name of a provider of this manifest.",
        ),
        req("model", FieldType::FullText, "The embedding model."),
        req("dimensions", AT_LEAST_ONE, "Numbers in a vector."),
    ],
};

static SEARCH: MapShape = MapShape {
    title: "search",
    doc: "Search of a semantic store.",
    fields: &[
        opt(
            "strategy",
            FieldType::Word(SearchStrategy::WORDS),
            "`hybrid` by default.",
        ),
        opt(
            "fusion",
            FieldType::Word(SearchFusion::WORDS),
            "`reciprocal-rank` by default.",
        ),
        opt(
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
        opt("max_snapshots", AT_LEAST_ONE, "Snapshots kept for each task."),
        opt("ttl", FieldType::Duration, "How long a snapshot is kept."),
    ],
};

static LIFECYCLE: MapShape = MapShape {
    title: "a store's lifecycle",
    doc: "How entries come in, settle and come back.",
    fields: &[
        opt(
            "acquisition",
            FieldType::Word(AcquisitionMode::WORDS),
            "How entries come in.",
        ),
        opt(
            "consolidation",
            FieldType::Word(ConsolidationMode::WORDS),
            "How entries are consolidated.",
        ),
        opt(
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
        opt(
            "strategy",
            FieldType::Word(ForgettingStrategy::WORDS),
            "The method.",
        ),
        opt("signals", TEXTS, "Which facts count."),
    ],
};

static SALIENCE: MapShape = MapShape {
    title: "salience",
    doc: "What makes an entry stand out.",
    fields: &[
        opt("enabled", FieldType::Bool, "Off by default."),
        opt("signals", TEXTS, "Which facts count."),
    ],
};

static CONFIDENCE: MapShape = MapShape {
    title: "confidence",
    doc: "How sure an entry is.",
    fields: &[
        opt(
            "source_tracking",
            FieldType::Bool,
            "Records where an entry came from.",
        ),
        opt(
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
        req(
            "paradigm",
            FieldType::Word(WorldModelParadigm::WORDS),
            "What kind of model it is.",
        ),
        opt(
            "scope",
            FieldType::Word(WorldModelScope::WORDS),
            "How long the world model lives; `agent-wide` by default.",
        ),
        opt(
            "memory_ref",
            FieldType::FullText,
            "The memory, or one of its stores.",
        ),
        req(
            "backend",
            FieldType::Map(&WORLD_MODEL_BACKEND),
            "What answers for the world model.",
        ),
        opt(
            "predicts",
            FieldType::Map(&PREDICTS),
            "What the world model predicts.",
        ),
        opt("planning", FieldType::Map(&PLANNING), "How it plans."),
        opt("update", FieldType::Map(&UPDATE), "How the world model learns."),
        opt(
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
        req("type", FieldType::Word(WorldModelBackendType::WORDS), "The kind."),
        req(
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
        opt("state", FieldType::Bool, "The next state."),
        opt("observation", FieldType::Bool, "The next observation."),
        opt("risk", FieldType::Bool, "The risk of an action."),
        opt("cost", FieldType::Bool, "The cost of an action."),
    ],
};

static PLANNING: MapShape = MapShape {
    title: "planning",
    doc: "How it plans.",
    fields: &[
        opt(
            "horizon",
            FieldType::Word(PlanningHorizon::WORDS),
            "How far ahead.",
        ),
        opt(
            "uncertainty_mode",
            FieldType::Word(UncertaintyMode::WORDS),
            "How uncertainty is handled.",
        ),
        opt(
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
        opt("mode", FieldType::Word(UpdateMode::WORDS), "When it learns."),
        opt(
            "evidence",
            FieldType::Word(Evidence::WORDS),
            "What it learns from.",
        ),
    ],
};

static CONSTRAINTS: MapShape = MapShape {
    title: "constraints",
    doc: "What binds it.",
    fields: &[opt(
        "policy_ref",
        FieldType::Ref(Kind::Policy),
        "A declared policy.",
    )],
};
