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
        "At least one store.",
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
            "What it is for (`checkpoint`: 0.3.0).",
        ),
        opt(
            "backend",
            Type::Word(StoreBackend::WORDS),
            "Where it keeps its entries.",
        ),
        opt("retention", Type::Map(&RETENTION), "How long and how much."),
        opt("compaction", Type::Map(&COMPACTION), "How it is made smaller."),
        opt("embedding", Type::Map(&EMBEDDING), "Vectors of a semantic store."),
        opt("search", Type::Map(&SEARCH), "Search of a semantic store."),
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
        opt("role", Type::Word(StoreRole::WORDS), "The part it plays (0.3.0).").newer(),
        opt(
            "lifecycle",
            Type::Map(&LIFECYCLE),
            "How entries come in, settle and come back (0.3.0).",
        )
        .newer(),
        opt("forgetting", Type::Map(&FORGETTING), "How entries fade (0.3.0).").newer(),
        opt(
            "salience",
            Type::Map(&SALIENCE),
            "What makes an entry stand out (0.3.0).",
        )
        .newer(),
        opt(
            "confidence",
            Type::Map(&CONFIDENCE),
            "How sure an entry is (0.3.0).",
        )
        .newer(),
    ],
};

static RETENTION: Shape = Shape {
    title: "retention",
    doc: "How long and how much.",
    fields: &[
        opt("max_age", Type::Duration, "Entries older than this go."),
        opt("max_entries", AT_LEAST_ONE, "The oldest beyond this go."),
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
        req("provider_ref", Type::Ref(Kind::Provider), "A declared provider."),
        req("model", Type::FullText, "The embedding model."),
        req("dimensions", AT_LEAST_ONE, "Length of a vector."),
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
        opt("top_k", AT_LEAST_ONE, "Entries found; 10 by default."),
    ],
};

static CHECKPOINT: Shape = Shape {
    title: "a checkpoint",
    doc: "Snapshots of a checkpoint store.",
    fields: &[
        opt("max_snapshots", AT_LEAST_ONE, "Kept per task."),
        opt("ttl", Type::Duration, "Life of a snapshot."),
    ],
};

static LIFECYCLE: Shape = Shape {
    title: "a store's lifecycle",
    doc: "How entries come in, settle and come back.",
    fields: &[
        opt("acquisition", Type::Word(Acquisition::WORDS), "Taking in."),
        opt("consolidation", Type::Word(Consolidation::WORDS), "Settling."),
        opt("retrieval", Type::Word(Retrieval::WORDS), "Bringing back."),
    ],
};

static FORGETTING: Shape = Shape {
    title: "forgetting",
    doc: "How entries fade.",
    fields: &[
        opt("strategy", Type::Word(ForgettingStrategy::WORDS), "The way."),
        opt("signals", TEXTS, "What counts."),
    ],
};

static SALIENCE: Shape = Shape {
    title: "salience",
    doc: "What makes an entry stand out.",
    fields: &[
        opt("enabled", Type::Bool, "Off by default."),
        opt("signals", TEXTS, "What counts."),
    ],
};

static CONFIDENCE: Shape = Shape {
    title: "confidence",
    doc: "How sure an entry is.",
    fields: &[
        opt("source_tracking", Type::Bool, "Keep where an entry came from."),
        opt("decay", Type::Word(ConfidenceDecay::WORDS), "How it fades."),
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
            "How long it lives; `agent-wide` by default.",
        ),
        opt("memory_ref", Type::FullText, "The memory, or one of its stores."),
        req("backend", Type::Map(&WORLD_MODEL_BACKEND), "What answers."),
        opt("predicts", Type::Map(&PREDICTS), "What it foretells."),
        opt("planning", Type::Map(&PLANNING), "How it plans."),
        opt("update", Type::Map(&UPDATE), "How it learns."),
        opt("constraints", Type::Map(&CONSTRAINTS), "What binds it."),
    ],
};

static WORLD_MODEL_BACKEND: Shape = Shape {
    title: "a world model's backend",
    doc: "What answers.",
    fields: &[
        req("type", Type::Word(WorldModelBackendType::WORDS), "Its kind."),
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
        opt("risk", Type::Bool, "What may go wrong."),
        opt("cost", Type::Bool, "What it costs."),
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
        opt("mode", Type::Word(UpdateMode::WORDS), "When."),
        opt("evidence", Type::Word(Evidence::WORDS), "From what."),
    ],
};

static CONSTRAINTS: Shape = Shape {
    title: "constraints",
    doc: "What binds it.",
    fields: &[opt("policy_ref", Type::Ref(Kind::Policy), "A declared policy.")],
};
