//! Memory (CKP §5.6, 0.3.0) and WorldModel (0.3.0).

use clawk_proto::uri::Kind;

use super::{AT_LEAST_ONE, Shape, TEXTS, Type, opt, req};
use crate::model::{
    Acquisition, CompactionStrategy, ConfidenceDecay, Consolidation, Evidence, ForgettingStrategy, Horizon,
    Isolation, Paradigm, PlanFallback, Retrieval, SearchFusion, SearchStrategy, StoreBackend, StoreRole,
    StoreScope, StoreType, UncertaintyMode, UpdateMode, WorldModelBackendType, WorldModelScope,
};

pub(super) static MEMORY: Shape = Shape {
    title: "a Memory",
    doc: "What the agent keeps (CKP 5.6).",
    fields: &[req(
        "stores",
        Type::List {
            of: &Type::Map(&STORE),
            min: 1,
        },
        "The stores of the memory; at least one.",
    )],
};

static STORE: Shape = Shape {
    title: "a memory store",
    doc: "One store.",
    fields: &[
        req("name", Type::FullText, "Unique within the memory."),
        req(
            "type",
            Type::Word(StoreType::WORDS),
            "What the store is for (`checkpoint`: 0.3.0).",
        ),
        opt(
            "backend",
            Type::Word(StoreBackend::WORDS),
            "Where the store keeps its entries.",
        ),
        opt(
            "retention",
            Type::Map(&RETENTION),
            "How long and how many entries clawk keeps.",
        ),
        opt(
            "compaction",
            Type::Map(&COMPACTION),
            "How clawk makes the store smaller.",
        ),
        opt(
            "embedding",
            Type::Map(&EMBEDDING),
            "How a semantic store makes vectors.",
        ),
        opt("search", Type::Map(&SEARCH), "How a semantic store searches."),
        opt("scope", Type::Word(StoreScope::WORDS), "Who shares its entries."),
        opt("encryption", Type::Bool, "Entries are encrypted at rest."),
        opt(
            "path",
            Type::FullText,
            "Directory of a workspace; may hold `{identity_name}` and `{tenant_id}`.",
        ),
        opt(
            "isolation",
            Type::Word(Isolation::WORDS),
            "Who shares a workspace's files.",
        ),
        opt("max_size_mb", AT_LEAST_ONE, "Size limit of a workspace."),
        opt(
            "checkpoint",
            Type::Map(&CHECKPOINT),
            "Snapshots of a checkpoint store (0.3.0).",
        )
        .newer(),
        opt(
            "role",
            Type::Word(StoreRole::WORDS),
            "The store's part in the memory (0.3.0).",
        )
        .newer(),
        opt(
            "lifecycle",
            Type::Map(&LIFECYCLE),
            "How entries come in, settle and come back (0.3.0).",
        )
        .newer(),
        opt(
            "forgetting",
            Type::Map(&FORGETTING),
            "Which entries clawk forgets (0.3.0).",
        )
        .newer(),
        opt(
            "salience",
            Type::Map(&SALIENCE),
            "What makes an entry important (0.3.0).",
        )
        .newer(),
        opt(
            "confidence",
            Type::Map(&CONFIDENCE),
            "How sure an entry is, and how that changes (0.3.0).",
        )
        .newer(),
    ],
};

static RETENTION: Shape = Shape {
    title: "retention",
    doc: "How long and how much.",
    fields: &[
        opt(
            "max_age",
            Type::Duration,
            "clawk removes entries older than this.",
        ),
        opt(
            "max_entries",
            AT_LEAST_ONE,
            "The most entries; clawk removes the oldest beyond this number.",
        ),
    ],
};

static COMPACTION: Shape = Shape {
    title: "compaction",
    doc: "How a conversation is made smaller.",
    fields: &[
        opt("enabled", Type::Bool, "On by default."),
        opt(
            "strategy",
            Type::Word(CompactionStrategy::WORDS),
            "`summarize` by default.",
        ),
    ],
};

static EMBEDDING: Shape = Shape {
    title: "an embedding",
    doc: "Vectors of a semantic store.",
    fields: &[
        req(
            "provider_ref",
            Type::Ref(Kind::Provider),
            "The name of a provider of this manifest.",
        ),
        req("model", Type::FullText, "The embedding model."),
        req("dimensions", AT_LEAST_ONE, "Numbers in a vector."),
    ],
};

static SEARCH: Shape = Shape {
    title: "search",
    doc: "Search of a semantic store.",
    fields: &[
        opt(
            "strategy",
            Type::Word(SearchStrategy::WORDS),
            "`hybrid` by default.",
        ),
        opt(
            "fusion",
            Type::Word(SearchFusion::WORDS),
            "`reciprocal-rank` by default.",
        ),
        opt(
            "top_k",
            AT_LEAST_ONE,
            "The most entries of a result; 10 by default.",
        ),
    ],
};

static CHECKPOINT: Shape = Shape {
    title: "a checkpoint",
    doc: "Snapshots of a checkpoint store.",
    fields: &[
        opt("max_snapshots", AT_LEAST_ONE, "Snapshots kept for each task."),
        opt("ttl", Type::Duration, "How long a snapshot is kept."),
    ],
};

static LIFECYCLE: Shape = Shape {
    title: "a store's lifecycle",
    doc: "How entries come in, settle and come back.",
    fields: &[
        opt(
            "acquisition",
            Type::Word(Acquisition::WORDS),
            "How entries come in.",
        ),
        opt(
            "consolidation",
            Type::Word(Consolidation::WORDS),
            "How entries are consolidated.",
        ),
        opt(
            "retrieval",
            Type::Word(Retrieval::WORDS),
            "How entries are found.",
        ),
    ],
};

static FORGETTING: Shape = Shape {
    title: "forgetting",
    doc: "How entries fade.",
    fields: &[
        opt("strategy", Type::Word(ForgettingStrategy::WORDS), "The method."),
        opt("signals", TEXTS, "Which facts count."),
    ],
};

static SALIENCE: Shape = Shape {
    title: "salience",
    doc: "What makes an entry stand out.",
    fields: &[
        opt("enabled", Type::Bool, "Off by default."),
        opt("signals", TEXTS, "Which facts count."),
    ],
};

static CONFIDENCE: Shape = Shape {
    title: "confidence",
    doc: "How sure an entry is.",
    fields: &[
        opt("source_tracking", Type::Bool, "Records where an entry came from."),
        opt(
            "decay",
            Type::Word(ConfidenceDecay::WORDS),
            "How confidence decreases with time.",
        ),
    ],
};

pub(super) static WORLD_MODEL: Shape = Shape {
    title: "a WorldModel",
    doc: "What a skill plans with (CKP 0.3.0).",
    fields: &[
        req(
            "paradigm",
            Type::Word(Paradigm::WORDS),
            "What kind of model it is.",
        ),
        opt(
            "scope",
            Type::Word(WorldModelScope::WORDS),
            "How long the world model lives; `agent-wide` by default.",
        ),
        opt("memory_ref", Type::FullText, "The memory, or one of its stores."),
        req(
            "backend",
            Type::Map(&WORLD_MODEL_BACKEND),
            "What answers for the world model.",
        ),
        opt("predicts", Type::Map(&PREDICTS), "What the world model predicts."),
        opt("planning", Type::Map(&PLANNING), "How it plans."),
        opt("update", Type::Map(&UPDATE), "How the world model learns."),
        opt(
            "constraints",
            Type::Map(&CONSTRAINTS),
            "What limits the world model.",
        ),
    ],
};

static WORLD_MODEL_BACKEND: Shape = Shape {
    title: "a world model's backend",
    doc: "What answers.",
    fields: &[
        req("type", Type::Word(WorldModelBackendType::WORDS), "The kind."),
        req(
            "ref",
            Type::FullText,
            "The declared tool or provider; any text for `custom`.",
        ),
    ],
};

static PREDICTS: Shape = Shape {
    title: "predicts",
    doc: "What it foretells; all off by default.",
    fields: &[
        opt("state", Type::Bool, "The next state."),
        opt("observation", Type::Bool, "The next observation."),
        opt("risk", Type::Bool, "The risk of an action."),
        opt("cost", Type::Bool, "The cost of an action."),
    ],
};

static PLANNING: Shape = Shape {
    title: "planning",
    doc: "How it plans.",
    fields: &[
        opt("horizon", Type::Word(Horizon::WORDS), "How far ahead."),
        opt(
            "uncertainty_mode",
            Type::Word(UncertaintyMode::WORDS),
            "How uncertainty is handled.",
        ),
        opt(
            "fallback",
            Type::Word(PlanFallback::WORDS),
            "What happens when no future is good.",
        ),
    ],
};

static UPDATE: Shape = Shape {
    title: "update",
    doc: "How it learns.",
    fields: &[
        opt("mode", Type::Word(UpdateMode::WORDS), "When it learns."),
        opt("evidence", Type::Word(Evidence::WORDS), "What it learns from."),
    ],
};

static CONSTRAINTS: Shape = Shape {
    title: "constraints",
    doc: "What binds it.",
    fields: &[opt("policy_ref", Type::Ref(Kind::Policy), "A declared policy.")],
};
